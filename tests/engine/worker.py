"""The victim of test_kill: drives a run on a database until it ends, unless somebody kills it first.

    worker.py DATABASE TALLY

Every tool call adds lines to TALLY as it begins and as it ends, flushed to the operating system at once.
"""

import asyncio
import os
import sys

from mainspring import Engine, tool
from mainspring.core.ids import random_id
from mainspring.core.operator_limits import OperatorLimits
from mainspring.ports import CallContext
from mainspring.providers.scripted import Scripted, call, calls, say

tally = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@tool
async def once(n: int, context: CallContext) -> str:
    """Must not run twice."""
    os.write(tally, f"begin once {context.run_id} {n}\n".encode())
    await asyncio.sleep(0.002)
    os.write(tally, f"end once {context.run_id} {n}\n".encode())
    return f"once {n}"


@tool(repeatable=True)
async def again(n: int, context: CallContext) -> str:
    """May run twice."""
    os.write(tally, f"begin again {context.run_id} {n}\n".encode())
    await asyncio.sleep(0.002)
    return f"again {n}"


def script() -> Scripted:
    """Sixteen turns, each recognised by its place in the run, so that a new process plays on where the last one was."""
    turns = [calls(call("once", n=n), call("again", n=n)) for n in range(15)]
    return Scripted(*turns, say("The end."), chunk=4, pause=0.0005, new_id=random_id)


async def main() -> None:
    async with Engine(script(), tools=[once, again], database=sys.argv[1], limits=OperatorLimits(resumes=None)) as engine:
        handles = await engine.resume_all()
        handle = handles[0] if handles else await engine.ask("Begin.", max_turns=16, max_errors_in_row=None)
        print(handle.id, flush=True)
        run = await handle.wait()
        print(run.status, flush=True)


asyncio.run(main())
