"""What leases cost and how quick they are, between two servers on one database, SQLite's and PostgreSQL's.

    python bench/leases.py [--quick]

- idle: CPU of a server that has nothing to do, beside 500 unfinished runs of 2,000 events that another process drives.
- cancel: from the request to the server that does not drive a run, until it answers `cancelled`. The driver has stopped by then.
- takeover: from the moment a driver is killed, or frozen, until a run of its goes on in the other server. A process that is gone
  is noticed by its number on the same machine, so the lease is waited for only where it is frozen.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import cpu_of, parse_options
from bench.store import Served, serving
from tests.kit.engine import make_order
from tests.kit.postgres import running

from mainspring.core.events import ItemStarted, Recorded, RunStarted, TextDelta, TurnStarted
from mainspring.core.items import assistant
from mainspring.ports import Driver
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

EVENTS, IDLE_SECONDS = 2_000, 10.0


async def fill(database: str, runs: int) -> None:
    """Unfinished runs of a driver whose lease holds for the time of the bench."""
    async with open_store(parse_location(database)) as store:
        await store.leases.beat(Driver("drv_elsewhere", "elsewhere"), 3600.0)
        for number in range(runs):
            order = make_order(f"resp_{number}", background=True)
            log = [Recorded(0, 1.0, RunStarted(order, "drv_elsewhere")), Recorded(1, 1.0, TurnStarted())]
            log.append(Recorded(2, 1.0, ItemStarted(assistant("", id="msg_1"))))
            log += [Recorded(place, 1.0, TextDelta("msg_1", "word ")) for place in range(3, EVENTS)]
            await store.append(order.id, log)


async def begin(session: aiohttp.ClientSession, served: Served) -> str:
    body = {"model": "m", "input": "slow", "background": True}
    async with session.post(f"{served.url}/responses", json=body) as answer:
        run_id: str = (await answer.json())["id"]
    return run_id


async def measure_cancel(session: aiohttp.ClientSession, driver: Served, other: Served) -> float:
    run_id = await begin(session, driver)
    await asyncio.sleep(0.1)
    before = time.perf_counter()
    async with session.post(f"{other.url}/responses/{run_id}/cancel") as answer:
        assert (await answer.json())["status"] == "cancelled"
    return time.perf_counter() - before


async def measure_takeover(session: aiohttp.ClientSession, driver: Served, other: Served, sign: signal.Signals) -> float:
    """Until the stream of the run, read from the other server, goes on by another driver's events."""
    run_id = await begin(session, driver)
    await asyncio.sleep(0.2)
    os.kill(driver.pids[0], sign)
    before = time.perf_counter()
    async with session.get(f"{other.url}/responses/{run_id}?stream=true") as answer:
        assert b"[DONE]" in await answer.read()
    return time.perf_counter() - before


async def bench(folder: Path, database: str, runs: int, rounds: int) -> list[float]:
    await fill(database, runs)
    found: list[float] = []
    async with aiohttp.ClientSession() as session:
        with serving(folder / "other", database) as other:
            await asyncio.sleep(1.0)
            before = cpu_of(other.pids[0])
            await asyncio.sleep(IDLE_SECONDS)
            found.append((cpu_of(other.pids[0]) - before) / IDLE_SECONDS)
            with serving(folder / "driver", database) as driver:
                cancels = [await measure_cancel(session, driver, other) for _ in range(rounds)]
                found += [median(cancels), max(cancels)]
                found.append(await measure_takeover(session, driver, other, signal.SIGKILL))
            with serving(folder / "frozen", database) as driver:
                found.append(await measure_takeover(session, driver, other, signal.SIGSTOP))
    return found


async def main(quick: bool) -> None:
    runs, rounds = (50, 5) if quick else (500, 30)
    with tempfile.TemporaryDirectory() as name, running(is_durable=True) as postgres:
        print(f"{'':12}{'idle, ms CPU/s':>16}{'cancel p50, ms':>16}{'cancel max, ms':>16}{'killed, s':>12}{'frozen, s':>12}")
        for kind in ("SQLite", "PostgreSQL"):
            folder = Path(name) / kind
            folder.mkdir()
            database = str(folder / "runs.db") if kind == "SQLite" else postgres.database()
            idle, middle, most, killed, frozen = await bench(folder, database, runs, rounds)
            print(f"{kind:12}{idle * 1e3:16.2f}{middle * 1e3:16.1f}{most * 1e3:16.1f}{killed:12.1f}{frozen:12.1f}", flush=True)
        print("A run that is taken up begins its turn again, which takes 2 s: they are in the last two columns.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs and rounds")
    asyncio.run(main(parse_options(parser).quick))
