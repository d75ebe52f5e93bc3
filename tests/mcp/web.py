"""MCP servers reached by HTTP that misbehave, each in its own way: real sockets, and a record of what arrived."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

HUGE = 100 * 1024 * 1024
TOOL: dict[str, Any] = {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
WRITE: dict[str, Any] = {"name": "write", "inputSchema": {"type": "object"}}


class Web:
    """A server of the protocol before it was stateless. `animal` says how it treats calls; it can be changed on the way."""

    def __init__(self, animal: str) -> None:
        self.animal = animal
        self.url = ""
        self.calls = 0
        self.sessions = 0
        self.sent = 0
        self.cancelled = asyncio.Event()
        self.headers: list[dict[str, str]] = []

    def forget_sessions(self) -> None:
        self.sessions += 1

    @property
    def session(self) -> str:
        return f"session-{self.sessions}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if self.animal == "locked":
            return web.json_response({"error": "who are you?"}, status=401)
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        if self.animal == "elsewhere":
            raise web.HTTPTemporaryRedirect("http://localhost:1/mcp")
        if "mcp-session-id" in request.headers and request.headers["mcp-session-id"] != self.session:
            return web.Response(status=404)
        match message.get("method"):
            case "server/discover":
                return web.json_response(_error(message, -32601, "Method not found"))
            case "initialize":
                about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                body = _result(message, {**about, "serverInfo": {"name": self.animal, "version": "1"}})
                return web.json_response(body, headers={"mcp-session-id": self.session})
            case "tools/list":
                return web.json_response(_result(message, {"tools": [TOOL, WRITE]}))
            case "tools/call":
                self.calls += 1
                return await self._called(request, message)
            case "notifications/cancelled":
                self.cancelled.set()
        return web.Response(status=202)

    async def _called(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        done = _result(message, {"content": [{"type": "text", "text": f"call {self.calls}"}]})
        match self.animal:
            case "stall":
                await asyncio.sleep(600)
            case "page":
                return web.Response(text="<html>Welcome!</html>", content_type="text/html")
            case "huge":
                return await self._stream(request, "application/json")
            case "huge event":
                return await self._stream(request, "text/event-stream")
            case "zip":
                return web.Response(
                    body=gzip.compress(json.dumps(done).encode()),
                    headers={"content-encoding": "gzip", "content-type": "application/json"},
                )
            case "abort":
                assert request.transport is not None
                request.transport.abort()
            case "cut":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write_eof()
                return response
            case _:
                pass
        return web.json_response(done)

    async def _stream(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        await response.write(b"data: ")
        while self.sent < HUGE:
            await response.write(b"x" * 65_536)
            self.sent += 65_536
        return response


def _result(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def _error(request: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}}


@asynccontextmanager
async def served(animal: str) -> AsyncIterator[Web]:
    zoo = Web(animal)
    app = web.Application()
    app.router.add_route("*", "/mcp", zoo.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    zoo.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield zoo
    finally:
        await runner.cleanup()
