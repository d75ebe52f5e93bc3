"""`mainspring demo`: the first thing people see works without anything, and the script checks what the tools really return."""

from tests.cli.command import Shell, events, plain

from mainspring.core.events import Nudged, ReasoningDelta, RunEnded, ToolEnded, ToolStarted, TurnStarted


def test_the_demo_shows_an_agent_that_recovers_and_confirms(shell: Shell) -> None:
    result = shell.run("demo")
    assert (result.code, result.err) == (0, "")
    assert "✗ The tool `calculate` failed: ValueError: this is not a sum" in result.out
    assert "? Before this counts as finished" in result.out
    assert "- Chiara gives Ada 178.40" in result.out
    assert "\ncompleted (final_answer) · 7 turns · 9 tool calls · " in result.out
    told = result.out.partition("Your turn:")[2]
    assert "mainspring init first" in told
    assert max([len(line) for line in told.splitlines()]) <= 80


def test_the_demo_as_events_has_all_a_run_is_made_of(shell: Shell) -> None:
    result = shell.run("demo", "--json")
    assert (result.code, result.err) == (0, "")
    log = [record.event for record in events(result.out)]
    kinds = [type(event) for event in log]
    assert kinds[-1] is RunEnded
    assert kinds.count(TurnStarted) == 7
    assert {Nudged, ReasoningDelta} <= set(kinds)
    assert [event.is_error for event in log if isinstance(event, ToolEnded)].count(True) == 1
    first = kinds.index(ToolStarted, kinds.index(ToolEnded))
    assert kinds[first : first + 3] == [ToolStarted] * 3, "three tools run at once"


def test_the_demo_is_fast_on_a_terminal_if_asked(shell: Shell) -> None:
    shown = shell.run_on_terminal("demo", "--fast")
    assert shown.code == 0
    assert "completed" in plain(shown.out)
