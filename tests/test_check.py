"""What `./check` does with tests that fail."""

import json
from pathlib import Path

import pytest
from scripts.check import MOST_UNSTEADY, Step, rerun_few_failed, run_step

FLAKY = """
from pathlib import Path

def test_fails_the_first_time():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = "def test_always_fails():\n    assert False\n"


@pytest.fixture(autouse=True)
def plain_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest within this one loads no plugin, which takes most of its time, and is told nothing that this one is."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def pytest_step(folder: Path, source: str) -> Step:
    (folder / "test_it.py").write_text(source)
    cache = folder / "cache"
    command = ["pytest", "-q", "-o", f"cache_dir={cache}", str(folder / "test_it.py")]

    def again() -> list[str] | None:
        rerun = rerun_few_failed(cache)
        return rerun and [*rerun, str(folder / "test_it.py")]

    return Step("tests", [command], cwd=folder, again=again)


async def test_a_test_that_passes_the_second_time_is_told_and_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run_step(pytest_step(tmp_path, FLAKY))
    printed = capsys.readouterr().out
    assert "UNSTEADY" in printed
    assert "test_fails_the_first_time" in printed


async def test_a_test_that_fails_twice_fails_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not await run_step(pytest_step(tmp_path, BROKEN))
    printed = capsys.readouterr().out
    assert "UNSTEADY" not in printed
    assert printed.count("exit status 1") == 2, "both tries are shown"


async def test_tests_that_were_never_run_are_not_made_good_by_the_one_that_failed(tmp_path: Path) -> None:
    interrupted = "def test_is_interrupted():\n    raise KeyboardInterrupt\n\ndef test_never_runs():\n    pass\n"
    assert not await run_step(pytest_step(tmp_path, FLAKY + interrupted))


def test_many_failed_tests_are_not_run_again(tmp_path: Path) -> None:
    record = tmp_path / "v" / "cache" / "lastfailed"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({f"test_{number}": True for number in range(MOST_UNSTEADY + 1)}))
    assert rerun_few_failed(tmp_path) is None
    assert rerun_few_failed(tmp_path / "absent") is None
