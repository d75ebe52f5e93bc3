"""What our MCP client costs over the bare SDK: CPU of this process per call of an echo tool, one call after the other.

    python bench/mcp_calls.py [--calls N] [--rounds N]

`bare` is the SDK's client, `connection` ours with its owner task, deadline and translation, `executor` what the engine calls,
with the answer made into an output. In memory the server is part of the process; by stdio and HTTP it is another, in the sandbox
or not. Best of several rounds, each of which measures all three; ratios are to `bare`.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvicorn
from bench.processes import parse_options
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver import MCPServer
from msgspec import Struct

from mainspring.core.items import ToolDefinition
from mainspring.ports import CallContext, ToolCall
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp import connection as connections
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.mcp_session import McpSession, _Screen
from mainspring.tools.mcp.server_specs import ServerSpec

SCRIPT = str(Path(__file__).resolve())
ARGUMENTS = {"text": "tick tock"}
TOOL = ToolDefinition("echo", kind="mcp", timeout=60.0)

server = MCPServer("echo", log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


class Contestants(Struct, frozen=True):
    """The same server, by the bare SDK and by ours."""

    bare: Client
    tools: McpTools
    spec: ServerSpec


@asynccontextmanager
async def in_memory() -> AsyncIterator[Contestants]:
    spec = ServerSpec("echo", url="http://memory.example", trusted=True)
    async with Client(server) as bare, Client(server, cache=None) as ours:
        tools = McpTools([spec])
        # No configuration names a server in memory: the session is put where the owner task would put it.
        connection = tools._get_connection(spec, "")
        connection._life = life = connections._Life()
        life.session = McpSession("echo", ours, _Screen(), [])
        life.opened.set()
        yield Contestants(bare, tools, spec)


@asynccontextmanager
async def by_stdio(*, sandboxed: bool) -> AsyncIterator[Contestants]:
    arguments = [SCRIPT, "--serve", "stdio"]
    spec = ServerSpec("echo", "stdio", command=sys.executable, args=tuple(arguments), trusted=True, sandboxed=sandboxed)
    async with (
        BuiltinTools(wraps=sandboxed) as builtins,
        Client(StdioServerParameters(command=sys.executable, args=arguments)) as bare,
    ):
        tools = McpTools([spec], wrap=builtins.wrap)
        yield Contestants(bare, tools, spec)
        await tools.close()


@asynccontextmanager
async def by_http() -> AsyncIterator[Contestants]:
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, "--serve", "http", stdout=subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    spec = ServerSpec("echo", url=url, trusted=True)
    tools = McpTools([spec])
    try:
        async with Client(url) as bare:
            yield Contestants(bare, tools, spec)
            await tools.close()
    finally:
        process.kill()
        await process.wait()


async def measured(opened: AbstractAsyncContextManager[Contestants], calls: int, rounds: int) -> dict[str, float]:
    """Microseconds of CPU per call, by contestant."""
    async with opened as found:
        made = await found.tools.collect_tools()
        found.tools.bind("resp", made)
        context = CallContext("resp", TOOL, lambda text: None)
        connection = found.tools._get_connection(found.spec, "")
        asked = ToolCall("call", "echo", json.dumps(ARGUMENTS), dict(ARGUMENTS))
        contestants: dict[str, Callable[[], Awaitable[object]]] = {
            "bare": lambda: found.bare.call_tool("echo", dict(ARGUMENTS), 60.0),
            "connection": lambda: connection.call("echo", dict(ARGUMENTS)),
            "executor": lambda: found.tools.execute(asked, context),
        }
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


def serve(transport: str) -> None:
    if transport == "stdio":
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run([listening])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["stdio", "http"], help=argparse.SUPPRESS)
    options = parse_options(parser)
    if options.serve:
        serve(options.serve)
        return
    print(f"{'CPU per call, µs':20}{'bare':>10}{'connection':>20}{'executor':>20}")
    transports = {
        "in memory": in_memory(),
        "stdio": by_stdio(sandboxed=False),
        "stdio, sandboxed": by_stdio(sandboxed=True),
        "streamable HTTP": by_http(),
    }
    for name, opened in transports.items():
        found = asyncio.run(measured(opened, options.calls, options.rounds))
        rows = [f"{found[ours]:.0f} ({found[ours] / found['bare']:.2f}x)" for ours in ("connection", "executor")]
        print(f"{name:20}{found['bare']:>10.0f}{rows[0]:>20}{rows[1]:>20}")


if __name__ == "__main__":
    main()
