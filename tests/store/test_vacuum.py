"""The room that deletions leave in a file is given back, without anybody waiting for it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.waiting import until

from mainspring.storage.sqlite import Database, Schema
from mainspring.storage.vacuum import INCREMENTAL, SPARE_PAGES, compact

SCHEMA = Schema(1, (("CREATE TABLE words (word BLOB)", "CREATE INDEX words_by_length ON words (length(word))"),), ("words",))
MEGABYTE = 1024 * 1024


def add(connection: sqlite3.Connection, count: int) -> None:
    connection.executemany("INSERT INTO words VALUES (?)", [(bytes(10_000),) for _ in range(count)])


def clear(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM words WHERE rowid % 50 > 0")


def count(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM words").fetchone()[0]
    return found


def look_up(path: Path, question: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute(question).fetchone()[0]
        return found


async def test_a_file_shrinks_after_deletions_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    database = Database(path, SCHEMA)
    await database.open()
    try:
        await database.write(add, 1000)
        assert look_up(path, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size") > 9 * MEGABYTE
        await database.erase(clear)
        await until(lambda: path.stat().st_size <= SPARE_PAGES * 4096 + 2 * MEGABYTE)
        assert await database.read(count) == 20
    finally:
        await database.close()
    assert look_up(path, "SELECT count(*) FROM pragma_quick_check WHERE quick_check = 'ok'") == 1


async def test_statistics_of_indexes_are_made_when_there_is_time(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    database = Database(path, SCHEMA)
    await database.open()
    try:
        await database.write(add, 100)
        await database.read(lambda connection: connection.execute("SELECT 1 FROM words WHERE length(word) = 1").fetchall())
        await database.erase(clear)
        await until(lambda: look_up(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat1'") == 1)
    finally:
        await database.close()


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_file_that_is_compacted_gives_back_room_from_then_on(tmp_path: Path, is_old: bool) -> None:
    path = tmp_path / "words.db"
    if is_old:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA application_id = 1")
            connection.execute("CREATE TABLE other (word)")
    database = Database(path, SCHEMA)
    await database.open()
    await database.write(add, 1000)
    await database.erase(clear)
    await database.close()
    assert (look_up(path, "PRAGMA auto_vacuum") == INCREMENTAL) is not is_old
    done = compact(path)
    assert done.after == path.stat().st_size < MEGABYTE < done.before
    assert look_up(path, "PRAGMA auto_vacuum") == INCREMENTAL
    assert look_up(path, "SELECT count(*) FROM words") == 20
    assert look_up(path, "PRAGMA application_id") == 1
