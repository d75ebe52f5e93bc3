"""What goes wrong is told in one line that says what to do next, without a traceback."""

import sqlite3

import pytest
from inline_snapshot import snapshot
from tests.cli.command import Shell

from mainspring.core.items import Json

HELLO: Json = {"say": "Hello."}


def complaint(shell: Shell, *arguments: str, code: int = 2) -> str:
    """The one line on standard error, standard output being empty."""
    result = shell.run(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("mainspring: ")
    assert result.err.count("\n") == 1
    return result.err.removeprefix("mainspring: ").rstrip("\n").replace(str(shell.folder), "FOLDER")


def test_an_unknown_command(shell: Shell) -> None:
    told = complaint(shell, "rin")
    assert "`rin`; did you mean `run`?" in told
    assert told.endswith(" See `mainspring --help`")


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ((), "PROMPT"),
        (("Hi", "--modle", "x"), "--model"),
        (("Hi", "--max-turns", "many"), "--max-turns"),
        (("Hi", "--max-turns", "0"), "--max-turns"),
        (("Hi", "--preset", "lazy"), "`iterative`"),
    ],
)
def test_arguments_that_are_not_right(shell: Shell, arguments: tuple[str, ...], about: str) -> None:
    told = complaint(shell, "run", *arguments)
    assert about in told
    assert told.endswith(" See `mainspring run --help`")


def test_an_empty_prompt(shell: Shell) -> None:
    assert complaint(shell, "run", " ", "--model", shell.script(HELLO)) == snapshot(
        "the prompt is empty; say what to do, or pass `-` and write it to standard input"
    )


def test_no_model(shell: Shell) -> None:
    told = complaint(shell, "run", "Hi", "--base-url", "http://127.0.0.1:9/v1")
    assert told == "no model is named; pass --model with a name that http://127.0.0.1:9/v1 knows"


def test_a_model_without_a_backend(shell: Shell) -> None:
    assert "needs a backend" in complaint(shell, "run", "Hi", "--model", "qwen3")


def test_a_script_that_is_not_there(shell: Shell) -> None:
    assert complaint(shell, "run", "Hi", "--model", "scripted:none.json") == snapshot(
        "cannot read the script `none.json`: No such file or directory; check the path"
    )


def test_a_script_that_is_no_json(shell: Shell) -> None:
    (shell.folder / "bad.json").write_text('{"turns": [')
    assert complaint(shell, "run", "Hi", "--model", "scripted:bad.json") == snapshot(
        "the script `bad.json` is not JSON: Expecting value at line 1, column 12; correct it there"
    )


def test_a_tool_module_that_is_not_there(shell: Shell) -> None:
    assert complaint(shell, "run", "Hi", "--model", shell.script(HELLO), "--tool", "nowhere:add") == snapshot(
        "there is no module `nowhere`; looked in FOLDER and in sys.path"
    )


def test_a_tool_function_that_is_not_there(shell: Shell) -> None:
    assert "has no `subtract`" in complaint(shell, "run", "Hi", "--model", shell.script(HELLO), "--tool", "mytools:subtract")


def test_two_tools_of_the_same_name(shell: Shell) -> None:
    (shell.folder / "more.py").write_text("def add(a: int) -> int:\n    return a\n")
    tools = ("--tool", "mytools:add", "--tool", "more:add")
    assert complaint(shell, "run", "Hi", "--model", shell.script(HELLO), *tools) == snapshot(
        "two tools are called `add`; give one of them another name"
    )


def test_a_previous_run_without_its_database(shell: Shell) -> None:
    assert complaint(shell, "run", "Hi", "--model", shell.script(HELLO), "--previous", "resp_none", "--no-store") == snapshot(
        "--previous names a run of the database, and --no-store does without; leave one of them out"
    )


def test_a_previous_run_that_is_not_stored(shell: Shell) -> None:
    options = ("--previous", "resp_none", "--database", "runs.db")
    assert complaint(shell, "run", "Hi", "--model", shell.script(HELLO), *options) == snapshot(
        "Previous response with id 'resp_none' not found; list the runs with: mainspring runs --database runs.db"
    )


def test_a_database_that_is_none(shell: Shell) -> None:
    (shell.folder / "runs.db").write_text("Dear diary, today I was mistaken for a database.\n" * 100)
    assert complaint(shell, "run", "Hi", "--model", shell.script(HELLO), "--database", "runs.db", code=1) == snapshot(
        "FOLDER/runs.db is not a database; choose another file with --database"
    )


def test_a_database_that_is_damaged(shell: Shell) -> None:
    assert shell.run("run", "Hi", "--model", shell.script(HELLO), "--database", "runs.db").code == 0
    file = shell.folder / "runs.db"
    data = file.read_bytes()
    file.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    told = complaint(shell, "runs", "--database", "runs.db", code=1)
    assert told.startswith("FOLDER/runs.db is damaged")
    assert "restore it from a backup" in told


def test_a_database_of_a_newer_version(shell: Shell) -> None:
    assert shell.run("run", "Hi", "--model", shell.script(HELLO), "--database", "runs.db").code == 0
    with sqlite3.connect(shell.folder / "runs.db") as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    told = complaint(shell, "show", "resp_none", "--database", "runs.db", code=1)
    assert told.startswith("FOLDER/runs.db was written by a newer Mainspring (schema 999, this one knows ")
    assert told.endswith("); upgrade Mainspring or choose another file with --database")


@pytest.mark.parametrize("arguments", [("runs",), ("show", "resp_none"), ("resume", "resp_none"), ("resume", "--all")])
def test_a_database_that_is_not_there_is_not_made_by_reading_it(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert complaint(shell, *arguments, "--database", "none.db") == snapshot(
        "there is no database `none.db`; `mainspring run` and `mainspring serve` make one; or check --database, or `database` in "
        "the settings"
    )
    assert not (shell.folder / "none.db").exists()


def test_a_run_that_is_not_stored(shell: Shell) -> None:
    assert shell.run("run", "Hi", "--model", shell.script(HELLO), "--database", "runs.db").code == 0
    assert complaint(shell, "show", "resp_none", "--database", "runs.db") == snapshot(
        "run `resp_none` is not stored; it may have been deleted; list the runs with: mainspring runs --database runs.db"
    )


def test_resuming_nothing_in_particular(shell: Shell) -> None:
    assert "name one run, or pass --all" in complaint(shell, "resume", "--database", "runs.db")


def test_a_backend_that_does_not_answer_fails_the_run_and_says_what_to_do(shell: Shell) -> None:
    result = shell.run("run", "Hi", "--model", "qwen3", "--base-url", "http://127.0.0.1:9/v1")
    assert result.code == 1
    assert "failed (provider_error) · 1 turn" in result.out
    assert result.err.startswith("mainspring: failed: no server answers at http://127.0.0.1:9/v1")
    assert result.err.endswith(" Start the backend, or correct --base-url or `base_url` in the settings, then run it again\n")


def test_a_script_that_does_not_fit_fails_the_run_in_one_line(shell: Shell) -> None:
    result = shell.run("run", "Hi", "--model", shell.script({"say": "Bonjour.", "expect": "Salut"}))
    assert result.code == 1
    assert result.err == (
        "mainspring: failed: provider `scripted` failed: ScriptError: turn 1 (say 'Bonjour.') expects 'Salut'; the prompt was. "
        "Correct the script, or what it is asked\n"
    )


def test_debugging_shows_the_traceback(shell: Shell) -> None:
    result = shell.run("run", "Hi", "--model", "scripted:none.json", env={"MAINSPRING_DEBUG": "1"})
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("check the path\n")


def test_a_key_is_never_shown(shell: Shell) -> None:
    env = {"OPENAI_API_KEY": "sk-very-secret", "MAINSPRING_DEBUG": "1"}
    failed = shell.run("run", "Hi", "--model", "qwen3", "--base-url", "http://127.0.0.1:9/v1", "--json", env=env)
    helped = shell.run("run", "--help", env=env)
    assert "sk-very-secret" not in failed.out + failed.err + helped.out + helped.err


SLIPS = """\
model = "scripted:script.json"
[governance]
levle = "full"
[budget.tenants.acme]
limits = { max_token = 3 }
[decisions]
confirm_seconds = 0
[providers.house]
base_urll = "http://127.0.0.1:9/v1"
[mcp.files]
command = "x"
url = "http://127.0.0.1:9"
[otel]
contents = true
[memory]
enabled = "yes"
"""


def test_all_mistakes_of_the_settings_are_told_at_once(shell: Shell) -> None:
    (shell.folder / "slips.toml").write_text(SLIPS)
    done = shell.run("serve", "--config", "slips.toml", "--port", "0")
    told = done.err.splitlines()
    assert (done.code, done.out, told[0]) == (2, "", "mainspring: the settings are not right: slips.toml:")
    assert [line.split(": ")[0].strip() for line in told[1:]] == [f"line {number}" for number in (3, 5, 7, 9, 10, 14, 16)]
    hints = ("`level`", "`max_tokens`", "`base_url`", "`content`")
    assert [line.partition("did you mean ")[2] for line in told if "did you mean" in line] == [f"{each}?" for each in hints]


WRONG_VALUES = """\
tools = ["nowhere:f", "os:nope"]
builtins = ["hammer"]
[governance.rules]
"shell:" = "deny"
[governance.domains]
allowed = ["example.com",
  "http://example.com/"]
[mcp.a]
command = "x"
url = "http://y"
[memory]
enabled = true
embedding_model = "m"
[decisions]
constitution = "nowhere.md"
[providers.a]
kind = "chat"
[providers.b]
base_url = "http://127.0.0.1:1/v1"
key_env = "NOT_SET"
"""


@pytest.mark.parametrize("with_unknown_key", [True, False])
def test_wrong_values_are_told_all_at_once_with_their_lines(shell: Shell, with_unknown_key: bool) -> None:
    text = WRONG_VALUES if with_unknown_key else WRONG_VALUES.replace('url = "http://y"\n', "\n")
    (shell.folder / "mainspring.toml").write_text(text + ("[xyzzy]\n" if with_unknown_key else ""))
    result = shell.run("serve", "--port", "0", env={"MAINSPRING_BUILTINS": "anvil"})
    assert (result.code, result.out) == (2, "")
    lines = [line.strip().split(": ")[0] for line in result.err.splitlines()]
    places = [1, 1, 4, 7, *([8] if with_unknown_key else []), 11, 14, 16, 18, *([21] if with_unknown_key else [])]
    assert [line for line in lines if line.startswith("line ")] == [f"line {number}" for number in places]
    assert result.err.count("mainspring.toml") == 1
    assert with_unknown_key or any("anvil" in line for line in lines)


def test_what_the_environment_sets_is_not_missed_in_the_file(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text('builtins = ["file_ops"]\nprot = 1\n')
    result = shell.run("serve", "--port", "0", env={"MAINSPRING_WORKING_DIR": str(shell.folder)})
    assert result.code == 2
    assert "mainspring.toml:2: " in result.err
    assert "working_dir" not in result.err


def test_values_of_a_named_settings_file_are_told_by_its_name(shell: Shell) -> None:
    (shell.folder / "mine.toml").write_text('tools = ["nowhere"]\n')
    for command in (("serve", "--port", "0"), ("workflows", "resume")):
        told = complaint(shell, *command, "--config", "mine.toml")
        assert told.startswith("the settings are not right: mine.toml:1: there is no module `nowhere`")


def test_mistakes_in_files_are_told_once_at_the_start_of_a_server(shell: Shell) -> None:
    for kind in ("agents", "skills/s", "workflows"):
        (shell.folder / kind).mkdir(parents=True)
    (shell.folder / "agents" / "a.yaml").write_text("nam: x\n")
    (shell.folder / "workflows" / "w.yaml").write_text("nam: x\n")
    (shell.folder / "skills" / "s" / "SKILL.md").write_text("no front matter\n")
    (shell.folder / "decisions.txt").write_text("not a database")
    (shell.folder / "mainspring.toml").write_text(
        'agents = ["agents"]\nskills = ["skills"]\nworkflows = ["workflows"]\n[decisions]\nlog = "decisions.txt"\n'
    )
    result = shell.run("serve", "--port", "0", "--model", shell.script(HELLO))
    last = result.err.splitlines()[-1]
    assert [result.err.count(f"/{file}:") for file in ("a.yaml", "w.yaml", "SKILL.md")] == [1, 1, 1]
    # A decision log that is something else stops the start, not the first chat.
    assert result.code == 1
    assert "decisions.txt" in last


def test_mistakes_in_tool_definitions_are_told_once_and_stop_the_start(shell: Shell) -> None:
    (shell.folder / "definitions").mkdir()
    (shell.folder / "definitions" / "a.yaml").write_text("name: add\nstatus: blocked\nstatus: active\n")
    (shell.folder / "mainspring.toml").write_text('tool_definitions = "definitions"\n')
    result = shell.run("serve", "--port", "0", "--model", shell.script(HELLO))
    assert result.code == 2
    assert result.err.count("a.yaml:3: `status` is there twice") == 1
