"""One clock for all journals: what every run has to say is handed to the store at once.

Theory of operation. A journal asks to be written within some time, 0 if somebody waits for it. When the first of those times has
come, all that are due, or nearly so, give their segments, and the store gets them in one `append_all`: one hand-over, one
transaction, one wake-up. There is one batch under way at a time, and whatever comes meanwhile waits for the next: the slower the
store, the larger the batches. That is the back-pressure. `TICK` is the time between batches that are only read, `BUSY_TICK` that
between batches of several runs.
"""

from asyncio import AbstractEventLoop, Future, Handle, get_running_loop
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from mainspring.core.errors import MainspringError, StoreError
from mainspring.core.run import Run
from mainspring.ports import Document, Segment, Store

if TYPE_CHECKING:
    from mainspring.engine.journal import Journal

TICK: Final = 0.01
BUSY_TICK: Final = 0.005
# What is due so soon goes along.
_SLACK: Final = 0.001


ListDocuments = Callable[[Run], tuple[Document, ...]]


class SegmentWriter:
    """Writes the segments of the journals of one engine, in one event loop. `list_documents` says what else is stored with
    the end of a run. A journal's `due` is the writer's: when it is to be asked, infinity if it has not asked for that."""

    def __init__(self, store: Store, list_documents: ListDocuments = lambda run: ()) -> None:
        self.store, self.list_documents = store, list_documents
        self._loop: AbstractEventLoop | None = None
        self._waiting: list[Journal] = []
        self._timer: Handle | None = None
        self._next = inf
        self._last = -inf
        # When those are due that are only read, once one has asked for it.
        self._tick = inf
        self._is_writing = False
        self._idle: list[Future[None]] = []

    def open(self) -> None:
        """Writes in the event loop that runs now; what an earlier one has left undone is gone with it."""
        self._loop = get_running_loop()
        for journal in self._waiting:
            journal.due = inf
        self._waiting, self._timer, self._next, self._last, self._is_writing = [], None, inf, -inf, False
        self._tick = inf

    def request(self, journal: "Journal", seconds: float) -> None:
        """Has the journal written within so many seconds. With 0 somebody waits: it is written at once, or if there are others
        too and there has just been a batch, with the next."""
        due = (self._loop or self._begin()).time() + seconds
        if not seconds and len(self._waiting) > (journal.due != inf):
            due = max(due, self._last + BUSY_TICK)
        self._wait_until(journal, due)

    def request_tick(self, journal: "Journal") -> None:
        """Has the journal written with the next tick: at once, unless there has just been one."""
        if journal.due == inf:
            if self._tick == inf:
                loop = self._loop or self._begin()
                self._tick = max(self._last + TICK, loop.time())
            self._wait_until(journal, self._tick)

    async def drain(self) -> None:
        """Waits until the store has been told all that was asked for."""
        while self._waiting or self._is_writing:
            idle = get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    def _begin(self) -> AbstractEventLoop:
        self._loop = get_running_loop()
        return self._loop

    def _wait_until(self, journal: "Journal", due: float) -> None:
        if journal.due <= due:
            return
        if journal.due == inf:
            self._waiting.append(journal)
        journal.due = due
        if due < self._next and not self._is_writing:
            self._schedule(due)

    def _schedule(self, due: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._next = due
        # Even at once, it is after what is being done: whatever is recorded there goes along.
        is_late = due <= self._loop.time()
        self._timer = self._loop.call_soon(self._write) if is_late else self._loop.call_at(due, self._write)

    def _write(self) -> None:
        assert self._loop is not None
        self._timer, self._next, self._tick = None, inf, inf
        self._last = self._loop.time()
        soon = self._last + _SLACK
        waiting, self._waiting = self._waiting, []
        journals: list[Journal] = []
        segments: list[Segment] = []
        for journal in waiting:
            if journal.due > soon:
                self._waiting.append(journal)
                continue
            journal.due = inf
            try:
                segment = journal.collect()
            except Exception as error:  # A journal that cannot tell what it has: its own run fails, and no other.
                journal.settle(_as_store_error(error))
                continue
            if segment is not None:
                journals.append(journal)
                segments.append(segment)
        self._is_writing = True
        if not segments:
            self._go_on()
            return
        try:
            pending = self.store.append_all(segments)
        except Exception as error:  # Of a store that is not ours.
            self._settle(journals, [_as_store_error(error)] * len(journals))
            return
        if pending.done():
            self._finish(journals, pending)
        else:
            pending.add_done_callback(lambda written: self._finish(journals, written))

    def _finish(self, journals: list["Journal"], written: "Future[list[MainspringError | None]]") -> None:
        if written.cancelled():
            self._settle(journals, [StoreError("the store gave up writing")] * len(journals))
        elif (error := written.exception()) is not None:
            self._settle(journals, [_as_store_error(error)] * len(journals))
        else:
            self._settle(journals, written.result())

    def _settle(self, journals: list["Journal"], outcomes: "list[MainspringError | None]") -> None:
        for journal, outcome in zip(journals, outcomes, strict=True):
            journal.settle(None if outcome is None else _as_store_error(outcome))
        self._go_on()

    def _go_on(self) -> None:
        self._is_writing = False
        if self._waiting:
            self._schedule(min(journal.due for journal in self._waiting))
        else:
            idle, self._idle = self._idle, []
            for waits in idle:
                if not waits.done():
                    waits.set_result(None)


def _as_store_error(error: BaseException) -> MainspringError:
    return error if isinstance(error, MainspringError) else StoreError(f"the store failed: {error}")
