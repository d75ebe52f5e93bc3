"""What is copied, table by table, as one description that files, servers and backups share.

A row is copied in the form that the table of a file has: its columns, in their order, as `None`, numbers, text or bytes. What a
server has besides (`TableForm.derived`) is made from the row. The columns and the key of a table are those that its migrations
give it, so that a new column needs no word here; a column that only one side has, and that nothing derives, is refused.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.storage.location import Location
from mainspring.storage.postgres.run_tables import escape
from mainspring.storage.sql import ServerTables
from mainspring.storage.sqlite import Schema, connect

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Value, ...]
Named: TypeAlias = Mapping[str, Value]
Complete: TypeAlias = Callable[[Row], Row]


class Derived(Struct, frozen=True):
    """A column that only a server has. `make` gets the row by its columns; `sql` is what a statement makes of that, `{}`."""

    make: Callable[[Named], object]
    sql: str = "{}"


class FileLayout(Struct, frozen=True):
    """How a table is kept in a file, where that is not plainly as its rows are copied.

    `selects` are questions whose rows are in the order of the key; they are merged. `complete` makes a function, given the
    columns, that returns a row with what it left to others.
    """

    selects: tuple[str, ...] = ()
    insert: str = ""
    delete: str = ""
    complete: Callable[[sqlite3.Connection, Sequence[str]], Complete] | None = None


class ServedForm(Struct, frozen=True):
    """How a table is kept on a server, where that is not plainly as its rows are copied: given the columns, a row, and the values
    of `beside`, `complete` returns it with what it left to others."""

    beside: tuple[str, ...] = ()
    complete: Callable[[Sequence[str], Row, Row], Row] | None = None


class TableForm(Struct, frozen=True, kw_only=True):
    """A table that is copied. On a server its name has a prefix. `made` are rows of another table that follow from a row;
    `replaced` are columns that a server has not, because it has others for them. `owner` is the column of another table without
    whose value a row, by its own column of that name, is not copied."""

    name: str
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    defaults: Row = ()
    derived: Mapping[str, Derived] = {}
    replaced: tuple[str, ...] = ()
    form: FileLayout = FileLayout()
    served: ServedForm = ServedForm()
    made: "Made | None" = None
    owner: tuple[str, str] | None = None

    def find_sort_key(self) -> Callable[[Row], Any]:
        """What makes of a row that which rows are sorted by, the same wherever they are."""
        take = itemgetter(*[self.columns.index(name) for name in self.key])
        types = dict(zip(self.columns, self.types, strict=True))
        if "TEXT" not in [types[name] for name in self.key]:
            return take
        return lambda row: [make_sortable(row[self.columns.index(name)]) for name in self.key]

    def make_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of the other table that follow from these."""
        made = self.made
        return [] if made is None else [each for row in rows for each in made.make(dict(zip(self.columns, row, strict=True)))]

    def order_by(self, text: str) -> str:
        """The key as a list for `ORDER BY`; `text` is how a text, `{}`, is sorted."""
        types = dict(zip(self.columns, self.types, strict=True))
        return ", ".join([text.format(name) if types[name] == "TEXT" else name for name in self.key])


def make_sortable(value: Value) -> Any:
    """A text as a server sorts it."""
    return escape(value) if isinstance(value, str) else value


class Made(Struct, frozen=True):
    table: TableForm
    make: Callable[[Named], Sequence[Row]]


class Counted(Struct, frozen=True):
    """How many rows a table has, and the highest number that it has ever given to one; 0 if it gives none."""

    count: int
    mark: int = 0


class RowReader(Protocol):
    """Tables as they were at one moment."""

    async def count(self, table: TableForm) -> Counted: ...

    def read(self, table: TableForm) -> AsyncIterator[Row]:
        """The rows in the order of the key."""


class RowWriter(RowReader, Protocol):
    """Tables that are filled. What is read is as it was when the question was asked."""

    async def change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        """Takes rows out and puts others in, all or nothing."""

    async def raise_mark(self, table: TableForm, mark: int) -> None:
        """Has the table never give this number, or a lower one, or one that is there, to a row."""


class ContentKind(Struct, frozen=True, kw_only=True):
    """One kind of content: its tables in an order in which references hold, and those that are not copied, each with the reason.

    `settle` are statements for a server when all rows are there. `open_file` is for files that are no plain SQLite files.
    """

    name: str
    schema: Schema
    served: ServerTables
    tables: tuple[TableForm, ...]
    left: Mapping[str, str] = {}
    settle: tuple[str, ...] = ()
    is_escaped: bool = True
    open_file: "Callable[[Path], AbstractAsyncContextManager[RowWriter]] | None" = None

    def describe(self) -> tuple[TableForm, ...]:
        """The tables with the columns and keys that the migrations give them."""
        with closing(connect(None, self.schema)) as blank:
            return tuple([_describe(blank, table) for table in self.tables])


class Placed(Struct, frozen=True):
    """A kind of content, and where it is."""

    content: ContentKind
    location: Location


def _describe(blank: sqlite3.Connection, table: TableForm) -> TableForm:
    if table.columns:
        return table
    found = blank.execute(f"PRAGMA table_info({table.name})").fetchall()
    _, names, types, _, defaults, places = zip(*found, strict=True)
    return replace(
        table,
        columns=names,
        types=types,
        key=tuple([name for place, name in sorted(zip(places, names, strict=True)) if place]),
        defaults=tuple([blank.execute(f"SELECT {default or 'NULL'}").fetchone()[0] for default in defaults]),
    )
