"""Copies tables so that the target has what the source has, whatever it had before.

Both are read in the order of their keys. Rows that only the source has are added, those that only the target has are removed, and
what is the same is left alone: so a copy that was interrupted goes on where it stopped, and one that is made again brings what
has changed meanwhile. Afterwards the target is read anew, and its rows must have the same hash.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.storage.transfer.content import Row, RowReader, RowWriter, TableForm, Value

ROWS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 4_000_000
Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is done, how many rows of it are, and how many there are."""


class CopiedTable(Struct, frozen=True):
    """What a table has on both sides: its rows, their hash, and the highest number it ever gave to one."""

    name: str
    count: int
    digest: str
    mark: int = 0


class TableCopier:
    """Copies from one place to another; `tell` is told how far it is."""

    def __init__(self, source: RowReader, target: RowWriter, tell: Tell) -> None:
        self._source, self._target, self._tell = source, target, tell

    async def copy(self, table: TableForm, owners: "Owners") -> CopiedTable:
        """Raises `StoreError` if the target does not have the same rows then."""
        counted = await self._source.count(table)
        digest = _Digest()
        changes = _Changes(self._target, table)
        theirs = self._target.read(table)
        other = await anext(theirs, None)
        find_key = table.find_sort_key()
        async for row in self._source.read(table):
            if not owners.admit(table, row):
                continue
            digest.add(row)
            key = find_key(row)
            while other is not None and find_key(other) < key:
                await changes.remove(other)
                other = await anext(theirs, None)
            if other is None or find_key(other) != key:
                await changes.add(row)
            else:
                if other != row:
                    await changes.remove(other)
                    await changes.add(row)
                other = await anext(theirs, None)
            self._tell(f"copying {table.name}", digest.count, counted.count)
        while other is not None:
            await changes.remove(other)
            other = await anext(theirs, None)
        await changes.flush()
        await self._target.raise_mark(table, counted.mark)
        copied = CopiedTable(table.name, digest.count, digest.text, counted.mark)
        await check_rows(self._target, table, copied, self._tell)
        return copied


async def check_rows(reader: RowReader, table: TableForm, wanted: CopiedTable, tell: Tell) -> None:
    """Raises `StoreError` if the rows are not these."""
    digest = _Digest()
    async for row in reader.read(table):
        digest.add(row)
        tell(f"checking {table.name}", digest.count, wanted.count)
    if (digest.count, digest.text) != (wanted.count, wanted.digest):
        raise StoreError(
            f"the table {table.name} has {digest.count} rows where {wanted.count} are wanted, or others than those; "
            "if a server writes to the target, stop it and try again; if it is a backup, it is damaged: take another one"
        )


class Owners:
    """The values of columns that rows of other tables refer to."""

    def __init__(self, tables: Sequence[TableForm]) -> None:
        self._seen: dict[tuple[str, str], set[Value]] = {table.owner: set() for table in tables if table.owner is not None}

    def admit(self, table: TableForm, row: Row) -> bool:
        """Whether the row, which is remembered, has the row that it refers to."""
        for (name, column), values in self._seen.items():
            if name == table.name:
                values.add(row[table.columns.index(column)])
        return table.owner is None or row[table.columns.index(table.owner[1])] in self._seen[table.owner]


class _Digest:
    def __init__(self) -> None:
        self._hash, self.count = sha256(), 0

    def add(self, row: Row) -> None:
        self._hash.update(msgspec.msgpack.encode(row))
        self.count += 1

    @property
    def text(self) -> str:
        return self._hash.hexdigest()


class _Changes:
    """Changes of a table that are made together."""

    def __init__(self, target: RowWriter, table: TableForm) -> None:
        self._target, self._table = target, table
        self._gone: list[Row] = []
        self._new: list[Row] = []
        self._size = 0

    async def remove(self, row: Row) -> None:
        self._gone.append(row)
        await self._grow(row)

    async def add(self, row: Row) -> None:
        self._new.append(row)
        await self._grow(row)

    async def _grow(self, row: Row) -> None:
        self._size += sum([len(value) for value in row if isinstance(value, str | bytes)])
        if len(self._gone) + len(self._new) >= ROWS_AT_ONCE or self._size > BYTES_AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        if self._gone or self._new:
            await self._target.change(self._table, self._gone, self._new)
        self._gone, self._new, self._size = [], [], 0
