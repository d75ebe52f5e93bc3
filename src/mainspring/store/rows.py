"""What the tables hold, as functions over a connection. Each reads or writes rows; transactions are the caller's."""

import sqlite3

from mainspring.errors import Superseded
from mainspring.events import Recorded, Status, decode_log, encode_log
from mainspring.items import decode, encode
from mainspring.loop.history import Entry
from mainspring.loop.response import Response
from mainspring.ports import Page, StoredRun
from mainspring.store.segment import Segment, not_ended, not_found, superseded

OPEN_RUN = """
    INSERT INTO runs (id, status, created_at, parent, model, background) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""
# One statement both checks and writes: whoever else writes to the file, a number of a log is given out once.
ADD_SEGMENT = """
    INSERT INTO segments (run, first, last, body)
    SELECT number, ?, ?, ? FROM runs
    WHERE id = ? AND ended_at IS NULL
        AND ? = coalesce((SELECT last + 1 FROM segments WHERE run = number ORDER BY first DESC LIMIT 1), 0)
"""
END_RUN = "UPDATE runs SET status = ?, ended_at = ?, response = ?, entries = ? WHERE id = ?"
LENGTH = """
    SELECT coalesce((SELECT max(last) + 1 FROM segments WHERE run = number), 0), ended_at IS NOT NULL FROM runs WHERE id = ?
"""
EVENTS = """
    SELECT body FROM segments WHERE run = (SELECT number FROM runs WHERE id = ?) AND last > ? ORDER BY first
"""
# UNION, not UNION ALL: a link that has been followed is not followed again.
LINKS = """
    WITH RECURSIVE links (id, parent) AS (
        SELECT id, parent FROM runs WHERE id = ?
        UNION
        SELECT runs.id, runs.parent FROM links JOIN runs ON runs.id = links.parent
    )
    SELECT runs.id, runs.parent, runs.entries FROM links JOIN runs ON runs.id = links.id
"""
RUN = "SELECT id, status, created_at, parent, model, background, response FROM runs"


def append(connection: sqlite3.Connection, segment: Segment) -> Superseded | None:
    """Writes the segment if it continues its log; else says why not, and has written nothing."""
    if opening := segment.opening:
        fields = (opening.id, opening.status, opening.created_at, opening.parent, opening.model, opening.background)
        connection.execute(OPEN_RUN, fields)
    body = encode_log(segment.records)
    added = connection.execute(ADD_SEGMENT, (segment.first, segment.last, body, segment.run_id, segment.first))
    if added.rowcount == 0:
        length, has_ended = connection.execute(LENGTH, (segment.run_id,)).fetchone() or (0, False)
        return superseded(segment, length=length, has_ended=bool(has_ended))
    if ending := segment.ending:
        response, entries = encode(ending.snapshot.response), encode(ending.snapshot.entries)
        connection.execute(END_RUN, (ending.status, ending.at, response, entries, segment.run_id))
    return None


def events(connection: sqlite3.Connection, run_id: str, after: int) -> list[Recorded]:
    found = [record for (body,) in connection.execute(EVENTS, (run_id, after)) for record in decode_log(body)]
    if not found and connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone() is None:
        raise not_found(run_id)
    return [record for record in found if record.seq > after]


def load(connection: sqlite3.Connection, run_id: str) -> StoredRun:
    for row in connection.execute(f"{RUN} WHERE id = ?", (run_id,)):
        return _run(row)
    raise not_found(run_id)


def history(connection: sqlite3.Connection, run_id: str) -> list[Entry]:
    links = {id: (parent, entries) for id, parent, entries in connection.execute(LINKS, (run_id,))}
    found: list[list[Entry]] = []
    wanted: str | None = run_id
    while wanted is not None:
        if wanted not in links:
            raise not_found(wanted)
        parent, entries = links.pop(wanted)
        if entries is None:
            raise not_ended(wanted)
        found.append(decode(entries, list[Entry]))
        wanted = parent
    return [entry for entries in reversed(found) for entry in entries]


def page(connection: sqlite3.Connection, limit: int, after: str | None, newest_first: bool, status: Status | None) -> Page:
    conditions, values = ["TRUE"], []
    if status is not None:
        conditions.append("status = ?")
        values.append(status)
    if after is not None:
        place = connection.execute("SELECT created_at, number FROM runs WHERE id = ?", (after,)).fetchone()
        if place is None:
            raise not_found(after, "after")
        conditions.append(f"(created_at, number) {'<' if newest_first else '>'} (?, ?)")
        values.extend(place)
    order = "DESC" if newest_first else "ASC"
    query = f"{RUN} WHERE {' AND '.join(conditions)} ORDER BY created_at {order}, number {order} LIMIT ?"
    runs = [_run(row) for row in connection.execute(query, (*values, limit + 1))]
    return Page(tuple(runs[:limit]), has_more=len(runs) > limit)


def unfinished(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT id FROM runs WHERE status = 'in_progress' ORDER BY created_at, number"
    return [id for (id,) in connection.execute(query)]


def delete(connection: sqlite3.Connection, run_id: str) -> None:
    if connection.execute("DELETE FROM runs WHERE id = ?", (run_id,)).rowcount == 0:
        raise not_found(run_id)


def _run(row: tuple[str, Status, float, str | None, str, int, bytes | None]) -> StoredRun:
    id, status, created_at, parent, model, background, response = row
    answer = None if response is None else decode(response, Response)
    return StoredRun(id, status, created_at, parent, model, bool(background), answer)
