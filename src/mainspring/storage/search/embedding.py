"""Texts as vectors: what sees to it that every row gets its vector.

The rows themselves are the queue: those without a vector wait, through failures and restarts, and are embedded in
batches, oldest first. Until then, and whenever the embedder does not answer, they are found by their words alone. Of several
processes on one database, one at a time embeds, and the others wait for what it does: a text is paid for once.
"""

from asyncio import Event, Lock, wait_for
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Final

from msgspec import Struct

from mainspring.core.errors import MainspringError, Refused
from mainspring.ports import Embedder
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.vectors import PlacedVector, VectorStore
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sql import SqlConnection, SqlWorker
from mainspring.storage.work_turn import WorkTurn

log = getLogger(__name__)

BATCH: Final = 64
TEXT_CHARS: Final = 8_000
PAUSE: Final = 30.0
LOOK_AGAIN: Final = 0.2


class WaitingText(Struct, frozen=True):
    """A row without a vector."""

    id: str
    whose: Scope
    text: str


class EmbeddingQueue(Struct, frozen=True):
    """Which rows of a table have no vector: `list_waiting` lists them, oldest first, and `mark` says that they have one."""

    list_waiting: Callable[[SqlConnection, int], list[WaitingText]]
    mark: Callable[[SqlConnection, Sequence[str]], None]


class Embedding:
    """Embeds what waits. `run` works until `stop`; `wake` tells it that there is something new. Processes that share the database
    share the `turn`."""

    def __init__(
        self, embedder: Embedder, database: SqlWorker, vectors: VectorStore, queue: EmbeddingQueue, turn: WorkTurn | None = None
    ) -> None:
        self._embedder, self._database, self._vectors, self._queue = embedder, database, vectors, queue
        self._turn = turn
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
        """Embeds all that waits, or waits until others have; returns whether that worked."""
        try:
            async with self._working:
                while not self._is_stopped.is_set() and (_ := await self._database.read(self._queue.list_waiting, 1)):
                    if self._turn is None:
                        await self._embed_all()
                    elif await self._turn.take():
                        try:
                            await self._embed_all(self._turn)
                        finally:
                            await self._turn.give_back()
                    else:
                        with suppress(TimeoutError):
                            await wait_for(self._is_stopped.wait(), LOOK_AGAIN)
        except MainspringError as error:
            self._warn_once(error)
            return False
        return True

    async def _embed_all(self, turn: WorkTurn | None = None) -> None:
        while not self._is_stopped.is_set() and (waiting := await self._database.read(self._queue.list_waiting, BATCH)):
            try:
                await self._embed(waiting)
            except Refused:
                for each in waiting:
                    if turn is not None and not await turn.take():
                        return
                    await self._embed_alone(each)
            self._has_failed = False
            if turn is not None and not await turn.take():
                return

    async def _embed_alone(self, seen: WaitingText) -> None:
        """One text that cannot be embedded must not keep the others waiting; it is found by its words."""
        try:
            await self._embed([seen])
        except Refused as error:
            log.warning("the text %s cannot be embedded: %s", seen.id, error)
            await self._database.write(self._queue.mark, [seen.id])

    async def _embed(self, waiting: Sequence[WaitingText]) -> None:
        vectors = await self._embedder.embed([each.text[:TEXT_CHARS] for each in waiting])
        # A vector of zeros has no direction: such a text is found by its words.
        placed = [PlacedVector(each.id, each.whose, vector) for each, vector in zip(waiting, vectors, strict=True) if any(vector)]
        if placed:
            await self._vectors.add(placed)
        await self._database.write(self._queue.mark, [each.id for each in waiting])

    async def find_nearest(self, query: str, scopes: Sequence[Scope], limit: int) -> list[Hit]:
        """The rows nearest to the query in meaning, so many of each scope, nearest first; none while vectors cannot be had."""
        try:
            vector = (await self._embedder.embed([query[:TEXT_CHARS]]))[0]
            found = [await self._vectors.find_nearest(vector, whose, limit) for whose in scopes if any(vector)]
            return sorted([hit for hits in found for hit in hits], key=lambda hit: hit.score, reverse=True)
        except MainspringError as error:
            self._warn_once(error)
            return []

    def _warn_once(self, error: MainspringError) -> None:
        """Says what is wrong, once until it works again."""
        if not self._has_failed:
            log.warning("embeddings cannot be had, so recall goes by words alone: %s", error)
        self._has_failed = True
