"""The server under test, as its operator starts it: a process of its own, with a database in a file."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from tests.kit.processes import start
from tests.kit.waiting import PATIENCE

_OURS = ("MAINSPRING_", "OPENAI_")


class Served(Struct, frozen=True):
    """A running server: where it listens, and the file that its complaints go to."""

    url: str
    port: int
    log: Path

    def complaints(self) -> str:
        return self.log.read_text()


@contextmanager
def served(folder: Path, upstream: str, options: Sequence[str] = ()) -> Iterator[Served]:
    """`mainspring serve`, from its start until it has stopped."""
    log = folder / "log"
    command = ["serve", "--port", "0", "--database", "mainspring.db", "--base-url", upstream, *options]
    with log.open("wb") as complaints:
        process = start([sys.executable, "-m", "mainspring", *command], cwd=folder, env=environment(), stderr=complaints.fileno())
    alarm = threading.Timer(PATIENCE, process.kill)
    alarm.start()
    with process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            alarm.cancel()
            found = re.search(r"http://[\d.]+:(\d+)/v1", said)
            assert found, f"the server did not start: {said}{log.read_text()}"
            yield Served(found[0], int(found[1]), log)
        finally:
            alarm.cancel()
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def environment(**more: str) -> dict[str, str]:
    """Ours, without what a client or the server would heed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}
