"""Tables on a PostgreSQL server, worked on like those of a file: functions over a connection, in a thread.

The thread has an event loop of its own, which runs while a statement does. A connection that was cut is made again for the next
job, for a bounded time; a write that it was cut in fails, and whoever asked for it is told so.
"""

import re
import sqlite3
from asyncio import AbstractEventLoop, new_event_loop
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from logging import getLogger
from time import monotonic, sleep
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from mainspring.core.errors import MainspringError
from mainspring.storage.location import Location
from mainspring.storage.postgres import postgres_server as server_module
from mainspring.storage.postgres.postgres_server import Connection, Server, is_lost
from mainspring.storage.postgres.run_tables import escape, unescape
from mainspring.storage.sql import ServerTables, Values
from mainspring.storage.sqlite import Worker

log = getLogger(__name__)

PREFIX = "mainspring_"
# What a statement of ours may have that PostgreSQL writes otherwise. Texts and names in quotes are skipped: a question mark in
# them is one.
_MARKS = r"'[^']*'|\"[^\"]*\"|(?P<place>\?)|(?<![:\w]):(?P<name>[a-z_]\w*)|(?P<hint>\bINDEXED BY \w+|\bCROSS\b)"
_ANSWERS = re.compile(r"^\s*(?:SELECT|WITH)\b|\bRETURNING\b")


class _Cursor:
    def __init__(self, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._rows, self.rowcount = iter(rows), rowcount

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


class PostgresConnection:
    """A connection with the methods of one to a file."""

    def __init__(self, loop: AbstractEventLoop, connection: Connection, tables: tuple[str, ...]) -> None:
        self._loop, self._connection, self._tables = loop, connection, tables

    def execute(self, statement: str, values: Values = (), /) -> _Cursor:
        text, names = _translate(statement, self._tables)
        given = [_encode(values[name]) for name in names] if isinstance(values, dict) else [_encode(each) for each in values]
        try:
            if not _ANSWERS.search(text):
                return _Cursor((), _count(self._run(self._connection.execute(text, *given))))
            rows = self._run(self._connection.fetch(text, *given))
        except asyncpg.ForeignKeyViolationError as error:
            raise sqlite3.IntegrityError(f"FOREIGN KEY constraint failed: {error.constraint_name}") from None
        except asyncpg.IntegrityConstraintViolationError as error:
            raise sqlite3.IntegrityError(f"constraint failed: {error.constraint_name}") from None
        return _Cursor([tuple([_decode(value) for value in row]) for row in rows], len(rows))

    def executemany(self, statement: str, rows: Sequence[Any], /) -> _Cursor:
        return _Cursor((), sum([self.execute(statement, row).rowcount for row in rows]))

    @contextmanager
    def begin(self) -> Iterator[None]:
        self._run(self._connection.execute("BEGIN"))
        try:
            yield
            self._run(self._connection.execute("COMMIT"))
        except BaseException:
            with suppress(Exception):  # the connection may be gone, and all of it with it
                self._run(self._connection.execute("ROLLBACK"))
            raise

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


class PostgresDatabase(Worker[PostgresConnection]):
    """Tables of one kind on a server. Making one has no effect."""

    def __init__(self, location: Location, tables: ServerTables, name: str) -> None:
        super().__init__(name)
        self._server = Server(location)
        self._tables = tables

    @contextmanager
    def connect(self) -> Iterator[PostgresConnection]:
        loop = new_event_loop()
        try:
            connection = loop.run_until_complete(self._connect())
            try:
                yield PostgresConnection(loop, connection, self._tables.tables)
            finally:
                connection.terminate()
                # Lets the transport say goodbye.
                loop.run_until_complete(_pause())
        finally:
            loop.close()

    async def _connect(self) -> Connection:
        until = monotonic() + server_module.PATIENCE_SECONDS
        while True:
            try:
                if self.is_open:
                    # Not looked at again: a newer version may have added to the tables meanwhile.
                    return await self._server.connect()
                await self._server.open(self._tables)
                return self._server.take()
            except MainspringError:
                raise  # what is wrong at the start is for a person to mend
            except Exception as error:  # asyncpg's are many; later it may be a restart
                if monotonic() > until or not is_lost(error):
                    raise self._server.explain(error) from error
            sleep(0.2)  # noqa: ASYNC251 - the thread has nothing else to do

    def begin(self, connection: PostgresConnection) -> AbstractContextManager[object]:
        return connection.begin()

    def explain(self, error: Exception) -> MainspringError:
        log.error("%s: %s: %s", self._server.name, type(error).__name__, error)
        return self._server.explain(error)

    def is_damaged(self, error: Exception) -> bool:
        return is_lost(error)


async def _pause() -> None:
    return


@lru_cache(1000)
def _translate(statement: str, tables: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The statement as PostgreSQL reads it, its tables by the names that they have there, and the names of its values in their
    order."""
    names: list[str] = []
    places = 0

    def replace(found: "re.Match[str]") -> str:
        nonlocal places
        if found["hint"]:
            return ""
        if found["table"]:
            return PREFIX + found[0]
        if found["place"]:
            places += 1
            return f"${places}"
        if (name := found["name"]) is None:
            return found[0]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    ours = "|".join([table.removeprefix(PREFIX) for table in tables])
    return re.sub(rf"{_MARKS}|(?P<table>\b(?:{ours})\b)", replace, statement), tuple(names)


def _encode(value: object) -> object:
    match value:
        case str():
            return escape(value)
        case bool():
            return int(value)
    return value


def _decode(value: Any) -> Any:
    return unescape(value) if isinstance(value, str) else value


def _count(status: str) -> int:
    """How many rows a statement changed, as the server says: `INSERT 0 3`, `UPDATE 1`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0
