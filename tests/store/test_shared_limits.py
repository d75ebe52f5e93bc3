"""Limits that processes share by a store: never exceeded, whoever races or dies, and nobody is left out."""

import asyncio
from itertools import pairwise

import anyio
from tests.kit.waiting import PATIENCE

from mainspring.ports import LIMIT_SECONDS, Document, RateWindow, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.shared_limits import LIMIT, StoreClock, StoreLimit, StoreLimits


class SetClock(StoreClock):
    """A clock that tests set."""

    now = 1_000.0

    async def read(self) -> float:
        return self.now


def limits_of(store: Store, most: int | None, *windows: RateWindow, processes: int = 2) -> tuple[SetClock, list[StoreLimit]]:
    clock = SetClock(store)
    return clock, [StoreLimit(store, clock, f"process {number}", "test", most, windows) for number in range(processes)]


async def test_of_a_document_that_changed_no_body_is_swapped(each_store: Store) -> None:
    assert not await each_store.swap(Document("a", "b", b"2"), b"1")
    await each_store.put([Document("a", "b", b"1")])
    swapped = await asyncio.gather(*[each_store.swap(Document("a", "b", f"{number}".encode()), b"1") for number in range(2, 8)])
    assert sum(swapped) == 1
    found = await each_store.get("a", "b")
    assert found is not None
    assert found.body == f"{2 + swapped.index(True)}".encode()


async def test_processes_that_race_never_use_more_than_there_are(location: Location) -> None:
    most, in_use, peak = 2, 0, 0

    async def work(store: Store) -> None:
        """A process that uses one permit at a time, ten times."""
        nonlocal in_use, peak
        limit = StoreLimits(store).open_limit("test", most_at_once=most)
        for _ in range(10):
            while not (await limit.update(0, 1)).count:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            in_use += 1
            peak = max(peak, in_use)
            await anyio.sleep(0.01)
            in_use -= 1
            await limit.update(0, 0)

    with anyio.fail_after(2 * PATIENCE):
        async with open_store(location) as one, open_store(location) as other, anyio.create_task_group() as tasks:
            for store in (one, other):
                for _ in range(3):
                    tasks.start_soon(work, store)
    assert 0 < peak <= most


async def test_a_rate_is_kept_by_all_together_and_says_when_to_come_back() -> None:
    async with MemoryStore() as store:
        clock, (one, other) = limits_of(store, None, RateWindow(3, 60.0), RateWindow(2, 1.0))
        assert (await one.update(0, 5)).count == 2
        refused = await other.update(0, 1)
        assert (refused.count, refused.wait, refused.window) == (0, 1.0, RateWindow(2, 1.0))
        clock.now += 1.0
        assert (await other.update(0, 5)).count == 1
        refused = await one.update(0, 1)
        assert (refused.count, refused.wait, refused.window) == (0, 59.0, RateWindow(3, 60.0))
        clock.now += 59.0
        assert (await one.update(0, 5)).count == 2


async def test_a_large_rate_is_a_small_document_and_never_exceeded() -> None:
    async with MemoryStore() as store:
        clock, (one, other) = limits_of(store, None, RateWindow(5_000, 60.0))
        given: list[float] = []
        for step in range(2_000):
            grant = await (one, other)[step % 2].update(0, 10)
            given += [clock.now] * grant.count
            clock.now += 0.0625
        document = await store.get(LIMIT, "test")
        assert document is not None
        assert len(document.body) < 8_000
    assert len(given) > 10_000 * 0.95
    for first, beyond in zip(given, given[5_000:], strict=False):
        assert beyond - first >= 60.0
    assert all(before <= after for before, after in pairwise(given))


async def test_a_process_that_is_not_heard_of_uses_nothing() -> None:
    async with MemoryStore() as store:
        clock, (one, other) = limits_of(store, 3)
        assert (await one.update(0, 3)).count == 3
        assert (await other.update(0, 1)).count == 0
        clock.now += LIMIT_SECONDS / 2
        await one.update(3, 0)
        clock.now += LIMIT_SECONDS - 0.1
        assert (await other.update(0, 1)).count == 0, "it was heard of"
        clock.now += 0.1
        assert (await other.update(0, 1)).count == 1


async def test_who_waits_gets_a_share() -> None:
    async with MemoryStore() as store:
        _, (one, other) = limits_of(store, 4)
        assert (await one.update(0, 9)).count == 4
        assert (await other.update(0, 9)).count == 0
        assert (await one.update(3, 9)).count == 0, "more than its share, and another waits"
        assert (await other.update(0, 9)).count == 1
        assert (await one.update(2, 9)).count == 0
        assert (await other.update(1, 9)).count == 1
        assert (await one.update(1, 9)).count == 1, "less than its share"


async def test_a_limit_of_one_goes_round() -> None:
    async with MemoryStore() as store:
        _, (one, other) = limits_of(store, 1)
        assert (await one.update(0, 2)).count == 1
        assert (await other.update(0, 2)).count == 0
        await one.update(0, 0)
        assert (await other.update(0, 2)).count == 1
