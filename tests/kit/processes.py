"""Processes of ours for tests: forked from one that has imported everything, which is fast, and real for all that.

`start` takes the commands that `subprocess.Popen` takes, as long as they begin with this interpreter, and returns a process
with the same methods; its streams are text. Tests of what an interpreter does at its start use `subprocess`.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from types import TracebackType
from typing import IO, NamedTuple

from tests.kit.waiting import PATIENCE

from mainspring.app.serve_command import LARGE_BYTES

__all__ = ["DEVNULL", "PIPE", "ROOT", "STDOUT", "Ended", "Process", "run", "start"]

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """What became of a process."""

    returncode: int
    stdout: str
    stderr: str


class Process:
    """A running command; the streams that are no pipes are None. Whoever leaves its `with` block has waited for its end."""

    def __init__(self, pid: int, control: socket.socket, pipes: Sequence[IO[str] | None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = pipes
        self._control = control
        self._turn = threading.Lock()
        weakref.finalize(self, control.close)

    def poll(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes to it, reads all that it says, and waits for its end. Raises `subprocess.TimeoutExpired`."""
        said: dict[IO[str], str] = {}

        def write(stream: IO[str]) -> None:
            with suppress(BrokenPipeError):
                stream.write(given)
                stream.close()

        def read(stream: IO[str]) -> None:
            said[stream] = stream.read()
            stream.close()

        ways = [(write, self.stdin), (read, self.stdout), (read, self.stderr)]
        threads = [threading.Thread(target=way, args=(pipe,), daemon=True) for way, pipe in ways if pipe is not None]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        out, err = [said.get(pipe, "") if pipe else "" for pipe in (self.stdout, self.stderr)]
        return out, err

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def _ended(self, timeout: float | None) -> int | None:
        """Several threads may wait, while another sends a signal."""
        if self.returncode is None and select.select([self._control], [], [], timeout)[0]:
            with self._turn:
                if self.returncode is None:
                    self.returncode = _number(self._control)
        return self.returncode


def start(
    command: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
    start_new_session: bool = False,
) -> Process:
    """Starts `[sys.executable, ...]` with `-m MODULE`, `-c CODE` or a file, and arguments."""
    assert command[0] == sys.executable, "only this interpreter has been started beforehand"
    theirs: list[int] = []
    pipes: list[IO[str] | None] = []
    for target, given in enumerate((stdin, stdout, stderr)):
        end, pipe = theirs[1] if given == STDOUT else given, None
        if given == PIPE:
            reads, writes = os.pipe()
            end, ours = (reads, writes) if target == 0 else (writes, reads)
            pipe = os.fdopen(ours, "w" if target == 0 else "r", encoding="utf-8", newline="\n")
        elif given == DEVNULL:
            end = os.open(os.devnull, os.O_RDWR)
        theirs.append(end)
        pipes.append(pipe)
    control, other = socket.socketpair()
    order = (list(command[1:]), str(cwd or os.getcwd()), dict(os.environ if env is None else env), start_new_session)
    with _sending, other:
        socket.send_fds(_server().requests, [b"+"], [other.fileno(), *theirs])
    for end, given in zip(theirs, (stdin, stdout, stderr), strict=True):
        if given in (PIPE, DEVNULL):
            os.close(end)
    control.sendall(json.dumps(order).encode() + b"\n")
    return Process(_number(control), control, pipes)


def run(command: Sequence[str], given: str = "", *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> Ended:
    """Runs a command to its end; kills it if that does not come."""
    process = start(command, cwd=cwd, env=env, stdin=PIPE)
    try:
        out, err = process.communicate(given, 2 * PATIENCE)
        return Ended(process.wait(), out, err)
    finally:
        process.kill()


class _Server(NamedTuple):
    requests: socket.socket
    process: "subprocess.Popen[bytes]"


_sending = threading.Lock()


@cache
def _server() -> _Server:
    """Started by the first who needs it; it ends with this process, which holds the other end of its socket."""
    requests, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fork_server", str(theirs.fileno())],
            cwd=ROOT,
            # As `mainspring serve` has it for the process that serves; the C library reads it only when a process starts.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(LARGE_BYTES), "MALLOC_TRIM_THRESHOLD_": str(LARGE_BYTES)},
            stdin=DEVNULL,
            stdout=DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return _Server(requests, process)


def _number(control: socket.socket) -> int:
    """The next number that the server tells of a worker."""
    said = b""
    while not said.endswith(b"\n"):
        piece = control.recv(1)
        assert piece, "the fork server has ended"
        said += piece
    return int(said)
