"""How long a server's event loop was held, in time of the processor, which a busy machine does not change.

A server that `install_pulse` has prepared has one part more: its loop beats every few milliseconds, and each beat looks at how
much of the processor the process has used since the one before, whichever of its threads it was. A request that holds the loop,
or the interpreter, for long lets the next beat come late, and is seen. What other threads do meanwhile without holding anybody up
is seen by no more than a beat's worth.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from tests.kit.processes import ROOT

from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.parts import Host, Part, PartContents, ServedPart

BEAT_SECONDS = 0.005
WORTH_NOTING = 0.02


class Pulse:
    """What the server has noted. Its clock is that of the whole machine."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def find_longest(self, since: float) -> float:
        """The most time of the processor between two beats, of those since `time.monotonic()` was this."""
        beats = [[float(word) for word in line.split()] for line in self.file.read_text().splitlines()]
        return max([held for at, held in beats if at >= since], default=0.0)


def install_pulse(folder: Path) -> tuple[Pulse, dict[str, str]]:
    """The pulse of a server in this folder, and the environment to start it in."""
    about = folder / "packages" / "pulse-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pulse\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[mainspring.parts]\npulse = tests.server.pulse:PART\n")
    file = folder / "pulse.txt"
    file.touch()
    return Pulse(file), {"PYTHONPATH": os.pathsep.join([str(about.parent), str(ROOT)]), "PULSE_FILE": str(file)}


def _silence_names() -> None:
    """Has the name server of `silent.example` not answer before there is a file `answers` beside the notes."""
    look_up, answers = socket.getaddrinfo, Path(os.environ["PULSE_FILE"]).with_name("answers")

    def wait_and_look_up(host: str, *options: Any, **more: Any) -> Any:
        if not str(host).endswith(".silent.example"):
            return look_up(host, *options, **more)
        while not answers.exists():
            time.sleep(BEAT_SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "there is no such name")

    socket.getaddrinfo = wait_and_look_up  # type: ignore[assignment]


class _Heart:
    def __init__(self, file: Path) -> None:
        self._loop, self._file, self._last = asyncio.get_running_loop(), file, time.process_time()
        self._next = self._loop.call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        now = time.process_time()
        if now - self._last > WORTH_NOTING:
            with self._file.open("a") as notes:
                notes.write(f"{time.monotonic()} {now - self._last}\n")
        self._last, self._next = now, self._loop.call_later(BEAT_SECONDS, self._beat)


@asynccontextmanager
async def _live(_: Host) -> AsyncIterator[None]:
    _silence_names()
    heart = _Heart(Path(os.environ["PULSE_FILE"]))
    yield
    heart.stop()


async def _hold(request: Request) -> Response:
    """Holds the loop for as long as it is asked to, in time of the processor."""
    end = time.process_time() + float(request.query_params["seconds"])
    while time.process_time() < end:
        pass
    return Response()


async def _hold_thread(request: Request) -> Response:
    """Holds the interpreter from another thread, by one step of about as long as it is asked to."""
    await asyncio.to_thread(_hold_interpreter, float(request.query_params["seconds"]))
    return Response()


def _hold_interpreter(seconds: float) -> None:
    count, taken = 1_000_000, 0.0
    while taken < seconds:
        count *= 2
        began = time.thread_time()
        sum(range(count))
        taken = time.thread_time() - began


def _serve(_: Host) -> ServedPart:
    return ServedPart(
        (
            Endpoint("GET", "/v1/hold", _hold, PUBLIC, in_schema=False),
            Endpoint("GET", "/v1/hold-thread", _hold_thread, PUBLIC, in_schema=False),
        )
    )


PART = Part(name="pulse", build=lambda _: PartContents(lifespan=_live, serve=_serve))
