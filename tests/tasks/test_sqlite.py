"""The file: whose it is, what it refuses, who may share it, and what happens when it cannot be used."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from uuid import uuid4

import pytest
from tests.kit.processes import ROOT, start
from tests.tasks.conftest import NOBODY

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring_tasks.server.perform import perform
from mainspring_tasks.server.sqlite_tasks import TASKS, SqliteTasks
from mainspring_tasks.server.task import TaskReply, make_task, utc_now
from mainspring_tasks.server.task_store import choose_task_store


@asynccontextmanager
async def opened(path: Path, **more: float) -> AsyncIterator[SqliteTasks]:
    store = SqliteTasks(path, **more)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tasks.db"
    async with opened(path) as store:
        await store.add("alice", make_task(uuid4(), "x", utc_now()))
        found = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert found == {"tasks.db": 0o600, "tasks.db-wal": 0o600, "tasks.db-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_the_file_tells_its_kind_and_version(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(TASKS.migrations),)
        assert connection.execute("PRAGMA application_id").fetchone() == (0x4D73746B,)
        connection.execute(f"PRAGMA user_version = {len(TASKS.migrations) + 1}")
    with pytest.raises(StoreError, match="written by a newer Mainspring"):
        await SqliteTasks(tmp_path / "tasks.db").open()


async def test_a_file_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE things (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program; choose another file"):
        await SqliteTasks(path).open()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 50, None], ids=["text", "folder"])
async def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "thing"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(StoreError, match=f"{path} is (not a database|a folder); choose another file"):
        await SqliteTasks(path).open()


def test_a_name_of_another_kind_of_database_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`mysql:` is no database"):
        choose_task_store("mysql://localhost/tasks")


async def test_a_store_that_is_closed_says_so_and_can_be_opened_again(tmp_path: Path) -> None:
    store = SqliteTasks(tmp_path / "tasks.db")
    with pytest.raises(StoreError, match="not open"):
        await store.list("alice")
    for _ in range(2):
        await store.open()
        await store.close()
        await store.close()


async def test_a_locked_file_is_an_error_that_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path, lock_seconds=0.01) as store:
        await perform(store, "alice", "add_task", {"description": "before"})
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = {
                "add_task": await perform(store, "alice", "add_task", {"description": "x"}),
                "complete_task": await perform(store, "alice", "complete_task", {"task_id": NOBODY}),
            }
        after = await perform(store, "alice", "add_task", {"description": "after"})
        listed = await perform(store, "alice", "list_tasks", {})
    for name, answer in refused.items():
        assert answer.error_code == "DATABASE_ERROR"
        assert answer.error is not None
        assert not any(word in answer.error for word in ("sqlite", "locked", str(tmp_path)))
        assert ("look with list_tasks" in answer.error) is (name == "add_task")
    assert after.success
    assert [kept.description for kept in listed.data] == ["after", "before"]  # type: ignore[union-attr]
    assert "database is locked" in caplog.text


async def test_a_damaged_file_is_an_error_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        await perform(store, "alice", "add_task", {"description": "before"})
    good = path.read_bytes()
    async with opened(path) as store:
        # Everything but the header, behind the back of the connection.
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * (len(good) - 100))
        assert (await perform(store, "alice", "list_tasks", {})).error_code == "DATABASE_ERROR"
        path.write_bytes(good)
        found = await perform(store, "alice", "list_tasks", {})
    assert [kept.description for kept in found.data] == ["before"]  # type: ignore[union-attr]


async def test_calls_at_once_are_all_done(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as one, opened(tmp_path / "tasks.db") as two:
        stores = [one, two] * 50
        replies = await asyncio.gather(
            *[perform(store, "alice", "add_task", {"description": str(number)}) for number, store in enumerate(stores)]
        )
        listed = await perform(two, "alice", "list_tasks", {})
    assert all(answer.success for answer in replies)
    assert {kept.description for kept in listed.data} == {str(number) for number in range(100)}  # type: ignore[union-attr]


async def test_completions_at_once_agree_on_the_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as one, opened(tmp_path / "tasks.db") as two:
        id = uuid4()
        await one.add("alice", make_task(id, "x", utc_now()))
        replies = await asyncio.gather(
            *[perform(store, "alice", "complete_task", {"task_id": str(id)}) for store in [one, two] * 10]
        )
    assert replies == [replies[0]] * 20
    assert replies[0].success


def add_as_process(path: Path, number: int) -> None:
    async def add() -> TaskReply:
        async with opened(path, lock_seconds=60.0) as store:
            return await perform(store, "alice", "add_task", {"description": str(number)})

    assert asyncio.run(add()).success


@pytest.mark.slow
async def test_processes_may_create_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    code = f"from pathlib import Path; from {__name__} import add_as_process; add_as_process(Path({str(path)!r}), %d)"
    processes = [start([sys.executable, "-c", code % number], cwd=ROOT) for number in range(6)]
    for process in processes:
        assert await asyncio.to_thread(process.communicate) == ("", "")
    async with opened(path) as store:
        assert {kept.description for kept in await store.list("alice")} == {str(number) for number in range(6)}
