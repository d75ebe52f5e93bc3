"""The schedules of all tenants: made, changed, and started when they are due.

Theory of operation. A schedule is a leased document. Each process knows the next time of every schedule, sleeps until the first
of them, and claims the schedule then; one of them gets it, does what is due, and writes when it is due next. The others find that
out and sleep again. If a process dies with a schedule in its hands, another claims it and does what is due, again: what was
started is found by its id. Changes by other processes are found by their marks (`marks.py`).
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from logging import getLogger
from typing import Final

from anyio import CancelScope, Event, create_task_group, move_on_after
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import (
    CallerError,
    DocumentBusy,
    InvalidRequest,
    MainspringError,
    NotFound,
    OurError,
    StoreError,
    Superseded,
)
from mainspring.core.fair_queue import FairQueue
from mainspring.core.ids import NewId
from mainspring.core.items import decode, encode
from mainspring.features.triggers.due_times import check_timing, find_next
from mainspring.features.triggers.firing import MOST_WAITING, FiredSchedule, fire_due, remember
from mainspring.features.triggers.marks import Mark, make_mark, put_mark, remove_mark
from mainspring.features.triggers.schedule import Firing, ScheduleDefinition, ScheduleFacts, ScheduleState
from mainspring.features.triggers.targets import Targets, check_size
from mainspring.http.auth import ApiCaller
from mainspring.http.queries import Cursor, read_document_page
from mainspring.ports import Document, DocumentStore, Drivers
from mainspring.tools.builtin.leased_documents import LeasedBody, LeasedDocuments

log = getLogger(__name__)

SCHEDULE: Final = "schedule"
# What the schedules of a tenant may have together: thousands of them.
MOST_BYTES: Final = 32 * 1024 * 1024
# How long a change waits for a process that has the schedule in hands.
CHANGE_SECONDS: Final = 10.0
# When another process is looked after that has a schedule in hands, when a run is that others wait for, and after a failure.
BUSY_SECONDS: Final = 1.0
QUEUE_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 5.0
# How many are fired at a time, and how many of them may be one tenant's.
FIRED_AT_ONCE: Final = 16
FIRED_OF_ONE: Final = 8
READ_AT_ONCE: Final = 500
LONGEST_PAUSE: Final = 60.0
SPARE: Final = 64

Key = tuple[str, str]
TellFiring = Callable[[str, ScheduleFacts, ScheduleDefinition, Firing], None]


class DocumentConflict(CallerError):
    """There is something of this name already, or it is not to be changed here."""

    code = "trigger_conflict"
    status = 409


class Schedule(Struct, frozen=True):
    """A schedule as it was read."""

    tenant: str
    facts: ScheduleFacts
    state: ScheduleState


class Schedules:
    """The schedules of a store."""

    def __init__(
        self, store: DocumentStore, drivers: Drivers, new_id: NewId, on_change: Callable[[Key], None] = lambda key: None
    ) -> None:
        self._store, self._new_id, self._on_change = store, new_id, on_change
        self._documents = LeasedDocuments(store, drivers, SCHEDULE, SCHEDULE, ScheduleFacts, ScheduleState)
        self._room: dict[str, int] = {}

    async def create(self, tenant: str, definition: ScheduleDefinition, by: str = "", *, of_file: bool = False) -> Schedule:
        """Raises `InvalidRequest` for a time that cannot be, `DocumentConflict` if the name is taken."""
        now = await self._store.read_clock()
        check_timing(definition.make_timing(now))
        check_size(definition)
        key = (tenant, definition.name)
        await self._check_room(tenant, len(encode(definition)))
        facts = ScheduleFacts(self._new_id("sched"), now, by, of_file)
        state = ScheduleState(definition, now, find_next(definition.make_timing(now), now))
        # A process that dies before the schedule has its mark leaves this one, by which a start finds it.
        await self._store.put([make_mark(Mark(SCHEDULE, *key), 0)])
        if not await self._documents.create(key, facts, state):
            raise DocumentConflict(
                f"there is a schedule `{definition.name}` already; change that, or choose a name", param="name"
            )
        await self._tell(key, state)
        return Schedule(tenant, facts, state)

    async def get(self, tenant: str, name: str) -> Schedule:
        """Raises `NotFound`."""
        try:
            found = await self._documents.read((tenant, name))
        except NotFound:
            raise NotFound(f"there is no schedule `{name[:80]}`; list them to see which there are", param="name") from None
        return Schedule(tenant, found.facts, found.state)

    async def list(self, tenant: str) -> Sequence[Schedule]:
        """Those of a tenant, by the time they were made."""
        return [_read(document) for document in await self._store.documents(SCHEDULE, tenant=tenant)]

    async def iterate(self, tenant: str) -> AsyncGenerator[Schedule, None]:
        """Those of a tenant, some at a time: there may be very many."""
        number = None
        while page := await self._store.documents(SCHEDULE, tenant=tenant, after=number, limit=READ_AT_ONCE):
            for document in page:
                yield _read(document)
            number = page[-1].number

    async def list_page(self, tenant: str, cursor: Cursor) -> tuple[Sequence[Schedule], bool]:
        """Some of a tenant's, and whether there are more. Raises `NotFound` for an unknown `after`."""
        page = await read_document_page(self._store, SCHEDULE, tenant, cursor)
        return [_read(document) for document in page.documents], page.has_more

    async def replace(self, tenant: str, definition: ScheduleDefinition) -> Schedule:
        """Gives a schedule another definition; it is due as if it were new. Raises `NotFound`, `InvalidRequest`."""
        now = await self._store.read_clock()
        timing = definition.make_timing(now)
        check_timing(timing)
        check_size(definition)
        next_due = find_next(timing, now)
        return await self._change(
            tenant,
            definition.name,
            lambda state: replace(state, definition=definition, anchor=now, next_due=None if state.stopped else next_due),
        )

    async def pause(self, tenant: str, name: str) -> Schedule:
        """Has it start nothing until it is resumed. Raises `NotFound`."""
        now = await self._store.read_clock()

        def stop(state: ScheduleState) -> ScheduleState:
            left = [Firing(due, now, "skipped", reason="it was paused") for due in (*state.asked, *state.queued)]
            return remember(replace(state, is_paused=True, queued=(), asked=()), left)

        return await self._change(tenant, name, stop)

    async def resume(self, tenant: str, name: str) -> Schedule:
        """Has it go on with the next due time; what was due meanwhile is not made up for. Raises `NotFound`."""
        now = await self._store.read_clock()

        def go_on(state: ScheduleState) -> ScheduleState:
            return replace(state, is_paused=False, next_due=None if state.stopped else find_next(state.timing, now))

        return await self._change(tenant, name, go_on)

    async def ask(self, tenant: str, name: str) -> Schedule:
        """Has a run started now, beside those that are due. Raises `NotFound`, `DocumentConflict` if it is paused or stopped."""
        now = await self._store.read_clock()

        def add(state: ScheduleState) -> ScheduleState:
            if state.is_paused or state.stopped:
                why = state.stopped or "it is paused; resume it first"
                raise DocumentConflict(f"schedule `{name}` starts nothing: {why}", param="name")
            if len(state.asked) >= MOST_WAITING:
                raise DocumentConflict(f"{MOST_WAITING} runs of schedule `{name}` wait for a server; start one", param="name")
            return replace(state, asked=(*state.asked, now))

        return await self._change(tenant, name, add)

    async def remove(self, tenant: str, name: str) -> Schedule:
        """Removes it; what it has started goes on. Raises `NotFound`."""
        found = await self.get(tenant, name)
        await self._documents.remove((tenant, name))
        for version in (0, found.state.version):
            await remove_mark(self._store, Mark(SCHEDULE, tenant, name), version)
        return found

    async def fire(self, key: Key, targets: Targets, now: float, tell: TellFiring) -> float | None:
        """Does what is due, if nobody else does. Returns when to look at it again, None for never. Raises `OurError`."""
        try:
            wake = find_wake((await self._documents.read(key)).state, now)
            if wake is None or wake > now:
                return wake
            held = await self._documents.claim(key, 0)
        except NotFound:
            return None
        except DocumentBusy:
            return now + BUSY_SECONDS
        fired = FiredSchedule(held.state)
        try:
            fired = await fire_due(targets, key[0], held.facts, held.state, now)
        finally:
            with CancelScope(shield=True):
                await held.end(fired.state)
        for firing in fired.firings:
            tell(key[0], held.facts, fired.state.definition, firing)
        return now + QUEUE_SECONDS if fired.state.queued else find_wake(fired.state, now)

    async def _change(self, tenant: str, name: str, change: Callable[[ScheduleState], ScheduleState]) -> Schedule:
        key = (tenant, name)
        await self.get(tenant, name)
        try:
            held = await self._documents.claim(key, CHANGE_SECONDS)
        except DocumentBusy:
            raise DocumentConflict(f"schedule `{name}` is being fired; try again in a moment", param="name") from None
        state = held.state
        try:
            changed = change(state)
            state = replace(changed, version=state.version + 1)
        finally:
            await held.end(state)
        await self._tell(key, state)
        return Schedule(tenant, held.facts, state)

    async def _tell(self, key: Key, state: ScheduleState) -> None:
        await put_mark(self._store, Mark(SCHEDULE, *key), state.version)
        self._on_change(key)

    async def _check_room(self, tenant: str, size: int) -> None:
        """Raises `InvalidRequest` if the tenant has as much as it may. Half of the room that was found is used before it is
        measured again, which takes longer the more schedules there are."""
        room = self._room.get(tenant, 0) - size
        if room < 0:
            if (measured := await self._store.measure_documents(SCHEDULE, tenant=tenant)) > MOST_BYTES:
                raise InvalidRequest(f"the schedules of a tenant may have {MOST_BYTES} bytes; remove some", param="name")
            room = (MOST_BYTES - measured) // 2 - size
        self._room[tenant] = room


def _read(document: Document) -> Schedule:
    body = decode(document.body, LeasedBody)
    return Schedule(document.tenant, decode(bytes(body.facts), ScheduleFacts), decode(bytes(body.state), ScheduleState))


def find_wake(state: ScheduleState, now: float) -> float | None:
    """When a schedule has to be looked at, None for never."""
    if state.is_paused or state.stopped:
        return None
    return now if state.asked or state.queued else state.next_due


class ScheduleClock:
    """Fires the schedules of a store when they are due, for as long as it runs. Tenants take turns, so that one with very many
    holds up nobody else's."""

    def __init__(self, schedules: Schedules, targets: Targets, store: DocumentStore, tell: TellFiring) -> None:
        self._schedules, self._targets, self._store, self._tell = schedules, targets, store, tell
        self._heap: list[tuple[float, Key]] = []
        self._wakes: dict[Key, float] = {}
        # What is due and waits for its turn.
        self._due: FairQueue[Key] = FairQueue()
        self._taken: set[Key] = set()
        self._firing: Counter[str] = Counter()
        self._offset = 0.0
        self._changed = Event()

    def look_at(self, key: Key) -> None:
        """The schedule is new or was changed."""
        self._plan(key, 0.0)
        self._changed.set()

    async def load(self, tenants: Iterable[str]) -> None:
        """Learns of all schedules of these tenants at once. Raises `StoreError`."""
        self._offset = await self._store.read_clock() - time.time()
        for tenant in tenants:
            async for schedule in self._schedules.iterate(tenant):
                if (wake := find_wake(schedule.state, self._now())) is not None:
                    self._plan((tenant, schedule.state.definition.name), wake)
        self._changed.set()

    async def run(self) -> None:
        """Fires what is due, until it is cancelled."""
        async with create_task_group() as tasks:
            while True:
                self._changed = Event()
                self._take_due()
                while (key := self._choose()) is not None:
                    tasks.start_soon(self._fire, key)
                with move_on_after(self._find_pause()):
                    await self._changed.wait()

    def _find_pause(self) -> float | None:
        """How long to sleep. Clocks are set, so it is never long, unless there is nothing to wait for."""
        return None if not self._heap else min(max(self._heap[0][0] - self._now(), 0.0), LONGEST_PAUSE)

    def _now(self) -> float:
        return time.time() + self._offset

    def _plan(self, key: Key, wake: float) -> None:
        self._wakes[key] = wake
        heappush(self._heap, (wake, key))
        if len(self._heap) > 2 * len(self._wakes) + SPARE:
            # What was planned anew, and was not due for long, has left its place behind.
            self._heap = [(at, each) for each, at in self._wakes.items()]
            heapify(self._heap)

    def _take_due(self) -> None:
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            wake, key = heappop(self._heap)
            if self._wakes.get(key) != wake:
                continue  # it was planned anew
            del self._wakes[key]
            if key in self._taken:
                self._plan(key, now + BUSY_SECONDS)
                continue
            self._taken.add(key)
            self._due.add(key[0], key)

    def _choose(self) -> Key | None:
        """The schedule that is fired next, of the tenant whose turn it is; None if none may be now."""
        if self._firing.total() >= FIRED_AT_ONCE:
            return None
        if (found := self._due.take(lambda tenant: self._firing[tenant] < FIRED_OF_ONE)) is None:
            return None
        tenant, key = found
        self._firing[tenant] += 1
        return key

    async def _fire(self, key: Key) -> None:
        wake: float | None = self._now() + RETRY_SECONDS
        try:
            now = await self._store.read_clock()
            self._offset = now - time.time()
            wake = await self._schedules.fire(key, self._targets, now, self._tell)
        except (OurError, StoreError) as error:
            log.warning("schedule %s is tried again in %g s: %s", key[1], RETRY_SECONDS, error)
        finally:
            self._taken.discard(key)
            self._firing -= Counter([key[0]])  # leaves out tenants of which none is fired
        if wake is not None and self._wakes.get(key, wake) >= wake:
            self._plan(key, wake)
        self._changed.set()


async def sync_files(schedules: Schedules, definitions: Sequence[ScheduleDefinition]) -> bool:
    """Has the schedules of files be as these are now: new ones are made, others changed or removed. Says whether they all are;
    one that is being fired, or that another process changes in this moment, is not. Raises `StoreError`."""
    is_whole = True
    wanted = {definition.name: definition for definition in definitions}
    for schedule in await schedules.list(""):
        name = schedule.state.definition.name
        if name not in wanted:
            if schedule.facts.of_file:
                with suppress(NotFound):
                    await schedules.remove("", name)
            continue
        definition = wanted.pop(name)
        if not schedule.facts.of_file:
            log.warning("schedule %s was made by a request, so its file is not used; remove one of them", name)
        elif schedule.state.definition != definition:
            try:
                await schedules.replace("", definition)
            except (DocumentConflict, NotFound, Superseded) as error:
                log.info("schedule %s is changed later: %s", name, error)
                is_whole = False
    for definition in wanted.values():
        try:
            await schedules.create("", definition, of_file=True)
        except DocumentConflict:
            log.info("schedule %s was made by another process", definition.name)
        except MainspringError as error:
            log.warning("schedule %s cannot be used: %s", definition.name, error)
    return is_whole


async def check_definition(targets: Targets, definition: ScheduleDefinition, caller: ApiCaller) -> None:
    """Raises `InvalidRequest`, `NotFound` and `Fault` for what this caller could not start."""
    try:
        await targets.check(definition.target, definition.inputs, caller)
    except NotFound as error:
        param = "agent" if definition.agent else "workflow"
        raise InvalidRequest(error.message, param=param, code="not_found") from None
