"""The memory as an observer of runs: what a crash kept from it is remembered later, and what is deleted is forgotten."""

from contextlib import suppress
from typing import Final

from mainspring.core.errors import MainspringError
from mainspring.core.events import Status
from mainspring.core.run import Run
from mainspring.engine.engine import Engine
from mainspring.features.memory.memory import Memory
from mainspring.ports import Filter, Retell, RunObserver

CATCH_UP_SECONDS: Final = 3_600.0
CATCH_UP_RUNS: Final = 50
ENDED: Final[tuple[Status, ...]] = ("completed", "incomplete", "failed", "cancelled", "requires_action")


class MemoryObserver(RunObserver):
    name = "memory"

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def run_resumed(self, retell: Retell) -> None:
        await self._memory.catch_up(retell)

    async def run_forgotten(self, run: Run) -> None:
        await self._memory.forget_run(run.spec)


async def catch_up_memory(memory: Memory, engine: Engine) -> None:
    """After a crash: remembers the runs that ended just before it and may be in the store but not in the memory."""
    if (since := memory.cut_off_since) is None:
        return
    only = Filter(status=ENDED, since=since - CATCH_UP_SECONDS)
    for stored in (await engine.store.list(limit=CATCH_UP_RUNS, only=only)).runs:
        with suppress(MainspringError):
            await memory.catch_up((await engine.attach(stored.id)).retell)
    await memory.caught_up()
