"""The scenarios of `bench/serve.py`: each asks targets for the same work and says what it cost."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from itertools import pairwise
from statistics import mean, quantiles
from typing import Any, NamedTuple

from bench.processes import cpu_of, memory_of
from bench.targets import Load, Surroundings, Target, cost, forwarders, mainspring, middle, open_streams, spread, wait_until_quiet

RATE = 20
OPEN_SECONDS = 15.0


class Row(NamedTuple):
    """One line of the table: a figure for each target, in `unit`."""

    name: str
    unit: str
    figures: dict[str, float]
    ratio: float | None = None
    spread: float | None = None
    aim: str = ""
    note: str = ""

    def __str__(self) -> str:
        shown = {name: f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}" for name, figure in self.figures.items()}
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        apart = "" if self.spread is None else f"{self.spread:.0%}"
        ours = f"{shown.pop('mainspring')} {self.unit}"
        line = f"{self.name:46} {ours:>14} {shown.pop('calibrator', ''):>11} {shown.pop('floor', ''):>9} {ratio:>6} {apart:>5}"
        others = [
            f"{name} {figure} ({self.figures[name] / self.figures['mainspring']:.1f} x ours)" for name, figure in shown.items()
        ]
        return "   ".join(filter(None, [line, self.aim, *others, self.note]))


def draw_table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown, with a column for every target that one of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    lines = [["", *names, "times the calibrator", "aim", ""], ["---"] * (len(names) + 4)]
    for row in rows:
        figures = [
            f"{row.figures[name]:,.{int(row.figures[name] < 100)}f} {row.unit}" if name in row.figures else "" for name in names
        ]
        lines.append([row.name, *figures, "" if row.ratio is None else f"{row.ratio:.2f}", row.aim, row.note])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Context:
    """What scenarios are given. `targets` are those that are asked side by side, Mainspring first."""

    def __init__(self, load: Load, ports: Surroundings, quick: bool, rounds: int, big: int | None) -> None:
        self.load, self.ports, self.quick, self.rounds = load, ports, quick, rounds
        self.big = big or (20_000 if quick else 100_000)
        self.targets: list[Target] = []
        self.scenario_seconds = 120 if self.big <= 100_000 else 900


Figures = dict[str, list[float]]


async def take_turns(context: Context, measure: Callable[[Target], Awaitable[float]], targets: Sequence[Target]) -> Figures:
    """What `measure` says of each target, round by round. A target that cannot be measured is left out, and that is told."""
    figures: Figures = {target.name: [] for target in targets}
    for _ in range(context.rounds):
        for target in targets:
            if target.name in figures:
                try:
                    figures[target.name].append(await measure(target))
                except RuntimeError as error:
                    if target.name == "mainspring":
                        raise
                    print(f"{target.name} cannot be measured: {error}")
                    del figures[target.name]
    return figures


def compare(name: str, unit: str, figures: Figures, aim: str, factor: float = 1e6) -> Row:
    ours, bare = figures["mainspring"], figures.get("calibrator")
    ratio = None if bare is None else middle([each / max(other, 1e-9) for each, other in zip(ours, bare, strict=True)])
    return Row(name, unit, {key: middle(each) * factor for key, each in figures.items()}, ratio, spread(ours), aim)


def few_of(times: int, target: Target) -> int:
    """Fewer for those that take long."""
    return times if target.is_forwarder or target.name == "mainspring" else max(times // 10, 2)


async def measure_requests(context: Context) -> list[Row]:
    times = 100 if context.quick else 300

    async def small(target: Target) -> float:
        return await cost(target.pid, few_of(times, target), 4, lambda: context.load.ask(target, "small"))

    return [compare("S1 small request, not streamed", "us", await take_turns(context, small, context.targets), "600 us, x 4.5")]


async def measure_deltas(context: Context) -> list[Row]:
    times = 16 if context.quick else 30

    async def delta(target: Target) -> float:
        count = few_of(times, target)
        long = await cost(target.pid, count, 2, lambda: context.load.ask(target, "deltas 500", stream=True))
        short = await cost(target.pid, count, 2, lambda: context.load.ask(target, "deltas 1", stream=True))
        return max(long - short, 0) / 499

    return [compare("S2 streamed delta in a burst", "us", await take_turns(context, delta, context.targets), "9 us, x 1.6")]


async def measure_turns(context: Context) -> list[Row]:
    times = 8 if context.quick else 20
    own = [target for target in context.targets if not target.is_forwarder]

    async def turn(target: Target) -> float:
        return await cost(target.pid, times, 2, lambda: context.load.ask(target, "loop 9 add", max_turns=10)) / 10

    async def mcp_turn(target: Target) -> float:
        # Others know no `max_turns`, and stop of themselves.
        fields: dict[str, Any] = {"max_turns": 10} if target.name == "mainspring" else {}

        async def loop() -> None:
            if b"word word" not in await context.load.ask(target, "loop 9 plus", with_mcp=True, **fields):
                raise RuntimeError("it does not make the calls of an MCP server that a request brings")

        return await cost(target.pid, few_of(max(times // 2, 4), target), 2, loop) / 10

    within = await take_turns(context, turn, own[:1])
    by_mcp = await take_turns(context, mcp_turn, own)
    return [
        compare("S3 turn with two calls in the process", "us", within, "1,200 us"),
        compare("S3 turn with two MCP calls over HTTP", "us", by_mcp, "2,000 us"),
    ]


class Pace(NamedTuple):
    per_delta: float
    deltas: float
    late: list[int]
    streams: int

    def __str__(self) -> str:
        late = f"late p50 {percentile(self.late, 50):.0f} p99 {percentile(self.late, 99):.0f} ms"
        return f"{self.deltas:,.0f} deltas/s with {self.streams:,} streams, {late}"


async def measure_pace(context: Context) -> list[Row]:
    rows = []
    counts = ((100, "70 us, x 1.7"),) if context.quick else ((100, "70 us, x 1.7"), (1000, "45 us, x 1.6, keeps pace, p50 25 ms"))
    for count, aim in counts:
        with mainspring(context.ports) as server, forwarders(context.ports) as others:
            await context.load.ask(server, "small")
            found = {target.name: await keep_pace(target, count, 3.0 if context.quick else 5.0) for target in (server, *others)}
        ratio = found["mainspring"].per_delta / found["calibrator"].per_delta
        told = [f"{name} {pace}" for name, pace in found.items() if name != "floor"]
        figures = {name: pace.per_delta * 1e6 for name, pace in found.items()}
        note = f"of {count * RATE:,}: {'; '.join(told)}"
        rows.append(Row(f"S4 {count:,} streams of {RATE} deltas/s, per delta", "us", figures, ratio, None, aim, note))
    return rows


async def keep_pace(target: Target, count: int, seconds: float) -> Pace:
    late = list[int]()
    streams = await open_streams(target, count, f"paced {RATE} {100 * RATE}", late, OPEN_SECONDS)
    await asyncio.sleep(0.5)
    began, before, already = asyncio.get_running_loop().time(), cpu_of(target.pid), len(late)
    await asyncio.sleep(seconds)
    spent, took = cpu_of(target.pid) - before, asyncio.get_running_loop().time() - began
    seen = late[already:]
    for stream in streams:
        stream.transport.abort()
    await wait_until_quiet(target.pid)
    if not seen:
        raise RuntimeError(f"{target.name} has sent nothing in {took:.0f} s")
    return Pace(spent / len(seen), len(seen) / took, seen, len(streams))


def percentile(microseconds: list[int], rank: int) -> float:
    """In milliseconds."""
    return quantiles(microseconds, n=100)[rank - 1] / 1000


async def measure_memory(context: Context) -> list[Row]:
    count = 100 if context.quick else 500
    rows = []
    with mainspring(context.ports) as server, forwarders(context.ports) as others:
        await context.load.get(f"{server.base}/models")
        start = {target.name: memory_of(target.pid) / 1e6 for target in (server, *others)}
        rows.append(Row("S5 memory at the start", "MB", start, aim="40 MB"))
        for name, text, aim in (("idle", "hold 1", "40 KB"), ("after 160 deltas", "hold 160", "55 KB")):
            figures = {target.name: await memory_each(target, count, text) for target in (server, *others)}
            rows.append(Row(f"S5 each of {count} open streams, {name}", "KB", figures, aim=aim))
    with mainspring(context.ports) as server:
        await context.load.ask(server, "loop 1 plus", with_mcp=True)
        rows.append(Row("S5 memory after the first MCP request", "MB", {"mainspring": memory_of(server.pid) / 1e6}, aim="55 MB"))
    return rows


async def memory_each(target: Target, count: int, text: str) -> float:
    """Kilobytes for each of so many streams that have said `text` and wait. The first few make room for what all share."""
    first = await open_streams(target, 20, text, [])
    await wait_until_quiet(target.pid)
    before = memory_of(target.pid)
    streams = await open_streams(target, count, text, [])
    await wait_until_quiet(target.pid)
    each = (memory_of(target.pid) - before) / count / 1024
    for stream in first + streams:
        stream.transport.abort()
    await wait_until_quiet(target.pid)
    return each


async def measure_growth(context: Context) -> list[Row]:
    """What the last costs of many that continue each other, beside the tenth; both are asked for in turn, since machines are
    not always equally fast."""
    server, length = context.targets[0], 200 if context.quick else 1000
    early, late = list[float](), list[float]()
    long = await extend_chain(context, None, length - 20)
    for _ in range(20):
        short = await extend_chain(context, None, 9)
        before = cpu_of(server.pid)
        await extend_chain(context, short, 1)
        between = cpu_of(server.pid)
        long = await extend_chain(context, long, 1)
        early.append(between - before)
        late.append(cpu_of(server.pid) - between)
    rows = [tell_growth(f"response {length:,} of a chain", middle(early), middle(late), "1.3 x")]
    before_it = (await list_turn_costs(context, 50))[5:45]
    last = (await list_turn_costs(context, length))[-40:]
    after_it = (await list_turn_costs(context, 50))[5:45]
    return [*rows, tell_growth(f"turn {length:,} of a run", mean(before_it + after_it), mean(last), "1.5 x")]


async def list_turn_costs(context: Context, length: int) -> list[float]:
    """What each turn costs of a run of that many, with two calls in each. A client may be told of several turns at once, so only
    a mean says something."""
    server = context.targets[0]
    moments = [cpu_of(server.pid) async for _ in context.load.follow_calls(server, length)][::2]
    return [after - before for before, after in pairwise(moments)]


async def extend_chain(context: Context, previous: str | None, length: int) -> str | None:
    for _ in range(length):
        told = await context.load.ask(context.targets[0], "small", previous_response_id=previous)
        previous = str(json.loads(told)["id"])
    return previous


def tell_growth(name: str, early: float, late: float, aim: str) -> Row:
    note = f"{late / early:.2f} x the tenth ({early * 1e6:,.0f} us)"
    return Row(name, "us", {"mainspring": late * 1e6}, aim=aim, note=note)


async def measure_bytes(context: Context) -> list[Row]:
    load, times = context.load, 100 if context.quick else 300
    with mainspring(context.ports) as server:
        await load.ask(server, "small")
        small = await bytes_for(server, times, lambda: load.ask(server, "small"))
        one = await bytes_for(server, 20, lambda: load.ask(server, "deltas 1", stream=True))
        burst = await bytes_for(server, 20, lambda: load.ask(server, "deltas 500", stream=True))
        paced = await bytes_for(server, 20, lambda: load.ask(server, "paced 100 200", stream=True), at_once=True)
    return [
        Row("database, a small response", "bytes", {"mainspring": small}, aim="3,000"),
        Row("database, a delta in a burst", "bytes", {"mainspring": (burst - one) / 499}, aim="20"),
        Row("database, a delta of a stream of 100 a second", "bytes", {"mainspring": (paced - one) / 199}, aim="20"),
    ]


async def bytes_for(server: Target, times: int, work: Callable[[], Awaitable[object]], *, at_once: bool = False) -> float:
    before = count_bytes(server)
    if at_once:
        await asyncio.gather(*[work() for _ in range(times)])
    else:
        for _ in range(times):
            await work()
    await wait_until_quiet(server.pid)
    return (count_bytes(server) - before) / times


def count_bytes(server: Target) -> int:
    """Of all pages in use, whether they are in the file or in its log."""
    with closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True, timeout=10)) as connection:
        size, pages, free = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        ]
    return int(size * (pages - free))
