"""A sandbox for each module of tests that needs one, and containers in it for each test."""

from collections.abc import AsyncIterator

import pytest
from tests.sandbox.conftest import opened

from mainspring.tools.builtin.containers import Containers
from mainspring.tools.sandbox.local import LocalSandbox


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """For the whole module, so that one sandbox serves all its tests."""
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[LocalSandbox]:
    async for entered in opened("auto"):
        yield entered


@pytest.fixture
async def containers(sandbox: LocalSandbox) -> AsyncIterator[Containers]:
    async with Containers(sandbox) as made:
        yield made
