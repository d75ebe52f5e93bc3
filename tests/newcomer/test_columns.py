"""A terminal of 80 columns: every help text, and what commands print, fits it without broken words."""

import ast
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
import typer.rich_utils
from tests.cli.command import ESCAPES, Shell
from tests.newcomer.test_terminal import walk
from typer.main import get_group

from mainspring.app.process import app, run_command
from mainspring.cli.output import measure_cells
from mainspring_tasks.server.sqlite_tasks import SqliteTasks
from mainspring_tasks.server.task import make_task, utc_now

# Runs many commands in one process, which takes a tenth of the time of as many processes. A line tells where each begins.
DRIVER = """
import json, sys
from mainspring.app.process import run_command
for arguments in json.loads(sys.argv[1]):
    print("=====", json.dumps(arguments)[:60], flush=True)
    run_command(arguments)
    sys.stdout.flush()
"""
SETTINGS = """
model = "scripted:script.json"
agents = ["agents"]
workflows = ["workflows"]
tools = ["mytools:mail"]

[governance.rules]
mail = "ask"

[budget]
budget_id = "team"
per = "tenant"
limits = { max_tool_calls = 100 }
"""
AGENT = """
name: order-desk-with-a-rather-long-name
version: 1.0.0
role: researcher
description: Answers customers' questions about their orders, at length, and never guesses where a parcel is right now.
prompts: {system: Look the order up before you answer.}
"""
WORKFLOW = """
name: report
version: 1.0.0
description: Collects what was sold in every region, has it summed up by an agent, and sends it to whoever asked for it.
steps:
  - {id: collect-what-was-sold, action: run-command, command: "echo one two three four five six seven eight nine ten eleven"}
  - {id: sum-up, action: invoke-agent, agent: order-desk-with-a-rather-long-name, depends_on: [collect-what-was-sold]}
"""
MAIL = "run 'Mail it to everybody who has asked for it in the last two weeks, and to nobody else, please.'"
COMMANDS = (
    MAIL,
    "runs", "show last", "traces list", "traces show last", "replay last", "explain last", "approvals list",
    "approvals show last", "audit list", "audit verify",
    "keys create --name 'the laptop of the lady at the desk' --tenant acme", "keys list", "policy show", "config explain",
    "models", "models pull --list", "models show local/smollm2", "agents list",
    "agents show order-desk-with-a-rather-long-name", "workflows list", "workflows show report", "budgets list",
    "tasks list --user ada --database tasks.db", "decisions list", "schedules list", "webhooks list", "mcp list",
    "prompts list", "memory search milk", "vacuum", "prune --keep 30d", "demo --fast", "run hi --modle x", "show nobody",
    "agents", "serve --port 99999", "nosuch",
)  # fmt: skip


class Driven(Shell):
    """Its arguments are whole command lines, and one process runs them all."""

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", DRIVER, json.dumps([shlex.split(line) for line in arguments])]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def render(path: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", width)
    assert run_command([*path, "--help"]) == 0
    return ESCAPES.sub("", capsys.readouterr().out).splitlines()


def count_words(lines: list[str]) -> Counter[str]:
    # A long example goes on in the next line, behind a backslash; a list of values may break at its strokes.
    return Counter([word for line in lines for word in re.findall(r"[^\s│╭╮╰╯─|<>]+", line) if word != "\\"])


def test_every_help_text_fits_80_columns_without_broken_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["--version"]) == 0  # which makes the commands known
    capsys.readouterr()
    paths = [path for path, _ in walk(get_group(app))]
    assert len(paths) > 90
    for path in paths:
        narrow, wide = render(path, 80, monkeypatch, capsys), render(path, 500, monkeypatch, capsys)
        assert max([measure_cells(line) for line in narrow]) <= 80, path
        assert count_words(narrow) == count_words(wide), path


def make_place(folder: Path) -> Driven:
    """A folder in which every list has something in it, with texts that are too long for a line."""
    shell = Driven(folder)
    (folder / "mainspring.toml").write_text(SETTINGS)
    (folder / "agents").mkdir()
    (folder / "agents" / "desk.yaml").write_text(AGENT)
    (folder / "workflows").mkdir()
    (folder / "workflows" / "report.yaml").write_text(WORKFLOW)
    (folder / "mytools.py").write_text('def mail(to: str, text: str) -> str:\n    """Mails."""\n    return "sent " + text * 9\n')
    text = "that the report is due on Friday and not on Monday as everybody had thought until today; "
    shell.script({"calls": [{"name": "mail", "arguments": {"to": "ada@example.com", "text": text}}]}, {"say": text * 3})
    return shell


async def test_what_commands_print_fits_80_columns(folder: Path) -> None:
    shell = make_place(folder)
    store = SqliteTasks(folder / "tasks.db")
    await store.open()
    for description in (
        "家賃を払ってから歯医者を予約して、そのあと部屋を掃除する。" * 4,
        "Call the plumber about the leak. " * 8,
    ):
        await store.add("ada", make_task(uuid4(), description, utc_now()))
    await store.close()
    env = {"HOME": str(folder), "XDG_DATA_HOME": "", "XDG_CACHE_HOME": ""}
    done = shell.run_on_terminal(*COMMANDS, env=env, typed=[("in this run: ", "\x04")])
    assert done.code == 0, done.out
    shown = ESCAPES.sub("", done.out)
    assert shown.count("===== ") >= len(COMMANDS), shown
    assert "Traceback" not in shown
    assert "internal error" not in shown
    command, wide = "", []
    for line in shown.split("\n"):
        command = line if line.startswith("=====") else command
        visible = line.rsplit("\r", 1)[-1]
        if measure_cells(visible) > 80 and not re.fullmatch(r"\s*\S+", visible) and not line.startswith("====="):
            wide.append((command, visible))
    assert wide == []


def test_what_a_server_says_first_fits_and_can_be_pasted(folder: Path) -> None:
    shell = Shell(folder)
    model = shell.script({"say": "Hi."})
    done = shell.run_on_terminal("serve", "--port", "0", "--model", model, stop_at="in a browser")
    shown = ESCAPES.sub("", done.out)
    assert max([measure_cells(line) for line in shown.split("\n")]) <= 80, shown
    command = shlex.split(shown.split("  try  ")[1].split("  or  ")[0].replace("\\\n", " "))
    assert command[0] == "curl"
    assert json.loads(command[-1])["input"] == "Hello"
    program = re.sub(r"^ {12}", "", shown.split("  or        ")[1].split("  console")[0], flags=re.MULTILINE)
    assert [type(line).__name__ for line in ast.parse(program).body] == ["Assign", "Expr"]
