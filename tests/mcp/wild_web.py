"""A server whose every answer a test writes itself: real sockets, and a record of what arrived.

`Wild` speaks either protocol well; what a test wants otherwise it puts into `answers`, by method, as a function of the request
and its message.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiohttp import web

Json = dict[str, Any]
Handler = Callable[[web.Request, Json], Awaitable[web.StreamResponse]]

READ: Json = {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
MODERN = "2026-07-28"


class Wild:
    def __init__(self, *, is_modern: bool = False, session: str | None = "session-1", tells_of_changes: bool = False) -> None:
        self.url = ""
        self.is_modern, self.session = is_modern, session
        self.capabilities: Json = {"tools": {"listChanged": tells_of_changes}}
        self.answers: dict[str, Handler] = {}
        self.heard: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = asyncio.Event()

    def count(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.heard)

    def list_headers(self, method: str) -> list[dict[str, str]]:
        """The headers of the requests of a method, with names in small letters."""
        return [sent for sent, message in zip(self.headers, self.heard, strict=True) if message.get("method") == method]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        message = await request.json() if request.method == "POST" else {"method": request.method}
        self.heard.append(message)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        method = str(message.get("method"))
        if (answer := self.answers.get(method)) is not None:
            try:
                return await answer(request, message)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        match method:
            case "server/discover" if self.is_modern:
                about = {"supportedVersions": [MODERN], "capabilities": self.capabilities}
                return result(message, {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **about})
            case "initialize" if not self.is_modern:
                about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "wild", "version": "1"}}
                headers = {} if self.session is None else {"mcp-session-id": self.session}
                return result(message, {**about, "capabilities": self.capabilities}, headers)
            case "tools/list":
                return result(message, {"tools": [READ], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                return result(message, say("read"))
            case "GET" | "DELETE":
                return web.Response(status=405)
            case str() if "id" in message and "method" in message:
                return web.json_response(encode(message, error={"code": -32601, "message": "Method not found"}), status=404)
        return web.Response(status=202)


def say(text: str, **more: object) -> Json:
    return {"content": [{"type": "text", "text": text}], "resultType": "complete", **more}


def encode(message: Json, **more: object) -> Json:
    return {"jsonrpc": "2.0", "id": message["id"], **more}


def result(message: Json, found: Json, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(encode(message, result=found), headers=headers)


def event(data: Json | str, *, number: str = "", retry: int | None = None, name: str = "") -> bytes:
    fields = [f"id: {number}"] if number else []
    fields += [f"retry: {retry}"] if retry is not None else []
    fields += [f"event: {name}"] if name else []
    return "\n".join([*fields, f"data: {data if isinstance(data, str) else json.dumps(data)}", "", ""]).encode()


async def begin(request: web.Request) -> web.StreamResponse:
    """The head of a stream of events."""
    stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await stream.prepare(request)
    return stream


async def stream_of(request: web.Request, *events: bytes) -> web.StreamResponse:
    stream = await begin(request)
    for each in events:
        await stream.write(each)
    return stream


W = TypeVar("W", bound=Wild)


@asynccontextmanager
async def serve(wild: W) -> AsyncIterator[W]:
    app = web.Application(client_max_size=64 << 20)
    for path in ("/mcp", "/mcp/"):
        app.router.add_route("*", path, wild.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    wild.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield wild
    finally:
        await runner.cleanup()
