"""The victim of test_kill: carries a workflow out on a SQLite file until it ends, unless somebody kills it first.

    worker.py FOLDER TALLY_URL WORKFLOW

Says a line for every event of the workflow and of the engine's runs behind its steps, as soon as it is durable or recorded.
"""

import asyncio
import sys
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from mainspring.app.engine import Engine
from mainspring.core.events import Event, RunStarted
from mainspring.core.operator_limits import OperatorLimits
from mainspring.core.run import Run
from mainspring.ports import CallContext
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.functions import tool

folder, url, workflow = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


@tool(effects=("network",), repeatable=True)
async def note(word: str, context: CallContext) -> str:
    """Has the tally count, once for each run."""
    headers = {"Idempotency-Key": f"{context.run_id} {word}"}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/agent", headers=headers) as response:
        return f"noted {response.status}"


async def tell(run: Run, event: Event) -> None:
    print(type(event).__name__ if not isinstance(event, RunStarted) else f"RunStarted {run.spec.id}", flush=True)


def script() -> Scripted:
    turns = (calls(call("note", word="a")), say("Done."), say('{"result": "noted"}'))
    # Each run plays them from where it is, whichever run was killed before.
    return Scripted(*[replace(turn, when="") for turn in turns], chunk=4)


async def main() -> None:
    engine = Engine(
        script(),
        tools=[note],
        database=folder / "runs.db",
        agents=[folder / "agents"],
        workflows=[folder / "flows"],
        builtins=BuiltinTools(guard=AddressGuard(("127.0.0.1",))),
        sinks=[tell],
        limits=OperatorLimits(resumes=None),
    )
    async with engine:
        await engine.resume_all()
        handles = await engine.workflows.resume_all()
        handle = handles[0] if handles else await engine.workflows.start(workflow, {"base": url})
        async for record in handle.events():
            print(record.seq, type(record.event).__name__, flush=True)
        print("ended", handle.id, handle.run.status, flush=True)


asyncio.run(main())
