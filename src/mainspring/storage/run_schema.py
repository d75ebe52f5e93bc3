"""The database file: how it is recognised, opened and brought up to date.

A file of ours carries `APPLICATION_ID` in its header from its very first page on, so a file that has content but not this mark is
refused before anything is written to it. `PRAGMA user_version` counts the migrations a file has been through; each is one
transaction, so a file is always at one version or the next. A migration, once released, is never edited: a change is a new one.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from mainspring.core.errors import StoreError

APPLICATION_ID = 0x4D73_7072  # "Mspr"
LOCK_SECONDS = 10.0

Migration = tuple[str, ...]

MIGRATIONS: tuple[Migration, ...] = (
    (
        # `number` is the order of creation; it decides between runs of the same moment.
        """
        CREATE TABLE runs (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            parent TEXT,
            model TEXT NOT NULL,
            background INTEGER NOT NULL,
            status TEXT NOT NULL,
            created_at REAL NOT NULL,
            ended_at REAL,
            response BLOB,
            entries BLOB
        )
        """,
        "CREATE INDEX runs_by_time ON runs (created_at)",
        "CREATE INDEX runs_by_status ON runs (status, created_at)",
        # With a rowid on purpose: bodies are large, and rows that are added at the end cost a third less than sorted ones.
        """
        CREATE TABLE segments (
            run INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (run, first)
        )
        """,
    ),
    (
        "ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN conversation BLOB",
        "CREATE INDEX runs_by_tenant ON runs (tenant, created_at)",
        # AUTOINCREMENT, because the number of a document that was removed is never given to another.
        """
        CREATE TABLE documents (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            tenant TEXT NOT NULL,
            parent TEXT NOT NULL,
            id TEXT NOT NULL,
            kind TEXT NOT NULL,
            body BLOB NOT NULL,
            UNIQUE (tenant, parent, id, kind)
        )
        """,
        "CREATE INDEX documents_in_order ON documents (tenant, parent, kind, number)",
    ),
    (
        # Which runs hold an item; the item itself is among their entries. One tree and no foreign key, because every run pays
        # for every item: whoever deletes a run knows from its entries what to delete here.
        "CREATE TABLE items (id TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (id, run)) WITHOUT ROWID",
        # Entries are arrays with the item first. SQLite reads less deeply nested JSON than we write; such a run stays unlisted.
        """
        INSERT OR IGNORE INTO items
        SELECT json_extract(value, '$[0].id'), number
        FROM (SELECT number, CAST(entries AS TEXT) AS told FROM runs WHERE entries IS NOT NULL),
            json_each(CASE WHEN json_valid(told) THEN told ELSE '[]' END)
        WHERE json_type(value, '$[0].id') = 'text' AND json_extract(value, '$[0].id') <> ''
        """,
    ),
    (
        # Without a reference to runs: a run may be deleted, that it acted stays known.
        "CREATE TABLE audit (number INTEGER PRIMARY KEY, call TEXT NOT NULL, body BLOB NOT NULL, hash BLOB NOT NULL)",
        "CREATE INDEX audit_by_call ON audit (call) WHERE call <> ''",
        "CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END",
        "CREATE TRIGGER audit_grows BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END",
    ),
)


def connect(path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """A connection to the file, created if there is none and migrated to the newest version.

    Raises `StoreError`, and leaves the file as it is, if that is not a database, not ours, damaged, too new, or not writable.
    """
    _make_room(path)
    deadline = monotonic() + LOCK_SECONDS
    while True:
        try:
            return _connected(path, migrations)
        except sqlite3.Error as error:
            # SQLite itself does not wait for the locks that are needed to create a file or to recover it.
            if not is_locked(error) or monotonic() > deadline:
                raise explained(error, path) from error
        sleep(0.005)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_locked(error: Exception) -> bool:
    """Whether another process kept us waiting too long; nothing is wrong with the file."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY


def explained(error: sqlite3.Error, name: str | Path) -> StoreError:
    """The error in words for whoever runs the machine: what happened, and what to do. `name` is what the file is called in it."""
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return StoreError(f"the disk holding {name} is full; free space and resume the run")
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"{name} cannot be read or written ({error}); check the disk and its free space, then resume the run"
            )
        case sqlite3.SQLITE_BUSY:
            return StoreError(f"another process has locked {name} for over {LOCK_SECONDS:.0f} s; end it, or try again later")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{name} is not a database; choose another file with --database")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"{name} is damaged ({error}); restore it from a backup, or choose another file with --database")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreError(f"{name} cannot be opened ({error}); let this user read and write the file and its folder")
        case _:
            return StoreError(
                f"{name} cannot be used ({error}); restore it from a backup, or choose another file with --database"
            )


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it with --database")
    except OSError as error:
        raise StoreError(f"{path} cannot be opened ({error.strerror}); choose another file with --database") from error


def _connected(path: Path, migrations: Sequence[Migration]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)
    try:
        _prepare(connection, path, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    # In this order: the mark is written with the first page, so a file that another process creates meanwhile is not refused.
    is_empty = _pragma(connection, "page_count") == 0
    is_marked = _pragma(connection, "application_id") == APPLICATION_ID
    if not is_marked and not is_empty:
        raise StoreError(f"{path} is a database of another program; choose another file with --database")
    if not is_marked:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    # A commit survives the end of this process, however it ends; only a power cut can take the last few, and no more than those.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    _migrate(connection, path, migrations)
    # Deletes nothing, but fails if a table is missing or if SQLite has opened the file for reading only, which it does silently.
    for table in ("runs", "segments", "documents", "items", "audit"):
        connection.execute(f"DELETE FROM {table} WHERE FALSE")


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Applies what is missing. The version is read under the write lock, because another process may be doing the same."""
    known = len(migrations)
    version = -1
    while version < known:
        with transaction(connection):
            version = _pragma(connection, "user_version")
            if version > known:
                raise StoreError(
                    f"{path} was written by a newer Mainspring (schema {version}, this one knows {known}); "
                    "upgrade Mainspring or choose another file with --database"
                )
            if version < known:
                _apply(connection, path, version, migrations[version])


def _apply(connection: sqlite3.Connection, path: Path, version: int, migration: Migration) -> None:
    try:
        for statement in migration:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version + 1}")
    except sqlite3.Error as error:
        raise StoreError(f"{path} stays at schema {version}: the step to {version + 1} failed ({error})") from error


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if the error is not SQLite's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
