"""The gate that counts instructions: what it counts is really done, and its verdict."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.counts import Row, compare, find_valgrind, read_dump, report
from tests.kit.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


def test_the_work_is_done_to_the_end_in_the_same_steps_each_time(tmp_path: Path) -> None:
    """The clock of the work goes on by a step whenever it is read; on busy cores the event loop reads it a few times more."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "bench.counted"]
    told = [
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE).stdout
        for _ in range(2)
    ]
    first, second = [
        {name: float(seconds) for name, seconds in re.findall(r"^(.+): ([\d.]+) s by the clock of the work$", each, re.MULTILINE)}
        for each in told
    ]
    assert len(first) == 4, told[0]
    assert first == pytest.approx(second, rel=0.01)
    assert not list(tmp_path.iterdir())


def test_a_count_may_be_a_tenth_above_its_record_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([Row("a", 110, 100), Row("b", 90, 100)]) == 0
    assert report([Row("a", 111, 100), Row("b", 90, 100)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(": a")


def test_counts_of_another_interpreter_are_shown_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(compare({"a": 111_000_000}, None)) == 0
    shown = capsys.readouterr().out
    assert "111.0 M" in shown
    assert "not judged" in shown


def test_a_dump_of_callgrind_is_read() -> None:
    assert read_dump("desc: Trigger: Client Request: 5 turns\n...\ntotals: 1234\n") == ("5 turns", 1234)
    assert read_dump("desc: Trigger: Program termination\ntotals: 1\n") is None


def test_without_valgrind_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_valgrind(tmp_path) is None


@pytest.mark.parametrize("reason", ["", "because"])
def test_a_record_needs_a_reason(reason: str) -> None:
    command = [sys.executable, "-m", "scripts.counts", "--record", reason]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE).returncode == 2
