"""Deltas of many runs in one row: whoever reads, takes over or deletes a run finds all of them, and the table stays small."""

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.store.logs import answer, begin, end

from mainspring.core.errors import NotFound
from mainspring.core.events import Event, ReasoningDelta, Recorded, TextDelta, TurnStarted
from mainspring.ports import Segment
from mainspring.storage.recent_deltas import FEWEST, MOST_BATCHES
from mainspring.storage.sqlite_runs import SqliteStore

IDS = [f"resp_{number}" for number in range(2 * FEWEST)]


def count_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM recent_deltas").fetchone()[0])


def read_files(folder: Path) -> bytes:
    return b"".join([file.read_bytes() for file in folder.iterdir()])


class Logs:
    """What some runs have said so far."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.by_id = {id: begin(id) for id in IDS}

    def say(self, id: str, event: Event) -> list[Recorded]:
        log = self.by_id[id]
        log.append(Recorded(len(log), log[-1].at + self.random.choice((0, 3 / 1024, 0.0501)), event))
        return log[-1:]

    def say_something(self, id: str) -> list[Recorded]:
        chance, word = self.random.random(), f"{self.random.randrange(10**6)} " * self.random.choice((1, 1, 1, 60))
        if chance < 0.9:
            return self.say(id, TextDelta("msg_1", word))
        return self.say(id, ReasoningDelta("rs_1", word)) if chance < 0.96 else self.say(id, TurnStarted())


@pytest.mark.parametrize("seed", range(4))
async def test_logs_are_read_whole_at_any_time_and_by_anybody(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    logs, path = Logs(random), tmp_path / "runs.db"
    async with SqliteStore(path) as one, SqliteStore(path) as other:
        assert await one.append_all([Segment(id, begin(id)) for id in IDS]) == [None] * len(IDS)
        most = 0
        for _ in range(3 * MOST_BATCHES):
            writer = other if random.random() < 0.02 else one
            some = random.sample(IDS, random.randrange(1, len(IDS)))
            assert await writer.append_all([Segment(id, logs.say_something(id)) for id in some]) == [None] * len(some)
            id = random.choice(IDS)
            after = random.randrange(-1, len(logs.by_id[id]))
            assert await random.choice((one, other)).events(id, after) == logs.by_id[id][after + 1 :]
            most = max(most, count_rows(path))
        assert FEWEST < most <= 2 * MOST_BATCHES
    async with SqliteStore(path) as later:
        for id in IDS:
            assert await later.events(id) == logs.by_id[id]
            seq = len(logs.by_id[id])
            await later.append(id, end(seq), answer(id, "all"))
            assert await later.events(id) == [*logs.by_id[id], *end(seq)]
    assert count_rows(path) == 0


async def test_what_another_process_takes_over_has_all_deltas(tmp_path: Path) -> None:
    logs, path = Logs(Random(0)), tmp_path / "runs.db"
    async with SqliteStore(path) as one, SqliteStore(path) as other:
        await one.append_all([Segment(id, begin(id)) for id in IDS])
        for word in ("a", "b", "c"):
            await one.append_all([Segment(id, logs.say(id, TextDelta("msg_1", word))) for id in IDS])
        assert count_rows(path) > 0
        late = Segment(IDS[0], logs.say(IDS[0], TextDelta("msg_1", "d")))
        assert await other.append_all([late]) == [None]
        refused, *written = await one.append_all([late, *[Segment(id, logs.say(id, TurnStarted())) for id in IDS[1:]]])
        assert refused is not None
        assert written == [None] * len(IDS[1:])
        for id in IDS:
            assert await one.events(id) == await other.events(id) == logs.by_id[id]


async def test_a_run_that_is_deleted_leaves_no_delta(tmp_path: Path) -> None:
    logs, path = Logs(Random(0)), tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await store.append_all([Segment(id, begin(id)) for id in IDS])
        for word in ("first", "geheim"):
            await store.append_all(
                [Segment(id, logs.say(id, TextDelta("msg_1", word if id == IDS[-1] else "word"))) for id in IDS]
            )
        await store.delete(IDS[-1])
        assert b"geheim" not in read_files(tmp_path)
        # Its number is given to the next run.
        await store.append("resp_new", begin("resp_new"))
        assert await store.events("resp_new") == begin("resp_new")
        with pytest.raises(NotFound):
            await store.events(IDS[-1])
        assert await store.events(IDS[0]) == logs.by_id[IDS[0]]
