"""The simulation of a large deployment: what it says follows from its figures, and the docs say what it says."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.simulate_scale import Figures, Load, Machines, Use, find_first, measure_use, simulate_day
from tests.kit.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_the_peak_is_as_many_times_the_mean_as_was_asked_for() -> None:
    minutes = simulate_day(Load(runs_a_day=10_000_000, peak=5))
    runs = [minute.runs for minute in minutes]
    assert max(runs) / (sum(runs) / len(runs)) == pytest.approx(5, rel=0.05)
    assert sum(runs) * 60 == pytest.approx(10_000_000, rel=0.01)


def use_of(load: Load, machines: Machines, resource: str) -> Use:
    [found] = [use for use in measure_use(simulate_day(load), load, machines, Figures()) if use.resource == resource]
    return found


def test_streams_cost_what_their_deltas_do() -> None:
    idle, busy = Load(runs_a_day=0), Load(runs_a_day=0, streams=1000)
    figures = Figures()
    cores = use_of(busy, Machines(), "CPU of the servers").needed - use_of(idle, Machines(), "CPU of the servers").needed
    assert cores == pytest.approx(1000 * busy.delta_rate * figures.server_us_per_delta / 1e6, rel=0.01)


def test_more_servers_help_until_the_database_ends_and_shards_from_then_on() -> None:
    crowd = Load(streams=100_000)
    shares = [
        find_first(measure_use(simulate_day(crowd), crowd, replace(Machines(), servers=servers, shards=shards), Figures()))
        for servers, shards in ((3, 1), (4, 1), (32, 1), (64, 1), (64, 4))
    ]
    assert [use.resource for use in shares] == ["CPU of the servers"] * 2 + ["log of a database"] * 3
    assert shares[0].share > shares[1].share > shares[2].share
    assert shares[2].share == shares[3].share > shares[4].share


def test_the_docs_show_what_it_prints() -> None:
    command = [sys.executable, str(ROOT / "bench/simulate_scale.py")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    page = (ROOT / "docs/deployment.md").read_text()
    lines = [line for line in printed.splitlines() if line and not line.startswith("###")]
    assert len(lines) > 20
    assert [line for line in lines if line not in page] == []
