"""How a run is ended and how it is taken up again, in every state it can be in."""

import pytest
from tests.loop.world import Made, Said, Story, calls, order, says, told

from mainspring.core.actions import CallModel, Execute, Finish, Judge
from mainspring.core.decide import closing, next_action, recovery
from mainspring.core.events import (
    INTERRUPTED,
    CallJudged,
    ErrorInfo,
    Event,
    Reason,
    RunEnded,
    RunResumed,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import ApprovalResponse

CANCEL = Finish("cancelled", Reason.CANCELLED)
CANCELLED = RunEnded("cancelled", Reason.CANCELLED)
NOT_RUN = "Not executed: the run was cancelled."


def begun(*events: Event) -> Story:
    """A story whose model has called `look`, `ping` (repeatable) and `choose`, up to `events`."""
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(calls("look", "ping", "choose"))
    story.apply(*events)
    return story


JUDGED: list[Event] = [
    CallJudged("call_1", "allow", "kind"), CallJudged("call_2", "allow", "kind"), CallJudged("call_3", "client", "kind"),
]  # fmt: skip
STARTED: list[Event] = [*JUDGED, ToolStarted("call_1"), ToolStarted("call_2")]


def test_cancelled_before_it_began() -> None:
    assert closing(Story(order()).run, CANCEL) == [CANCELLED]


def test_cancelled_within_a_turn() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    assert closing(story.run, CANCEL) == [TurnAborted(), CANCELLED]


def test_cancelled_before_its_calls_were_judged() -> None:
    assert closing(begun().run, CANCEL) == [
        ToolEnded("call_1", NOT_RUN, is_error=True, recorded="not_run"),
        ToolEnded("call_2", NOT_RUN, is_error=True, recorded="not_run"),
        ToolEnded("call_3", NOT_RUN, is_error=True, recorded="not_run"),
        CANCELLED,
    ]


def test_cancelled_while_tools_run() -> None:
    assert closing(begun(*STARTED).run, CANCEL) == [
        ToolEnded("call_1", INTERRUPTED, is_error=True, recorded="interrupted"),
        ToolEnded("call_2", INTERRUPTED, is_error=True, recorded="interrupted"),
        ToolEnded("call_3", NOT_RUN, is_error=True, recorded="not_run"),
        CANCELLED,
    ]


def test_cancelled_with_some_calls_answered_already() -> None:
    story = begun(*STARTED, ToolEnded("call_2", "pong"))
    run = story.cancel()
    assert story.end == ("cancelled", Reason.CANCELLED)
    assert told(run.output)[3:] == [f"call_1 !> {INTERRUPTED}", "call_2 -> pong", f"call_3 !> {NOT_RUN}"]


def test_paused_run_leaves_its_calls_open() -> None:
    story = begun(*STARTED, ToolEnded("call_1", "ok"), ToolEnded("call_2", "pong"))
    finish = Finish("requires_action", Reason.CLIENT_ACTION)
    assert closing(story.run, finish) == [RunEnded("requires_action", Reason.CLIENT_ACTION)]


@pytest.mark.requirement("A30")
def test_every_cancelled_run_keeps_what_was_said() -> None:
    story = Story(order())
    story.play(calls("look"))
    story.apply(TurnStarted(), *story.spoken(Said("hal", is_half=True)))
    run = story.cancel()
    assert told(run.output) == ["call_1: look {}", "call_1 -> ok", "assistant (incomplete): hal"]


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (Reason.FINAL_ANSWER, "tools are switched off for this request"),
        (Reason.OUTPUT_TRUNCATED, "the model's answer was cut off at the output limit"),
        (Reason.CONTENT_FILTER, "the model's answer was stopped by a content filter"),
        (Reason.DEADLINE, "the time limit of this run is reached"),
        (Reason.CANCELLED, "the run was cancelled"),
        (Reason.INTERNAL_ERROR, "the run ended: internal_error"),
    ],
)
def test_calls_left_open_are_told_why(reason: Reason, why: str) -> None:
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(calls("look"))
    assert closing(story.run, Finish("failed", reason))[0] == ToolEnded(
        "call_1", f"Not executed: {why}.", is_error=True, recorded="not_run"
    )


def test_error_of_the_end_is_kept() -> None:
    error = ErrorInfo("server_error", "bug")
    assert closing(Story(order()).run, Finish("failed", Reason.INTERNAL_ERROR, error)) == [
        RunEnded("failed", Reason.INTERNAL_ERROR, error)
    ]


@pytest.mark.requirement("S2")
def test_run_that_never_began_fails_where_another_would_be_incomplete() -> None:
    story = Story(order())
    story.apply(*closing(story.run, Finish("incomplete", Reason.DEADLINE)))
    assert story.end == ("failed", Reason.DEADLINE)


def test_run_in_progress_may_be_incomplete() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    story.apply(*closing(story.run, Finish("incomplete", Reason.DEADLINE)))
    assert story.end == ("incomplete", Reason.DEADLINE)


def test_freed_call_of_a_run_that_never_began_is_answered_when_it_is_cancelled() -> None:
    story = Story(order(), gate={"look": "ask"})
    story.play(calls("look"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    run = later.cancel()
    assert told(run.output) == ["call_1: look {}", f"call_1 !> {NOT_RUN}"]
    assert later.end == ("cancelled", Reason.CANCELLED)


def test_run_that_never_began_is_taken_up_as_it_is() -> None:
    story = Story(order())
    assert recovery(story.run) == [RunResumed()]
    story.crash()
    story.play(says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_half_turn_is_dropped_and_asked_again() -> None:
    story = Story(order())
    story.apply(TurnStarted(), *story.spoken(Made("look")))
    assert recovery(story.run) == [RunResumed(), TurnAborted()]
    story.crash()
    assert next_action(story.run) == CallModel()
    story.play(says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_unjudged_calls_are_judged_after_a_crash() -> None:
    story = begun(JUDGED[0])
    assert recovery(story.run) == [RunResumed()]
    story.crash()
    assert next_action(story.run) == Judge(("call_2", "call_3"))


def test_allowed_calls_are_run_after_a_crash() -> None:
    story = begun(*JUDGED)
    story.crash()
    assert next_action(story.run) == Execute(("call_1", "call_2"))


def test_call_that_was_under_way_is_answered_unless_its_tool_may_be_repeated() -> None:
    story = begun(*STARTED)
    assert recovery(story.run) == [RunResumed(), ToolEnded("call_1", INTERRUPTED, is_error=True, recorded="interrupted")]
    story.crash()
    assert story.run.call("call_2").is_started is False
    assert next_action(story.run) == Execute(("call_2",))
    story.play()
    assert story.executed == ["call_1", "call_2", "call_2"]
    assert told(story.run.output)[3:] == [f"call_1 !> {INTERRUPTED}", "call_2 -> ok"]


def test_crash_in_the_middle_of_a_recovery_changes_nothing() -> None:
    story = begun(*STARTED)
    story.apply(RunResumed())
    assert recovery(story.run) == [RunResumed(), ToolEnded("call_1", INTERRUPTED, is_error=True, recorded="interrupted")]


def test_call_that_was_under_way_for_an_unknown_tool_is_answered() -> None:
    story = Story(order(), gate={"gone": "allow"})
    story.apply(TurnStarted())
    story.speak(calls("gone"))
    story.apply(CallJudged("call_1", "allow", "x"), ToolStarted("call_1"))
    assert recovery(story.run) == [RunResumed(), ToolEnded("call_1", INTERRUPTED, is_error=True, recorded="interrupted")]


def test_answered_calls_stay_answered_after_a_crash() -> None:
    story = begun(*STARTED, ToolEnded("call_2", "pong"))
    assert recovery(story.run) == [RunResumed(), ToolEnded("call_1", INTERRUPTED, is_error=True, recorded="interrupted")]
    run = story.crash()
    assert told(run.output)[3:] == [f"call_1 !> {INTERRUPTED}", "call_2 -> pong"]


def test_run_between_turns_goes_on_after_a_crash() -> None:
    story = Story(order())
    story.play(calls("look"))
    assert recovery(story.run) == [RunResumed()]
    story.crash()
    story.play(says("done"))
    assert story.executed == ["call_1"]


def test_idle_time_is_what_passed_since_the_last_event() -> None:
    story = Story(order())
    story.now += 2.0
    story.apply(TurnStarted())
    story.crash(seconds=30.0)
    story.now += 3.0
    story.apply(TurnStarted())
    run = story.crash(seconds=40.0)
    assert (run.idle, run.elapsed, run.clock, run.started_at) == (70.0, 5.0, 1075.0, 1000.0)
