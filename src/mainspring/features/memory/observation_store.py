"""Where observations are kept: the tables of `observation_rows`, off the event loop."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mainspring.features.memory import observation_rows as rows
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.observation_rows import Added, Hit, ObservationScope
from mainspring.storage.sqlite import Database

Clock = Callable[[], float]


class ObservationStore:
    """Observations in a file, or in memory without one. Everything raises `StoreError` when the file cannot be used.

    No tenant ever has more than `most` of them.
    """

    def __init__(self, path: Path | None, most: int, clock: Clock = time.time) -> None:
        self._database = Database(path, rows.MEMORY)
        self._most = most
        self._clock = clock

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    @property
    def is_open(self) -> bool:
        return self._database.is_open

    def now(self) -> float:
        return self._clock()

    async def add_writer(self, token: str) -> float | None:
        """Notes who has it open. Returns since when others have who may have crashed, None if there are none."""
        return await self._database.write(rows.add_writer, token=token, now=self._clock())

    async def remove_writer(self, token: str) -> None:
        await self._database.write(rows.remove_writer, token=token)

    async def remove_other_writers(self, token: str) -> None:
        """Forgets the others. Those that live come back by `add_writer`."""
        await self._database.write(rows.remove_other_writers, token=token)

    async def add(self, seen: Sequence[Observation]) -> Added:
        """Durable when it returns. What is there already, or was forgotten, stays so; the tenant's oldest make room."""
        return await self._database.write(rows.add, seen=seen, most=self._most)

    async def search(self, query: str, whose: ObservationScope, limit: int) -> list[Hit]:
        return await self._database.read(rows.search, query=query, whose=whose, limit=limit, now=self._clock())

    async def load(self, ids: Sequence[str], whose: ObservationScope) -> list[Observation]:
        return await self._database.read(rows.load, ids=ids, whose=whose)

    async def forget(self, tenant: str, session: str | None) -> list[str]:
        return await self._database.write(rows.forget, tenant=tenant, session=session, now=self._clock())

    async def forget_run(self, tenant: str, session: str, run: str) -> list[str]:
        return await self._database.write(rows.forget_run, tenant=tenant, session=session, run=run, now=self._clock())

    async def purge(self) -> None:
        await self._database.write(rows.purge)

    async def prune(self, seconds: float) -> list[str]:
        return await self._database.write(rows.prune, before=self._clock() - seconds, most=self._most)

    async def list_unembedded(self, limit: int) -> list[Observation]:
        return await self._database.read(rows.list_unembedded, limit=limit)

    async def mark_embedded(self, ids: Sequence[str]) -> None:
        await self._database.write(rows.mark_embedded, ids=ids)

    async def mark_unembedded(self) -> None:
        await self._database.write(rows.mark_unembedded)
