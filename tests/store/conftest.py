"""The stores that every test of the contract runs on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.ports import Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.memory_runs import MemoryStore


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where a new database is, of each kind that outlives the process."""
    if request.param == "sqlite":
        return parse_location(tmp_path / "runs.db")
    found: Location = request.getfixturevalue("emptied")
    return found


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        async with MemoryStore() as kept:
            yield kept
        return
    location = parse_location(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("emptied")
    async with open_store(location) as opened:
        yield opened
