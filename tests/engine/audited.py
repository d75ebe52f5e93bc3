"""The victim of test_audit: drives runs with an audit on a SQLite file, several at once, unless somebody kills it first.

audited.py DATABASE
"""

import asyncio
import sys

from mainspring import Engine, tool
from mainspring.core.ids import random_id
from mainspring.providers.scripted import Scripted, call, calls, say

RUNS = 4


@tool
async def step(n: int) -> str:
    """Takes a moment."""
    await asyncio.sleep(0.001)
    return f"step {n}"


def script() -> Scripted:
    turns = [calls(call("step", n=n), call("unknown", n=n), when="Go") for n in range(8)]
    return Scripted(*turns, say("The end.", when="Go"), new_id=random_id)


async def main() -> None:
    async with Engine(script(), tools=[step], database=sys.argv[1], audit=True) as engine:
        handles = [await engine.ask("Go", max_turns=9, max_errors_in_row=None) for _ in range(RUNS)]
        print("begun", flush=True)
        for handle in handles:
            await handle.wait()


asyncio.run(main())
