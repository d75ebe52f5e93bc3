"""The person at the terminal is asked, and the run goes on with their answer."""

import json
import sys

import pytest
from tests.cli.command import Shell, plain
from tests.mcp.conftest import ZOO

from mainspring.core.items import Json

PROMPT = "Do it? [y]es, [N]o, [a]lways in this run: "
HELLO: Json = {"say": "All done."}


def add(a: int, b: int) -> Json:
    return {"calls": [{"name": "add", "arguments": {"a": a, "b": b}}]}


@pytest.fixture
def asking(shell: Shell) -> Shell:
    """A folder whose settings have a person asked about every call of `add`."""
    rules = '[governance.rules]\n"add" = "ask"\n'
    (shell.folder / "mainspring.toml").write_text(f'model = "scripted:script.json"\ntools = ["mytools:add"]\n{rules}')
    return shell


def read_tally(shell: Shell) -> list[str]:
    tally = shell.folder / "tally"
    return tally.read_text().splitlines() if tally.exists() else []


def test_a_question_breaks_between_words(shell: Shell) -> None:
    rules = '[governance.rules]\n"undocumented" = "ask"\n'
    (shell.folder / "mainspring.toml").write_text(f'model = "scripted:script.json"\ntools = ["mytools:undocumented"]\n{rules}')
    text = "word by word " * 12
    shell.script({"calls": [{"name": "undocumented", "arguments": {"text": text}}]}, HELLO)
    shown = plain(shell.run_on_terminal("run", "Say it", typed=[(PROMPT, "n\n")]).out)
    question = shown[shown.index("? undocumented(") : shown.index("Do it?")]
    assert max([len(line) for line in question.splitlines()]) < 80
    assert {word.strip('"') for word in question.split("=")[1].split(")")[0].split()} == {"word", "by", ""}


def test_a_run_that_waits_is_called_the_same_in_every_list(asking: Shell) -> None:
    asking.script(add(2, 3), HELLO)
    assert asking.run("run", "Add").code == 0
    for command in ("runs", "traces list", "traces show last", "show last"):
        assert " requires_action " in asking.run(*command.split()).out.replace("\n", " "), command


def test_a_yes_lets_the_call_run_and_the_run_go_on(asking: Shell) -> None:
    asking.script(add(2, 3), {**HELLO, "expect": "5"})
    result = asking.run_on_terminal("run", "Add", typed=[(PROMPT, "y\n")])
    assert result.code == 0
    assert "? add(a=2, b=3)" in result.out
    assert "(rule `tool_rules`)" in result.out
    assert "All done." in result.out
    assert read_tally(asking) == ["2 + 3"]
    runs = [json.loads(line) for line in asking.run("runs", "--json").out.splitlines()]
    assert [run["status"] for run in runs] == ["completed", "requires_action"]


@pytest.mark.parametrize("said", ["n\n", "\n", "what?\n"])
def test_anything_but_a_yes_is_no_yes(asking: Shell, said: str) -> None:
    asking.script(add(2, 3), HELLO)
    again = [(PROMPT, "no\n")] if said == "what?\n" else []
    result = asking.run_on_terminal("run", "Add", typed=[(PROMPT, said), *again])
    assert result.code == 0
    assert "All done." in result.out
    assert read_tally(asking) == []


def test_always_is_asked_once(asking: Shell) -> None:
    asking.script(add(1, 1), add(2, 2), add(3, 3), HELLO)
    result = asking.run_on_terminal("run", "Add", typed=[(PROMPT, "a\n")])
    assert result.out.count(PROMPT) == 1
    assert read_tally(asking) == ["1 + 1", "2 + 2", "3 + 3"]


def test_who_leaves_without_an_answer_is_told_how_to_give_it(asking: Shell) -> None:
    asking.script(add(2, 3), HELLO)
    result = asking.run_on_terminal("run", "Add", typed=[(PROMPT, "\x04")])
    assert result.code == 0
    (line,) = asking.run("approvals", "list", "--json").out.splitlines()
    waiting = json.loads(line)
    assert waiting["state"] == "pending"
    assert f"mainspring approvals approve {waiting['id']};" in result.out
    assert read_tally(asking) == []


def test_without_a_terminal_nobody_is_asked(asking: Shell) -> None:
    asking.script(add(2, 3), HELLO)
    result = asking.run("run", "Add", given="y\n")
    assert result.code == 0
    assert read_tally(asking) == []
    command = result.err.split(": mainspring ")[1].split(";")[0]
    assert asking.run(*command.split(), "--tool", "mytools:add").code == 0
    assert read_tally(asking) == ["2 + 3"]


def test_several_calls_that_wait_are_answered_from_their_list(asking: Shell) -> None:
    asking.script({"calls": [*add(2, 3)["calls"], *add(4, 5)["calls"]]}, HELLO)
    assert "answer them: mainspring approvals list\n" in asking.run("run", "Add").err.replace("Answer", "answer")


def test_a_call_is_named_where_a_later_run_says_what_became_of_it(asking: Shell) -> None:
    asking.script(add(2, 3), HELLO)
    result = asking.run_on_terminal("run", "Add", typed=[(PROMPT, "n\n")])
    assert "\n✗ add: A person refused this call" in plain(result.out)
    assert "✗ add: " in asking.run("show", "last").out
    assert [json.loads(line)["prompt"] for line in asking.run("runs", "--json").out.splitlines()] == ["(no)", "Add"]


def test_what_is_denied_is_not_asked(asking: Shell) -> None:
    settings = asking.folder / "mainspring.toml"
    settings.write_text(settings.read_text().replace('"ask"', '"deny"'))
    asking.script(add(2, 3), HELLO)
    result = asking.run_on_terminal("run", "Add")
    assert PROMPT not in result.out
    assert read_tally(asking) == []


def test_a_run_that_is_not_kept_asks_too(asking: Shell) -> None:
    asking.script(add(2, 3), HELLO)
    result = asking.run_on_terminal("run", "Add", "--no-store", typed=[(PROMPT, "y\n")])
    assert (result.code, "\n» yes\n" in plain(result.out)) == (0, True)
    assert read_tally(asking) == ["2 + 3"]
    assert not list(asking.folder.glob("*.db"))


def test_the_form_of_an_mcp_server_is_filled_in_at_the_terminal(shell: Shell) -> None:
    command = f'command = "{sys.executable}"\nargs = ["{ZOO}", "polite", "{shell.folder / "polite.log"}"]\nsandboxed = false\n'
    (shell.folder / "mainspring.toml").write_text(f'model = "scripted:script.json"\n[mcp.polite]\n{command}')
    shell.script({"calls": [{"name": "read", "arguments": {}}]}, {**HELLO, "expect": "blue"})
    typed = [("Answer it? [y]es, [N]o: ", "y\n"), ("  text: ", "blue\n")]
    result = shell.run_on_terminal("run", "Read", typed=typed)
    assert result.code == 0, result.out
    assert "MCP server `polite` asks: Which colour?" in result.out
    assert "All done." in result.out
