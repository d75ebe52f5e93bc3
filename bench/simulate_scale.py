"""One million runs a day, or 100,000 open streams: which resource ends first, and what one more machine buys.

    python bench/simulate_scale.py                    # the tables of docs/deployment.md
    python bench/simulate_scale.py --runs 5000000 --streams 0 --shards 4
    python bench/simulate_scale.py --set server_us_per_delta=104

A day is simulated minute by minute: runs arrive at random around a curve whose peak is five times its mean, and have a random
number of deltas. What a minute takes of each resource is added up from figures that the other benches measured, and held against
what machines have. It is arithmetic: it knows no queues, no network, no noisy neighbours. So it says what ends
first and about where, not how late an answer comes.
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

MINUTES = 1440


@dataclass(frozen=True)
class Figures:
    """What things cost, measured on the machine of docs/performance.md."""

    server_us_per_run: float = 928.0
    """CPU of a server: a small request (bench/serve.py, S1)."""
    server_us_per_turn: float = 1_943.0
    """A turn with two calls (S3)."""
    server_us_per_delta: float = 60.6
    """A delta among 1,000 paced streams (S4)."""
    postgres_us_per_run: float = 500.0
    """CPU of PostgreSQL for a small stored request."""
    postgres_us_per_delta: float = 13.0
    """For a delta among 100 streams, several in one statement."""
    stream_kb: float = 43.5
    """Memory of a server for an open stream (S5)."""
    run_bytes: float = 3_482.0
    """Room in PostgreSQL, measured by `pg_total_relation_size`, of a small run."""
    delta_bytes: float = 172.0
    """And of a delta that is the only one of its run in a batch."""
    wal_run_bytes: float = 3_350.0
    """What PostgreSQL logs of a small run, measured by `pg_current_wal_lsn`."""
    wal_delta_bytes: float = 346.0
    """And of a delta that is the only one of its run in a batch."""
    wire_delta_bytes: float = 260.0
    """An event on its way to the client."""
    process_mb: float = 70.0


@dataclass(frozen=True)
class Load:
    """What users do. Deltas come at `delta_rate` a second while a turn is written."""

    runs_a_day: float = 1_000_000
    peak: float = 5.0
    turns: float = 2.0
    deltas: float = 160.0
    delta_rate: float = 20.0
    streams: float = 0.0
    """Streams that are open and written to the whole day, besides the runs."""


@dataclass(frozen=True)
class Machines:
    servers: int = 3
    server_cores: float = 8.0
    server_gb: float = 32.0
    server_gbit: float = 10.0
    shards: int = 1
    """Databases; tenants are spread over them."""
    database_cores: float = 32.0
    database_wal_mb: float = 200.0
    """What the disk takes of the write-ahead log in a second, with fsync."""
    connections: int = 500
    skew: float = 1.3
    """How much more than its share the busiest database has."""


@dataclass(frozen=True)
class Minute:
    """What a second of the busiest minute needs."""

    runs: float
    deltas: float
    open_streams: float


@dataclass(frozen=True)
class Use:
    resource: str
    needed: float
    there: float
    unit: str

    grows: bool = True
    """Whether it grows with the load, and not only with the machines."""

    @property
    def share(self) -> float:
        return self.needed / self.there


def simulate_day(load: Load, seed: int = 16) -> list[Minute]:
    """A second of each minute of a day. Numbers are drawn, sums of many of them as one draw from their normal distribution."""
    dice = random.Random(seed)
    mean = load.runs_a_day / MINUTES
    # A curve whose mean is 1 and whose highest point is `peak`.
    power = _find_power(load.peak)
    shape = [((1 + math.cos(2 * math.pi * (minute - 840) / MINUTES)) / 2) ** power for minute in range(MINUTES)]
    level = sum(shape) / MINUTES
    minutes = []
    for each in shape:
        expected = mean * each / level
        runs = max(0.0, dice.gauss(expected, math.sqrt(expected)))
        # A run's deltas are spread like those of conversations: their deviation is about their mean.
        deltas = max(0.0, dice.gauss(runs * load.deltas, load.deltas * math.sqrt(runs + 1)))
        under_way = deltas / 60 / load.delta_rate
        minutes.append(Minute(runs / 60, deltas / 60 + load.streams * load.delta_rate, under_way + load.streams))
    return minutes


def _find_power(peak: float) -> float:
    """The exponent that makes the highest point of the curve `peak` times its mean."""
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        shape = [((1 + math.cos(2 * math.pi * minute / MINUTES)) / 2) ** middle for minute in range(MINUTES)]
        low, high = (middle, high) if MINUTES / sum(shape) < peak else (low, middle)
    return low


def measure_use(minutes: Sequence[Minute], load: Load, machines: Machines, figures: Figures) -> list[Use]:
    """What the busiest moment takes of each resource; of databases, the busiest one."""
    runs = max(minute.runs for minute in minutes)
    deltas = max(minute.deltas for minute in minutes)
    streams = max(minute.open_streams for minute in minutes)
    part = machines.skew / machines.shards if machines.shards > 1 else 1.0
    server = runs * (figures.server_us_per_run + load.turns * figures.server_us_per_turn) + deltas * figures.server_us_per_delta
    database = (runs * figures.postgres_us_per_run + deltas * figures.postgres_us_per_delta) * part
    wal = (runs * figures.wal_run_bytes + deltas * figures.wal_delta_bytes) * part
    processes = machines.servers * machines.server_cores
    memory = (streams * figures.stream_kb / 1e6 + processes * figures.process_mb / 1e3) / machines.servers
    wire = deltas * figures.wire_delta_bytes * 8 / 1e9 / machines.servers
    return [
        Use("CPU of the servers", server / 1e6, machines.servers * machines.server_cores, "cores"),
        Use("memory of a server", memory, machines.server_gb, "GB"),
        Use("network of a server", wire, machines.server_gbit, "Gbit/s"),
        Use("CPU of a database", database / 1e6, machines.database_cores, "cores"),
        Use("log of a database", wal / 1e6, machines.database_wal_mb, "MB/s"),
        Use("connections to a database", processes * 6, machines.connections, "", grows=False),
    ]


def list_disk(load: Load, minutes: Sequence[Minute], figures: Figures) -> float:
    """Gigabytes that a day adds to the databases."""
    deltas = sum([minute.deltas for minute in minutes]) * 60
    return (load.runs_a_day * figures.run_bytes + deltas * figures.delta_bytes) / 1e9


def print_table(title: str, uses: Sequence[Use], gigabytes: float) -> None:
    print(f"\n### {title}\n\n| resource | needed at the peak | there is | used |\n|---|---|---|---|")
    for use in sorted(uses, key=lambda each: -each.share):
        print(f"| {use.resource} | {use.needed:,.1f} {use.unit} | {use.there:,.0f} {use.unit} | {use.share:.0%} |")
    first = find_first(uses)
    print(f"\nThe {first.resource} ends first, at {1 / first.share:.2f} times this load. {gigabytes:,.0f} GB a day are stored.")


def find_first(uses: Sequence[Use]) -> Use:
    """The resource that ends first as the load grows."""
    return max([use for use in uses if use.grows], key=lambda use: use.share)


def print_growth(load: Load, machines: Machines, figures: Figures) -> None:
    """What one more server, or one more database, buys."""
    minutes = simulate_day(load)
    print("\n| servers | databases | load that it carries | ends first |\n|---|---|---|---|")
    for servers, shards in [(3, 1), (4, 1), (8, 1), (16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4), (128, 8)]:
        these = replace(machines, servers=servers, shards=shards)
        first = find_first(measure_use(minutes, load, these, figures))
        print(f"| {servers} | {shards} | {1 / first.share:,.2f} x | the {first.resource} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=float, default=1_000_000, help="runs a day")
    parser.add_argument("--streams", type=float, default=100_000, help="open streams, in the second table")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="FIGURE=NUMBER", help="another figure, as measured by you")
    given = parser.parse_args()
    known = {field.name for field in fields(Figures)}
    changes = {}
    for pair in given.set:
        name, _, number = pair.partition("=")
        if name not in known:
            parser.error(f"there is no figure `{name}`; known: {', '.join(sorted(known))}")
        changes[name] = float(number)
    figures, machines = replace(Figures(), **changes), Machines(servers=given.servers, shards=given.shards)
    day = Load(runs_a_day=given.runs)
    minutes = simulate_day(day)
    title = f"{given.runs:,.0f} runs a day, {machines.servers} servers, {machines.shards} database(s)"
    print_table(title, measure_use(minutes, day, machines, figures), list_disk(day, minutes, figures))
    if given.streams:
        crowd = replace(day, streams=given.streams)
        minutes = simulate_day(crowd)
        title = f"{given.streams:,.0f} open streams of {crowd.delta_rate:.0f} deltas a second besides"
        print_table(title, measure_use(minutes, crowd, machines, figures), list_disk(crowd, minutes, figures))
        print(f"\n### What one more machine buys, as a share of those {given.streams:,.0f} streams")
        print_growth(crowd, machines, figures)


if __name__ == "__main__":
    main()
