"""The wire laws: well-formed streams that rebuild the Response, the same bytes for every reader."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.worlds import World, engine_for, worlds
from tests.kit.waiting import PATIENCE
from tests.server.linter import events_of, linted

from mainspring.app.engine import Engine
from mainspring.core.events import (
    Annotated,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolStarted,
    TurnEnded,
)
from mainspring.core.ids import counting
from mainspring.core.items import Message, OutputText, Reasoning, ReasoningText, Refusal, SummaryText, Unknown, encode
from mainspring.core.model_request import ModelRequest
from mainspring.core.response import response
from mainspring.features.governance.rule_policy import RulePolicy, Rules
from mainspring.http.frame_log import DONE
from mainspring.http.streams import Wires, read_frames
from mainspring.http.wire import Dialect, Wire, extract_data, render_response
from mainspring.providers.scripted import Scripted, call, calls, raw, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.functions import tool

PLAIN = Dialect()


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Random worlds fail on purpose, thousands of times; nobody wants to format all those tracebacks."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def streamed(world: World, dialect: Dialect = PLAIN) -> tuple[bytes, dict[str, object], list[bytes]]:
    """A world played with a viewer: the bytes it read, the Response that GET would show, and the frames made again."""
    store, new_id = MemoryStore(), counting()
    wires = Wires(Wire)
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        wire = wires.find(handle, dialect)
        with anyio.fail_after(PATIENCE):
            read = [b"".join(batch) async for batch in read_frames(handle, wire)]
        told = json.loads(encode(render_response(response(handle.run), dialect)))
        again = Wire(dialect)
        (await engine.attach(handle.id)).watch(again)
    return b"".join(read) + DONE, told, again.frames


async def test_events_that_were_read_leave_memory_and_whoever_comes_late_reads_the_same_bytes() -> None:
    words = "".join([f"word {number} " for number in range(200)])
    gate = anyio.Event()

    class Held(Scripted):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    if isinstance(event, ItemDone):
                        await gate.wait()
                    yield event

    async def read_until(reader: AsyncIterator[list[bytes]], part: bytes) -> bytes:
        seen = b""
        while part not in seen:
            seen += b"".join(await anext(reader))
        return seen

    wires = Wires(Wire)
    async with Engine(Held(say(words), chunk=5)) as engine:
        handle = await engine.ask("Go.")
        wire = wires.find(handle, PLAIN)
        first = read_frames(handle, wire)
        with anyio.fail_after(PATIENCE):
            seen = await read_until(first, b"199 ")
            late = read_frames(handle, wires.find(handle, PLAIN), after=20)
            number = wire.ends[-1] - 3
            second = read_frames(handle, wires.find(handle, PLAIN), after=number)
            told = [await read_until(late, b"199 "), await read_until(second, b"199 ")]
            assert len(wire.frames) < 30 < len(wire.ends), "those that all have read are dropped"
            gate.set()
            for place, reader in enumerate((late, second)):
                told[place] += b"".join([b"".join(batch) async for batch in reader])
            seen += b"".join([b"".join(batch) async for batch in first])
        whole = Wire(PLAIN)
        handle.retell(whole)
        assert seen == b"".join(whole.frames)
        assert told == [b"".join(whole.frames[21:]), b"".join(whole.frames[number + 1 :])]
        assert not handle.journal._watchers, "whoever has read to the end is told no more"


@given(worlds)
async def test_law_10_11_12_a_stream_is_well_formed_and_rebuilds_the_response(world: World) -> None:
    stream, told, _ = await streamed(world)
    assert linted(events_of(stream)) == told


@given(worlds, st.sampled_from([PLAIN, Dialect("reasoning", "function_call", True, True, False), Dialect(extensions=True)]))
async def test_law_16_a_stream_made_again_from_the_log_is_the_same_to_the_byte(world: World, dialect: Dialect) -> None:
    stream, told, again = await streamed(world, dialect)
    assert b"".join(again) + DONE == stream
    assert linted(events_of(stream)) == told


@pytest.mark.requirement("A14")
async def test_a_stream_over_several_turns_opens_once_and_closes_once() -> None:
    stream, _, _ = await streamed(World((calls(call("good", n=1)), calls(call("good", n=2)), say("Done.")), {}))
    kinds = [event["type"] for event in events_of(stream)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert all(kinds.count(kind) == 1 for kind in (*kinds[:2], kinds[-1]))
    assert kinds.count("response.output_text.done") == 1


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("extensions", [False, True])
async def test_calls_and_outputs_are_in_the_answer_and_tools_at_work_only_for_those_who_asked(extensions: bool) -> None:
    stream, told, _ = await streamed(World((calls(call("good", n=1)), say("Done.")), {}), Dialect(extensions=extensions))
    output = told["output"]
    assert isinstance(output, list)
    assert (output[0]["type"], output[0]["output"]) == ("mcp_call", 'good {"n":1}')
    assert ("mainspring:tool_progress" in [event["type"] for event in events_of(stream)]) is extensions


async def test_a_call_that_a_person_is_asked_about_is_told_by_its_request_alone() -> None:
    turn = calls(call("good", n=1), call("approval"), call("good", n=2))
    stream, told, _ = await streamed(World((turn,), {}))
    assert linted(events_of(stream)) == told
    output = told["output"]
    assert isinstance(output, list)
    assert [(item["type"], item.get("status")) for item in output] == [
        ("mcp_call", "completed"),
        ("mcp_call", "completed"),
        ("mcp_approval_request", None),
    ]


async def test_a_question_that_nobody_waits_for_any_more_is_followed_by_the_call_that_was_not_run() -> None:
    @tool(effects=("read",))
    async def wait() -> str:
        await anyio.sleep_forever()
        return ""

    @tool(effects=("write",))
    def refund() -> str:
        return "refunded"

    script = Scripted(calls(call("refund"), call("wait")))
    async with Engine(script, tools=[wait, refund], policies=[RulePolicy(Rules.of({"refund": "ask"}))]) as engine:
        handle = await engine.start(engine.order("Go."))
        wire = Wire(PLAIN)
        handle.watch(wire)
        with anyio.fail_after(PATIENCE):
            async for record in handle.events():
                if isinstance(record.event, ToolStarted):
                    handle.request_cancel()
    told = json.loads(encode(render_response(response(handle.run), PLAIN)))
    assert linted(events_of(b"".join(wire.frames) + DONE)) == told
    assert [item["type"] for item in told["output"]] == ["mcp_call", "mcp_approval_request", "mcp_call"]
    assert (told["status"], told["output"][-1]["name"], told["output"][-1]["status"]) == ("cancelled", "refund", "failed")


@given(worlds, st.booleans())
async def test_a_stream_cut_after_any_event_and_resumed_is_the_uncut_one(world: World, background: bool) -> None:
    store, new_id, wires = MemoryStore(), counting(), Wires(Wire)
    world = replace(world, options={**world.options, "background": background})
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        whole = [frame async for batch in read_frames(handle, wires.find(handle, PLAIN)) for frame in batch]
        later = await engine.attach(handle.id)
        wire = wires.find(later, PLAIN)
        for cut in range(len(whole)):
            rest = [frame async for batch in read_frames(later, wire, after=cut) for frame in batch]
            assert whole[: cut + 1] + rest == whole


async def test_two_hundred_viewers_of_one_run_see_the_same_bytes() -> None:
    world = World((say("A rather long answer, told to very many."),), {"max_turns": 1})
    store, new_id, wires = MemoryStore(), counting(), Wires(Wire)
    seen: list[bytes] = []
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))

        async def view(delay: int) -> None:
            for _ in range(delay):
                await anyio.lowlevel.checkpoint()
            seen.append(b"".join([frame async for batch in read_frames(handle, wires.find(handle, PLAIN)) for frame in batch]))

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(view, number % 40)
    assert len(seen) == 200
    assert len(set(seen)) == 1


CITED = OutputText("See this.", annotations=({"type": "url_citation", "url": "u", "title": "t"},))
PARTS = Message("assistant", (CITED, OutputText("And"), Refusal("No.")), id="msg_1")
THOUGHT = Reasoning("rs_1", summary=(SummaryText("short"), SummaryText("er")), content=(ReasoningText("long"),))
SEARCH = Unknown({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}})


async def test_many_parts_annotations_summaries_and_unknown_items_are_streamed_in_order() -> None:
    script = raw(
        [
            ItemStarted(replace(THOUGHT, summary=(), content=())),
            ReasoningDelta("rs_1", "sh", 0, summary=True),
            ReasoningDelta("rs_1", "ort", 0, summary=True),
            ReasoningDelta("rs_1", "er", 1, summary=True),
            ReasoningDelta("rs_1", "long"),
            ItemDone(THOUGHT),
            ItemStarted(SEARCH),
            ItemDone(SEARCH),
            ItemStarted(replace(PARTS, content=())),
            TextDelta("msg_1", "See "),
            Annotated("msg_1", {"type": "url_citation", "url": "u", "title": "t"}),
            TextDelta("msg_1", "this."),
            TextDelta("msg_1", "And", 1),
            RefusalDelta("msg_1", "No.", 2),
            ItemDone(PARTS),
            TurnEnded(),
        ]
    )
    stream, told, _ = await streamed(World((script,), {"max_turns": 1}))
    events = events_of(stream)
    assert linted(events) == told
    assert [event["type"].removeprefix("response.") for event in events[2:-1]] == [
        "output_item.added",
        "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done",
        "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "output_item.done",
        "output_item.added",
        "content_part.added", "output_text.delta", "output_text.annotation.added", "output_text.delta", "output_text.done",
        "content_part.done",
        "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "content_part.added", "refusal.delta", "refusal.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip


async def test_items_that_come_without_deltas_are_told_whole() -> None:
    script = raw([ItemStarted(replace(PARTS, content=())), ItemDone(PARTS), TurnEnded()])
    events = events_of((await streamed(World((script,), {"max_turns": 1})))[0])
    linted(events)
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["See this.", "And", "No."]


async def test_a_websocket_carries_the_data_of_the_same_event() -> None:
    stream, _, again = await streamed(World((say("Hi."),), {"max_turns": 1}))
    assert [json.loads(extract_data(frame)) for frame in again] == events_of(stream)
