"""What every model backend is promised to be asked, and to be understood in."""

import pytest
from msgspec.structs import replace
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, ask, call_piece, chunk, folded, sse, usage_chunk

from mainspring.core.events import TurnEnded
from mainspring.core.items import FunctionCall, FunctionCallOutput, ToolDefinition, Usage, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.chat.request import build_body
from mainspring.providers.responses.request import build_body as responses_build_body

CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
BELL = ToolDefinition("bell", "Rings.", {"type": "object", "properties": {}})


@pytest.mark.requirement("C21")
async def test_a_backend_is_asked_with_messages_model_temperature_and_limit_and_its_usage_is_carried(backend: Backend) -> None:
    backend.replies(
        sse(chunk({"content": "Nine."}), chunk(finish="stop"), usage_chunk(9, 4)) + DONE,
        expect={**ASKED, "temperature": 0.5, "max_tokens": 100},
    )
    events = await ask(backend, replace(QUESTION, temperature=0.5, max_output_tokens=100))
    assert events[-1] == TurnEnded("stop", Usage(9, 4))


@pytest.mark.requirement("C38")
def test_a_call_on_the_chat_wire_has_an_id_and_a_function_with_its_arguments_as_text() -> None:
    items = (user("What time is it?"), FunctionCall("call_1", "clock", '{"zone":"UTC"}'), FunctionCallOutput("call_1", "nine"))
    said = build_body(ModelRequest("resp_1", "m", items), "localhost")["messages"][1]
    function = {"name": "clock", "arguments": '{"zone":"UTC"}'}
    assert said["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]


@pytest.mark.requirement("S10")
async def test_calls_without_ids_get_some_of_ours(backend: Backend) -> None:
    two = sse(chunk(call_piece(0, name="clock", arguments="{}")), chunk(call_piece(1, name="clock", arguments="{}")))
    backend.replies(two + sse(chunk(finish="tool_calls")) + DONE)
    calls = [item for item in folded(await ask(backend)).output if isinstance(item, FunctionCall)]
    assert len({call.call_id for call in calls if call.call_id}) == 2


@pytest.mark.requirement("S6")
def test_the_allowed_subset_goes_to_a_backend_that_understands_it_and_to_no_other() -> None:
    request = ModelRequest("resp_1", "m", (user("hi"),), tools=(CLOCK, BELL), tool_choice=ToolChoice(allowed=("clock",)))
    told = responses_build_body(request, "localhost")["tool_choice"]
    assert (told["type"], [tool["name"] for tool in told["tools"]]) == ("allowed_tools", ["clock"])
    assert "tool_choice" not in build_body(request, "localhost")
    assert len(build_body(request, "localhost")["tools"]) == 2
