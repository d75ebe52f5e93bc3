"""Who decides about tools, and for how long."""

import pytest
from tests.loop.world import TOOLS, Said, Story, Turn, calls, fails, is_cut, order, says, told

from mainspring.core.events import CallJudged, Reason
from mainspring.core.spec import ToolChoice


def choices(story: Story) -> list[ToolChoice]:
    return [request.tool_choice for request in story.requests]


@pytest.mark.requirement("A18", "A26")
def test_auto_is_the_default_and_stays() -> None:
    story = Story(order())
    story.play(calls("look"), says("done"))
    assert choices(story) == [ToolChoice("auto"), ToolChoice("auto")]


@pytest.mark.requirement("A18", "A26")
def test_required_holds_for_the_first_model_call_only() -> None:
    story = Story(order(tool_choice=ToolChoice("required")))
    story.play(calls("look"), says("done"))
    assert choices(story) == [ToolChoice("required"), ToolChoice("auto")]


@pytest.mark.requirement("A18")
def test_reply_without_calls_is_returned_as_it_is_although_a_call_was_required() -> None:
    story = Story(order(tool_choice=ToolChoice("required")))
    story.play(says("no need"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


@pytest.mark.requirement("A18", "A26")
@pytest.mark.parametrize("mode", ["required", "auto"])
def test_forced_tool_holds_for_the_first_model_call_only(mode: str) -> None:
    forced = ToolChoice("required" if mode == "required" else "auto", name="look")
    story = Story(order(tool_choice=forced))
    story.play(calls("look"), says("done"))
    assert choices(story) == [forced, ToolChoice("auto")]


@pytest.mark.requirement("A18")
def test_loop_does_not_enforce_a_forced_tool() -> None:
    story = Story(order(tool_choice=ToolChoice("required", name="look")))
    story.play(calls("save"), says("done"))
    assert story.executed == ["call_1"]


def test_failed_first_turn_does_not_use_the_required_choice_up() -> None:
    story = Story(order(tool_choice=ToolChoice("required"), retry_model_errors=True))
    story.play(fails(retryable=True), is_cut(Said("hm")), calls("look"), says("done"))
    assert choices(story) == [ToolChoice("required")] * 3 + [ToolChoice("auto")]


@pytest.mark.requirement("A18", "A19", "A26")
def test_calls_made_although_tools_are_off_are_kept_but_not_run_and_the_run_is_completed() -> None:
    story = Story(order(tool_choice=ToolChoice("none")))
    run = story.play(calls("look", "choose", text="let me see"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.executed == []
    assert told(run.output) == [
        "assistant: let me see",
        "call_1: look {}",
        "call_2: choose {}",
        "call_1 !> Not executed: tools are switched off for this request.",
        "call_2 !> Not executed: tools are switched off for this request.",
    ]


@pytest.mark.requirement("A18", "A26")
def test_model_still_sees_the_tools_that_are_off() -> None:
    story = Story(order(tool_choice=ToolChoice("none")))
    story.play(says("done"))
    assert story.requests[0].tools == TOOLS
    assert choices(story) == [ToolChoice("none")]


@pytest.mark.requirement("A27", "A28")
def test_model_sees_all_tools_and_is_told_which_are_allowed() -> None:
    story = Story(order(tool_choice=ToolChoice("auto", allowed=("look",))))
    story.play(calls("look"), says("done"))
    assert [request.tools for request in story.requests] == [TOOLS, TOOLS]
    assert choices(story) == [ToolChoice("auto", allowed=("look",))] * 2


@pytest.mark.requirement("A27")
def test_required_among_allowed_tools_is_relaxed_but_the_tools_stay_narrowed() -> None:
    story = Story(order(tool_choice=ToolChoice("required", allowed=("look",))))
    story.play(calls("look"), says("done"))
    assert choices(story) == [ToolChoice("required", allowed=("look",)), ToolChoice("auto", allowed=("look",))]


@pytest.mark.requirement("A27", "A28")
def test_call_that_is_not_allowed_is_answered_with_an_error_and_the_model_goes_on() -> None:
    no = CallJudged("", "deny", "allowed_tools", "`save` is not allowed here")
    story = Story(order(tool_choice=ToolChoice("auto", allowed=("look",))), gate={"save": no})
    run = story.play(calls("save", "look"), says("done"))
    assert told(run.output)[2:4] == ["call_1 !> `save` is not allowed here", "call_2 -> ok"]


def test_each_run_of_a_conversation_has_its_own_first_model_call() -> None:
    story = Story(order(tool_choice=ToolChoice("required")))
    story.play(calls("look"), says("done"))
    later = story.then(tool_choice=ToolChoice("required"))
    later.play(Turn())
    assert choices(later) == [ToolChoice("required")]
