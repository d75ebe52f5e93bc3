"""A process killed with SIGKILL, again and again: its runs end all the same, and nothing that finished happens twice."""

import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.kit.processes import run, start

from mainspring.core.events import RunResumed, ToolEnded
from mainspring.core.history import History
from mainspring.core.run import replay
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location

KILLS = 60
WORKER = Path(__file__).with_name("worker.py")


def killed_once(database: str, tally: Path, delay: float) -> tuple[str, str | None]:
    """Starts the worker and kills it `delay` seconds into its run; returns the run's id and, if it was faster, its status."""
    with start([sys.executable, str(WORKER), database, str(tally)]) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        run_id = worker.stdout.readline().strip()
        if not run_id:
            raise AssertionError(f"the worker did not start: {worker.stderr.read()}")
        time.sleep(delay)
        worker.kill()
        status = worker.stdout.readline().strip()
        return run_id, status or None


@pytest.mark.slow
async def test_a_run_killed_at_random_points_ends_and_no_finished_tool_runs_twice(location: Location, tmp_path: Path) -> None:
    database, tally = location.given, tmp_path / "tally"
    dice = random.Random(20)
    wanted = KILLS if location.file is not None else KILLS // 3
    kills = 0
    while kills < wanted:
        _, status = killed_once(database, tally, dice.uniform(0, 0.1))
        kills += status is None
    finished(database, tally)

    counted = Counter(tally.read_text().splitlines())
    twice = [line for line, count in counted.items() if count > 1 and not line.startswith("begin again")]
    assert not twice, "a tool that may not be repeated was"
    resumed = 0
    async with open_store(location) as store:
        runs = (await store.list(limit=100)).runs
        for stored in runs:
            log = await store.events(stored.id)
            assert replay(log, History()).text == "The end."
            assert stored.status == "completed"
            resumed += sum(isinstance(record.event, RunResumed) for record in log)
            finished_tools = sum(isinstance(record.event, ToolEnded) for record in log)
            assert finished_tools == 30, "every call has exactly one end"
    assert resumed >= wanted // 2, "the kills did hit runs under way"


def finished(database: str, tally: Path) -> tuple[str, str]:
    """Lets the last run end in peace."""
    done = run([sys.executable, str(WORKER), database, str(tally)])
    assert done.returncode == 0, done.stderr
    run_id, status = done.stdout.split()
    return run_id, status
