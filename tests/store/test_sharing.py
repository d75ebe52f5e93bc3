"""Many writers: on one thread they share commits, on one file they never both write the same number."""

import asyncio
import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.store.groups import check_a_group
from tests.store.locks import write_lock
from tests.store.logs import answer, begin, end, say

from mainspring.core.errors import StoreError, Superseded
from mainspring.core.events import ItemDone, Recorded
from mainspring.core.history import Entry
from mainspring.core.items import assistant
from mainspring.ports import Segment, Snapshot
from mainspring.storage.run_appender import RunAppender
from mainspring.storage.run_rows import RUNS, load_events
from mainspring.storage.sqlite import connect, transaction
from mainspring.storage.sqlite_runs import SqliteStore


def commits(path: Path) -> int:
    """Commits in the write-ahead log: frames that say how large the database is after them (SQLite file format, section 4.1)."""
    log = path.with_name(f"{path.name}-wal").read_bytes()
    page_size = struct.unpack_from(">I", log, 8)[0]
    salt = log[16:24]
    frames = range(32, len(log), 24 + page_size)
    return sum(1 for at in frames if log[at + 8 : at + 16] == salt and struct.unpack_from(">I", log, at + 4)[0])


async def test_appends_that_wait_are_committed_together(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        before = commits(path)
        with write_lock(path):
            written = [store.append(f"r{place}", begin(f"r{place}")) for place in range(200)]
        await asyncio.gather(*written)
        assert commits(path) - before <= 2  # the one the thread had begun with, and all others
        assert len(await store.list_unfinished()) == 200


async def test_in_a_group_only_those_fail_that_must(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await check_a_group(store, lambda: write_lock(path))


async def test_of_segments_that_are_written_together_only_those_fail_that_must(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        before = commits(path)
        segments = [Segment(f"r{place}", begin(f"r{place}")) for place in range(50)]
        assert await store.append_all(segments) == [None] * 50
        assert commits(path) - before == 1
        good, bad, behind, other = await store.append_all(
            [
                Segment("r0", say(1, "fine")),
                Segment("r1", say(1, "half a \ud83d character")),
                Segment("r1", say(2, "after what was not written")),
                Segment("r2", say(1, "fine too")),
            ]
        )
        assert (good, other) == (None, None)
        assert isinstance(bad, StoreError)
        assert isinstance(behind, Superseded)
        assert [len(await store.events(f"r{place}")) for place in range(3)] == [2, 1, 2]


async def test_two_drivers_of_a_run_never_both_write_a_number(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as left, SqliteStore(path) as right:
        stores = {"left": left, "right": right}
        winners: list[str] = []
        for seq in range(60):
            offers = {name: begin("a", parent=name) if seq == 0 else say(seq, name) for name in stores}
            results = await asyncio.gather(*[stores[name].append("a", offers[name]) for name in offers], return_exceptions=True)
            outcome = dict(zip(offers, results, strict=True))
            won = [name for name, error in outcome.items() if error is None]
            assert len(won) == 1
            assert all(isinstance(error, Superseded) for name, error in outcome.items() if name not in won)
            winners += won
        expected = [begin("a", parent=winners[0])[0], *[say(seq, name)[0] for seq, name in enumerate(winners[1:], 1)]]
        assert await left.events("a") == await right.events("a") == expected


async def test_drivers_of_different_runs_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    async def drive(store: SqliteStore, id: str) -> None:
        await store.append(id, begin(id))
        for seq in range(1, 40):
            await store.append(id, say(seq, id))

    async with SqliteStore(path) as left, SqliteStore(path) as right:
        await asyncio.gather(
            *[drive(store, f"{name}{place}") for place in range(3) for name, store in (("l", left), ("r", right))]
        )
        for id in await left.list_unfinished():
            assert await right.events(id) == [*begin(id), *[say(seq, id)[0] for seq in range(1, 40)]]


async def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for place in range(5):
        stores = [SqliteStore(tmp_path / f"{place}" / "runs.db") for _ in range(8)]
        await asyncio.gather(*[store.open() for store in stores])
        await asyncio.gather(*[store.append(f"r{number}", begin(f"r{number}")) for number, store in enumerate(stores)])
        assert len(await stores[0].list_unfinished()) == 8
        await asyncio.gather(*[store.close() for store in stores])


async def test_opening_waits_for_a_process_that_is_creating_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as creator:
        creator.execute(f"PRAGMA application_id = {RUNS.application_id}")
        creator.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.05, creator.execute, "ROLLBACK")
        async with SqliteStore(path) as store:
            await store.append("a", begin("a"))


async def test_a_cancelled_append_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        with write_lock(path):
            dropped, kept = store.append("a", begin("a")), store.append("a", say(1, "x"))
            question = asyncio.ensure_future(store.events("a"))
            await asyncio.sleep(0)
            dropped.cancel()
            question.cancel()
        await kept
        assert await store.events("a") == [*begin("a"), *say(1, "x")]


async def test_close_finishes_what_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    written = [store.append("a", begin("a")), *[store.append("a", say(seq, "x")) for seq in range(1, 100)]]
    await store.close()
    assert all(append.done() and append.exception() is None for append in written)
    assert os.listdir(tmp_path) == ["runs.db"]
    await store.open()
    assert len(await store.events("a")) == 100
    await store.close()


async def test_a_log_is_read_whole_while_another_process_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    said = assistant("hi", id="msg_1")
    snapshot = Snapshot(answer("a", "hi").response, (Entry(said, "model"),))
    ending = [Recorded(1, 1.0, ItemDone(said)), *end(2)]
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))

    class Overtaken(sqlite3.Connection):
        """Before its second statement, another process ends the run."""

        statements = 0

        def execute(self, *given: Any) -> sqlite3.Cursor:
            self.statements += 1
            if self.statements == 2:
                with closing(connect(path, RUNS)) as other, transaction(other):
                    RunAppender().append(other, [Segment("a", ending, snapshot)])
            return super().execute(*given)

    with closing(sqlite3.connect(path, factory=Overtaken, isolation_level=None)) as connection:
        assert load_events(connection, "a", -1) in (begin("a"), [*begin("a"), *ending])
        assert load_events(connection, "a", -1) == [*begin("a"), *ending]
