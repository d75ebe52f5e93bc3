from collections.abc import AsyncIterator

import pytest
from tests.providers.backend import Backend, serving


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with serving() as running:
        yield running
    running.check()
