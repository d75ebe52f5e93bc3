"""The benches start, say what they are for, and measure what they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent
PARTS = {"big_tables", "counted", "minilm", "peers", "processes", "scenarios", "targets", "upstream"}
PARTS |= {"simulate_scale"}  # it measures nothing, so it needs no deadline
BENCHES = sorted(file.stem for file in (ROOT / "bench").glob("*.py") if file.stem not in PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_explains_itself_and_has_a_deadline(name: str, tmp_path: Path) -> None:
    """From any folder, by the name of its file."""
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--help"]
    told = run(command, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "--deadline" in told.stdout


@pytest.mark.slow
def test_the_bench_of_the_server_measures_it_beside_the_forwarders(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "bench" / "serve.py"),
        "s1",
        "s3",
        "bytes",
        "--quick",
        "--rounds",
        "1",
        "--deadline",
        "50",
    ]
    told = subprocess.run([*command, "--json", "rows.json"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert told.returncode == 0, told.stdout + told.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [set(row["figures"]) for row in rows] == [{"mainspring", "calibrator", "floor"}, *[{"mainspring"}] * 5]
    assert all(figure > 0 for row in rows for figure in row["figures"].values())


def test_a_bench_that_hangs_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "serve.py"), "s1", "--rounds", "100000", "--deadline", "4"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert told.returncode == 3
    assert "not done after 4 s" in told.stdout
