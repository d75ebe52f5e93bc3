"""What an agent costs beside its run: the same turns and calls, once as a plain run and once as an agent's.

    python -m bench.agents [--runs N] [--agents N] [--rounds N]

CPU time of this process for each run of two calls and an answer, the best of several rounds in which both take turns, and for
looking whether any of so many definitions has changed.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from tests.agents.world import look, written

from mainspring import Engine
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.providers.scripted import Scripted, call, say

ONCE = ToolLoopConfig(enable_double_confirmation=False)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parse_options(parser)
    with TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(asked.agents):
            governance = {"tool_policies": {"write": "deny"}, "network": "none", "scope": "src"}
            written(folder, f"agent-{number}", autonomy_level="read-only", governance=governance)
        script = Scripted(call("look", at="a"), call("look", at="b"), say("Done."), repeat=True, chunk=0)
        async with Engine(script, tools=[look], agents=[folder]) as engine:

            async def plain() -> None:
                await engine.run("{}")

            async def agent() -> None:
                await engine.agents.invoke_iterative("agent-0", {}, ONCE)

            best = {"plain": 1e9, "agent": 1e9}
            for _ in range(asked.rounds):
                best["plain"] = min(best["plain"], await cost(plain, asked.runs))
                best["agent"] = min(best["agent"], await cost(agent, asked.runs))
        registry = AgentRegistry([folder])
        assert registry.definitions
        began = time.process_time()
        for _ in range(100):
            assert registry.definitions
        looking = (time.process_time() - began) / 100
    print(f"a plain run        {best['plain'] * 1e3:8.2f} ms")
    print(f"an agent's run     {best['agent'] * 1e3:8.2f} ms  {best['agent'] / best['plain']:.2f} times as much")
    print(f"a look at {asked.agents} files {looking * 1e3:8.2f} ms")


async def cost(work: Callable[[], Awaitable[None]], runs: int) -> float:
    """CPU seconds for each time that this is done."""
    began = time.process_time()
    for _ in range(runs):
        await work()
    return (time.process_time() - began) / runs


if __name__ == "__main__":
    asyncio.run(main())
