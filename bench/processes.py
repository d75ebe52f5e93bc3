"""Processes that a bench starts, and what the operating system says of them."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

START_SECONDS = 60.0


def parse_options(parser: ArgumentParser, seconds: float = 600.0) -> Namespace:
    """The options of a bench. All have a deadline, which holds from here on."""
    parser.add_argument(
        "--deadline", type=float, default=seconds, help="seconds until it is ended, whatever it does (default %(default).0f)"
    )
    options = parser.parse_args()
    limit_time(options.deadline)
    return options


def limit_time(seconds: float) -> None:
    """Ends this process, and with it what it has started, if it takes longer than that."""

    def end_all() -> None:
        print(f"{Path(sys.argv[0]).name}: not done after {seconds:.0f} s; ended (--deadline gives it longer)", flush=True)
        for started in list(_STARTED):
            end(started)
        os._exit(3)

    timer = threading.Timer(seconds, end_all)
    timer.daemon = True
    timer.start()


_STARTED: set["subprocess.Popen[str]"] = set()


def end(started: "subprocess.Popen[str]") -> None:
    """Ends the process and what it has started itself, which is a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def cpu_of(pid: int) -> float:
    """CPU seconds of all its threads so far, by the clock that Linux keeps for every process."""
    return time.clock_gettime(~pid << 3 | 2)


def memory_of(pid: int) -> int:
    """Bytes of memory that are its own, not shared with others as libraries are."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(
    *command: str,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    ready: str = "",
    output: TextIO | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """A process that has printed a line with `ready` in it. Raises `RuntimeError` with its errors if it ends or stays silent.

    One that prints to `output` is not waited for.
    """
    with ExitStack() as stack:
        errors = output or stack.enter_context(tempfile.TemporaryFile("w+"))
        started = subprocess.Popen(
            command, stdout=output or subprocess.PIPE, stderr=errors, text=True, cwd=cwd, env=env, start_new_session=True
        )
        _STARTED.add(started)
        try:
            if output is None and not _is_ready(started, ready):
                errors.seek(0)
                raise RuntimeError(f"{' '.join(command)} does not start:\n{errors.read()[-3000:]}")
            yield started
        finally:
            end(started)
            if started.stdout is not None:
                started.stdout.close()
            _STARTED.discard(started)


def _is_ready(started: "subprocess.Popen[str]", ready: str) -> bool:
    assert started.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(started.stdout, selectors.EVENT_READ)
        while selector.select(max(deadline - time.monotonic(), 0)):
            line = started.stdout.readline()
            if not line or ready in line:
                return bool(line)
    return False
