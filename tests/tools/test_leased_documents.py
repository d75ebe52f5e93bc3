"""Leased documents are in the hands of one process at a time, on every store that processes can share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest
from msgspec import Struct
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import DocumentBusy, NotFound, StoreError, Superseded
from mainspring.engine.presence import Presence
from mainspring.ports import Document, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.browser.shared_sessions import SharedSessions
from mainspring.tools.builtin.leased_documents import LeasedDocuments

KEY = ("acme", "thing_1")


class Facts(Struct, frozen=True):
    name: str


class Counted(Struct, frozen=True):
    count: int = 0


class Processes:
    """Two on one store, each with a connection and a lease of its own."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores, self.presences = stores, [Presence(store) for store in stores]
        self.first, self.second = [
            LeasedDocuments(store, presence, "thing", "thing", Facts, Counted)
            for store, presence in zip(stores, self.presences, strict=True)
        ]


@pytest.fixture
async def processes(location: Location) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        made = Processes([await stack.enter_async_context(open_store(location)) for _ in range(2)])
        await made.first.create(KEY, Facts("one"), Counted())
        yield made
        for presence in made.presences:
            await presence.leave()


async def test_of_many_who_want_a_document_each_has_it_alone(processes: Processes) -> None:
    inside: list[int] = []

    async def count(documents: LeasedDocuments[Facts, Counted], number: int) -> None:
        for _ in range(6):
            claim = await documents.claim(KEY, PATIENCE)
            inside.append(number)
            await asyncio.sleep(0)
            assert inside == [number]
            inside.clear()
            await claim.release(Counted(claim.state.count + 1))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(count, (processes.first, processes.second)[number % 2], number)
    found = await processes.second.read(KEY)
    assert (found.facts, found.state, found.body.holder) == (Facts("one"), Counted(36), "")


async def test_who_has_waited_in_vain_is_told(processes: Processes) -> None:
    claim = await processes.first.claim(KEY, 0)
    for documents in (processes.first, processes.second):
        with pytest.raises(DocumentBusy):
            await documents.claim(KEY, 0.05)
    await claim.save(Counted(1))
    assert (await processes.second.read(KEY)).state == Counted(1), "which others can see meanwhile"
    await claim.release(Counted(2))
    again = await processes.second.claim(KEY, 0)
    assert (again.state, again.number) == (Counted(2), claim.number + 1)
    await again.release(again.state)


async def test_what_a_dead_process_held_is_free_and_it_writes_nothing_when_it_was_only_frozen(processes: Processes) -> None:
    lost = await processes.first.claim(KEY, 0)
    await lost.save(Counted(1))
    await processes.presences[0].leave()
    claim = await processes.second.claim(KEY, 0)
    assert claim.state == Counted(1)
    for attempt in (lost.save(Counted(7)), lost.release(Counted(8)), lost.end(Counted(9))):
        with pytest.raises(Superseded):
            await attempt
    await claim.release(Counted(2))
    with pytest.raises(Superseded):
        await lost.release(Counted(8))
    assert (await processes.first.read(KEY)).state == Counted(2)


async def test_a_document_that_is_removed_is_gone_for_its_holder_too(processes: Processes) -> None:
    claim = await processes.first.claim(KEY, 0)
    await processes.second.remove(KEY)
    with pytest.raises(Superseded):
        await claim.end(Counted(1))
    with pytest.raises(NotFound):
        await processes.first.claim(KEY, 0)
    assert await processes.first.list_keys("acme") == await processes.first.list_all_keys() == []


async def test_what_a_crash_has_left_of_a_removed_document_is_not_in_the_way(processes: Processes) -> None:
    await processes.stores[0].remove("thing", KEY[1], tenant=KEY[0])
    assert await processes.first.list_all_keys() == [KEY], "but for its name, it is gone"
    assert await processes.first.create(KEY, Facts("two"), Counted(5))
    assert not await processes.second.create(KEY, Facts("three"), Counted(6))
    assert (await processes.second.read(KEY)).facts == Facts("two")
    await processes.stores[0].remove("thing", KEY[1], tenant=KEY[0])
    assert [key async for key, _ in processes.second.claim_idle(lambda facts, state, now: True)] == []
    assert await processes.first.list_all_keys() == []


async def test_tenants_do_not_see_each_others_documents(processes: Processes) -> None:
    with pytest.raises(NotFound):
        await processes.first.read(("other", "thing_1"))
    await processes.first.create(("other", "thing_1"), Facts("theirs"), Counted())
    assert await processes.first.list_keys("other") == [("other", "thing_1")]
    assert set(await processes.second.list_all_keys()) == {KEY, ("other", "thing_1")}
    assert (await processes.first.read(KEY)).facts == Facts("one")


async def test_one_process_sweeps_and_takes_only_what_is_idle_and_free(processes: Processes) -> None:
    turns = [await documents.is_sweeper(1e6) for documents in (processes.first, processes.second, processes.first)]
    assert turns == [True, False, False]
    await processes.first.create(("acme", "thing_2"), Facts("busy"), Counted())
    await processes.first.create(("acme", "thing_3"), Facts("young"), Counted(1))
    held = await processes.first.claim(("acme", "thing_2"), 0)
    async for key, claim in processes.second.claim_idle(lambda facts, state, now: state.count == 0 and now > 1e9):
        assert key == KEY
        await claim.remove()
    assert [id for _, id in await processes.first.list_keys("acme")] == ["thing_2", "thing_3"]
    await held.release(held.state)


async def test_a_document_that_a_newer_version_has_written_more_into_can_be_claimed(processes: Processes) -> None:
    store = processes.stores[0]
    [document] = await store.documents("thing", tenant="acme")
    wider = document.body.replace(b'"number":', b'"later": [1],  "number":')
    assert await store.put([Document("thing", "thing_1", wider, "acme")])
    claim = await processes.second.claim(KEY, 0)
    await claim.release(Counted(3))
    assert (await processes.first.read(KEY)).state == Counted(3)


class StoppedClock(MemoryStore):
    """Cannot tell the time once it has stopped."""

    is_stopped = False

    async def read_clock(self) -> float:
        if self.is_stopped:
            raise StoreError("no clock")
        return await super().read_clock()


async def test_a_browser_session_is_given_back_though_the_store_cannot_tell_the_time() -> None:
    store = StoppedClock()
    sessions, key = SharedSessions(store, Presence(store), 600.0), ("acme", "conv_1")
    async with sessions.hold(key, makes=True) as held:
        held.keep("https://example.com", ())
        store.is_stopped = True
    with anyio.fail_after(PATIENCE):
        async with sessions.hold(key, makes=False) as held:
            assert held.state.address == "https://example.com"
