"""Showing a run while it happens, until it ends or somebody stops it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeAlias

from anyio import to_thread

from mainspring.cli.exit import BROKEN_PIPE, FAILURE
from mainspring.cli.explain_end import explain_end
from mainspring.cli.output import say, silence, write_lines
from mainspring.cli.screen import Screen
from mainspring.core.events import Reason, Recorded
from mainspring.core.items import FunctionCall
from mainspring.core.run import Run
from mainspring.engine.handle import Handle
from mainspring.storage.location import Location

TICK = 0.1


class JsonLines:
    """Writes each event as a line of JSON, exactly as it was recorded. Raises `BrokenPipeError` when nobody reads it any more."""

    def begin(self, waiting: Sequence[FunctionCall]) -> None:
        """The events name their calls themselves."""

    def draw(self, records: Sequence[Recorded]) -> None:
        write_lines([{"seq": record.seq, "at": record.at, "event": record.event} for record in records])

    def tick(self) -> None:
        """Writes nothing between events."""

    def end(self, run: Run) -> None:
        """The last event has said it all."""


View: TypeAlias = Screen | JsonLines


def choose_view(as_json: bool) -> View:
    return JsonLines() if as_json else Screen()


async def follow(handle: Handle, view: View, database: Location | None, *, explains_questions: bool = True) -> int:
    """Draws a run to its end and returns the exit code that tells how it ended; anything but `completed` is explained in words,
    but for calls that wait for a person if it is not to.

    The first Ctrl-C, SIGTERM, or a reader that goes away cancels the run; it is stored before this returns. Raises what
    `Handle.batches` raises.
    """
    async with cancel_on_signal(handle.cancel) as stop:
        try:
            await draw_run(handle, view)
        except OSError as error:
            silence()
            await handle.cancel()
            if isinstance(error, BrokenPipeError):
                return BROKEN_PIPE
            say(f"the output cannot be written ({error.strerror}), so the run was stopped. Write it elsewhere, or make room")
            return FAILURE
    run = handle.run
    is_left_out = run.reason is Reason.APPROVAL_NEEDED and not explains_questions
    if (why := explain_end(run, database)) is not None and not is_left_out:
        say(why)
    if stop.number is not None and run.status == "cancelled":
        return 128 + stop.number
    return 0 if run.status in ("completed", "requires_action") else 1


async def draw_run(handle: Handle, view: View) -> None:
    """Draws a run to its end. Raises `BrokenPipeError` when nobody reads any more, and what `Handle.batches` raises."""
    # In a thread: a pipe that nobody empties must not hold up the run, nor the signal that ends it.
    one_at_a_time = asyncio.Lock()
    view.begin(handle.waiting)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK)
            async with one_at_a_time:
                await to_thread.run_sync(view.tick)

    async with run_beside(tick()):
        async for batch in handle.batches():
            async with one_at_a_time:
                await to_thread.run_sync(view.draw, batch)
    await to_thread.run_sync(view.end, handle.run)


@asynccontextmanager
async def cancel_on_signal(cancel: Callable[[], Awaitable[object]]) -> "AsyncIterator[StopSignals]":
    """Cancels what the body waits for when Ctrl-C or SIGTERM comes."""

    async def wait() -> None:
        await stop.wanted.wait()
        await cancel()

    with StopSignals() as stop:
        async with run_beside(wait()):
            yield stop


@asynccontextmanager
async def run_beside(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Does this work next to the body, and stops it with the body."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


class StopSignals:
    """Ctrl-C and SIGTERM inside a `with`: the first one sets `wanted`, the next ends the process, whatever it is doing."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.number: int | None = None

    def __enter__(self) -> Self:
        for number in self.SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        return self

    def __exit__(self, *_: object) -> None:
        if self.number is None:
            self._remove_handlers()

    def _stop(self, number: int) -> None:
        self.number = number
        self._remove_handlers()
        for each in self.SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        say("stopping the run; stop again to end at once")
        self.wanted.set()

    def _remove_handlers(self) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
