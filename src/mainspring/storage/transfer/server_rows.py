"""Tables on a PostgreSQL server, for copying: read at one moment, while others write to them, or filled."""

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import StoreError
from mainspring.storage.location import Location
from mainspring.storage.postgres.postgres_server import MIGRATION_LOCK, SCHEMAS, UNFINISHED, Connection, Server
from mainspring.storage.postgres.run_tables import escape, unescape
from mainspring.storage.postgres.sql_database import PREFIX
from mainspring.storage.transfer.content import ContentKind, Counted, Row, TableForm, Value

PAGE_ROWS: Final = 100
LONG_SECONDS: Final = 6 * 3600.0
_COLUMNS: Final = """
    SELECT attname, atttypid::regtype::text, attidentity <> '' FROM pg_attribute
    WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_MARK: Final = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, $2)::regclass), 0)"


class ServerColumn(Struct, frozen=True):
    name: str
    type: str
    is_counted: bool


class ServerRows:
    """A `RowWriter` on a server. It reads by one connection and writes by another, unless it only reads."""

    def __init__(self, server: Server, reading: Connection, writing: Connection, contents: Sequence[ContentKind]) -> None:
        self._server, self._reading, self._writing = server, reading, writing
        # The task server writes its texts as they are.
        self._plain = {table.name for content in contents if not content.is_escaped for table in content.tables}
        self._cursors = count(1)
        self._columns: dict[str, list[ServerColumn]] = {}

    async def count(self, table: TableForm) -> Counted:
        with self._server.explain_errors():
            found = await self._reading.fetchval(f"SELECT count(*) FROM {PREFIX}{table.name}", timeout=LONG_SECONDS)
            mark = 0
            for column in await self._list_columns(table):
                if column.is_counted:
                    mark = await self._reading.fetchval(_MARK, PREFIX + table.name, column.name)
            return Counted(found, mark)

    async def read(self, table: TableForm) -> AsyncIterator[Row]:
        with self._server.explain_errors():
            types = {column.name: column.type for column in await self._list_columns(table)}
            take = [self._find_forms(table, types[name])[0] for name in table.columns]
            cursor = f"rows_{next(self._cursors)}"
            order = table.order_by('{} COLLATE "C"')
            told = ", ".join([*table.columns, *table.served.beside])
            select = f"SELECT {told} FROM {PREFIX}{table.name} ORDER BY {order}"
            complete, width = table.served.complete, len(table.columns)
            async with self._reading.transaction():
                await self._reading.execute(f"DECLARE {cursor} NO SCROLL CURSOR FOR {select}", timeout=LONG_SECONDS)
                while rows := await self._reading.fetch(f"FETCH {PAGE_ROWS} FROM {cursor}", timeout=LONG_SECONDS):
                    for row in rows:
                        made = tuple([None if value is None else form(value) for form, value in zip(take, row, strict=False)])
                        yield made if complete is None else complete(table.columns, made, tuple(row)[width:])
                await self._reading.execute(f"CLOSE {cursor}")

    async def change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        with self._server.explain_errors():
            async with self._writing.transaction():
                await self._change(table, gone, new)

    async def _change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        if table.made is not None:
            await self._change(table.made.table, table.make_rows(gone), table.make_rows(new))
        known = await self._list_columns(table)
        if missing := {*table.columns, *table.derived} - {*table.replaced, *[column.name for column in known]}:
            raise StoreError(f"the table {PREFIX}{table.name} has no column {min(missing)}; upgrade Mainspring there first")
        key = [column for column in known if column.name in (*table.key, "key")]
        where = " AND ".join([f"{column.name} = ${place}" for place, column in enumerate(key, 1)])
        await self._execute(table, f"DELETE FROM {PREFIX}{table.name} WHERE {where}", key, gone)
        given = [column for column in known if column.name in table.columns or column.name in table.derived]
        forms = [table.derived[column.name].sql if column.name in table.derived else "{}" for column in given]
        values = ", ".join([form.replace("{}", f"${place}") for place, form in enumerate(forms, 1)])
        into = f"{PREFIX}{table.name} ({', '.join([column.name for column in given])})"
        await self._execute(table, f"INSERT INTO {into} OVERRIDING SYSTEM VALUE VALUES ({values})", given, new)

    async def _execute(self, table: TableForm, statement: str, columns: Sequence[ServerColumn], rows: Sequence[Row]) -> None:
        if not rows:
            return
        makers = [self._find_maker(table, column) for column in columns]
        named = [dict(zip(table.columns, row, strict=True)) for row in rows]
        values = [[make(row) for make in makers] for row in named]
        await self._writing.executemany(statement, values, timeout=LONG_SECONDS)

    def _find_maker(self, table: TableForm, column: ServerColumn) -> Callable[[dict[str, Value]], object]:
        if column.name in table.derived:
            return table.derived[column.name].make
        give = self._find_forms(table, column.type)[1]
        return lambda row: None if row[column.name] is None else give(row[column.name])

    def _find_forms(self, table: TableForm, type: str) -> tuple[Callable[[Any], Value], Callable[[Any], object]]:
        if type == "text" and table.name in self._plain:
            return str, str
        return _FORMS.get(type, (_keep, _keep))

    async def raise_mark(self, table: TableForm, mark: int) -> None:
        with self._server.explain_errors():
            for column in await self._list_columns(table):
                if column.is_counted:
                    highest = f"(SELECT greatest($3::bigint, max({column.name})) FROM {PREFIX}{table.name})"
                    await self._writing.execute(
                        f"SELECT setval(pg_get_serial_sequence($1, $2), greatest({highest}, 1), {highest} > 0)",
                        PREFIX + table.name,
                        column.name,
                        mark,
                    )

    async def settle(self, contents: Sequence[ContentKind]) -> None:
        """Does what is left once all rows are there."""
        with self._server.explain_errors():
            for statement in [each for content in contents for each in content.settle]:
                await self._writing.execute(statement, timeout=LONG_SECONDS)

    async def _list_columns(self, table: TableForm) -> list[ServerColumn]:
        if table.name not in self._columns:
            rows = await self._reading.fetch(_COLUMNS, PREFIX + table.name)
            self._columns[table.name] = [ServerColumn(*row) for row in rows]
        return self._columns[table.name]


@asynccontextmanager
async def open_server(location: Location, contents: Sequence[ContentKind], *, is_source: bool) -> AsyncIterator[ServerRows]:
    """The server with the tables of these kinds: a source as it is at this moment, any other made if missing. Raises
    `StoreError`. A source may be a replica, if its tables are those of this version."""
    if not is_source:
        await _begin_copy(location)  # before there is a table that somebody could use
    if not is_source or not await _is_to_be_read_only(location, contents):
        await make_tables(replace(location, is_unfinished=not is_source), contents)
    server = Server(location)
    with server.explain_errors():
        reading = await server.connect()
        writing = reading if is_source else await server.connect()
    try:
        if not is_source:
            rows = ServerRows(server, reading, writing, contents)
            yield rows
            await rows.settle(contents)
            return
        async with reading.transaction(isolation="repeatable_read", readonly=True):
            yield ServerRows(server, reading, reading, contents)
    finally:
        for connection in {reading, writing}:
            connection.terminate()


async def _is_to_be_read_only(location: Location, contents: Sequence[ContentKind]) -> bool:
    """Whether nothing can be written there. Raises `StoreError` if the tables there are not those of this version."""
    async with _ask(location) as connection:
        if await connection.fetchval("SELECT current_setting('transaction_read_only')") != "on":
            return False
        versions = dict(await connection.fetch("SELECT name, version FROM mainspring_schemas"))
        if UNFINISHED in versions:
            raise StoreError(f"{location} is being filled; wait until that is complete")
        for content in contents:
            known, found = len(content.served.migrations), versions.get(content.served.name, 0)
            if found != known:
                remedy = "upgrade Mainspring" if found > known else "`mainspring upgrade` brings those of its primary up to date"
                raise StoreError(
                    f"{location} can only be read, and its tables of {content.name} are of another version ({found}, this one "
                    f"knows {known}); {remedy}"
                )
    return True


async def make_tables(location: Location, contents: Sequence[ContentKind]) -> None:
    """Makes the tables of these kinds, and brings those that are there up to date. Raises `StoreError`."""
    for content in contents:
        server = Server(location)
        await server.open(content.served)
        server.close()


async def _begin_copy(location: Location) -> None:
    async with _ask(location) as connection, connection.transaction():
        await Server(location).check(connection)
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        await connection.execute(SCHEMAS)
        await connection.execute("INSERT INTO mainspring_schemas VALUES ($1, 0) ON CONFLICT DO NOTHING", UNFINISHED)


async def finish_server(location: Location) -> None:
    """Lets the database be used in which a copy was made."""
    async with _ask(location) as connection:
        await connection.execute("DELETE FROM mainspring_schemas WHERE name = $1", UNFINISHED)


async def find_filled(location: Location, contents: Sequence[ContentKind]) -> str | None:
    """A table of these kinds that has rows, unless a copy was begun there; None if there is none. Raises `StoreError`."""
    async with _ask(location) as connection:
        if await connection.fetchval("SELECT to_regclass('mainspring_schemas')") is not None:
            begun = "SELECT 1 FROM mainspring_schemas WHERE name = $1"
            if await connection.fetchval(begun, UNFINISHED) is not None:
                return None
        for name in [PREFIX + table.name for content in contents for table in content.tables]:
            is_there = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name)
            if is_there and await connection.fetchval(f"SELECT 1 FROM {name} LIMIT 1") is not None:
                return name
    return None


async def has_served(location: Location, content: ContentKind) -> bool:
    """Whether the server has tables of this kind. Raises `StoreError`."""
    async with _ask(location) as connection:
        found = "SELECT count(to_regclass(name)) FROM unnest($1::text[]) AS name"
        return bool(await connection.fetchval(found, [PREFIX + table.name for table in content.tables]))


@asynccontextmanager
async def _ask(location: Location) -> AsyncIterator[Connection]:
    server = Server(location)
    with server.explain_errors():
        connection = await server.connect()
        try:
            yield connection
        finally:
            connection.terminate()


def _keep(value: Any) -> Any:
    return value


def _pack(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _unpack(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packed) // 4}f", packed)


# How values of a type are read and written.
_FORMS: Final[dict[str, tuple[Callable[[Any], Value], Callable[[Any], object]]]] = {
    "text": (unescape, escape),
    "boolean": (int, bool),
    "uuid": (str, UUID),
    "timestamp with time zone": (lambda moment: moment.astimezone(UTC).isoformat(), datetime.fromisoformat),
    "real[]": (_pack, _unpack),
}
