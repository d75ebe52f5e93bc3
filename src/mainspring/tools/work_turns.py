"""Turns for work of which only so much is done at a time, whoever's it is.

Tenants take turns: whoever has five hundred pages read at once waits for them, and holds up nobody else's.
"""

from asyncio import Future, get_running_loop
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio.lowlevel import RunVar

from mainspring.core.fair_queue import FairQueue

MOST_AT_ONCE: Final = 4
MOST_OF_TENANT: Final = 2


class Turns:
    """At most `most` at a time have a turn, and `most_of_tenant` of each tenant."""

    def __init__(self, most: int, most_of_tenant: int | None = None) -> None:
        self._most, self._most_of_tenant = most, most if most_of_tenant is None else most_of_tenant
        self._waiting: FairQueue[Future[None]] = FairQueue()
        self._count = 0
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """Waits for a turn."""
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave(tenant)

    async def enter(self, tenant: str) -> None:
        """Waits for a turn, which lasts until `leave`."""
        if not self._waiting and self._may_begin(tenant):
            self._begin(tenant)
            return
        turn: Future[None] = get_running_loop().create_future()
        self._waiting.add(tenant, turn)
        self._give()
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._waiting.remove(tenant, turn)
            else:  # it came when nobody wanted it any more
                self.leave(tenant)
            raise

    def _may_begin(self, tenant: str) -> bool:
        return self._count < self._most and self._under_way[tenant] < self._most_of_tenant

    def _begin(self, tenant: str) -> None:
        self._count += 1
        self._under_way[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._count -= 1
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        self._give()

    def _give(self) -> None:
        while self._waiting and (found := self._waiting.take(self._may_begin)) is not None:
            tenant, turn = found
            if not turn.cancelled():
                self._begin(tenant)
                turn.set_result(None)


@asynccontextmanager
async def take_turn(tenant: str) -> AsyncIterator[None]:
    """Waits for a turn of work that takes a process of its own: reading pages, documents and folders. The memory that all of it
    takes is bounded by how many run. Turns are those of the event loop."""
    turns = _turns.get(None)
    if turns is None:
        turns = Turns(MOST_AT_ONCE, MOST_OF_TENANT)
        _turns.set(turns)
    async with turns.take(tenant):
        yield


_turns: RunVar[Turns | None] = RunVar("work_turns")
