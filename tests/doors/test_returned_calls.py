"""Calls of a client's functions whose arguments do not fit go back to the model once, and the client is not told of them."""

from typing import Any

from openai.types.responses import Response
from tests.doors.chatting import WEATHER, opened

from mainspring.providers.scripted import Scripted, call, calls, prompt, say

FORECAST: Any = {"type": "function", **WEATHER["function"]}
MISFIT, FIT = call("weather", city=5), call("weather", city="Oslo")


def list_arguments(response: Response) -> list[tuple[str, str]]:
    """Kinds and arguments of what the client is shown."""
    return [(item.type, item.arguments if item.type == "function_call" else "") for item in response.output]


async def test_a_call_that_does_not_fit_goes_back_to_the_model_once() -> None:
    script = Scripted(MISFIT, FIT, MISFIT, MISFIT, calls(MISFIT, FIT), MISFIT)
    async with opened(script) as place:

        async def ask(**more: Any) -> Response:
            told: Response = await place.client.responses.create(model="m", input="Where?", tools=[FORECAST], **more)
            return told

        mended = await ask(tool_choice="required")
        trace = await place.engine.trace(mended.id)
        twice, beside = await ask(), await ask()
        async with place.client.responses.stream(model="m", input="Where?", tools=[FORECAST]) as stream:
            streamed: Any = await stream.get_final_response()
    assert list_arguments(mended) == [("function_call", '{"city":"Oslo"}')]
    first, second, *_ = script.requests
    assert "Invalid arguments for `weather`" in prompt(second)
    assert second.tool_choice == first.tool_choice
    assert [made.verdict for step in trace.execution for made in step.actions] == ["deny", "client"]
    # What does not fit once more passes as it is, and so does what is shown as it comes or beside what the client is to do.
    wrong = ("function_call", '{"city":5}')
    assert list_arguments(twice) == [wrong]
    assert list_arguments(beside) == [wrong, ("function_call", '{"city":"Oslo"}')]
    assert list_arguments(streamed) == [wrong]


async def test_a_conversation_goes_on_behind_a_call_that_went_back() -> None:
    async with opened(Scripted(MISFIT, FIT, say("Take an umbrella."))) as place:
        asked = await place.client.responses.create(model="m", input="Where?", tools=[FORECAST])
        (made,) = [item for item in asked.output if item.type == "function_call"]
        output: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "rain"}
        told = await place.client.responses.create(model="m", input=[output], tools=[FORECAST], previous_response_id=asked.id)
    assert told.output_text == "Take an umbrella."


async def test_a_chat_is_not_shown_a_call_that_went_back() -> None:
    async with opened(Scripted(MISFIT, FIT)) as place:
        stream = await place.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Where?"}], tools=[WEATHER], stream=True
        )
        made = [each.function for chunk in [chunk async for chunk in stream] for each in chunk.choices[0].delta.tool_calls or ()]
    assert [each.arguments for each in made if each is not None] == ['{"city":"Oslo"}']
