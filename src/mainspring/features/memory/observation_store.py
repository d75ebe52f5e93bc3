"""Where observations are kept: the tables of `rows`, off the event loop."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from mainspring.core.errors import StoreError
from mainspring.features.memory import observation_rows as rows
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.observation_rows import Added, Hit, Whose

log = getLogger(__name__)

T = TypeVar("T")
Clock = Callable[[], float]


async def in_thread(work: Callable[[], T], turns: CapacityLimiter) -> T:
    """What the work returns. Whoever waits for it may be cancelled; the next turn begins when the work is done all the same."""
    return await asyncio.shield(asyncio.ensure_future(to_thread.run_sync(work, limiter=turns)))


class Shelf:
    """Observations in a file, or in memory without one. Everything raises `StoreError` when the file cannot be used.

    No tenant ever has more than `most` of them. One thread at a time works with the one connection.
    """

    def __init__(self, path: Path | None, most: int, clock: Clock = time.time) -> None:
        self.path = path
        self._most = most
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._turns = CapacityLimiter(1)

    async def open(self) -> None:
        if self._connection is None:
            self._connection = await self._do(partial(rows.connect, self.path))

    def now(self) -> float:
        return self._clock()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._do(connection.close)

    async def enter(self, token: str) -> float | None:
        """Notes who has it open, until `leave`. Returns since when others have who may have crashed, None if there are none."""
        return await self._ask(partial(rows.enter, token=token, now=self._clock()))

    async def leave(self, token: str) -> None:
        await self._ask(partial(rows.leave, token=token))

    async def stay_alone(self, token: str) -> None:
        """Forgets the others. Those that live come back by `enter`."""
        await self._ask(partial(rows.stay_alone, token=token))

    async def add(self, seen: Sequence[Observation]) -> Added:
        """Durable when it returns. What is there already, or was forgotten, stays so; the tenant's oldest make room."""
        return await self._ask(partial(rows.add, seen=seen, most=self._most))

    async def fitting(self, query: str, whose: Whose, limit: int) -> list[Hit]:
        return await self._ask(partial(rows.fitting, query=query, whose=whose, limit=limit, now=self._clock()))

    async def load(self, ids: Sequence[str], whose: Whose) -> list[Observation]:
        return await self._ask(partial(rows.load, ids=ids, whose=whose))

    async def forget(self, tenant: str, session: str | None) -> list[str]:
        return await self._ask(partial(rows.forget, tenant=tenant, session=session, now=self._clock()))

    async def forget_run(self, tenant: str, session: str, run: str) -> list[str]:
        return await self._ask(partial(rows.forget_run, tenant=tenant, session=session, run=run, now=self._clock()))

    async def purge(self) -> None:
        await self._ask(rows.purge)

    async def prune(self, seconds: float) -> list[str]:
        return await self._ask(partial(rows.prune, before=self._clock() - seconds, most=self._most))

    async def to_embed(self, limit: int) -> list[Observation]:
        return await self._ask(partial(rows.to_embed, limit=limit))

    async def mark_embedded(self, ids: Sequence[str]) -> None:
        await self._ask(partial(rows.mark_embedded, ids=ids))

    async def mark_unembedded(self) -> None:
        await self._ask(rows.mark_unembedded)

    async def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            raise StoreError("the memory is not open")
        return await self._do(partial(work, self._connection))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await in_thread(work, self._turns)
        except (sqlite3.Error, OSError) as error:
            log.error("memory in %s: %s: %s", self.path, type(error).__name__, error)
            raise StoreError(f"the memory cannot be used ({error}); check its file, and the disk that it is on") from error
