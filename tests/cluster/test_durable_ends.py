"""A response is told to have ended when the database has its end: until then another process may give it another one."""

from collections.abc import Iterator

import aiohttp
import anyio
import pytest
from tests.cluster.deployment import deployed
from tests.kit.postgres import Postgres, running
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


async def test_an_end_is_told_when_it_is_stored(own_postgres: Postgres) -> None:
    async with deployed(own_postgres, names=("server3",)) as deployment, aiohttp.ClientSession() as session:
        server, headers = deployment.members["server3"], {"authorization": f"Bearer {deployment.key}"}

        async def find_status(seconds: float) -> str:
            limit = aiohttp.ClientTimeout(seconds)
            async with session.get(f"{server.url}/responses/{run}", headers=headers, timeout=limit) as answer:
                return str((await answer.json())["status"])

        body = {"model": "m", "input": "tell", "background": True}
        async with session.post(f"{server.url}/responses", json=body, headers=headers) as answer:
            run = (await answer.json())["id"]
        server.link.hold("questions", "answers")
        told = []
        for _ in range(3):  # for longer than the model talks
            try:
                told.append(await find_status(1.0))
                await anyio.sleep(1.0)
            except TimeoutError:
                pass
        assert "completed" not in told
        server.link.release()
        with anyio.fail_after(PATIENCE):
            while await find_status(PATIENCE) != "completed":  # noqa: ASYNC110
                await anyio.sleep(0.05)
