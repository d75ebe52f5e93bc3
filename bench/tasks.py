"""What the task server costs over the bare SDK: CPU per call, client and server in one process, one call after the other.

    python bench/tasks.py [--calls N] [--rounds N]

`bare` is a server of the SDK's whose one tool answers always the same, as our empty list does; `empty list`, `add` and `complete`
are ours, on an SQLite file. Ratios are to `bare`. Then a list of 1,000 tasks: from the database alone, and through the protocol,
where the client holds it against its schema. Best of several rounds.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

from mainspring_tasks.server.identity import fix_user
from mainspring_tasks.server.mcp_server import build_task_server
from mainspring_tasks.server.perform import perform
from mainspring_tasks.server.sqlite_tasks import SqliteTasks
from mainspring_tasks.server.task_definitions import TOOLS

MANY = 1000


EMPTY = {"success": True, "data": [], "error": None, "error_code": None}
NOTHING = Tool(name="nothing", input_schema={"type": "object"}, output_schema=TOOLS["list_tasks"].answer)


async def list_nothing(context: "ServerRequestContext[Any]", params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[NOTHING])


async def do_nothing(context: "ServerRequestContext[Any]", params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=json.dumps(EMPTY))], structured_content=EMPTY)


async def measured(folder: Path, calls: int, rounds: int) -> dict[str, float]:
    """Microseconds of CPU, by what was measured."""
    store = SqliteTasks(folder / "tasks.db")
    await store.open()
    added = await perform(store, "cleo", "add_task", {"description": "x"})
    id = str(added.data.id)  # type: ignore[union-attr]
    for number in range(MANY):
        await perform(store, "dora", "add_task", {"description": f"Buy {number} bottles of milk"})
    async with (
        Client(Server("bare", on_list_tools=list_nothing, on_call_tool=do_nothing)) as bare,
        Client(build_task_server(store, fix_user("alice"))) as alice,
        Client(build_task_server(store, fix_user("bob"))) as bob,
        Client(build_task_server(store, fix_user("cleo"))) as cleo,
        Client(build_task_server(store, fix_user("dora"))) as dora,
    ):
        contestants: dict[str, Callable[[], Awaitable[object]]] = {
            "bare": lambda: bare.call_tool("nothing", {}),
            "empty list": lambda: alice.call_tool("list_tasks", {}),
            "add": lambda: bob.call_tool("add_task", {"description": "Buy milk"}),
            "complete": lambda: cleo.call_tool("complete_task", {"task_id": id}),
        }
        heavy: dict[str, Callable[[], Awaitable[object]]] = {
            "1,000 from the database": lambda: store.list("dora"),
            "1,000 through the protocol": lambda: dora.call_tool("list_tasks", {}),
        }
        best = dict.fromkeys([*contestants, *heavy], float("inf"))
        for _ in range(rounds):
            for name, call in contestants.items():
                best[name] = min(best[name], await cpu(call, calls))
            for name, call in heavy.items():
                best[name] = min(best[name], await cpu(call, max(1, calls // 20)))
    await store.close()
    return best


async def cpu(call: Callable[[], Awaitable[object]], calls: int) -> float:
    before = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - before) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parse_options(parser)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder), options.calls, options.rounds))
    print("CPU per call")
    for name, micros in found.items():
        if name.startswith("1,000"):
            print(f"  {name:28}{micros / 1000:>8.1f} ms")
        else:
            print(f"  {name:28}{micros:>8.0f} µs{micros / found['bare']:>8.2f}x")


if __name__ == "__main__":
    main()
