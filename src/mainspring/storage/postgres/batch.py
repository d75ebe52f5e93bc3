"""Many writes as one statement: segments of logs, documents and notes, each of them refused for itself.

Theory of operation. A batch is a statement of common table expressions over arrays, with only the parts that it needs. Its first
part locks the row of the writer, if that still has the epoch of this connection; its last part writes into it which jobs were
refused, so that the outcome can be found out after a cut. In between: runs that begin are inserted; of those that go on, the row
is locked against deletion and the last segment looked up. A segment is then inserted at the next number, where the primary key
refuses all but one of several drivers. Only runs whose segment was inserted get their end, items, documents and notes.

A log has at most one row in a batch: segments of one run that follow each other become one. What does not fit into a batch, such
as a second write of one document, waits for the next. A document's number is drawn while the document that it belongs to is
locked, so within one the numbers follow the commits. The audit's hashes are computed by the server: who is refused is known only
there.
"""

from asyncio import Future
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from msgspec import Struct

from mainspring.core.events import Recorded
from mainspring.core.items import Item, encode
from mainspring.core.spec import Conversation
from mainspring.core.stored_log import encode_log
from mainspring.ports import Document, Note, Segment
from mainspring.storage.postgres.run_tables import CHANGED, CLAIMABLE, escape, make_key
from mainspring.storage.segment import (
    MANY_DELTAS,
    UNENDED,
    collect_item_ids,
    encode_response,
    find_driver,
    find_ending,
    find_opening,
    shrink_rows,
    summarize_ending,
    summarize_opening,
)

MOST_JOBS: Final = 200
MOST_NOTES: Final = 100  # each is joined with all of them


class Job(Struct, eq=False):
    """One thing to write. Its future gets None or True when it is durable, False if a document was not to be put."""

    future: "Future[Any]"
    since: float
    segment: Segment | None = None
    document: Document | None = None
    if_absent: bool = False
    ticket: int = 0


class _Chain(Struct, eq=False):
    """Segments of one run that follow each other, and are written as one."""

    segments: list[Segment]
    jobs: list[int]

    @property
    def has_more_rows(self) -> bool:
        """Whether a log ends here that has other rows, and enough in it to make them one."""
        first, last = self.segments[0].records[0], self.segments[-1]
        return last.snapshot is not None and first.seq > 0 and last.records[-1].seq >= MANY_DELTAS

    def is_continued_by(self, segment: Segment) -> bool:
        last = self.segments[-1]
        return last.snapshot is None and last.records[-1].seq + 1 == segment.records[0].seq


class Batch:
    """Jobs that can be one statement."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.chains: dict[str, _Chain] = {}
        self._written: set[bytes] = set()
        self._notes = 0

    @property
    def has_notes(self) -> bool:
        return self._notes > 0

    def add(self, job: Job) -> bool:
        """Takes the job, or says that it must wait for the next batch."""
        segment = job.segment
        documents = [job.document] if job.document is not None else []
        if segment is not None and segment.snapshot is not None:
            documents = _last_of_each(segment.snapshot.documents)
        if len(self.jobs) >= MOST_JOBS or (segment is not None and not self._fits(segment)) or not self._claim(documents):
            return False
        if segment is not None:
            self._notes += len(segment.notes)
            if segment.records:
                chain = self.chains.setdefault(segment.run_id, _Chain([], []))
                chain.segments.append(segment)
                chain.jobs.append(len(self.jobs))
        self.jobs.append(job)
        return True

    def _fits(self, segment: Segment) -> bool:
        if segment.notes and self._notes and self._notes + len(segment.notes) > MOST_NOTES:
            return False
        chain = self.chains.get(segment.run_id) if segment.records else None
        return chain is None or chain.is_continued_by(segment)

    def _claim(self, documents: Sequence[Document]) -> bool:
        """Whether nothing else in this batch writes these documents, or those that they belong to."""
        keys = {key_of(document) for document in documents}
        families = {family_of(document) for document in documents if document.parent}
        if not self._written.isdisjoint(keys | families):
            return False
        self._written |= keys | {family_of(document) for document in documents if not document.parent}
        return True


def key_of(document: Document) -> bytes:
    return make_key(document.tenant, document.parent, document.id, document.kind)


def family_of(document: Document) -> bytes:
    return make_key(document.tenant, document.parent or document.id)


def document_values(document: Document) -> tuple[bytes, bytes, bytes, str, str, str, str, bytes]:
    """The columns of `DOCUMENT_COLUMNS`."""
    tenant, parent, id, kind = document.tenant, document.parent, document.id, document.kind
    folder = make_key(tenant, parent, kind)
    texts = (escape(tenant), escape(parent), escape(id), escape(kind))
    return (key_of(document), folder, family_of(document), *texts, document.body)


DOCUMENT_COLUMNS: Final = "key, folder, family, tenant, parent, id, kind, body"
_DOCUMENT_TYPES: Final = "bytea bytea bytea text text text text bytea"


class _Rows:
    """Arrays for a statement: rows in, columns out."""

    def __init__(self) -> None:
        self.columns: list[list[list[object]]] = []
        self.parts: list[str] = []

    def add(self, part: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self.parts.append(part)
            self.columns.append([list(column) for column in zip(*rows, strict=True)])


class BatchStatement(Struct, frozen=True):
    text: str
    values: list[Any]


def build_statement(batch: Batch, writer: bytes, epoch: int, number: int, anchor: Note | None = None) -> BatchStatement:
    """The statement that writes the batch, with an anchor before its notes. Its one row has the places of the jobs that were
    refused; no row means that another connection of this writer has taken over. Raises what cannot be encoded."""
    rows = _Rows()
    openings, segments, endings, items, lines, line_ends = [], [], [], [], [], []
    is_claimable = False
    documents: list[Sequence[object]] = []
    notes: list[Sequence[object]] = [] if anchor is None else [(None, *_note_values(anchor))]
    for run_id, chain in batch.chains.items():
        key = make_key(run_id)
        first, last = chain.segments[0], chain.segments[-1]
        records = first.records if first is last else [record for each in chain.segments for record in each.records]
        ended: tuple[object, ...] = ("in_progress", None, None, None)
        driver = find_driver(first)
        entered: Sequence[Item] = ()
        if ending := find_ending(last):
            told = ending.snapshot
            entered = [entry.item for entry in told.entries]
            ended = (ending.status, ending.at, encode_response(told), encode(told.entries))
            items += [(make_key(id), key) for id in collect_item_ids(told.entries)]
            documents += [(key, place, *document_values(each)) for place, each in enumerate(_last_of_each(told.documents))]
        segments.append((chain.jobs[0], key, records[0].seq, records[-1].seq, _encode_row(records, entered)))
        if opening := find_opening(first):
            begun = _opening_values(opening.id, records, opening.conversation)
            openings.append((key, *begun, *ended, None if ending else driver))
            lines.append((key, *_line_values(first, last if ending else None)))
            is_claimable |= not ending and driver is None
        elif ending:
            endings.append((key, *ended))
            line_ends.append((key, *_end_values(last)))
        notes += [(key, *_note_values(note)) for each in chain.segments for note in each.notes]
    puts: list[Sequence[object]] = []
    absent: list[Sequence[object]] = []
    for place, job in enumerate(batch.jobs):
        if job.document is not None:
            (absent if job.if_absent else puts).append((place, *document_values(job.document)))
        elif job.segment is not None and not job.segment.records:
            notes += [(None, *_note_values(note)) for note in job.segment.notes]
    rows.add("openings", openings)
    rows.add("segments", segments)
    rows.add("endings", endings)
    rows.add("lines", lines)
    rows.add("line_ends", line_ends)
    rows.add("items", items)
    rows.add("ended_documents", documents)
    rows.add("puts", puts)
    rows.add("absent", absent)
    rows.add("notes", notes)
    columns = [column for table in rows.columns for column in table]
    return BatchStatement(_compose(tuple(rows.parts), is_claimable), [writer, epoch, number, *columns])


def _encode_row(records: Sequence[Recorded], entered: Sequence[Item]) -> bytes:
    """The records as a row of their log. The one that ends it is given the items of the run, and leaves them to the entries."""
    body = encode_log(records, entered=entered)
    return (shrink_rows([body], entered) or body) if entered and len(records) >= MANY_DELTAS else body


def _last_of_each(documents: Sequence[Document]) -> list[Document]:
    return list({key_of(document): document for document in documents}.values())


def _opening_values(id: str, records: Sequence[Recorded], conversation: Conversation | None) -> tuple[object, ...]:
    spec = records[0].event.spec  # type: ignore[union-attr]  # a log begins with `RunStarted`
    parent, parent_key = (None, None) if spec.parent is None else (escape(spec.parent), make_key(spec.parent))
    shared = (None, None) if conversation is None else (encode(conversation), make_key(conversation.id))
    told = (escape(spec.model), spec.background, escape(spec.tenant))
    return (escape(id), parent, parent_key, *told, *shared, records[0].at)


def _line_values(first: Segment, last: Segment | None) -> tuple[object, ...]:
    owner, begun_at, agent, caller, prompt = summarize_opening(first)
    ended = _end_values(last) if last is not None else UNENDED
    return (escape(owner), begun_at, escape(agent), escape(caller), escape(prompt), *ended)


def _end_values(last: Segment) -> tuple[object, ...]:
    told = summarize_ending(last)
    return told._replace(error=escape(told.error))


def _note_values(note: Note) -> tuple[object, ...]:
    call = note.call.encode()
    return escape(note.call), make_key(note.call) if call else None, len(call).to_bytes(4) + call, note.body


_TABLES: Final = {
    "openings": (
        "key id parent parent_key model background tenant conversation conversation_key created_at "
        "status ended_at response entries driver",
        "bytea text text bytea text bool text bytea bytea float8 text float8 bytea bytea text",
    ),
    "segments": ("place key first last body", "int bytea int int bytea"),
    "endings": ("key status ended_at response entries", "bytea text float8 bytea bytea"),
    "lines": (
        "key owner begun_at agent caller prompt reason input_tokens output_tokens error waits_until",
        "bytea text float8 text text text text int8 int8 text float8",
    ),
    "line_ends": ("key reason input_tokens output_tokens error waits_until", "bytea text int8 int8 text float8"),
    "items": ("key run_key", "bytea bytea"),
    "ended_documents": (f"run_key place {DOCUMENT_COLUMNS.replace(',', '')}", f"bytea int {_DOCUMENT_TYPES}"),
    "puts": (f"place {DOCUMENT_COLUMNS.replace(',', '')}", f"int {_DOCUMENT_TYPES}"),
    "absent": (f"place {DOCUMENT_COLUMNS.replace(',', '')}", f"int {_DOCUMENT_TYPES}"),
    "notes": ("run_key call call_key head body", "bytea text bytea bytea bytea"),
}
_OPENED = """opened AS (
    INSERT INTO mainspring_runs ({columns}) SELECT {values} FROM fence, openings
    ON CONFLICT (key) DO NOTHING RETURNING number, key
)"""
_GOING = """going AS MATERIALIZED (
    SELECT run.number, segment.key FROM fence, segments segment JOIN mainspring_runs run ON run.key = segment.key
    WHERE segment.first > 0 AND run.ended_at IS NULL AND segment.first =
        (SELECT last + 1 FROM mainspring_segments WHERE run = run.number ORDER BY mainspring_segments.first DESC LIMIT 1)
    FOR KEY SHARE OF run
)"""
_ADDED = """added AS (
    INSERT INTO mainspring_segments (run, first, last, body)
    SELECT found.number, segment.first, segment.last, segment.body FROM ({found}) found JOIN segments segment USING (key)
    ON CONFLICT DO NOTHING RETURNING run
), stored AS MATERIALIZED (
    SELECT found.number, found.key FROM ({found}) found JOIN added ON added.run = found.number
)"""
_ENDED = """ended AS (
    UPDATE mainspring_runs run
    SET status = ending.status, ended_at = ending.ended_at, response = ending.response, entries = ending.entries,
        driver = NULL, is_cancelled = FALSE
    FROM endings ending JOIN stored USING (key) WHERE run.number = stored.number
)"""
_LINED = """lined AS (
    INSERT INTO mainspring_summaries (run, {columns})
    SELECT stored.number, {columns} FROM lines line JOIN stored USING (key)
)"""
_LINE_ENDED = """line_ended AS (
    UPDATE mainspring_summaries summary
    SET reason = line.reason, input_tokens = line.input_tokens, output_tokens = line.output_tokens, error = line.error,
        waits_until = line.waits_until
    FROM line_ends line JOIN stored USING (key) WHERE summary.run = stored.number
)"""
_HELD = """held AS (
    INSERT INTO mainspring_items (key, run)
    SELECT item.key, stored.number FROM items item JOIN stored ON stored.key = item.run_key
)"""
_PARENTS = """parents AS MATERIALIZED (
    SELECT parent.family FROM mainspring_documents parent
    WHERE parent.parent = '' AND parent.family IN ({families}) ORDER BY parent.number FOR NO KEY UPDATE
)"""
_PUT = """{name} AS (
    INSERT INTO mainspring_documents ({columns}) SELECT {values} FROM fence, {table} document {only}
    WHERE (document.parent = '' OR document.family IN (SELECT family FROM parents)) ORDER BY document.place
    ON CONFLICT (key) {otherwise} RETURNING key
)"""
# The chain of this writer. Nobody else adds to it, and this one has locked its row.
_CHAINED = """noted AS MATERIALIZED (
    SELECT row_number() OVER () AS step, note.call, note.call_key, note.head, note.body
    FROM fence, notes note {only}
), head AS MATERIALIZED (
    SELECT coalesce(place, number) AS place, hash FROM mainspring_audit WHERE chain = encode($1, 'hex')
    ORDER BY coalesce(place, number) DESC LIMIT 1
), chain (step, place, call, call_key, body, hash) AS (
    SELECT 0::bigint, coalesce((SELECT place FROM head), 0), NULL::text, NULL::bytea, NULL::bytea,
        coalesce((SELECT hash FROM head), sha256(convert_to(encode($1, 'hex'), 'UTF8'))) FROM fence
    UNION ALL
    SELECT noted.step, chain.place + 1, noted.call, noted.call_key, noted.body,
        sha256(chain.hash || int8send(chain.place + 1) || noted.head || noted.body)
    FROM chain JOIN noted ON noted.step = chain.step + 1
), audited AS (
    INSERT INTO mainspring_audit (chain, place, call, call_key, body, hash)
    SELECT encode($1, 'hex'), place, call, call_key, body, hash FROM chain WHERE step > 0 ORDER BY step
), chained AS (
    INSERT INTO mainspring_audit_chains SELECT encode($1, 'hex') FROM chain WHERE step = 1 ON CONFLICT DO NOTHING
)"""
_TOLD = """told AS (
    UPDATE mainspring_writers SET batch = $3, refused = ARRAY({refused}), seen_at = now()
    FROM fence WHERE id = $1 RETURNING refused
) SELECT refused{called} FROM told"""
_CALLED = """called AS (
    SELECT pg_notify('mainspring_' || encode(stored.key, 'hex'), '')
    FROM stored JOIN mainspring_followed followed ON followed.key = stored.key WHERE followed.until > now()
    {or_offered}
)"""
_SHOWN = f"""UNION ALL SELECT pg_notify('{CHANGED}', '')
    FROM mainspring_followed followed WHERE followed.key = '\\x{make_key(CHANGED).hex()}' AND followed.until > now()"""
_OFFERED = f"UNION ALL SELECT pg_notify('{CLAIMABLE}', '')"


@cache
def _compose(parts: tuple[str, ...], is_claimable: bool) -> str:
    """The statement with these tables among its arguments."""
    made: list[str] = ["fence AS MATERIALIZED (SELECT FROM mainspring_writers WHERE id = $1 AND epoch = $2 FOR UPDATE)"]
    place = 4
    for part in parts:
        names, types = (text.split() for text in _TABLES[part])
        arrays = ", ".join([f"${place + offset}::{kind}[]" for offset, kind in enumerate(types)])
        place += len(types)
        made.append(f"{part} ({', '.join(names)}) AS (SELECT * FROM unnest({arrays}))")
    refused: list[str] = []
    if "segments" in parts:
        found = ["SELECT number, key FROM going"]
        if "openings" in parts:
            columns = _TABLES["openings"][0].replace(" ", ", ")
            values = ", ".join([f"openings.{name}" for name in _TABLES["openings"][0].split()])
            made.append(_OPENED.format(columns=columns, values=values))
            found.append("SELECT number, key FROM opened")
        made += [_GOING, _ADDED.format(found=" UNION ALL ".join(found))]
        shown = _SHOWN if "openings" in parts or "endings" in parts else ""
        made.append(_CALLED.format(or_offered=shown + (_OFFERED if is_claimable else "")))
        refused.append("SELECT place FROM segments WHERE key NOT IN (SELECT key FROM stored)")
    made += [_ENDED] if "endings" in parts else []
    if "lines" in parts:
        made.append(_LINED.format(columns=", ".join(_TABLES["lines"][0].split()[1:])))
    made += [_LINE_ENDED] if "line_ends" in parts else []
    made += [_HELD] if "items" in parts else []
    made += _compose_documents(parts, refused)
    if "notes" in parts:
        only = "WHERE note.run_key IS NULL"
        made.append(_CHAINED.format(only=f"{only} OR note.run_key IN (SELECT key FROM stored)" if "segments" in parts else only))
    told = _TOLD.format(
        refused=" UNION ALL ".join(refused) or "SELECT 0 WHERE FALSE",
        called=", (SELECT count(*) FROM called)" if "segments" in parts else "",
    )
    return f"WITH RECURSIVE {', '.join(made)}, {told}"


def _compose_documents(parts: tuple[str, ...], refused: list[str]) -> list[str]:
    tables = [part for part in ("ended_documents", "puts", "absent") if part in parts]
    if not tables:
        return []
    families = " UNION ALL ".join([f"SELECT family FROM {table} WHERE parent <> ''" for table in tables])
    made = [_PARENTS.format(families=families)]
    values = ", ".join([f"document.{name}" for name in DOCUMENT_COLUMNS.split(", ")])
    for table in tables:
        is_ended = table == "ended_documents"
        otherwise = "DO NOTHING" if table == "absent" else "DO UPDATE SET body = excluded.body"
        only = "JOIN stored ON stored.key = document.run_key" if is_ended else ""
        written = f"written_{table}"
        made.append(
            _PUT.format(name=written, columns=DOCUMENT_COLUMNS, values=values, table=table, only=only, otherwise=otherwise)
        )
        if not is_ended:
            refused.append(f"SELECT place FROM {table} WHERE key NOT IN (SELECT key FROM {written})")
    return made
