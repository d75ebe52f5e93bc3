"""Chunks of a chat: what a client puts together from them is the whole answer, whatever the run was like."""

import json

import anyio
from hypothesis import given
from tests.engine.worlds import World, engine_for, worlds
from tests.kit.waiting import PATIENCE

from mainspring.core.ids import counting
from mainspring.core.items import Json, encode
from mainspring.core.response import response
from mainspring.core.run import Run
from mainspring.features.chat_completions.chat_wire import ChatDialect, ChatWire, render_completion
from mainspring.http.run_replies import find_failure
from mainspring.http.streams import Wires, read_frames
from mainspring.providers.scripted import say, turn
from mainspring.storage.memory_runs import MemoryStore

FULL = ChatDialect(usage=True, extensions=True)


async def play(world: World, dialect: ChatDialect) -> tuple[list[Json], Run, list[bytes]]:
    """The chunks that a reader got, the run, and the frames of somebody who comes when it has ended."""
    store, new_id = MemoryStore(), counting()
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        with anyio.fail_after(PATIENCE):
            wire = Wires(ChatWire).find(handle, dialect)
            read = [frame async for batch in read_frames(handle, wire) for frame in batch]
        again = ChatWire(dialect)
        (await engine.attach(handle.id)).watch(again)
    assert b"".join(read) == b"".join(again.frames)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in read], handle.run, read


def gather(chunks: list[Json]) -> Json:
    """The choice that the chunks of a client's stream add up to."""
    message: Json = {"role": None, "content": None, "refusal": None, "annotations": [], "tool_calls": []}
    choice: Json = {"index": 0, "finish_reason": None}
    output: list[Json] = []
    for chunk in chunks:
        output += chunk.get("mainspring_output", [])
        for part in chunk["choices"]:
            delta = dict(part["delta"])
            message["role"] = delta.pop("role", message["role"])
            for call in delta.pop("tool_calls", []):
                assert call.pop("index") == len(message["tool_calls"])
                message["tool_calls"].append(call)
            message["annotations"] += delta.pop("annotations", [])
            for channel, text in delta.items():
                message[channel] = (message.get(channel) or "") + text
            assert choice["finish_reason"] is None, "nothing follows the end"
            choice["finish_reason"] = part["finish_reason"]
    message["content"] = message["content"] or None
    return {**choice, "message": message | {"mainspring_output": output}, "usage": chunks[-1].get("usage")}


@given(worlds)
async def test_the_chunks_of_any_run_add_up_to_its_completion(world: World) -> None:
    chunks, run, _ = await play(world, FULL)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    if find_failure(run) is not None:
        assert set(chunks[-1]["error"]) == {"message", "type", "param", "code"}
        return
    whole = json.loads(encode(render_completion(response(run), FULL)))
    wanted = whole["choices"][0]
    wanted.pop("logprobs")
    told = gather(chunks)
    assert told.pop("usage") == whole["usage"]
    wanted["message"].setdefault("tool_calls", [])
    assert told == wanted
    assert {chunk["id"] for chunk in chunks} == {whole["id"]}


async def test_a_client_that_asks_for_nothing_more_is_told_nothing_more() -> None:
    world = World((turn(say="Hm.", calls=[]), say("Well.")), {"max_turns": 1})
    chunks, _, frames = await play(world, ChatDialect())
    assert all(b"usage" not in frame and b"mainspring" not in frame for frame in frames)
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * len(chunks)
