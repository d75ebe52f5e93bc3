"""Runs kept in one SQLite file, which several processes may share.

`schema` opens the file, `rows` knows its tables, and `worker` is the thread in which all of it happens. That a log has one writer
is the file's own doing: the statement that adds a segment checks its number, whichever process it comes from.
"""

import sqlite3
from asyncio import Future, get_running_loop
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Self

from mainspring.core.errors import Malformed, StoreError
from mainspring.core.events import Recorded
from mainspring.core.history import Entry
from mainspring.core.items import Item
from mainspring.ports import EVERY_RUN, Document, Filter, Link, Note, Page, Snapshot, StoredRun
from mainspring.storage import run_rows as rows
from mainspring.storage.run_schema import transaction
from mainspring.storage.segment import Segment
from mainspring.storage.sqlite_worker import Worker


class SqliteStore:
    """A `ports.Store` in a file. Making one has no effect; it is used between `open` and `close`, in one event loop.

    Cancelling the future of an append does not take the append back.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path).absolute()  # SQLite has its own idea of some relative names, such as `:memory:`
        self._worker: Worker | None = None

    async def open(self) -> None:
        """Opens the file; creates it, and its folder, if missing. Does nothing if it is open.

        Raises `StoreError` that says what to do, and leaves the file as it is, if that cannot be used: not a database, another
        program's, damaged, written by a newer version, a folder, no permission.
        """
        if self._worker is None:
            worker = Worker(self.path)
            await worker.start()
            self._worker = worker

    async def close(self) -> None:
        """Finishes what has begun, then lets the file go. Whoever lets go last leaves just the one file (a checkpoint)."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> Future[None]:
        try:
            return self._open().append(Segment(run_id, list(records), snapshot, tuple(notes)))
        except (Malformed, StoreError) as error:
            refused: Future[None] = get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        return await self._open().ask(partial(rows.events, run_id=run_id, after=after))

    async def load(self, run_id: str) -> StoredRun:
        return await self._open().ask(partial(rows.load, run_id=run_id))

    async def items(self, ids: Sequence[str], *, tenant: str = "") -> dict[str, Item]:
        return await self._open().ask(partial(rows.items, ids=ids, tenant=tenant))

    async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
        return await self._open().ask(partial(rows.history, run_id=run_id, tenant=tenant))

    async def list(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> Page:
        return await self._open().ask(partial(rows.page, limit=limit, after=after, newest_first=newest_first, only=only))

    async def unfinished(self) -> Sequence[str]:
        return await self._open().ask(rows.unfinished)

    async def delete(self, run_id: str) -> None:
        await self._open().ask(partial(_delete, run_id=run_id))

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        return await self._open().ask(partial(_put, documents=tuple(documents), if_absent=if_absent))

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        return await self._open().ask(partial(rows.get, kind=kind, id=id, tenant=tenant, parent=parent))

    async def remove(self, kind: str, id: str, *, tenant: str = "", parent: str = "", number: int | None = None) -> bool:
        return await self._open().ask(partial(_remove, kind=kind, id=id, tenant=tenant, parent=parent, number=number))

    async def documents(
        self,
        kind: str,
        *,
        tenant: str = "",
        parent: str = "",
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[Document]:
        found = partial(
            rows.documents, kind=kind, tenant=tenant, parent=parent, after=after, limit=limit, newest_first=newest_first
        )
        return await self._open().ask(found)

    async def note(self, notes: Sequence[Note]) -> None:
        await self._open().ask(partial(_note, notes=tuple(notes)))

    async def audit(
        self, *, after: int | None = None, limit: int | None = None, newest_first: bool = False, call: str | None = None
    ) -> Sequence[Link]:
        return await self._open().ask(partial(rows.audit, after=after, limit=limit, newest_first=newest_first, call=call))

    def _open(self) -> Worker:
        if self._worker is None:
            raise StoreError("the store is not open")
        return self._worker


class _TakenBack(Exception):
    """Ends a transaction that is not to be."""


def _delete(connection: sqlite3.Connection, run_id: str) -> None:
    with transaction(connection):
        rows.delete(connection, run_id)


def _put(connection: sqlite3.Connection, documents: tuple[Document, ...], if_absent: bool) -> bool:
    with suppress(_TakenBack), transaction(connection):
        if rows.put(connection, documents, if_absent):
            return True
        raise _TakenBack
    return False


def _note(connection: sqlite3.Connection, notes: tuple[Note, ...]) -> None:
    with transaction(connection):
        rows.note(connection, notes)


def _remove(connection: sqlite3.Connection, kind: str, id: str, tenant: str, parent: str, number: int | None) -> bool:
    with transaction(connection):
        return rows.remove(connection, kind, id, tenant, parent, number)
