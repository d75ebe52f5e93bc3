"""Runs kept in a PostgreSQL database, which any number of processes on any number of machines may share.

`server` asks it, `writer` writes to it, `run_tables` and `batch` know its tables. The primary key of segments sees to it that a
log has one writer, whichever process that is.
"""

from asyncio import Future, gather, get_running_loop
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Self

from anyio import Lock
from msgspec import Struct

from mainspring.core.conversation_items import ITEM
from mainspring.core.errors import MainspringError, Malformed
from mainspring.core.events import Recorded, Status
from mainspring.core.history import Entry
from mainspring.core.items import Item, decode
from mainspring.core.spec import Conversation
from mainspring.core.stored_log import ENTERED
from mainspring.ports import (
    EVERY_RUN,
    PAGE_BYTES,
    RUN_METADATA,
    Document,
    Filter,
    Link,
    Note,
    Pruned,
    RunPage,
    RunSummary,
    Segment,
    Snapshot,
    StoredRun,
    SummaryPage,
    UsageGroup,
    UsageSum,
)
from mainspring.storage.follow import follow_log
from mainspring.storage.location import Location
from mainspring.storage.postgres.audit_questions import list_audit, list_chains, read_chain
from mainspring.storage.postgres.batch import DOCUMENT_COLUMNS, document_values, family_of, key_of
from mainspring.storage.postgres.leases import PostgresLeases
from mainspring.storage.postgres.listener import Listener
from mainspring.storage.postgres.postgres_server import Connection, Row, Server
from mainspring.storage.postgres.run_tables import CHANGED, RUNS, escape, make_key, unescape
from mainspring.storage.postgres.summary_questions import (
    STATES,
    choose_runs,
    find_summaries,
    sum_usage,
    summarize,
    take,
)
from mainspring.storage.postgres.writer import Undone, Writer
from mainspring.storage.segment import (
    PRUNED_AT_ONCE,
    RECORD_BYTES,
    LinkRow,
    check_holding,
    decode_response,
    decode_rows,
    find_held,
    not_found,
    order_links,
    pick_items,
    read_conversation,
)

_COLUMNS = "id, status, created_at, parent, model, background, response, entries, tenant, conversation"
_RUN = f"SELECT {_COLUMNS} FROM mainspring_runs"
# How large a response is, is known without reading it.
_PAGE = f"""
    WITH found AS (
        SELECT number, created_at, octet_length(response) + octet_length(entries) AS size
        FROM mainspring_runs {{join}} {{where}} {{sort}} LIMIT {{limit}}
    ),
    counted AS (
        SELECT number, count(*) OVER () AS found,
            sum(size) OVER ({{sort}} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM found
    )
    SELECT {_COLUMNS}, found
    FROM counted JOIN mainspring_runs USING (number) WHERE coalesce(before, 0) <= {{most}}::bigint {{sort}}
"""
# A run without any has one row with nothing in it, and what is no run has none. Not in order: large values are not sorted there.
_EVENTS = """
    SELECT segment.first, segment.body FROM mainspring_runs run
    LEFT JOIN mainspring_segments segment ON segment.run = run.number AND segment.last > $2 WHERE run.key = $1
"""
_HOLDING = """
    SELECT DISTINCT found.number, found.size FROM unnest($1::bytea[]) AS wanted (key), LATERAL (
        SELECT run.number, octet_length(run.entries) AS size
        FROM mainspring_items item JOIN mainspring_runs run ON run.number = item.run
        WHERE item.key = wanted.key AND run.tenant = $2 ORDER BY item.run DESC LIMIT 1
    ) found ORDER BY found.number
"""
# UNION, not UNION ALL: a link that has been followed is not followed again.
_LINKED = """
    WITH RECURSIVE links (number, parent_key) AS (
        SELECT number, parent_key FROM mainspring_runs WHERE key = $1 AND tenant = coalesce($2, tenant)
        UNION
        SELECT run.number, run.parent_key FROM links JOIN mainspring_runs run ON run.key = links.parent_key
    )
"""
_LINKS = f"""
    {_LINKED}
    SELECT run.id, run.parent, run.entries, run.tenant, run.conversation FROM links JOIN mainspring_runs run USING (number)
"""
# The length of a value is told without reading it.
_LINKED_BYTES = f"""
    {_LINKED}
    SELECT octet_length(run.entries), run.tenant, run.conversation FROM links JOIN mainspring_runs run USING (number)
"""
# A record takes more room in memory than in the database, and the entries have the texts of logs.
_RUN_BYTES = f"""
    WITH found AS (SELECT number, octet_length(entries) AS size FROM mainspring_runs WHERE key = $1)
    SELECT coalesce(sum(octet_length(body) + {RECORD_BYTES} * (last - first + 1)), 0)::bigint
        + coalesce((SELECT size FROM found), 0) FROM mainspring_segments WHERE run = (SELECT number FROM found)
"""
_DOCUMENT_BYTES = "SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM mainspring_documents WHERE folder = $1"
# How long it may take to see an event of another process that nothing was told of.
SEEN_WITHIN = 1.0
_DOCUMENT = "SELECT kind, id, body, tenant, parent, number FROM mainspring_documents"
# How large a document is, is known without reading it.
_WITHIN = """
    JOIN (
        SELECT number, sum(octet_length(body))
            OVER (ORDER BY number {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM mainspring_documents {found}
    ) sized USING (number) WHERE coalesce(before, 0) <= {most}::bigint ORDER BY number {order}
"""
_LOCK_PARENTS = """
    SELECT family FROM mainspring_documents WHERE family = ANY($1::bytea[]) AND parent = '' ORDER BY number FOR NO KEY UPDATE
"""
_PUT = f"""
    INSERT INTO mainspring_documents ({DOCUMENT_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (key)
"""
# Runs that ended before a time, and that no other one continues. They began before it as well, and of that there is an index.
_OLD = f"""
    number IN (
        SELECT number FROM mainspring_runs run
        WHERE ended_at < $1 AND created_at < $1 AND key <> ALL($2::bytea[]) {{some}} AND NOT EXISTS (
            SELECT FROM mainspring_runs later WHERE later.parent_key = run.key AND later.tenant = run.tenant
        ) ORDER BY created_at, number LIMIT {PRUNED_AT_ONCE} FOR UPDATE SKIP LOCKED
    )
"""


class PostgresStore:
    """A `ports.Store` in a database. Making one has no effect; it is used between `open` and `close`, in one event loop.

    Cancelling the future of an append does not take the append back.
    """

    is_durable = True

    def __init__(self, location: Location) -> None:
        self._server = Server(location)
        self._writer = Writer(self._server)
        self._listener = Listener(self._server)
        self.leases = PostgresLeases(self._server, self._listener)
        self._opening = Lock()

    async def open(self) -> None:
        """Connects, and makes the tables if they are missing. Does nothing if it is open.

        Raises `StoreError` that says what to do if the server cannot be reached or used: no such database, wrong password, a
        replica, too old, no rights, or tables that a newer version has made.
        """
        async with self._opening:  # whoever comes meanwhile waits until it is
            if self._server.is_open:
                return
            await self._server.open(RUNS)
            try:
                await self._writer.open()
            except BaseException:
                self._server.close()
                raise

    async def close(self) -> None:
        """Finishes what has begun, then lets the connections go."""
        if self._server.is_open:
            self._listener.close()
            await self._writer.close()
            self._server.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> Future[None]:
        try:
            return self._writer.append(Segment(run_id, tuple(records), snapshot, tuple(notes)))
        except Malformed as error:
            refused: Future[None] = get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def append_all(self, segments: Sequence[Segment]) -> Future[list[MainspringError | None]]:
        # They fail with nothing else.
        return gather(*[self._writer.append(each) for each in segments], return_exceptions=True)  # type: ignore[return-value]

    async def _fetch(self, statement: str, *values: object) -> Sequence[Row]:
        await self._writer.catch_up()
        return await self._server.fetch(statement, *values)

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        key = make_key(run_id)
        rows = await self._fetch(_EVENTS, key, after)
        if not rows:
            raise not_found(run_id)
        bodies = [body for first, body in sorted(rows, key=itemgetter(0)) if body is not None]
        entries = None
        if any(ENTERED in body for body in bodies):
            # Last: what a log leaves to the entries came with them.
            known = await self._fetch("SELECT entries FROM mainspring_runs WHERE key = $1", key)
            if not known:
                raise not_found(run_id)
            entries = known[0][0]
        with self._server.explain_errors():
            return [record for record in decode_rows(bodies, entries) if record.seq > after]

    async def follow(self, run_id: str, after: int = -1) -> AsyncGenerator[list[Recorded], None]:
        async with self._listener.hear(make_key(run_id)) as wait:
            await wait(0)  # to be told of what comes after the first look
            async with aclosing(follow_log(self, run_id, after, wait, SEEN_WITHIN)) as log:
                async for records in log:
                    yield records

    async def load(self, run_id: str) -> StoredRun:
        for row in await self._fetch(f"{_RUN} WHERE key = $1", make_key(run_id)):
            with self._server.explain_errors():
                return _read_run(row)
        raise not_found(run_id)

    async def items(self, ids: Sequence[str], *, tenant: str = "") -> dict[str, Item]:
        """Of several runs that hold an item, the newest has the last word. Raises `InvalidRequest` if too much must be read."""
        found = await self._fetch(_HOLDING, [make_key(id) for id in set(ids)], escape(tenant))
        check_holding(sum([size for _, size in found]), len(ids))
        query = "SELECT entries FROM mainspring_runs WHERE number = ANY($1::bigint[]) ORDER BY number"
        rows = await self._fetch(query, [number for number, _ in found]) if found else ()
        with self._server.explain_errors():
            return pick_items(ids, [decode(entries, list[Entry]) for [entries] in rows])

    async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
        rows = await self._fetch(_LINKS, make_key(run_id), None if tenant is None else escape(tenant))
        links: dict[str, LinkRow] = {
            unescape(id): (None if parent is None else unescape(parent), entries, unescape(owner), conversation)
            for id, parent, entries, owner, conversation in rows
        }
        found: list[Entry] = []
        with self._server.explain_errors():
            for known, owner, conversation in order_links(run_id, links):
                if conversation is not None:
                    upto = conversation.upto + 1
                    items = await self.documents(ITEM, tenant=owner, parent=conversation.id, after=upto, newest_first=True)
                    found += read_conversation(reversed(items), conversation)
                found += known
        return found

    async def measure_history(self, run_id: str, *, tenant: str | None = None) -> int:
        rows = await self._fetch(_LINKED_BYTES, make_key(run_id), None if tenant is None else escape(tenant))
        size = sum([entries or 0 for entries, _, _ in rows])
        for _, owner, conversation in rows:
            if conversation is not None:
                shared = decode(conversation, Conversation).id
                size += await self.measure_documents(ITEM, tenant=unescape(owner), parent=shared)
        return size

    async def measure_run(self, run_id: str) -> int:
        [[size]] = await self._fetch(_RUN_BYTES, make_key(run_id))
        return int(size)

    async def measure_documents(self, kind: str, *, tenant: str = "", parent: str = "") -> int:
        [[size]] = await self._fetch(_DOCUMENT_BYTES, make_key(tenant, parent, kind))
        return int(size)

    async def list(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> RunPage:
        found = await choose_runs(self._fetch, after, newest_first, only)
        values = found.values
        query = _PAGE.format(
            join=found.join,
            where=found.where,
            sort=found.sort,
            limit=take(values, limit + 1),
            most=take(values, PAGE_BYTES),
        )
        rows = await self._fetch(query, *values)
        with self._server.explain_errors():
            runs = [_read_run(row[:-1]) for row in rows[:limit]]
        return RunPage(tuple(runs), has_more=bool(rows) and rows[0][-1] > len(runs))

    async def summarize(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> SummaryPage:
        return await summarize(self._fetch, limit, after, newest_first, only)

    async def find_summaries(self, numbers: Sequence[int]) -> Sequence[RunSummary]:
        return await find_summaries(self._fetch, numbers)

    async def list_states(self, after: int) -> Mapping[int, Status]:
        return {row[0]: row[1] for row in await self._fetch(STATES, after)}

    async def find_last_number(self) -> int:
        [[number]] = await self._fetch("SELECT coalesce(max(number), 0) FROM mainspring_runs")
        return int(number)

    async def wait_for_change(self, seconds: float) -> None:
        await self._listener.wait_for_any(CHANGED, min(seconds, SEEN_WITHIN))

    async def sum_usage(self, by: UsageGroup, only: Filter = EVERY_RUN) -> Sequence[UsageSum]:
        return await sum_usage(self._fetch, by, only)

    async def list_unfinished(self) -> Sequence[str]:
        query = "SELECT id FROM mainspring_runs WHERE status = 'in_progress' ORDER BY created_at, number"
        return [unescape(id) for [id] in await self._fetch(query)]

    async def delete(self, run_id: str) -> None:
        async def delete(connection: Connection) -> bool:
            gone = await _delete_runs(connection, "key = $1", make_key(run_id))
            if gone.damaged:  # without an index, so the table is read as a whole
                await connection.execute("DELETE FROM mainspring_items WHERE run = ANY($1::bigint[])", gone.numbers)
            if not gone.numbers:
                raise Undone(False)
            return True

        if not await self._writer.transact(delete):
            raise not_found(run_id)

    async def prune(self, before: float, *, skip: Sequence[str] = ()) -> Pruned:
        kept = [make_key(run_id) for run_id in skip]

        async def prune(connection: Connection) -> Pruned:
            gone = await _delete_runs(connection, _OLD.format(some=""), before, kept)
            count = 0
            while gone.numbers:
                if gone.damaged:
                    raise Undone(Pruned(0, tuple(gone.damaged)))  # all of it is done again, without these
                count += len(gone.numbers)
                if count >= PRUNED_AT_ONCE:
                    break
                parents = [parent for parent in gone.parents if parent is not None]
                gone = await _delete_runs(connection, _OLD.format(some="AND run.key = ANY($3::bytea[])"), before, kept, parents)
            if not count:
                raise Undone(Pruned())
            return Pruned(count)

        return await self._writer.transact(prune)

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        if len(documents) == 1:
            return await self._writer.put(documents[0], if_absent=if_absent)
        tops = {family_of(document) for document in documents if not document.parent}
        families = {family_of(document) for document in documents if document.parent} - tops
        otherwise = "DO NOTHING RETURNING 1" if if_absent else "DO UPDATE SET body = excluded.body RETURNING 1"

        async def write(connection: Connection) -> bool:
            rows = await connection.fetch(_LOCK_PARENTS, list(families)) if families else ()
            if families - {family for [family] in rows}:
                raise Undone(False)
            for document in documents:
                if await connection.fetchval(_PUT + otherwise, *document_values(document)) is None:
                    raise Undone(False)
            return True

        return await self._writer.transact(write)

    async def swap(self, document: Document, known: bytes) -> bool:
        statement = "UPDATE mainspring_documents SET body = $3 WHERE key = $1 AND body = $2 RETURNING TRUE"

        async def swap(connection: Connection) -> bool:
            return bool(await connection.fetchval(statement, key_of(document), known, document.body))

        return await self._writer.transact(swap)

    async def read_clock(self) -> float:
        rows = await self._fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(rows[0][0])

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        rows = await self._fetch(f"{_DOCUMENT} WHERE key = $1", make_key(tenant, parent, id, kind))
        return _read_document(rows[0]) if rows else None

    async def remove(self, kind: str, id: str, *, tenant: str = "", parent: str = "", number: int | None = None) -> bool:
        document = Document(kind, id, b"", tenant, parent)

        async def remove(connection: Connection) -> bool:
            gone = "DELETE FROM mainspring_documents WHERE key = $1 AND number = coalesce($2, number) RETURNING 1"
            if await connection.fetchval(gone, key_of(document), number) is None:
                raise Undone(False)
            if not parent:
                # In a statement of its own, which sees what was added until the row above was locked.
                inner = "DELETE FROM mainspring_documents WHERE family = $1 AND parent <> ''"
                await connection.execute(inner, family_of(document))
            return True

        return await self._writer.transact(remove)

    async def documents(
        self,
        kind: str,
        *,
        tenant: str = "",
        parent: str = "",
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> Sequence[Document]:
        values: list[object] = [make_key(tenant, parent, kind)]
        behind = "" if after is None else f"AND number {'<' if newest_first else '>'} {take(values, after)}"
        order = "DESC" if newest_first else "ASC"
        found = f"WHERE folder = $1 {behind} ORDER BY number {order} LIMIT {take(values, limit)}"
        if most_bytes is not None:
            found = _WITHIN.format(found=found, order=order, most=take(values, most_bytes))
        query = f"{_DOCUMENT} {found}"
        return [_read_document(row) for row in await self._fetch(query, *values)]

    async def note(self, notes: Sequence[Note]) -> None:
        if notes:
            await self._writer.append(Segment("", (), notes=tuple(notes)))

    async def audit(
        self, *, after: int | None = None, limit: int | None = None, newest_first: bool = False, call: str | None = None
    ) -> Sequence[Link]:
        return await list_audit(self._fetch, after=after, limit=limit, newest_first=newest_first, call=call)

    async def read_chain(self, chain: str, *, after: int | None = None, limit: int) -> Sequence[Link]:
        return await read_chain(self._fetch, chain, after, limit)

    async def list_chains(self) -> Sequence[str]:
        return await list_chains(self._fetch)


class _Deleted(Struct, frozen=True):
    """Runs that are deleted: their numbers, the keys of what each has continued, and the ids of those that cannot be read, whose
    items are still there."""

    numbers: list[int]
    parents: list[bytes | None]
    damaged: list[str]


async def _delete_runs(connection: Connection, which: str, *values: object) -> _Deleted:
    # This waits for whoever is adding to a log; what that has added is seen by the next statement.
    rows = await connection.fetch(
        f"DELETE FROM mainspring_runs WHERE {which} RETURNING number, entries, parent_key, tenant, id", *values
    )
    numbers, parents = [row["number"] for row in rows], [row["parent_key"] for row in rows]
    ids = [find_held(row["entries"]) for row in rows]
    damaged = [unescape(row["id"]) for row, found in zip(rows, ids, strict=True) if found is None]
    if not rows:
        return _Deleted(numbers, parents, damaged)
    held = [make_key(id) for found in ids if found is not None for id in found]
    rest = """
        WITH items AS (DELETE FROM mainspring_items WHERE key = ANY($2::bytea[]) AND run = ANY($1::bigint[])),
        lines AS (DELETE FROM mainspring_summaries WHERE run = ANY($1::bigint[])),
        beside AS (DELETE FROM mainspring_documents WHERE key = ANY($3::bytea[]))
        DELETE FROM mainspring_segments WHERE run = ANY($1::bigint[])
    """
    beside = [make_key(unescape(row["tenant"]), "", unescape(row["id"]), RUN_METADATA) for row in rows]
    await connection.execute(rest, numbers, held, beside)
    return _Deleted(numbers, parents, damaged)


def _read_run(row: Row) -> StoredRun:
    id, status, created_at, parent, model, background, response, entries, tenant, conversation = row
    answer = None if response is None else decode_response(response, entries)
    shared = None if conversation is None else decode(conversation, Conversation)
    link = None if parent is None else unescape(parent)
    return StoredRun(unescape(id), status, created_at, link, unescape(model), background, answer, unescape(tenant), shared)


def _read_document(row: Row) -> Document:
    kind, id, body, tenant, parent, number = row
    return Document(unescape(kind), unescape(id), body, unescape(tenant), unescape(parent), number)
