"""The tables of the run store, and what they hold as functions over a connection. Transactions are the caller's."""

import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from mainspring.core.conversation_items import ITEM
from mainspring.core.events import Recorded, Status
from mainspring.core.history import Entry
from mainspring.core.items import Item, decode, encode
from mainspring.core.spec import Conversation
from mainspring.ports import PAGE_BYTES, RUN_METADATA, Document, Filter, Link, Note, Pruned, RunPage, StoredRun
from mainspring.storage.audit_chain import ANCHOR
from mainspring.storage.lease_rows import LEASES
from mainspring.storage.recent_deltas import OF_RUN, SEQ_BITS, TABLE, read_recent
from mainspring.storage.run_appender import put_document
from mainspring.storage.segment import (
    PRUNED_AT_ONCE,
    RECORD_BYTES,
    LinkRow,
    check_holding,
    cut_documents,
    decode_response,
    decode_rows,
    find_held,
    not_found,
    order_links,
    pick_items,
    read_conversation,
)
from mainspring.storage.sqlite import Migration, Schema
from mainspring.storage.summary_rows import CONVERSATION, SUMMARIES, find_runs

_USUAL = "'completed'"
_MIGRATIONS: tuple[Migration, ...] = (
    (
        # `number` is the order of creation; it decides between runs of the same moment.
        """
        CREATE TABLE runs (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            parent TEXT,
            model TEXT NOT NULL,
            background INTEGER NOT NULL,
            status TEXT NOT NULL,
            created_at REAL NOT NULL,
            ended_at REAL,
            response BLOB,
            entries BLOB
        )
        """,
        "CREATE INDEX runs_by_time ON runs (created_at)",
        "CREATE INDEX runs_by_status ON runs (status, created_at)",
        # With a rowid on purpose: bodies are large, and rows that are added at the end cost a third less than sorted ones.
        """
        CREATE TABLE segments (
            run INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (run, first)
        )
        """,
    ),
    (
        "ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN conversation BLOB",
        "CREATE INDEX runs_by_tenant ON runs (tenant, created_at)",
        # AUTOINCREMENT, because the number of a document that was removed is never given to another.
        """
        CREATE TABLE documents (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            tenant TEXT NOT NULL,
            parent TEXT NOT NULL,
            id TEXT NOT NULL,
            kind TEXT NOT NULL,
            body BLOB NOT NULL,
            UNIQUE (tenant, parent, id, kind)
        )
        """,
        "CREATE INDEX documents_in_order ON documents (tenant, parent, kind, number)",
    ),
    (
        # Which runs hold an item; the item itself is among their entries. One tree and no foreign key, because every run pays
        # for every item: whoever deletes a run knows from its entries what to delete here.
        "CREATE TABLE items (id TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (id, run)) WITHOUT ROWID",
        # Entries are arrays with the item first. SQLite reads less deeply nested JSON than we write; such a run stays unlisted.
        """
        INSERT OR IGNORE INTO items
        SELECT json_extract(value, '$[0].id'), number
        FROM (SELECT number, CAST(entries AS TEXT) AS told FROM runs WHERE entries IS NOT NULL),
            json_each(CASE WHEN json_valid(told) THEN told ELSE '[]' END)
        WHERE json_type(value, '$[0].id') = 'text' AND json_extract(value, '$[0].id') <> ''
        """,
    ),
    (
        # Without a reference to runs: a run may be deleted, that it acted stays known.
        "CREATE TABLE audit (number INTEGER PRIMARY KEY, call TEXT NOT NULL, body BLOB NOT NULL, hash BLOB NOT NULL)",
        "CREATE INDEX audit_by_call ON audit (call) WHERE call <> ''",
        "CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END",
        "CREATE TRIGGER audit_grows BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END",
    ),
    (
        # An index for every filter, so that one that fits nothing finds so at once. Most runs are completed, stand alone and are
        # in no conversation: those pay for two of them.
        "DROP INDEX runs_by_status",
        f"CREATE INDEX runs_by_status ON runs (tenant, status, created_at) WHERE status <> {_USUAL}",
        "CREATE INDEX runs_unfinished ON runs (created_at) WHERE status = 'in_progress'",
        "CREATE INDEX runs_by_model ON runs (tenant, model, created_at)",
        "CREATE INDEX runs_by_parent ON runs (tenant, parent, created_at) WHERE parent IS NOT NULL",
        "CREATE INDEX runs_in_background ON runs (tenant, created_at) WHERE background = 1",
        f"CREATE INDEX runs_by_conversation ON runs (tenant, {CONVERSATION}, created_at) WHERE conversation IS NOT NULL",
    ),
    (
        # Old logs stay where they are. New ones have their rows in one tree, in which those of a run are side by side: the number
        # of a row is that of its run and of its first event.
        "ALTER TABLE segments RENAME TO old_segments",
        f"""
        CREATE TABLE segments (
            place INTEGER PRIMARY KEY,
            last INTEGER NOT NULL,
            body BLOB NOT NULL,
            run INTEGER GENERATED ALWAYS AS (place >> {SEQ_BITS}) VIRTUAL,
            first INTEGER GENERATED ALWAYS AS (place & {(1 << SEQ_BITS) - 1}) VIRTUAL
        )
        """,
    ),
    (TABLE,),
    LEASES,
    (
        # A chain of an older version has no name, and its places are its numbers.
        "ALTER TABLE audit ADD COLUMN chain TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE audit ADD COLUMN place INTEGER",
        "CREATE INDEX audit_by_chain ON audit (chain, place) WHERE chain <> ''",
    ),
    SUMMARIES,
)
RUNS = Schema(
    application_id=0x4D73_7072,  # "Mspr"
    migrations=_MIGRATIONS,
    tables=("runs", "summaries", "segments", "old_segments", "recent_deltas", "documents", "items", "audit", "drivers"),
    retry="resume the run",
)

EVENTS = f"""
    SELECT last, body FROM (
        SELECT first, last, body FROM old_segments WHERE run = :run AND last > :after
        UNION ALL SELECT first, last, body FROM segments WHERE {OF_RUN} AND last > :after
    ) ORDER BY first
"""
_LAST = f"SELECT max(last) FROM segments WHERE {OF_RUN}"
HOLDING = """
    SELECT entries FROM items JOIN runs ON number = run WHERE items.id = ? AND tenant = ? ORDER BY run DESC LIMIT 1
"""
# UNION, not UNION ALL: a link that has been followed is not followed again.
_LINKED = """
    WITH RECURSIVE links (id, parent) AS (
        SELECT id, parent FROM runs WHERE id = ? AND tenant = coalesce(?, tenant)
        UNION
        SELECT runs.id, runs.parent FROM links JOIN runs ON runs.id = links.parent
    )
"""
LINKS = f"""
    {_LINKED}
    SELECT runs.id, runs.parent, runs.entries, runs.tenant, runs.conversation FROM links JOIN runs ON runs.id = links.id
"""
# SQLite tells the length of a blob without reading it.
LINKED_BYTES = f"""
    {_LINKED}
    SELECT length(runs.entries), runs.tenant, runs.conversation FROM links JOIN runs ON runs.id = links.id
"""
# A record takes more room in memory than in the file, and the entries have the texts of logs.
RUN_BYTES = f"""
    SELECT coalesce(sum(size + {RECORD_BYTES} * events), 0) FROM (
        SELECT length(body) AS size, last - first + 1 AS events FROM old_segments WHERE run = :run
        UNION ALL SELECT length(body), last - first + 1 FROM segments WHERE {OF_RUN}
        UNION ALL SELECT length(entries), 0 FROM runs WHERE number = :run AND entries IS NOT NULL
    )
"""
DOCUMENT_BYTES = "SELECT coalesce(sum(length(body)), 0) FROM documents WHERE tenant = ? AND parent = ? AND kind = ?"
RUN = "SELECT id, status, created_at, parent, model, background, response, entries, tenant, conversation FROM runs"
# Cast, because whoever tampers with a file may write other types than we do.
LINK = """
    SELECT number, CAST(call AS TEXT), CAST(body AS BLOB), CAST(hash AS BLOB), CAST(chain AS TEXT), coalesce(place, number)
    FROM audit
"""
DOCUMENT = "SELECT kind, id, body, tenant, parent, number FROM documents"


def load_events(connection: sqlite3.Connection, run_id: str, after: int) -> list[Recorded]:
    number = connection.execute("SELECT number FROM runs WHERE id = ?", (run_id,)).fetchone()
    if number is None:
        raise not_found(run_id)
    bodies = _load_bodies(connection, number[0], after)
    # Last, because another process may end the run meanwhile: a log that leaves an item to the entries came with them.
    known = connection.execute("SELECT entries FROM runs WHERE id = ?", (run_id,)).fetchone()
    if known is None:
        raise not_found(run_id)
    found = decode_rows(bodies, known[0]) if bodies else []
    return [record for record in found if record.seq > after] if after >= 0 else found


def _load_bodies(connection: sqlite3.Connection, run: int, after: int) -> list[bytes]:
    """The rows of the log in which there is something behind event number `after`."""
    recent = read_recent(connection, run)  # before the log, which may get some of it meanwhile
    if recent and recent[-1].last > after:
        after = min(after, (connection.execute(_LAST, {"run": run}).fetchone()[0] or 0) - 1)  # they go on with its last row
    rows = connection.execute(EVENTS, {"run": run, "after": after}).fetchall()
    bodies: list[bytes] = [body for _, body in rows]
    if rows:
        bodies[-1] += b"".join([texts.body for texts in recent if texts.first > rows[-1][0]])
    return bodies


def load(connection: sqlite3.Connection, run_id: str) -> StoredRun:
    for row in connection.execute(f"{RUN} WHERE id = ?", (run_id,)):
        return _run(row)
    raise not_found(run_id)


def find_items(connection: sqlite3.Connection, ids: Sequence[str], tenant: str) -> dict[str, Item]:
    """Of several runs that hold an item, the newest has the last word. Raises `InvalidRequest` if too much must be read."""
    found: dict[str, Item] = {}
    size = 0
    for id in ids:
        if id not in found:
            for [entries] in connection.execute(HOLDING, (id, tenant)):
                size += len(entries)
                check_holding(size, len(ids))
                found |= pick_items(ids, [decode(entries, list[Entry])])
    return found


def load_history(connection: sqlite3.Connection, run_id: str, tenant: str | None) -> list[Entry]:
    links: dict[str, LinkRow] = {row[0]: row[1:] for row in connection.execute(LINKS, (run_id, tenant))}
    found: list[Entry] = []
    for entries, owner, conversation in order_links(run_id, links):
        if conversation is not None:
            upto = conversation.upto + 1
            items = list_documents(connection, ITEM, owner, conversation.id, upto, None, newest_first=True)
            found += read_conversation(reversed(items), conversation)
        found += entries
    return found


def measure_history(connection: sqlite3.Connection, run_id: str, tenant: str | None) -> int:
    size = 0
    for entries, owner, conversation in connection.execute(LINKED_BYTES, (run_id, tenant)).fetchall():
        size += entries or 0
        if conversation is not None:
            size += measure_documents(connection, ITEM, owner, decode(conversation, Conversation).id)
    return size


def measure_run(connection: sqlite3.Connection, run_id: str) -> int:
    found = connection.execute("SELECT number FROM runs WHERE id = ?", (run_id,)).fetchone()
    return 0 if found is None else int(connection.execute(RUN_BYTES, {"run": found[0]}).fetchone()[0])


def measure_documents(connection: sqlite3.Connection, kind: str, tenant: str, parent: str) -> int:
    return int(connection.execute(DOCUMENT_BYTES, (tenant, parent, kind)).fetchone()[0])


def list_runs(connection: sqlite3.Connection, limit: int, after: str | None, newest_first: bool, only: Filter) -> RunPage:
    runs: list[StoredRun] = []
    size = 0
    for row in find_runs(connection, RUN, limit + 1, after, newest_first, only):
        if len(runs) == limit or size > PAGE_BYTES:
            return RunPage(tuple(runs), has_more=True)
        runs.append(_run(row))
        size += sum([len(part) for part in row if isinstance(part, bytes)])
    return RunPage(tuple(runs), has_more=False)


def list_unfinished(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT id FROM runs WHERE status = 'in_progress' ORDER BY created_at, number"
    return [id for (id,) in connection.execute(query)]


def delete(connection: sqlite3.Connection, run_id: str) -> None:
    found = _find_doomed(connection, "id = ?", (run_id,))
    if not found:
        raise not_found(run_id)
    _delete_runs(connection, found)


def prune(connection: sqlite3.Connection, before: float, skip: Sequence[str]) -> Pruned:
    """Deletes some of the runs that ended before this time and that no other one continues, then what they continued."""
    # Whatever ended before it began before, and of that there is an index.
    old = "ended_at < ? AND created_at < ? AND NOT EXISTS (SELECT 1 FROM runs later WHERE later.tenant = runs.tenant"
    old += " AND later.parent = runs.id AND later.parent IS NOT NULL) AND id NOT IN (SELECT value FROM json_each(?))"
    values = (before, before, encode(skip))
    found = _find_doomed(connection, f"{old} ORDER BY created_at, number LIMIT {PRUNED_AT_ONCE}", values)
    count, damaged = 0, list[str]()
    while found:
        damaged += [run.id for run in found if run.held is None]
        gone = [run for run in found if run.held is not None]
        _delete_runs(connection, gone)
        count += len(gone)
        if count >= PRUNED_AT_ONCE:
            break
        parents = encode([run.parent for run in gone if run.parent is not None])
        found = _find_doomed(connection, f"id IN (SELECT value FROM json_each(?)) AND {old}", (parents, *values))
    return Pruned(count, tuple(damaged))


class _Doomed(Struct, frozen=True):
    """A run that is to be deleted; `held` are the ids of its items, None if that cannot be read."""

    number: int
    held: set[str] | None
    parent: str | None
    tenant: str
    id: str


def _find_doomed(connection: sqlite3.Connection, which: str, values: tuple[object, ...]) -> list[_Doomed]:
    found = connection.execute(f"SELECT number, entries, parent, tenant, id FROM runs WHERE {which}", values)
    return [_Doomed(number, find_held(entries), *rest) for number, entries, *rest in found]


def _delete_runs(connection: sqlite3.Connection, runs: Sequence[_Doomed]) -> None:
    for run in runs:
        if run.held is None:
            connection.execute("DELETE FROM items WHERE run = ?", (run.number,))  # without an index, so it is read as a whole
        else:
            connection.executemany("DELETE FROM items WHERE id = ? AND run = ?", [(id, run.number) for id in run.held])
        connection.execute(f"DELETE FROM segments WHERE {OF_RUN}", {"run": run.number})
        connection.execute("DELETE FROM summaries WHERE run = ?", (run.number,))
        beside = "DELETE FROM documents WHERE tenant = ? AND parent = '' AND id = ? AND kind = ?"
        connection.execute(beside, (run.tenant, run.id, RUN_METADATA))
        connection.execute("DELETE FROM runs WHERE number = ?", (run.number,))


def put(connection: sqlite3.Connection, documents: Sequence[Document], if_absent: bool) -> bool:
    """Writes all of them, or none; returns which."""
    connection.execute("SAVEPOINT put")
    is_written = all(put_document(connection, document, if_absent) for document in documents)
    if not is_written:
        connection.execute("ROLLBACK TO put")
    connection.execute("RELEASE put")
    return is_written


def swap(connection: sqlite3.Connection, document: Document, known: bytes) -> bool:
    """Replaces a body that is still the known one."""
    found = (document.tenant, document.parent, document.id, document.kind, known)
    statement = "UPDATE documents SET body = ? WHERE tenant = ? AND parent = ? AND id = ? AND kind = ? AND body = ?"
    return connection.execute(statement, (document.body, *found)).rowcount > 0


def get(connection: sqlite3.Connection, kind: str, id: str, tenant: str, parent: str) -> Document | None:
    query = f"{DOCUMENT} WHERE tenant = ? AND parent = ? AND id = ? AND kind = ?"
    row = connection.execute(query, (tenant, parent, id, kind)).fetchone()
    return None if row is None else Document(*row)


def remove(connection: sqlite3.Connection, kind: str, id: str, tenant: str, parent: str, number: int | None) -> bool:
    statement = "DELETE FROM documents WHERE tenant = ? AND parent = ? AND id = ? AND kind = ? AND number = coalesce(?, number)"
    if connection.execute(statement, (tenant, parent, id, kind, number)).rowcount == 0:
        return False
    if not parent:
        connection.execute("DELETE FROM documents WHERE tenant = ? AND parent = ?", (tenant, id))
    return True


def list_documents(
    connection: sqlite3.Connection,
    kind: str,
    tenant: str,
    parent: str,
    after: int | None,
    limit: int | None,
    newest_first: bool,
    most_bytes: int | None = None,
) -> list[Document]:
    condition = f"number {'<' if newest_first else '>'} ?" if after is not None else "? IS NULL"
    order = "DESC" if newest_first else "ASC"
    query = f"{DOCUMENT} WHERE tenant = ? AND parent = ? AND kind = ? AND {condition} ORDER BY number {order} LIMIT ?"
    found = connection.execute(query, (tenant, parent, kind, after, -1 if limit is None else limit))
    return cut_documents((Document(*row) for row in found), most_bytes)


def list_audit(
    connection: sqlite3.Connection, after: int | None, limit: int | None, newest_first: bool, call: str | None
) -> list[Link]:
    conditions: list[str] = [f"substr(body, 1, {len(ANCHOR)}) <> ?"]
    values: list[object] = [ANCHOR]
    if after is not None:
        conditions.append(f"number {'<' if newest_first else '>'} ?")
        values.append(after)
    if call is not None:
        conditions.append("call = ? AND call <> ''")
        values.append(call)
    order = "DESC" if newest_first else "ASC"
    query = f"{LINK} WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT ?"
    return [_link(row) for row in connection.execute(query, (*values, -1 if limit is None else limit))]


def read_chain(connection: sqlite3.Connection, chain: str, after: int | None, limit: int) -> list[Link]:
    place = "place" if chain else "number"
    conditions = ["chain = :chain", "chain <> ''" if chain else "TRUE", "TRUE" if after is None else f"{place} > :after"]
    query = f"{LINK} WHERE {' AND '.join(conditions)} ORDER BY {place} LIMIT :limit"
    return [_link(row) for row in connection.execute(query, {"chain": chain, "after": after, "limit": limit})]


def list_chains(connection: sqlite3.Connection) -> list[str]:
    oldest = "SELECT '' WHERE EXISTS (SELECT 1 FROM audit WHERE chain = '')"
    query = f"{oldest} UNION ALL SELECT * FROM (SELECT DISTINCT chain FROM audit WHERE chain <> '' ORDER BY chain)"
    return [chain for [chain] in connection.execute(query)]


def _link(row: tuple[int, str, bytes, bytes, str, int]) -> Link:
    number, call, body, hash, chain, place = row
    return Link(number, Note(body, call), hash, chain, place)


def _run(row: tuple[str, Status, float, str | None, str, int, bytes | None, bytes | None, str, bytes | None]) -> StoredRun:
    id, status, created_at, parent, model, background, response, entries, tenant, conversation = row
    answer = None if response is None else decode_response(response, entries)
    shared = None if conversation is None else decode(conversation, Conversation)
    return StoredRun(id, status, created_at, parent, model, bool(background), answer, tenant, shared)
