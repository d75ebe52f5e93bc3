"""One reason, three vocabularies: every row of the table."""

import pytest
from tests.loop.world import Failed, Story, calls, fails, order, refuses, says

from mainspring.core.actions import Finish
from mainspring.core.decide import closing
from mainspring.core.events import Reason, Status, TurnEnded, TurnStarted
from mainspring.core.reasons import INCOMPLETE, Verdict, decision, incomplete_reason, termination

# reason, status, incomplete_details.reason, decision outcome, termination_reason
TABLE: list[tuple[Reason, Status, str | None, str, str]] = [
    (Reason.FINAL_ANSWER, "completed", None, "SUCCESS:RESPONSE_GIVEN", "completed"),
    (Reason.REFUSAL, "completed", None, "REFUSAL:OUT_OF_SCOPE", "completed"),
    (Reason.CLIENT_ACTION, "requires_action", None, "AMBIGUITY:MISSING_CONTEXT", "requires_action"),
    (Reason.APPROVAL_NEEDED, "requires_action", None, "AMBIGUITY:MISSING_CONTEXT", "approval_required"),
    (Reason.MAX_TURNS, "incomplete", "max_turns", "ERROR:RESPONSE_GENERATION", "max_iterations"),
    (Reason.MAX_TOOL_CALLS, "incomplete", "max_tool_calls", "ERROR:RESPONSE_GENERATION", "budget_exceeded"),
    (Reason.OUTPUT_TRUNCATED, "incomplete", "max_output_tokens", "ERROR:RESPONSE_GENERATION", "length"),
    (Reason.CONTENT_FILTER, "incomplete", "content_filter", "REFUSAL:OUT_OF_SCOPE", "error"),
    (Reason.PROVIDER_ERROR, "failed", None, "ERROR:RESPONSE_GENERATION", "error"),
    (Reason.RATE_LIMITED, "failed", None, "REFUSAL:RATE_LIMITED", "error"),
    (Reason.ERRORS_IN_ROW, "failed", None, "ERROR:TOOL_INVOCATION", "error"),
    (Reason.DEADLINE, "incomplete", "deadline", "ERROR:RESPONSE_GENERATION", "duration_exceeded"),
    (Reason.BUDGET, "incomplete", "budget", "ERROR:RESPONSE_GENERATION", "budget_exceeded"),
    (Reason.REPEATED_CALL, "incomplete", "loop_detected", "ERROR:RESPONSE_GENERATION", "loop_detected"),
    (Reason.CANCELLED, "cancelled", None, "ERROR:RESPONSE_GENERATION", "cancelled"),
    (Reason.INTERNAL_ERROR, "failed", None, "ERROR:RESPONSE_GENERATION", "error"),
]


def ended(status: Status, reason: Reason) -> Story:
    story = Story(order())
    story.apply(TurnStarted(), TurnEnded())
    story.apply(*closing(story.run, Finish(status, reason)))
    return story


def test_table_has_every_reason() -> None:
    assert [row[0] for row in TABLE] == list(Reason)


@pytest.mark.requirement("S17")
@pytest.mark.parametrize("row", TABLE, ids=[row[0].value for row in TABLE])
def test_reason_is_told_in_all_three_vocabularies(row: tuple[Reason, Status, str | None, str, str]) -> None:
    reason, status, details, outcome, word = row
    run = ended(status, reason).run
    kind = "REQUEST_CONFIRMATION" if reason is Reason.APPROVAL_NEEDED else "RESPOND_ONLY"
    assert incomplete_reason(run) == details
    assert decision(run) == Verdict(kind, outcome)  # type: ignore[arg-type]
    assert termination(run) == word


def test_reasons_for_incomplete_runs_are_those_of_the_table() -> None:
    assert {reason for reason, status, *_ in TABLE if status == "incomplete"} == INCOMPLETE


def test_run_that_never_began_has_no_incomplete_details() -> None:
    story = Story(order())
    story.apply(*closing(story.run, Finish("incomplete", Reason.DEADLINE)))
    assert incomplete_reason(story.run) is None


def test_run_that_goes_on_has_no_incomplete_details() -> None:
    assert incomplete_reason(Story(order()).run) is None


def test_stop_of_a_policy_with_another_reason_has_no_incomplete_details() -> None:
    assert incomplete_reason(ended("incomplete", Reason.PROVIDER_ERROR).run) is None


def test_answer_after_tools_is_a_completed_task() -> None:
    story = Story(order())
    story.play(calls("look"), says("done"))
    assert decision(story.run) == Verdict("INVOKE_TOOL", "SUCCESS:TASK_COMPLETED")


def test_answer_after_a_failed_tool_is_a_failed_invocation() -> None:
    story = Story(order(), tools={"look": Failed("bad")})
    story.play(calls("look"), calls("save"), says("done"))
    assert decision(story.run) == Verdict("INVOKE_TOOL", "ERROR:TOOL_INVOCATION")


def test_answer_after_only_denied_calls_is_a_response() -> None:
    story = Story(order(), gate={"look": "deny"})
    story.play(calls("look"), says("done"))
    assert decision(story.run) == Verdict("RESPOND_ONLY", "SUCCESS:RESPONSE_GIVEN")


def test_decision_that_used_tools_is_an_invocation_whatever_its_end() -> None:
    spent, refused, failed = Story(order(max_turns=1)), Story(order()), Story(order())
    spent.play(calls("look"))
    refused.play(calls("look"), refuses("no"))
    failed.play(calls("look"), fails(code="rate_limit_exceeded"))
    assert [decision(story.run) for story in (spent, refused, failed)] == [
        Verdict("INVOKE_TOOL", "ERROR:RESPONSE_GENERATION"),
        Verdict("INVOKE_TOOL", "REFUSAL:OUT_OF_SCOPE"),
        Verdict("INVOKE_TOOL", "REFUSAL:RATE_LIMITED"),
    ]


def test_approval_asks_for_confirmation_whatever_was_done_before() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("look"), calls("save"))
    assert decision(story.run) == Verdict("REQUEST_CONFIRMATION", "AMBIGUITY:MISSING_CONTEXT")
