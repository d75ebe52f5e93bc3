"""What a deployment of several processes costs and carries, beside one process, on a file and on PostgreSQL, in one run.

    python -m bench.scale [--quick] [--rounds N] [--streams N] [--json FILE]

Deployments, all of them up at the same time: one process; `serve --workers 2`; a gateway with one worker, to which the leases of
the store bring the runs, and the same with Temporal on PostgreSQL, whose own server is not counted. Rounds are interleaved, so
that a busy machine is busy for all. Figures are CPU of all processes of a deployment, and beside it that of PostgreSQL:

    request   a small request, stored
    delta     a streamed delta in a burst
    turn      a turn with two calls in the process
    run       a run in the background, from its request to the end of its stream
    streams   so many streams of 20 deltas a second: CPU of a delta, how many get through, how late

What a deployment *carries* is how many small requests it would answer each second if each of its processes had a core of its
own, whatever else this machine does: processes that do the same work, by the CPU of a request; a gateway and a worker, by the
busier of the two. Each process that serves has as many requests at once. `least` is the part of the work that the least busy
process did, which on a busy machine is chance as well. Two workers are to carry 1.7 times what one process does. It needs Linux
and the developers' packages.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from sys import executable
from tempfile import TemporaryDirectory
from typing import NamedTuple

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import cpu_of, free_port, parse_options, process
from bench.scenarios import RATE, percentile
from bench.store import list_postgres
from bench.targets import TOOLS, Load, Surroundings, Target, open_streams, surroundings
from tests.kit.postgres import running
from tests.kit.temporal import running_temporal

AIM = 1.7
AT_ONCE = 24


class Deployment(NamedTuple):
    """Processes on one database. `pids` are those that serve or work, `postgres` the folder of the server they use.
    One that `is_divided` has processes that do different work."""

    name: str
    target: Target
    pids: tuple[int, ...]
    postgres: Path | None = None
    is_divided: bool = False

    def read_cpu(self) -> list[float]:
        return [cpu_of(pid) for pid in self.pids]

    def read_postgres(self) -> float:
        return 0.0 if self.postgres is None else sum(map(cpu_of, list_postgres(self.postgres)))


class Cost(NamedTuple):
    """CPU seconds of a piece of work: of our processes, of PostgreSQL, and of one of ours that has a core of its own and is the
    bottleneck; how long it took; and which part the least busy process did."""

    ours: float
    postgres: float
    bottleneck: float
    wall: float
    least: float = 0.0


def children_of(pid: int) -> tuple[int, ...]:
    return tuple([int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()])


@contextmanager
def deploy(
    ports: Surroundings, name: str, database: str, postgres: Path | None = None, temporal: str | None = None
) -> Iterator[Deployment]:
    """Starts what the name says; with the address of a Temporal server, runs get to the worker by that."""
    port = free_port()
    with TemporaryDirectory(prefix="mainspring-bench-") as folder, ExitStack() as stack:
        Path(folder, "benchtools.py").write_text(TOOLS)
        if temporal is not None:
            Path(folder, "mainspring.toml").write_text(f'dispatcher = "temporal"\n[temporal]\naddress = "{temporal}"\n')
        common = ["--database", database, "--tool", "benchtools:add", "--allow-host", "127.0.0.1"]
        common += ["--base-url", f"http://127.0.0.1:{ports.backend}/v1"]
        command = [executable, "-m", "mainspring", "serve", "--port", str(port), *common]
        if name == "2 workers":
            command += ["--workers", "2"]
        if name == "gateway":
            command += ["--role", "gateway"]
        server = stack.enter_context(process(*command, cwd=folder, ready="listens"))
        pids = children_of(server.pid) if name == "2 workers" else (server.pid,)
        if name == "gateway":
            work = [executable, "-m", "mainspring", "worker", *common]
            pids += (stack.enter_context(process(*work, cwd=folder, ready="waits for runs")).pid,)
        target = Target("mainspring", server.pid, f"http://127.0.0.1:{port}/v1", mcp=ports.mcp)
        store = "Temporal" if temporal else "PostgreSQL" if postgres else "SQLite"
        yield Deployment(f"{name}, {store}", target, pids, postgres, name == "gateway")


async def measure(deployment: Deployment, times: int, at_once: int, work: Callable[[], Awaitable[object]]) -> Cost:
    """What one piece of work costs, `at_once` of them under way at a time."""
    await asyncio.gather(*[work() for _ in range(at_once)])  # connections, and what is made once
    before, others, began, left = deployment.read_cpu(), deployment.read_postgres(), time.monotonic(), times

    async def repeat() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work()

    await asyncio.gather(*[repeat() for _ in range(at_once)])
    spent = [after - first for after, first in zip(deployment.read_cpu(), before, strict=True)]
    took = time.monotonic() - began
    ours, least = sum(spent) / times, min(spent) / max(sum(spent), 1e-9)
    bottleneck = max(spent) / times if deployment.is_divided else ours / len(spent)
    return Cost(ours, (deployment.read_postgres() - others) / times, bottleneck, took / times, least)


class Figures:
    """What was measured, by deployment and kind of work, round by round."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str], list[Cost]] = {}

    def add(self, deployment: str, kind: str, cost: Cost) -> None:
        self._rounds.setdefault((deployment, kind), []).append(cost)

    def find(self, deployment: str, kind: str) -> Cost:
        return Cost(*[median(column) for column in zip(*self._rounds[deployment, kind], strict=True)])

    def compare(self, deployment: str, other: str, kind: str) -> float:
        """How many times as much the deployment carries, round by round, since machines are not always equally fast."""
        pairs = zip(self._rounds[deployment, kind], self._rounds[other, kind], strict=True)
        return median([theirs.bottleneck / ours.bottleneck for ours, theirs in pairs])


async def measure_round(load: Load, deployments: Sequence[Deployment], figures: Figures, *, is_quick: bool) -> None:
    times, few = (120, 8) if is_quick else (600, 24)
    for deployment in deployments:
        at_once = AT_ONCE * (1 if deployment.is_divided else len(deployment.pids))
        figures.add(deployment.name, "request", await measure(deployment, times, at_once, asking(load, deployment, "small")))
    for deployment in deployments:
        long = await measure(deployment, few, 4, asking(load, deployment, "deltas 500", stream=True))
        short = await measure(deployment, few, 4, asking(load, deployment, "deltas 1", stream=True))
        each = [max(more - less, 0.0) / 499 for more, less in zip(long, short, strict=True)]
        figures.add(deployment.name, "delta", Cost(*each))
        loop = await measure(deployment, few, 4, asking(load, deployment, "loop 9 add"))
        figures.add(deployment.name, "turn", Cost(*[figure / 10 for figure in loop]))
        background = partial(run_in_background, load, deployment.target)
        figures.add(deployment.name, "run", await measure(deployment, times // 4, 8, background))


def asking(load: Load, deployment: Deployment, text: str, *, stream: bool = False) -> Callable[[], Awaitable[bytes]]:
    return lambda: load.ask(deployment.target, text, stream=stream, max_turns=10)


async def run_in_background(load: Load, target: Target) -> None:
    accepted = json.loads(await load.ask(target, "small", background=True))
    if b"response.completed" not in await load.get(f"{target.base}/responses/{accepted['id']}?stream=true"):
        raise RuntimeError("a run in the background has not completed")


async def hold_streams(deployment: Deployment, count: int, seconds: float) -> str:
    """Opens so many paced streams, and says how they fared."""
    late = list[int]()
    streams = await open_streams(deployment.target, count, f"paced {RATE} {100 * RATE}", late, 30.0)
    await asyncio.sleep(0.5)
    before, already, began = sum(deployment.read_cpu()), len(late), time.monotonic()
    await asyncio.sleep(seconds)
    spent, seen, took = sum(deployment.read_cpu()) - before, late[already:], time.monotonic() - began
    for stream in streams:
        stream.transport.abort()
    await asyncio.sleep(1.0)
    if not seen:
        return f"{len(streams)} streams, and nothing came"
    told = (
        f"{len(streams):,} streams, {len(seen) / took:,.0f} of {count * RATE:,} deltas/s, {spent / len(seen) * 1e6:.0f} us each"
    )
    return f"{told}, late p50 {percentile(seen, 50):.0f} p99 {percentile(seen, 99):.0f} ms"


def show(deployments: Sequence[Deployment], figures: Figures) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    columns = ("request", 14), ("delta", 12), ("turn", 14), ("run", 14)
    heads = [f"{name:>{width}}" for name, width in (*columns, ("carries", 9), ("wall", 9), ("least", 6))]
    print(f"{'us of CPU, ours + PostgreSQL':28} {' '.join(heads)}")
    for deployment in deployments:
        row: dict[str, object] = {"deployment": deployment.name}
        told = []
        for kind, width in columns:
            cost = figures.find(deployment.name, kind)
            row[kind] = [cost.ours * 1e6, cost.postgres * 1e6]
            beside = f" + {cost.postgres * 1e6:,.0f}" if deployment.postgres else ""
            told.append(f"{f'{cost.ours * 1e6:,.0f}{beside}':>{width}}")
        cost = figures.find(deployment.name, "request")
        row["carries"], row["wall"], row["least"] = 1 / cost.bottleneck, 1 / cost.wall, cost.least
        print(
            f"{deployment.name:28} {' '.join(told)} {1 / cost.bottleneck:>7,.0f}/s {1 / cost.wall:>7,.0f}/s {cost.least:>6.0%}",
            flush=True,
        )
        rows.append(row)
    return rows


async def main_async(options: argparse.Namespace) -> bool:
    with ExitStack() as stack:
        ports, postgres = stack.enter_context(surroundings()), stack.enter_context(running(is_durable=True))
        folder = stack.enter_context(TemporaryDirectory(prefix="mainspring-scale-"))
        deployments = []
        for name in ("1 process", "2 workers", "gateway"):
            deployments.append(stack.enter_context(deploy(ports, name, f"{folder}/{name.replace(' ', '')}.db")))
            deployments.append(stack.enter_context(deploy(ports, name, postgres.database(), postgres.socket.parent)))
        address = stack.enter_context(running_temporal(Path(folder))).address
        deployments.append(stack.enter_context(deploy(ports, "gateway", postgres.database(), postgres.socket.parent, address)))
        figures = Figures()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
            for _ in range(options.rounds or (2 if options.quick else 5)):
                await measure_round(Load(session), deployments, figures, is_quick=options.quick)
            rows = show(deployments, figures)
        for deployment, row in zip(deployments, rows, strict=True):
            row["streams"] = await hold_streams(deployment, options.streams, 3.0 if options.quick else 6.0)
            print(f"{deployment.name:28} {row['streams']}", flush=True)
        is_met = True
        for store in ("SQLite", "PostgreSQL"):
            ratio = figures.compare(f"2 workers, {store}", f"1 process, {store}", "request")
            is_met &= ratio >= AIM
            print(f"two workers carry {ratio:.2f} times the small requests of one process on {store}; the aim is {AIM}")
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
        return is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; under two minutes")
    parser.add_argument("--rounds", type=int, help="how often all take turns (default 5, quick 2)")
    parser.add_argument("--streams", type=int, default=100, help="paced streams that each deployment holds (default 100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parse_options(parser, 1800)
    if sys.platform != "linux":
        sys.exit("bench/scale.py reads the CPU time of other processes from Linux, and needs it")
    sys.exit(0 if uvloop.run(main_async(options)) else 1)


if __name__ == "__main__":
    main()
