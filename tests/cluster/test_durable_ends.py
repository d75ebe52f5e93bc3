"""A response is told to have ended when the database has its end: until then another process may give it another one."""

from collections.abc import Iterator
from contextlib import suppress
from time import time
from typing import Any

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

        async def find(run_id: str, seconds: float) -> Any:
            limit = aiohttp.ClientTimeout(seconds)
            async with session.get(f"{server.url}/responses/{run_id}", headers=headers, timeout=limit) as answer:
                return await answer.json()

        async def hold(seconds: float) -> bool:
            """Whether a run came to its end in a server that did not reach its database for so long."""
            body = {"model": "m", "input": "hello", "background": True}
            async with session.post(f"{server.url}/responses", json=body, headers=headers) as answer:
                run_id = (await answer.json())["id"]
            assert server.link is not None
            server.link.hold("questions", "answers")
            with suppress(TimeoutError):
                with anyio.fail_after(seconds):
                    while (await find(run_id, seconds))["status"] != "completed":  # noqa: ASYNC110
                        await anyio.sleep(0.05)
                raise AssertionError("it was told to have ended")
            released = time()
            server.link.release()
            with anyio.fail_after(PATIENCE):
                while (told := await find(run_id, PATIENCE))["status"] != "completed":  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            return bool(told["completed_at"] < int(released))

        # How fast it is depends on the machine.
        assert await hold(2.0) or await hold(10.0) or await hold(30.0)
