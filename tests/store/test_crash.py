"""Whatever ends the process, the file can be read, and holds at least what was said to be durable."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.processes import run, start
from tests.store.appender import LENGTH, answer_of, log_of
from tests.store.logs import begin, say

from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location
from mainspring.storage.run_rows import RUNS
from mainspring.storage.sqlite_runs import SqliteStore

ROOT = Path(__file__).parents[2]

# The event loop ends while the store has work left, and nobody closes the store.
FORGETFUL = """
import asyncio, sys
from pathlib import Path
from mainspring.storage.sqlite_runs import SqliteStore
from tests.store.locks import write_lock
from tests.store.logs import begin

async def leave_work(store):
    store.append("a", begin("a"))
    question = asyncio.ensure_future(store.load("a"))
    await asyncio.sleep(0)
    store.append("b", begin("b"))

async def wait_for_all_of_it(path):
    async with SqliteStore(path) as store, asyncio.timeout(30):
        while await store.list_unfinished() != ["a", "b"]:
            pass

path = Path(sys.argv[1])
store = SqliteStore(path)
runner = asyncio.Runner()
runner.run(store.open())
with write_lock(path):
    runner.run(leave_work(store))
    runner.close()
asyncio.run(wait_for_all_of_it(path))
"""


def killed_after(database: str, lines: int) -> dict[str, int]:
    """Runs the appender until it has printed so many lines, kills it, and returns the last durable number of each run."""
    command = [sys.executable, "-m", "tests.store.appender", database]
    with start(command, cwd=ROOT) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        seen += process.stdout.readlines()
    # The last line may have been cut off, a write to a pipe being no transaction.
    durable = [line.split() for line in seen if line.endswith("\n")]
    return {id: int(seq) for id, seq in durable}


@pytest.mark.parametrize("lines", [1, 7, 40, 150, 400])
async def test_a_killed_process_leaves_a_readable_database_with_a_prefix_of_every_log(location: Location, lines: int) -> None:
    durable = killed_after(location.given, lines)
    async with open_store(location) as store:
        page = await store.list(limit=10_000)
        assert not page.has_more
        lengths = {run.id: len(await store.events(run.id)) for run in page.runs}
        assert durable.keys() <= lengths.keys()
        for run in page.runs:
            length = lengths[run.id]
            assert await store.events(run.id) == log_of(run.id)[:length]
            assert length > durable.get(run.id, -1)
            has_ended = length == LENGTH
            assert run.response == (answer_of(run.id).response if has_ended else None)
            assert (run.id in await store.list_unfinished()) is not has_ended
        for id in await store.list_unfinished():
            await store.append(id, say(lengths[id], "goes on"))


@pytest.mark.parametrize("steps", range(3))
async def test_a_file_whose_creation_was_cut_short_is_completed(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in [f"PRAGMA application_id = {RUNS.application_id}", "PRAGMA journal_mode = WAL"][:steps]:
            connection.execute(statement)
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))
        assert await store.events("a") == begin("a")


def test_a_process_that_forgets_to_close_the_store_loses_nothing_and_ends_without_noise(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORGETFUL, str(tmp_path / "runs.db")]
    done = run(command, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
