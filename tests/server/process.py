"""A real server process for tests: `mainspring serve` on a free port, with a scripted model from a file."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.databases import database_in
from tests.kit.processes import STDOUT, Process, start

Script = list[dict[str, object]]


class Served:
    """A running server. `url` ends in `/v1`; `warnings` is what it said before it listened."""

    def __init__(self, process: Process, url: str, warnings: str = "") -> None:
        self.process = process
        self.url = url
        self.warnings = warnings

    def kill(self) -> None:
        """No goodbye, as in a crash."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """A polite stop; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(
    folder: Path,
    turns: Script,
    *options: str,
    env: dict[str, str] | None = None,
    database: str | None = "served.db",
    chunk: int = 1,
) -> Iterator[Served]:
    """`chunk` is how many characters the model says at a time."""
    options = ("--port", "0", *options)
    with _starting(folder, turns, "serve", *options, env=env, database=database, chunk=chunk, ready=" listens at ") as served:
        yield served


@contextmanager
def working(folder: Path, turns: Script, *options: str) -> Iterator[Served]:
    """A worker on the same database. Its `url` is nothing."""
    with _starting(folder, turns, "worker", *options, ready=" waits for runs ") as worker:
        yield worker


@contextmanager
def _starting(
    folder: Path,
    turns: Script,
    *arguments: str,
    ready: str,
    env: dict[str, str] | None = None,
    database: str | None = "served.db",
    chunk: int = 1,
) -> Iterator[Served]:
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": turns, "chunk": chunk}))
    command = [sys.executable, "-m", "mainspring", arguments[0], "--model", f"scripted:{script}"]
    command += [*(() if database is None else ("--database", database_in(folder, database))), *arguments[1:]]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with start(command, stderr=STDOUT, cwd=folder, env=environment) as process:
        assert process.stdout is not None
        said = ""
        while ready not in (line := process.stdout.readline()):
            said += line
            assert line, f"the server did not start: {said}"
        try:
            yield Served(process, line.rpartition(" ")[2].strip(), said)
        finally:
            if process.poll() is None:
                process.kill()
