"""Failing turns and failing tools: what is tried again, and when enough is enough."""

import pytest
from tests.loop.world import Failed, Made, Said, Story, Turn, calls, fails, is_cut, order, says, told

from mainspring.core.actions import CallModel
from mainspring.core.decide import next_action
from mainspring.core.events import ErrorInfo, Reason

BROKEN = {"look": Failed("broken")}


@pytest.mark.requirement("S4", "A5", "A30")
def test_failed_tool_is_fed_back_and_the_model_goes_on() -> None:
    story = Story(order(), tools=BROKEN)
    story.play(calls("look"), says("it is broken"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert told(story.requests[1].items) == ["user: go", "call_1: look {}", "call_1 !> broken"]


@pytest.mark.requirement("A30", "S4")
def test_model_failure_fails_the_run_with_its_error() -> None:
    story = Story(order())
    run = story.play(fails(retryable=True))
    assert story.end == ("failed", Reason.PROVIDER_ERROR)
    assert run.error == ErrorInfo("provider_unavailable", "it broke", retryable=True)


def test_rate_limit_has_a_reason_of_its_own() -> None:
    story = Story(order())
    story.play(fails(code="rate_limit_exceeded", retryable=True))
    assert story.end == ("failed", Reason.RATE_LIMITED)


def test_passing_failure_is_tried_again_if_the_spec_says_so() -> None:
    story = Story(order(retry_model_errors=True))
    story.play(fails(retryable=True), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.run.turns == 2


def test_lasting_failure_is_never_tried_again() -> None:
    story = Story(order(retry_model_errors=True))
    story.play(fails(retryable=False))
    assert story.end == ("failed", Reason.PROVIDER_ERROR)


@pytest.mark.parametrize(("most", "end"), [(1, "failed"), (2, "completed"), (None, "completed")])
def test_failures_are_tried_again_only_so_often_in_a_run(most: int | None, end: str) -> None:
    story = Story(order(retry_model_errors=True, max_retries=most))
    story.play(*[fails(retryable=True), calls("look"), fails(retryable=True), says("done")][: 3 if end == "failed" else 4])
    assert story.run.status == end


def test_no_retries_are_none_even_if_failures_would_pass() -> None:
    story = Story(order(retry_model_errors=True, max_retries=0))
    story.play(fails(retryable=True))
    assert story.end == ("failed", Reason.PROVIDER_ERROR)


def test_failed_turns_cost_turns() -> None:
    story = Story(order(retry_model_errors=True, max_turns=2, max_errors_in_row=None))
    story.play(fails(retryable=True), fails(retryable=True))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


@pytest.mark.requirement("C44", "C-T4")
def test_three_turns_of_only_failing_tools_end_the_run() -> None:
    story = Story(order(max_errors_in_row=3), tools=BROKEN)
    story.play(calls("look"), calls("look"), calls("look"))
    assert story.end == ("failed", Reason.ERRORS_IN_ROW)
    told_why = "3 turns in a row failed and nothing in them succeeded"
    assert story.run.error == ErrorInfo("consecutive_errors", told_why)


def test_two_turns_of_failing_tools_do_not_end_the_run() -> None:
    story = Story(order(), tools=BROKEN)
    story.play(calls("look"), calls("look"))
    assert next_action(story.run) == CallModel()


def test_error_counting_can_be_switched_off() -> None:
    story = Story(order(max_errors_in_row=None, max_repeats=None), tools=BROKEN)
    story.play(*[calls("look")] * 9, says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_model_failures_count_together_with_tool_failures() -> None:
    story = Story(order(retry_model_errors=True, max_errors_in_row=3), tools=BROKEN)
    run = story.play(calls("look"), fails(retryable=True), fails(retryable=True))
    assert story.end == ("failed", Reason.ERRORS_IN_ROW)
    assert run.error == ErrorInfo("provider_unavailable", "it broke", retryable=True)


def test_one_success_in_a_turn_ends_the_row() -> None:
    story = Story(order(max_errors_in_row=2), tools=BROKEN)
    story.play(calls("look"), calls("look", "save"), calls("look"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_success_before_a_failure_of_the_same_turn_ends_the_row_too() -> None:
    story = Story(order(max_errors_in_row=2), tools=BROKEN)
    story.play(calls("look"), calls("save", "look"), calls("look"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_success_of_an_earlier_turn_does_not_excuse_a_later_one() -> None:
    story = Story(order(max_errors_in_row=2), tools=BROKEN)
    story.play(calls("save"), calls("look"), calls("look"))
    assert story.end == ("failed", Reason.ERRORS_IN_ROW)


def test_clean_text_ends_the_row() -> None:
    story = Story(order(max_errors_in_row=2, confirm="sure?"), tools=BROKEN)
    story.play(calls("look"), says("done"), calls("look"), says("yes"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_turn_of_only_denied_calls_counts_as_failed() -> None:
    story = Story(order(max_errors_in_row=2), gate={"look": "deny"})
    story.play(calls("look"), calls("look"))
    assert story.end == ("failed", Reason.ERRORS_IN_ROW)


def test_denied_and_surplus_calls_next_to_a_success_do_not_count() -> None:
    story = Story(order(max_errors_in_row=1, max_tool_calls_per_turn=2), gate={"save": "deny"})
    story.play(calls("look", "save", "look"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.run.tool_failed


def test_turn_that_was_cut_off_is_no_error() -> None:
    story = Story(order(max_errors_in_row=1))
    story.play(is_cut(), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_items_of_a_failed_turn_stay_in_the_output_but_the_model_never_sees_them() -> None:
    story = Story(order(retry_model_errors=True))
    run = story.play(fails(Said("so"), Made("look"), Made("save", '{"a"', is_half=True), retryable=True), says("done"))
    assert told(story.requests[1].items) == ["user: go"]
    assert told(run.output) == [
        "assistant: so",
        "call_1: look {}",
        'call_2 (incomplete): save {"a"',
        "call_1 !> Not executed: the model's turn was cut off before it ended.",
        "assistant: done",
    ]
    assert story.executed == []


def test_items_of_an_aborted_turn_stay_in_the_output_but_the_model_never_sees_them() -> None:
    story = Story(order())
    run = story.play(is_cut(Said("half a sent", is_half=True)), says("done"))
    assert told(story.requests[1].items) == ["user: go"]
    assert told(run.output) == ["assistant (incomplete): half a sent", "assistant: done"]
    assert run.text == "done"
    assert told(entry.item for entry in run.own_entries) == ["user: go", "assistant: done"]


def test_partial_words_of_the_last_failed_turn_are_not_the_answer() -> None:
    story = Story(order())
    run = story.play(fails(Said("half", is_half=True)))
    assert run.text == ""
    assert told(run.output) == ["assistant (incomplete): half"]


def test_failed_turn_is_asked_again_under_its_number() -> None:
    story = Story(order(retry_model_errors=True))
    story.play(calls("look"), fails(retryable=True), says("done"))
    assert [request.turn for request in story.requests] == [1, 2, 2]


def test_failure_before_a_success_is_forgotten() -> None:
    story = Story(order(retry_model_errors=True, max_errors_in_row=2))
    story.play(fails(retryable=True), calls("look"), fails(retryable=True), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_refusal_of_a_failed_turn_is_not_the_answer() -> None:
    story = Story(order(retry_model_errors=True))
    story.play(fails(Said("never", is_refusal=True), retryable=True), Turn())
    assert story.end == ("completed", Reason.FINAL_ANSWER)
