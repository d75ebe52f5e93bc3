"""What a database costs a server: a small stored request and a stored stream, on SQLite and on PostgreSQL, in one run.

    python bench/store.py [--quick]

Three servers with the same scripted model, one on a file and two on a PostgreSQL from a wheel, are asked in turn, so that
whatever else the machine does falls on all. Wall time is the median; CPU is what the operating system charged the server's
process, and in brackets PostgreSQL's own. PostgreSQL waits for the disk at every commit, as in production. A commit to a file
survives the end of the process, and does not wait; nor does PostgreSQL for the third server, by `synchronous_commit=off` in its
URL. At the end, what all have stored is counted.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.kit.postgres import running

WORDS = " ".join([f"word{number}" for number in range(200)])
TURNS = [{"when": "small", "say": "Hi."}, {"when": "long", "say": WORDS}, {"when": "slow", "say": WORDS, "pause": 0.01}]


class Served(NamedTuple):
    url: str
    pids: tuple[int, ...]


def cpu_of(pid: int) -> float:
    """CPU seconds of all its threads so far, by the clock that Linux keeps for every process."""
    return time.clock_gettime(~pid << 3 | 2)


def list_postgres(folder: Path) -> list[int]:
    """The processes of the server in this folder."""
    parent = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    return [parent, *[int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]]


@contextmanager
def serving(folder: Path, database: str) -> Iterator[Served]:
    folder.mkdir()
    (folder / "script.json").write_text(json.dumps({"turns": TURNS, "repeat": True, "chunk": 6}))
    command = [sys.executable, "-m", "mainspring", "serve", "--port", "0", "--model", "scripted:script.json"]
    with subprocess.Popen([*command, "--database", database], stdout=subprocess.PIPE, text=True, cwd=folder) as started:
        assert started.stdout is not None
        try:
            while " listens at " not in (line := started.stdout.readline()):
                assert line
            yield Served(line.rpartition(" ")[2].strip(), (started.pid,))
        finally:
            started.kill()


async def ask(session: aiohttp.ClientSession, served: Served, text: str) -> float:
    before = time.perf_counter()
    body = {"model": "m", "input": text, "stream": text != "small"}
    async with session.post(f"{served.url}/responses", json=body) as answer:
        data = await answer.read()
    assert b'completed"' in data[-2000:] + data, data[-500:]
    return time.perf_counter() - before


class Seen(NamedTuple):
    wall: float
    cpu: float
    other: float


async def measure(
    session: aiohttp.ClientSession, servers: list[Served], folder: Path, text: str, rounds: int, at_once: int
) -> list[Seen]:
    """Each server's figures for one request, from many that alternate."""
    walls: list[list[float]] = [[] for _ in servers]
    used = [0.0 for _ in servers]
    others = [0.0 for _ in servers]
    for number in range(rounds + 3):
        for place, served in enumerate(servers):
            before = sum(map(cpu_of, served.pids))
            foreign = sum(map(cpu_of, list_postgres(folder)))
            took = await asyncio.gather(*[ask(session, served, text) for _ in range(at_once)])
            if number >= 3:
                walls[place] += took
                used[place] += sum(map(cpu_of, served.pids)) - before
                others[place] += sum(map(cpu_of, list_postgres(folder))) - foreign
    count = rounds * at_once
    return [Seen(median(walls[place]), used[place] / count, others[place] / count) for place in range(len(servers))]


def time_disk(folder: Path, count: int = 100) -> float:
    """How long the disk takes to keep a page, in the median."""
    took = []
    with (folder / "page").open("wb") as file:
        for _ in range(count):
            file.write(bytes(8192))
            file.flush()
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - before)
    return median(took)


async def main(quick: bool) -> None:
    with tempfile.TemporaryDirectory() as name, running(is_durable=True) as postgres, ExitStack() as stack:
        folder, data = Path(name), postgres.socket.parent
        urls = [postgres.database(), f"{postgres.database()}&synchronous_commit=off"]
        servers = [stack.enter_context(serving(folder / str(place), url)) for place, url in enumerate(["runs.db", *urls])]
        print(f"the disk keeps a page in {time_disk(data) * 1e3:.1f} ms (median)")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            print(f"{'':34} {'SQLite':>20} {'PostgreSQL':>48} {'with synchronous_commit off':>48}")
            for label, text, rounds, at_once in (
                ("small request, alone", "small", 200, 1),
                ("small request, 10 at once", "small", 60, 10),
                ("stream of 200 deltas, 4 at once", "long", 15, 4),
                ("stream over 2 s, 50 at once", "slow", 2, 50),
            ):
                rounds = max(rounds // 5, 1) if quick else rounds
                [file, *others] = await measure(session, servers, data, text, rounds, at_once)
                print(
                    f"{label:34} {file.wall * 1e3:8.1f} ms {file.cpu * 1e3:6.2f} ms"
                    + "".join(
                        f" {each.wall * 1e3:8.1f} ms {each.cpu * 1e3:6.2f} (+{each.other * 1e3:.2f}) ms "
                        f"{each.wall / file.wall:6.2f} x {each.cpu / file.cpu:6.2f} x"
                        for each in others
                    )
                )
        count = "SELECT count(*) FROM mainspring_runs WHERE status = 'completed';"
        with closing(sqlite3.connect(folder / "0" / "runs.db")) as connection:
            [[stored]] = connection.execute("SELECT count(*) FROM runs WHERE status = 'completed'").fetchall()
        kept = [int(postgres.psql(url.partition("&synchronous")[0], count)) for url in urls]
        assert kept == [stored] * 2, (kept, stored)
        print(f"{stored} runs are stored in each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    os.environ.setdefault("MAINSPRING_DRAIN_SECONDS", "0")
    asyncio.run(main(parse_options(parser).quick))
