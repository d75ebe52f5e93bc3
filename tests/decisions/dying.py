"""An agent whose process is killed in the middle: `python -m tests.decisions.dying FOLDER MESSAGE MOMENT`."""

import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import anyio.lowlevel
from tests.decisions.world import Actor, Cue, on

from mainspring.app.engine import Engine
from mainspring.core.events import ModelEvent, ToolEnded
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Store
from mainspring.providers.scripted import call
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring_tasks.decision_engine import LLMAgentEngine
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import DecisionContext
from mainspring_tasks.task_tools import LocalTasks


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(Actor):
    """Plays its cues; asked once more, it ends its process, as soon as what the tools did is in the store."""

    store: Store

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if self.cues:
            async for event in super().stream(request):
                yield event
            return
        (run_id,) = await self.store.list_unfinished()
        with anyio.fail_after(20):
            while not any(isinstance(record.event, ToolEnded) for record in await self.store.events(run_id)):
                await anyio.lowlevel.checkpoint()
        die()


class Deadly(LocalTasks):
    """Ends its process instead of deleting anything."""

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        if name == "delete_task":
            die()
        return await super().call(user, name, arguments)


def opened(folder: Path, *cues: Cue, tasks: type[LocalTasks] = LocalTasks) -> tuple[Engine, LLMAgentEngine, DecisionLogs]:
    actor = Dying(*cues)
    engine = Engine(actor, database=folder / "runs.db")
    actor.store = engine.store
    logs = DecisionLogs(folder / "decisions.db")
    return engine, LLMAgentEngine(engine.host, tasks(str(folder / "tasks.db")), logs), logs


async def main(folder: Path, message: str, moment: str) -> None:
    moments: dict[str, tuple[Cue, ...]] = {
        "add": (call("add_task", description="Milk"),),
        "ask": (call("list_tasks"), on("delete_task", "Milk")),
        "before": (),
        "after": (),
    }
    engine, agent, _ = opened(folder, *moments[moment], tasks=Deadly if moment == "before" else LocalTasks)
    async with engine, agent:
        waiting = await agent.waiting("ada", "c")
        pending = None if waiting is None else waiting.action
        await agent.process_message(DecisionContext("ada", message, "c", (), pending))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
