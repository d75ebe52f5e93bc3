"""The journal: an event happens here and nowhere else.

Theory of operation. `record` stamps an event, folds it into the run, keeps it for readers and sees that the store gets it. It
never waits, so the token path has no await of ours in it. What is recorded goes to the store in segments: a tool's result at
once, other facts within milliseconds, deltas with the next fact or a little later (`DELAYS`). `flush` waits until everything
so far is durable; the engine does so before a tool runs and at the end.

Readers follow the same list at their own pace. They are shown what is durable: whoever has seen an event finds it again, with
its number, after any crash. A run that is not stored, or in a store that does not outlive the process, has nothing to be found
again; its events are shown at once. If the store fails, the run fails: what readers have not seen is dropped, and a failed end
takes its place.
"""

from asyncio import AbstractEventLoop, Future, Handle, get_running_loop, wait
from collections.abc import AsyncIterator, Callable

from mainspring.core.actions import Finish
from mainspring.core.decide import closing
from mainspring.core.errors import MainspringError, OurError, StoreError, Superseded
from mainspring.core.events import (
    ArgumentsDelta,
    ErrorInfo,
    Event,
    Reason,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    TextDelta,
    ToolEnded,
    ToolProgress,
)  # fmt: skip
from mainspring.core.history import History
from mainspring.core.items import FunctionCall
from mainspring.core.response import response
from mainspring.core.run import Run, fold, open_run, replay
from mainspring.engine.approvals import list_questions
from mainspring.engine.audit import Auditor
from mainspring.engine.conversation import documents
from mainspring.ports import Document, Note, Snapshot, Store, Watcher

Clock = Callable[[], float]

# Seconds until an event is on its way to the store. What a tool has returned cannot be had again; a model can be asked once more.
DELAY = 0.005
DELAYS: dict[type, float] = {
    **dict.fromkeys((TextDelta, ReasoningDelta, RefusalDelta, ArgumentsDelta, ToolProgress), 0.02),
    **dict.fromkeys((ToolEnded, RunEnded), 0.0),
}


class Journal:
    """The log of one run, its fold, and its readers. `on_failure` is called once if the store fails under a running driver.

    With `audit`, the store gets the notes that an `Auditor` makes of what it is handed.
    """

    def __init__(self, log: list[Recorded], history: History, store: Store | None, clock: Clock, *, audit: bool = False) -> None:
        self.run: Run = replay(log, history)
        self.log = log
        self.on_failure: Callable[[], None] | None = None
        self.history = history
        spec = self.run.spec
        self._store = store if spec.store else None
        self._is_early = store is not None and not store.is_durable and not spec.background
        # A conversation is added to, and a person is asked, even by a run that is not stored itself.
        self._shared = None if spec.store else store
        self._audited = store if audit and not spec.store else None
        self._is_audited = audit
        self._auditor: Auditor | None = None
        self._clock = clock
        self._loop: AbstractEventLoop = get_running_loop()
        self._handed = self._durable = self._public = len(log)
        self._pending: Future[None] | None = None
        self._timer: Handle | None = None
        self._due = 0.0
        self._failure: MainspringError | None = None
        self._is_closed = False
        self._readers: list[Future[None]] = []
        self._watchers: list[Watcher] = []

    @classmethod
    def begin(cls, first: Event, history: History, store: Store | None, clock: Clock, *, audit: bool = False) -> "Journal":
        """A new log. Raises what `open_run` raises, before anything is stored."""
        record = Recorded(0, clock(), first)
        journal = cls([record], history, store, clock, audit=audit)
        journal._handed = journal._durable = journal._public = 0
        journal._after_recording(record)
        return journal

    @property
    def earlier_calls(self) -> tuple[FunctionCall, ...]:
        """The calls that the run may have taken over: those that waited, and those that its input brings."""
        return (*self.history.waiting, *[item for item in self.run.spec.input if isinstance(item, FunctionCall)])

    def record(self, event: Event) -> None:
        """The event happens. Raises `Malformed` if it cannot follow, and the store's error once the store has failed."""
        if self._failure is not None:
            raise self._failure
        run = self.run
        now = self._clock()
        record = Recorded(run.seq, now if now > run.clock else run.clock, event)
        self.run = fold(run, record)
        self.log.append(record)
        for watcher in self._watchers:
            watcher.add(record, self.run)
        self._after_recording(record)

    def watch(self, watcher: Watcher) -> None:
        """From now on the watcher is told every event in the moment it is recorded; what came before it is told at once."""
        self.retell(watcher)
        self._watchers.append(watcher)

    def retell(self, watcher: Watcher) -> None:
        """Tells the watcher every event so far."""
        watcher.reset()
        run = open_run(self.log[0], self.history)
        watcher.add(self.log[0], run)
        for record in self.log[1:]:
            run = fold(run, record)
            watcher.add(record, run)

    def _after_recording(self, record: Recorded) -> None:
        kind = type(record.event)
        if self._store is None:
            if kind is not RunEnded or self._shared is None:
                self._show(len(self.log))
            return
        if self._is_early and kind is not RunEnded:
            self._show(len(self.log))
        self._hand_over_within(DELAYS.get(kind, DELAY))

    def _hand_over_within(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(seconds, self._hand_over) if seconds else self._loop.call_soon(self._hand_over)

    async def flush(self) -> None:
        """Waits until everything recorded is durable; raises the store's error if it cannot be."""
        await self.catch_up()
        await self._note()
        await self._share()
        if self._failure is not None:
            raise self._failure

    async def catch_up(self) -> None:
        """Waits until the store has what was recorded so far: whoever outruns it waits here. `record` raises if it has failed."""
        self._hand_over()
        await self._wait_until_written()

    async def _wait_until_written(self) -> None:
        """Waits for the last append. Several may wait for it, and one that is cancelled must not cancel it for the others."""
        if self._pending is not None and not self._pending.done():
            await wait([self._pending])

    async def _share(self) -> None:
        """The end of a run that is not stored: its conversation gets what it added, then readers see it."""
        if self._shared is None or not self.run.has_ended or self._failure is not None:
            return
        kept = _list_documents(self.run)
        try:
            if kept:
                await self._shared.put(kept)
        except StoreError as error:
            self._fail(error)
        else:
            self._shared = None
            self._show(len(self.log))

    async def _note(self) -> None:
        """The audit of a run that is not stored: it goes to the store alone."""
        if self._audited is None or self._failure is not None or self._handed == len(self.log):
            return
        segment = self.log[self._handed :]
        self._handed += len(segment)
        try:
            if notes := self._notes(segment):
                await self._audited.note(notes)
        except StoreError as error:
            self._fail(error)

    def _notes(self, segment: list[Recorded]) -> list[Note]:
        if not self._is_audited:
            return []
        if self._auditor is None:
            self._auditor = Auditor(self.run.spec, self.earlier_calls, self.log[: segment[0].seq])
        return self._auditor.notes(segment)

    def _hand_over(self) -> None:
        """Gives the store what it does not have yet, as one segment."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._store is None or self._failure is not None or self._handed == len(self.log):
            return
        segment = self.log[self._handed :]
        self._handed = upto = len(self.log)
        snapshot = None
        if self.run.has_ended:
            snapshot = Snapshot(response(self.run), self.run.all_entries, _list_documents(self.run))
        try:
            pending = self._store.append(self.run.spec.id, segment, snapshot, self._notes(segment))
        except Exception as error:
            self._fail(error)
            return
        self._pending = done = self._loop.create_future()

        def settle(written: "Future[None]") -> None:
            error = None if written.cancelled() else written.exception()
            if error is None:
                self._durable = upto
                self._show(upto)
            else:
                self._fail(error)
            done.set_result(None)

        if pending.done():
            settle(pending)
        else:
            pending.add_done_callback(settle)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error if isinstance(error, MainspringError) else StoreError(f"the store failed: {error}")
        if self.on_failure is not None:
            self.on_failure()

    @property
    def failure(self) -> MainspringError | None:
        return self._failure

    @property
    def is_stored(self) -> bool:
        """Whether the store has all of it."""
        return self._store is not None and self._durable == len(self.log)

    async def break_off(self, failure: MainspringError) -> None:
        """What was recorded cannot be kept: the run ends failed for its readers, and for the store too if it takes that now.

        If it does not, `save_end` is to be called until it does.
        """
        self._failure = None
        del self.log[max(self._public, 1) :]
        self.run = replay(self.log, self.history)
        for event in closing(self.run, Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(failure))):
            record = Recorded(self.run.seq, self.run.clock, event)
            self.run = fold(self.run, record)
            self.log.append(record)
        for watcher in self._watchers:
            self.retell(watcher)
        await self.save_end()
        self._show(len(self.log))

    async def save_end(self) -> bool:
        """Gives the store the end that it did not take before. Returns whether nothing is left to do: it has it, or the log of
        another driver."""
        self._handed = self._durable
        self._hand_over()
        await self._wait_until_written()
        failure, self._failure = self._failure, None
        return self._store is None or self.is_stored or isinstance(failure, Superseded)

    def close(self, failure: OurError | None = None) -> None:
        """No more events will come; readers end, with `failure` if the run did not."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_closed = True
        self._failure = failure
        self._show(self._public)

    def reopen(self) -> None:
        """A closed journal of an unfinished run takes events again."""
        self._is_closed = False
        self._failure = None

    def _show(self, upto: int) -> None:
        if upto > self._public:
            self._public = upto
        if self._readers:
            readers, self._readers = self._readers, []
            for reader in readers:
                if not reader.done():
                    reader.set_result(None)

    async def follow_published(self, after: int = -1) -> AsyncIterator[int]:
        """How many events may be seen by now, each time that grows beyond number `after`. Ends with the run."""
        position = after + 1
        while True:
            if position < self._public:
                position = self._public
                yield position
            elif self._is_closed:
                if self._failure is not None:
                    raise self._failure
                return
            else:
                reader = self._loop.create_future()
                self._readers.append(reader)
                await reader

    async def batches(self, after: int = -1) -> AsyncIterator[list[Recorded]]:
        """Everything behind event number `after`, live: each batch is what has come since the last. Ends with the run."""
        position = after + 1
        async for upto in self.follow_published(after):
            yield self.log[position:upto]
            position = upto


def _list_documents(run: Run) -> tuple[Document, ...]:
    """What is kept beside a run that has ended."""
    return (*documents(run), *list_questions(run))
