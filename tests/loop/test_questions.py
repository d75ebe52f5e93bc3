"""Calls that ask a person something, and calls that can go on where they were."""

from tests.loop.world import Story, calls, order

from mainspring.core.actions import Execute, Finish
from mainspring.core.decide import next_action, recovery
from mainspring.core.events import (
    INTERRUPTED,
    CallJudged,
    Event,
    Reason,
    RunResumed,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCall, user

FORM = {"message": "Which one?"}
PLACE = {"step": 2}
ALLOWED = CallJudged("call_1", "allow", "kind")


def under_way(*events: Event) -> Story:
    """A story with two calls, the first of which was started."""
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(calls("look", "save"))
    story.apply(ALLOWED, CallJudged("call_2", "allow", "kind"), ToolStarted("call_1"), *events)
    return story


def test_a_call_under_way_may_ask_a_person_what_it_wants_to_know() -> None:
    story = under_way(CallJudged("call_1", "ask", "elicitation", elicitation=FORM, kept=PLACE))
    call = story.run.call("call_1")
    assert (call.verdict, call.is_started, call.elicitation, call.kept) == ("ask", False, FORM, PLACE)
    assert story.run.output[-1] == ApprovalRequest("mcpr_1", "look", "{}", "", "call_1", FORM)
    story.play()
    assert story.end == ("requires_action", Reason.APPROVAL_NEEDED)


def test_a_call_that_a_policy_asks_about_wants_to_know_nothing() -> None:
    story = Story(order(), gate={"look": "ask"})
    story.play(calls("look"))
    call = story.run.call("call_1")
    assert (call.elicitation, call.kept) == (None, None)
    assert story.run.output[-1] == ApprovalRequest("mcpr_1", "look", "{}", "", "call_1")


def test_a_call_that_asks_keeps_what_it_has_kept_before() -> None:
    asks = CallJudged("call_1", "ask", "elicitation", elicitation=FORM)
    story = under_way(ToolProgress("call_1", "half way", kept=PLACE), asks)
    assert story.run.call("call_1").kept == PLACE


def test_a_call_that_has_kept_its_place_goes_on_after_a_crash() -> None:
    story = under_way(ToolProgress("call_1", "begun"), ToolProgress("call_1", "half way", kept=PLACE), ToolStarted("call_2"))
    assert recovery(story.run) == [RunResumed(), ToolEnded("call_2", INTERRUPTED, is_error=True, recorded="interrupted")]
    story.crash()
    assert story.run.call("call_1").kept == PLACE
    assert next_action(story.run) == Execute(("call_1",))


def test_progress_alone_leaves_what_is_kept_as_it_is() -> None:
    story = under_way(ToolProgress("call_1", "half way", kept=PLACE), ToolProgress("call_1", "nearly done"))
    assert story.run.call("call_1").kept == PLACE
    assert story.run.call("call_2").kept is None


def test_a_call_that_comes_with_its_approval_may_ask_another_question() -> None:
    call = FunctionCall("call_1", "look", "{}", id="fc_1")
    story = Story(order(input=(user("go"), call, ApprovalResponse("mcpr_1", approve=True))))
    assert story.run.output[0] == FunctionCall("call_1", "look", "{}", id="fc_1", approval="mcpr_1")
    story.apply(ALLOWED, ToolStarted("call_1"), CallJudged("call_1", "ask", "elicitation", elicitation=FORM))
    assert story.run.output[-1] == ApprovalRequest("mcpr_1_next", "look", "{}", "", "call_1", FORM)
    assert next_action(story.run) == Finish("requires_action", Reason.APPROVAL_NEEDED)
