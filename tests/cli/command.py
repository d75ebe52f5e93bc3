"""The real command in a process: its arguments, its streams, its exit code. No process outlives its test."""

import os
import pty
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct
from tests.kit.processes import DEVNULL, PIPE, Process, start
from tests.kit.waiting import PATIENCE

import mainspring
from mainspring.core.events import Event, Recorded
from mainspring.core.items import Json, decode
from mainspring.ports import StoredRun
from mainspring.storage.sqlite_runs import SqliteStore

Variables = dict[str, str]

SECONDS = 2 * PATIENCE
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OURS = (
    "MAINSPRING_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "OLLAMA_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES",
    "TERM", "PYTHON",
)  # fmt: skip


class Result(Struct, frozen=True):
    code: int
    out: str
    err: str


class Line(Struct, frozen=True):
    """A line of `--json`."""

    seq: int
    at: float
    event: Event


class Shell:
    """A folder to work in, and the command to run there. The environment has nothing in it that the command would heed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, *turns: Json, name: str = "script.json", **options: object) -> str:
        """Writes a script and returns the model that plays it."""
        (self.folder / name).write_bytes(msgspec.json.encode({"turns": turns, **options}))
        return f"scripted:{name}"

    def environment(self, env: Variables | None = None) -> Variables:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        return {**kept, "PYTHONPATH": str(Path(mainspring.__file__).parents[1]), **(env or {})}

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "mainspring", *arguments]

    def run(self, *arguments: str, given: str = "", out: IO[bytes] | None = None, env: Variables | None = None) -> Result:
        """Runs the command to its end, its output going into pipes."""
        to = PIPE if out is None else out.fileno()
        process = start(self.command(arguments), cwd=self.folder, env=self.environment(env), stdin=PIPE, stdout=to)
        with process, _bounded(process):
            said, err = process.communicate(given)
        return Result(process.wait(), said, err)

    def run_on_terminal(
        self, *arguments: str, env: Variables | None = None, stop_at: str | None = None, typed: Sequence[tuple[str, str]] = ()
    ) -> Result:
        """Runs the command on a terminal of its own, to its end or until this has appeared; errors appear there too.

        `typed` is what a person types, each time once the text before it has appeared.
        """
        ours, theirs = pty.openpty()
        process = start(
            self.command(arguments),
            cwd=self.folder,
            env=self.environment({"TERM": "xterm-256color", "COLUMNS": "80", **(env or {})}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        with process, _bounded(process):
            os.close(theirs)
            shown, left, seen = b"", list(typed), 0
            while piece := _read(ours):
                shown += piece
                if left and (at := shown.find(left[0][0].encode(), seen)) >= 0:
                    seen = at + len(left[0][0].encode())
                    os.write(ours, left.pop(0)[1].encode())
                if stop_at is not None and stop_at.encode() in shown:
                    process.send_signal(signal.SIGINT)
                    stop_at = None
            os.close(ours)
        return Result(process.wait(), shown.decode().replace("\r\n", "\n"), "")

    @contextmanager
    def started(self, *arguments: str, env: Variables | None = None) -> Iterator["Live"]:
        """The command while it runs; it is killed if the body leaves it behind."""
        process = start(self.command(arguments), cwd=self.folder, env=self.environment(env), stdin=DEVNULL)
        with process, _bounded(process):
            yield Live(process)

    async def log(self, run_id: str, database: str = "runs.db") -> list[Recorded]:
        async with SqliteStore(self.folder / database) as store:
            return await store.events(run_id)

    async def stored(self, database: str = "runs.db") -> tuple[StoredRun, ...]:
        """The runs of a database, oldest first."""
        async with SqliteStore(self.folder / database) as store:
            return (await store.list(newest_first=False)).runs


class Live:
    """A command under way."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.out: IO[str] = process.stdout
        self.err: IO[str] = process.stderr

    def wait_for(self, text: str, stream: IO[str] | None = None) -> str:
        """Reads until this has appeared, and returns all that was read."""
        read = b""
        while text.encode() not in read:
            piece = os.read((stream or self.out).fileno(), 65536)
            assert piece, f"{text!r} never appeared in {read.decode()!r}; errors: {self.err.read()!r}"
            read += piece
        return read.decode()

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def ended(self) -> Result:
        """The rest of what it says, and its exit code."""
        out, err = self.process.communicate(timeout=SECONDS)
        return Result(self.process.wait(), out, err)


def events(out: str) -> list[Recorded]:
    """The log that lines of JSON stand for."""
    lines = [decode(line, Line) for line in out.splitlines()]
    return [Recorded(line.seq, line.at, line.event) for line in lines]


def plain(shown: str) -> str:
    """What a terminal shows, without the escape sequences; a line that was wiped is gone."""
    wiped = re.sub(r"[^\n]*\r\x1b\[2K", "", shown)
    return ESCAPES.sub("", wiped)


@contextmanager
def _bounded(process: Process) -> Iterator[None]:
    """Kills the process when its time is up, so that whoever reads from it sees its end."""
    alarm = threading.Timer(SECONDS, process.kill)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
        if process.poll() is None:
            process.kill()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux reports that the other side of a terminal is gone
        return b""
