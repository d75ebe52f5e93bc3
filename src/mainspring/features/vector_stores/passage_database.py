"""The database of vector stores: its tables, and the vectors of its passages. It is opened when it is first needed."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from mainspring.features.vector_stores import passage_rows as rows
from mainspring.features.vector_stores.passage_rows import PASSAGE_VECTORS, SEARCH, SERVED_SEARCH
from mainspring.ports import Document, DocumentStore, Embedder
from mainspring.storage.location import Location
from mainspring.storage.search.embedding import Embedding
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.server_vectors import ServerVectors
from mainspring.storage.search.vectors import Vectors, VectorStore, check_installed
from mainspring.storage.sql import SqlConnection, SqlWorker, choose_database
from mainspring.storage.work_turn import WorkTurn

T = TypeVar("T")

# Says to every process on a store that there are vector stores.
USED: Final = "search_used"
PAUSE_SECONDS: Final = 0.02
# How many vectors are kept together: a store has many.
CHUNK: Final = 2048


class PassageDatabase:
    """`store` is where the runs are, `location` the database that they share. With an `embedder`, passages have vectors."""

    def __init__(self, store: DocumentStore, location: Location | None, embedder: Embedder | None = None) -> None:
        self._store, self._embedder = store, embedder
        self._database = choose_database(location, SEARCH, SERVED_SEARCH)
        self._vectors = _choose_vectors(location, self._database)
        if embedder is not None and isinstance(self._vectors, Vectors):
            check_installed()
        self._embedding: Embedding | None = None
        self._opening = asyncio.Lock()
        self._is_open = False

    async def is_used(self) -> bool:
        """Whether there may be vector stores at all."""
        return self._is_open or await self._store.get(USED, USED) is not None

    async def open(self) -> None:
        """Raises `StoreError`."""
        async with self._opening:
            if self._is_open:
                return
            await self._database.open()
            await self._store.put([Document(USED, USED, b"{}")], if_absent=True)
            if self._embedder is not None:
                await self._vectors.open_for(self._embedder.model, partial(self._database.write, rows.mark_unembedded))
                turn = WorkTurn(self._store, "passages")
                self._embedding = Embedding(self._embedder, self._database, self._vectors, rows.TO_EMBED, turn)
            elif (path := self._vectors.path) is not None and path.exists():
                # What is removed is to be removed there as well.
                check_installed()
                await self._vectors.open_for(None)
            self._is_open = True

    async def close(self) -> None:
        if self._embedder is not None:
            await self._embedder.close()
        if self._is_open:
            self._is_open = False
            await self._vectors.close()
            await self._database.close()

    async def read(self, ask: Callable[..., T], *values: Any) -> T:
        await self.open()
        return await self._database.read(ask, *values)

    async def write(self, change: Callable[..., T], *values: Any) -> T:
        await self.open()
        return await self._database.write(change, *values)

    async def clear(self, number: int, holder: str) -> None:
        """Removes the passages of an earlier attempt. Raises `Superseded`."""
        while gone := await self.write(rows.clear_passages, number, holder):
            await self._vectors.remove(gone)

    async def remove_left(self) -> None:
        """Removes the passages of files that were taken out of stores, a few at a time: others write, too."""
        while gone := await self.write(rows.remove_passages):
            await self._vectors.remove(gone)
            await anyio.sleep(PAUSE_SECONDS)

    async def embed(self) -> None:
        """Gives passages their vectors, as far as that can be done now; without them, they are found by their words."""
        if self._embedding is not None:
            await self._embedding.catch_up()

    async def find_nearest(self, query: str, store: str, files: Sequence[str | None], limit: int) -> Sequence[Hit]:
        """The passages nearest in meaning, so many of each file; None is all files of the store."""
        await self.open()
        if self._embedding is None or not query.strip():
            return []
        return await self._embedding.find_nearest(query, [rows.scope_vectors(store, file) for file in files], limit)

    async def forget_file(self, tenant: str, file: str) -> None:
        """Takes a file that is deleted out of all stores."""
        if await self.is_used() and await self.write(_forget, tenant, file):
            await self.remove_left()


def _choose_vectors(location: Location | None, database: SqlWorker) -> VectorStore:
    if location is None or (file := location.file) is None:
        return Vectors(None, CHUNK) if location is None else ServerVectors(database, PASSAGE_VECTORS)
    return Vectors(file.with_name(f"{file.name}-passages"), CHUNK)


def _forget(connection: SqlConnection, tenant: str, file: str) -> bool:
    return rows.remove_files(connection, "tenant = ? AND file = ?", (tenant, file)) > 0
