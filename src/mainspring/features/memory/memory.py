"""The memory of an engine: capture, recall and forgetting, over one database."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Final

from anyio import CancelScope, sleep

from mainspring.core.errors import InvalidRequest, MainspringError, NotFound, StoreError
from mainspring.core.events import Status
from mainspring.core.ids import random_id
from mainspring.core.items import text_of
from mainspring.core.redact import make_presentable
from mainspring.core.run import Run
from mainspring.engine.engine import Engine
from mainspring.features.memory import observation_rows as rows
from mainspring.features.memory.capture import ObservationCapture
from mainspring.features.memory.observation import Observation, Redact, find_session, make_storable
from mainspring.features.memory.observation_rows import Added
from mainspring.features.memory.recall import LEVELS, MOST_RESULTS, TOP_K, Level, Recalled, render_recalled
from mainspring.features.memory.server_memory import MEMORY_VECTORS, SERVED_MEMORY
from mainspring.features.memory.settings import MemorySettings
from mainspring.ports import DocumentStore, Embedder, Filter, Retell, RunObserver, Sink
from mainspring.providers.choose_embedder import choose_embedder
from mainspring.storage.location import Location, parse_location
from mainspring.storage.search.embedding import Embedding
from mainspring.storage.search.ranking import fuse_rankings
from mainspring.storage.search.server_vectors import ServerVectors
from mainspring.storage.search.vectors import Vectors, VectorStore, check_installed, name_vectors
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sql import SqlWorker, choose_database
from mainspring.storage.work_turn import WorkTurn

log = getLogger(__name__)

# Between two batches of what is forgotten, so that others who wait for the file have it.
PAUSE_SECONDS: Final = 0.02
DAY: Final = 86_400.0
KEEP_DAYS: Final = 90.0
KEEP_OBSERVATIONS: Final = 1_000_000
PRUNE_EVERY: Final = 1_000
PRUNE_SECONDS: Final = 3_600.0
RECALLED: Final = 5
CATCH_UP_SECONDS: Final = 3_600.0
CATCH_UP_RUNS: Final = 50
ENDED: Final[tuple[Status, ...]] = ("completed", "incomplete", "failed", "cancelled", "requires_action")


def redact_text(text: str, most: int) -> str:
    """The text without secrets, and not much longer than so many characters."""
    return text_of(make_presentable(text, most))


class Memory(RunObserver):
    """What runs have said and done, to be found again. Making one has no effect; it is used between `open` and `close`.

    `path` is the database of the runs, or any file of its own; without one, all is forgotten with the process. `redact` takes
    secrets out of what is kept. With an `embedder`, which the memory closes, recall goes by meaning too. Observations go after
    `keep_days`, and of each tenant's the oldest of more than `keep_observations`.

    `cut_off_since` is set while it may lack what a process that crashed has not written.
    """

    name = "memory"

    def __init__(
        self,
        place: Path | Location | None = None,
        *,
        redact: Redact = redact_text,
        embedder: Embedder | None = None,
        keep_days: float = KEEP_DAYS,
        keep_observations: int = KEEP_OBSERVATIONS,
    ) -> None:
        if not keep_days > 0 or keep_observations < 1:
            raise InvalidRequest(f"keep_days and keep_observations must be above 0, not {keep_days:g} and {keep_observations}")
        location = None if place is None else parse_location(place)
        self._database = choose_database(location, rows.MEMORY, SERVED_MEMORY)
        self._vectors = _choose_vectors(location, self._database)
        if embedder is not None and isinstance(self._vectors, Vectors):
            check_installed()
        self._embedder = embedder
        self._keep_seconds, self._keep_observations = keep_days * DAY, keep_observations
        self._embedding: Embedding | None = None
        self._embeds: asyncio.Task[None] | None = None
        self._has_remains = False
        self._token = random_id("memory")
        self.cut_off_since: float | None = None
        self._pruned_at, self._since_pruned = 0.0, 0
        self.capture = ObservationCapture(self._database, keep_observations, redact, self._after_write)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return (self.capture,)

    async def open(self, store: DocumentStore | None = None) -> None:
        """`store` is that of the processes that share this memory, if there may be several. Raises `StoreError` if the file
        cannot be used."""
        try:
            await self._database.open()
            self.cut_off_since = await self._add_writer()
            await self._open_vectors(None if store is None else WorkTurn(store, "memory"))
            await self._prune()
            self.capture.start()
        except BaseException:
            await self.close()
            raise

    async def _open_vectors(self, turn: WorkTurn | None) -> None:
        path = self._vectors.path
        if self._embedder is not None:
            await self._vectors.open_for(self._embedder.model, partial(self._database.write, rows.mark_unembedded))
            self._embedding = Embedding(self._embedder, self._database, self._vectors, rows.TO_EMBED, turn)
            self._embeds = asyncio.get_running_loop().create_task(self._embedding.run())
        elif path is not None and path.exists():
            # What is forgotten is to be forgotten there as well.
            check_installed()
            await self._vectors.open_for(None)

    async def close(self) -> None:
        """Returns when all that was recorded is written; what has no vector yet gets one the next time."""
        await self.capture.stop()
        if self._embedding is not None and self._embeds is not None:
            self._embedding.stop()
            await self._embeds
            self._embedding = self._embeds = None
        if self._embedder is not None:
            await self._embedder.close()
        await self._vectors.close()
        if self._database.is_open:
            await self._purge()
            await self._database.write(rows.remove_writer, token=self._token)
            await self._database.close()

    async def __aenter__(self) -> "Memory":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def record(self, seen: Observation) -> str:
        """Remembers this; see `ObservationCapture.record`."""
        return await self.capture.record(seen)

    async def search(
        self,
        query: str,
        *,
        tenant: str,
        level: Level = "index",
        top_k: int = TOP_K,
        agent: str | None = None,
        session: str | None = None,
    ) -> list[Recalled]:
        """The best of a tenant's observations by words and, with an embedder, by meaning, best first; for a query without words,
        the newest. Raises `InvalidRequest`."""
        if not 1 <= top_k <= MOST_RESULTS:
            raise InvalidRequest(f"top_k must be between 1 and {MOST_RESULTS}, not {top_k}", param="top_k")
        if level not in LEVELS:
            raise InvalidRequest(f"level must be one of {', '.join(LEVELS)}, not `{level}`", param="level")
        agent, session = (None if name is None else make_storable(name) for name in (agent, session))
        whose, limit = Scope(tenant, agent, session), 2 * top_k  # what is far down in one list may be up in the other
        await self.capture.flush()
        hits = await self._database.read(rows.search, query=query, whose=whose, limit=limit, now=time.time())
        if self._embedding is not None and query.strip() and (near := await self._embedding.find_nearest(query, [whose], limit)):
            hits = fuse_rankings(hits, near)
        scores = {hit.id: hit.score for hit in hits[:top_k]}
        found = await self._database.read(rows.load, ids=list(scores), whose=whose)
        return [render_recalled(seen, level, scores[seen.id]) for seen in found]

    async def recall(self, query: str, *, tenant: str, agent: str | None = None, top_k: int = RECALLED) -> list[Recalled]:
        """What an agent is reminded of: few and short. A memory that cannot be read reminds of nothing."""
        try:
            return await self.search(query, tenant=tenant, agent=agent, top_k=top_k)
        except StoreError as error:
            log.warning("nothing could be recalled: %s", error)
            return []

    async def get(self, id: str, *, tenant: str) -> Observation:
        """Raises `NotFound`, also for another tenant's."""
        await self.capture.flush()
        found = await self._database.read(rows.load, ids=[id], whose=Scope(tenant))
        if not found:
            raise NotFound(f"there is no observation `{id}`; search for those there are", param="observation_id")
        return found[0]

    async def forget(self, *, tenant: str, session: str | None = None) -> int:
        """Deletes a session's observations, or without one all of the tenant's, and returns how many there were.

        What happened up to now stays forgotten, whichever log is read again.
        """
        session = None if session is None else make_storable(session)
        await self.capture.flush()
        self.capture.drop_private(tenant, session)
        count = await self._forget(tenant, session)
        await self._purge()
        return count

    async def run_forgotten(self, run: Run) -> None:
        """Deletes what is remembered of a run, whatever its session. Nothing more is remembered of it."""
        tenant, session, id = run.spec.tenant, find_session(run.spec), run.spec.id
        await self.capture.flush()
        self.capture.drop_private(tenant, session, id)
        await self._forget(tenant, make_storable(session), id)

    async def _forget(self, tenant: str, session: str | None, run: str | None = None) -> int:
        """Deletes a little at a time: whoever else uses the file has their turn in between."""
        now = time.time()
        what = await self._database.write(rows.begin_forgetting, tenant=tenant, session=session, run=run, now=now)
        with CancelScope(shield=True):  # half of it forgotten would be no answer
            return await self._remove_all(lambda: self._database.write(rows.forget_some, what))
        raise AssertionError("a shielded scope is not cancelled")

    async def _remove_all(self, remove_some: Callable[[], Awaitable[list[str]]]) -> int:
        count = 0
        while gone := await remove_some():
            count += len(gone)
            self._has_remains = True
            await self._vectors.remove(gone)
            await sleep(PAUSE_SECONDS)
        await self._database.erase(rows.note_nothing)
        return count

    async def _purge(self) -> None:
        """Takes what was forgotten out of the file, too, a little at a time. That takes as long as there is much else in it, so
        it is done once in a while."""
        if self._has_remains:
            self._has_remains = False
            is_first = True
            while await self._database.write(rows.purge_some, is_first):
                is_first = False
                await sleep(PAUSE_SECONDS)
            await self._database.erase(rows.note_nothing)

    async def run_resumed(self, retell: Retell) -> None:
        """Remembers what is missing of a run whose events are told again."""
        await self.capture.catch_up(retell)

    async def catch_up(self, engine: Engine) -> None:
        """After a crash: forgets what was to be forgotten, and remembers the runs that ended just before it, and may be in the
        store but not in the memory."""
        if (since := self.cut_off_since) is None:
            return
        await self._remove_all(lambda: self._database.write(rows.finish_forgetting))
        only = Filter(status=ENDED, since=since - CATCH_UP_SECONDS)
        for stored in (await engine.store.list(limit=CATCH_UP_RUNS, only=only)).runs:
            with suppress(MainspringError):
                await self.run_resumed((await engine.attach(stored.id)).retell)
        await self.capture.flush()
        self.cut_off_since = None
        await self._database.write(rows.remove_other_writers, token=self._token)

    async def settle(self) -> None:
        """Waits until all that was recorded is written, and embedded as far as that can be done now."""
        await self.capture.flush()
        if self._embedding is not None:
            await self._embedding.catch_up()

    async def _after_write(self, added: Added) -> None:
        if self._embedding is not None:
            self._embedding.wake()
        await self._vectors.remove(added.gone)
        self._since_pruned += added.count
        if self._since_pruned >= PRUNE_EVERY or time.time() - self._pruned_at >= PRUNE_SECONDS:
            await self._prune()

    async def _prune(self) -> None:
        self._since_pruned, self._pruned_at = 0, time.time()
        await self._add_writer()
        before = self._pruned_at - self._keep_seconds
        while gone := await self._database.write(rows.prune, before=before, most=self._keep_observations):
            await self._vectors.remove(gone)
        await self._purge()

    async def _add_writer(self) -> float | None:
        """Notes that this process has the file open. Returns since when others have it open that may have crashed."""
        return await self._database.write(rows.add_writer, token=self._token, now=time.time())


def _choose_vectors(location: Location | None, database: SqlWorker) -> VectorStore:
    """A file of vectors beside that of the observations, or a table beside theirs."""
    if location is None or (path := location.file) is None:
        return Vectors(None) if location is None else ServerVectors(database, MEMORY_VECTORS)
    return Vectors(name_vectors(path))


def build_memory(database: str | Path | Location | None, settings: MemorySettings | None = None) -> Memory:
    """A memory beside the runs of a database, or in this process. Raises `InvalidRequest`."""
    settings = settings or MemorySettings()
    return Memory(
        None if database is None else parse_location(database),
        embedder=choose_embedder("memory", settings.embedding_model, settings.embedding_url, settings.embedding_key),
        keep_days=settings.keep_days,
        keep_observations=settings.keep_observations,
    )
