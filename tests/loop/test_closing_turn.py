"""The closing turn: one last word without tools, after a limit."""

from typing import Any

from tests.loop.world import LOOK, Made, Story, Turn, calls, fails, is_cut, order, refuses, says, told, used

from mainspring.core.actions import CallModel, Nudge
from mainspring.core.decide import next_action
from mainspring.core.events import Reason
from mainspring.core.spec import RunSpec, ToolChoice


def closing_order(**changes: Any) -> RunSpec:
    return order(close="Wrap up.", **changes)


def test_max_turns_grants_one_turn_without_tools_and_keeps_the_reason() -> None:
    story = Story(closing_order(max_turns=1))
    run = story.play(calls("look"), says("as far as I got"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert Nudge("close", "Wrap up.", Reason.MAX_TURNS) in story.actions
    assert story.requests[1].tool_choice == ToolChoice("none")
    assert told(story.requests[1].items)[-1] == "user: Wrap up."
    assert run.text == "as far as I got"


def test_max_tool_calls_grants_a_closing_turn() -> None:
    story = Story(closing_order(max_tool_calls=1))
    story.play(calls("look", "save"), says("so far"))
    assert story.end == ("incomplete", Reason.MAX_TOOL_CALLS)
    assert story.requests[1].tool_choice == ToolChoice("none")


def test_repeated_calls_grant_a_closing_turn() -> None:
    story = Story(closing_order(max_repeats=1, max_cycle=None))
    story.play(calls("look"), calls("look"), says("so far"))
    assert story.nudges == ["repeat", "close"]
    assert story.end == ("incomplete", Reason.REPEATED_CALL)


def test_tools_stay_visible_in_the_closing_turn() -> None:
    story = Story(closing_order(max_turns=1, tool_choice=ToolChoice("required", allowed=("look",)), tools=(LOOK,)))
    story.play(calls("look"), says("so far"))
    assert story.requests[1].tools == (LOOK,)
    assert story.requests[1].tool_choice == ToolChoice("none")


def test_calls_of_the_closing_turn_are_not_run() -> None:
    story = Story(closing_order(max_turns=1))
    run = story.play(calls("look"), calls("save", "choose"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert story.executed == ["call_1"]
    assert told(run.output)[-2:] == [
        "call_2 !> Not executed: the run ended: max_turns.",
        "call_3 !> Not executed: the run ended: max_turns.",
    ]


def test_failed_closing_turn_ends_incomplete_with_the_first_reason() -> None:
    story = Story(closing_order(max_turns=1))
    run = story.play(calls("look"), fails())
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert run.error is None


def test_passing_failure_of_the_closing_turn_is_not_tried_again() -> None:
    story = Story(closing_order(max_turns=1, retry_model_errors=True))
    story.play(calls("look"), fails(retryable=True))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_closing_turn_follows_a_last_turn_that_failed() -> None:
    story = Story(closing_order(max_turns=1, retry_model_errors=True))
    run = story.play(fails(retryable=True), says("hello"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert run.text == "hello"


def test_truncated_closing_turn_keeps_the_first_reason() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(calls("look"), says("so f", finish="length"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_closing_turn_that_was_cut_off_is_asked_again() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(calls("look"), is_cut())
    assert next_action(story.run) == CallModel()
    story.play(says("so far"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_answer_in_the_last_turn_needs_no_closing_turn() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(says("done"))
    assert [story.nudges, story.end] == [[], ("completed", Reason.FINAL_ANSWER)]


def test_answer_of_the_closing_turn_is_not_asked_about() -> None:
    story = Story(closing_order(max_turns=1, confirm="sure?"))
    story.play(calls("look"), says("so far"))
    assert story.nudges == ["close"]


def test_refusal_in_the_closing_turn_keeps_the_first_reason() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(calls("look"), refuses("no"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_empty_closing_turn_ends_the_run() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(calls("look"), Turn())
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_used_up_tokens_grant_no_closing_turn() -> None:
    story = Story(closing_order(max_turns=1, max_output_tokens=10))
    story.play(calls("look", usage=used(1, 10)))
    assert [story.nudges, story.end] == [[], ("incomplete", Reason.OUTPUT_TRUNCATED)]


def test_deadline_grants_no_closing_turn() -> None:
    story = Story(closing_order(max_turns=1, max_seconds=10.0))
    story.play(calls("look", seconds=10.0))
    assert [story.nudges, story.end] == [[], ("incomplete", Reason.DEADLINE)]


def test_deadline_ends_a_run_that_waits_for_its_closing_turn() -> None:
    story = Story(closing_order(max_turns=1, max_seconds=10.0))
    story.play(calls("look"))
    story.now += 10.0
    story.play(is_cut())
    assert story.end == ("incomplete", Reason.DEADLINE)


def test_errors_in_a_row_grant_no_closing_turn() -> None:
    story = Story(closing_order(max_turns=1, max_errors_in_row=1), gate={"look": "deny"})
    story.play(calls("look"))
    assert [story.nudges, story.end] == [[], ("failed", Reason.ERRORS_IN_ROW)]


def test_request_of_the_closing_turn_is_the_next_in_number() -> None:
    story = Story(closing_order(max_turns=2))
    story.play(calls("look"), calls(Made("save")), says("so far"))
    assert [request.turn for request in story.requests] == [1, 2, 3]
    assert story.run.turns == 3


def test_closing_prompt_is_not_part_of_the_output() -> None:
    story = Story(closing_order(max_turns=1))
    story.play(calls("look"), says("so far"))
    assert told(story.run.output) == ["call_1: look {}", "call_1 -> ok", "assistant: so far"]
