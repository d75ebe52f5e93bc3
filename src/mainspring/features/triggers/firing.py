"""What happens when a schedule is due: what is started, what is skipped, and what waits.

Whatever is decided here is written only after all of it was done. A process that dies in between leaves the schedule as it was,
and the next one decides anew; what was started meanwhile has an id that follows from its due time, and is found by that.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import MainspringError, OurError
from mainspring.core.redact import redact_text
from mainspring.features.triggers.due_times import find_next, list_due
from mainspring.features.triggers.schedule import MOST_RECENT, Firing, Outcome, ScheduleFacts, ScheduleState
from mainspring.features.triggers.targets import KeyLost, Targets
from mainspring.http.auth import ApiCaller
from mainspring.http.faults import Fault

# A due time that was so long ago was missed.
LATE_SECONDS: Final = 60.0
# How many due times are made up for, and how many wait for the run before.
MOST_WAITING: Final = 100
REASON_CHARS: Final = 300


class FiredSchedule(Struct, frozen=True):
    """A schedule as it is after a look at it, and what has become of its due times."""

    state: ScheduleState
    firings: tuple[Firing, ...] = ()


async def fire_due(targets: Targets, tenant: str, facts: ScheduleFacts, state: ScheduleState, now: float) -> FiredSchedule:
    """Does what is due. Raises `StoreError` and other errors of ours: then it is to be tried again."""
    due = _list_due(state, now)
    if state.is_paused or state.stopped or not (due or state.queued or state.asked):
        return FiredSchedule(state)
    try:
        caller = await targets.find_caller(facts.by)
    except KeyLost as lost:
        fired = tuple([Firing(each, now, "failed", reason=str(lost)) for each in (*state.asked, *state.queued, *due)])
        return FiredSchedule(remember(replace(state, stopped=str(lost), next_due=None, queued=(), asked=()), fired), fired)
    batch = _Batch(targets, tenant, facts, caller, state, now)
    for at in state.asked:
        await batch.start(at, by_hand=True)
    for each in await batch.drop_missed(due):
        await batch.start_in_turn(each)
    return batch.finish()


def _list_due(state: ScheduleState, now: float) -> list[float]:
    if state.next_due is None or state.next_due > now:
        return []
    return list_due(state.timing, state.next_due, now, MOST_WAITING)


def remember(state: ScheduleState, firings: Sequence[Firing]) -> ScheduleState:
    """The state with these firings; the oldest ones are forgotten."""
    return replace(state, recent=(*state.recent, *firings)[-MOST_RECENT:])


class _Batch:
    """All due times of one look at a schedule."""

    def __init__(
        self, targets: Targets, tenant: str, facts: ScheduleFacts, caller: ApiCaller, state: ScheduleState, now: float
    ) -> None:
        self._targets, self._tenant, self._facts, self._caller, self._now = targets, tenant, facts, caller, now
        self._state, self._definition = state, state.definition
        self._active = state.active
        self._waiting: list[float] = []
        self._firings: list[Firing] = []

    async def drop_missed(self, due: Sequence[float]) -> list[float]:
        """The due times that are to be started, those that waited first."""
        late, fresh = (
            [each for each in due if each < self._now - LATE_SECONDS],
            [each for each in due if each >= self._now - LATE_SECONDS],
        )
        first = self._state.next_due
        if late and first is not None and late[0] > first:
            self._note(first, "missed", reason=f"older than the last {MOST_WAITING} due times, as are those up to the next one")
        kept = late if self._definition.missed == "all" else late[-1:] if self._definition.missed == "once" and not fresh else []
        wanted: list[float] = []
        for each in late:
            if each in kept or await self._targets.find_started(self._definition.target, self._word(each), self._tenant):
                wanted.append(each)
            else:
                self._note(each, "missed", reason=f"no server ran then; `missed` is `{self._definition.missed}`")
        return [*self._state.queued, *wanted, *fresh]

    async def start_in_turn(self, due: float) -> None:
        """Starts a run, unless the one before goes on and the schedule does not allow several."""
        overlap = self._definition.overlap
        known = await self._targets.find_started(self._definition.target, self._word(due), self._tenant)
        is_busy = overlap != "allow" and known is None and (bool(self._waiting) or await self._is_running())
        if not is_busy:
            await self.start(due)
        elif overlap == "queue" and len(self._waiting) < MOST_WAITING:
            self._waiting.append(due)
        else:
            why = f"{MOST_WAITING} due times wait already" if overlap == "queue" else f"run `{self._active}` has not ended"
            self._note(due, "skipped", reason=why)

    async def start(self, due: float, *, by_hand: bool = False) -> None:
        definition = self._definition
        try:
            run_id = await self._targets.start(
                definition.target, definition.inputs, self._word(due), self._caller, {"schedule": definition.name}
            )
        except OurError:
            raise
        except (MainspringError, Fault) as error:
            self._note(due, "failed", reason=redact_text(error.message)[:REASON_CHARS], by_hand=by_hand)
            return
        self._active = run_id
        self._note(due, "started", run_id, by_hand=by_hand)

    def finish(self) -> FiredSchedule:
        state, now = self._state, self._now
        is_over = state.next_due is not None and state.next_due <= now
        next_due = find_next(state.timing, now) if is_over else state.next_due
        changed = replace(state, next_due=next_due, queued=tuple(self._waiting), asked=(), active=self._active)
        return FiredSchedule(remember(changed, self._firings), tuple(self._firings))

    async def _is_running(self) -> bool:
        return bool(self._active) and await self._targets.is_running(self._active, self._tenant, self._now)

    def _word(self, due: float) -> str:
        return f"{self._facts.id} {due:.3f}"

    def _note(self, due: float, outcome: Outcome, run_id: str = "", *, reason: str = "", by_hand: bool = False) -> None:
        self._firings.append(Firing(due, self._now, outcome, run_id, reason, by_hand))
