"""Recall in steps: first an index that costs few tokens, then a timeline, then everything, each with ids to go on from."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, assert_never, get_args

from msgspec import Struct

from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.core.tokens import tokens_of_text
from mainspring.features.memory.embedding import Embedding
from mainspring.features.memory.observation import Observation, make_storable
from mainspring.features.memory.observation_rows import Hit, ObservationScope
from mainspring.features.memory.observation_store import ObservationStore
from mainspring.features.memory.vectors import Vectors

Level = Literal["index", "timeline", "full"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

TOP_K: Final = 10
MOST_RESULTS: Final = 100
INDEX_CHARS: Final = 80
INDEX_TAGS: Final = 3
TIMELINE_CHARS: Final = 300
# How much a place in one list weighs beside the same place in the other; the usual constant of reciprocal rank fusion.
FUSION: Final = 60


class Recalled(Struct, frozen=True):
    """Something remembered: its text at the level asked for, the observations behind it, and about how many tokens it has."""

    text: str
    citations: tuple[str, ...]
    tokens: int
    score: float = 0.0

    @property
    def citation(self) -> str:
        return self.citations[0]


class SemanticSearch(Struct, frozen=True):
    """What recall by meaning takes: vectors for questions, and the vectors to compare them with."""

    embedding: Embedding
    vectors: Vectors


class ProgressiveRecall:
    """Finds observations by their words and, where there are embeddings, by their meaning. `flush` writes what waits first."""

    def __init__(self, store: ObservationStore, flush: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._flush = flush
        self.meaning: SemanticSearch | None = None

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
        """The best of a tenant's observations, best first; for a query without words, the newest. Raises `InvalidRequest`."""
        if not 1 <= top_k <= MOST_RESULTS:
            raise InvalidRequest(f"top_k must be between 1 and {MOST_RESULTS}, not {top_k}", param="top_k")
        if level not in LEVELS:
            raise InvalidRequest(f"level must be one of {', '.join(LEVELS)}, not `{level}`", param="level")
        whose = ObservationScope(
            tenant, None if agent is None else make_storable(agent), None if session is None else make_storable(session)
        )
        await self._flush()
        # Beyond `top_k`, because what is far down in one list may be up in the other.
        hits = await self._store.search(query, whose, 2 * top_k)
        if self.meaning is not None and query.strip():
            near = await self._near(self.meaning, query, whose, 2 * top_k)
            hits = fuse_rankings(hits, near) if near else hits
        scores = {hit.id: hit.score for hit in hits[:top_k]}
        found = await self._store.load(list(scores), whose)
        return [render_recalled(seen, level, scores[seen.id]) for seen in found]

    async def _near(self, meaning: SemanticSearch, query: str, whose: ObservationScope, limit: int) -> list[Hit]:
        vector = await meaning.embedding.embed_question(query)
        if vector is None:
            return []
        try:
            return await meaning.vectors.find_nearest(vector, whose, limit)
        except MainspringError as error:
            meaning.embedding.warn_once(error)
            return []


def fuse_rankings(*rankings: Sequence[Hit]) -> list[Hit]:
    """One ranking out of several, by the places that each gives."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, hit in enumerate(ranking, start=1):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (FUSION + place)
    return [Hit(id, score) for id, score in sorted(scores.items(), key=lambda item: item[1], reverse=True)]


def render_recalled(seen: Observation, level: Level, score: float) -> Recalled:
    text = render_observation(seen, level)
    return Recalled(text, (seen.id,), tokens_of_text(text), round(score, 6))


def render_observation(seen: Observation, level: Level) -> str:
    """The observation in so many words."""
    what = f"{seen.agent_name}/{seen.event_type}"
    match level:
        case "index":
            tags = f" [{', '.join(seen.tags[:INDEX_TAGS])}]" if seen.tags else ""
            return f"{what}{tags} {_line(seen.said, INDEX_CHARS)}"
        case "timeline":
            return f"{seen.moment} {seen.agent_name} {_line(seen.said, TIMELINE_CHARS)}"
        case "full":
            tags = f" [{', '.join(seen.tags)}]" if seen.tags else ""
            return f"{seen.moment} {what}{tags}\n{seen.said}"
        case _:
            assert_never(level)


def _line(text: str, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[: most - 3] + "..."
