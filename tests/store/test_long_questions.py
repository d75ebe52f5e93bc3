"""A question that takes long holds up no write, and is answered with all that was written before it was asked."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from anyio import fail_after
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import NotFound, StoreError
from mainspring.storage.sqlite import Database, Schema
from mainspring.storage.sqlite_runs import SqliteStore

SCHEMA = Schema(1, (("CREATE TABLE words (word TEXT)",),), ("words",))


def add(connection: sqlite3.Connection, word: str) -> None:
    connection.execute("INSERT INTO words VALUES (?)", (word,))


def list_words(connection: sqlite3.Connection) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM words ORDER BY rowid")]


async def test_nothing_waits_behind_a_long_question(tmp_path: Path) -> None:
    database, go_on = Database(tmp_path / "words.db", SCHEMA), threading.Event()

    def ponder(connection: sqlite3.Connection) -> list[str]:
        assert go_on.wait(PATIENCE)
        return list_words(connection)

    await database.open()
    try:
        with fail_after(PATIENCE):
            database.write(add, "before")
            asked = database.ask(ponder)
            await database.write(add, "meanwhile")
            assert await database.read(list_words) == ["before", "meanwhile"]
            go_on.set()
            assert (await asked)[0] == "before"
    finally:
        await database.close()


@pytest.mark.parametrize("path", [None, "words.db"])
async def test_an_answer_is_never_older_than_its_question(tmp_path: Path, path: str | None) -> None:
    database = Database(None if path is None else tmp_path / path, SCHEMA)
    await database.open()
    try:
        for number in range(50):
            database.write(add, str(number))
            assert len(await database.ask(list_words)) == number + 1
    finally:
        await database.close()


async def test_a_question_cannot_write_and_a_failed_one_harms_no_other(tmp_path: Path) -> None:
    database = Database(tmp_path / "words.db", SCHEMA)
    await database.open()
    try:
        with pytest.raises(StoreError):
            await database.ask(add, "sneaked in")
        assert await database.ask(list_words) == []
    finally:
        await database.close()
    await database.open()
    assert await database.ask(list_words) == []
    await database.close()


async def test_questions_that_fail_leave_no_file_open(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        await store.list()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with pytest.raises(NotFound):
                await store.list(after="resp_none")
        database = store._database
        for _ in range(20):
            with pytest.raises(StoreError):
                await database.ask(add, "no such table here")
        await store.list()
        assert len(os.listdir("/proc/self/fd")) <= before
