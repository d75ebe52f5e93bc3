"""Which store keeps the runs of a location. Each is imported where it is used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.ports import Store
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore

if TYPE_CHECKING:
    from mainspring.storage import sqlite_runs
    from mainspring.storage.postgres import postgres_runs
else:
    postgres_runs = LateModule("mainspring.storage.postgres.postgres_runs")
    sqlite_runs = LateModule("mainspring.storage.sqlite_runs")


def choose_store(location: Location | None) -> Store:
    """The store of runs there, which is not open yet; without a location, one in memory. Raises `InvalidRequest`."""
    if location is None:
        return MemoryStore()
    if location.file is not None:
        return sqlite_runs.SqliteStore(location.file)
    try:
        make_store = postgres_runs.PostgresStore
    except ImportError:
        raise InvalidRequest("PostgreSQL needs another package: pip install 'mainspring[postgres]'", param="database") from None
    return make_store(location)


@asynccontextmanager
async def open_store(location: Location) -> AsyncIterator[Store]:
    """The store of runs there, open. Raises `InvalidRequest`, and `StoreError` that says what to do."""
    store = choose_store(location)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
