"""What bad MCP servers cost the others: latency of calls of a good server, and of plain runs, beside many good ones or bad ones.

    python bench/mcp_zoo.py [--calls N]

The servers are in a process of their own. The bad ones are those that the tests have. Each is called once a second, and left to
hang if it does not answer.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from logging import CRITICAL, disable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from msgspec import Struct
from tests.mcp.menagerie import ANIMALS, make
from tests.mcp.wild_web import Wild, serve

from mainspring import Engine
from mainspring.core.errors import AskPerson
from mainspring.ports import CallContext, ToolCall
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import ToolRoute

GOOD = "good"
PAUSE = 1.0
START_SECONDS = 3.0


class Latency(Struct, frozen=True):
    """Milliseconds."""

    median: float
    p99: float


async def keep_zoo() -> None:
    """Serves all of them, and prints where."""
    async with AsyncExitStack() as stack:
        wilds = {name: await stack.enter_async_context(serve(make(name))) for name in ANIMALS}
        good = {
            f"{GOOD} {number}": await stack.enter_async_context(serve(Wild(is_modern=True))) for number in range(len(wilds) + 1)
        }
        print(json.dumps({name: wild.url for name, wild in (good | wilds).items()}), flush=True)
        await asyncio.Event().wait()


async def measure(calls: int, ask: Callable[[], Awaitable[object]]) -> Latency:
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        await ask()
        took.append(1000 * (time.perf_counter() - began))
    return Latency(statistics.median(took), statistics.quantiles(took, n=100)[98])


async def perform(tools: McpTools, route: ToolRoute) -> None:
    with suppress(AskPerson):
        call = ToolCall("call_1", route.definition.name, "{}", {})
        await tools.execute(call, CallContext("resp_1", route.definition, lambda text: None))


async def tease(tools: McpTools, route: ToolRoute) -> None:
    while True:
        await perform(tools, route)
        await asyncio.sleep(PAUSE)


async def compare(urls: dict[str, str], calls: int) -> None:
    specs = [ServerSpec(name, url=url, trusted=True, require_approval="never", timeout=3600) for name, url in urls.items()]
    first, *others = [spec for spec in specs if spec.label.startswith(GOOD)]
    for beside, chosen in ((GOOD, others), ("bad", [spec for spec in specs if spec not in (first, *others)])):
        tools = McpTools([first, *chosen], connect_seconds=3600, start_seconds=START_SECONDS)
        async with Engine(Scripted(say("Hello."), repeat=True), mcp=tools) as engine:
            await engine.run("Hello?")
            found = await tools.collect_tools()
            tools.bind("resp_1", found)
            ours = next(route for route in found.routes.values() if route.spec == first)
            theirs = {route.spec.label: route for route in found.routes.values() if route.spec != first}
            teasing = [asyncio.create_task(tease(tools, route)) for route in theirs.values()]
            await asyncio.sleep(1.0)
            label = f"beside {len(chosen)} {beside} servers"
            for what, ask in (("call", partial(perform, tools, ours)), ("plain run", partial(engine.run, "Hello?"))):
                latency = await measure(calls, ask)
                print(f"{label:24} {what:10} median {latency.median:6.2f} ms  p99 {latency.p99:6.2f} ms", flush=True)
            for task in teasing:
                task.cancel()
            await asyncio.gather(*teasing, return_exceptions=True)


async def main(calls: int) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        await compare(json.loads(await child.stdout.readline()), calls)
    finally:
        child.kill()
        await child.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parse_options(parser)
    disable(CRITICAL)
    asyncio.run(keep_zoo() if options.serve else main(options.calls))
