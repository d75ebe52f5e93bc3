"""Runs kept in one SQLite file, which several processes may share.

`sqlite` opens the file and works on it in a thread, `run_rows` knows its tables, `run_appender` sees to it that a log has one
writer, whichever process it comes from.
"""

import time
from asyncio import Future, get_running_loop
from collections.abc import AsyncGenerator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from sqlite3 import Connection
from typing import Self

from anyio import sleep

from mainspring.core.errors import MainspringError, Malformed, StoreError
from mainspring.core.events import Recorded, Status
from mainspring.core.history import Entry
from mainspring.core.items import Item
from mainspring.ports import (
    EVERY_RUN,
    Document,
    Filter,
    Link,
    Note,
    Pruned,
    RunPage,
    RunSummary,
    Segment,
    Snapshot,
    StoredRun,
    SummaryPage,
    UsageGroup,
    UsageSum,
)
from mainspring.storage import run_rows as rows
from mainspring.storage import summary_rows as lines
from mainspring.storage.follow import follow_log
from mainspring.storage.lease_rows import SqliteLeases
from mainspring.storage.run_appender import RunAppender
from mainspring.storage.sqlite import Database

SEEN_WITHIN = 0.2
"""How long it may take to see that a run has begun or ended, in seconds."""


class SqliteStore:
    """A `ports.Store` in a file. Making one has no effect; it is used between `open` and `close`, in one event loop.

    Cancelling the future of an append does not take the append back.
    """

    is_durable = True

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._appender = RunAppender()
        self._database = Database(self.path, rows.RUNS, on_rollback=self._appender.forget)
        self.leases = SqliteLeases(self._database)

    async def open(self) -> None:
        """Opens the file; creates it, and its folder, if missing. Does nothing if it is open.

        Raises `StoreError` that says what to do, and leaves the file as it is, if that cannot be used: not a database, another
        program's, damaged, written by a newer version, a folder, no permission.
        """
        await self._database.open()

    async def close(self) -> None:
        """Finishes what has begun, then lets the file go. Whoever lets go last leaves just the one file (a checkpoint)."""
        await self._database.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> Future[None]:
        try:
            return self._database.write(self._appender.append, [Segment(run_id, list(records), snapshot, tuple(notes))])
        except (Malformed, StoreError) as error:
            refused: Future[None] = get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def append_all(self, segments: Sequence[Segment]) -> Future[list[MainspringError | None]]:
        return self._database.write_all(self._appender.append, segments)

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        return await self._database.read(rows.load_events, run_id=run_id, after=after)

    def follow(self, run_id: str, after: int = -1) -> AsyncGenerator[list[Recorded], None]:
        return follow_log(self, run_id, after)

    async def load(self, run_id: str) -> StoredRun:
        return await self._database.read(rows.load, run_id=run_id)

    async def items(self, ids: Sequence[str], *, tenant: str = "") -> dict[str, Item]:
        return await self._database.read(rows.find_items, ids=ids, tenant=tenant)

    async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
        return await self._database.read(rows.load_history, run_id=run_id, tenant=tenant)

    async def measure_history(self, run_id: str, *, tenant: str | None = None) -> int:
        return await self._database.read(rows.measure_history, run_id=run_id, tenant=tenant)

    async def measure_run(self, run_id: str) -> int:
        return await self._database.read(rows.measure_run, run_id=run_id)

    async def measure_documents(self, kind: str, *, tenant: str = "", parent: str = "") -> int:
        return await self._database.read(rows.measure_documents, kind=kind, tenant=tenant, parent=parent)

    async def list(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> RunPage:
        return await self._database.ask(rows.list_runs, limit=limit, after=after, newest_first=newest_first, only=only)

    async def summarize(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> SummaryPage:
        return await self._database.ask(lines.summarize, limit=limit, after=after, newest_first=newest_first, only=only)

    async def find_summaries(self, numbers: Sequence[int]) -> Sequence[RunSummary]:
        return await self._database.ask(lines.find_summaries, numbers=numbers)

    async def list_states(self, after: int) -> Mapping[int, Status]:
        return await self._database.ask(lines.list_states, after=after)

    async def find_last_number(self) -> int:
        return await self._database.ask(lines.find_last_number)

    async def wait_for_change(self, seconds: float) -> None:
        await sleep(min(seconds, SEEN_WITHIN))

    async def sum_usage(self, by: UsageGroup, only: Filter = EVERY_RUN) -> Sequence[UsageSum]:
        return await self._database.ask(lines.sum_usage, by=by, only=only)

    async def list_unfinished(self) -> Sequence[str]:
        return await self._database.read(rows.list_unfinished)

    async def delete(self, run_id: str) -> None:
        await self._database.erase(self._delete, run_id=run_id)

    def _delete(self, connection: Connection, run_id: str) -> None:
        self._appender.settle(connection)
        rows.delete(connection, run_id)

    async def prune(self, before: float, *, skip: Sequence[str] = ()) -> Pruned:
        return await self._database.erase(self._prune, before=before, skip=tuple(skip))

    def _prune(self, connection: Connection, before: float, skip: Sequence[str]) -> Pruned:
        self._appender.settle(connection)
        return rows.prune(connection, before, skip)

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        return await self._database.write(rows.put, documents=tuple(documents), if_absent=if_absent)

    async def swap(self, document: Document, known: bytes) -> bool:
        return await self._database.write(rows.swap, document=document, known=known)

    async def read_clock(self) -> float:
        return time.time()  # a file is shared by the processes of one machine

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        return await self._database.read(rows.get, kind=kind, id=id, tenant=tenant, parent=parent)

    async def remove(self, kind: str, id: str, *, tenant: str = "", parent: str = "", number: int | None = None) -> bool:
        # With a number it tidies up; without one, somebody wants it gone.
        erase = self._database.erase if number is None else self._database.write
        return await erase(rows.remove, kind=kind, id=id, tenant=tenant, parent=parent, number=number)

    async def documents(
        self,
        kind: str,
        *,
        tenant: str = "",
        parent: str = "",
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> Sequence[Document]:
        return await self._database.read(
            rows.list_documents,
            kind=kind,
            tenant=tenant,
            parent=parent,
            after=after,
            limit=limit,
            newest_first=newest_first,
            most_bytes=most_bytes,
        )

    async def note(self, notes: Sequence[Note]) -> None:
        await self._database.write(self._appender.add_notes, notes=tuple(notes))

    async def audit(
        self, *, after: int | None = None, limit: int | None = None, newest_first: bool = False, call: str | None = None
    ) -> Sequence[Link]:
        return await self._database.ask(rows.list_audit, after=after, limit=limit, newest_first=newest_first, call=call)

    async def read_chain(self, chain: str, *, after: int | None = None, limit: int) -> Sequence[Link]:
        return await self._database.ask(rows.read_chain, chain=chain, after=after, limit=limit)

    async def list_chains(self) -> Sequence[str]:
        return await self._database.ask(rows.list_chains)
