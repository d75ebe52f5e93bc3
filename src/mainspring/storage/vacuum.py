"""The room that deletions leave in an SQLite file, and the statistics of its indexes.

Files give back free pages a few at a time (`auto_vacuum` is incremental), so that nobody waits for it. Those that were made
before they could must be written anew once, by `compact`: until then their free pages are used again and never given back.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

INCREMENTAL: Final = 2
SLICE_PAGES: Final = 256
# Free pages that are kept for what is written next: so many, or a tenth of the file.
SPARE_PAGES: Final = 256
_ROWS_TO_LOOK_AT: Final = 400


class FileSizes(Struct, frozen=True):
    """Bytes that a file had, and has."""

    before: int
    after: int


def give_back(connection: sqlite3.Connection) -> bool:
    """Gives some free pages back to the system, once the log is emptied. Returns whether it did; then there may be more."""
    pages, free, mode = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "auto_vacuum")
    ]
    if mode != INCREMENTAL or free <= max(SPARE_PAGES, pages // 10):
        return False
    # As a script, because `execute` takes only the first step of it, which is one page.
    connection.executescript(f"PRAGMA incremental_vacuum({SLICE_PAGES})")
    return True


def update_statistics(connection: sqlite3.Connection) -> None:
    """Looks at a few rows of each index whose table has changed much, so that questions take the right one."""
    connection.execute(f"PRAGMA analysis_limit = {_ROWS_TO_LOOK_AT}")
    connection.execute("PRAGMA optimize").fetchall()


def compact(path: Path) -> FileSizes:
    """Writes the file anew, without free pages, as one that gives them back from now on. Needs as much room again meanwhile; who
    writes to the file waits. Raises `sqlite3.Error`, and leaves the file as it is."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = path.stat().st_size
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        update_statistics(connection)
    return FileSizes(before, path.stat().st_size)
