"""A run as its readers see it, and as the engine that drives it stops it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any

from mainspring.core.events import Recorded
from mainspring.core.history import History
from mainspring.core.items import FunctionCall
from mainspring.core.response import Response
from mainspring.core.run import Run, history_after
from mainspring.engine.journal import Journal
from mainspring.ports import Watcher


class Handle:
    """A run as its readers see it: live while it is driven here, else as the store has it.

    `ask_driver` asks the engine that drives the run to cancel it, if that `is_elsewhere`. This, `journal`, `is_cancelled`,
    `is_interrupted` and the methods from `interrupt` on are for the engine that drives it.
    """

    def __init__(self, journal: Journal, ask_driver: Callable[[], None] = lambda: None, *, is_elsewhere: bool = False) -> None:
        self.journal = journal
        self._ask_driver = ask_driver
        self.is_elsewhere = is_elsewhere
        self._has_ended = False
        self._waiting: list[asyncio.Future[None]] = []
        self._driver: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.is_cancelled = False
        self.is_interrupted = False

    @property
    def id(self) -> str:
        return self.journal.run.spec.id

    @property
    def run(self) -> Run:
        """The run as it stands now."""
        return self.journal.run

    @property
    def log(self) -> Sequence[Recorded]:
        """Every event of the run so far."""
        return self.journal.log

    @property
    def waiting(self) -> tuple[FunctionCall, ...]:
        """The calls that waited in what the run continues, and those that its input brings."""
        return self.journal.earlier_calls

    @property
    def history(self) -> History:
        """What the run continues."""
        return self.journal.history

    @property
    def continued(self) -> History:
        """What a run that continues this one begins with."""
        return history_after(self.journal.run, self.journal.history)

    @property
    def response(self) -> Response:
        return self.journal.response

    @property
    def is_live(self) -> bool:
        """Whether the run is driven here, and events are still to come."""
        return not self._has_ended

    def watch(self, watcher: Watcher) -> None:
        """Has the watcher told every event of the run, past and future, in the moment it is recorded."""
        self.journal.watch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """The watcher is told no more."""
        self.journal.unwatch(watcher)

    def retell_in_slices(self, watcher: Watcher) -> Iterator[None]:
        """Has the watcher told every event of a run that has ended, with a pause now and then in which others can work."""
        return self.journal.retell_in_slices(watcher)

    def retell(self, watcher: Watcher) -> None:
        """Has the watcher told every event of the run so far, and none that is to come."""
        self.journal.retell(watcher)

    def follow_published(self, after: int = -1) -> AsyncIterator[int]:
        """How many events may be seen by now, each time that grows; raises as `batches` does."""
        return self.journal.follow_published(after)

    def listen(self, tell: Callable[[], None]) -> None:
        """Has `tell` called each time that more events may be seen, and when no more will come; see `Journal.listen`."""
        self.journal.listen(tell)

    def unlisten(self, tell: Callable[[], None]) -> None:
        self.journal.unlisten(tell)

    def batches(self, after: int = -1) -> AsyncIterator[list[Recorded]]:
        """The events behind number `after`, as many at a time as there are. Ends with the run.

        Raises `Interrupted` if the engine stops first, `Superseded` if another driver has taken over.
        """
        return self.journal.batches(after)

    async def events(self, after: int = -1) -> AsyncIterator[Recorded]:
        """Like `batches`, one by one."""
        async for batch in self.journal.batches(after):
            for record in batch:
                yield record

    async def wait(self) -> Run:
        """The run at its end; raises as `batches` does."""
        await self.wait_for_end()
        if (failure := self.journal.failure) is not None:
            raise failure
        return self.journal.run

    async def cancel(self) -> Run:
        """Ends the run `cancelled`, unless it has ended already, and waits for that."""
        self.request_cancel()
        return await self.wait()

    def request_cancel(self) -> None:
        """Asks for a cancel without waiting for it."""
        self.is_cancelled = True
        self.stop()
        if self.is_elsewhere:
            self._ask_driver()

    def interrupt(self) -> None:
        """Has the driver leave the run as it is, to be resumed."""
        self.is_interrupted = True
        self.stop()

    def stop(self) -> None:
        """Has the driver stop, once: what it does to stop is not to be stopped."""
        if not self._is_stopped:
            self._is_stopped = True
            if self._driver is not None:
                self._driver.cancel()

    async def run_driver(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work until it has ended or is to stop; afterwards nobody stops this task any more."""
        task = self._driver = asyncio.current_task()
        assert task is not None
        try:
            if self._is_stopped:
                work.close()
            else:
                await work
        except asyncio.CancelledError:
            # It is not this run alone that has to end, if nobody has asked for that.
            self.is_interrupted |= not self._is_stopped
        finally:
            self._driver = None
            if task.cancelling():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # one that was asked for in the last moment arrives here
                while task.uncancel():
                    pass

    async def wait_for_end(self) -> None:
        """Waits until the run is not driven here any more, however that came."""
        if not self._has_ended:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def end(self) -> None:
        """No more events are to come: wakes whoever waits for that."""
        self._has_ended = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
