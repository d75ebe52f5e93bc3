"""A call is run once, in whatever order and however often a Responses backend tells of it; and nonsense is not counted."""

import msgspec
import pytest
from tests.providers.backend import DONE, Backend, chunk, sse
from tests.providers.dialects.responses import DIALECT, frames_of, response
from tests.providers.dialects.server import serving

from mainspring import Engine
from mainspring.core.items import Json
from mainspring.providers.chat.provider import Chat
from mainspring.providers.responses.provider import Responses

CALL: Json = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "ring", "arguments": '{"times":2}', "status": "completed",
}  # fmt: skip
BEGUN = {**CALL, "arguments": "", "status": "in_progress"}
BARE = {key: value for key, value in CALL.items() if key not in ("id", "call_id")}
NOTE: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}


def added(item: Json = BEGUN, index: int = 0) -> Json:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(item: Json = CALL, index: int = 0) -> Json:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def completed(*output: Json) -> Json:
    return {"type": "response.completed", "response": response(status="completed", output=list(output))}


WHERE = {"item_id": "fc_1", "output_index": 0}
PIECES = [
    {"type": "response.function_call_arguments.delta", **WHERE, "delta": '{"times"'},
    {"type": "response.function_call_arguments.delta", **WHERE, "delta": ":2}"},
]
WHOLE = {"type": "response.function_call_arguments.done", **WHERE, "name": "ring", "arguments": '{"times":2}'}
OTHER_IDS = {**CALL, "id": "fc_9", "call_id": "call_9"}
ORDERS = {
    "as it should be": [added(), *PIECES, WHOLE, done(), completed(CALL)],
    "done before added": [done(), added(), completed(CALL)],
    "pieces after done": [added(), done(), *PIECES, WHOLE, completed(CALL)],
    "done before added, with pieces": [done(), added(), *PIECES, WHOLE, completed(CALL)],
    "done twice": [added(), *PIECES, done(), done(), completed(CALL)],
    "done twice, at two places": [added(), done(), done(index=1), completed(CALL)],
    "done twice, without ids": [done(BARE), done(BARE), completed(BARE)],
    "done twice, under another id": [added(), done(), done({**CALL, "id": "fc_2"}), completed(CALL)],
    "added twice": [added(), added(), *PIECES, done(), completed(CALL)],
    "added twice, at two places": [added(), added(index=1), done(index=1), completed(CALL)],
    "added twice, without ids": [added({**BARE, "arguments": ""}), added({**BARE, "arguments": ""}), done(BARE), completed()],
    "completed before done": [added(), *PIECES, completed(CALL), done()],
    "completed without done": [added(), *PIECES, completed()],
    "completed without pieces or done": [added(), WHOLE, completed()],
    "completed alone": [completed(CALL)],
    "completed at another place": [added(NOTE), done(NOTE), added(index=1), done(index=1), completed(CALL)],
    "completed under other ids": [added(), done(), completed(OTHER_IDS)],
    "completed under other ids at another place": [added(), done(), completed(NOTE, OTHER_IDS)],
    "everything twice": [added(), *PIECES, WHOLE, done(), added(), *PIECES, WHOLE, done(), completed(CALL, CALL)],
}


async def rung(first: list[Json]) -> list[int]:
    """How often, and with what, the tool is called when the backend says this."""
    calls: list[int] = []

    def ring(times: int) -> str:
        """Rings."""
        calls.append(times)
        return "dong"

    async with serving(DIALECT, judges=False) as fake:
        fake.replies(*frames_of(first))
        fake.replies(*frames_of([added(NOTE), done(NOTE), completed(NOTE)]))
        async with Engine(Responses(f"{fake.url}/v1"), tools=[ring], owns_provider=True) as engine:
            run = await engine.run("Ring.")
    assert run.status == "completed"
    outputs = [item for item in msgspec.json.decode(fake.bodies[1])["input"] if item["type"] == "function_call_output"]
    assert len(outputs) == len(calls)
    return sorted(calls)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_call_is_run_once_in_whatever_order_it_is_told(order: str) -> None:
    assert await rung(ORDERS[order]) == [2]


async def test_calls_that_are_two_are_run_twice() -> None:
    other = {**CALL, "id": "fc_2", "call_id": "call_2"}
    assert await rung([added(), done(), done(other, 1), completed(CALL, other)]) == [2, 2]
    assert await rung([done(), completed(CALL, other)]) == [2, 2]
    assert await rung([done(BARE), done({**BARE, "arguments": '{"times":3}'}), completed()]) == [2, 3]


@pytest.mark.parametrize("count", [10**30, 1e30, "1e30", 2**53, 10**10, -(10**30)])
async def test_tokens_that_nobody_can_use_are_estimated_instead(backend: Backend, count: float) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": count}
    backend.replies(sse(chunk({"content": "It is noon."}), chunk(finish="stop"), {"choices": [], "usage": usage}), DONE)
    async with Engine(Chat(backend.url), default_model="clockwork", owns_provider=True) as engine:
        run = await engine.run("What time is it?")
    assert run.status == "completed"
    assert run.usage.is_estimated or count == -(10**30)
    assert run.usage.total_tokens < 100
