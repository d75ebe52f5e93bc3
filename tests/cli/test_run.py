"""`mainspring run`: what is shown, for people and for programs."""

import re
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from tests.cli.command import Shell, events

from mainspring.core.events import Reason, RunEnded, RunStarted
from mainspring.core.items import Json, Message, encode

SUM: Json = {"think": "A sum. I have a tool for that.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
HELLO: Json = {"say": "Hello."}


def masked(out: str) -> str:
    """The output with what differs from run to run made equal."""
    return re.sub(r"resp_\w+", "resp_ID", re.sub(r"\b\d+(\.\d+)? m?s\b", "N ms", out))


def test_a_run_shows_turns_thoughts_calls_results_and_text_and_sums_up(shell: Shell) -> None:
    model = shell.script(SUM, {"say": "It is 3.\nReally.", "expect": "[output] 3"})
    result = shell.run("run", "What is 1 + 2?", "--model", model, "--tool", "mytools:add")
    assert (result.code, result.err) == (0, "")
    assert masked(result.out) == snapshot("""\
» What is 1 + 2?

── turn 1 ──────────────────────────────────────────────────
┊ A sum. I have a tool for that.
→ add(a=1, b=2)
✓ 3  N ms

── turn 2 ──────────────────────────────────────────────────
  It is 3.
  Really.

completed (final_answer) · 2 turns · 1 tool call · 40 tokens · N ms · resp_ID
""")


def test_calls_made_at_once_are_told_apart_and_errors_are_marked(shell: Shell) -> None:
    calls = [{"name": "add", "arguments": {"a": "x", "b": 2}}, {"name": "add", "arguments": {"a": 1, "b": 2}}]
    result = shell.run("run", "Add.", "--model", shell.script({"calls": calls}, {"say": "Done."}), "--tool", "mytools")
    assert masked(result.out) == snapshot("""\
» Add.

── turn 1 ──────────────────────────────────────────────────
→ add(a="x", b=2)
→ add(a=1, b=2)
✗ add: Invalid arguments for `add`: a: "x" is not of type "integer".
✓ add(a=1, b=2)  N ms
  3

── turn 2 ──────────────────────────────────────────────────
  Done.

completed (final_answer) · 2 turns · 1 tool call · 29 tokens · N ms · resp_ID
""")


def test_long_arguments_and_outputs_are_shortened(shell: Shell) -> None:
    call = {"name": "undocumented", "arguments": {"text": "\n".join([f"line {n}" for n in range(50)])}}
    result = shell.run("run", "Go.", "--model", shell.script({"calls": [call]}, {"say": "."}), "--tool", "mytools:undocumented")
    assert masked(result.out) == snapshot("""\
» Go.

── turn 1 ──────────────────────────────────────────────────
→ undocumented(text="line 0\\nline 1\\nline 2\\nline 3\\nline 4\\nline 5\\nline 6\\nline 7\\nline 8\\nline…)
✓ line 0
  line 1
  line 2
  … 47 more lines  N ms

── turn 2 ──────────────────────────────────────────────────
  .

completed (final_answer) · 2 turns · 1 tool call · 211 tokens · N ms · resp_ID
""")


def test_an_agent_that_iterates_is_asked_whether_it_is_done(shell: Shell) -> None:
    model = shell.script({"say": "Done?"}, {"say": "Done.", "expect": "Before this counts as finished"})
    result = shell.run("run", "Go.", "--model", model, "--tool", "mytools", "--preset", "iterative")
    assert "? Before this counts as finished" in result.out
    assert "completed (final_answer) · 2 turns" in result.out


async def test_every_line_of_json_is_an_event_of_the_stored_log(shell: Shell) -> None:
    model = shell.script(SUM, {"say": "It is 3."})
    result = shell.run("run", "1 + 2?", "--model", model, "--tool", "mytools:add", "--database", "runs.db", "--json")
    assert (result.code, result.err) == (0, "")
    shown = events(result.out)
    started = shown[0].event
    assert isinstance(started, RunStarted)
    assert shown == await shell.log(started.spec.id)
    assert shown[-1].event == RunEnded("completed", Reason.FINAL_ANSWER)


def test_lines_of_json_are_written_as_they_were_recorded(shell: Shell) -> None:
    result = shell.run("run", "Hi", "--model", shell.script(HELLO), "--json")
    first = result.out.splitlines()[0].encode()
    [record, *_] = events(result.out)
    assert first == encode({"seq": 0, "at": record.at, "event": record.event})


def test_a_prompt_is_read_from_standard_input(shell: Shell) -> None:
    model = shell.script({"say": "Thanks.", "expect": "[user] Bonjour, ça va ?"})
    result = shell.run("run", "-", "--model", model, given="Bonjour, ça va ?\n")
    assert result.code == 0
    assert "» Bonjour, ça va ?\n" in result.out


def test_instructions_and_limits_reach_the_model(shell: Shell) -> None:
    model = shell.script({"say": "Ahoy.", "expect": "[instructions] Speak like a pirate."})
    result = shell.run("run", "Hi", "--model", model, "--instructions", "Speak like a pirate.", "--max-turns", "3", "--json")
    [started, *_] = [record.event for record in events(result.out)]
    assert isinstance(started, RunStarted)
    assert (started.spec.limits.max_turns, started.spec.instructions) == (3, "Speak like a pirate.")


def test_the_model_may_come_from_the_environment(shell: Shell) -> None:
    assert shell.run("run", "Hi", env={"MAINSPRING_MODEL": shell.script(HELLO)}).code == 0


async def test_a_run_goes_on_from_a_previous_one(shell: Shell) -> None:
    keep = ("--database", "runs.db")
    assert shell.run("run", "I am Ada.", "--model", shell.script({"say": "Hello, Ada."}), *keep).code == 0
    [first] = await shell.stored()
    model = shell.script({"say": "Ada.", "expect": "[user] I am Ada.\n[assistant] Hello, Ada.\n[user] Who am I?"})
    result = shell.run("run", "Who am I?", "--model", model, *keep, "--previous", first.id)
    assert result.code == 0
    assert "» Who am I?\n" in result.out
    assert "Hello, Ada." not in result.out


def test_control_characters_and_markup_of_the_model_are_inert(shell: Shell) -> None:
    nasty = "[bold red]no[/] :smile:\x1b[31mred\x1b]0;title\x07\x9b31m\rover\x08\x00 tab\tend\nnew"
    call = {"name": "undocumented\x1b[2J", "arguments": {"text": "\x1b[31m"}}
    model = shell.script({"think": nasty, "say": nasty, "calls": [call]}, {"refuse": nasty})
    result = shell.run("run", "\x1b[31mHi [b]there[/b]", "--model", model, "--tool", "mytools:undocumented")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", result.out + result.err)
    assert result.out.count("[bold red]no[/] :smile:[31mred]0;title31mover tab\tend\n") == 3
    assert "» [31mHi [b]there[/b]\n" in result.out


def test_text_streams_before_the_run_ends(shell: Shell) -> None:
    model = shell.script({"say": "So far so good", "stall": True})
    with shell.started("run", "Hi", "--model", model) as live:
        assert live.wait_for("so good").startswith("» Hi\n")


def test_a_run_that_reaches_a_limit_says_so_and_how_to_go_on(shell: Shell) -> None:
    arguments = ("run", "Go", "--model", shell.script(SUM, repeat=True), "--tool", "mytools", "--max-turns", "2")
    why = "mainspring: incomplete: the model has used all of its 2 turns. Allow more with --max-turns, or "
    stored = shell.run(*arguments, "--database", "runs.db")
    assert stored.code == 1
    assert masked(stored.err) == why + 'go on from here: mainspring run "go on" --database runs.db --previous resp_ID\n'
    in_memory = shell.run(*arguments, "--no-store")
    assert in_memory.err == why + "run it again without --no-store to be able to go on from where it stopped\n"


def test_a_run_that_takes_too_long_says_so(shell: Shell) -> None:
    result = shell.run("run", "Go", "--model", shell.script({"stall": True}), "--max-seconds", "0.01")
    assert result.code == 1
    assert result.err.startswith("mainspring: incomplete: the time limit of 0.01 s is reached. Allow more with --max-seconds")


@pytest.mark.parametrize(
    ("limits", "status", "why"),
    [
        ("max_tokens = 5", "failed", "which is more than the budget of this run leaves"),
        ("max_tokens = 120", "incomplete", "what is left of the budget is too little for another turn. Allow more with [budget]"),
        ("max_tool_calls = 0", "incomplete", "a call would exceed the budget. Allow more with [budget]"),
        ("max_iterations = 1", "incomplete", "the budget of 1 turns is used up"),
    ],
)
def test_a_run_that_its_budget_ends_says_which_limit_that_was(shell: Shell, limits: str, status: str, why: str) -> None:
    (shell.folder / "mainspring.toml").write_text(f"[budget.limits]\n{limits}\n")
    result = shell.run("run", "What is 1 + 2?", "--model", shell.script(SUM, HELLO), "--tool", "mytools:add")
    assert result.code == 1
    assert result.err.startswith(f"mainspring: {status}: ")
    assert why in result.err
    assert "None" not in result.err


def test_what_an_encoding_lacks_is_replaced(shell: Shell) -> None:
    result = shell.run("run", "Hi", "--model", shell.script({"say": "naïve ☃"}), env={"PYTHONIOENCODING": "ascii"})
    assert result.code == 0
    assert "> Hi\n" in result.out
    assert "na?ve ?" in result.out


def test_bytes_in_the_prompt_that_are_no_text_do_no_harm(shell: Shell, tmp_path: Path) -> None:
    model = shell.script({"say": "What?"})
    result = shell.run("run", b"caf\xe9".decode("utf-8", "surrogateescape"), "--model", model, "--json")
    started = events(result.out)[0].event
    assert isinstance(started, RunStarted)
    [said] = started.spec.input
    assert isinstance(said, Message)
    assert said.text == "caf\ufffd"


def test_a_built_in_tool_is_there_for_the_asking(shell: Shell) -> None:
    (shell.folder / "notes.txt").write_text("buy milk\n")
    asked = {"calls": [{"name": "file_ops", "arguments": {"operation": "read", "path": "notes.txt"}}]}
    model = shell.script(asked, {"say": "Milk.", "expect": "buy milk"})
    result = shell.run("run", "What is to be bought?", "--model", model, "--builtin", "file_ops")
    assert result.code == 0, result.err
    assert "Milk." in result.out
