"""What bad MCP servers cost the others: latency of calls of a good server, and of plain runs, beside many good ones or bad ones.

    python bench/mcp_zoo.py [--calls N] [--rounds N]

The bad servers are those that the tests have. Each is called once a second, and left to hang if it does not answer. They are in a
process of their own, and so are the good ones. Beside the time that passes, which includes what the servers and other programs
take of the machine, `cpu` is what the event loop has done meanwhile, for whomever. Medians are of the best round; the last lines
say how many times as long it took beside bad servers.
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
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import ToolRoute

GOOD, BAD = "good", "bad"
PAUSE = 1.0
START_SECONDS = 3.0


class Latency(Struct, frozen=True):
    """Milliseconds."""

    median: float
    p99: float
    cpu: float


async def keep_zoo(kind: str) -> None:
    """Serves all of a kind, and prints where."""
    named = {name: make(name) for name in ANIMALS}
    if kind == GOOD:
        named = {f"{GOOD} {number}": Wild(is_modern=True) for number in range(len(ANIMALS) + 1)}
    async with AsyncExitStack() as stack:
        wilds = {name: await stack.enter_async_context(serve(wild)) for name, wild in named.items()}
        print(json.dumps({name: wild.url for name, wild in wilds.items()}), flush=True)
        await asyncio.Event().wait()


async def measure(calls: int, ask: Callable[[], Awaitable[object]]) -> Latency:
    took, used = [], []
    for _ in range(calls):
        began, before = time.perf_counter(), time.thread_time()
        await ask()
        took.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.thread_time() - before))
    return Latency(statistics.median(took), statistics.quantiles(took, n=100)[98], statistics.median(used))


async def perform(tools: McpTools, route: ToolRoute) -> ToolResult:
    call = ToolCall("call_1", route.definition.name, "{}", {})
    return await tools.execute(call, CallContext("resp_1", route.definition, lambda text: None))


async def call_well(tools: McpTools, route: ToolRoute) -> None:
    if (result := await perform(tools, route)).is_error:
        raise RuntimeError(f"the good server failed: {result.output}")


async def tease(tools: McpTools, route: ToolRoute) -> None:
    while True:
        with suppress(AskPerson):
            await perform(tools, route)
        await asyncio.sleep(PAUSE)


async def measure_beside(first: ServerSpec, others: list[ServerSpec], kind: str, calls: int) -> dict[str, Latency]:
    """The latencies, by what was asked, of whoever shares the engine with these others."""
    tools = McpTools([first, *others], connect_seconds=3600, start_seconds=START_SECONDS)
    found_latencies = {}
    async with Engine(Scripted(say("Hello."), repeat=True), mcp=tools) as engine:
        await engine.run("Hello?")
        found = await tools.collect_tools()
        tools.bind("resp_1", found)
        ours = next(route for route in found.routes.values() if route.spec == first)
        theirs = {route.spec.label: route for route in found.routes.values() if route.spec != first}
        teasing = [asyncio.create_task(tease(tools, route)) for route in theirs.values()]
        await asyncio.sleep(1.0)
        label = f"beside {len(others)} {kind} servers"
        for what, ask in (("call", partial(call_well, tools, ours)), ("plain run", partial(engine.run, "Hello?"))):
            latency = found_latencies[what] = await measure(calls, ask)
            told = f"median {latency.median:7.2f} ms  p99 {latency.p99:7.2f} ms  cpu {latency.cpu:6.2f} ms"
            print(f"{label:24} {what:10} {told}", flush=True)
        for task in teasing:
            task.cancel()
        await asyncio.gather(*teasing, return_exceptions=True)
    return found_latencies


async def compare(good: dict[str, str], bad: dict[str, str], calls: int, rounds: int) -> None:
    first, *others = [make_spec(name, url) for name, url in good.items()]
    wild = [make_spec(name, url) for name, url in bad.items()]
    quiet, disturbed = [], []
    for _ in range(rounds):
        quiet.append(await measure_beside(first, others, GOOD, calls))
        disturbed.append(await measure_beside(first, wild, BAD, calls))
    for what in quiet[0]:
        ratios = {
            name: min(getattr(each[what], name) for each in disturbed) / min(getattr(each[what], name) for each in quiet)
            for name in ("median", "cpu")
        }
        print(f"{what:10} beside bad servers: {ratios['median']:.2f} times as long, {ratios['cpu']:.2f} times the cpu")


def make_spec(name: str, url: str) -> ServerSpec:
    return ServerSpec(name, url=url, trusted=True, require_approval="never", timeout=3600)


async def main(calls: int, rounds: int) -> None:
    children = [
        await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", kind, stdout=asyncio.subprocess.PIPE)
        for kind in (GOOD, BAD)
    ]
    try:
        good, bad = [json.loads(await child.stdout.readline()) for child in children if child.stdout is not None]
        await compare(good, bad, calls, rounds)
    finally:
        for child in children:
            child.kill()
            await child.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=(GOOD, BAD), help=argparse.SUPPRESS)
    options = parse_options(parser)
    disable(CRITICAL)
    asyncio.run(keep_zoo(options.serve) if options.serve else main(options.calls, options.rounds))
