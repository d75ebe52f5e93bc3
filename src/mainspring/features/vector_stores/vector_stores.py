"""Vector stores: what is in them, and what is found there."""

from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import Annotated, Final, Literal

import anyio
import anyio.lowlevel
from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, NotFound, StoreError
from mainspring.core.ids import NewId, random_id
from mainspring.features.files.files import Files
from mainspring.features.vector_stores import passage_rows as rows
from mainspring.features.vector_stores.filters import Attribute, Filter, count_comparisons
from mainspring.features.vector_stores.indexing import Indexing
from mainspring.features.vector_stores.passage_database import PassageDatabase
from mainspring.features.vector_stores.passage_rows import FoundPassage, NewFile, StoreBody, StoreCounts, StoredStore, StoreFile
from mainspring.storage.search.ranking import FUSION, Hit, fuse_rankings
from mainspring.storage.search.word_index import Scope

log = getLogger(__name__)

MOST_RESULTS: Final = 50
DEFAULT_RESULTS: Final = 10
# With as few files as this, each is searched for itself; with more, so many passages are, and what others have is left out.
FEW_FILES: Final = 16
WIDEST: Final = 4096
COMPARISONS_AT_ONCE: Final = 20_000
# How often it is noted that a store is in use.
ACTIVE_SECONDS: Final = 60.0
EXPIRE_SECONDS: Final = 300.0


class HybridWeights(Struct, frozen=True):
    """How much the order by meaning and that by words count."""

    embedding_weight: Annotated[float, Meta(ge=0)]
    text_weight: Annotated[float, Meta(ge=0)]

    def __post_init__(self) -> None:
        if not (self.embedding_weight or self.text_weight):
            raise ValueError("one of the weights must be more than 0")


class RankingOptions(Struct, frozen=True):
    ranker: Literal["none", "auto", "default-2024-11-15"] | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    hybrid_search: HybridWeights | None = None


class SearchOptions(Struct, frozen=True):
    """`most` results at most, of files that the filter fits."""

    most: int = DEFAULT_RESULTS
    filter: Filter | None = None
    ranking: RankingOptions = RankingOptions()


class SearchResult(Struct, frozen=True):
    """A passage, and how well it fits: 1 is the best there can be."""

    passage: FoundPassage
    score: float


class VectorStores:
    """The vector stores of all tenants. Whatever names a store raises `NotFound` if the tenant has none of that id."""

    def __init__(self, database: PassageDatabase, files: Files, indexing: Indexing, new_id: NewId = random_id) -> None:
        self._database, self._files, self._indexing, self._new_id = database, files, indexing, new_id

    async def create(self, tenant: str, body: StoreBody, files: Sequence[NewFile] = ()) -> StoredStore:
        id, now = self._new_id("vs"), await self.read_clock()
        await self._database.write(rows.add_store, id, tenant, body, now)
        if files:
            await self._database.write(rows.add_files, id, tenant, files, now)
            self._indexing.wake()
        return await self.get(tenant, id)

    async def get(self, tenant: str, id: str) -> StoredStore:
        found = await self._database.read(rows.get_store, id, tenant)
        if found is None:
            raise NotFound(f"Vector store with id '{id[:80]}' not found.", param="vector_store_id")
        return found

    async def get_active(self, tenant: str, id: str) -> StoredStore:
        """Raises `InvalidRequest` for one that has expired."""
        found, now = await self.get(tenant, id), await self.read_clock()
        if self.is_expired(found, now):
            told = f"the vector store `{id[:80]}` has expired; make another one"
            raise InvalidRequest(told, param="vector_store_id", code="vector_store_expired")
        if now - found.active_at > ACTIVE_SECONDS:
            await self._database.write(rows.touch_store, id, now)
        return found

    @staticmethod
    def is_expired(store: StoredStore, now: float) -> bool:
        return store.expires_at is not None and store.expires_at <= now

    async def read_clock(self) -> float:
        """The time by the clock that all processes share."""
        return await self._files.store.read_clock()

    async def list(self, tenant: str, after: str | None, limit: int, *, newest_first: bool) -> Sequence[StoredStore]:
        number = None if after is None else (await self.get(tenant, after)).number
        return await self._database.read(rows.list_stores, tenant, number, limit, newest_first)

    async def change(self, tenant: str, id: str, changes: Mapping[str, object]) -> StoredStore:
        """Changes fields of a `StoreBody`."""
        await self.get(tenant, id)
        await self._database.write(rows.change_store, id, changes, await self.read_clock())
        return await self.get(tenant, id)

    async def remove(self, tenant: str, id: str) -> None:
        await self.get(tenant, id)
        await self._database.write(rows.remove_store, id)
        self._indexing.wake()

    async def count(self, store: str) -> tuple[StoreCounts, int]:
        """How many files a store has, and how many bytes their passages have."""
        return await self._database.read(rows.count_files, "store", store)

    async def add_files(self, tenant: str, id: str, files: Sequence[NewFile], batch: str = "") -> None:
        """Has files be indexed, in the background."""
        await self.get_active(tenant, id)
        await self._database.write(rows.add_files, id, tenant, files, await self.read_clock(), batch)
        self._indexing.wake()

    async def check_file(self, tenant: str, file: NewFile) -> NewFile:
        """The file with its name. Raises `NotFound` if the tenant has none of that id."""
        return replace(file, filename=(await self._files.get(tenant, file.file)).filename)

    async def get_file(self, tenant: str, id: str, file: str) -> StoreFile:
        """Raises `NotFound` if the file is not in the store."""
        await self.get(tenant, id)
        if (found := await self._database.read(rows.get_file, id, file)) is None:
            raise NotFound(f"No file found with id '{file[:80]}' in vector store '{id[:80]}'.", param="file_id")
        return found

    async def list_files(
        self, tenant: str, id: str, after: str | None, limit: int, *, newest_first: bool, only: Mapping[str, str]
    ) -> Sequence[StoreFile]:
        await self.get(tenant, id)
        number = None if after is None else (await self.get_file(tenant, id, after)).number
        return await self._database.read(rows.list_files, id, number, limit, newest_first, only)

    async def change_attributes(self, tenant: str, id: str, file: str, attributes: Mapping[str, Attribute]) -> StoreFile:
        await self.get_file(tenant, id, file)
        await self._database.write(rows.change_attributes, id, file, attributes)
        return await self.get_file(tenant, id, file)

    async def remove_file(self, tenant: str, id: str, file: str) -> None:
        """Takes a file out of a store; the file itself stays."""
        await self.get_file(tenant, id, file)
        await self._database.write(rows.remove_files, "store = ? AND file = ?", (id, file))
        self._indexing.wake()

    async def list_passages(self, tenant: str, id: str, file: str, limit: int) -> Sequence[str]:
        return await self._database.read(rows.list_passages, (await self.get_file(tenant, id, file)).number, limit)

    async def add_batch(self, tenant: str, id: str, files: Sequence[NewFile]) -> str:
        batch = self._new_id("vsfb")
        await self.add_files(tenant, id, files, batch)
        return batch

    async def get_batch(self, tenant: str, id: str, batch: str) -> tuple[float, bool, StoreCounts]:
        """When it was made, whether it was cancelled, and its files. Raises `NotFound` if the store has no such batch."""
        await self.get(tenant, id)
        if (found := await self._database.read(rows.get_batch, batch, id)) is None:
            raise NotFound(f"No file batch with id '{batch[:80]}' in vector store '{id[:80]}'.", param="batch_id")
        return (*found, (await self._database.read(rows.count_files, "batch", batch))[0])

    async def cancel_batch(self, tenant: str, id: str, batch: str) -> None:
        await self.get_batch(tenant, id, batch)
        await self._database.write(rows.cancel_batch, batch)

    async def expire(self) -> None:
        """Removes the files of stores that have expired; the stores themselves stay, and say so."""
        if await self._database.is_used():
            for store in await self._database.read(rows.list_expired, await self.read_clock()):
                await self._database.write(rows.remove_files, "store = ?", (store,))
                self._indexing.wake()

    async def watch_over(self) -> None:
        """Looks for stores that have expired now and then, until it is cancelled."""
        while True:
            try:
                await self.expire()
            except StoreError as error:
                log.warning("vector stores that have expired are not emptied now: %s", error)
            await anyio.sleep(EXPIRE_SECONDS)

    async def search(self, tenant: str, id: str, queries: Sequence[str], options: SearchOptions) -> Sequence[SearchResult]:
        """The passages of a store that fit best, by words and by meaning, best first."""
        await self.get_active(tenant, id)
        allowed = await self._list_allowed(id, options.filter)
        if allowed is not None and not allowed:
            return []
        is_wide = allowed is not None and len(allowed) > FEW_FILES
        few = (None,) if allowed is None or is_wide else sorted(allowed.values())
        # What is far down in one list may be up in the other.
        limit = WIDEST if is_wide else 2 * options.most
        rankings: list[Sequence[Hit]] = []
        weights: list[float] = []
        weight = options.ranking.hybrid_search or HybridWeights(1.0, 1.0)
        for query in queries:
            if weight.text_weight:
                words = [await self._database.read(rows.find_by_words, query, Scope(tenant, id, file), limit) for file in few]
                rankings.append(_merge(words))
                weights.append(weight.text_weight)
            if weight.embedding_weight:
                rankings.append(await self._database.find_nearest(query, id, few, limit))
                weights.append(weight.embedding_weight)
        if allowed is not None and is_wide:
            rankings = [[hit for hit in ranking if hit.id.partition(".")[0] in allowed] for ranking in rankings]
        fused = fuse_rankings(*rankings, weights=weights)[: 2 * options.most]
        found = await self._database.read(rows.load_passages, [hit.id for hit in fused], tenant, id)
        best = sum([weight / (FUSION + 1) for ranking, weight in zip(rankings, weights, strict=True) if ranking]) or 1.0
        shown = [SearchResult(found[hit.id], round(hit.score / best, 6)) for hit in fused if hit.id in found]
        least = options.ranking.score_threshold or 0.0
        return [each for each in shown if each.score >= least][: options.most]

    async def _list_allowed(self, id: str, filter: Filter | None) -> dict[str, str] | None:
        """The files that a filter fits, by what the ids of their passages begin with; None if all count."""
        if filter is None:
            return None
        known = await self._database.read(rows.list_attributes, id)
        allowed: dict[str, str] = {}
        at_once = max(COMPARISONS_AT_ONCE // count_comparisons(filter), 1)
        for start in range(0, len(known), at_once):
            some = known[start : start + at_once]
            allowed |= {str(number): file for number, file, attributes in some if filter.fits(attributes)}
            await anyio.lowlevel.checkpoint()  # there may be many files, and others are to be served meanwhile
        return allowed


def _merge(rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
    """One ranking of several of the same kind, by their scores."""
    if len(rankings) == 1:
        return list(rankings[0])
    return sorted([hit for ranking in rankings for hit in ranking], key=lambda hit: hit.score, reverse=True)
