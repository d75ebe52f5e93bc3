"""Holding the writers of a file up."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Keeps every writer of the file waiting, so that what is appended meanwhile is written together."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
