"""Tasks in one SQLite file, which several processes may share.

Theory of operation. One thread owns the connection and does one thing after the other; the event loop only waits. A connection
that fails is given up, and the next call opens another: a disk that was full hurts for as long as it is full. Every change is one
statement, committed when its answer is given, so the end of the process takes nothing back.

The file carries `APPLICATION_ID` in its header, and counts its migrations in `user_version`. A migration, once released, is never
edited.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from logging import getLogger
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar
from uuid import UUID

from mainspring.core.errors import StoreError
from mainspring_tasks.server.task import Status, Task, task

log = getLogger(__name__)

T = TypeVar("T")

APPLICATION_ID = 0x4D73_746B  # "Mstk"
LOCK_SECONDS = 5.0
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `number` is the order of creation, whatever the clock says.
        """
        CREATE TABLE tasks (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            description TEXT NOT NULL,
            created_at TEXT NOT NULL,
            completed_at TEXT
        )
        """,
        "CREATE INDEX tasks_by_owner ON tasks (owner, number)",
    ),
)
_COLUMNS = "id, description, created_at, completed_at"
_CHOICE = {None: "", "pending": "AND completed_at IS NULL", "completed": "AND completed_at IS NOT NULL"}

Row = tuple[str, str, str, str | None]


class SqliteTasks:
    """A `TaskStore` in a file, readable for its owner alone. It is used between `open` and `close`, in one event loop."""

    def __init__(self, path: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = path.absolute()
        self._lock_seconds = lock_seconds
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")
        try:
            await self._ask(lambda connection: None)
        except StoreError:
            await self.close()
            raise

    async def close(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.get_running_loop().run_in_executor(thread, self._give_up)
            thread.shutdown()

    async def add(self, owner: str, task: Task) -> None:
        values = (str(task.id), owner, task.description, task.created_at.isoformat(), _text(task.completed_at))
        statement = "INSERT INTO tasks (id, owner, description, created_at, completed_at) VALUES (?, ?, ?, ?, ?)"
        await self._ask(lambda connection: connection.execute(statement, values))

    async def list(self, owner: str, status: Status | None = None) -> Sequence[Task]:
        statement = f"SELECT {_COLUMNS} FROM tasks WHERE owner = ? {_CHOICE[status]} ORDER BY number DESC"
        return await self._tasks(statement, owner)

    async def reword(self, owner: str, id: UUID, description: str) -> Task | None:
        statement = f"UPDATE tasks SET description = ? WHERE id = ? AND owner = ? RETURNING {_COLUMNS}"
        return next(iter(await self._tasks(statement, description, str(id), owner)), None)

    async def complete(self, owner: str, id: UUID, at: datetime) -> Task | None:
        change = "completed_at = coalesce(completed_at, ?)"
        statement = f"UPDATE tasks SET {change} WHERE id = ? AND owner = ? RETURNING {_COLUMNS}"
        return next(iter(await self._tasks(statement, at.isoformat(), str(id), owner)), None)

    async def delete(self, owner: str, id: UUID) -> bool:
        statement = "DELETE FROM tasks WHERE id = ? AND owner = ?"
        return await self._ask(lambda connection: connection.execute(statement, (str(id), owner)).rowcount > 0)

    async def exists(self, id: UUID) -> bool:
        statement = "SELECT 1 FROM tasks WHERE id = ?"
        return await self._ask(lambda connection: connection.execute(statement, (str(id),)).fetchone() is not None)

    async def _tasks(self, statement: str, *values: str) -> Sequence[Task]:
        # In the thread: many rows take their time.
        return await self._ask(lambda connection: [_task(row) for row in connection.execute(statement, values).fetchall()])

    async def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._thread is None:
            raise StoreError("the tasks are not open")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._performed, work)

    def _performed(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = connected(self.path, self._lock_seconds)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            log.error("%s: %s", self.path, error)
            if not _is_locked(error):
                self._give_up()
            raise StoreError(f"{self.path} cannot be used ({error}); check the file, its folder and the disk") from error

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def connected(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """A connection to the file, made and brought up to date if need be. Raises `StoreError` if it is not one of ours."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite's own files beside it get the permissions of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    deadline = monotonic() + lock_seconds
    while True:
        connection = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)
        try:
            _prepare(connection, path)
            return connection
        except (sqlite3.Error, StoreError) as error:
            connection.close()
            # SQLite itself does not wait for the locks that are needed to create a file or to recover it.
            if not _is_locked(error) or monotonic() > deadline:
                raise
        sleep(0.005)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    is_empty = _pragma(connection, "page_count") == 0
    # Asked after that: a file that another process creates meanwhile has the mark with its first page.
    if _pragma(connection, "application_id") != APPLICATION_ID:
        if not is_empty:
            raise StoreError(f"{path} is a database of another kind; choose another file for the tasks with --database")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    version = _pragma(connection, "user_version")
    if version > len(MIGRATIONS):
        raise StoreError(f"{path} was written by a newer Mainspring; upgrade Mainspring or choose another file with --database")
    for migration in MIGRATIONS[version:]:
        for statement in migration:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _is_locked(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _task(row: Row) -> Task:
    id, description, created_at, completed_at = row
    ended = None if completed_at is None else datetime.fromisoformat(completed_at)
    return task(UUID(id), description, datetime.fromisoformat(created_at), ended)


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
