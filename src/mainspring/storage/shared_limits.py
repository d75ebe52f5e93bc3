"""Limits that all processes on one store keep together: how many requests at once, and how many within a time.

Theory of operation. A limit is one document, which is replaced only if nobody else has replaced it meanwhile. So whoever decided
on an old state decides again, and a limit is never exceeded, whatever races. The document says when permits were given, and which
process uses how many. A process that is not heard of for `LIMIT_SECONDS` is taken to have died, and uses none. A process asks for
as many permits as it has requests that wait, so under load one write serves many. Times are those of the store's clock.

Of permits at once, a process takes no more than its share while others wait for theirs. Of a large rate, moments are rounded up
to a fraction of the longest window, so that a document stays small: a permit may come back that much later, never sooner. What
is known only afterwards, such as the tokens of a request, is noted in a window of its own, which what is under way may exceed.
"""

import time
from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.core.ids import random_id
from mainspring.core.items import decode, encode
from mainspring.ports import LIMIT_SECONDS, Document, DocumentStore, Grant, RateWindow, WindowRoom

LIMIT = "limit"
# How many moments a document has for its longest window, at most.
MOST_MOMENTS = 240
# A process that has nothing new to say says so again only after a while.
RENEW_SECONDS = 1.0
CLOCK_SECONDS = 60.0
MOST_TRIES = 100


class GivenPermits(Struct, frozen=True, array_like=True):
    at: float
    count: int


class PermitHolder(Struct, frozen=True, array_like=True):
    """A process: how many permits it uses, how many more it waits for, and until when that holds."""

    in_use: int
    wanted: int
    until: float


class LimitState(Struct, frozen=True, omit_defaults=True):
    given: tuple[GivenPermits, ...] = ()
    holders: dict[str, PermitHolder] = {}
    noted: tuple[GivenPermits, ...] = ()


class StoreClock:
    """The store's clock, asked now and then and counted on in between."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._offset, self._asked_at = 0.0, float("-inf")

    async def read(self) -> float:
        if time.monotonic() - self._asked_at > CLOCK_SECONDS:
            told = await self._store.read_clock()
            self._asked_at = time.monotonic()
            self._offset = told - self._asked_at
        return time.monotonic() + self._offset


class StoreLimits:
    """Opens limits on a store. Each is one holder of permits, so an engine has one of it."""

    def __init__(self, store: DocumentStore) -> None:
        self._store, self._clock, self._holder = store, StoreClock(store), random_id("lim")

    def open_limit(
        self,
        name: str,
        *,
        most_at_once: int | None = None,
        windows: Sequence[RateWindow] = (),
        notes: RateWindow | None = None,
        waits: bool = True,
    ) -> "StoreLimit":
        return StoreLimit(self._store, self._clock, self._holder, name, most_at_once, windows, notes, waits=waits)


class StoreLimit:
    """A limit in a store. See `SharedLimit`."""

    def __init__(
        self,
        store: DocumentStore,
        clock: StoreClock,
        holder: str,
        name: str,
        most_at_once: int | None,
        windows: Sequence[RateWindow],
        notes: RateWindow | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self._store, self._clock, self._holder, self._name = store, clock, holder, name
        self._most_at_once, self._windows, self._notes, self._waits = most_at_once, tuple(windows), notes, waits
        self._longest = max([window.seconds for window in windows], default=0.0)
        is_large = max([window.count for window in windows], default=0) > MOST_MOMENTS
        self._quantum = self._longest / MOST_MOMENTS if is_large else 0.0
        self._known: Document | None = None

    async def update(self, in_use: int, wanted: int, noted: int = 0) -> Grant:
        for _ in range(MOST_TRIES):
            known = self._known
            found = known or await self._store.get(LIMIT, self._name)
            state = LimitState() if found is None else decode(found.body, LimitState)
            grant, changed = self._decide(state, in_use, wanted, noted, await self._clock.read())
            if known is not None and grant.count < wanted:
                self._known = None  # others may have given back some since
                continue
            document = Document(LIMIT, self._name, encode(changed))
            if found is None:
                is_written = await self._store.put([document], if_absent=True)
            else:
                is_written = document.body == found.body or await self._store.swap(document, found.body)
            # What others note changes nothing here that a write would run into.
            self._known = document if is_written and self._notes is None else None
            if is_written:
                return grant
        raise StoreError(f"the limit `{self._name}` is changed by others all the time")

    def _decide(self, state: LimitState, in_use: int, wanted: int, noted: int, now: float) -> tuple[Grant, LimitState]:
        given, notes = _keep(state.given, now - self._longest), state.noted
        holders = {id: each for id, each in state.holders.items() if id != self._holder and each.until > now}
        rooms = [window.count - _count(window, given, now) for window in self._windows]
        if self._most_at_once is not None:
            rooms.append(_find_room(self._most_at_once, in_use, list(holders.values())))
        waits = [_find_wait(window, given, now) for window in self._windows]
        if self._notes is not None:
            notes = tuple(_keep(notes, now - self._notes.seconds))
            if noted:
                notes = tuple(_add(notes, noted, now, self._notes.seconds / MOST_MOMENTS))
            waits.append(_find_wait(self._notes, notes, now))
            if _count(self._notes, notes, now) >= self._notes.count:
                rooms.append(0)
        count = max(min([wanted, *rooms]), 0)
        wait, window = max(waits, key=_by_wait, default=(0.0, None))
        if count and self._windows:
            given = _add(given, count, now, self._quantum)
        left = [_tell_room(window, given, now) for window in self._windows]
        if self._notes is not None:
            left.append(_tell_room(self._notes, notes, now))
        grant = Grant(count, rooms=tuple(left)) if count == wanted else Grant(count, wait, window if wait else None, tuple(left))
        unmet = wanted - count if self._waits else 0
        if self._most_at_once is not None and (in_use + count or unmet):
            before, until = state.holders.get(self._holder), now + LIMIT_SECONDS
            if before is not None and before.until > until - RENEW_SECONDS:
                until = before.until
            holders[self._holder] = PermitHolder(in_use + count, unmet, until)
        return grant, LimitState(tuple(given), holders, notes)


def _keep(moments: Sequence[GivenPermits], after: float) -> list[GivenPermits]:
    return [each for each in moments if each.at > after]


def _add(moments: Sequence[GivenPermits], count: int, now: float, quantum: float) -> list[GivenPermits]:
    """These moments and one more, which is rounded up to a multiple of `quantum`."""
    at = now if not quantum else ceil(now / quantum) * quantum
    same = sum([each.count for each in moments if each.at == at])
    return [*[each for each in moments if each.at != at], GivenPermits(at, count + same)]


def _tell_room(window: RateWindow, moments: Sequence[GivenPermits], now: float) -> WindowRoom:
    until = max([each.at + window.seconds for each in moments], default=now)
    return WindowRoom(max(window.count - _count(window, moments, now), 0), max(until - now, 0.0))


def _count(window: RateWindow, given: Sequence[GivenPermits], now: float) -> int:
    return sum([each.count for each in given if each.at > now - window.seconds])


def _find_wait(window: RateWindow, given: Sequence[GivenPermits], now: float) -> tuple[float, RateWindow]:
    """In how many seconds the window has room."""
    left, wait = window.count - _count(window, given, now), 0.0
    for each in given:
        if left <= 0 and each.at > now - window.seconds:
            left, wait = left + each.count, each.at + window.seconds - now
    return wait, window


def _by_wait(found: tuple[float, RateWindow]) -> float:
    return found[0]


def _find_room(most: int, in_use: int, others: Sequence[PermitHolder]) -> int:
    """How many more may be in use here: all that are left, or up to an equal share if others wait, too."""
    left = most - in_use - sum([other.in_use for other in others])
    waiting = sum([other.wanted > 0 for other in others])
    return left if not waiting else min(left, max(most // (waiting + 1), 1) - in_use)
