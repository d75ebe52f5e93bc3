"""Which store keeps the runs of a location. Each is imported where it is used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.core.errors import InvalidRequest
from mainspring.ports import Store
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore


def choose_store(location: Location | None) -> Store:
    """The store of runs there, which is not open yet; without a location, one in memory. Raises `InvalidRequest`."""
    if location is None:
        return MemoryStore()
    if location.file is not None:
        from mainspring.storage.sqlite_runs import SqliteStore

        return SqliteStore(location.file)
    try:
        from mainspring.storage.postgres.postgres_runs import PostgresStore
    except ImportError:
        raise InvalidRequest("PostgreSQL needs another package: pip install 'mainspring[postgres]'", param="database") from None
    return PostgresStore(location)


@asynccontextmanager
async def open_store(location: Location) -> AsyncIterator[Store]:
    """The store of runs there, open. Raises `InvalidRequest`, and `StoreError` that says what to do."""
    store = choose_store(location)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
