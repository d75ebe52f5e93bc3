"""The tables of vector stores, in SQL: stores, the files in them, their batches, and the passages that are searched.

A file that is `in_progress` waits for a process that indexes it; `holder` is the one that does. Whoever writes passages shows
that the file is still its own. What was taken out of a store is noted in `removed_files` in the same transaction, and its
passages go a few at a time. Transactions are the caller's.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from mainspring.core.errors import Superseded
from mainspring.core.items import decode, encode
from mainspring.features.vector_stores.chunking import Passage, StaticChunking
from mainspring.features.vector_stores.filters import Attribute
from mainspring.storage.run_rows import RUNS
from mainspring.storage.search.embedding import EmbeddingQueue, WaitingText
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.server_vectors import VectorTables
from mainspring.storage.search.word_index import IndexedTable, Scope, WordIndex, find_index, make_tokens, split_terms
from mainspring.storage.sql import ServerTables, SqlConnection
from mainspring.storage.sqlite import Schema

FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]
AT_ONCE: Final = 500
COMMON: Final = 2_000
# How many words that are in more passages are looked at, and how many passages of each are counted.
MOST_COMMON: Final = 8
MOST_COUNTED: Final = 10_000
# How many of them are looked for together, and how many passages at least are taken that have the same of them.
TOGETHER: Final = 3
MOST_TOGETHER: Final = 500
# Words that tell English texts apart as little as they are frequent.
_STOP: Final = frozenset({
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "did", "do", "does", "for", "from", "had", "has", "have",
    "how", "i", "in", "is", "it", "its", "me", "my", "not", "of", "on", "or", "our", "that", "the", "their", "they", "this", "to",
    "was", "we", "were", "what", "when", "where", "which", "who", "why", "will", "with", "would", "you", "your",
})  # fmt: skip

_STORES: Final = """
    CREATE TABLE {prefix}stores (
        number {number}, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, body TEXT NOT NULL, created_at {real} NOT NULL,
        active_at {real} NOT NULL, expires_at {real}
    );
    CREATE INDEX {prefix}stores_of_tenant ON {prefix}stores (tenant, number);
    CREATE TABLE {prefix}store_batches (
        number {number}, id TEXT NOT NULL UNIQUE, store TEXT NOT NULL, created_at {real} NOT NULL, is_cancelled INTEGER NOT NULL
    );
    CREATE TABLE {prefix}store_files (
        number {number}, store TEXT NOT NULL, file TEXT NOT NULL, tenant TEXT NOT NULL, batch TEXT NOT NULL,
        filename TEXT NOT NULL, status TEXT NOT NULL, error_code TEXT NOT NULL, error TEXT NOT NULL,
        attributes TEXT NOT NULL, chunking TEXT NOT NULL,
        usage_bytes BIGINT NOT NULL, created_at {real} NOT NULL, holder TEXT NOT NULL, UNIQUE (store, file)
    );
    CREATE INDEX {prefix}store_files_by_status ON {prefix}store_files (store, status);
    CREATE INDEX {prefix}store_files_to_index ON {prefix}store_files (number) WHERE status = 'in_progress';
    CREATE INDEX {prefix}store_files_by_file ON {prefix}store_files (tenant, file);
    CREATE INDEX {prefix}store_files_by_batch ON {prefix}store_files (batch);
    CREATE TABLE {prefix}removed_files (number BIGINT PRIMARY KEY);
    CREATE TABLE {prefix}passages (
        number {number}, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, store TEXT NOT NULL, file TEXT NOT NULL,
        source BIGINT NOT NULL, place INTEGER NOT NULL, page INTEGER, line INTEGER NOT NULL, at {real} NOT NULL,
        text TEXT NOT NULL, owner TEXT NOT NULL, embedded INTEGER NOT NULL DEFAULT 0{words}
    );
    CREATE INDEX {prefix}passages_of_file ON {prefix}passages (source, place);
    CREATE INDEX {prefix}passages_to_embed ON {prefix}passages (number) WHERE embedded = 0
"""
_FILE_TABLES: Final = _STORES.format(prefix="", number="INTEGER PRIMARY KEY AUTOINCREMENT", real="REAL", words="").split(";")
_FILE_WORDS: Final = (
    """
    CREATE VIRTUAL TABLE passage_words USING fts5 (
        text, owner, content='passages', content_rowid='number', tokenize='porter unicode61 remove_diacritics 2'
    )
    """,
    """
    CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
        INSERT INTO passage_words (rowid, text, owner) VALUES (new.number, new.text, new.owner);
    END
    """,
    """
    CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
        INSERT INTO passage_words (passage_words, rowid, text, owner) VALUES ('delete', old.number, old.text, old.owner);
    END
    """,
)
SEARCH: Final = Schema(
    application_id=RUNS.application_id,  # they share the file of the runs
    migrations=((*_FILE_TABLES, *_FILE_WORDS),),
    tables=("stores", "store_batches", "store_files", "removed_files", "passages"),
    name="the vector stores",
    remedy="choose another file",
    version_table="search",
)
_SERVER_TABLES: Final = """
    CREATE TEXT SEARCH DICTIONARY mainspring_passage_stem (TEMPLATE = snowball, LANGUAGE = english);
    CREATE TEXT SEARCH CONFIGURATION mainspring_passage_words (COPY = simple);
    ALTER TEXT SEARCH CONFIGURATION mainspring_passage_words
        ALTER MAPPING FOR asciiword, word, hword, hword_part, asciihword, hword_asciipart WITH mainspring_passage_stem;
    {tables};
    CREATE INDEX mainspring_passages_by_word ON mainspring_passages USING gin (words);
    CREATE TABLE mainspring_passage_model (name TEXT NOT NULL);
    CREATE TABLE mainspring_passage_vectors (
        id TEXT PRIMARY KEY REFERENCES mainspring_passages (id) ON DELETE CASCADE,
        tenant TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, embedding REAL[] NOT NULL
    );
    CREATE INDEX mainspring_passage_vectors_of_store ON mainspring_passage_vectors (tenant);
"""
_IDENTITY: Final = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
SERVED_SEARCH: Final = ServerTables(
    name="search",
    migrations=(
        _SERVER_TABLES.format(
            tables=_STORES.format(
                prefix="mainspring_", number=_IDENTITY, real="DOUBLE PRECISION", words=", words TSVECTOR NOT NULL"
            )
        ),
    ),
    tables=tuple([f"mainspring_{name}" for name in (*SEARCH.tables, "passage_model", "passage_vectors")]),
)
PASSAGES: Final = IndexedTable(
    name="passages",
    words="passage_words",
    dictionary="mainspring_passage_words",
    texts=("text",),
    group="store",
    member="file",
    common=COMMON,
    by_time=False,
    are_unique=True,
)
PASSAGE_VECTORS: Final = VectorTables("passages", "passage_vectors", "passage_model")


class StoreBody(Struct, frozen=True, omit_defaults=True):
    """What a client says of a store."""

    name: str = ""
    description: str | None = None
    metadata: dict[str, str] | None = None
    expires_days: int | None = None


class StoredStore(Struct, frozen=True):
    id: str
    body: StoreBody
    created_at: float
    active_at: float
    expires_at: float | None
    number: int


class NewFile(Struct, frozen=True):
    """A file that is to be in a store."""

    file: str
    filename: str
    attributes: dict[str, Attribute] = {}
    chunking: StaticChunking = StaticChunking()


class StoreFile(Struct, frozen=True):
    """A file in a store."""

    number: int
    store: str
    file: str
    tenant: str
    batch: str
    filename: str
    status: FileStatus
    error_code: str
    error: str
    attributes: dict[str, Attribute]
    chunking: StaticChunking
    usage_bytes: int
    created_at: float
    holder: str


class StoreCounts(Struct, frozen=True):
    """How many files of a store or a batch are in which state."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0


class FoundPassage(Struct, frozen=True):
    """A passage with the file that it is of."""

    id: str
    text: str
    page: int | None
    line: int
    file: str
    filename: str
    attributes: dict[str, Attribute]


_STORE: Final = "SELECT id, body, created_at, active_at, expires_at, number FROM stores"
_FILE: Final = (
    "SELECT number, store, file, tenant, batch, filename, status, error_code, error, attributes, chunking, usage_bytes, "
    "created_at, holder FROM store_files"
)


def _read_store(row: tuple[str, str, float, float, float | None, int]) -> StoredStore:
    id, body, created_at, active_at, expires_at, number = row
    return StoredStore(id, decode(body, StoreBody), created_at, active_at, expires_at, number)


def _read_file(row: Sequence[object]) -> StoreFile:
    fields = list(row)
    fields[9] = decode(str(fields[9]), dict[str, Attribute])
    fields[10] = decode(str(fields[10]), StaticChunking)
    return StoreFile(*fields)  # type: ignore[arg-type]


def _write(value: object) -> str:
    return encode(value).decode()


def add_store(connection: SqlConnection, id: str, tenant: str, body: StoreBody, now: float) -> None:
    values = (id, tenant, _write(body), now, now, _find_expiry(body, now))
    connection.execute(
        "INSERT INTO stores (id, tenant, body, created_at, active_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)", values
    )


def _find_expiry(body: StoreBody, active_at: float) -> float | None:
    return None if body.expires_days is None else active_at + body.expires_days * 86_400.0


def get_store(connection: SqlConnection, id: str, tenant: str) -> StoredStore | None:
    row = connection.execute(f"{_STORE} WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
    return None if row is None else _read_store(row)


def list_stores(connection: SqlConnection, tenant: str, after: int | None, limit: int, newest_first: bool) -> list[StoredStore]:
    sign, order = ("<", "DESC") if newest_first else (">", "ASC")
    bound = "" if after is None else f" AND number {sign} {after}"
    rows = connection.execute(f"{_STORE} WHERE tenant = ?{bound} ORDER BY number {order} LIMIT {limit}", (tenant,))
    return [_read_store(row) for row in rows]


def change_store(connection: SqlConnection, id: str, changes: Mapping[str, object], active_at: float) -> None:
    """Changes these fields of what a client says of a store. Others that are changed at the same time stay."""
    connection.execute("UPDATE stores SET id = id WHERE id = ?", (id,))  # on a server, only a row that is written to is locked
    if (found := connection.execute("SELECT body FROM stores WHERE id = ?", (id,)).fetchone()) is None:
        return
    body = replace(decode(found[0], StoreBody), **changes)
    values = (_write(body), active_at, _find_expiry(body, active_at), id)
    connection.execute("UPDATE stores SET body = ?, active_at = ?, expires_at = ? WHERE id = ?", values)


def touch_store(connection: SqlConnection, id: str, active_at: float) -> None:
    """Notes that a store is in use. What else is known of it may have changed meanwhile."""
    longer = "UPDATE stores SET expires_at = expires_at + (? - active_at), active_at = ? WHERE id = ?"
    connection.execute(longer, (active_at, active_at, id))


def remove_store(connection: SqlConnection, id: str) -> None:
    """Its passages go later: see `remove_passages`."""
    remove_files(connection, "store = ?", (id,))
    connection.execute("DELETE FROM store_batches WHERE store = ?", (id,))
    connection.execute("DELETE FROM stores WHERE id = ?", (id,))


def list_expired(connection: SqlConnection, now: float) -> list[str]:
    """Stores that have expired and still have files."""
    expired = "SELECT id FROM stores WHERE expires_at <= ? AND EXISTS (SELECT 1 FROM store_files WHERE store = stores.id)"
    return [id for (id,) in connection.execute(expired, (now,))]


def count_files(connection: SqlConnection, column: Literal["store", "batch"], id: str) -> tuple[StoreCounts, int]:
    """The files of a store or a batch, and how many bytes their passages have."""
    counted = f"SELECT status, count(*), sum(usage_bytes) FROM store_files WHERE {column} = ? GROUP BY status"
    rows = connection.execute(counted, (id,)).fetchall()
    counts = {str(status): int(count) for status, count, _ in rows}
    return StoreCounts(**counts, total=sum(counts.values())), sum([int(size or 0) for *_, size in rows])


def add_files(connection: SqlConnection, store: str, tenant: str, files: Sequence[NewFile], now: float, batch: str = "") -> None:
    """Has files be indexed; those that are in the store already once more."""
    connection.executemany(
        "INSERT INTO store_files (store, file, tenant, batch, filename, status, error_code, error, attributes, chunking, "
        "usage_bytes, created_at, holder) VALUES (?, ?, ?, ?, ?, 'in_progress', '', '', ?, ?, 0, ?, '') "
        "ON CONFLICT (store, file) DO UPDATE SET "
        "batch = excluded.batch, status = 'in_progress', error_code = '', error = '', attributes = excluded.attributes, "
        "chunking = excluded.chunking, holder = ''",
        [(store, each.file, tenant, batch, each.filename, _write(each.attributes), _write(each.chunking), now) for each in files],
    )
    if batch:
        added = "INSERT INTO store_batches (id, store, created_at, is_cancelled) VALUES (?, ?, ?, 0)"
        connection.execute(added, (batch, store, now))


def get_batch(connection: SqlConnection, id: str, store: str) -> tuple[float, bool] | None:
    """When a batch was made, and whether it was cancelled."""
    found = "SELECT created_at, is_cancelled FROM store_batches WHERE id = ? AND store = ?"
    row = connection.execute(found, (id, store)).fetchone()
    return None if row is None else (float(row[0]), bool(row[1]))


def cancel_batch(connection: SqlConnection, id: str) -> None:
    """Stops what is not indexed yet; a batch that is done stays as it is."""
    stopped = "UPDATE store_files SET status = 'cancelled', holder = '' WHERE batch = ? AND status = 'in_progress'"
    if connection.execute(stopped, (id,)).rowcount:
        connection.execute("UPDATE store_batches SET is_cancelled = 1 WHERE id = ?", (id,))


def get_file(connection: SqlConnection, store: str, file: str) -> StoreFile | None:
    row = connection.execute(f"{_FILE} WHERE store = ? AND file = ?", (store, file)).fetchone()
    return None if row is None else _read_file(row)


def list_files(
    connection: SqlConnection, store: str, after: int | None, limit: int, newest_first: bool, only: Mapping[str, str]
) -> list[StoreFile]:
    """The files of a store; `only` has the values that columns must have."""
    sign, order = ("<", "DESC") if newest_first else (">", "ASC")
    bound = "".join([f" AND {column} = :{column}" for column in only]) + ("" if after is None else f" AND number {sign} {after}")
    rows = connection.execute(
        f"{_FILE} WHERE store = :store{bound} ORDER BY number {order} LIMIT {limit}", {"store": store, **only}
    )
    return [_read_file(row) for row in rows]


def list_attributes(connection: SqlConnection, store: str) -> list[tuple[int, str, dict[str, Attribute]]]:
    """The number, the id and the attributes of each file that is indexed."""
    rows = connection.execute(
        "SELECT number, file, attributes FROM store_files WHERE store = ? AND status = 'completed'", (store,)
    )
    return [(number, file, decode(attributes, dict[str, Attribute])) for number, file, attributes in rows]


def change_attributes(connection: SqlConnection, store: str, file: str, attributes: Mapping[str, Attribute]) -> None:
    changed = "UPDATE store_files SET attributes = ? WHERE store = ? AND file = ?"
    connection.execute(changed, (_write(attributes), store, file))


def remove_files(connection: SqlConnection, which: str, values: tuple[str, ...]) -> int:
    """Takes files out of stores. Their passages go later: see `remove_passages`."""
    rows = connection.execute(f"DELETE FROM store_files WHERE {which} RETURNING number", values).fetchall()
    connection.executemany("INSERT INTO removed_files VALUES (?) ON CONFLICT DO NOTHING", rows)
    return len(rows)


def remove_passages(connection: SqlConnection) -> list[str]:
    """Removes some passages of files that were taken out of stores; returns their ids, none once all are removed."""
    while (found := connection.execute("SELECT number FROM removed_files LIMIT 1").fetchone()) is not None:
        if gone := _remove_some(connection, found[0]):
            return gone
        connection.execute("DELETE FROM removed_files WHERE number = ?", (found[0],))
    return []


def _remove_some(connection: SqlConnection, source: int) -> list[str]:
    chosen = f"SELECT number FROM passages WHERE source = ? LIMIT {AT_ONCE}"
    return [
        id for (id,) in connection.execute(f"DELETE FROM passages WHERE number IN ({chosen}) RETURNING id", (source,)).fetchall()
    ]


def list_waiting_files(connection: SqlConnection) -> list[StoreFile]:
    """Files that are to be indexed: the oldest of each tenant, then the next of each."""
    turns = (
        "SELECT number AS waiting, row_number() OVER (PARTITION BY tenant ORDER BY number) AS turn FROM store_files "
        "WHERE status = 'in_progress'"
    )
    listed = f"{_FILE} JOIN ({turns}) AS turns ON waiting = number ORDER BY turn, number LIMIT 100"
    return [_read_file(row) for row in connection.execute(listed)]


def claim_file(connection: SqlConnection, file: StoreFile, holder: str) -> bool:
    """Takes a file from whoever is known to have it. Says whether that was so."""
    claimed = "UPDATE store_files SET holder = ? WHERE number = ? AND holder = ? AND status = 'in_progress'"
    return connection.execute(claimed, (holder, file.number, file.holder)).rowcount == 1


def _check_holder(connection: SqlConnection, number: int, holder: str) -> None:
    """Raises `Superseded` if the file is another's by now, or is not to be indexed any more. It stays ours until the transaction
    ends: on a server, only a row that is written to is locked."""
    held = "UPDATE store_files SET holder = holder WHERE number = ? AND holder = ? AND status = 'in_progress'"
    if connection.execute(held, (number, holder)).rowcount != 1:
        raise Superseded("another process indexes this file, or it was taken out of its store")


def clear_passages(connection: SqlConnection, number: int, holder: str) -> list[str]:
    """Removes some passages of an earlier attempt; returns their ids, none once all are removed. Raises `Superseded`."""
    _check_holder(connection, number, holder)
    return _remove_some(connection, number)


def add_passages(
    connection: SqlConnection, file: StoreFile, holder: str, first: int, passages: Sequence[Passage], now: float
) -> None:
    """Adds some of a file's passages, from this place on. Raises `Superseded`."""
    _check_holder(connection, file.number, holder)
    index, owner = find_index(connection, PASSAGES), " ".join(make_tokens(Scope(file.tenant, file.store, file.file)))
    added = (
        "INSERT INTO passages (id, tenant, store, file, source, place, page, line, at, text, owner{columns}) SELECT "
        "CAST(:id AS TEXT), CAST(:tenant AS TEXT), CAST(:store AS TEXT), CAST(:file AS TEXT), CAST(:source AS BIGINT), "
        "CAST(:place AS INTEGER), CAST(:page AS INTEGER), CAST(:line AS INTEGER), CAST(:at AS DOUBLE PRECISION), "
        "CAST(:text AS TEXT), CAST(:owner AS TEXT){values} WHERE true ON CONFLICT DO NOTHING"
    )
    rows = [
        {
            "id": f"{file.number}.{place}",
            "tenant": file.tenant,
            "store": file.store,
            "file": file.file,
            "source": file.number,
            "place": place,
            "at": now,
            "owner": owner,
            **asdict(passage),
        }
        | index.describe((passage.text,))
        for place, passage in enumerate(passages, start=first)
    ]
    connection.executemany(added.format(columns=index.columns, values=index.values), rows)


def finish_file(
    connection: SqlConnection, number: int, holder: str, status: FileStatus, size: int = 0, code: str = "", error: str = ""
) -> None:
    """Raises `Superseded`."""
    _check_holder(connection, number, holder)
    ended = "UPDATE store_files SET status = ?, usage_bytes = ?, error_code = ?, error = ?, holder = '' WHERE number = ?"
    connection.execute(ended, (status, size, code, error, number))


def list_passages(connection: SqlConnection, number: int, limit: int) -> list[str]:
    rows = connection.execute("SELECT text FROM passages WHERE source = ? ORDER BY place LIMIT ?", (number, limit))
    return [text for (text,) in rows]


def find_by_words(connection: SqlConnection, query: str, whose: Scope, limit: int) -> list[Hit]:
    """The passages that fit the words best. Words that are in very many find passages together, where rarer ones find too few."""
    terms, index = split_terms(query), find_index(connection, PASSAGES)
    words = [word for word in terms if word not in _STOP] or terms
    counts = {word: count for word in words if (count := index.count(connection, word, whose))}
    rare = {word: count for word, count in counts.items() if count < COMMON}
    often = [word for word in counts if word not in rare][:MOST_COMMON]
    common = {word: index.count_all(connection, word, MOST_COUNTED) for word in often}
    found = list[Hit]()
    if rare:
        ranked = sorted(index.rank(connection, rare, whose, common), key=lambda row: row.relevance, reverse=True)
        found = [Hit(row.id, row.relevance) for row in ranked[:limit]]
    if len(found) < limit and common:
        known = {hit.id for hit in found}
        found += [hit for hit in _find_together(connection, index, common, whose, limit) if hit.id not in known]
    return found[:limit]


def _find_together(connection: SqlConnection, index: WordIndex, counts: Mapping[str, int], whose: Scope, least: int) -> list[Hit]:
    """Passages that have the most of these words, each of which is in very many: those with all of them, then with all of the
    rarest, with all but one of these, and so on, until there are enough."""
    words, held = sorted(counts, key=lambda word: counts[word]), dict[str, set[str]]()
    groups = [[tuple(words)], *[list(combinations(words[:TOGETHER], size)) for size in range(min(TOGETHER, len(words)), 0, -1)]]
    for alike in groups:
        for group in alike:
            for id in index.find_newest(connection, group, whose, max(MOST_TOGETHER, least), need_all=True):
                held.setdefault(id, set()).update(group)
        if len(held) >= least:
            break
    hits = [Hit(id, sum([1 / log(counts[word]) for word in sorted(having)])) for id, having in held.items()]
    return sorted(hits, key=lambda hit: hit.score, reverse=True)


def load_passages(connection: SqlConnection, ids: Sequence[str], tenant: str, store: str) -> dict[str, FoundPassage]:
    """Those of these passages that can be shown: of this store, and of files that are indexed to their end."""
    if not ids:
        return {}
    names = {f"id{place}": id for place, id in enumerate(ids)}
    listed = ", ".join([f":{name}" for name in names])
    rows = connection.execute(
        "SELECT passages.id, text, page, line, passages.file, filename, attributes FROM passages "
        f"JOIN store_files ON store_files.number = source WHERE passages.id IN ({listed}) AND passages.tenant = :tenant "
        "AND passages.store = :store AND status = 'completed'",
        {**names, "tenant": tenant, "store": store},
    )
    return {
        id: FoundPassage(id, text, page, line, file, name, decode(attributes, dict[str, Attribute]))
        for id, text, page, line, file, name, attributes in rows
    }


def _list_unembedded(connection: SqlConnection, limit: int) -> list[WaitingText]:
    rows = connection.execute("SELECT id, store, file, text FROM passages WHERE embedded = 0 ORDER BY number LIMIT ?", (limit,))
    return [WaitingText(id, scope_vectors(store, file), text) for id, store, file, text in rows]


def scope_vectors(store: str, file: str | None = None) -> Scope:
    """Vectors are apart by store: to compare a question with those of other stores would be in vain."""
    return Scope(store, file)


def _mark_embedded(connection: SqlConnection, ids: Sequence[str]) -> None:
    connection.executemany("UPDATE passages SET embedded = 1 WHERE id = ?", [(id,) for id in ids])


def mark_unembedded(connection: SqlConnection) -> None:
    connection.execute("UPDATE passages SET embedded = 0 WHERE embedded = 1")


TO_EMBED: Final = EmbeddingQueue(_list_unembedded, _mark_embedded)
