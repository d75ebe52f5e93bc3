"""Observations by their words: an FTS5 index in a file, a text search index on a PostgreSQL server.

Both hold, beside the words, tokens that stand for the tenant, the agent and the session, so the index itself leaves out what is
not theirs; the rows are then held against the exact names. Words are stemmed as English, and marks on letters do not count.
"""

import sqlite3
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import log
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from mainspring.storage.sql import SqlConnection

COMMON: Final = 1_000
MERGED_PAGES: Final = 500
MOST_INDEXED_CHARS: Final = 200_000


class ObservationScope(Struct, frozen=True):
    """Which observations a question is about: one tenant's, and if named, one agent's or one session's."""

    tenant: str
    agent: str | None = None
    session: str | None = None


class RankedRow(Struct, frozen=True):
    """An observation that has one of the words; the higher its relevance, the better it fits."""

    id: str
    at: float
    relevance: float


class WordIndex(Protocol):
    """How words are found. `columns` and `values` are what it adds to the row of an observation."""

    columns: str
    values: str
    run: str
    """The run of an observation, as an expression."""

    def describe(self, texts: Sequence[str]) -> dict[str, object]:
        """The values that `values` names."""
        ...

    def count(self, connection: SqlConnection, word: str, whose: ObservationScope) -> int:
        """In how many of these observations the word is; no more than `COMMON` are counted."""
        ...

    def rank(self, connection: SqlConnection, counts: Mapping[str, int], whose: ObservationScope) -> list[RankedRow]:
        """Those that have one of these words, of which it is known how often they are found."""
        ...

    def find_newest(
        self, connection: SqlConnection, words: Sequence[str], whose: ObservationScope, most: int, *, need_all: bool
    ) -> list[str]: ...

    def purge_some(self, connection: SqlConnection, is_first: bool) -> bool:
        """Takes some of the words of what was removed out of the index, where they are only marked as gone until parts of it are
        merged. Returns whether there is more to merge; the first time, all parts are to be."""
        ...


def find_index(connection: SqlConnection) -> WordIndex:
    return _FILE if isinstance(connection, sqlite3.Connection) else _SERVER


def make_tokens(whose: ObservationScope) -> list[str]:
    """One word each for tenant, agent and session; no two names share one, but for a collision of hashes."""
    given = (("t", whose.tenant), ("a", whose.agent), ("s", whose.session))
    return [kind + sha256(f"{kind}{name}".encode(errors="replace")).hexdigest()[:16] for kind, name in given if name is not None]


MINE: Final = """
    tenant = :tenant AND (CAST(:agent AS TEXT) IS NULL OR agent = :agent)
    AND (CAST(:session AS TEXT) IS NULL OR session = :session)
"""


class FileWords:
    """FTS5, which triggers keep up to date."""

    columns = values = ""
    run = "json_extract(metadata, '$.run')"

    def describe(self, texts: Sequence[str]) -> dict[str, object]:
        return {}

    def count(self, connection: SqlConnection, word: str, whose: ObservationScope) -> int:
        counted = "SELECT count(*) FROM (SELECT 1 FROM observation_words WHERE observation_words MATCH ? LIMIT ?)"
        return int(connection.execute(counted, (_match([word], "OR", whose), COMMON)).fetchone()[0])

    def rank(self, connection: SqlConnection, counts: Mapping[str, int], whose: ObservationScope) -> list[RankedRow]:
        ranked = f"""
            SELECT id, at, -score
            FROM (
                SELECT rowid AS place, bm25(observation_words, 1.0, 1.0, 1.0, 0.0) AS score FROM observation_words
                WHERE observation_words MATCH :match ORDER BY rowid DESC LIMIT :most
            ) JOIN observations ON number = place
            WHERE {MINE}
        """
        rows = connection.execute(ranked, {"match": _match(list(counts), "OR", whose), "most": 2 * COMMON, **asdict(whose)})
        return [RankedRow(*row) for row in rows]

    def find_newest(
        self, connection: SqlConnection, words: Sequence[str], whose: ObservationScope, most: int, *, need_all: bool
    ) -> list[str]:
        newest = f"""
            SELECT id FROM (
                SELECT rowid AS place FROM observation_words WHERE observation_words MATCH :match ORDER BY rowid DESC LIMIT :most
            ) JOIN observations ON number = place
            WHERE {MINE} ORDER BY place DESC
        """
        match = _match(words, "AND" if need_all else "OR", whose)
        return [id for (id,) in connection.execute(newest, {"match": match, "most": most, **asdict(whose)})]

    def purge_some(self, connection: SqlConnection, is_first: bool) -> bool:
        assert isinstance(connection, sqlite3.Connection)
        before = connection.total_changes
        pages = -MERGED_PAGES if is_first else MERGED_PAGES
        connection.execute("INSERT INTO observation_words (observation_words, rank) VALUES ('merge', ?)", (pages,))
        return connection.total_changes - before > 1


def _match(words: Sequence[str], sign: str, whose: ObservationScope) -> str:
    """A question as FTS5 takes it."""
    found = f" {sign} ".join([f'"{word}"' for word in words])
    return " AND ".join([f'owner : "{token}"' for token in make_tokens(whose)]) + f" AND {{content about tags}} : ({found})"


class ServerWords:
    """A column of words on a server. A word counts the more the rarer it is, which PostgreSQL does not see to itself."""

    columns = ", words"
    values = ", to_tsvector('mainspring_words', CAST(:spoken AS TEXT)) || to_tsvector('simple', CAST(:owner AS TEXT))"
    run = "(metadata::json ->> 'run')"

    def describe(self, texts: Sequence[str]) -> dict[str, object]:
        return {"spoken": _strip_marks(" ".join(texts))[:MOST_INDEXED_CHARS]}

    def count(self, connection: SqlConnection, word: str, whose: ObservationScope) -> int:
        fits, values = _ask([word], "||", whose)
        counted = f"SELECT count(*) FROM (SELECT 1 FROM observations WHERE words @@ {fits} LIMIT {COMMON}) AS found"
        return int(connection.execute(counted, values).fetchone()[0])

    def rank(self, connection: SqlConnection, counts: Mapping[str, int], whose: ObservationScope) -> list[RankedRow]:
        fits, values = _ask(list(counts), "||", whose)
        weights = [1 / log(2 + count) for count in counts.values()]
        score = " + ".join([f"{weight:.6f} * ts_rank(words, {_word(place)})" for place, weight in enumerate(weights)])
        ranked = f"""
            SELECT id, at, CAST({score} AS DOUBLE PRECISION) FROM observations
            WHERE words @@ {fits} AND {MINE} ORDER BY number DESC LIMIT {2 * COMMON}
        """
        return [RankedRow(*row) for row in connection.execute(ranked, values)]

    def find_newest(
        self, connection: SqlConnection, words: Sequence[str], whose: ObservationScope, most: int, *, need_all: bool
    ) -> list[str]:
        fits, values = _ask(words, "&&" if need_all else "||", whose)
        newest = f"SELECT id FROM observations WHERE words @@ {fits} AND {MINE} ORDER BY number DESC LIMIT :most"
        return [id for (id,) in connection.execute(newest, {**values, "most": most})]

    def purge_some(self, connection: SqlConnection, is_first: bool) -> bool:
        return False


def _word(place: int) -> str:
    return f"plainto_tsquery('mainspring_words', :word{place})"


def _ask(words: Sequence[str], sign: str, whose: ObservationScope) -> tuple[str, dict[str, object]]:
    """A question as PostgreSQL takes it, and its values."""
    found = f" {sign} ".join([_word(place) for place in range(len(words))])
    values = {f"word{place}": _strip_marks(word) for place, word in enumerate(words)}
    return f"(to_tsquery('simple', :owner) && ({found}))", {**values, "owner": " & ".join(make_tokens(whose)), **asdict(whose)}


def _strip_marks(text: str) -> str:
    if text.isascii():
        return text
    return "".join([letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter)])


_FILE: Final = FileWords()
_SERVER: Final = ServerWords()
