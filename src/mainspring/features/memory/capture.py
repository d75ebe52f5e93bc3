"""Runs become observations: one for each answer of the model, one for each call that was answered.

Theory of operation. An observation is a function of the run and the event, and its id follows from the run's id and the event's
place in its log. So the same event observed again, after a crash or from the stored log, is the same observation, and is kept
once. What is recorded is written in batches, a moment later, in a thread; what a crash takes away before that is in the log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from logging import getLogger
from typing import Final

from anyio import to_thread
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.core.events import CallJudged, Event, Recorded, ToolEnded, TurnEnded
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCall, Json, Message, Refusal, flaw, text_of
from mainspring.core.run import Run
from mainspring.features.memory.observation import RUN, Cleaner, EventType, Observation, Redact, find_session, find_tags
from mainspring.features.memory.observation_rows import Added, add, load
from mainspring.ports import Retell
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sql import SqlWorker

log = getLogger(__name__)

DELAY: Final = 0.05
MOST_PENDING: Final = 1_000
MOST_PRIVATE: Final = 1_000


class ObservationCapture:
    """A `Sink` that remembers what runs say and do. Works between `start` and `stop`.

    No tenant ever has more than `most` observations. `after_write` is awaited after each batch, with what it added and
    displaced. Private observations are in
    `buffered`, the newest of them, and nowhere else.
    """

    hears = frozenset({TurnEnded, ToolEnded, CallJudged})

    def __init__(self, database: SqlWorker, most: int, redact: Redact, after_write: Callable[[Added], Awaitable[None]]) -> None:
        self._database, self._most = database, most
        self._cleaner = Cleaner(redact)
        self._after_write = after_write
        self._pending: list[Observation] = []
        self._unwritten: list[Observation] = []
        self._recorded: list[Added] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted, self._hurry = asyncio.Event(), asyncio.Event()
        self._is_writing = False
        self._writer: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.buffered: deque[Observation] = deque(maxlen=MOST_PRIVATE)

    async def __call__(self, run: Run, event: Event) -> None:
        if (seen := observe_event(run, event)) is not None:
            await self._keep(seen)

    async def record(self, seen: Observation) -> str:
        """Remembers this once, and returns its id when that is done; one is made if it has none. Without a time, it is now.

        Raises `InvalidRequest` if it cannot be kept, because its id is taken or what happened then was forgotten."""
        if (why := flaw(seen, Observation)) is not None:
            raise InvalidRequest(f"an observation cannot be kept: {why}")
        seen = replace(seen, id=seen.id or random_id("obs"), timestamp=seen.timestamp or time.time())
        if seen.is_private:
            await self._keep(seen)
            return seen.id
        added = await self._add(await self._clean([seen]))
        if not added.count and not await self._database.read(load, ids=[seen.id], whose=Scope(seen.tenant)):
            told = f"its id is taken, or what happened by then in the session `{seen.session_id[:80]}` was forgotten"
            raise InvalidRequest(f"the observation `{seen.id[:80]}` cannot be kept: {told}; leave out its id and its time")
        # Whoever waits for what is new is told with the next batch, lest they be told of each.
        self._recorded.append(added)
        self._wanted.set()
        return seen.id

    async def catch_up(self, retell: Retell) -> None:
        """Remembers what is missing of a run whose events are told again."""
        past = ReplayedObservations()
        retell(past)
        for seen in past.seen:
            # A private one that was lost with its process stays lost.
            if not seen.is_private:
                await self._keep(seen)

    async def _keep(self, seen: Observation) -> None:
        if seen.is_private:
            self.buffered.append(self._cleaner.clean(seen))
            return
        self._pending.append(seen)
        self._wanted.set()
        if len(self._pending) >= MOST_PENDING:
            await self.flush()

    async def flush(self) -> None:
        """Returns when all that was recorded so far is written, or could not be. To cancel this stops nothing."""
        if self._writer is not None and (self._pending or self._is_writing or self._recorded):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(done)
            self._wanted.set()
            self._hurry.set()
            await done

    def drop_private(self, tenant: str, session: str | None, run: str | None = None) -> None:
        """Forgets what is buffered of a session, or of one of its runs, or of a whole tenant."""

        def is_meant(seen: Observation) -> bool:
            return seen.tenant == tenant and session in (None, seen.session_id) and run in (None, seen.run)

        self.buffered = deque([seen for seen in self.buffered if not is_meant(seen)], MOST_PRIVATE)

    def start(self) -> None:
        self._is_stopping = False
        self._writer = asyncio.get_running_loop().create_task(self._write())

    async def stop(self) -> None:
        """Returns when everything is written."""
        if self._writer is not None:
            self._is_stopping = True
            self._wanted.set()
            self._hurry.set()
            await self._writer
            self._writer = None

    async def _write(self) -> None:
        while not self._is_stopping or self._pending:
            await self._wanted.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), DELAY)
            self._wanted.clear()
            self._hurry.clear()
            waiting, self._waiting = self._waiting, []
            batch, self._pending = self._pending, []
            self._is_writing = True
            try:
                await self._write_batch(batch)
            except Exception:  # Of a sink: what cannot be kept must not take along what comes after it.
                log.exception("%d observations are lost", len(batch))
            self._is_writing = False
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    async def _write_batch(self, seen: list[Observation]) -> None:
        """What cannot be written is logged, and tried again with what follows it; of too much, the oldest is lost."""
        batch = [*self._unwritten, *await self._clean(seen)]
        try:
            if batch:
                self._recorded.append(await self._add(batch))
            self._unwritten = []
            recorded, self._recorded = self._recorded, []
            gone = [id for added in recorded for id in added.gone]
            await self._after_write(Added(sum([added.count for added in recorded]), tuple(gone)))
        except StoreError as error:
            self._unwritten = batch[-MOST_PENDING:]
            lost = len(batch) - len(self._unwritten)
            log.error("observations could not be written, %d of them are lost: %s", lost, error)

    async def _add(self, seen: Sequence[Observation]) -> Added:
        return await self._database.write(add, seen=seen, most=self._most)

    async def _clean(self, seen: Sequence[Observation]) -> list[Observation]:
        return await to_thread.run_sync(lambda: [self._cleaner.clean(each) for each in seen])


class ReplayedObservations:
    """The observations of a log that is told again."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def reset(self) -> None:
        self.seen.clear()

    def add(self, record: Recorded, run: Run) -> None:
        if (seen := observe_event(run, record.event)) is not None:
            self.seen.append(seen)


def observe_event(run: Run, event: Event) -> Observation | None:
    """What there is to remember of this event, None if nothing; `run` is as the event left it."""
    match event:
        case TurnEnded(error=None):
            return _response(run)
        case ToolEnded(call_id, output, is_error, seconds):
            return _call(run, call_id, text_of(output), is_error=is_error, seconds=round(seconds, 6))
        case CallJudged(call_id, "deny", _, reason):
            return _call(run, call_id, reason, is_error=True, seconds=0.0)
        case _:
            return None


def _response(run: Run) -> Observation | None:
    texts: list[str] = []
    calls: list[str] = []
    for place in range(len(run.transcript) - 1, run.base - 1, -1):
        entry = run.transcript[place]
        if entry.turn != run.turns or entry.origin != "model":
            break
        if isinstance(entry.item, Message):
            texts.append(entry.item.text or "".join([part.refusal for part in entry.item.content if isinstance(part, Refusal)]))
        elif isinstance(entry.item, FunctionCall) and not entry.hidden:
            calls.append(entry.item.name)
    text, named = "\n".join(texts[::-1]), calls[::-1]
    if not text and not named:
        return None
    return _observation(run, "llm_response", text or f"calls {', '.join(named)}", {"model": run.spec.model, "calls": named})


def _call(run: Run, call_id: str, output: str, *, is_error: bool, seconds: float) -> Observation:
    made = _find_call(run, call_id)
    what: Json = {"call_id": call_id, "tool": made.name, "arguments": made.arguments, "is_error": is_error, "seconds": seconds}
    return _observation(run, "tool_call", output, what)


def _find_call(run: Run, call_id: str) -> FunctionCall:
    """The call that was answered. Its place is near the end; one that an earlier run has made is in the history."""
    for call in run.calls:
        if call.item.call_id == call_id:
            return call.item
    for place in range(len(run.transcript) - 1, -1, -1):
        item = run.transcript[place].item
        if isinstance(item, FunctionCall) and item.call_id == call_id:
            return item
    return FunctionCall(call_id, "unknown")


def _observation(run: Run, kind: EventType, content: str, what: Json) -> Observation:
    spec, place = run.spec, run.seq - 1
    digest = sha256(f"{spec.tenant}\0{spec.id}\0{place}".encode(errors="replace")).hexdigest()
    return Observation(
        id=f"obs_{digest[:24]}",
        session_id=find_session(spec),
        agent_name=spec.agent or "assistant",
        event_type=kind,
        content=content,
        metadata={RUN: spec.id, "turn": run.turns, **what},
        tags=find_tags(spec),
        timestamp=run.clock,
        tenant=spec.tenant,
    )
