"""Law 13: what is stored is what was said, on every store, also by the next process."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.postgres import Postgres
from tests.store.logs import logs, pieces, snapshots

from mainspring.core.events import Recorded, RunEnded
from mainspring.core.items import encode
from mainspring.core.stored_log import encode_log
from mainspring.ports import Snapshot, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore

cuts = st.lists(st.integers(1, 12), max_size=5)


async def keep(store: Store, segments: list[list[Recorded]], snapshot: Snapshot) -> None:
    for segment in segments:
        await store.append("resp_1", segment, snapshot if isinstance(segment[-1].event, RunEnded) else None)


async def expect(store: Store, log: list[Recorded], snapshot: Snapshot) -> None:
    assert await store.events("resp_1") == log
    assert encode_log(await store.events("resp_1")) == encode_log(log)
    run = await store.load("resp_1")
    if not isinstance(end := log[-1].event, RunEnded):
        assert (run.status, run.response) == ("in_progress", None)
        assert await store.list_unfinished() == ["resp_1"]
        return
    assert (run.status, run.response) == (end.status, snapshot.response)
    assert encode(run.response) == encode(snapshot.response)
    assert await store.history("resp_1") == list(snapshot.entries)


@given(logs(), cuts, snapshots())
async def test_memory_gives_back_any_log_in_any_segments(log: list[Recorded], cuts: list[int], snapshot: Snapshot) -> None:
    async with MemoryStore() as store:
        await keep(store, pieces(log, cuts), snapshot)
        await expect(store, log, snapshot)


@given(logs(), cuts, snapshots())
async def test_a_file_gives_back_any_log_in_any_segments_even_reopened(
    log: list[Recorded], cuts: list[int], snapshot: Snapshot
) -> None:
    with TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "runs.db") as store:
            await keep(store, pieces(log, cuts), snapshot)
            await expect(store, log, snapshot)
        async with SqliteStore(Path(folder) / "runs.db") as store:
            await expect(store, log, snapshot)


@given(logs(), cuts, cuts, st.integers(0, 5), snapshots())
async def test_a_log_may_be_continued_by_the_next_process(
    log: list[Recorded], cuts: list[int], more: list[int], pause: int, snapshot: Snapshot
) -> None:
    segments = pieces(log, [*cuts, *more])
    with TemporaryDirectory() as folder:
        for part in (segments[:pause], segments[pause:]):
            async with SqliteStore(Path(folder) / "runs.db") as store:
                await keep(store, part, snapshot)
        async with SqliteStore(Path(folder) / "runs.db") as store:
            await expect(store, log, snapshot)


@pytest.mark.slow
@settings(max_examples=40)
@given(logs(), cuts, snapshots())
async def test_a_server_gives_back_any_log_in_any_segments_even_to_another_process(
    postgres: Postgres, shared_database: str, log: list[Recorded], cuts: list[int], snapshot: Snapshot
) -> None:
    postgres.empty(shared_database)
    location = parse_location(shared_database)
    async with open_store(location) as store, open_store(location) as other:
        await keep(store, pieces(log, cuts), snapshot)
        await expect(store, log, snapshot)
        await expect(other, log, snapshot)
