from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from tests.kit.temporal import Temporal, running_temporal
from tests.kit.waiting import PATIENCE


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2 * PATIENCE)) as session:
        yield session


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Temporal]:
    """A real Temporal, one for each process of tests that asks for it."""
    with running_temporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server
