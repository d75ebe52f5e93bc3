"""Tables in a SQLite file, for copying: read at one moment, while others write to it, or filled."""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from heapq import merge
from pathlib import Path

from mainspring.core.errors import StoreError
from mainspring.storage.sqlite import Schema, connect, explain, transaction
from mainspring.storage.transfer.content import ContentKind, Counted, Row, TableForm, make_sortable


class FileRows:
    """A `RowWriter` on an open file. It reads by one connection and writes by another, unless it only reads."""

    def __init__(self, path: Path, schema: Schema, reading: sqlite3.Connection, writing: sqlite3.Connection) -> None:
        self._path, self._schema, self._reading, self._writing = path, schema, reading, writing
        reading.create_function("sort_key", 1, make_sortable, deterministic=True)

    async def count(self, table: TableForm) -> Counted:
        with self._explained():
            selects = table.form.selects or (f"SELECT 1 FROM {table.name}",)
            counts = [self._reading.execute(f"SELECT count(*) FROM ({select})").fetchone()[0] for select in selects]
            return Counted(sum(counts), self._find_mark(table))

    def _find_mark(self, table: TableForm) -> int:
        if self._reading.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone() is None:
            return 0
        found = self._reading.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).fetchone()
        return 0 if found is None else int(found[0])

    async def read(self, table: TableForm) -> AsyncIterator[Row]:
        with self._explained():
            rows: Iterator[Row] = merge(
                *[self._reading.execute(select) for select in self._selects(table)], key=table.find_sort_key()
            )
            complete = None if table.form.complete is None else table.form.complete(self._reading, table.columns)
            for row in rows:
                yield row if complete is None else complete(row)

    def _selects(self, table: TableForm) -> Sequence[str]:
        order = table.order_by("sort_key({})")
        return table.form.selects or (f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}",)

    async def change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        with self._explained(), transaction(self._writing):
            self._change(table, gone, new)

    def _change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        names = table.columns
        if table.made is not None:
            self._change(table.made.table, table.make_rows(gone), table.make_rows(new))
        delete = f"DELETE FROM {table.name} WHERE {' AND '.join([f'{name} = :{name}' for name in table.key])}"
        insert = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join([f':{name}' for name in names])})"
        for statement, rows in ((table.form.delete or delete, gone), (table.form.insert or insert, new)):
            self._writing.executemany(statement, [dict(zip(names, row, strict=True)) for row in rows])

    async def raise_mark(self, table: TableForm, mark: int) -> None:
        if not mark:
            return
        with self._explained(), transaction(self._writing):
            if self._writing.execute("SELECT 1 FROM sqlite_sequence WHERE name = ?", (table.name,)).fetchone() is None:
                self._writing.execute("INSERT INTO sqlite_sequence VALUES (?, 0)", (table.name,))
            self._writing.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (mark, table.name))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(error, self._path, self._schema) from error


@asynccontextmanager
async def open_file(path: Path, contents: Sequence[ContentKind], *, is_source: bool) -> AsyncIterator[FileRows]:
    """The file with the tables of these kinds: a source as it is now, any other made if missing. Raises `StoreError`."""
    with ExitStack() as stack:
        for content in contents:
            connection = stack.enter_context(closing(connect(path, content.schema)))
        schema = contents[0].schema
        if is_source:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            yield FileRows(path, schema, connection, connection)
            return
        reading = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        yield FileRows(path, schema, reading, connection)


def has_content(path: Path, content: ContentKind) -> bool:
    """Whether the file has tables of this kind. Raises `StoreError` if it cannot be read."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a database of Mainspring")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read ({error}); check that it is a database of Mainspring") from error
    return not names.isdisjoint([table.name for table in content.tables])
