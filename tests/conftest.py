"""What all tests share: the async back end, and how much hypothesis tries."""

import gc
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.kit.postgres import Postgres, running

from mainspring.storage.location import Location, parse_location

# Derandomised: the same examples in every run, so a failure is a failure for everybody. `thorough` looks further.
settings.register_profile("steady", max_examples=100, derandomize=True, deadline=None, database=None)
settings.register_profile("mutants", settings.get_profile("steady"), max_examples=15, suppress_health_check=list(HealthCheck))
settings.register_profile("thorough", max_examples=2000, deadline=None, database=None)
settings.load_profile("steady")

# A busy machine takes longer to start an MCP server than a request should wait for one.
os.environ.setdefault("MAINSPRING_MCP_START_SECONDS", "60")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares the garbage collector what stays until the end: the tests themselves, and the libraries that they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL, one for each process of tests that asks for it."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def shared_database(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def emptied(postgres: Postgres, shared_database: str) -> Location:
    """An empty database on a server. Its tables stay, because to make them takes a while."""
    postgres.empty(shared_database)
    return parse_location(shared_database)
