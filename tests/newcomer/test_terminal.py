"""What a person in a terminal meets: examples that fit their command, lists that programs can read, mistakes that are told."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.command import ESCAPES, Shell
from typer.main import get_group

from mainspring.app.process import app, run_command
from mainspring_tasks.server.sqlite_tasks import SqliteTasks
from mainspring_tasks.server.task import make_task, utc_now

LISTING = {"list", "runs", "models", "tools", "search"}
TELLING = {("policy", "show"), ("config", "explain"), ("audit", "verify"), ("explain",)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which commands know what there is of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "script.json").write_text('{"turns": [{"say": "Hi."}]}')
    assert run_command(["--version"]) == 0
    return tmp_path


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command there is, with its path."""
    context = command.make_context("mainspring", ["--help"], resilient_parsing=True)
    loaded = context.command
    yield path, loaded
    for name in loaded.list_commands(context) if hasattr(loaded, "list_commands") else ():
        yield from walk(loaded.get_command(context, name), (*path, name))


def parse(command: Any, name: str, words: Sequence[str], parent: Any = None) -> None:
    """Reads a command line to its end and runs nothing. Raises what the command says of mistakes in it."""
    context = command.make_context(name, list(words), parent=parent)
    rest = [*getattr(context, "_protected_args", ()), *context.args]
    if rest and hasattr(context.command, "resolve_command"):
        next_name, found, left = context.command.resolve_command(context, rest)
        parse(found, next_name, left, context)


def take_examples(text: str) -> str:
    """The lines of a help text that are between fences, or indented, where those of `mainspring` itself are."""
    fenced = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return re.sub(r" \\\n +", " ", fenced) or "\n".join(re.findall(r"^    .*$", text, re.MULTILINE))


def test_every_example_of_a_help_text_is_a_command_line_that_fits() -> None:
    group = get_group(app)
    texts = {path: command.help or "" for path, command in walk(group)}
    examples = [
        found
        for text in texts.values()
        for line in re.findall(r"^(?:    )?(\S.*\bmainspring .*|mainspring .*)$", take_examples(text), re.MULTILINE)
        for found in re.findall(r"(?:^|\| )mainspring ([^|>]*)", line)
    ]
    assert len(examples) > 40
    for example in examples:
        try:
            parse(group, "mainspring", shlex.split(example, comments=True))
        except Exception as error:
            pytest.fail(f"mainspring {example}: {error}")


def test_every_command_that_lists_can_do_so_for_programs() -> None:
    for path, command in walk(get_group(app)):
        if path and (path[-1] in LISTING or path in TELLING):
            assert any("--json" in option.opts for option in command.params), path


def test_an_empty_list_says_what_there_is_none_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["keys", "create", "--name", "a", "--database", "a.db"]) == 0
    capsys.readouterr()
    for command in ("runs", "traces list", "audit list", "approvals list", "prompts list"):
        assert run_command([*command.split(), "--database", "a.db"]) == 0, command
        out, err = capsys.readouterr()
        assert (out, err.startswith("mainspring: ") and " no " in err) == ("", True), command


def test_whoever_has_tenants_may_say_so_of_every_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["keys", "create", "--tenant", "acme", "--database", "a.db"]) == 0
    for command in ("runs", "traces list", "audit list", "keys list", "approvals list", "budgets list"):
        assert run_command([*command.split(), "--all-tenants", "--database", "a.db"]) == 0, command
    assert "acme" in capsys.readouterr().out
    assert run_command(["runs", "--all-tenants", "--tenant", "acme", "--database", "a.db"]) == 2


def test_output_for_which_there_is_no_room_is_told_in_a_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mainspring", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr.count("\n"), "No space left" in done.stderr) == (1, 1, True)
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "hi", "--model", "scripted:script.json", "--database", "folder"),
        ("run", "hi", "--model", "scripted:folder"),
        ("config", "show", "--config", "folder"),
        ("runs", "--database", "file/x.db"),
        ("chat", "hi", "--model", "scripted:script.json", "--folder", "file/data"),
        ("agents", "list", "--folder", "file"),
        ("mcp", "add", "x", "--config", "folder", "--", "cmd"),
        ("models", "pull", "qwen3-4b", "--from", "folder"),
        ("init", "file"),
        ("backup", "folder"),
        ("show", "nobody"),
        ("tasks", "list", "--database", "nowhere.db"),
    ],
)
def test_an_ordinary_mistake_is_never_an_internal_error(capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code = run_command(list(arguments))
    told = capfd.readouterr().err
    assert code in (1, 2)
    assert told.startswith("mainspring: ")
    assert "internal error" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("agnts", "there is no command `agnts`; did you mean `agents`?"),
        ("agents lst", "there is no command `lst`; did you mean `list`?"),
        ("agents", "say which command: list, show, run."),
        ("version", "there is no command `version`; did you mean `--version`?"),
        ("help run", "there is no command `help`; did you mean `--help`?"),
        ("show", "`RUN_ID` is missing. Run: its id, the beginning of it, or `last`. See `mainspring show --help`"),
        ("prune", "`--keep` is missing. Keep what ended since, as in 30d."),
        ("completion", "`SHELL` is missing; known: `bash`, `zsh`, `fish`."),
        ("completion tcsh", "`SHELL` cannot be `tcsh`; known: `bash`, `zsh`, `fish`."),
        ("runs --limit x", "`--limit` cannot be `x`; it takes a whole number of at least 1."),
        ("runs --limit", "`--limit` needs a value behind it."),
        ("serve --port 99999", "`--port` cannot be `99999`; it takes a whole number from 0 to 65535."),
        ("prune --keep 3x", "`--keep`: `3x` is not a duration; write a number and m, h, d or w, as in 30d."),
        ("resume", "`RUN_ID`: name one run, or pass --all."),
        ("run hi --modle x", "there is no option `--modle`; did you mean `--model`?"),
        ("run -m x hi", "there is no option `-m`; did you mean `--model`?"),
        ("run Tidy up notes", "`up notes` is more than it takes; write quotes around what has blanks in it."),
        ("runs --status x", "there is no option `--status`; known: `--database`,"),
    ],
)
def test_what_may_have_been_meant_is_told(capfd: pytest.CaptureFixture[str], arguments: str, told: str) -> None:
    assert run_command(arguments.split()) == 2
    assert capfd.readouterr().err.startswith(f"mainspring: {told}")


def test_settings_without_quotes_are_told_where_they_belong(folder: Path) -> None:
    (folder / "mainspring.toml").write_text("model = scripted:script.json\n")
    told = Shell(folder).run("config", "show").err
    assert told.startswith("mainspring: the settings are not right: mainspring.toml:1: this is not TOML: ")
    assert told.endswith("; text needs quotes around it\n")


def test_an_address_of_another_machine_is_no_matter_of_the_port(folder: Path) -> None:
    done = Shell(folder).run("serve", "--host", "192.0.2.1", "--model", "scripted:script.json")
    assert (done.code, "--host" in done.err, "--port" in done.err) == (2, True, False)


def test_a_doctor_of_a_script_says_what_the_script_says(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--model", "scripted:script.json"]) == 1
    out, err = capfd.readouterr()
    assert ("the script" in out, "internal error" in err) == (True, False)


def test_a_table_that_is_too_wide_breaks_between_columns(folder: Path) -> None:
    shell = Shell(folder)
    assert shell.run("run", "Hi. " * 30, "--model", "scripted:script.json").code == 0
    for command in ("runs", "traces list"):
        shown = ESCAPES.sub("", shell.run_on_terminal(*command.split(), env={"COLUMNS": "60"}).out).splitlines()
        assert max([len(line) for line in shown]) < 60, command
        # What does not fit stands whole in the lines below, indented.
        assert [line.startswith("  ") for line in shown] == [False, True] * 2, command
        titles = shell.run(*command.split()).out.splitlines()[0].split()
        assert " ".join(shown[:2]).split() == titles, command


def test_a_home_that_cannot_be_written_is_said(folder: Path) -> None:
    env = {"HOME": "/dev/null/home", "XDG_DATA_HOME": "", "XDG_CACHE_HOME": ""}
    done = Shell(folder).run("chat", "hi", "--model", "scripted:script.json", env=env)
    assert (done.code, "internal error" in done.err, "/dev/null/home" in done.err) == (1, False, True), done.err


def test_a_run_is_shown_with_the_ids_of_its_calls(folder: Path) -> None:
    shell = Shell(folder)
    (folder / "mytools.py").write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"say": "Three."})
    done = shell.run("run", "Add.", "--model", model, "--tool", "mytools:add")
    assert (done.code, "call_" in done.out) == (0, False)
    shown = shell.run("show", "last").out
    [call_id] = re.findall(r"^  (call_\S+)$", shown, re.MULTILINE)
    explained = shell.run("explain", call_id)
    assert (explained.code, "add" in explained.out) == (0, True)
    lines = [json.loads(line) for line in shell.run("explain", call_id, "--json").out.splitlines()]
    assert {line["call"] for line in lines} == {call_id}
    [verified] = map(json.loads, shell.run("audit", "verify", "--json").out.splitlines())
    assert (verified["flaw"], verified["records"] >= len(lines), len(verified["heads"])) == (None, True, 1)
    [explains] = map(json.loads, shell.run("config", "explain", "--json").out.splitlines())
    policies = [json.loads(line)["policy"] for line in shell.run("policy", "show", "--json").out.splitlines()]
    assert explains["policies"] == policies


async def test_tasks_are_listed(folder: Path) -> None:
    store = SqliteTasks(folder / "tasks.db")
    await store.open()
    await store.add("alice", make_task(uuid4(), "Buy milk", utc_now()))
    await store.close()
    done = Shell(folder).run("tasks", "list", "--user", "alice", "--database", "tasks.db", "--json")
    assert [json.loads(line)["description"] for line in done.out.splitlines()] == ["Buy milk"]
    assert "Buy milk" in Shell(folder).run("tasks", "list", "--user", "alice", "--database", "tasks.db").out
