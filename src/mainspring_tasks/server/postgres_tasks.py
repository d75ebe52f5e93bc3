"""Tasks in a PostgreSQL database. The only module that needs asyncpg.

Connections are made when they are needed, and those that the server has dropped are replaced. Every change is one statement. The
tables are prefixed, so they can live beside others; a table of its own counts the migrations.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from logging import getLogger
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]

from mainspring.core.errors import StoreError
from mainspring.storage.location import parse_location
from mainspring.storage.postgres.postgres_server import Connection, Server
from mainspring_tasks.server.task import Status, Task, make_task

log = getLogger(__name__)

CONNECT_SECONDS = 5.0
QUERY_SECONDS = 10.0
MOST_CONNECTIONS = 8
# Any number, as long as all who migrate use the same.
MIGRATION_LOCK = 0x4D73_746B
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE mainspring_tasks (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id UUID NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        description TEXT NOT NULL,
        created_at TIMESTAMPTZ NOT NULL,
        completed_at TIMESTAMPTZ
    );
    CREATE INDEX mainspring_tasks_by_owner ON mainspring_tasks (owner, number);
    """,
)
_COLUMNS = "id, description, created_at, completed_at"
_ADD = "INSERT INTO mainspring_tasks (id, owner, description, created_at, completed_at) VALUES ($1, $2, $3, $4, $5)"
_CHOICE = {None: "", "pending": "AND completed_at IS NULL", "completed": "AND completed_at IS NOT NULL"}


class PostgresTasks:
    """A `TaskStore` in a database. It is used between `open` and `close`, in one event loop."""

    def __init__(self, url: str) -> None:
        self._server = Server(parse_location(url))
        # The URL may hold a password; this much may be told.
        self._name = urlsplit(url).path.rpartition("/")[2] or "postgres"
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        # Nothing is connected yet.
        async def connect(_: str | None, **options: object) -> Connection:
            return await self._server.connect(**options, timeout=CONNECT_SECONDS, command_timeout=QUERY_SECONDS)

        self._pool = await asyncpg.create_pool(connect=connect, min_size=0, max_size=MOST_CONNECTIONS)
        try:
            async with self._connection() as connection:
                await _migrate(connection)
        except StoreError:
            await self.close()
            raise

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
        except ValueError:
            # Its words quote the part of the URL that is at fault, which may be the password.
            raise StoreError("the postgresql:// URL of --database is not right; write special characters in it as %XX") from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            log.error("database %s: %s: %s", self._name, type(error).__name__, error)
            raise StoreError(
                f"the PostgreSQL database `{self._name}` cannot be used ({error or type(error).__name__}); check that it runs, "
                "and the URL of --database"
            ) from error


async def _migrate(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        await connection.execute("CREATE TABLE IF NOT EXISTS mainspring_tasks_schema (version INTEGER NOT NULL)")
        version = await connection.fetchval("SELECT coalesce(max(version), 0) FROM mainspring_tasks_schema")
        if version > len(MIGRATIONS):
            raise StoreError("the database was written by a newer Mainspring; upgrade Mainspring or choose another database")
        for number, migration in enumerate(MIGRATIONS[version:], version + 1):
            await connection.execute(migration)
            await connection.execute("INSERT INTO mainspring_tasks_schema (version) VALUES ($1)", number)


def _task(row: asyncpg.Record) -> Task:
    id, description, created_at, completed_at = row
    # asyncpg has an UUID type of its own, which JSON writers do not know.
    return make_task(UUID(int=id.int), description, created_at.astimezone(UTC), completed_at and completed_at.astimezone(UTC))
