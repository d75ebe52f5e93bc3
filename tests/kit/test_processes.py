"""A forked process is like one that was started: its code, its streams, its environment, its end."""

import os
import signal
import sys
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from tests.kit.processes import PIPE, STDOUT, run, start


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", -2), ("import os; os.abort()", -6)],
)
def test_its_end_is_that_of_an_interpreter(code: str, status: int) -> None:
    assert run(python(code)).returncode == status


def test_it_has_its_own_folder_environment_and_arguments(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv[1:], input())"
    ended = run(python(code, "a", "b"), "given\n", cwd=tmp_path, env={"NAME": "value"})
    assert ended.stdout == f"{tmp_path} {{'NAME': 'value'}} ['a', 'b'] given\n"


def test_modules_of_its_folder_are_found_and_files_are_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    for command in (["-m", "mine", "1"], [str(tmp_path / "mine.py"), "1"]):
        assert run([sys.executable, *command], cwd=tmp_path).stdout == "__main__ 1\n"


def test_it_can_be_killed_at_any_time() -> None:
    with start(python("print('on', flush=True); input()"), stdin=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        assert process.poll() is None
        with pytest.raises(TimeoutExpired):
            process.wait(0.01)
        assert process.pid != os.getpid()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_what_it_says_at_its_end_and_in_both_streams_arrives() -> None:
    code = "import atexit, sys; atexit.register(print, 'last'); print('x' * 200_000); print('error', file=sys.stderr)"
    assert run(python(code)) == (0, "x" * 200_000 + "\nlast\n", "error\n")
    with start(python(code), stderr=STDOUT) as process:
        assert "error" in process.communicate()[0]
