"""Runs kept for as long as the process lives. What the SQLite store promises holds here too, but for surviving."""

from asyncio import Future, get_running_loop
from collections.abc import Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import MainspringError, StoreError
from mainspring.events import Recorded, Status
from mainspring.loop.history import Entry
from mainspring.ports import Page, Snapshot, StoredRun
from mainspring.store.segment import Segment, not_ended, not_found, superseded


class _Kept(Struct):
    run: StoredRun
    log: list[Recorded]
    entries: tuple[Entry, ...] | None = None


class MemoryStore:
    """A `ports.Store` in memory. It is open from the start, and once closed stays so."""

    def __init__(self) -> None:
        self._runs: dict[str, _Kept] = {}
        self._is_closed = False

    async def open(self) -> None:
        """Does nothing; every store has it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def append(self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None) -> Future[None]:
        written: Future[None] = get_running_loop().create_future()
        try:
            self._write(Segment(run_id, list(records), snapshot))
        except MainspringError as error:
            written.set_exception(error)
        else:
            written.set_result(None)
        return written

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        return self._kept(run_id).log[max(after + 1, 0) :]

    async def load(self, run_id: str) -> StoredRun:
        return self._kept(run_id).run

    async def history(self, run_id: str) -> list[Entry]:
        links: dict[str, tuple[Entry, ...]] = {}
        wanted: str | None = run_id
        while wanted is not None:
            kept = self._kept(wanted)
            if wanted in links:
                raise not_found(wanted)
            if kept.entries is None:
                raise not_ended(wanted)
            links[wanted] = kept.entries
            wanted = kept.run.parent
        return [entry for entries in reversed(links.values()) for entry in entries]

    async def list(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, status: Status | None = None
    ) -> Page:
        # Sorting is stable and a dict keeps the order of creation: that order decides between runs of the same moment.
        runs = sorted([kept.run for kept in self._open().values()], key=lambda run: run.created_at)
        if newest_first:
            runs.reverse()
        if after is not None:
            seen = self._kept(after, "after").run
            del runs[: runs.index(seen) + 1]
        found = [run for run in runs if status in (None, run.status)]
        return Page(tuple(found[:limit]), has_more=len(found) > limit)

    async def unfinished(self) -> Sequence[str]:
        runs = [kept.run for kept in self._open().values() if kept.entries is None]
        return [run.id for run in sorted(runs, key=lambda run: run.created_at)]

    async def delete(self, run_id: str) -> None:
        self._kept(run_id)
        del self._runs[run_id]

    async def close(self) -> None:
        self._is_closed = True

    def _open(self) -> dict[str, _Kept]:
        if self._is_closed:
            raise StoreError("the store is not open")
        return self._runs

    def _kept(self, run_id: str, param: str | None = None) -> _Kept:
        if (kept := self._open().get(run_id)) is None:
            raise not_found(run_id, param)
        return kept

    def _write(self, segment: Segment) -> None:
        kept = self._open().get(segment.run_id)
        length = len(kept.log) if kept else 0
        if segment.first != length or (kept and kept.entries is not None):
            raise superseded(segment, length=length, has_ended=kept is not None and kept.entries is not None)
        if kept is None:
            assert segment.opening is not None  # a segment that begins with event 0 has one
            kept = self._runs[segment.run_id] = _Kept(segment.opening, [])
        kept.log.extend(segment.records)
        if ending := segment.ending:
            kept.run = replace(kept.run, status=ending.status, response=ending.snapshot.response)
            kept.entries = ending.snapshot.entries
