"""The Response object, whole, for every status a run can have."""

from typing import Any

import pytest
from tests.loop.world import LOOK, Said, Story, Turn, calls, fails, order, says, used

from mainspring.core.actions import Finish
from mainspring.core.decide import closing
from mainspring.core.events import ErrorInfo, Reason, TurnStarted
from mainspring.core.items import (
    ApprovalRequest,
    CallForm,
    FunctionCall,
    FunctionCallOutput,
    Message,
    OutputText,
    ToolDefinition,
    Unknown,
    Usage,
    assistant,
    user,
)  # fmt: skip
from mainspring.core.response import Response, response
from mainspring.core.run import Run
from mainspring.core.spec import Conversation, ToolChoice

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
SPOKEN = Message("assistant", (OutputText("hello"),), id="msg_1")
USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def plain(**changes: Any) -> Response:
    """The Response of a run without tools that has just been created."""
    fields: dict[str, Any] = {
        "id": "run_1",
        "object": "response",
        "created_at": 1000,
        "completed_at": None,
        "status": "queued",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "m",
        "output": (),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": None,
        "required_input": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": (),
        "top_logprobs": 0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "user": None,
    }
    return Response(**{**fields, **changes})


def story(**changes: Any) -> Story:
    return Story(order(tools=changes.pop("tools", ()), **changes))


def test_queued() -> None:
    assert response(story().run) == plain()


def test_in_progress_with_what_has_been_said_so_far() -> None:
    told = story()
    told.apply(TurnStarted(), *told.spoken(Said("hel", is_half=True)))
    said = Message("assistant", (OutputText("hel"),), id="msg_1", status="incomplete")
    assert response(told.run) == plain(status="in_progress", output=(said,))


@pytest.mark.requirement("A7", "A29")
def test_completed() -> None:
    run = story().play(says("hello", usage=Usage(5, 7, 1, 2, 3), seconds=9.7))
    assert response(run) == plain(
        status="completed",
        completed_at=1009,
        output=(SPOKEN,),
        usage={
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 12,
        },
    )


@pytest.mark.requirement("A7", "A30")
def test_incomplete_says_why_and_keeps_the_output() -> None:
    run = story().play(says("hello", finish="length", seconds=3.0))
    assert response(run) == plain(
        status="incomplete", incomplete_details={"reason": "max_output_tokens"}, output=(SPOKEN,), usage=USAGE
    )


def test_incomplete_says_what_was_done_about_a_run_in_circles() -> None:
    told = Story(order())
    told.play(*[calls("ping")] * 6, says("All I know."))
    rungs = ["nudged", "reused", "withheld"]
    assert response(told.run).incomplete_details == {"reason": "loop_detected", "rungs": rungs}


def test_incomplete_as_older_versions_told_it_does_not_say_what_was_done() -> None:
    told = Story(order(max_cycle=None))
    told.play(*[calls("ping")] * 4)
    assert told.nudges == ["repeat"]
    assert response(told.run).incomplete_details == {"reason": "loop_detected"}


def test_failed_says_what_went_wrong_and_keeps_the_output() -> None:
    run = story().play(fails(Said("hello")))
    error = {"code": "provider_unavailable", "message": "it broke"}
    assert response(run) == plain(status="failed", error=error, output=(SPOKEN,), usage=USAGE)


def test_cancelled_keeps_the_output_and_has_no_error() -> None:
    told = story()
    told.apply(TurnStarted(), *told.spoken(Said("hello")))
    assert response(told.cancel()) == plain(status="cancelled", output=(SPOKEN,), usage=USAGE)


@pytest.mark.requirement("A15", "A35")
def test_requires_action_lists_what_it_waits_for() -> None:
    tools = (ToolDefinition("choose", "Ask.", PARAMETERS, strict=True), LOOK)
    told = Story(order(tools=tools), gate={"look": "ask"})
    run = told.play(calls("choose", "look"))
    assert response(run) == plain(
        status="requires_action",
        completed_at=1000,
        output=(
            FunctionCall("call_1", "choose", "{}", id="fc_1"),
            FunctionCall("call_2", "look", "{}", id="fc_2"),
            ApprovalRequest("mcpr_2", "look", "{}", call_id="call_2"),
        ),
        required_input=(
            {"type": "function_call_output", "call_id": "call_1", "name": "choose"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_2"},
        ),
        tools=({"type": "function", "name": "choose", "description": "Ask.", "parameters": PARAMETERS, "strict": True},),
        usage=USAGE,
    )


def test_paused_run_waits_only_for_the_calls_nobody_answered() -> None:
    run = Story(order()).play(calls("look", "choose"))
    assert response(run).required_input == ({"type": "function_call_output", "call_id": "call_2", "name": "choose"},)
    assert response(run).output[2:] == (FunctionCallOutput("call_1", "ok", id="fco_1"),)


def test_orders_of_the_spec_are_echoed() -> None:
    spec = order(
        instructions="Be brief.", tools=(), temperature=0.0, top_p=0.0, text={"format": {"type": "json_object"}},
        reasoning={"effort": "low"}, max_output_tokens=9, max_tool_calls=3, metadata={"a": "b"}, parallel_tool_calls=False,
        parent="run_0", store=False, background=True,
    )  # fmt: skip
    assert response(Story(spec).run) == plain(
        instructions="Be brief.", temperature=0.0, top_p=0.0, text={"format": {"type": "json_object"}},
        reasoning={"effort": "low"}, max_output_tokens=9, max_tool_calls=3, metadata={"a": "b"}, parallel_tool_calls=False,
        previous_response_id="run_0", store=False, background=True,
    )  # fmt: skip


def test_echo_of_the_front_door_is_taken_as_it_is() -> None:
    told = story(echo={"truncation": "auto", "user": "u", "model": "alias"})
    assert response(told.run) == plain(truncation="auto", user="u", model="alias")


@pytest.mark.parametrize(
    ("choice", "echoed"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice("required"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("required", name="look"), {"type": "function", "name": "look"}),
        (
            ToolChoice("required", allowed=("look", "save")),
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "look"}, {"type": "function", "name": "save"}],
            },
        ),
        (ToolChoice(allowed=()), {"type": "allowed_tools", "mode": "auto", "tools": []}),
    ],
)
def test_tool_choice_is_echoed_as_the_wire_spells_it(choice: ToolChoice, echoed: object) -> None:
    assert response(story(tool_choice=choice).run).tool_choice == echoed


def test_tools_of_an_unknown_kind_are_echoed_as_they_came() -> None:
    assert response(story(tools=(Unknown({"type": "web_search", "size": "low"}),)).run).tools == (
        {"type": "web_search", "size": "low"},
    )


def test_tools_of_the_server_are_not_echoed() -> None:
    kinds = ("mcp", "sandbox", "builtin", "function")
    tools = tuple([ToolDefinition(kind, kind=kind) for kind in kinds])  # type: ignore[arg-type]
    assert [tool["name"] for tool in response(story(tools=tools).run).tools] == ["function"]


def test_echo_of_what_no_response_has_is_left_out() -> None:
    assert response(story(echo={"stream": True, "user": "u"}).run) == plain(user="u")


def test_conversation_is_named_by_its_id() -> None:
    assert response(story(conversation=Conversation("conv_1", 3)).run) == plain(conversation={"id": "conv_1"})


def test_usage_is_told_only_at_the_end() -> None:
    told = Story(order())
    told.play(calls("look", usage=used(1, 2)))
    assert response(told.run).usage is None


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_nothing_is_required_unless_the_run_pauses(status: str) -> None:
    told = Story(order())
    told.apply(TurnStarted())
    told.speak(calls("choose"))
    finish = Finish(status, Reason.INTERNAL_ERROR, ErrorInfo("a", "b"))  # type: ignore[arg-type]
    told.apply(*closing(told.run, finish))
    assert response(told.run).required_input is None


def test_history_and_input_are_not_part_of_the_output() -> None:
    told = Story(order())
    told.play(says("hello"))
    later = told.then(user("a"), assistant("b"), user("c"))
    run: Run = later.play(says("again"))
    assert [item.text for item in response(run).output if isinstance(item, Message)] == ["again"]


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("custom", "custom_tool_call_output"),
        ("tool_search", "tool_search_output"),
        ("shell", "shell_call_output"),
        ("local_shell", "local_shell_call_output"),
        ("apply_patch", "apply_patch_call_output"),
    ],
)
def test_a_call_of_the_clients_own_kind_waits_for_an_output_of_that_kind(form: CallForm, kind: str) -> None:
    call = FunctionCall("call_1", "choose", "{}", id="fc_1", form=form)
    run = Story(order()).play(Turn((call,)))
    assert response(run).required_input == ({"type": kind, "call_id": "call_1", "name": "choose"},)


def test_an_output_has_the_form_of_its_call() -> None:
    call = FunctionCall("call_1", "look", "{}", id="fc_1", form="custom")
    run = Story(order()).play(Turn((call,)), says("done"))
    assert FunctionCallOutput("call_1", "ok", id="fco_1", form="custom") in run.output


def test_usage_that_was_estimated_says_so() -> None:
    run = Story(order()).play(says("done", usage=Usage(5, 3, is_estimated=True)))
    assert response(run).usage == {**USAGE, "input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "estimated": True}
