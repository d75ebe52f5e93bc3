"""On a terminal there are colours and lines that fit; in a pipe there is plain text."""

import io
import re

import pytest
from inline_snapshot import snapshot
from tests.cli.command import ESCAPES, Shell, plain
from tests.cli.test_run import SUM, masked

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.output import say

COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
FAILING = {"calls": [{"name": "add", "arguments": {"a": "x", "b": 1}}]}


def test_a_terminal_shows_colours_and_a_pipe_none(shell: Shell) -> None:
    arguments = ("run", "Add.", "--model", shell.script(SUM, FAILING, {"say": "Done."}), "--tool", "mytools")
    shown = shell.run_on_terminal(*arguments, env={"COLUMNS": "120"})
    assert shown.code == 0
    assert "\x1b[1;32mcompleted\x1b[0m" in shown.out
    assert "\x1b[2;3m┊ A" in shown.out
    assert "\x1b[1;31m✗ \x1b[0m\x1b[31madd: Invalid arguments" in shown.out
    piped = shell.run(*arguments)
    assert not ESCAPES.search(piped.out)
    # The longer it took, the sooner the last line breaks.
    assert masked(plain(shown.out)).replace("·\n", "· ") == masked(piped.out)


def test_no_colours_are_shown_to_those_who_want_none(shell: Shell) -> None:
    arguments = ("run", "Add.", "--model", shell.script(SUM, FAILING, {"say": "Done."}), "--tool", "mytools")
    assert not COLOURS.search(shell.run_on_terminal(*arguments, env={"NO_COLOR": "1"}).out)
    assert not ESCAPES.search(shell.run_on_terminal(*arguments, env={"TERM": "dumb"}).out)


def test_long_lines_break_between_words_on_a_terminal_only(shell: Shell) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 3
    model = shell.script({"say": text, "think": "A line, " * 9})
    shown = plain(shell.run_on_terminal("run", "Hi", "--model", model, env={"COLUMNS": "40"}).out)
    assert masked(shown) == snapshot("""\
» Hi

── turn 1 ─────────────────────────────
┊ A line, A line, A line, A line, A
┊ line, A line, A line, A line, A line,
  The quick brown fox jumps over the
  lazy dog. The quick brown fox jumps
  over the lazy dog. The quick brown
  fox jumps over the lazy dog.

completed (final_answer) · 1 turn · 0
tool calls · 47 tokens · N ms ·
resp_ID
""")
    assert f"  {text.rstrip()}\n" in shell.run("run", "Hi", "--model", model).out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_message_breaks_between_words_and_keeps_commands_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    say("there is no such model here; download one with `mainspring models pull`, or name another\n  by --model")
    assert shown.getvalue() == snapshot("""\
mainspring: there is no such model
            here; download one with
            `mainspring models pull`,
            or name another
  by --model
""")
    monkeypatch.setattr("sys.stderr", piped := io.StringIO())
    say("one line " * 20)
    assert piped.getvalue().count("\n") == 1


def test_a_message_does_not_run_into_what_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", shown := Terminal())
    monkeypatch.setattr("sys.stderr", shown)
    writer = ConsoleWriter()
    writer.status("waiting for the model")
    say("loading it")
    writer.status("waiting for the model")
    with writer:
        writer.put("Hello, ")
    say("it is slow")
    with writer:
        writer.put("world.\n")
    assert plain(shown.getvalue()) == "mainspring: loading it\nHello, \nmainspring: it is slow\nworld.\n"


def test_escape_sequences_of_the_model_do_not_reach_the_terminal(shell: Shell) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\x9b31mHello"
    shown = shell.run_on_terminal("run", nasty, "--model", shell.script({"say": nasty}))
    assert "\x1b]" not in shown.out
    assert "\x1b[2J" not in shown.out
    assert "\x9b" not in shown.out


def test_a_terminal_shows_what_is_under_way_until_it_is_stopped(shell: Shell) -> None:
    model = shell.script({"say": "Hello.", "calls": [{"name": "hang"}]})
    shown = shell.run_on_terminal("run", "Hi", "--model", model, "--tool", "mytools", stop_at="running hang")
    assert shown.code == 130
    assert "\nmainspring: stopping the run; stop again to end at once\n" in plain(shown.out)
    assert "running hang" not in plain(shown.out), "a message has a line of its own, and what was under way is wiped"
    assert "\ncancelled · 1 turn" in plain(shown.out)
