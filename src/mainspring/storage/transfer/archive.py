"""A backup: one SQLite file with the rows of every table as they are copied, and a manifest that says what is in it.

The manifest is written last, so a file without one is not complete. It has the number of rows and a hash of each table; whoever
reads a backup compares them.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.storage.sqlite import Schema
from mainspring.storage.transfer.content import Counted, FileLayout, Row, TableForm
from mainspring.storage.transfer.copy_rows import CopiedTable, Tell, check_rows
from mainspring.storage.transfer.file_rows import FileRows

FORMAT: Final = 1
_SCHEMA: Final = Schema(application_id=0x4D73_626B, migrations=(), tables=(), remedy="take another backup")  # "Msbk"


class TableManifest(Struct, frozen=True):
    count: int
    digest: str
    mark: int = 0


class Manifest(Struct, frozen=True):
    """What a backup holds: the names of its kinds of content, and its tables by name."""

    made_at: float
    contents: tuple[str, ...]
    tables: Mapping[str, TableManifest]
    format: int = FORMAT


class ArchiveRows(FileRows):
    """A `RowWriter` on a backup. One that is new has no manifest yet."""

    def __init__(self, path: Path, connection: sqlite3.Connection, manifest: Manifest | None = None) -> None:
        super().__init__(path, _SCHEMA, connection, connection)
        self.manifest = manifest

    @property
    def contents(self) -> tuple[str, ...]:
        """The kinds of content that it has."""
        return () if self.manifest is None else self.manifest.contents

    def has_document(self, kind: str) -> bool:
        """Whether it has a document of this kind."""
        if self.manifest is None or "documents" not in self.manifest.tables or not self.manifest.tables["documents"].count:
            return False
        return bool(self._reading.execute("SELECT EXISTS (SELECT 1 FROM documents WHERE kind = ?)", (kind,)).fetchone()[0])

    async def count(self, table: TableForm) -> Counted:
        known = None if self.manifest is None else self.manifest.tables.get(table.name)
        return Counted(0) if known is None else Counted(known.count, known.mark)

    async def read(self, table: TableForm) -> AsyncIterator[Row]:
        kept = self.find_kept(table)
        # What a column of today holds for rows of before it was there, its default says.
        usual = dict(zip(table.columns, table.defaults or (None,) * len(table.columns), strict=True))
        if kept.columns:
            async for row in super().read(kept):
                yield (
                    row
                    if kept.columns == table.columns
                    else tuple({**usual, **dict(zip(kept.columns, row, strict=True))}.values())
                )

    def find_kept(self, table: TableForm) -> TableForm:
        """The table as it was when the backup was made. Raises `StoreError` if that has more than today's."""
        found = tuple([name for _, name, *_ in self._reading.execute(f"PRAGMA table_info({table.name})")])
        if unknown := set(found) - set(table.columns):
            raise StoreError(f"{self._path} was made by a newer Mainspring (column {min(unknown)}); upgrade Mainspring first")
        types = dict(zip(table.columns, table.types, strict=True))
        key = tuple([name for name in table.key if name in found])
        return replace(
            table, columns=found, types=tuple([types[name] for name in found]), key=key, defaults=(), form=FileLayout()
        )

    async def check(self, table: TableForm, tell: Tell) -> CopiedTable:
        """What the backup has of a table. Raises `StoreError` if that is not what was put into it."""
        known = None if self.manifest is None else self.manifest.tables.get(table.name)
        if known is None:
            return CopiedTable(table.name, 0, "")
        wanted = CopiedTable(table.name, known.count, known.digest, known.mark)
        await check_rows(self, self.find_kept(table), wanted, tell)
        return wanted

    async def change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        columns = [f"{name} {type}" for name, type in zip(table.columns, table.types, strict=True)]
        self._writing.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(columns)})")
        await super().change(replace(table, form=FileLayout(), made=None), gone, new)

    async def raise_mark(self, table: TableForm, mark: int) -> None:
        """The manifest says it."""

    def finish(self, manifest: Manifest) -> None:
        self._writing.execute("CREATE TABLE manifest (body BLOB NOT NULL)")
        self._writing.execute("INSERT INTO manifest VALUES (?)", (msgspec.json.encode(manifest),))


@contextmanager
def create_archive(path: Path) -> Iterator[ArchiveRows]:
    """A new backup, which is there under its name only once it is complete. Raises `InvalidRequest` if the file is there, and
    `StoreError`."""
    unfinished = path.with_name(f"{path.name}.partial")
    if path.exists():
        raise InvalidRequest(f"{path} is there already; name a file that is not")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id = {_SCHEMA.application_id}")
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("PRAGMA synchronous = OFF")
            yield ArchiveRows(unfinished, connection)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        path.touch(0o600, exist_ok=False)  # no file is replaced but this one; not every file system has links
        unfinished.replace(path)
    except FileExistsError:
        raise InvalidRequest(f"{path} is there already; name a file that is not") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}); choose another place") from error
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveRows]:
    """A backup that is complete. Raises `InvalidRequest` for any other file."""
    if not path.is_file():
        raise InvalidRequest(f"there is no backup `{path}`; check its name")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        try:
            mark = connection.execute("PRAGMA application_id").fetchone()[0]
            # A view has no rows but what it makes up: without end, or a gigabyte each.
            odd = connection.execute("SELECT name FROM sqlite_master WHERE sql NOT LIKE 'CREATE TABLE %'").fetchone()
            if mark != _SCHEMA.application_id or odd is not None:
                raise InvalidRequest(f"{path} is no backup; `mainspring backup` makes one")
            body = connection.execute("SELECT CAST(body AS BLOB) FROM manifest").fetchone()[0]
            manifest = msgspec.json.decode(body, type=Manifest)
        except (sqlite3.Error, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{path} is no complete backup ({error}); take another one") from None
        if manifest.format > FORMAT:
            raise InvalidRequest(f"{path} was made by a newer Mainspring; upgrade Mainspring first")
        yield ArchiveRows(path, connection, manifest)
