"""Events of the Messages API: what a client puts together from them is the whole message, whatever the run was like."""

import json

import anyio
from hypothesis import given
from hypothesis.strategies import booleans
from tests.engine.worlds import World, engine_for, worlds
from tests.kit.waiting import PATIENCE

from mainspring.core.ids import counting
from mainspring.core.items import Json, encode
from mainspring.core.response import response
from mainspring.core.run import Run
from mainspring.features.messages.messages_wire import MessagesDialect, MessagesWire, render_message
from mainspring.http.run_replies import find_failure
from mainspring.http.streams import Wires, read_frames
from mainspring.storage.memory_runs import MemoryStore

ADDED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


async def play(world: World, dialect: MessagesDialect) -> tuple[list[Json], Run]:
    """The events that a reader got, and the run."""
    store, new_id = MemoryStore(), counting()
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        with anyio.fail_after(PATIENCE):
            wire = Wires(MessagesWire).find(handle, dialect)
            read = [frame async for batch in read_frames(handle, wire) for frame in batch]
        again = MessagesWire(dialect)
        (await engine.attach(handle.id)).watch(again)
    assert read == again.frames
    events = []
    for frame in read:
        name, data = frame.decode().removesuffix("\n\n").split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events, handle.run


def gather(events: list[Json]) -> Json:
    """The message that the events add up to, by the rules of the API."""
    start, ping, *middle, ended, stop = events
    assert [event["type"] for event in (start, ping, ended, stop)] == ["message_start", "ping", "message_delta", "message_stop"]
    message: Json = start["message"]
    opened: int | None = None
    partial = ""
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened = event["index"]
                assert opened == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == opened
                delta, block = event["delta"], message["content"][-1]
                if delta["type"] == "input_json_delta":
                    partial += delta["partial_json"]
                else:
                    block[ADDED[delta["type"]]] += delta[ADDED[delta["type"]]]
            case "content_block_stop":
                assert event["index"] == opened
                if partial:
                    message["content"][-1]["input"], partial = json.loads(partial), ""
                opened = None
    assert opened is None
    return {**message, **ended["delta"], "usage": ended["usage"]}


@given(worlds, booleans())
async def test_the_events_of_any_run_add_up_to_its_message(world: World, extensions: bool) -> None:
    dialect = MessagesDialect(extensions)
    events, run = await play(world, dialect)
    if find_failure(run) is not None:
        assert events[-1]["type"] == "error"
        assert {"type", "message", "param", "code"} == set(events[-1]["error"])
        return
    assert gather(events) == json.loads(encode(render_message(response(run), dialect)))
