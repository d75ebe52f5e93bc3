"""What becomes of runs, told to all who listen: that they begin, stop for somebody, and end, in whichever process.

Theory of operation. There is no task that looks at the store. Of those who listen, one at a time does, and what it finds is for
all of them; when nobody listens, nobody looks, and nothing is kept. What was told lately has a number, so that whoever was away
for a moment gets the rest; the numbers begin anew when the first listener comes. The cursor of a tenant counts the changes of
that tenant alone: it tells nobody what others do.

A run that is new has a higher number than those before it, and one that has ended is among the unfinished no more. On a server
with many writers a number may become visible behind a higher one, so a few are looked at again.
"""

from asyncio import Lock, sleep
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import Final

from msgspec import Struct

from mainspring.core.events import Status
from mainspring.ports import Filter, RunStore, RunSummary

KEPT: Final = 1000
AGAIN: Final = 200
AT_ONCE: Final = 500
LOOK_SECONDS: Final = 1.0
REST_SECONDS: Final = 0.25


class FeedChange(Struct, frozen=True):
    """That a run is now as its line says. `place` is its number among those of its tenant."""

    number: int
    place: int
    run: RunSummary


class ChangeFeed:
    """The changes of the runs of a store, for any number of listeners."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._looking = Lock()
        self._listeners = 0
        self._epoch = ""
        self._last_run = 0
        self._known: dict[int, Status] = {}
        self._changes: deque[FeedChange] = deque(maxlen=KEPT)
        self._number = 0
        self._places: Counter[str] = Counter()

    @contextmanager
    def join(self) -> Iterator[None]:
        """Listens, in here."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._epoch = ""

    async def find_place(self, cursor: str, tenant: str | None) -> int | None:
        """The number behind which a listener with this cursor reads on; None if what it missed is not known any more. The cursor
        is that of a tenant, or of whoever sees all."""
        async with self._looking:
            if not self._epoch:
                await self._begin()
        epoch, _, number = cursor.partition(".")
        if epoch != self._epoch or not number.isdecimal() or len(number) > 15:
            return None
        if int(number) == self._count(tenant):
            return self._number
        return next((found.number - 1 for found in self._changes if _place(found, tenant) == int(number) + 1), None)

    @property
    def last(self) -> int:
        return self._number

    def make_cursor(self, tenant: str | None, change: FeedChange | None = None) -> str:
        """The cursor behind this change, or behind all that there are."""
        return f"{self._epoch}.{self._count(tenant) if change is None else _place(change, tenant)}"

    async def read(self, after: int) -> Sequence[FeedChange] | None:
        """What has changed behind this number; nothing if that is so for a second or so, None if some of it is not known any
        more."""
        if after == self._number:
            async with self._looking:
                if after == self._number:  # nobody has found something meanwhile
                    await self._look()
        found = [change for change in self._changes if change.number > after]
        return None if found and found[0].number > after + 1 else found

    async def _begin(self) -> None:
        last = await self._store.find_last_number()
        known = dict(await self._store.list_states(last - AGAIN))
        self._epoch, self._last_run, self._known = token_hex(4), last, known
        self._changes.clear()
        self._places.clear()
        self._number = 0

    async def _look(self) -> None:
        await self._store.wait_for_change(LOOK_SECONDS)
        await sleep(REST_SECONDS)  # where much is going on, one look finds many changes
        states = await self._store.list_states(self._last_run - AGAIN)
        changed = [number for number, status in states.items() if self._known.get(number) != status]
        changed += [number for number, status in self._known.items() if status == "in_progress" and number not in states]
        found: list[RunSummary] = []
        for start in range(0, len(changed), AT_ONCE):
            found += await self._store.find_summaries(sorted(changed)[start : start + AT_ONCE])
        found = [*await self._find_answered(found), *found]
        self._last_run = max([self._last_run, *states])
        self._known = {number: status for number, status in states.items() if status == "in_progress"}
        self._known |= {number: status for number, status in states.items() if number > self._last_run - AGAIN}
        for run in found:
            self._number += 1
            self._places[run.tenant] += 1
            self._changes.append(FeedChange(self._number, self._places[run.tenant], run))

    def _count(self, tenant: str | None) -> int:
        return self._number if tenant is None else self._places[tenant]

    async def _find_answered(self, found: Sequence[RunSummary]) -> Sequence[RunSummary]:
        """The runs that these go on with, which wait no more."""
        parents = tuple([run.parent for run in found if run.parent is not None])
        if not parents:
            return ()
        only = Filter(ids=parents, status=("requires_action",))
        return (await self._store.summarize(limit=len(parents), only=only)).runs


def _place(change: FeedChange, tenant: str | None) -> int | None:
    """The number of a change among those that such a listener hears of."""
    if tenant is None:
        return change.number
    return change.place if change.run.tenant == tenant else None
