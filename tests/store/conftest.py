"""The stores that every test of the contract runs on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryStore | SqliteStore]:
    async with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db") as opened:
        yield opened
