"""What all tests share: the async back end, and how much hypothesis tries."""

import gc
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.kit.databases import served_database
from tests.kit.postgres import Postgres, running

from mainspring.ports import Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.memory_runs import MemoryStore

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
        share_ssl_contexts()


def share_ssl_contexts() -> None:
    """Has clients that tests open share what they trust: to read it takes each 30 ms, and hardly any speaks TLS."""
    if "httpx2" not in sys.modules:
        return
    library = import_module("httpcore2")
    make: Callable[..., ssl.SSLContext] = library.default_ssl_context

    @cache
    def make_once(trust_env: bool, *_: str | None) -> ssl.SSLContext:
        return make(_trust_env=trust_env)

    def share(*, _trust_env: bool = True) -> ssl.SSLContext:
        return make_once(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    vars(library)["default_ssl_context"] = share


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a case by the beginning of a long text: each name goes between processes, several times for each test."""
    if isinstance(val, str | bytes) and len(val) > 100:
        return f"{ascii(val[:60])[1:-1]}... {len(val)}"
    return None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


_folders = count(1)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder. The fixture of pytest looks through the folders of all tests before for a number that is free."""
    return tmp_path_factory.mktemp(f"{re.sub(r'[^A-Za-z0-9]', '_', request.node.name)[:30]}{next(_folders)}", numbered=False)


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


POSTGRES = pytest.param("postgres", marks=pytest.mark.slow)


@pytest.fixture(params=["sqlite", POSTGRES])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where a new database is, of each kind that outlives the process."""
    if request.param == "sqlite":
        return parse_location(tmp_path / "runs.db")
    found: Location = request.getfixturevalue("emptied")
    return found


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
async def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store of each kind."""
    if request.param == "memory":
        async with MemoryStore() as kept:
            yield kept
        return
    found = parse_location(tmp_path / "runs.db") if request.param == "sqlite" else request.getfixturevalue("emptied")
    async with open_store(found) as opened:
        yield opened


@pytest.fixture(params=["sqlite", POSTGRES])
def each_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Runs a test of `tests.kit.databases` on each kind of database."""
    if request.param == "sqlite":
        yield
        return
    with served_database(tmp_path, request.getfixturevalue("emptied").given):
        yield
