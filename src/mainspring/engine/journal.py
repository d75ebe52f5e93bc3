"""The journal: an event happens here and nowhere else.

Theory of operation. `record` stamps an event, folds it into the run, keeps it for readers and sees that the store gets it. It
never waits, so the token path has no await of ours in it. What is recorded goes to the store in segments, by the one clock that
all journals share (`segment_writer`): the end at once, other facts within milliseconds, a tool's result sooner than others,
deltas with the next tick or, if nobody reads them, the next fact. `flush` waits until everything so far is durable; the engine
does so before a tool runs and at the end.

Readers follow the same list at their own pace. They are shown what is durable: whoever has seen an event finds it again, with
its number, after any crash. A run that is not stored, or in a store that does not outlive the process, has nothing to be found
again; its events are shown at once. If the store fails, the run fails: what readers have not seen is dropped, and a failed end
takes its place.
"""

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from logging import getLogger
from math import floor, inf
from typing import cast

from msgspec.structs import replace

from mainspring.core.actions import Finish
from mainspring.core.decide import closing
from mainspring.core.errors import MainspringError, NotFound, OurError, StoreDoubt, StoreError, Superseded
from mainspring.core.events import (
    DELTAS,
    PARTS_OF_SECOND,
    ArgumentsDelta,
    Delta,
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
    continues,
)  # fmt: skip
from mainspring.core.history import History
from mainspring.core.items import FunctionCall
from mainspring.core.log import PACK, Log
from mainspring.core.memory_quota import Hold
from mainspring.core.response import Response, response
from mainspring.core.run import Run, fold, fold_deltas, open_run, replay_quickly
from mainspring.engine.approvals import list_questions
from mainspring.engine.audit import Auditor
from mainspring.engine.conversation import documents
from mainspring.engine.segment_writer import SegmentWriter
from mainspring.ports import DeltaWatcher, Document, Note, Segment, Snapshot, Watcher

Clock = Callable[[], float]

log = getLogger(__name__)

# Seconds until an event is on its way to the store. What a tool has returned cannot be had again; a model can be asked once more.
RESULT_DELAY = 0.002
DELAY = 0.005
UNREAD_DELAY = 0.02
_DELTAS = frozenset({TextDelta, ReasoningDelta, RefusalDelta, ArgumentsDelta, ToolProgress})
# How many events are dealt with before others get a turn.
SLICE = 2048


class Journal:
    """The log of one run, its fold, and its readers. `on_failure` is called once if the store fails under a running driver.

    With `audit`, the store gets the notes that an `Auditor` makes of what it is handed. `hold` counts the memory that all this
    takes, and what the run adds to it, as long as the journal lives.
    """

    __slots__ = (
        "_asked", "_at", "_auditor", "_clock", "_delta", "_durable", "_failure", "_flushes", "_handed", "_has_facts",
        "_is_audited", "_is_bare", "_is_early", "_is_kept", "_is_packing", "_loop", "_owed", "_readers", "_run", "_shared",
        "_told", "_unfolded", "_watchers", "_writer", "due", "history", "hold", "is_closed", "log", "on_failure", "shown",
    )  # fmt: skip

    def __init__(
        self, log: list[Recorded], history: History, writer: SegmentWriter, clock: Clock, hold: Hold, *, audit: bool = False
    ) -> None:
        self._run: Run = replay_quickly(log, history)
        self.log = Log(log)
        self.on_failure: Callable[[], None] | None = None
        self.history = history
        self.hold = hold
        self.due = inf
        # Within how long it is to be written, as long as it is `due`.
        self._asked = inf
        spec, store = self._run.spec, writer.store
        self._writer = writer
        self._is_kept = spec.store
        self._is_early = not store.is_durable and not spec.background
        # A conversation is added to, and a person is asked, even by a run that is not stored itself.
        self._shared = None if spec.store else store
        self._is_audited = audit
        self._auditor: Auditor | None = None
        self._owed: list[Note] = []
        self._clock = clock
        self._loop: AbstractEventLoop = get_running_loop()
        self._handed = self._durable = self.shown = len(log)
        self._failure: MainspringError | None = None
        self.is_closed = self._is_bare = self._is_packing = False
        self._flushes: list[Future[None]] = []
        # Whether there is more than deltas in what the store does not have yet.
        self._has_facts = True
        self._readers: list[Callable[[], None]] = []
        self._told: tuple[Run, Response] | None = None
        self._watchers: list[tuple[Watcher, DeltaWatcher | None]] = []
        # The last event if it is a delta, and what those say that are not folded yet; they all go on with each other.
        self._delta: Delta | None = None
        self._unfolded: list[str] = []
        self._at = self._run.clock

    @classmethod
    def begin(
        cls, first: Event, history: History, writer: SegmentWriter, clock: Clock, hold: Hold, *, audit: bool = False
    ) -> "Journal":
        """A new log. Raises what `open_run` raises, before anything is stored."""
        record = Recorded(0, clock(), first)
        journal = cls([record], history, writer, clock, hold, audit=audit)
        journal._handed = journal._durable = journal.shown = 0
        journal._after_recording(type(first), 1)
        return journal

    @property
    def run(self) -> Run:
        """The run as it stands now. Deltas are folded when somebody looks, all at once."""
        if self._unfolded:
            self._fold()
        return self._run

    def _fold(self) -> None:
        if self._delta is not None:
            said, self._unfolded = self._unfolded, []
            self._run = fold_deltas(self._run, replace(self._delta, delta="".join(said)), len(said), self._at)

    @property
    def earlier_calls(self) -> tuple[FunctionCall, ...]:
        """The calls that the run may have taken over: those that waited, and those that its input brings."""
        return (*self.history.waiting, *[item for item in self._run.spec.input if isinstance(item, FunctionCall)])

    @property
    def response(self) -> Response:
        """The Response that the run is now, made once for each state that somebody asks about."""
        run = self.run
        if self._told is None or self._told[0] is not run:
            self._told = run, response(run)
        return self._told[1]

    def record(self, event: Event) -> None:
        """The event happens. Raises `Malformed` if it cannot follow, and the store's error once the store has failed."""
        if self._failure is not None:
            raise self._failure
        now, kind = self._clock(), type(event)
        if kind in _DELTAS:
            now = floor(now * PARTS_OF_SECOND) / PARTS_OF_SECOND  # a log is smaller if their times are less exact
        at = now if now > self._at else self._at
        record = Recorded(len(self.log), at, event)
        if self._delta is not None and continues(self._delta, event):
            self._at = at
            self._record_delta(record, event)  # type: ignore[arg-type]
        else:
            self._run = run = fold(self.run, record)
            self._at, self._delta = at, event if kind in DELTAS else None  # type: ignore[assignment]
            self.log.append(record)
            for watcher, _ in self._watchers:
                watcher.add(record, run)
        self._after_recording(kind, record.seq + 1)

    def _record_delta(self, record: Recorded, delta: Delta) -> None:
        """A delta that goes on with the last event: it can follow, and changes nothing that anybody decides by."""
        self._delta = delta
        self._unfolded.append(delta.delta)
        self.log.append(record)
        for watcher, quick in self._watchers:
            if quick is None or not quick.add_delta(record):
                watcher.add(record, self.run)

    def adopt(self, records: Sequence[Recorded]) -> None:
        """Takes events that another process has recorded and stored."""
        for record in records:
            self._run = run = fold(self.run, record)
            self._delta, self._at = None, record.at
            self.log.append(record)
            for watcher, _ in self._watchers:
                watcher.add(record, run)
        self._handed = self._durable = len(self.log)
        self._show(len(self.log))

    def watch(self, watcher: Watcher) -> None:
        """From now on the watcher is told every event in the moment it is recorded; what came before it is told at once."""
        self.retell(watcher)
        self._watchers.append((watcher, cast(DeltaWatcher, watcher) if _needs_no_run(type(watcher)) else None))

    def unwatch(self, watcher: Watcher) -> None:
        """The watcher is told no more."""
        self._watchers = [each for each in self._watchers if each[0] is not watcher]

    def retell(self, watcher: Watcher) -> None:
        """Tells the watcher every event so far."""
        for _ in self.retell_in_slices(watcher):
            pass

    def retell_in_slices(self, watcher: Watcher) -> Iterator[None]:
        """As `retell`, with a pause now and then in which others can work. The log may not grow meanwhile."""
        watcher.reset()
        quick = cast(DeltaWatcher, watcher) if _needs_no_run(type(watcher)) else None
        run, delta, at = open_run(self.log[0], self.history), None, 0.0
        said: list[str] = []
        watcher.add(self.log[0], run)
        for start in range(1, len(self.log), SLICE):
            for record in self.log[start : start + SLICE]:
                event = record.event
                if quick is not None and delta is not None and continues(delta, event) and quick.add_delta(record):
                    delta, at = cast(Delta, event), record.at
                    said.append(delta.delta)
                    continue
                if delta is not None and said:
                    run, said = fold_deltas(run, replace(delta, delta="".join(said)), len(said), at), []
                run = fold(run, record)
                delta = cast(Delta, event) if type(event) in DELTAS else None
                watcher.add(record, run)
            yield

    def _after_recording(self, kind: type, upto: int) -> None:
        if not self._is_kept:
            if kind is not RunEnded or self._shared is None:
                self._show(upto)
            return
        if self._is_early and kind is not RunEnded:
            self._show(upto)
        if kind not in _DELTAS:
            self._has_facts = True
            later = DELAY if self._readers else UNREAD_DELAY
            self._ask(0.0 if kind is RunEnded else RESULT_DELAY if kind is ToolEnded else later)
        elif self.due == inf:
            if self._readers and not self._is_early:
                self._asked = inf
                self._writer.request_tick(self)
            else:
                self._ask(UNREAD_DELAY)

    def _ask(self, seconds: float) -> None:
        """Has what there is written within so many seconds. Whoever asked before for the same is served as soon."""
        if self.due == inf or seconds < self._asked:
            self._asked = seconds
            self._writer.request(self, seconds)

    async def flush(self) -> None:
        """Waits until everything recorded is durable; raises the store's error if it cannot be."""
        await self.catch_up()
        await self._note()
        await self._share()
        if self._failure is not None:
            raise self._failure

    async def catch_up(self) -> None:
        """Waits until the store has what was recorded so far: whoever outruns it waits here. `record` raises if it has failed."""
        upto = len(self.log)
        while self._is_kept and self._durable < upto and self._failure is None:
            await self._write()

    async def _write(self) -> None:
        """Waits for the next append. Several may wait for it, and one that is cancelled does not cancel it for the others."""
        self._ask(0.0)
        flushed = self._loop.create_future()
        self._flushes.append(flushed)
        await flushed

    async def _share(self) -> None:
        """The end of a run that is not stored: its conversation gets what it added, then readers see it."""
        if self._shared is None or not self.run.has_ended or self._failure is not None:
            return
        kept = _list_documents(self.run)
        try:
            if kept:
                await self._shared.put(kept)
        except StoreError as error:
            self.fail(error)
        else:
            self._shared = None
            self._show(len(self.log))

    async def _note(self) -> None:
        """The audit of a run that is not stored: it goes to the store alone. It is waited for where a call was made."""
        if self._is_kept or not self._is_audited or self._failure is not None or self._handed == len(self.log):
            return
        segment = self.log[self._handed :]
        self._handed += len(segment)
        self._owed += self._notes(segment)
        if any(note.call for note in self._owed):
            await self._write()
        elif self._owed:
            self._writer.request(self, 0.0)

    def _notes(self, segment: list[Recorded]) -> list[Note]:
        if not self._is_audited:
            return []
        if self._auditor is None:
            self._auditor = Auditor(self._run.spec, self.earlier_calls, self.log[: segment[0].seq])
        return self._auditor.notes(segment)

    def collect(self) -> Segment | None:
        """What the store does not have yet, as one segment."""
        run_id = self._run.spec.id
        if not self._is_kept:
            owed, self._owed = self._owed, []
            return Segment(run_id, (), notes=owed) if owed else None
        if self._failure is not None or self._handed == len(self.log):
            return None
        segment = self.log.read_from(self._handed)
        self._handed += len(segment)
        if not self._has_facts:
            return Segment(run_id, segment)
        self._has_facts = False
        snapshot = None
        if self._run.has_ended:
            kept = (*_list_documents(self.run), *self._writer.list_documents(self.run))
            snapshot = Snapshot(self.response, self.run.all_entries, kept)
            if self._is_bare:
                snapshot = Snapshot(replace(snapshot.response, output=()), ())
        return Segment(run_id, segment, snapshot, self._notes(segment))

    def settle(self, error: MainspringError | None) -> None:
        """What was collected is durable, or cannot be."""
        if error is not None:
            self.fail(error)
        elif self._is_kept:
            self._durable = self._handed
            self._show(self._durable)
        if self._flushes:
            self._end_flushes()

    def _end_flushes(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flushed in flushes:
            if not flushed.done():
                flushed.set_result(None)

    def fail(self, error: MainspringError) -> None:
        """Nothing more can be written. Whoever drives the run is told so, and nobody waits for the store any longer."""
        if self.is_closed and not self._is_kept:
            log.error("the audit lacks what run %s did: %s", self.run.spec.id, error)
        elif self._failure is None:
            self._failure = error
            self._end_flushes()
            if self.on_failure is not None:
                self.on_failure()

    @property
    def failure(self) -> MainspringError | None:
        return self._failure

    @property
    def is_stored(self) -> bool:
        """Whether the store has all of it."""
        return self._is_kept and self._durable == len(self.log)

    async def break_off(self, failure: MainspringError) -> bool:
        """What was recorded cannot be kept: the run ends failed for its readers, and for the store too if it takes that now.

        If it does not, `save_end` is to be called until it does. If the store has an end already, though it could not say so,
        then that is the end. Returns False if it may have one, and cannot be asked: then readers are shown none.
        """
        is_doubtful = isinstance(failure, StoreDoubt) and self.run.has_ended
        await self._end_anew(failure, self.shown)
        is_known = self.is_stored or not self._is_kept or await self._read_back()
        if is_doubtful and not is_known:
            return False
        self._show(len(self.log))
        return True

    async def _read_back(self) -> bool:
        """Takes the end that the store has, if it has one. Returns whether that is known."""
        try:
            stored = await self._writer.store.events(self._run.spec.id)
        except NotFound:
            return True
        except StoreError:
            return False
        if isinstance(stored[-1].event, RunEnded):
            self._shorten(self.shown)
            self.adopt(stored[len(self.log) :])
        return True

    async def end_bare(self, why: str) -> bool:
        """Gives the store an end without the answer and what others would continue, which it does not take. Returns as `save_end`
        does."""
        self._is_bare = True
        return await self._end_anew(
            StoreError(f"the answer could not be stored, and who continues it gets nothing of it: {why}"), self._durable
        )

    async def _end_anew(self, failure: MainspringError, length: int) -> bool:
        """Ends the run after so many events, failed."""
        self._failure, self._has_facts = None, True
        self._shorten(length)
        for event in closing(self._run, Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(failure))):
            record = Recorded(self._run.seq, self._run.clock, event)
            self._run = fold(self._run, record)
            self.log.append(record)
        self._at = self._run.clock
        for watcher, _ in self._watchers:
            self.retell(watcher)
        return await self.save_end()

    def _shorten(self, length: int) -> None:
        self.log.truncate(max(length, 1))
        self._run, self._delta, self._unfolded = replay_quickly(self.log, self.history), None, []

    async def save_end(self) -> bool:
        """Gives the store the end that it did not take before. Returns whether nothing is left to do: it has it, or the log of
        another driver."""
        self._handed, self._loop = self._durable, get_running_loop()  # which may be another by now
        self._has_facts = True
        await self.catch_up()
        failure, self._failure = self._failure, None
        return not self._is_kept or self.is_stored or isinstance(failure, Superseded)

    def rewind(self) -> None:
        """Forgets what readers were not shown, but for the first event: another has written something else."""
        self._failure, self.on_failure = None, None
        self._shorten(self.shown)
        self._at = self._run.clock
        self._handed = self._durable = len(self.log)
        for watcher, _ in self._watchers:
            self.retell(watcher)

    def close(self, failure: OurError | None = None) -> None:
        """No more events will come; readers end, with `failure` if the run did not."""
        self.is_closed = True
        self.on_failure = None  # which knows the handle, which knows this: neither would go at once
        self._failure = failure
        self._show(self.shown)

    def reopen(self) -> None:
        """A closed journal of an unfinished run takes events again."""
        self.is_closed = False
        self._failure = None

    def _show(self, upto: int) -> None:
        if upto > self.shown:
            self.shown = upto
        for tell in self._readers:
            tell()
        if self.shown - self.log.packed >= PACK and not self._is_packing:
            # Behind those readers, which read what they are shown now.
            self._is_packing = True
            self._loop.call_soon(self._pack)

    def _pack(self) -> None:
        self.log.pack(min(self.shown, self.log.packed + SLICE))
        self._is_packing = self.shown - self.log.packed >= PACK
        if self._is_packing:
            self._loop.call_soon(self._pack)
        if self._unfolded:
            self._fold()

    def listen(self, tell: Callable[[], None]) -> None:
        """From now on `tell` is called each time that more events may be seen (`shown`), and when no more will come. It must not
        raise."""
        self._readers = [*self._readers, tell]

    def unlisten(self, tell: Callable[[], None]) -> None:
        self._readers = [each for each in self._readers if each != tell]

    @property
    def shows_each(self) -> bool:
        """Whether events may be seen as soon as they are recorded, one by one: nothing is to be made durable before."""
        return not self._is_kept or self._is_early

    async def follow_published(self, after: int = -1) -> AsyncIterator[int]:
        """How many events may be seen by now, each time that grows beyond number `after`. Ends with the run."""
        position, reader = after + 1, _Reader(self._loop)
        self.listen(reader.wake)
        try:
            while True:
                if position < self.shown:
                    position = self.shown
                    yield position
                elif self.is_closed:
                    if self._failure is not None:
                        raise self._failure
                    return
                else:
                    await reader.wait()
        finally:
            self.unlisten(reader.wake)

    async def batches(self, after: int = -1) -> AsyncIterator[list[Recorded]]:
        """Everything behind event number `after`, live: each batch is what has come since the last. Ends with the run."""
        position = after + 1
        async for upto in self.follow_published(after):
            yield self.log[position:upto]
            position = upto


class _Reader:
    """Waits until it is woken."""

    __slots__ = ("_loop", "_waiter")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: Future[None] | None = None

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wait(self) -> "Future[None]":
        self._waiter = self._loop.create_future()
        return self._waiter


@cache
def _needs_no_run(kind: type) -> bool:
    return issubclass(kind, DeltaWatcher)


def _list_documents(run: Run) -> tuple[Document, ...]:
    """What is kept beside a run that has ended."""
    return (*documents(run), *list_questions(run))
