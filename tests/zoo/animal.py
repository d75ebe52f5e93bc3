"""The zoo: small Chat Completions servers, each with one habit that real ones have, and what should come of it all the same.

An animal is a class. Its docstring says what it does and where that was seen. It is asked through our server, engine and adapter,
under a model name that no table knows. Most tell one story: the user asks for the time, the model calls `get_time`, and answers.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol

import msgspec
import pytest
from aiohttp import web
from msgspec import Struct
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response
from tests.providers.backend import DONE, call_piece, chunk, sse, usage_chunk

from mainspring.core.items import Json
from mainspring.features.traces.trace_record import TraceRecord

MODEL = "nobody-knows-me"
NOON = "It is noon."
UTC, CET = '{"zone": "UTC"}', '{"zone": "CET"}'


class Refusal(Struct, frozen=True):
    """What a server says instead of answering."""

    message: str
    status: int = 400
    headers: dict[str, str] = {}


class Outcome(Struct, frozen=True):
    """What the client got, the zones that the tool was called with, in their order, and the trace of the run."""

    response: Response
    zones: list[str]
    trace: TraceRecord


class Backend(Protocol):
    """Whatever answers requests to one path below its root, with which its address ends."""

    root: ClassVar[str]
    path: ClassVar[str]

    async def handle(self, request: web.Request) -> web.StreamResponse: ...


@asynccontextmanager
async def serving(animal: Backend) -> AsyncIterator[str]:
    """The address of a server that answers what is posted to the path of this backend, and nothing else."""
    app = web.Application(client_max_size=2**26)
    app.router.add_post(animal.root + animal.path, animal.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}{animal.root}"
    finally:
        await runner.cleanup()


class Animal:
    """A backend with one habit. `first` answers a question, `last` what follows the output of a call."""

    root: ClassVar[str] = "/v1"
    path: ClassVar[str] = "/chat/completions"
    number: ClassVar[int]
    """The row of the list of quirks."""
    zones: ClassVar[list[str]] = ["UTC"]
    request: ClassVar[dict[str, Any]] = {}
    """What the client asks beside its question."""
    has_tools: ClassVar[bool] = True

    def refuse(self, body: Json) -> str | Refusal | None:
        """What is wrong with a request, if something is."""
        return None

    def first(self, body: Json) -> bytes | Json:
        return call("call_1", UTC)

    def last(self, body: Json) -> bytes | Json:
        return say(NOON)

    async def ask(self, client: AsyncOpenAI) -> Response:
        told: Response = await client.responses.create(**{"model": MODEL, "input": "What time is it?", **self.request})
        return told

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "completed", outcome.response
        assert outcome.response.output_text == NOON
        assert outcome.zones == self.zones

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if (refusal := self.refuse(body)) is not None:
            told = refusal if isinstance(refusal, Refusal) else Refusal(refusal)
            return web.json_response({"error": {"message": told.message}}, status=told.status)
        reply = self.last(body) if outputs(body) else self.first(body)
        if isinstance(reply, bytes):
            return web.Response(body=reply, content_type="text/event-stream")
        return web.json_response(reply)


class Talker(Animal):
    """An animal that answers without a call."""

    zones: ClassVar[list[str]] = []

    def first(self, body: Json) -> bytes | Json:
        return self.last(body)


class Learner(Talker):
    """An animal that is not understood before it has answered once: that run fails and says why, and the next one is right."""

    code: ClassVar[str]

    async def ask(self, client: AsyncOpenAI) -> Response:
        first = await super().ask(client)
        assert first.status == "failed", first
        assert first.error is not None
        assert (first.error.model_extra or {})["reason"] == self.code, first.error
        return await super().ask(client)


class Failing(Talker):
    """An animal that fails: the client must be told so, and by whose fault."""

    async def ask(self, client: AsyncOpenAI) -> Response:
        with pytest.raises(APIStatusError) as caught:
            await super().ask(client)
        assert caught.value.status_code == 502
        assert "out of memory" in caught.value.message
        return Response.model_construct(status="failed")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.zones) == ("failed", [])


def say(*pieces: str, finish: str = "stop") -> bytes:
    """An answer as it should be."""
    head, tail = chunk({"role": "assistant", "content": ""}), chunk(finish=finish)
    return sse(head, *[chunk({"content": piece}) for piece in pieces], tail, usage_chunk(20, 5)) + DONE


def call(
    id: str | None, *pieces: object, name: str | None = "get_time", index: int | None = 0, finish: str = "tool_calls"
) -> bytes:
    """One call, as it should be but for what is given."""
    begun = chunk(call_piece(index, id=id, name=name, arguments=""))
    return sse(begun, *[chunk(call_piece(index, arguments=piece)) for piece in pieces], chunk(finish=finish)) + DONE


def outputs(body: Json) -> list[Json]:
    return [message for message in body["messages"] if message["role"] in ("tool", "function")]


def assistants(body: Json) -> list[Json]:
    return [message for message in body["messages"] if message["role"] == "assistant"]


def call_ids(body: Json) -> list[str]:
    return [made["id"] for message in assistants(body) for made in message.get("tool_calls") or ()]


def mentions(body: object, pattern: str) -> bool:
    return re.search(pattern, msgspec.json.encode(body).decode()) is not None
