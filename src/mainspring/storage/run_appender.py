"""Appends to logs in a SQLite file, for many runs by one statement for each kind of rows.

Theory of operation. A log has one writer. What this connection has written last of each run is known here, and stays true until
another connection commits: SQLite tells that by its `data_version`, which is asked once for all segments of a transaction, under
its write lock. Then everything known is forgotten, and each run is looked up again. The same goes for the end of the audit.

A log is in rows of some size. A segment that fits goes into the last row of its log, so that a delta which comes alone costs
little more than its text; the number of the row says which run and event it begins with. Deltas of several runs that come in one
batch go into one row together, see `recent_deltas`. When a run ends that has said much, its log becomes one row without the
texts, which its entries have.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import Superseded
from mainspring.core.events import Recorded, TextDelta
from mainspring.core.items import Item, encode
from mainspring.core.stored_log import encode_log, encode_texts
from mainspring.ports import Document, Link, Note, Segment, Snapshot
from mainspring.storage.audit_chain import chain_notes
from mainspring.storage.recent_deltas import FEWEST, OF_RUN, ROW_BYTES, SEQ_BITS, OpenLog, RecentDeltas, Row
from mainspring.storage.segment import (
    MANY_DELTAS,
    UNENDED,
    collect_item_ids,
    encode_response,
    explain_mismatch,
    find_driver,
    find_ending,
    find_opening,
    shrink_rows,
    summarize_ending,
    summarize_opening,
)

MOST_KNOWN: Final = 50_000
MOST_ROWS: Final = 64
# What is larger is written by itself, and not kept longer than that.
LARGE_BYTES: Final = 1024 * 1024

_RUNS = """
    INSERT INTO runs
    (number, id, parent, model, background, status, created_at, ended_at, response, entries, tenant, conversation, driver)
    VALUES """
_SUMMARIES = """
    INSERT INTO summaries
    (run, owner, begun_at, agent, caller, prompt, reason, input_tokens, output_tokens, error, waits_until) VALUES """
_SUMMARY_END = """
    UPDATE summaries SET reason = ?, input_tokens = ?, output_tokens = ?, error = ?, waits_until = ? WHERE run = ?
"""
_SEGMENTS = "INSERT INTO segments (place, last, body) VALUES "
_ADDED = " ON CONFLICT (place) DO UPDATE SET last = excluded.last, body = CAST(body || excluded.body AS BLOB)"
_ROWS = f"SELECT place, last, body FROM segments WHERE {OF_RUN} ORDER BY place"
_END = """
    UPDATE runs SET status = ?, ended_at = ?, response = ?, entries = ?, driver = NULL, is_cancelled = 0 WHERE number = ?
"""
_LENGTH = f"""
    SELECT number, ended_at IS NOT NULL, coalesce(
        (SELECT max(last) + 1 FROM segments WHERE place BETWEEN number << {SEQ_BITS} AND ((number + 1) << {SEQ_BITS}) - 1),
        (SELECT max(last) + 1 FROM old_segments WHERE run = number), 0)
    FROM runs WHERE id = ?
"""
# What the last record of the audit says does not matter to those that follow, only its hash does.
_LAST_NOTE = """
    SELECT number, CAST(hash AS BLOB), chain, coalesce(place, number) FROM audit ORDER BY number DESC LIMIT 1
"""
_ANY_NOTE = Note(b"")
# A document that has a parent is written only where its parent is.
_PUT = """
    INSERT INTO documents (tenant, parent, id, kind, body)
    SELECT ?1, ?2, ?3, ?4, ?5
    WHERE ?2 = '' OR EXISTS (SELECT 1 FROM documents WHERE tenant = ?1 AND parent = '' AND id = ?2)
    ON CONFLICT (tenant, parent, id, kind)
"""


class _Rows(Struct):
    """What a transaction adds, by table."""

    runs: list[Row] = []
    segments: list[Row] = []
    ends: list[Row] = []
    shrunk: list[tuple[int, Sequence[Item]]] = []
    lines: list[Row] = []
    line_ends: list[Row] = []
    items: list[Row] = []
    notes: list[Note] = []
    documents: list[Document] = []


class RunAppender:
    """Appends by one connection at a time. `forget` is to be called when a transaction was taken back."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        self._logs: dict[str, OpenLog] = {}
        self._recent = RecentDeltas()
        self._next_run: int | None = None
        self._last_note: Link | None = None
        self._has_last_note = False

    def forget(self) -> None:
        self._logs.clear()
        self._recent.forget()
        self._next_run = None
        self._has_last_note = False

    def append(self, connection: sqlite3.Connection, segments: Sequence[Segment]) -> None:
        """Writes the segments. Raises `Superseded` if one does not continue its log: the transaction is to be taken back."""
        self._refresh(connection)
        rows = _Rows()
        for segment in segments:
            rows.notes += segment.notes
            if segment.records:
                self._add_segment(connection, segment, rows, is_alone=len(segments) < FEWEST)
        rows.segments += self._recent.write(connection)
        entries = [*_take_large(rows.runs, 0, 9), *_take_large(rows.ends, 4, 3)]
        try:
            _insert(connection, _RUNS, 13, rows.runs)
        except sqlite3.IntegrityError:
            raise self._explain(connection, segments[0]) from None
        _insert(connection, _SEGMENTS, 3, rows.segments, _ADDED)
        if rows.ends:
            connection.executemany(_END, rows.ends)
            connection.executemany(_SUMMARY_END, rows.line_ends)
        while entries:
            _write_value(connection, "UPDATE runs SET entries = ? WHERE number = ?", *entries.pop())
        _insert(connection, _SUMMARIES, 11, rows.lines)
        for number, items in rows.shrunk:
            _shrink(connection, number, items)
        _insert(connection, "INSERT INTO items VALUES ", 2, rows.items)
        self._add_notes(connection, rows.notes)
        for document in rows.documents:
            put_document(connection, document)

    def add_notes(self, connection: sqlite3.Connection, notes: Sequence[Note]) -> None:
        """Adds to the end of the audit. Whoever writes to the file holds its lock, so there is one end."""
        self._refresh(connection)
        self._add_notes(connection, notes)

    def _refresh(self, connection: sqlite3.Connection) -> None:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or connection is not self._connection or len(self._logs) > MOST_KNOWN:
            self.forget()
            self._version, self._connection = version, connection
        self._recent.settle(connection)

    def _add_segment(self, connection: sqlite3.Connection, segment: Segment, rows: _Rows, *, is_alone: bool) -> None:
        records = segment.records
        if segment.snapshot is None and records[0].seq:
            log = self._find_log(connection, segment)
            if not is_alone and log.last is not None and (texts := encode_texts(records, log.last)):
                self._recent.add(log, records, texts)
            else:
                rows.segments += self._take(log, records)
            return
        ending, opening = find_ending(segment), find_opening(segment)
        if segment.run_id in self._logs:
            opening = None
        log = self._find_log(connection, segment) if opening is None else OpenLog(self._count_run(connection), 0)
        entered = () if ending is None else [entry.item for entry in ending.snapshot.entries]
        # What is large is written before the entries, which may be as large, are encoded.
        rows.segments += [row for row in self._take(log, records, entered) if not _write_if_large(connection, row)]
        end: Row = (None, None, None)
        if ending is not None:
            end = (ending.at, encode_response(ending.snapshot), encode(ending.snapshot.entries))
        if opening is not None:
            status = opening.status if ending is None else ending.status
            conversation = None if opening.conversation is None else encode(opening.conversation)
            begun = (log.number, opening.id, opening.parent, opening.model, opening.background, status, opening.created_at)
            driver = find_driver(segment) if ending is None else None
            rows.runs.append((*begun, *end, opening.tenant, conversation, driver))
            told = UNENDED if ending is None else summarize_ending(segment)
            rows.lines.append((log.number, *summarize_opening(segment), *told))
        elif ending is not None:
            rows.ends.append((ending.status, *end, log.number))
            rows.line_ends.append((*summarize_ending(segment), log.number))
        if ending is None:
            self._logs[segment.run_id] = log
        else:
            self._logs.pop(segment.run_id, None)
            if log.deltas >= MANY_DELTAS:
                rows.shrunk.append((log.number, entered))
            _add_ending(ending.snapshot, log.number, rows)

    def _take(self, log: OpenLog, records: Sequence[Recorded], entered: Sequence[Item] = ()) -> Iterator[Row]:
        """The rows that the records are, or are added to; the log is longer by them."""
        if log.waiting:
            yield self._recent.take(log)
        last = records[-1]
        body = b"" if log.last is None else encode_log(records, log.last, entered)
        if log.last is None or log.size + len(body) > ROW_BYTES:
            # A new row begins as a new line does, unless that goes on with the last delta of the row before.
            body = body[1:] if body.startswith(b"\n[") else encode_log(records, entered=entered)
            log.row, log.size = records[0].seq, 0
        log.size += len(body)
        log.last, log.length = last, last.seq + 1
        log.deltas += sum([type(record.event) is TextDelta for record in records])
        yield (log.number << SEQ_BITS | log.row, last.seq, body)

    def _count_run(self, connection: sqlite3.Connection) -> int:
        if self._next_run is None:
            self._next_run = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM runs").fetchone()[0]
        number, self._next_run = self._next_run, self._next_run + 1
        return number

    def _find_log(self, connection: sqlite3.Connection, segment: Segment) -> OpenLog:
        log = self._logs.get(segment.run_id)
        if log is None:
            number, has_ended, length = connection.execute(_LENGTH, (segment.run_id,)).fetchone() or (0, 0, 0)
            log = OpenLog(number, -1 if has_ended else length)
        if not log.length or log.length != segment.records[0].seq:
            raise self._explain(connection, segment)
        self._logs[segment.run_id] = log
        return log

    def settle(self, connection: sqlite3.Connection) -> None:
        """Puts all that was written into the logs, so that their rows can be deleted."""
        self.forget()
        self._recent.settle(connection)

    def _explain(self, connection: sqlite3.Connection, segment: Segment) -> Superseded:
        self.settle(connection)
        _, has_ended, length = connection.execute(_LENGTH, (segment.run_id,)).fetchone() or (0, 0, 0)
        return explain_mismatch(segment, length=length, has_ended=bool(has_ended))

    def _add_notes(self, connection: sqlite3.Connection, notes: Sequence[Note]) -> None:
        if not notes:
            return
        if not self._has_last_note:
            found = connection.execute(_LAST_NOTE).fetchone()
            self._last_note = None if found is None else Link(found[0], _ANY_NOTE, *found[1:])
            self._has_last_note = True
        links = list(chain_notes(self._last_note, notes))
        self._last_note = replace(links[-1], note=_ANY_NOTE)
        # The places of the oldest chain are its numbers.
        rows: list[Row] = [
            (each.number, each.note.call, each.note.body, each.hash, each.chain, each.place if each.chain else None)
            for each in links
        ]
        _insert(connection, "INSERT INTO audit (number, call, body, hash, chain, place) VALUES ", 6, rows)


def put_document(connection: sqlite3.Connection, document: Document, if_absent: bool = False) -> bool:
    """Writes a document, unless its parent is gone, or with `if_absent` it is there; says whether it did."""
    otherwise = "DO NOTHING" if if_absent else "DO UPDATE SET body = excluded.body"
    fields = (document.tenant, document.parent, document.id, document.kind, document.body)
    return connection.execute(_PUT + otherwise, fields).rowcount > 0


def _shrink(connection: sqlite3.Connection, run: int, entered: Sequence[Item]) -> None:
    """Makes one row of the log of a run that has ended, without the texts that its items have."""
    found = connection.execute(_ROWS, {"run": run}).fetchall()
    if (shrunk := shrink_rows([body for _, _, body in found], entered)) is None:
        return
    connection.execute(f"DELETE FROM segments WHERE {OF_RUN}", {"run": run})
    _insert(connection, _SEGMENTS, 3, [(found[0][0], found[-1][1], shrunk)])


def _add_ending(snapshot: Snapshot, number: int, rows: _Rows) -> None:
    rows.items += [(id, number) for id in collect_item_ids(snapshot.entries)]
    rows.documents += snapshot.documents


def _insert(connection: sqlite3.Connection, head: str, width: int, rows: Sequence[Row], tail: str = "") -> None:
    """Inserts the rows by few statements: each is a moment in which another thread of Python may run."""
    for start in range(0, len(rows), MOST_ROWS):
        some = rows[start : start + MOST_ROWS]
        connection.execute(_write_statement(head, width, len(some), tail), list(chain.from_iterable(some)))


def _take_large(rows: list[Row], key: int, column: int) -> list[tuple[object, object]]:
    """Leaves the large values of a column out of the rows; returns each with the number of its row."""
    taken: list[tuple[object, object]] = []
    for place, row in enumerate(rows):
        if _is_large(row[column]):
            taken.append((row[column], row[key]))
            rows[place] = (*row[:column], b"", *row[column + 1 :])
    return taken


def _write_if_large(connection: sqlite3.Connection, segment: Row) -> bool:
    place, last, body = segment
    if not _is_large(body):
        return False
    _insert(connection, _SEGMENTS, 3, [(place, last, b"")], _ADDED)
    _write_value(connection, "UPDATE segments SET body = ? WHERE place = ?", body, place)
    return True


def _is_large(value: object) -> bool:
    return isinstance(value, bytes) and len(value) > LARGE_BYTES


def _write_value(connection: sqlite3.Connection, statement: str, value: object, number: object) -> None:
    """Writes a large value. A statement keeps what was bound to it until it gets something else: nothing, for no row."""
    connection.execute(statement, (value, number))
    connection.execute(statement, (b"", None))


@cache
def _write_statement(head: str, width: int, count: int, tail: str) -> str:
    return head + ", ".join([f"({', '.join('?' * width)})"] * count) + tail
