"""A backend that never ends: what it may send, say and take is bounded, whatever it sends, and it waits for the store."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import openai
import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem
from tests.kit.waiting import PATIENCE
from tests.providers.backend import QUESTION, call_piece, chunk, sse
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import BadOutput
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, Recorded, TextDelta, TurnEnded
from mainspring.core.items import Json, Message, assistant
from mainspring.core.model_request import MOST_ITEMS, ModelRequest
from mainspring.core.operator_limits import OperatorLimits
from mainspring.engine.turn_meter import CHARS_PER_TOKEN, DELTA_BYTES, PACE_BYTES, SLACK_CHARS
from mainspring.ports import ModelInfo, Note, Snapshot
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.relay import PIECE_BYTES
from mainspring.storage.memory_runs import MemoryStore

TOOL: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SAID = "tick tock " * 40
ENDLESS = {
    "text": sse(chunk({"content": SAID})),
    "reasoning": sse(chunk({"reasoning_content": SAID})),
    "arguments": sse(chunk(call_piece(0, id="a", name="look", arguments=SAID))),
    "small pieces": sse(chunk({"content": "a"})),
}
MUTE = {
    "comments": b": keep-alive\n\n",
    "blank lines": b"\n\n\n\n",
    "empty events": b"data:\n\n",
    "pieces without words": sse(chunk({})),
    "blank text": sse(chunk({"content": "\n"})),
    "one line": b"data: {" + b"x" * 1000,
}


@asynccontextmanager
async def endless(piece: bytes, pause: float | None = None, *, packed: bytes | None = None) -> AsyncIterator[str]:
    """A backend that says the same again and again, until its client leaves; `packed` is what it says once before, compressed."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if packed is not None:
            response.headers["Content-Encoding"] = "gzip"
        await response.prepare(request)
        if packed is not None:
            await response.write(packed)
        block = piece.removeprefix(b"data: {") if piece.startswith(b"data: {x") else piece
        with suppress(ConnectionError):
            await response.write(piece)
            while True:
                await response.write(block * (1 if pause else max(1, 16_384 // len(block))))
                if pause is not None:
                    await anyio.sleep(pause)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(url: str, database: Path | None = None, **limits: float) -> AsyncIterator[openai.AsyncOpenAI]:
    engine = Engine(
        Chat(url), default_model="clockwork", owns_provider=True, database=database, limits=OperatorLimits({**limits})
    )
    async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
        with anyio.fail_after(PATIENCE):
            yield client


PACKED = {
    "behind the end": (gzip.compress(b": hello\n\n"), bytes(1000)),
    "blocks of nothing": (gzip.compress(b"")[:10], b"\x00\x00\x00\xff\xff"),
}


@pytest.mark.parametrize("kind", PACKED)
async def test_what_is_packed_and_says_nothing_is_bounded_by_its_bytes(kind: str) -> None:
    """Its time is: an hour, as for any turn."""
    packed, more = PACKED[kind]
    async with endless(more, packed=packed) as url, asking(url) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.responses.create(model="clockwork", input="Go.")
        assert failed.value.code == "provider_unavailable"


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_that_exceeds_its_tokens_for_certain_is_cut(tmp_path: Path, kind: str) -> None:
    database = tmp_path / "runs.db"
    async with endless(ENDLESS[kind]) as url, asking(url, database) as client:
        answered = await client.responses.create(model="clockwork", input="Go.", max_output_tokens=50, tools=[TOOL])  # type: ignore[list-item]
    assert (answered.status, answered.incomplete_details and answered.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    [item] = answered.output
    assert item.status == "incomplete"  # type: ignore[union-attr]
    match item:
        case ResponseReasoningItem(content=[part]):
            said = part.text
        case ResponseFunctionToolCall(arguments=said):
            pass
        case _:
            said = answered.output_text
    assert len(said) == 50 * CHARS_PER_TOKEN + SLACK_CHARS
    assert database.stat().st_size < 10_000_000


async def test_a_stream_of_an_answer_that_is_cut_ends_properly() -> None:
    async with endless(ENDLESS["text"]) as url, asking(url) as client:
        events = [
            event async for event in await client.responses.create(model="m", input="Go.", max_output_tokens=16, stream=True)
        ]
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = "".join([event.delta for event in events if event.type == "response.output_text.delta"])
    assert len(deltas) == 16 * CHARS_PER_TOKEN + SLACK_CHARS


@pytest.mark.parametrize("kind", ENDLESS)
async def test_without_a_limit_of_tokens_the_servers_ceiling_cuts(kind: str) -> None:
    async with endless(ENDLESS[kind]) as url, asking(url, turn_bytes=262_144) as client:
        answered = await client.responses.create(model="clockwork", input="Go.", tools=[TOOL])  # type: ignore[list-item]
    assert answered.status == "incomplete"
    assert 0 < len(answered.output[0].model_dump_json()) < 400_000


@pytest.mark.parametrize("kind", MUTE)
async def test_bytes_that_say_nothing_are_bounded_too(kind: str) -> None:
    async with endless(MUTE[kind]) as url, asking(url, turn_bytes=262_144) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="clockwork", input="Go.", max_output_tokens=50)
    assert (caught.value.status_code, caught.value.code) == (502, "provider_bad_output")


async def test_calls_without_end_are_bounded() -> None:
    class Caller:
        name = "caller"
        closed = False

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            number = 0
            while True:
                number += 1
                yield ItemStarted(Message("assistant", id=f"msg_{number}", status="in_progress"))
                yield ItemDone(Message("assistant", id=f"msg_{number}"))

        async def models(self) -> Sequence[ModelInfo]:
            return ()

        async def close(self) -> None: ...

    async with Engine(Caller()) as engine:
        with anyio.fail_after(PATIENCE):
            run = await engine.run("Go.", turn_bytes=1_048_576)
    assert (run.status, run.reason) == ("incomplete", "max_output_tokens")
    assert 0 < len(run.output) < 1000


@pytest.mark.parametrize(("count", "in_one_piece"), [(3000, False), (3000, True), (40_000, True)])
async def test_a_turn_of_thousands_of_calls_is_refused_and_none_is_run(count: int, *, in_one_piece: bool) -> None:
    calls = [call_piece(number, id=f"call_{number}", name="look", arguments="{}") for number in range(count)]
    if in_one_piece:
        calls = [{"tool_calls": [made for call in calls for made in call["tool_calls"]]}]
    async with endless(b"".join([sse(chunk(call)) for call in calls])) as url, asking(url) as client:
        answered = await client.responses.create(model="clockwork", input="Go.", tools=[TOOL])  # type: ignore[list-item]
    assert answered.status == "failed"
    assert answered.error is not None
    assert (answered.error.model_extra or {})["reason"] == "provider_too_many_items"
    assert len(answered.output) <= MOST_ITEMS


async def test_an_answer_has_only_so_much_time() -> None:
    async with endless(b": still here\n\n", pause=0.01) as url, asking(url, turn_seconds=0.2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="clockwork", input="Go.")
    assert caught.value.code == "provider_unavailable"


class SlowStore(MemoryStore):
    """Keeps nothing until it is released."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.held = 0
        self._tasks: list[asyncio.Task[None]] = []

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> "asyncio.Future[None]":
        self.held += len(records)

        async def write() -> None:
            await self.released.wait()
            await MemoryStore.append(self, run_id, records, snapshot, notes)

        task = asyncio.get_running_loop().create_task(write())
        self._tasks.append(task)
        return task


async def test_a_backend_that_outruns_the_store_waits_for_it() -> None:
    pieces, told = 20_000, 0

    class Fast:
        name = "fast"

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            nonlocal told
            done = assistant("a" * pieces, id="msg_1")
            yield ItemStarted(replace(done, content=(), status="in_progress"))
            for told in range(1, pieces + 1):  # noqa: B007
                await checkpoint()
                yield TextDelta("msg_1", "a")
            yield ItemDone(done)
            yield TurnEnded()

        async def models(self) -> Sequence[ModelInfo]:
            return ()

        async def close(self) -> None: ...

    store = SlowStore()
    async with Engine(Fast(), store=store) as engine:
        handle = await engine.ask("Go.")
        for _ in range(4 * pieces):
            await checkpoint()
        assert 0 < told <= PACE_BYTES // DELTA_BYTES + 1
        store.released.set()
        with anyio.fail_after(PATIENCE):
            run = await handle.wait()
    assert (run.status, len(run.text), told) == ("completed", pieces, pieces)


class Watched(Chat):
    """Notes how much of an answer it reads between two turns of others."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.since, self.most = 0, 0

    def _reader(self, request: ModelRequest) -> ChatCompletionReply:
        reader = super()._reader(request)
        feed = reader.feed

        def feed_watched(data: bytes) -> Iterable[ModelEvent]:
            self.since += len(data)
            self.most = max(self.most, self.since)
            return feed(data)

        reader.feed = feed_watched  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("kind", ["comments", "pieces without words"])
async def test_others_have_their_turn_while_a_backend_says_nothing(kind: str) -> None:
    async with endless(MUTE[kind]) as url, anyio.create_task_group() as others:
        backend = Watched(url)

        async def take_turns() -> None:
            while True:
                backend.since = 0
                await checkpoint()

        others.start_soon(take_turns)
        with pytest.raises(BadOutput), anyio.fail_after(PATIENCE):
            async for _ in backend.stream(replace(QUESTION, max_bytes=4_000_000)):
                pass
        others.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await backend.close()
    assert 0 < backend.most <= 2 * PIECE_BYTES
