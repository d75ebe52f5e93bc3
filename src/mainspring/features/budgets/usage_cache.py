"""What runs have used, without a look at every run each time.

The runs of days before yesterday are many and seldom change: their sums are kept for some minutes. So a run of theirs that is
deleted, or that ends only now, is counted as it was for that much longer. The runs of today and yesterday are summed each time.
"""

import time
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from mainspring.ports import Filter, RunStore, UsageGroup, UsageSum

SECONDS_KEPT: Final = 300.0
MOST_KEPT: Final = 64
_DAY: Final = 86_400

_Question = tuple[UsageGroup, str | None, float, float]


class UsageCache:
    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._kept: dict[_Question, tuple[float, Sequence[UsageSum]]] = {}

    async def sum_usage(self, by: UsageGroup, only: Filter) -> Sequence[UsageSum]:
        """As the store has it. Of the filter, tenant and times count."""
        since, before = only.since or 0.0, only.before or float("inf")
        recent = float((time.time() // _DAY - 1) * _DAY)
        past = await self._sum_past(by, only.tenant, since, min(before, recent)) if since < recent else ()
        if before <= recent:
            return past
        return _merge(past, await self._store.sum_usage(by, Filter(tenant=only.tenant, since=max(since, recent), before=before)))

    async def _sum_past(self, by: UsageGroup, tenant: str | None, since: float, before: float) -> Sequence[UsageSum]:
        question, now = (by, tenant, since, before), time.monotonic()
        if (known := self._kept.pop(question, None)) is None or known[0] < now:
            found = await self._store.sum_usage(by, Filter(tenant=tenant, since=since, before=before))
            known = (now + SECONDS_KEPT, found)
        self._kept[question] = known
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return known[1]


def _merge(past: Sequence[UsageSum], recent: Sequence[UsageSum]) -> Sequence[UsageSum]:
    found = {(each.group, each.model): each for each in past}
    for each in recent:
        known = found.get((each.group, each.model))
        found[each.group, each.model] = each if known is None else _add(known, each)
    return [found[names] for names in sorted(found)]


def _add(one: UsageSum, other: UsageSum) -> UsageSum:
    return replace(
        one,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        ended=one.ended + other.ended,
        seconds=one.seconds + other.seconds,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
    )
