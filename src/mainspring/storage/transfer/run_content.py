"""The tables of runs, documents and the audit, as they are copied.

An item is kept once where a log, a Response and the entries of a run share it. Each of them is copied whole.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from mainspring.core.history import Entry
from mainspring.core.items import decode, encode
from mainspring.core.spec import Conversation
from mainspring.core.stored_log import ENTERED, encode_log
from mainspring.storage.location import Location
from mainspring.storage.postgres.run_tables import RUNS as SERVED_RUNS
from mainspring.storage.postgres.run_tables import make_key
from mainspring.storage.recent_deltas import SEQ_BITS, find_waiting
from mainspring.storage.run_rows import RUNS as RUNS_SCHEMA
from mainspring.storage.segment import WITHOUT_OUTPUT, collect_item_ids, decode_response, decode_rows
from mainspring.storage.transfer.content import (
    Complete,
    ContentKind,
    Derived,
    FileLayout,
    Made,
    Named,
    Placed,
    Row,
    ServedForm,
    TableForm,
    Value,
)


def _complete_runs(_: sqlite3.Connection, columns: Sequence[str]) -> Complete:
    return lambda row: _complete_run(columns, row)


def _complete_run(columns: Sequence[str], row: Row, _: Row = ()) -> Row:
    place = columns.index("response")
    response, entries = row[place], row[columns.index("entries")]
    if not isinstance(response, bytes) or not response.startswith(WITHOUT_OUTPUT):
        return row
    whole = encode(decode_response(response, entries if isinstance(entries, bytes) else None))
    return (*row[:place], whole, *row[place + 1 :])


def _complete_log(body: bytes, entries: Value) -> bytes:
    """The row of a log with what it leaves to the entries."""
    return encode_log(decode_rows([body], entries if isinstance(entries, bytes) else None))


def _complete_segments(connection: sqlite3.Connection, _: Sequence[str]) -> Complete:
    waiting = {each.place: each for each in find_waiting(connection)}

    def complete(row: Row) -> Row:
        run, first, last, body = row
        assert isinstance(run, int)
        assert isinstance(first, int)
        assert isinstance(body, bytes)
        if (more := waiting.get(run << SEQ_BITS | first)) is not None:
            last, body = more.last, body + more.texts
        if ENTERED in body:
            [[entries]] = connection.execute("SELECT entries FROM runs WHERE number = ?", (run,)).fetchall()
            body = _complete_log(body, entries)
        return (run, first, last, body)

    return complete


def _complete_served(_: Sequence[str], row: Row, beside: Row) -> Row:
    [entries], (*key, body) = beside, row
    return row if entries is None or not isinstance(body, bytes) else (*key, _complete_log(body, entries))


# The entries of a run whose log leaves something to them.
_ENTRIES = f"""
    CASE WHEN position(decode('{ENTERED.hex()}', 'hex') IN body) > 0
    THEN (SELECT entries FROM mainspring_runs WHERE number = mainspring_segments.run) END
"""


def _list_items(row: Named) -> list[Row]:
    entries = row["entries"]
    held = collect_item_ids(decode(entries, list[Entry])) if isinstance(entries, bytes) else ()
    return [(id, row["number"]) for id in sorted(held)]


def _make_keys(*names: str) -> Derived:
    return Derived(lambda row: make_key(*[str(row[name]) for name in names]))


def _make_family(row: Named) -> bytes:
    return make_key(str(row["tenant"]), str(row["parent"] or row["id"]))


def _make_conversation_key(row: Named) -> bytes | None:
    told = row["conversation"]
    return make_key(decode(told, Conversation).id) if isinstance(told, bytes) else None


_ITEMS = TableForm(
    name="items",
    columns=("id", "run"),
    types=("TEXT", "INTEGER"),
    key=("id", "run"),
    derived={"key": _make_keys("id")},
    replaced=("id",),
)
_PLACE = f":run << {SEQ_BITS} | :first"
RUN_CONTENT: Final = ContentKind(
    name="runs",
    schema=RUNS_SCHEMA,
    served=SERVED_RUNS,
    tables=(
        TableForm(
            name="runs",
            derived={
                "key": _make_keys("id"),
                "parent_key": Derived(lambda row: None if row["parent"] is None else make_key(str(row["parent"]))),
                "conversation_key": Derived(_make_conversation_key),
            },
            form=FileLayout(complete=_complete_runs),
            served=ServedForm(complete=_complete_run),
            made=Made(_ITEMS, _list_items),
        ),
        TableForm(name="summaries"),
        TableForm(
            name="segments",
            columns=("run", "first", "last", "body"),
            types=("INTEGER", "INTEGER", "INTEGER", "BLOB"),
            key=("run", "first"),
            form=FileLayout(
                selects=(
                    "SELECT run, first, last, body FROM old_segments ORDER BY run, first",
                    "SELECT run, first, last, body FROM segments ORDER BY place",
                ),
                insert=f"INSERT INTO segments (place, last, body) VALUES ({_PLACE}, :last, :body)",
                delete=f"DELETE FROM segments WHERE place = {_PLACE}",
                complete=_complete_segments,
            ),
            served=ServedForm(beside=(_ENTRIES,), complete=_complete_served),
        ),
        TableForm(
            name="documents",
            derived={
                "key": _make_keys("tenant", "parent", "id", "kind"),
                "folder": _make_keys("tenant", "parent", "kind"),
                "family": Derived(_make_family),
            },
        ),
        TableForm(name="audit", derived={"call_key": Derived(lambda row: make_key(str(row["call"])) if row["call"] else None)}),
    ),
    left={
        "items": "they follow from the entries of runs",
        "old_segments": "they are read with the segments",
        "recent_deltas": "they are read with the segments",
        "audit_chains": "they follow from the audit",
        "drivers": "they are processes, and their leases are over where the copy is",
        "writers": "they are processes",
        "followed": "they are readers",
    },
    settle=(
        """
        INSERT INTO mainspring_audit_chains SELECT DISTINCT chain FROM mainspring_audit ON CONFLICT DO NOTHING
        """,
    ),
)


def place_runs(_: object, database: Location) -> tuple[Placed, ...]:
    return (Placed(RUN_CONTENT, database),)
