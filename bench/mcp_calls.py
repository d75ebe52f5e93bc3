"""What a call of an MCP tool costs: CPU of this process per call of an echo tool, one call after the other.

    python bench/mcp_calls.py [--calls N] [--rounds N]

`json-rpc` is a bare client that sends the same message by our HTTP client and reads the answer, without any of the protocol's
rules; `sdk` is the client of the SDK; `connection` ours, with its deadline, limits and checks; `executor` what the engine calls,
with the answer made into an output. The server is a process of its own. Best of several rounds, each of which measures all of
them; ratios are to `sdk`. Then the memory of a process that has made its first call, by either client.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec
import uvicorn
from bench.processes import parse_options
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver import MCPServer
from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from mainspring.core.items import ToolDefinition
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.ports import CallContext, ToolCall
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec

SCRIPT = str(Path(__file__).resolve())
ARGUMENTS = {"text": "tick tock"}
TOOL = ToolDefinition("echo", kind="mcp", timeout=60.0)
VERSION = "2026-07-28"
CLIENTS = ("json-rpc", "sdk", "connection", "executor")
# Runs in a process of its own, by one client, and prints what memory that process has for itself.
FIRST_CALL = {
    "nothing": "async def main(url):\n    import mainspring.tools.mcp.executor",
    "sdk": "async def main(url):\n    from mcp import Client\n    async with Client(url) as client:\n"
    "        await client.call_tool('echo', {'text': 'a'})",
    "ours": "async def main(url):\n    from mainspring.tools.mcp.server_connection import McpConnection\n"
    "    from mainspring.tools.mcp.server_specs import ServerSpec\n"
    "    connection = McpConnection(ServerSpec('echo', url=url, trusted=True))\n"
    "    await connection.call('echo', {'text': 'a'})\n    await connection.close()",
}
PRINT = "\nimport asyncio, sys\nasyncio.run(main(sys.argv[1]))\nprint(open('/proc/self/smaps_rollup').read())"

server = MCPServer("echo", log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


class Contestants(Struct, frozen=True):
    """The same server, by the SDK and by ours, and, over HTTP, by a bare client."""

    sdk: Client
    tools: McpTools
    spec: ServerSpec
    bare: Callable[[], Awaitable[object]] | None = None


@asynccontextmanager
async def by_stdio(*, sandboxed: bool) -> AsyncIterator[Contestants]:
    arguments = [SCRIPT, "--serve", "stdio"]
    spec = ServerSpec("echo", "stdio", command=sys.executable, args=tuple(arguments), trusted=True, sandboxed=sandboxed)
    async with (
        BuiltinTools(wraps=sandboxed) as builtins,
        Client(StdioServerParameters(command=sys.executable, args=arguments)) as sdk,
    ):
        tools = McpTools([spec], wrap=builtins.wrap)
        yield Contestants(sdk, tools, spec)
        await tools.close()


@asynccontextmanager
async def by_http(how: str) -> AsyncIterator[Contestants]:
    async with http_server(how) as url, HttpClient(seconds=60, proxy="") as client, Client(url) as sdk:
        tools = McpTools([spec := ServerSpec("echo", url=url, trusted=True)])
        yield Contestants(sdk, tools, spec, make_bare_call(client, url) if how == "http" else None)
        await tools.close()


@asynccontextmanager
async def http_server(how: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, "--serve", how, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


def make_bare_call(client: HttpClient, url: str) -> Callable[[], Awaitable[object]]:
    names = ("Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name")
    values = ("application/json, text/event-stream", "application/json", VERSION, "tools/call", "echo")
    head, endpoint = encode_headers(zip(names, values, strict=True)), make_endpoint(URL(url))
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": VERSION, f"{prefix}clientCapabilities": {}}

    async def call() -> object:
        params = {"name": "echo", "arguments": ARGUMENTS, "_meta": meta}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        answer = await client.request("POST", endpoint, head, body)
        found = b""
        while data := await answer.read():
            found += data
        return msgspec.json.decode(found if found.startswith(b"{") else found.partition(b"data: ")[2].strip())["result"]

    return call


async def measured(opened: AbstractAsyncContextManager[Contestants], calls: int, rounds: int) -> dict[str, float]:
    """Microseconds of CPU per call, by contestant."""
    async with opened as found:
        made = await found.tools.collect_tools()
        found.tools.bind("resp", made)
        context = CallContext("resp", TOOL, lambda text: None)
        connection = found.tools._get_connection(found.spec, "")
        asked = ToolCall("call", "echo", json.dumps(ARGUMENTS), dict(ARGUMENTS))
        contestants: dict[str, Callable[[], Awaitable[object]]] = {
            "sdk": lambda: found.sdk.call_tool("echo", dict(ARGUMENTS), 60.0),
            "connection": lambda: connection.call("echo", dict(ARGUMENTS)),
            "executor": lambda: found.tools.execute(asked, context),
        }
        if found.bare is not None:
            contestants["json-rpc"] = found.bare
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(rounds):
            for name, call in contestants.items():
                best[name] = min(best[name], await cpu(call, calls))
        return best


async def cpu(call: Callable[[], Awaitable[object]], calls: int) -> float:
    before = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - before) / calls * 1e6


async def memory() -> dict[str, float]:
    """Megabytes that a process has for itself after its first call, by client."""
    found = {}
    async with http_server("http") as url:
        for name, code in FIRST_CALL.items():
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code + PRINT, url, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ""}
            )
            said = (await child.communicate())[0].decode()
            sizes = [line.split()[1] for line in said.splitlines() if line.startswith(("Private_Clean", "Private_Dirty"))]
            found[name] = sum(map(int, sizes)) / 1e3
    return found


def serve(transport: str) -> None:
    if transport == "stdio":
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    app: ASGIApp = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(with_sessions(app) if transport == "sessions" else app, log_level="error")).run([listening])


def with_sessions(app: ASGIApp) -> ASGIApp:
    """The same server as one of the protocols before the stateless one."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_new = scope["type"] == "http" and (b"mcp-method", b"server/discover") in scope["headers"]
        await (Response(status_code=400) if is_new else app)(scope, receive, send)

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["stdio", "http", "sessions"], help=argparse.SUPPRESS)
    options = parse_options(parser)
    if options.serve:
        serve(options.serve)
        return
    print(f"{'CPU per call, µs':24}" + "".join([f"{name:>18}" for name in CLIENTS]))
    transports = {
        "HTTP, stateless": by_http("http"),
        "HTTP, with a session": by_http("sessions"),
        "stdio": by_stdio(sandboxed=False),
        "stdio, sandboxed": by_stdio(sandboxed=True),
    }
    for name, opened in transports.items():
        found = asyncio.run(measured(opened, options.calls, options.rounds))
        cells = [f"{found[each]:.0f} ({found[each] / found['sdk']:.2f}x)" if each in found else "-" for each in CLIENTS]
        print(f"{name:24}" + "".join([f"{cell:>18}" for cell in cells]))
    print("memory after the first call, MB: " + ", ".join([f"{name} {size:.1f}" for name, size in asyncio.run(memory()).items()]))


if __name__ == "__main__":
    main()
