"""Texts as vectors: what sees to it that every observation gets its vector.

The observations themselves are the queue: those without a vector wait, through failures and restarts, and are embedded in
batches, oldest first. Until then, and whenever the embedder does not answer, they are found by their words alone.
"""

from asyncio import Event, Lock, wait_for
from collections.abc import Sequence
from contextlib import suppress
from logging import getLogger
from typing import Final

from mainspring.core.errors import MainspringError, Refused
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.observation_rows import Hit, list_unembedded, mark_embedded
from mainspring.features.memory.vectors import PlacedVector, VectorStore
from mainspring.features.memory.word_index import ObservationScope
from mainspring.ports import Embedder
from mainspring.storage.sql import SqlWorker

log = getLogger(__name__)

BATCH: Final = 64
TEXT_CHARS: Final = 8_000
PAUSE: Final = 30.0


class Embedding:
    """Embeds what waits. `run` works until `stop`; `wake` tells it that there is something new."""

    def __init__(self, embedder: Embedder, database: SqlWorker, vectors: VectorStore) -> None:
        self._embedder, self._database, self._vectors = embedder, database, vectors
        self._wanted, self._is_stopped, self._has_failed = Event(), Event(), False
        self._working = Lock()

    def wake(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        """Lets `run` end after the batch that it is at; what still waits is embedded the next time."""
        self._is_stopped.set()
        self._wanted.set()

    async def run(self) -> None:
        self._wanted.set()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._is_stopped.is_set():
                return
            if not await self.catch_up():
                self._wanted.set()
                with suppress(TimeoutError):
                    await wait_for(self._is_stopped.wait(), PAUSE)

    async def catch_up(self) -> bool:
        """Embeds all that waits; returns whether that worked."""
        try:
            async with self._working:
                while not self._is_stopped.is_set() and (waiting := await self._database.read(list_unembedded, limit=BATCH)):
                    try:
                        await self._embed(waiting)
                    except Refused:
                        for each in waiting:
                            await self._embed_alone(each)
                    self._has_failed = False
        except MainspringError as error:
            self._warn_once(error)
            return False
        return True

    async def _embed_alone(self, seen: Observation) -> None:
        """One text that cannot be embedded must not keep the others waiting; it is found by its words."""
        try:
            await self._embed([seen])
        except Refused as error:
            log.warning("observation %s cannot be embedded: %s", seen.id, error)
            await self._database.write(mark_embedded, ids=[seen.id])

    async def _embed(self, waiting: Sequence[Observation]) -> None:
        vectors = await self._embedder.embed([each.said[:TEXT_CHARS] for each in waiting])
        placed = [
            PlacedVector(each.id, ObservationScope(each.tenant, each.agent_name, each.session_id), vector)
            for each, vector in zip(waiting, vectors, strict=True)
        ]
        await self._vectors.add(placed)
        await self._database.write(mark_embedded, ids=[each.id for each in waiting])

    async def find_nearest(self, query: str, whose: ObservationScope, limit: int) -> list[Hit]:
        """The observations nearest to the query in meaning, nearest first; none while vectors cannot be had."""
        try:
            vector = (await self._embedder.embed([query[:TEXT_CHARS]]))[0]
            return await self._vectors.find_nearest(vector, whose, limit)
        except MainspringError as error:
            self._warn_once(error)
            return []

    def _warn_once(self, error: MainspringError) -> None:
        """Says what is wrong, once until it works again."""
        if not self._has_failed:
            log.warning("embeddings cannot be had, so recall goes by words alone: %s", error)
        self._has_failed = True
