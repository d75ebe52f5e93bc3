"""Tasks in a PostgreSQL database. The only module that needs asyncpg.

Connections are made when they are needed, and those that the server has dropped are replaced. Every change is one statement.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from logging import getLogger
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]

from mainspring.core.errors import StoreError
from mainspring.storage.location import Location
from mainspring.storage.postgres.postgres_server import Connection, Server
from mainspring_tasks.server.task import Status, Task, make_task
from mainspring_tasks.server.task_store import SERVED_TASKS

log = getLogger(__name__)

CONNECT_SECONDS = 5.0
QUERY_SECONDS = 10.0
MOST_CONNECTIONS = 8
_COLUMNS = "id, description, created_at, completed_at"
_ADD = "INSERT INTO mainspring_tasks (id, owner, description, created_at, completed_at) VALUES ($1, $2, $3, $4, $5)"
_CHOICE = {None: "", "pending": "AND completed_at IS NULL", "completed": "AND completed_at IS NOT NULL"}


class PostgresTasks:
    """A `TaskStore` in a database. It is used between `open` and `close`, in one event loop."""

    def __init__(self, location: Location) -> None:
        self._server = Server(location)
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        await self._server.open(SERVED_TASKS)
        self._server.close()  # the pool has connections of its own

        async def connect(_: str | None, **options: object) -> Connection:
            return await self._server.connect(**options, timeout=CONNECT_SECONDS, command_timeout=QUERY_SECONDS)

        self._pool = await asyncpg.create_pool(connect=connect, min_size=0, max_size=MOST_CONNECTIONS)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            # Not gracefully: a server that is gone would keep us waiting.
            pool.terminate()

    async def add(self, owner: str, task: Task) -> None:
        await self._rows(_ADD, task.id, owner, task.description, task.created_at, task.completed_at)

    async def list(self, owner: str, status: Status | None = None) -> Sequence[Task]:
        statement = f"SELECT {_COLUMNS} FROM mainspring_tasks WHERE owner = $1 {_CHOICE[status]} ORDER BY number DESC"
        return [_task(row) for row in await self._rows(statement, owner)]

    async def reword(self, owner: str, id: UUID, description: str) -> Task | None:
        statement = f"UPDATE mainspring_tasks SET description = $3 WHERE id = $1 AND owner = $2 RETURNING {_COLUMNS}"
        return next((_task(row) for row in await self._rows(statement, id, owner, description)), None)

    async def complete(self, owner: str, id: UUID, at: datetime) -> Task | None:
        change = "completed_at = coalesce(completed_at, $3)"
        statement = f"UPDATE mainspring_tasks SET {change} WHERE id = $1 AND owner = $2 RETURNING {_COLUMNS}"
        return next((_task(row) for row in await self._rows(statement, id, owner, at)), None)

    async def delete(self, owner: str, id: UUID) -> bool:
        return bool(await self._rows("DELETE FROM mainspring_tasks WHERE id = $1 AND owner = $2 RETURNING id", id, owner))

    async def restore(self, owner: str, task: Task) -> Task | None:
        change = "SET description = excluded.description, completed_at = excluded.completed_at"
        whose = "WHERE mainspring_tasks.owner = excluded.owner"
        statement = f"{_ADD} ON CONFLICT (id) DO UPDATE {change} {whose} RETURNING {_COLUMNS}"
        rows = await self._rows(statement, task.id, owner, task.description, task.created_at, task.completed_at)
        return next((_task(row) for row in rows), None)

    async def exists(self, id: UUID) -> bool:
        return bool(await self._rows("SELECT 1 FROM mainspring_tasks WHERE id = $1", id))

    async def _rows(self, statement: str, *values: object) -> Sequence[asyncpg.Record]:
        async with self._connection() as connection:
            rows: Sequence[asyncpg.Record] = await connection.fetch(statement, *values)
            return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        if self._pool is None:
            raise StoreError("the tasks are not open")
        try:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OSError) as error:
            explained = self._server.explain(error)
            log.error("%s", explained)
            raise explained from error


def _task(row: asyncpg.Record) -> Task:
    id, description, created_at, completed_at = row
    # asyncpg has an UUID type of its own, which JSON writers do not know.
    return make_task(UUID(int=id.int), description, created_at.astimezone(UTC), completed_at and completed_at.astimezone(UTC))
