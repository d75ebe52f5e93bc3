"""What the file costs: a segment is a row, and a long conversation is stored once, not once per answer."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.store.logs import answer, begin, end, say

from mainspring.storage.sqlite_runs import SqliteStore

STORED = """
    SELECT length(response) + length(entries) + (SELECT sum(length(body)) FROM segments WHERE run = number) FROM runs WHERE id = ?
"""


async def test_the_200th_answer_of_a_chain_takes_the_room_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        for place in range(200):
            id, parent = f"resp_{place:03}", f"resp_{place - 1:03}" if place else None
            await store.append(id, [*begin(id, parent), *say(1, "some ", "words")])
            await store.append(id, end(3), answer(id, "some words"))
        assert len(await store.history("resp_199")) == 400
    with closing(sqlite3.connect(path)) as connection:
        first, last = [connection.execute(STORED, (id,)).fetchone()[0] for id in ("resp_000", "resp_199")]
    assert last - first == len('"resp_198"') - len("null")


async def test_an_append_is_one_row_however_many_events_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))
        await store.append("a", say(1, *["word "] * 1000))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT first, last FROM segments ORDER BY first").fetchall() == [(0, 0), (1, 1000)]


async def test_a_deleted_run_leaves_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        for id in ("a", "b"):
            await store.append(id, [*begin(id), *end(1)], answer(id, "hi"))
        await store.delete("a")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id, count(*) FROM runs JOIN segments ON run = number").fetchall() == [("b", 1)]
        assert connection.execute("SELECT count(*) FROM segments").fetchone() == (1,)
        assert connection.execute("SELECT id, run FROM items").fetchall() == [("msg_0", 2)]
