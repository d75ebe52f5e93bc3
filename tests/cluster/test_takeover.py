"""A run whose driver is gone, or only seems to be, is another's when its lease is over, and what it did is not done twice.

Judged by the lease, on the clock of the database: it ends no more than five seconds after the driver has stopped, and nobody who
cannot see the process takes the run before that. How long it took in all is printed (`pytest -rP`); a busy machine is no failure.
"""

import os
import signal
from asyncio import to_thread
from collections.abc import Iterator

import aiohttp
import anyio
import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
from tests.cluster.deployment import ZOMBIE, Deployment, Member, can_be_distant, deployed
from tests.cluster.history import ENDED, Effect
from tests.kit.postgres import Postgres, running
from tests.kit.waiting import PATIENCE, until

from mainspring.engine.presence import LEASE_SECONDS

pytestmark = pytest.mark.slow

DRIVER = """
    SELECT driver.id, extract(epoch FROM driver.expires)::float8, extract(epoch FROM clock_timestamp())::float8
    FROM mainspring_runs run LEFT JOIN mainspring_drivers driver ON driver.id = run.driver WHERE run.id = $1
"""


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


def read_effects(deployment: Deployment) -> list[Effect]:
    path = deployment.folder / "effects"
    return [msgspec.json.decode(line, type=Effect) for line in path.read_text().splitlines()] if path.exists() else []


async def post(session: aiohttp.ClientSession, deployment: Deployment, text: str) -> str:
    headers = {"authorization": f"Bearer {deployment.key}"}
    body = {"model": "m", "input": text, "background": True}
    async with session.post(f"{deployment.members['server1'].url}/responses", json=body, headers=headers) as answer:
        return str((await answer.json())["id"])


async def wait_for_end(session: aiohttp.ClientSession, deployment: Deployment, run: str) -> str:
    headers = {"authorization": f"Bearer {deployment.key}"}
    with anyio.fail_after(PATIENCE):
        while True:
            async with session.get(f"{deployment.members['server1'].url}/responses/{run}", headers=headers) as answer:
                if (status := (await answer.json())["status"]) in ENDED:
                    return str(status)
            await anyio.sleep(0.05)


def stop_at_once(driver: Member, how: str) -> None:
    """Kills it and leaves it for nobody to look at, or freezes it, or cuts it off."""
    if how == "cut off":
        assert driver.link is not None
        driver.link.hold("questions", "answers")
    else:
        os.kill(driver.pid, signal.SIGSTOP if how == "frozen" else signal.SIGKILL)


@pytest.mark.requirement("M4")
@pytest.mark.parametrize(
    ("driver", "survivor", "how"),
    [
        ("worker1", "server3", "killed"),
        (ZOMBIE, "server3", "zombie"),
        pytest.param(
            "worker2", "worker1", "killed", marks=pytest.mark.skipif(not can_be_distant(), reason="no host names of one's own")
        ),
        ("worker1", "worker2", "frozen"),
        ("worker2", "worker1", "cut off"),
    ],
)
async def test_a_run_is_taken_up_when_the_lease_of_its_driver_is_over(
    own_postgres: Postgres, driver: str, survivor: str, how: str
) -> None:
    async with deployed(own_postgres, names=("server1", driver, survivor), later=(survivor,)) as deployment:
        database = await asyncpg.connect(deployment.database)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2 * PATIENCE)) as session:
                run = await post(session, deployment, "hold")
                await until(lambda: bool(read_effects(deployment)))
                first, expires, stopped = await database.fetchrow(DRIVER, run)
                await deployment.members[survivor].start()
                stop_at_once(deployment.members[driver], how)
                row = await database.fetchrow(DRIVER, run)
                if row[0] == first:  # else somebody was quicker than this look, and may have ended it, too
                    _, expires, stopped = row
                    assert expires - stopped <= LEASE_SECONDS
                with anyio.fail_after(PATIENCE):
                    while row[0] == first:
                        await anyio.sleep(0.02)
                        row = await database.fetchrow(DRIVER, run)
                print(f"{how}, {driver} to {survivor}: taken up after {row[2] - stopped:.2f} s")
                is_seen = survivor != "worker2" and driver != "worker2"
                assert row[2] >= expires or (is_seen and how in ("killed", "zombie")), "nobody takes what is another's"
                deployment.heal()
                assert await wait_for_end(session, deployment, run) == "completed"
                if how in ("frozen", "cut off"):  # it finds out that the run is another's, and goes on with others
                    await deployment.members[survivor].stop()
                    assert await wait_for_end(session, deployment, await post(session, deployment, "tell")) == "completed"
        finally:
            await database.close(timeout=1)
        phases = [effect.phase for effect in read_effects(deployment)]
        assert phases == ["begun"], "the call is told to have been interrupted, and is not repeated"
        await to_thread(deployment.command, "audit", "verify")
