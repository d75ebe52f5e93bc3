"""Servers of the HTTP+SSE transport: found by the fall-back of the specification, and under the same guard and rules."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.mcp.web import served

from mainspring import Engine
from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import FunctionCallOutput, Unknown
from mainspring.core.run import Run
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec, Transport

pytestmark = pytest.mark.slow
TOKEN = "tok-0123456789"


@contextmanager
def serving(*how: str) -> Iterator[str]:
    """The SSE server of the `mcp` package, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("modern.py")), "0", "sse", *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(scope="module")
def sums() -> Iterator[str]:
    with serving() as url:
        yield url


def brought(url: str, **more: object) -> Unknown:
    return Unknown({"type": "mcp", "server_label": "sums", "server_url": url, "require_approval": "never", **more})


async def add(tools: Any = (), *, mcp: McpTools | None = None) -> Run:
    mcp = mcp or McpTools(guard=AddressGuard(["127.0.0.1"]), connect_seconds=20)
    async with Engine(Scripted(call("add", a=2, b=3), say("Done.")), mcp=mcp) as engine:
        return await engine.run("2 and 3?", tools=list(tools))


def impatient() -> McpTools:
    return McpTools(guard=AddressGuard(["127.0.0.1"]), connect_seconds=5)


def told(run: Run) -> list[str]:
    return [str(item.output) for item in run.output if isinstance(item, FunctionCallOutput)]


def error_of(run: Run) -> str:
    return next(str(item.data.get("error")) for item in run.output if isinstance(item, Unknown))


async def test_a_request_brings_a_server_that_takes_no_post(sums: str) -> None:
    assert told(await add([brought(sums)])) == ["5"]


async def test_what_the_request_says_of_its_headers_is_sent_with_every_request() -> None:
    with serving(TOKEN) as url:
        assert told(await add([brought(url, authorization=TOKEN)])) == ["5"]
        refused = error_of(await add([brought(url)]))
        assert "HTTP 401" in refused
        assert TOKEN not in refused


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_the_operator_configures_one_with_or_without_naming_the_transport(sums: str, transport: Transport) -> None:
    spec = ServerSpec(label="sums", url=sums, transport=transport, trusted=True, require_approval="never")
    assert told(await add(mcp=McpTools([spec], connect_seconds=20, start_seconds=20))) == ["5"]


async def test_private_addresses_are_refused_as_for_any_server(sums: str) -> None:
    assert "--allow-host 127.0.0.1" in error_of(await add([brought(sums)], mcp=McpTools()))


async def test_a_server_that_dies_is_told_in_words() -> None:
    with serving() as url:
        connection = McpConnection(ServerSpec("sums", "sse", url=url, trusted=True))
        assert (await connection.call("add", {"a": 2, "b": 3})).content[0]["text"] == "5"
    for _ in range(2):
        with pytest.raises(ToolUnavailable, match=r"MCP server `sums` (was lost during the call|cannot be used)"):
            await connection.call("add", {"a": 2, "b": 3})
    await connection.close()
    assert connection.is_over


@asynccontextmanager
async def older(*events: bytes, status: int = 405) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that refuses POST, and tells a GET these events. The methods that it has heard are in the list."""
    heard: list[str] = []
    is_over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        heard.append(request.method)
        if request.method == "POST":
            return web.Response(status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await is_over.wait()
        return response

    app = web.Application()
    app.router.add_route("*", "/sse", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/sse", heard
    finally:
        is_over.set()
        await runner.cleanup()


async def test_an_endpoint_elsewhere_is_not_talked_to() -> None:
    async with served("good") as other, older(f"event: endpoint\ndata: {other.url}\n\n".encode()) as (url, heard):
        assert "HTTP 405" in error_of(await add([brought(url)]))
        assert (heard[-1], other.headers) == ("GET", [])


async def test_an_event_without_end_is_not_read_to_its_end() -> None:
    async with older(b"event: endpoint\ndata: ", b"x" * (2 << 20)) as (url, heard):
        assert "HTTP 405" in error_of(await add([brought(url)]))
        assert heard[-1] == "GET"


async def test_events_without_end_are_not_read_to_their_end() -> None:
    async with older(b"event: no\ndata: 1\n\n" * 100_000) as (url, heard):
        assert "HTTP 405" in error_of(await add([brought(url)], mcp=impatient()))
        assert heard[-1] == "GET"


async def test_a_server_that_names_no_endpoint_costs_the_time_to_connect() -> None:
    async with older() as (url, _):
        assert "did not get ready within 5 s" in error_of(await add([brought(url)], mcp=impatient()))


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_refusal_that_says_why_is_not_taken_for_another_transport(status: int) -> None:
    async with older(status=status) as (url, heard):
        assert f"HTTP {status}" in error_of(await add([brought(url)]))
        assert "GET" not in heard
