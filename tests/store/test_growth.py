"""What the file costs: a segment is a row, and a long conversation is stored once, not once per answer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.logs import answer, begin, end, say

from mainspring.ports import Filter
from mainspring.storage.run_rows import RUNS, list_runs
from mainspring.storage.sqlite import connect, transaction
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
    assert last - first == len('"parent":"resp_198",')


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


FITTING_NOTHING = [
    Filter(tenant="", model="other"),
    Filter(tenant="", status=("failed",)),
    Filter(tenant="", status=("failed", "cancelled", "incomplete")),
    Filter(tenant="", background=True),
    Filter(tenant="", parent="other"),
    Filter(tenant="", conversation="other"),
    Filter(tenant="", since=1e9),
    Filter(tenant="", before=-1.0),
    Filter(tenant="other"),
    Filter(tenant="", model="m", status=("failed",)),
    Filter(tenant="", model="m", background=True),
    Filter(tenant="", model="m", background=True, status=("failed",)),
    Filter(tenant="", model="other", status=("completed",)),
    Filter(tenant="", conversation="other", status=("completed",)),
]


FITTING_NOTHING_OF_MANY = [
    Filter(tenant="", model="other", background=True),
    Filter(tenant="", model="other", status=("incomplete",)),
    Filter(tenant="", parent="other", background=True),
    Filter(tenant="", conversation="other", status=("incomplete",)),
]


@pytest.mark.parametrize("has_statistics", [False, True])
@pytest.mark.parametrize(
    ("status", "background", "filters"), [("completed", 0, FITTING_NOTHING), ("incomplete", 1, FITTING_NOTHING_OF_MANY)]
)
def test_a_filter_that_fits_nothing_looks_at_no_run(
    tmp_path: Path, status: str, background: int, filters: list[Filter], has_statistics: bool
) -> None:
    with closing(connect(tmp_path / "runs.db", RUNS)) as connection, transaction(connection):
        connection.executemany(
            "INSERT INTO runs (id, status, created_at, parent, model, background, tenant, conversation, ended_at)"
            f" VALUES (?, '{status}', ?, ?, 'm', {background}, '', ?, 1)",
            [(f"r{place}", float(place), f"r{place - 1}", b'{"id": "c"}' if place % 2 else None) for place in range(10_000)],
        )
        if has_statistics:
            connection.execute("ANALYZE")
        looked = [0]

        def look() -> None:
            looked[0] += 1

        connection.set_progress_handler(look, 100)  # every so many steps of SQLite's machine
        for only in filters:
            looked[0] = 0
            assert list_runs(connection, 20, None, True, only).runs == ()
            assert looked[0] < 5, only
