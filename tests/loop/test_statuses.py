"""The statuses of a run and the ways between them."""

from typing import get_args

import pytest
from tests.loop.world import Story, calls, order, says

from mainspring.core.errors import Malformed
from mainspring.core.events import CallJudged, Reason, RunEnded, RunResumed, Status, TurnEnded, TurnStarted
from mainspring.core.items import ApprovalResponse
from mainspring.core.run import TRANSITIONS

STATUSES: tuple[Status, ...] = get_args(Status)
LEGAL = {
    ("queued", "in_progress"),
    ("queued", "cancelled"),
    ("queued", "failed"),
    ("in_progress", "completed"),
    ("in_progress", "incomplete"),
    ("in_progress", "failed"),
    ("in_progress", "cancelled"),
    ("in_progress", "requires_action"),
}


@pytest.mark.requirement("A7")
def test_there_are_seven_statuses() -> None:
    assert set(STATUSES) == {"queued", "in_progress", "completed", "incomplete", "failed", "cancelled", "requires_action"}


@pytest.mark.requirement("A8", "A9", "A15", "A16", "S1", "S2")
def test_transitions_are_exactly_the_ruled_ones() -> None:
    assert {(start, end) for start, ends in TRANSITIONS.items() for end in ends} == LEGAL
    assert set(TRANSITIONS) == set(STATUSES)


@pytest.mark.requirement("A8", "S2")
@pytest.mark.parametrize("status", STATUSES)
def test_queued_run_ends_only_cancelled_or_failed(status: Status) -> None:
    story = Story(order())
    assert story.run.status == "queued"
    end = RunEnded(status, Reason.CANCELLED)
    if status in ("cancelled", "failed"):
        assert story.apply(end).status == status
    else:
        with pytest.raises(Malformed, match=f"^a run cannot go from queued to {status}$"):
            story.apply(end)


def test_a_run_with_nothing_to_do_has_begun_and_ends_at_once() -> None:
    story = Story(order(goal="nothing"))
    assert story.run.status == "in_progress"
    story.play()
    assert story.end == ("completed", Reason.FINAL_ANSWER)


@pytest.mark.requirement("A8", "S1")
@pytest.mark.parametrize("status", STATUSES)
def test_run_in_progress_ends_in_any_of_the_five_ways(status: Status) -> None:
    story = Story(order())
    story.apply(TurnStarted(), TurnEnded())
    assert story.run.status == "in_progress"
    end = RunEnded(status, Reason.FINAL_ANSWER)
    if status in ("queued", "in_progress"):
        with pytest.raises(Malformed, match=f"^a run cannot go from in_progress to {status}$"):
            story.apply(end)
    else:
        assert story.apply(end).status == status


@pytest.mark.requirement("A9", "A15")
@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled", "requires_action"])
def test_nothing_follows_the_end(status: Status) -> None:
    story = Story(order())
    story.apply(TurnStarted(), TurnEnded(), RunEnded(status, Reason.FINAL_ANSWER))
    assert story.run.has_ended
    for event in (TurnStarted(), RunResumed(), RunEnded("failed", Reason.INTERNAL_ERROR)):
        with pytest.raises(Malformed, match=f"^run run_1 has ended; {type(event).__name__} cannot follow$"):
            story.apply(event)


@pytest.mark.requirement("A8")
def test_run_is_in_progress_from_its_first_turn() -> None:
    story = Story(order())
    assert not story.run.has_ended
    assert story.apply(TurnStarted()).status == "in_progress"


def test_run_that_begins_with_a_freed_call_is_in_progress_from_its_verdict() -> None:
    story = Story(order(), gate={"look": "ask"})
    story.play(calls("look"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    assert later.run.status == "queued"
    assert later.apply(CallJudged("call_1", "allow", "approval")).status == "in_progress"


def test_resumed_run_keeps_its_status() -> None:
    story = Story(order())
    assert story.apply(RunResumed()).status == "queued"
    story.play(calls("look"))
    assert story.apply(RunResumed()).status == "in_progress"


def test_ended_run_says_how_and_why() -> None:
    story = Story(order())
    run = story.play(says("done"))
    assert (run.status, run.reason, run.error) == ("completed", Reason.FINAL_ANSWER, None)
