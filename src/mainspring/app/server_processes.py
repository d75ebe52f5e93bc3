"""`mainspring serve --workers N`: looks after the processes that serve one address, and does nothing else.

Theory of operation. The socket listens before this process begins, and every process that it starts inherits it. They accept from
one queue of the kernel, so a connection waits for whoever has time, and none is lost with a process that is killed. Ports that
are shared by `SO_REUSEPORT` would give each process a queue of its own, and reset what is in it when its owner dies.

The first process starts alone: it brings the database up to date, and what is wrong with the settings is told once. A link, a
pair of sockets, joins each process to this one. The process says there once that it is ready, and learns by its end that nobody
looks after it any more. One that dies is replaced, at once at first, then with exponential backoff. SIGTERM and SIGINT are passed
on; SIGHUP replaces the processes one after the other by new ones, which read the settings again. One that does not stop in time
is killed. This module imports next to nothing, since it stays for as long as the server does.

    python -m mainspring.app.server_processes SETTINGS FILE LISTENER COUNT DRAIN_SECONDS
"""

import os
import select
import signal
import sys
import time
from socket import socket, socketpair

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# A process that has lived so long did not die of its start.
STEADY_SECONDS = 10.0
# The number of connections of a process that takes none, as the processes share it.
NOBODY = (2**63 - 1).to_bytes(8, sys.byteorder)
# What a process may take beyond the time for its runs, until it is killed.
SPARE_SECONDS = 20.0


class ServerProcess:
    """A process that serves. `place` is where it keeps its metrics, for it and for whoever comes after it."""

    def __init__(self, pid: int, link: socket, place: int) -> None:
        self.pid, self.link, self.place = pid, link, place
        self.begun, self.kill_at = time.monotonic(), float("inf")
        self.is_ready = self.is_leaving = False


class ServerProcesses:
    """Keeps `count` processes that serve."""

    def __init__(self, settings: int, file: str, listener: int, count: int, drain_seconds: float) -> None:
        self._settings, self._file, self._listener, self._count = settings, file, listener, count
        self._patience = drain_seconds + SPARE_SECONDS
        # One more than there are processes: while one is replaced, both have a place.
        self._places = [make_shared_file(f"metrics{number}") for number in range(count + 1)]
        # How many connections the process of each place has; without one, none is expected to take any.
        self._loads = make_shared_file("connections")
        os.pwrite(self._loads, NOBODY * len(self._places), 0)
        self._processes: dict[int, ServerProcess] = {}
        self._stale: list[int] = []
        self._announcement = ""
        self._is_announced = self._is_stopping = False
        self._failures, self._not_before = 0, 0.0
        self._code = 0
        self._had_terminal = os.isatty(0)

    def run(self) -> int:
        """Supervises until it is told to stop, and returns the exit code."""
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        for each in (*SIGNALS, signal.SIGCHLD):
            signal.signal(each, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        while not self._is_stopping or self._processes:
            pause = self._act(time.monotonic())
            waiting = {process.link.fileno(): process for process in self._processes.values() if not process.is_ready}
            for descriptor in select.select([woken, *waiting], [], [], pause)[0]:
                if descriptor == woken:
                    for number in os.read(woken, 4096):
                        self._take_signal(number)
                else:
                    self._hear(waiting[descriptor])
            self._reap()
        return self._code

    def _act(self, now: float) -> float | None:
        """Starts, replaces and ends what is due. Returns in how many seconds there is more to do, None if that is not known."""
        for process in self._processes.values():
            if now >= process.kill_at:
                late = f"the server process {process.pid} has not stopped within {self._patience:g} s, and is killed"
                print(f"mainspring: {late}", file=sys.stderr, flush=True)
                os.kill(process.pid, signal.SIGKILL)
                process.kill_at = float("inf")
        due = min([self._start_due(now), *[process.kill_at for process in self._processes.values()]])
        return None if due == float("inf") else max(due - now, 0.0)

    def _start_due(self, now: float) -> float:
        """Starts a process if one is missing. Returns when there may be another to start."""
        staying = [process for process in self._processes.values() if not process.is_leaving]
        is_settled = len(staying) == len(self._processes) and all(process.is_ready for process in staying)
        wanted = self._count + bool(self._stale and is_settled) if self._announcement else 1
        if self._is_stopping or len(staying) >= wanted:
            return float("inf")
        if now >= self._not_before:
            self._start()
            return now
        return self._not_before

    def _start(self) -> None:
        taken = [process.place for process in self._processes.values()]
        place = next(place for place in self._places if place not in taken)
        ours, theirs = socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            others = [each for each in self._places if each != place]
            described = [self._listener, theirs.fileno(), self._count, int(not self._announcement)]
            described += [self._loads, self._places.index(place), place, *others]
            command = [sys.executable, "-P", "-m", "mainspring.app.serve", str(self._settings), self._file]
            pid = os.posix_spawn(
                sys.executable,
                [*command, ",".join([str(number) for number in described])],
                os.environ,
                setpgroup=0,  # Ctrl-C reaches them through this process alone
                setsigdef=[*SIGNALS, signal.SIGCHLD],
            )
        self._processes[pid] = ServerProcess(pid, ours, place)

    def _hear(self, process: ServerProcess) -> None:
        """What a process says of itself: that it is ready, or nothing, when it has died."""
        if not (said := process.link.recv(65_536)):
            return
        process.is_ready, self._announcement = True, self._announcement or said.decode()
        # One that only takes the place of a process that has died replaces no other.
        if self._stale and sum([not each.is_leaving for each in self._processes.values()]) > self._count:
            self._leave(self._stale.pop(0))
        if not self._is_announced and sum([each.is_ready for each in self._processes.values()]) >= self._count:
            self._is_announced = True
            print(self._announcement, flush=True)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGHUP and os.isatty(0) is self._had_terminal:
            if not self._is_stopping and self._is_announced:
                self._stale = [pid for pid, process in self._processes.items() if not process.is_leaving]
        elif number in SIGNALS:  # a terminal that is gone says SIGHUP as well
            self._is_stopping, self._stale = True, []
            for process in self._processes.values():
                self._stop(process, signal.SIGTERM if number == signal.SIGHUP else number)

    def _stop(self, process: ServerProcess, number: int) -> None:
        process.kill_at = min(process.kill_at, time.monotonic() + self._patience)
        os.kill(process.pid, number)  # whoever has ended is not reaped yet, so the number is still theirs

    def _leave(self, pid: int) -> None:
        if (process := self._processes.get(pid)) is not None:
            process.is_leaving = True
            self._stop(process, signal.SIGTERM)

    def _reap(self) -> None:
        """Takes note of every process that has ended. As the first of a container, this one has orphans, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (process := self._processes.pop(pid, None)) is not None:
                process.link.close()
                os.pwrite(self._loads, NOBODY, self._places.index(process.place) * len(NOBODY))
                self._stale = [stale for stale in self._stale if stale != pid]
                self._judge_end(process, os.waitstatus_to_exitcode(status))

    def _judge_end(self, process: ServerProcess, code: int) -> None:
        positive = code if code >= 0 else 128 - code
        if self._is_stopping or not self._announcement:
            self._code, self._is_stopping = self._code or positive, True
        elif not process.is_leaving:
            lived = time.monotonic() - process.begun
            self._failures = self._failures + 1 if lived < STEADY_SECONDS else 0
            pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE) if self._failures else 0.0
            self._not_before = time.monotonic() + pause
            then = f"another starts in {pause:g} s"
            if self._stale and not process.is_ready:
                self._stale, then = [], "the others stay as they are"
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            print(f"mainspring: the server process {process.pid} ended {how}; {then}", file=sys.stderr, flush=True)


def make_shared_file(name: str) -> int:
    """A file without a name, for the processes that are started from here."""
    if sys.platform == "linux":
        file = os.memfd_create(name)
    else:
        from tempfile import TemporaryFile

        with TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.set_inheritable(file, True)
    return file


if __name__ == "__main__":
    _settings, _path, _listener, _count, _drain = sys.argv[1:]
    sys.exit(ServerProcesses(int(_settings), _path, int(_listener), int(_count), float(_drain)).run())
