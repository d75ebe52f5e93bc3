"""The victim of test_delegation: an agent that has three others work one after the other, unless somebody kills it first.

delegating.py FOLDER [MOMENT] takes up what it finds in FOLDER/runs.db, or begins, and waits at MOMENT to be killed.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from mainspring import Engine, tool
from mainspring.core.events import ModelEvent
from mainspring.core.items import FunctionCallOutput, Message
from mainspring.core.model_request import ModelRequest
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.ports import ModelInfo
from mainspring.providers.scripted import Scripted, call, say

FOLDER = Path(sys.argv[1])
MOMENT = sys.argv[2] if len(sys.argv) > 2 else None


async def tell(moment: str) -> None:
    print(moment, flush=True)
    if moment == MOMENT:
        await asyncio.Event().wait()


@tool(effects=("write",))
async def step(n: int) -> str:
    """Leaves a mark when it begins and when it ends."""
    marks = os.open(FOLDER / "tally", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"begin {n}\n".encode())
    await tell(f"begin {n}")
    os.write(marks, f"end {n}\n".encode())
    os.close(marks)
    await tell(f"end {n}")
    return f"step {n}"


class Planned:
    """A model that goes by what it reads alone, so that it can go on anywhere."""

    name = "planned"

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        first = request.items[0]
        assert isinstance(first, Message)
        answered = len([item for item in request.items if isinstance(item, FunctionCallOutput)])
        if "agent `boss`" in str(request.instructions):
            told = call("agent_helper", what=str(answered + 1)) if answered < 3 else say("All done.")
        else:
            told = say("Done.") if answered else call("step", n=int(first.text.split('"')[3]))
        return Scripted(told, repeat=True).stream(request)

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo(self.name)]

    async def close(self) -> None:
        pass


async def main() -> None:
    engine = Engine(Planned(), tools=[step], agents=[FOLDER / "agents"], database=FOLDER / "runs.db")
    async with engine:
        unfinished = await engine.store.list_unfinished()
        if not unfinished:
            handle = await engine.agents.start("boss", {}, ToolLoopConfig(), id="resp_boss", background=True)
        else:
            handles = [await engine.resume(each) for each in unfinished]
            (handle,) = [each for each in handles if each.id == "resp_boss"]
        run = await handle.wait()
        print(f"ended {run.status}", flush=True)


asyncio.run(main())
