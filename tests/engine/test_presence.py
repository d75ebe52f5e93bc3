"""Which drivers live: on one machine that is known for sure."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.waiting import until

from mainspring.engine.presence import Presence
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
