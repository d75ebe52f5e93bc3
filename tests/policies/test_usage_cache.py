"""Sums of what runs have used: old days are summed once for a while, and the answer is that of the store."""

import time

from tests.store.logs import spec
from tests.store.test_summaries import begun

from mainspring.features.budgets.routes import UsageCache
from mainspring.ports import Filter
from mainspring.storage.memory_runs import MemoryStore

DAY = 86_400


async def test_sums_are_those_of_the_store_wherever_their_days_begin_and_end() -> None:
    store, now = MemoryStore(), time.time()
    for number, days in enumerate((0, 1, 2, 3, 30)):
        await begun(store, spec(f"resp_{number}"), now - days * DAY)
    usage = UsageCache(store)
    for since in (None, now - 31 * DAY, now - 2.5 * DAY, now - DAY / 2):
        for before in (None, now - DAY / 2, now - 2.5 * DAY):
            only = Filter(since=since, before=before)
            assert list(await usage.sum_usage("day", only)) == list(await store.sum_usage("day", only))
            assert list(await usage.sum_usage("model", only)) == list(await store.sum_usage("model", only))


async def test_only_old_days_are_remembered() -> None:
    store, now = MemoryStore(), time.time()
    await begun(store, spec("resp_old"), now - 30 * DAY)
    await begun(store, spec("resp_new"), now)
    usage = UsageCache(store)
    assert [each.runs for each in await usage.sum_usage("model", Filter())] == [2]
    await store.delete("resp_new")
    await store.delete("resp_old")
    assert [each.runs for each in await usage.sum_usage("model", Filter())] == [1]
    assert await usage.sum_usage("model", Filter(tenant="acme")) == []
