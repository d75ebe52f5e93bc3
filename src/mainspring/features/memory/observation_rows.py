"""The tables of the memory, in SQL. Every question names its tenant, and the tenant is part of the query itself. Transactions are
the caller's.

Theory of operation. Words are found by an index over the observations (`word_index`). Ranking every match of a common word would
take as long as there are matches, so a word that fits `COMMON` observations or more counts only where no rarer one fits, and then
the newest matches are the best.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.items import decode, encode
from mainspring.features.memory.observation import Observation
from mainspring.storage.run_rows import RUNS
from mainspring.storage.search.embedding import EmbeddingQueue, WaitingText
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.word_index import COMMON, IndexedTable, Scope, find_index, make_tokens, split_terms
from mainspring.storage.sql import SqlConnection
from mainspring.storage.sqlite import Schema

HALF_LIFE: Final = 7 * 86_400.0
AT_ONCE: Final = 500

_TABLES = (
    # Who has it open. A process that crashes leaves its line, and so tells the next one.
    "CREATE TABLE IF NOT EXISTS memory_writers (token TEXT PRIMARY KEY, since REAL NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS observations (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        agent TEXT NOT NULL,
        kind TEXT NOT NULL,
        at REAL NOT NULL,
        content TEXT NOT NULL,
        about TEXT NOT NULL,
        tags TEXT NOT NULL,
        metadata TEXT NOT NULL,
        owner TEXT NOT NULL,
        embedded INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX IF NOT EXISTS observations_by_session ON observations (tenant, session)",
    "CREATE INDEX IF NOT EXISTS observations_by_time ON observations (at)",
    "CREATE INDEX IF NOT EXISTS observations_of_tenant ON observations (tenant, number)",
    "CREATE INDEX IF NOT EXISTS observations_to_embed ON observations (number) WHERE embedded = 0",
    """
    CREATE VIRTUAL TABLE IF NOT EXISTS observation_words USING fts5 (
        content, about, tags, owner,
        content='observations', content_rowid='number', tokenize='porter unicode61 remove_diacritics 2'
    )
    """,
    """
    CREATE TRIGGER IF NOT EXISTS observation_added AFTER INSERT ON observations BEGIN
        INSERT INTO observation_words (rowid, content, about, tags, owner)
        VALUES (new.number, new.content, new.about, new.tags, new.owner);
    END
    """,
    """
    CREATE TRIGGER IF NOT EXISTS observation_removed AFTER DELETE ON observations BEGIN
        INSERT INTO observation_words (observation_words, rowid, content, about, tags, owner)
        VALUES ('delete', old.number, old.content, old.about, old.tags, old.owner);
    END
    """,
    # What was forgotten stays forgotten, also when the log that it was observed in is read again. `whole` is all of a tenant; a
    # run that was forgotten stands here as a session does.
    """
    CREATE TABLE IF NOT EXISTS observations_forgotten (
        tenant TEXT NOT NULL, session TEXT NOT NULL, whole INTEGER NOT NULL, upto REAL NOT NULL,
        PRIMARY KEY (tenant, session, whole)
    ) WITHOUT ROWID
    """,
)
# Triggers keep the counts right whichever process writes, so no flush has to count the rows of its tenants.
_COUNTS = (
    "CREATE TABLE observation_counts (tenant TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO observation_counts SELECT tenant, count(*) FROM observations GROUP BY tenant",
    """
    CREATE TRIGGER observation_counted AFTER INSERT ON observations BEGIN
        INSERT INTO observation_counts VALUES (new.tenant, 1) ON CONFLICT (tenant) DO UPDATE SET count = count + 1;
    END
    """,
    """
    CREATE TRIGGER observation_discounted AFTER DELETE ON observations BEGIN
        UPDATE observation_counts SET count = count - 1 WHERE tenant = old.tenant;
        DELETE FROM observation_counts WHERE tenant = old.tenant AND count = 0;
    END
    """,
)


MEMORY: Final = Schema(
    application_id=RUNS.application_id,  # memory and runs share a file, whoever creates it
    migrations=(_TABLES, _COUNTS),
    tables=("observations", "observation_counts", "observations_forgotten", "memory_writers"),
    name="the memory",
    remedy="choose another file",
    version_table="memory",
)


OBSERVATIONS: Final = IndexedTable(
    name="observations",
    words="observation_words",
    dictionary="mainspring_words",
    texts=("content", "about", "tags"),
    group="agent",
    member="session",
)


def add_writer(connection: SqlConnection, token: str, now: float) -> float | None:
    """Notes who has it open. Returns since when others have who may have crashed, None if there are none."""
    others = connection.execute("SELECT min(since) FROM memory_writers WHERE token <> ?", (token,)).fetchone()
    noted = "INSERT INTO memory_writers VALUES (?, ?) ON CONFLICT (token) DO UPDATE SET since = excluded.since"
    connection.execute(noted, (token, now))
    since: float | None = others[0]
    return since


def remove_writer(connection: SqlConnection, token: str) -> None:
    connection.execute("DELETE FROM memory_writers WHERE token = ?", (token,))


def remove_other_writers(connection: SqlConnection, token: str) -> None:
    """Forgets the others. Those that live come back by `add_writer`."""
    connection.execute("DELETE FROM memory_writers WHERE token <> ?", (token,))


class Added(Struct, frozen=True):
    """How many observations were new, and the ids of the older ones that had to go for them."""

    count: int
    gone: tuple[str, ...] = ()


def add(connection: SqlConnection, seen: Sequence[Observation], most: int) -> Added:
    """Keeps what is not there yet and was not forgotten, and of each tenant no more than the newest `most`."""
    index = find_index(connection, OBSERVATIONS)
    rows = [_row(each) | index.describe((each.content, each.about, " ".join(each.tags))) for each in seen]
    count = connection.executemany(_ADD.format(columns=index.columns, values=index.values), rows).rowcount
    gone = [id for tenant in {each.tenant for each in seen} for id in _remove_excess(connection, tenant, most)]
    return Added(count, tuple(gone))


def _remove_excess(connection: SqlConnection, tenant: str, most: int, limit: int = -1) -> list[str]:
    found = connection.execute("SELECT count - ? FROM observation_counts WHERE tenant = ?", (most, tenant)).fetchone()
    if found is None or found[0] <= 0:
        return []
    excess = found[0] if limit < 0 else min(found[0], limit)
    return _remove(connection, "tenant = ? ORDER BY number LIMIT ?", (tenant, excess))


_ADD = """
    INSERT INTO observations (id, tenant, session, agent, kind, at, content, about, tags, metadata, owner{columns})
    SELECT CAST(:id AS TEXT), CAST(:tenant AS TEXT), CAST(:session AS TEXT), CAST(:agent AS TEXT), CAST(:kind AS TEXT),
        CAST(:at AS DOUBLE PRECISION), CAST(:content AS TEXT), CAST(:about AS TEXT), CAST(:tags AS TEXT),
        CAST(:metadata AS TEXT), CAST(:owner AS TEXT){values}
    WHERE NOT EXISTS (
        SELECT 1 FROM observations_forgotten
        WHERE (tenant, session, whole) IN (VALUES (:tenant, '', 1), (:tenant, :session, 0), (:tenant, :run, 0)) AND upto >= :at
    )
    ON CONFLICT DO NOTHING
"""


def _row(seen: Observation) -> dict[str, object]:
    return {
        "id": seen.id,
        "tenant": seen.tenant,
        "session": seen.session_id,
        "run": seen.run,
        "agent": seen.agent_name,
        "kind": seen.event_type,
        "at": seen.timestamp,
        "content": seen.content,
        "about": seen.about,
        "tags": encode(seen.tags).decode(),
        "metadata": encode(seen.metadata).decode(),
        "owner": " ".join(make_tokens(Scope(seen.tenant, seen.agent_name, seen.session_id))),
    }


def search(connection: SqlConnection, query: str, whose: Scope, limit: int, now: float) -> list[Hit]:
    """The observations that fit the words best, the newer the better; without any word, the newest."""
    words, index = split_terms(query), find_index(connection, OBSERVATIONS)
    if not words:
        return find_newest(connection, whose, limit)
    counts = {word: index.count(connection, word, whose) for word in words}
    if rare := {word: count for word, count in counts.items() if 0 < count < COMMON}:
        ranked = index.rank(connection, rare, whose)
        hits = [Hit(row.id, row.relevance * (1 + 0.5 ** (max(now - row.at, 0.0) / HALF_LIFE))) for row in ranked]
        return sorted(hits, key=lambda hit: hit.score, reverse=True)[:limit]
    common = [word for word, count in counts.items() if count]
    # What is everywhere tells nothing apart, so the newest that have all of it are as good as any.
    found = index.find_newest(connection, common, whose, limit, need_all=True) if common else []
    if len(found) < limit and len(common) > 1:
        more = index.find_newest(connection, common, whose, 2 * limit, need_all=False)
        found += [id for id in more if id not in found]
    return [Hit(id, 0.0) for id in found[:limit]]


def find_newest(connection: SqlConnection, whose: Scope, limit: int) -> list[Hit]:
    index = "observations_of_tenant" if whose.member is None else "observations_by_session"
    rows = connection.execute(
        f"SELECT id FROM observations INDEXED BY {index} WHERE {OBSERVATIONS.mine} ORDER BY number DESC LIMIT :limit",
        {"limit": limit, **asdict(whose)},
    )
    return [Hit(id, 0.0) for (id,) in rows]


def load(connection: SqlConnection, ids: Sequence[str], whose: Scope) -> list[Observation]:
    """Those of these observations that are theirs, in the order asked for."""
    if not ids:
        return []
    names = {f"id{place}": id for place, id in enumerate(ids)}
    listed = ", ".join([f":{name}" for name in names])
    # Ids first: the tenant's index would lead through all that is theirs.
    rows = connection.execute(
        f"{_LOAD} INDEXED BY {_BY_ID} WHERE id IN ({listed}) AND {OBSERVATIONS.mine}", names | asdict(whose)
    )
    found = {seen.id: seen for seen in map(_observation, rows)}
    return [found[id] for id in ids if id in found]


_BY_ID = "sqlite_autoindex_observations_1"  # what SQLite makes of UNIQUE
_LOAD = "SELECT id, session, agent, kind, content, metadata, tags, at, tenant FROM observations"


def _observation(row: tuple[str, str, str, str, str, str, str, float, str]) -> Observation:
    id, session, agent, kind, content, metadata, tags, at, tenant = row
    return Observation(
        id, session, agent, kind, content, decode(metadata, dict), decode(tags, tuple[str, ...]), at, tenant,  # type: ignore[arg-type]
    )  # fmt: skip


class Forgetting(Struct, frozen=True):
    """What is to be forgotten: a session's observations, or without one all of a tenant's, or those of one run; of them all up to
    number `last`."""

    tenant: str
    session: str | None
    run: str | None
    last: int


def begin_forgetting(connection: SqlConnection, tenant: str, session: str | None, run: str | None, now: float) -> Forgetting:
    """Notes that what happened up to now is forgotten, so that no log brings it back, written yet or not."""
    name, is_whole = (session or "", session is None) if run is None else (run, False)
    otherwise = "ON CONFLICT (tenant, session, whole) DO UPDATE SET upto = excluded.upto"
    connection.execute(f"INSERT INTO observations_forgotten VALUES (?, ?, ?, ?) {otherwise}", (tenant, name, is_whole, now))
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM observations").fetchone()
    return Forgetting(tenant, session, run, last)


def forget_some(connection: SqlConnection, what: Forgetting) -> list[str]:
    """Removes some of what is to be forgotten; returns the ids, none once all is removed."""
    index = "observations_of_tenant" if what.session is None else "observations_by_session"
    mine = ["tenant = :tenant", "number <= :last"]
    mine += ["session = :session"] if what.session is not None else []
    run = "json_extract(metadata, '$.run')" if isinstance(connection, sqlite3.Connection) else "(metadata::json ->> 'run')"
    mine += [f"{run} = :run"] if what.run is not None else []
    chosen = f"SELECT number FROM observations INDEXED BY {index} WHERE {' AND '.join(mine)} LIMIT {AT_ONCE}"
    rows = connection.execute(f"DELETE FROM observations WHERE number IN ({chosen}) RETURNING id", asdict(what))
    return [id for (id,) in rows.fetchall()]


def purge_some(connection: SqlConnection, is_first: bool) -> bool:
    return find_index(connection, OBSERVATIONS).purge_some(connection, is_first)


def note_nothing(connection: SqlConnection) -> None:
    """Changes nothing: what was deleted before is out of the log of the file once this has been done as an erasure."""


def prune(connection: SqlConnection, before: float, most: int) -> list[str]:
    """Removes some of what is older than `before`, or beyond the newest so many of a tenant; returns the ids, none once all is
    removed."""
    # What is as old as that would not be kept anyway.
    connection.execute("DELETE FROM observations_forgotten WHERE upto < ?", (before,))
    if gone := _remove(connection, f"at < ? ORDER BY at LIMIT {AT_ONCE}", (before,)):
        return gone
    crowded = connection.execute("SELECT tenant FROM observation_counts WHERE count > ? LIMIT 1", (most,)).fetchone()
    if crowded is not None:
        return _remove_excess(connection, crowded[0], most, AT_ONCE)
    return []


def finish_forgetting(connection: SqlConnection) -> list[str]:
    """Removes some of what a process began to forget and did not live to; returns the ids, none once all is removed."""
    return _remove(connection, f"number IN ({_FORGOTTEN}) LIMIT {AT_ONCE}", ())


_FORGOTTEN = """
    SELECT number FROM observations_forgotten AS gone CROSS JOIN observations AS seen INDEXED BY observations_by_session
    ON gone.whole = 0 AND seen.tenant = gone.tenant AND seen.session = gone.session AND seen.at <= gone.upto
    UNION ALL SELECT number FROM observations_forgotten AS gone CROSS JOIN observations AS seen INDEXED BY observations_of_tenant
    ON gone.whole = 1 AND seen.tenant = gone.tenant AND seen.at <= gone.upto
"""


def _remove(connection: SqlConnection, which: str, values: tuple[object, ...]) -> list[str]:
    chosen = f"SELECT number FROM observations WHERE {which}"
    rows = connection.execute(f"DELETE FROM observations WHERE number IN ({chosen}) RETURNING id", values)
    return [id for (id,) in rows.fetchall()]


def _list_waiting(connection: SqlConnection, limit: int) -> list[WaitingText]:
    found = map(_observation, connection.execute(f"{_LOAD} WHERE embedded = 0 ORDER BY number LIMIT ?", (limit,)))
    return [WaitingText(seen.id, Scope(seen.tenant, seen.agent_name, seen.session_id), seen.said) for seen in found]


def _mark(connection: SqlConnection, ids: Sequence[str]) -> None:
    connection.executemany("UPDATE observations SET embedded = 1 WHERE id = ?", [(id,) for id in ids])


TO_EMBED: Final = EmbeddingQueue(_list_waiting, _mark)


def mark_unembedded(connection: SqlConnection) -> None:
    connection.execute("UPDATE observations SET embedded = 0 WHERE embedded = 1")
