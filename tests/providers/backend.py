"""A Chat Completions backend on this machine: real HTTP, scripted answers written byte for byte, and every question checked.

A test scripts the replies in order; each says which request body it expects. What was asked differently, or not at all, fails
the test when the backend is taken down.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import msgspec
from aiohttp import web
from tests.kit.waiting import PATIENCE

from mainspring.core.events import ModelEvent, Recorded, RunStarted, TurnStarted
from mainspring.core.history import History
from mainspring.core.ids import counting
from mainspring.core.items import Json, Message, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run, fold, open_run
from mainspring.core.spec import spec_for
from mainspring.ports import Provider
from mainspring.providers.chat.provider import Chat

QUESTION = ModelRequest(run_id="resp_1", model="clockwork", items=(user("What time is it?"),))
ASKED: Json = {
    "model": "clockwork",
    "messages": [{"role": "user", "content": "What time is it?"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
DONE = b"data: [DONE]\n\n"


class Scripted(msgspec.Struct, frozen=True):
    """One reply. `ending` is what happens behind the last chunk: a proper end, the line cut once released, or silence."""

    expect: Json | None
    chunks: Sequence[bytes]
    status: int
    headers: dict[str, str]
    ending: Literal["end", "abort", "silence"]


class Received(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: dict[str, str]
    connection: int


class Backend:
    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.release = asyncio.Event()
        self.gone = asyncio.Event()
        self._script: list[Scripted] = []
        self._faults: list[str] = []

    def replies(
        self,
        *chunks: bytes,
        expect: Json | None = ASKED,
        status: int = 200,
        mime: str = "text/event-stream",
        headers: dict[str, str] | None = None,
        ending: Literal["end", "abort", "silence"] = "end",
    ) -> None:
        self._script.append(Scripted(expect, chunks, status, {"Content-Type": mime, **(headers or {})}, ending))

    def check(self) -> None:
        assert not self._faults, "\n".join(self._faults)
        assert not self._script, f"never asked for: {self._script}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.received.append(Received(request.method, request.path_qs, dict(request.headers), id(request.transport)))
        data = await request.read()
        body = msgspec.json.decode(data) if data else None
        if not self._script:
            self._faults.append(f"asked once too often: {body}")
            return web.Response(status=500)
        reply = self._script.pop(0)
        if body != reply.expect:
            self._faults.append(f"expected {reply.expect}\nbut was asked {body}")
            return web.Response(status=500)
        return await self._answer(request, reply)

    async def _answer(self, request: web.Request, reply: Scripted) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in reply.chunks:
            await response.write(chunk)
        if reply.ending == "abort":
            await self.release.wait()
            assert request.transport is not None
            request.transport.abort()
        elif reply.ending == "silence":
            try:
                await asyncio.Event().wait()
            finally:
                self.gone.set()
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Backend]:
    backend = Backend()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", backend.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    backend.url = f"http://{host}:{port}/v1"
    try:
        yield backend
    finally:
        await runner.cleanup()


async def events_of(chat: Provider, request: ModelRequest = QUESTION) -> list[ModelEvent]:
    """All events of one turn, which the engine's own fold must accept."""
    with anyio.fail_after(PATIENCE):
        events = [event async for event in chat.stream(request)]
    folded(events)
    return events


async def ask(backend: Backend, request: ModelRequest = QUESTION) -> list[ModelEvent]:
    chat = Chat(backend.url, new_id=counting())
    try:
        return await events_of(chat, request)
    finally:
        await chat.close()


def folded(events: Sequence[ModelEvent]) -> Run:
    run = open_run(Recorded(0, 0.0, RunStarted(spec_for("responses", id="resp_1", model="m", input=(user("hi"),)))), History())
    for seq, event in enumerate((TurnStarted(), *events), 1):
        run = fold(run, Recorded(seq, float(seq), event))
    return run


def sse(*payloads: Json) -> bytes:
    return b"".join([b"data: " + msgspec.json.encode(payload) + b"\n\n" for payload in payloads])


def chunk(delta: Json | None = None, *, finish: str | None = None, **fields: object) -> Json:
    """A chunk as OpenAI sends it."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "clockwork-2",
        "choices": [{"index": 0, "delta": delta if delta is not None else {}, "logprobs": None, "finish_reason": finish}],
        **fields,
    }


def call_piece(index: int | None, *, id: str | None = None, name: str | None = None, arguments: object = None) -> Json:
    """The delta of one piece of one call, with only what is given in it."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": index, "id": id, "function": function or None}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def usage_chunk(prompt: int, completion: int) -> Json:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": counts}


def begun(id: str) -> Message:
    return Message("assistant", id=id, status="in_progress")
