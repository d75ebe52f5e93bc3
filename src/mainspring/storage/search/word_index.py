"""Rows by their words: an FTS5 index in a file, a text search index on a PostgreSQL server.

Both hold, beside the words, tokens that stand for whose a row is, so the index itself leaves out what is not theirs; the rows are
then held against the exact names. Words are stemmed as English, and marks on letters do not count.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import log
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.normal_form import normalize
from mainspring.storage.sql import SqlConnection

COMMON: Final = 1_000
MERGED_PAGES: Final = 500
MOST_INDEXED_CHARS: Final = 200_000
MOST_TERMS: Final = 24
# How many rows are ranked for each that is within the scope, at most.
OTHERS: Final = 4
TERM_CHARS: Final = 64
QUERY_CHARS: Final = 8_000


NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Scope(Struct, frozen=True):
    """Which rows a question is about: one tenant's, and if named, those of one group or one member, be that what they may."""

    tenant: str
    group: str | None = None
    member: str | None = None


class IndexedTable(Struct, frozen=True):
    """A table with an index of words, which is called `words` in a file and made by the configuration `dictionary` on a server.

    `texts` are the columns with words; `group` and `member` those that say whose a row is, beside its tenant. `common` is in how
    many rows a word may be and still tell rows apart; `by_time` says that of too many that fit, the newest are ranked. Where
    names of groups and members `are_unique`, the narrowest of them says all, and to ask for less is faster.
    """

    name: str
    words: str
    dictionary: str
    texts: tuple[str, ...]
    group: str
    member: str
    common: int = COMMON
    by_time: bool = True
    are_unique: bool = False

    def list_tokens(self, whose: Scope) -> list[str]:
        """The tokens that a row must have to be within a scope."""
        tokens = make_tokens(whose)
        return tokens[-1:] if self.are_unique else tokens

    @property
    def mine(self) -> str:
        """The condition that a row is within a scope."""
        return (
            f"tenant = :tenant AND (CAST(:group AS TEXT) IS NULL OR {self.group} = :group) "
            f"AND (CAST(:member AS TEXT) IS NULL OR {self.member} = :member)"
        )


class RankedRow(Struct, frozen=True):
    """A row that has one of the words; the higher its relevance, the better it fits."""

    id: str
    at: float
    relevance: float


WordIndex: TypeAlias = "FileWords | ServerWords"
"""How words are found. `columns` and `values` are what it adds to a row; `describe` has the values that `values` names."""


def find_index(connection: SqlConnection, table: IndexedTable) -> WordIndex:
    return FileWords(table) if isinstance(connection, sqlite3.Connection) else ServerWords(table)


def make_tokens(whose: Scope) -> list[str]:
    """One word each for tenant, group and member; no two names share one, but for a collision of hashes."""
    given = (("t", whose.tenant), ("a", whose.group), ("s", whose.member))
    return [kind + sha256(f"{kind}{name}".encode(errors="replace")).hexdigest()[:16] for kind, name in given if name is not None]


class FileWords:
    """FTS5, which triggers keep up to date."""

    columns = values = ""

    def __init__(self, table: IndexedTable) -> None:
        self._table = table

    def describe(self, texts: Sequence[str]) -> dict[str, object]:
        return {}

    def count(self, connection: SqlConnection, word: str, whose: Scope) -> int:
        """In how many of these rows the word is; no more than are `common` are counted."""
        return self._count(connection, self._match([word], "OR", whose), self._table.common)

    def count_all(self, connection: SqlConnection, word: str, most: int) -> int:
        """The same of all rows, whosever they are, which takes far less: so many at most."""
        return self._count(connection, self._match_words([word], "OR"), most)

    def _count(self, connection: SqlConnection, match: str, most: int) -> int:
        words = self._table.words
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {words} WHERE {words} MATCH ? LIMIT ?)"
        return int(connection.execute(counted, (match, most)).fetchone()[0])

    def rank(
        self, connection: SqlConnection, counts: Mapping[str, int], whose: Scope, common: Mapping[str, int] = NONE
    ) -> list[RankedRow]:
        """Those that have one of these words, of which it is known how often they are found. Words that are `common` find none
        by themselves: they say which of those fit better."""
        table, match = self._table, self._choose_match(connection, counts, whose)
        weights = ", ".join(["1.0"] * len(table.texts))
        ranked = f"""
            SELECT match_row, id, at, -score
            FROM (
                SELECT rowid AS match_row, bm25({table.words}, {weights}, 0.0) AS score FROM {table.words}
                WHERE {table.words} MATCH :match ORDER BY {"rowid DESC" if table.by_time else "score"} LIMIT :most
            ) JOIN {table.name} ON number = match_row
            WHERE {table.mine}
        """
        found = connection.execute(ranked, {"match": match, "most": 2 * table.common, **asdict(whose)}).fetchall()
        raised = self._weigh_common(connection, match, common, min([row[0] for row in found])) if found and common else {}
        return [RankedRow(id, at, relevance + raised.get(number, 0.0)) for number, id, at, relevance in found]

    def _weigh_common(self, connection: SqlConnection, match: str, common: Mapping[str, int], lowest: int) -> dict[int, float]:
        """By how much the words that are common raise the rows that match, as BM25 weighs a word that a text has once."""
        table, raised = self._table, dict[int, float]()
        total = connection.execute(f"SELECT max(number) FROM {table.name}").fetchone()[0] or 0
        having = f"SELECT rowid FROM {table.words} WHERE {table.words} MATCH ? AND rowid >= ?"
        for word, count in common.items():
            if (weight := log((total - count + 0.5) / (count + 0.5)) if total > count else 0.0) > 0.0:
                both = f"({match}) AND ({self._match_words([word], 'OR')})"
                for (number,) in connection.execute(having, (both, lowest)):
                    raised[number] = raised.get(number, 0.0) + weight
        return raised

    def _choose_match(self, connection: SqlConnection, counts: Mapping[str, int], whose: Scope) -> str:
        """To rank by a token is to count all rows that have it, so whose rows they are is left to the table where few other rows
        have the words. The relevance is the same, as the column of tokens has no weight."""
        found = self._match_words(list(counts), "OR")
        most = min(2 * self._table.common, OTHERS * sum(counts.values()))
        return found if self._count(connection, found, most + 1) <= most else self._match(list(counts), "OR", whose)

    def find_newest(
        self, connection: SqlConnection, words: Sequence[str], whose: Scope, most: int, *, need_all: bool
    ) -> list[str]:
        table = self._table
        newest = f"""
            SELECT id FROM (
                SELECT rowid AS match_row FROM {table.words} WHERE {table.words} MATCH :match ORDER BY rowid DESC LIMIT :most
            ) JOIN {table.name} ON number = match_row
            WHERE {table.mine} ORDER BY match_row DESC
        """
        match = self._match(words, "AND" if need_all else "OR", whose)
        return [id for (id,) in connection.execute(newest, {"match": match, "most": most, **asdict(whose)})]

    def purge_some(self, connection: SqlConnection, is_first: bool) -> bool:
        """Takes some of the words of what was removed out of the index, where they are only marked as gone until parts of it are
        merged. Returns whether there is more to merge; the first time, all parts are to be."""
        assert isinstance(connection, sqlite3.Connection)
        before = connection.total_changes
        pages = -MERGED_PAGES if is_first else MERGED_PAGES
        words = self._table.words
        connection.execute(f"INSERT INTO {words} ({words}, rank) VALUES ('merge', ?)", (pages,))
        return connection.total_changes - before > 1

    def _match(self, words: Sequence[str], sign: str, whose: Scope) -> str:
        """A question as FTS5 takes it."""
        owner = " AND ".join([f'owner : "{token}"' for token in self._table.list_tokens(whose)])
        return f"{owner} AND {self._match_words(words, sign)}"

    def _match_words(self, words: Sequence[str], sign: str) -> str:
        found = f" {sign} ".join([f'"{word}"' for word in words])
        return f"{{{' '.join(self._table.texts)}}} : ({found})"


class ServerWords:
    """A column of words on a server. A word counts the more the rarer it is, which PostgreSQL does not see to itself."""

    columns = ", words"

    def __init__(self, table: IndexedTable) -> None:
        self._table = table

    @property
    def values(self) -> str:
        spoken = f"to_tsvector('{self._table.dictionary}', CAST(:spoken AS TEXT))"
        return f", {spoken} || to_tsvector('simple', CAST(:owner AS TEXT))"

    def describe(self, texts: Sequence[str]) -> dict[str, object]:
        return {"spoken": _strip_marks(" ".join(texts))[:MOST_INDEXED_CHARS]}

    def count(self, connection: SqlConnection, word: str, whose: Scope) -> int:
        return self._count(connection, *self._ask([word], "||", whose), self._table.common)

    def count_all(self, connection: SqlConnection, word: str, most: int) -> int:
        return self._count(connection, self._word(0), {"word0": _strip_marks(word)}, most)

    def _count(self, connection: SqlConnection, fits: str, values: Mapping[str, object], most: int) -> int:
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {self._table.name} WHERE words @@ {fits} LIMIT {most}) AS found"
        return int(connection.execute(counted, values).fetchone()[0])

    def rank(
        self, connection: SqlConnection, counts: Mapping[str, int], whose: Scope, common: Mapping[str, int] = NONE
    ) -> list[RankedRow]:
        fits, values = self._ask(list(counts), "||", whose)
        table, weighed = self._table, {**counts, **common}
        values |= {f"word{place}": _strip_marks(word) for place, word in enumerate(weighed)}
        weights = [1 / log(2 + count) for count in weighed.values()]
        score = " + ".join([f"{weight:.6f} * ts_rank(words, {self._word(place)})" for place, weight in enumerate(weights)])
        ranked = f"""
            SELECT id, at, CAST({score} AS DOUBLE PRECISION) AS score FROM {table.name}
            WHERE words @@ {fits} AND {table.mine} ORDER BY {"number" if table.by_time else "score"} DESC LIMIT {2 * table.common}
        """
        return [RankedRow(*row) for row in connection.execute(ranked, values)]

    def find_newest(
        self, connection: SqlConnection, words: Sequence[str], whose: Scope, most: int, *, need_all: bool
    ) -> list[str]:
        fits, values = self._ask(words, "&&" if need_all else "||", whose)
        table = self._table
        newest = f"SELECT id FROM {table.name} WHERE words @@ {fits} AND {table.mine} ORDER BY number DESC LIMIT :most"
        return [id for (id,) in connection.execute(newest, {**values, "most": most})]

    def purge_some(self, connection: SqlConnection, is_first: bool) -> bool:
        return False

    def _word(self, place: int) -> str:
        return f"plainto_tsquery('{self._table.dictionary}', :word{place})"

    def _ask(self, words: Sequence[str], sign: str, whose: Scope) -> tuple[str, dict[str, object]]:
        """A question as PostgreSQL takes it, and its values."""
        found = f" {sign} ".join([self._word(place) for place in range(len(words))])
        values = {f"word{place}": _strip_marks(word) for place, word in enumerate(words)}
        owner = " & ".join(self._table.list_tokens(whose))
        return f"(to_tsquery('simple', :owner) && ({found}))", {**values, "owner": owner, **asdict(whose)}


def split_terms(query: str) -> list[str]:
    """The words of any text, each once."""
    whole = query[:QUERY_CHARS].encode(errors="ignore").decode()
    found = dict.fromkeys([word[:TERM_CHARS].lower() for word in re.findall(r"\w+", whole)])
    return list(found)[:MOST_TERMS]


def _strip_marks(text: str) -> str:
    if text.isascii():
        return text
    return "".join([letter for letter in normalize("NFD", text) if not unicodedata.combining(letter)])
