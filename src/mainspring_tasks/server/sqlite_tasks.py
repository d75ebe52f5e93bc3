"""Tasks in one SQLite file, which several processes may share. Every change is one statement."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

from mainspring.storage.sqlite import LOCK_SECONDS, Database, Migration, Schema
from mainspring_tasks.server.task import Status, Task, make_task

_MIGRATIONS: tuple[Migration, ...] = (
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
TASKS = Schema(
    application_id=0x4D73_746B,  # "Mstk"
    migrations=_MIGRATIONS,
    tables=("tasks",),
    name="the file of the tasks",
)
_COLUMNS = "id, description, created_at, completed_at"
_ADD = "INSERT INTO tasks (id, owner, description, created_at, completed_at) VALUES (?, ?, ?, ?, ?)"
_CHOICE = {None: "", "pending": "AND completed_at IS NULL", "completed": "AND completed_at IS NOT NULL"}

Row = tuple[str, str, str, str | None]


class SqliteTasks:
    """A `TaskStore` in a file, readable for its owner alone. It is used between `open` and `close`, in one event loop."""

    def __init__(self, path: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = path.absolute()
        self._database = Database(self.path, TASKS, lock_seconds=lock_seconds)

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def add(self, owner: str, task: Task) -> None:
        await self._database.write(lambda connection: connection.execute(_ADD, _values(owner, task)).rowcount)

    async def list(self, owner: str, status: Status | None = None) -> Sequence[Task]:
        statement = f"SELECT {_COLUMNS} FROM tasks WHERE owner = ? {_CHOICE[status]} ORDER BY number DESC"
        return await self._database.read(_fetch, statement, owner)

    async def reword(self, owner: str, id: UUID, description: str) -> Task | None:
        statement = f"UPDATE tasks SET description = ? WHERE id = ? AND owner = ? RETURNING {_COLUMNS}"
        return await self._change(statement, description, str(id), owner)

    async def complete(self, owner: str, id: UUID, at: datetime) -> Task | None:
        change = "completed_at = coalesce(completed_at, ?)"
        statement = f"UPDATE tasks SET {change} WHERE id = ? AND owner = ? RETURNING {_COLUMNS}"
        return await self._change(statement, at.isoformat(), str(id), owner)

    async def delete(self, owner: str, id: UUID) -> bool:
        statement = "DELETE FROM tasks WHERE id = ? AND owner = ?"
        return await self._database.erase(lambda connection: connection.execute(statement, (str(id), owner)).rowcount > 0)

    async def restore(self, owner: str, task: Task) -> Task | None:
        change = "SET description = excluded.description, completed_at = excluded.completed_at WHERE owner = excluded.owner"
        statement = f"{_ADD} ON CONFLICT (id) DO UPDATE {change} RETURNING {_COLUMNS}"
        return await self._change(statement, *_values(owner, task))

    async def exists(self, id: UUID) -> bool:
        statement = "SELECT 1 FROM tasks WHERE id = ?"
        return await self._database.read(lambda connection: connection.execute(statement, (str(id),)).fetchone() is not None)

    async def _change(self, statement: str, *values: str | None) -> Task | None:
        return next(iter(await self._database.write(_fetch, statement, *values)), None)


def _values(owner: str, task: Task) -> tuple[str | None, ...]:
    ended = None if task.completed_at is None else task.completed_at.isoformat()
    return (str(task.id), owner, task.description, task.created_at.isoformat(), ended)


def _fetch(connection: sqlite3.Connection, statement: str, *values: str | None) -> Sequence[Task]:
    return [_task(row) for row in connection.execute(statement, values).fetchall()]


def _task(row: Row) -> Task:
    id, description, created_at, completed_at = row
    ended = None if completed_at is None else datetime.fromisoformat(completed_at)
    return make_task(UUID(id), description, datetime.fromisoformat(created_at), ended)
