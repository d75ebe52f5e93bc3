"""One way to work with a few tables, in a file or on a PostgreSQL server: functions over a connection, done by a thread.

What such a function may ask of a connection is `SqlConnection`. Its statements have `?` or `:name` for values, and keep to what
both understand: `ON CONFLICT` rather than `OR IGNORE`, `DOUBLE PRECISION` rather than `REAL`. On a server `INDEXED BY` is left
out. The tables are given twice: as a `Schema` for a file, and as `ServerTables` for a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.storage.location import Location
from mainspring.storage.sqlite import LOCK_SECONDS, Database, Schema, Worker

if TYPE_CHECKING:
    from mainspring.storage.postgres import sql_database
else:
    sql_database = LateModule("mainspring.storage.postgres.sql_database")

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class SqlCursor(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """What `sqlite3.Connection` has, as far as it is used. A value that cannot be is told by `sqlite3.IntegrityError`."""

    def execute(self, statement: str, values: Values = ..., /) -> SqlCursor: ...

    def executemany(self, statement: str, rows: Sequence[Any], /) -> SqlCursor: ...


SqlWorker: TypeAlias = Worker[SqlConnection]


class ServerTables(Struct, frozen=True):
    """The tables of one kind of content on a server: scripts, each a migration, and their names."""

    name: str
    migrations: tuple[str, ...]
    tables: tuple[str, ...]


def choose_database(
    location: Location | None, schema: Schema, tables: ServerTables, *, lock_seconds: float = LOCK_SECONDS
) -> SqlWorker:
    """The database there, which is not open yet; without a location, one in memory. Raises `InvalidRequest`."""
    if location is None or location.file is not None:
        file = None if location is None else location.file
        return cast(SqlWorker, Database(file, schema, lock_seconds=lock_seconds))
    try:
        make_database = sql_database.PostgresDatabase
    except ImportError:
        raise InvalidRequest("PostgreSQL needs another package: pip install 'mainspring[postgres]'", param="database") from None
    return cast(SqlWorker, make_database(location, tables, schema.name))
