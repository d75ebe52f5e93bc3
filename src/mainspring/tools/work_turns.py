"""Turns for work that takes a process of its own: reading pages, documents and folders.

A few run at a time, and fewer of one tenant. Whoever has five hundred pages read at once waits for them, and for nobody else's;
the memory that all of it takes is bounded by how many run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import RunVar

MOST_AT_ONCE: Final = 4
MOST_OF_TENANT: Final = 2


@asynccontextmanager
async def take_turn(tenant: str) -> AsyncIterator[None]:
    """Waits for a turn. Turns are those of the event loop."""
    turns = _turns.get(None)
    if turns is None:
        turns = _Turns()
        _turns.set(turns)
    async with turns.find(tenant), turns.all:
        yield


class _Turns:
    def __init__(self) -> None:
        self.all = anyio.Semaphore(MOST_AT_ONCE)
        self._of_tenants: WeakValueDictionary[str, anyio.Semaphore] = WeakValueDictionary()

    def find(self, tenant: str) -> anyio.Semaphore:
        return self._of_tenants.setdefault(tenant, anyio.Semaphore(MOST_OF_TENANT))


_turns: RunVar[_Turns | None] = RunVar("work_turns")
