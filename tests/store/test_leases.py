"""Who drives which run: of several who want one, one gets it, and nobody looks into a log to find out."""

import asyncio

import asyncpg  # type: ignore[import-untyped]
import pytest
from tests.kit.engine import make_order
from tests.kit.waiting import PATIENCE
from tests.store.logs import answer, end

from mainspring.core.errors import NotFound
from mainspring.core.events import Recorded, RunStarted
from mainspring.ports import OWNED, Claim, Driver, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location

LONG, OVER = 600.0, -1.0


async def begin(store: Store, id: str, driver: str = "", *, at: float = 1.0, tenant: str = "") -> None:
    await store.append(id, [Recorded(0, at, RunStarted(make_order(id, tenant=tenant), driver))])


async def test_a_run_belongs_to_its_driver_while_the_lease_of_that_holds(store: Store) -> None:
    leases = store.leases
    assert not await leases.beat(Driver("one"), LONG)
    assert await leases.beat(Driver("one"), LONG)
    await leases.beat(Driver("other"), LONG)
    await begin(store, "a", "one")
    assert await leases.find_driver("a") == "one"
    assert await leases.claim("a", "other") is None
    assert await leases.claim("a", "one") == Claim()
    assert await leases.list_claimable() == []
    await leases.beat(Driver("one"), OVER)
    assert await leases.find_driver("a") is None
    assert not await leases.is_alive("one")
    assert await leases.list_claimable() == ["a"]
    assert await leases.claim("a", "other") == Claim()
    assert not await leases.beat(Driver("one"), LONG)
    assert await leases.claim("a", "one") is None
    assert await leases.find_driver("a") == "other"


async def test_a_run_that_is_nobodys_can_be_claimed_and_given_back(store: Store) -> None:
    leases = store.leases
    await leases.beat(Driver("one"), LONG)
    await begin(store, "later", at=2.0)
    await begin(store, "sooner", at=1.0)
    await begin(store, "owned", tenant=f"part{OWNED}x")
    assert await leases.list_claimable() == ["sooner", "later"]
    assert await leases.list_claimable(limit=1) == ["sooner"]
    assert await leases.list_claimable(owned=True) == ["owned"]
    assert await leases.claim("later", "one") == Claim(was_free=True)
    assert await leases.claim("later", "one") == Claim()
    assert await leases.list_claimable() == ["sooner"]
    await leases.release("one", "later")
    assert await leases.list_claimable() == ["sooner", "later"]


async def test_a_driver_that_leaves_gives_back_all_its_runs(store: Store) -> None:
    leases = store.leases
    await leases.beat(Driver("one"), LONG)
    await begin(store, "a", "one", at=1.0)
    await begin(store, "b", "one", at=2.0)
    await leases.release("one")
    assert not await leases.is_alive("one")
    assert await leases.list_claimable() == ["a", "b"]


async def test_a_run_that_has_ended_is_nobodys_and_is_not_claimed(store: Store) -> None:
    leases = store.leases
    await leases.beat(Driver("one"), LONG)
    await begin(store, "a", "one")
    await store.append("a", end(1), answer("a", "hi"))
    await store.append("b", [Recorded(0, 1.0, RunStarted(make_order("b"), "one")), *end(1)], answer("b", "hi"))
    for id in ("a", "b"):
        assert await leases.claim(id, "one") is None
        assert await leases.find_driver(id) is None
        await leases.request_cancel(id)
    assert await leases.list_claimable() == []
    assert await leases.list_cancelled("one") == []


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    for question in (store.leases.find_driver("a"), store.leases.claim("a", "one"), store.leases.request_cancel("a")):
        with pytest.raises(NotFound):
            await question
    await begin(store, "a")
    await store.delete("a")
    assert await store.leases.list_claimable() == []


async def test_a_cancel_stays_asked_for_until_the_run_has_ended(store: Store) -> None:
    leases = store.leases
    await leases.beat(Driver("one"), LONG)
    await begin(store, "a", "one")
    await begin(store, "b", "one")
    await leases.request_cancel("a")
    assert await leases.list_cancelled("one") == ["a"]
    await leases.release("one")
    assert await leases.claim("a", "other") == Claim(is_cancelled=True)
    assert await leases.list_cancelled("other") == ["a"]
    assert await leases.list_cancelled("one") == []
    await store.append("a", end(1), answer("a", "hi"))
    assert await leases.list_cancelled("other") == []


async def test_drivers_are_listed_by_their_place_while_their_lease_holds(store: Store) -> None:
    here, there, gone = Driver("here", "machine 1", 7, "today"), Driver("there", "machine 2", 8), Driver("gone", "machine 1")
    await store.leases.beat(here, LONG)
    await store.leases.beat(there, LONG)
    await store.leases.beat(gone, OVER)
    assert await store.leases.list_drivers("machine 1") == [here]
    assert here in await store.leases.list_drivers()
    assert len(await store.leases.list_drivers()) > 1


async def test_of_many_who_claim_a_run_at_once_one_has_it(location: Location) -> None:
    async with open_store(location) as left, open_store(location) as right:
        for name, store in (("left", left), ("right", right)):
            await store.leases.beat(Driver(name), LONG)
        for number in range(30):
            await begin(left, f"r{number}", "gone")
            assert await right.leases.list_claimable() == [f"r{number}"]
            claims = await asyncio.gather(
                *[
                    store.leases.claim(f"r{number}", name)
                    for name, store in (("left", left), ("right", right), ("left", right), ("right", left))
                ]
            )
            winners = {name for name, claim in zip(("left", "right", "left", "right"), claims, strict=True) if claim}
            assert winners == {await right.leases.find_driver(f"r{number}")}


@pytest.mark.slow
@pytest.mark.requirement("M4")
async def test_a_driver_that_has_its_lease_again_and_has_confirmed_its_run_keeps_it(emptied: Location) -> None:
    """Another has asked for the run while the lease was over, and waits for the confirmation to be written."""
    async with open_store(emptied) as store, asyncio.timeout(PATIENCE):
        await store.leases.beat(Driver("one"), OVER)
        await store.leases.beat(Driver("other"), LONG)
        await begin(store, "a", "one")
        connection = await asyncpg.connect(emptied.given)
        try:
            confirming = connection.transaction()
            await confirming.start()
            await connection.execute("UPDATE mainspring_drivers SET expires = 'infinity' WHERE id = 'one'")
            assert await connection.execute("UPDATE mainspring_runs SET driver = 'one' WHERE driver = 'one'") == "UPDATE 1"
            claim = asyncio.create_task(store.leases.claim("a", "other"))
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
            while await connection.fetchval(waits) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await confirming.commit()
            assert await claim is None
        finally:
            await connection.close(timeout=1)
        assert await store.leases.find_driver("a") == "one"


@pytest.mark.slow
@pytest.mark.requirement("M4")
async def test_a_driver_that_confirms_its_run_while_that_is_cancelled_keeps_it(emptied: Location) -> None:
    async with open_store(emptied) as store, asyncio.timeout(PATIENCE):
        await store.leases.beat(Driver("one"), LONG)
        await begin(store, "a", "one")
        connection = await asyncpg.connect(emptied.given)
        try:
            cancelling = connection.transaction()
            await cancelling.start()
            await connection.execute("UPDATE mainspring_runs SET is_cancelled = true")
            claim = asyncio.create_task(store.leases.claim("a", "one"))
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
            while await connection.fetchval(waits) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await cancelling.commit()
            confirmed = await claim
        finally:
            await connection.close(timeout=1)
        assert confirmed is not None
        assert confirmed.is_cancelled


async def test_whoever_waits_is_woken_in_another_process(location: Location) -> None:
    async with open_store(location) as driver, open_store(location) as beside, asyncio.timeout(PATIENCE):
        await driver.leases.beat(Driver("one"), LONG)
        await begin(driver, "a", "one")

        async def hear_of_cancel() -> None:
            while not await driver.leases.list_cancelled("one"):
                await driver.leases.wait_for_cancel("one", 0.5)

        async def hear_of_work() -> None:
            while not await driver.leases.list_claimable():
                await driver.leases.wait_for_claimable(0.5)

        heard = asyncio.gather(hear_of_cancel(), hear_of_work())
        await beside.leases.request_cancel("a")
        await begin(beside, "b")
        await heard
