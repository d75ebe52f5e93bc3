"""Which drivers live: on one machine that is known for sure."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.kit.engine import make_engine, make_order
from tests.kit.waiting import PATIENCE, until

from mainspring.core.errors import Interrupted, StoreError
from mainspring.engine.engine import Engine
from mainspring.engine.presence import Presence
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted, turn
from mainspring.storage.sqlite_runs import SqliteStore

DRIVER = """
import asyncio, sys
from mainspring.engine.presence import Presence
from mainspring.storage.sqlite_runs import SqliteStore

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        presence = Presence(store)
        await presence.show()
        print(presence.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_driver_that_was_killed_is_gone_though_nobody_has_reaped_it(tmp_path: Path) -> None:
    database = tmp_path / "runs.db"
    command = [sys.executable, "-c", DRIVER, str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        driver = process.stdout.readline().strip()
        async with SqliteStore(database) as store:
            other = Presence(store)
            assert await other.is_driven(driver)
            process.send_signal(signal.SIGKILL)
            state = Path(f"/proc/{process.pid}/stat")
            await until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
            assert not await other.is_driven(driver)


def make_stalling(store: SqliteStore) -> Engine:
    return make_engine(Scripted(turn(say="one two three", stall=True), turn(say="one two three", stall=True)), store)


async def test_an_engine_that_stopped_at_once_heeds_cancels_of_others_when_it_is_opened_again(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store, SqliteStore(tmp_path / "runs.db") as beside:
        async with (engine := make_stalling(store)):
            await engine.start(make_order("resp_1"))
        async with engine, make_stalling(beside) as other:
            handle = await engine.start(make_order("resp_2", background=True))
            assert (await other.cancel("resp_2")).status == "cancelled"
            assert (await handle.wait()).status == "cancelled"


async def test_whoever_follows_a_run_is_told_of_an_engine_that_stops_at_once(tmp_path: Path) -> None:
    async with (
        SqliteStore(tmp_path / "runs.db") as store,
        SqliteStore(tmp_path / "runs.db") as beside,
        make_stalling(store) as engine,
        make_stalling(beside) as other,
    ):
        await engine.start(make_order("resp_1", background=True))
        followed = await other.follow("resp_1")
        other.interrupt()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Interrupted, match="goes on elsewhere"):
                await followed.wait()
        assert (await other.follow("resp_1")).is_live


class Forgetful(SqliteStore):
    """A store that cannot be written to at first."""

    is_away = True

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        if self.is_away:
            raise StoreError("it cannot be reached")
        return await super().put(documents, if_absent=if_absent)


async def test_a_driver_that_could_not_show_itself_does_so_with_its_next_run(tmp_path: Path) -> None:
    async with (
        Forgetful(tmp_path / "runs.db") as store,
        SqliteStore(tmp_path / "runs.db") as beside,
        make_stalling(store) as engine,
        make_stalling(beside) as other,
    ):
        with pytest.raises(StoreError):
            await engine.start(make_order("resp_1", background=True))
        store.is_away = False
        await engine.start(make_order("resp_2", background=True))
        assert await other.resume_all() == []
