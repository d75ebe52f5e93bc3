"""The deltas of the last moments, those of many runs in one row. They go into the rows of their logs later, several at a time.

Theory of operation. A delta that is added to its log alone costs a page of the file. With many streams that would be most of what
a batch costs. So a batch with the deltas of several runs puts them into one row of `recent_deltas`, which has for each run what
is to be added to its log. That is done after `MOST_BATCHES`, or with the next thing that is written of the run. Rows of which all
was added are deleted now and then; until then, whoever reads a log leaves out what it has.

What waits to be added is known to the connection that writes. One that does not know, since another has written or a transaction
was taken back, first adds all that the table has (`settle`). Whoever only reads looks here first and at the log then: what has
left this table in between is in the log.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from mainspring.core.events import Recorded
from mainspring.core.stored_log import encode_log

ROW_BYTES: Final = 1_960  # two fit a page
SEQ_BITS: Final = 24
FEWEST: Final = 4
MOST_BATCHES: Final = 64
_DELETED_AT_ONCE: Final = 32

Row = tuple[object, ...]

TABLE: Final = "CREATE TABLE recent_deltas (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"
# The rows of one run.
OF_RUN: Final = f"place BETWEEN :run << {SEQ_BITS} AND ((:run + 1) << {SEQ_BITS}) - 1"
_LAST_ROW = f"SELECT place, last FROM segments WHERE {OF_RUN} ORDER BY place DESC LIMIT 1"
_ADD = "UPDATE segments SET last = ?, body = CAST(body || ? AS BLOB) WHERE place = ?"


class OpenLog(Struct):
    """The log of a run that goes on: its number, how many events it has, its last row, if that is known, and how many deltas it
    is known to have.

    `waiting` is what is to be added to that row and is among the recent deltas, since the batch of that number; `head` are the
    records that it begins with.
    """

    number: int
    length: int
    row: int = 0
    size: int = ROW_BYTES
    last: Recorded | None = None
    deltas: int = 0
    waiting: list[bytes] = []
    head: Sequence[Recorded] = ()
    since: int = 0


class Texts(NamedTuple):
    """Deltas of one run, as they are added to its log."""

    run: int
    first: int
    last: int
    body: bytes


class RecentDeltas:
    """What the table has that its connection knows to be waiting. `forget` is to be called when that may not be so any more."""

    def __init__(self) -> None:
        self._waiting: dict[int, OpenLog] = {}
        self._added: list[Texts] = []
        self._batch = 0
        self._is_known = False

    def forget(self) -> None:
        self._waiting.clear()
        self._added.clear()
        self._is_known = False

    def settle(self, connection: sqlite3.Connection) -> None:
        """Adds what the table has to the logs, unless it is known."""
        if self._is_known:
            return
        for place, last, texts in find_waiting(connection):
            connection.execute(_ADD, (last, texts, place))
        connection.execute("DELETE FROM recent_deltas")
        self._batch, self._is_known = 0, True

    def add(self, log: OpenLog, records: Sequence[Recorded], texts: bytes) -> None:
        """Deltas that go on with their log are to be written."""
        self._added.append(Texts(log.number, records[0].seq, records[-1].seq, texts))
        if not log.waiting:
            log.since, log.head = self._batch + 1, records
            self._waiting[log.number] = log
        log.waiting.append(texts)
        log.last, log.length = records[-1], records[-1].seq + 1
        log.deltas += len(records)

    def write(self, connection: sqlite3.Connection) -> list[Row]:
        """Writes what was added. Returns the rows of logs of which something has waited long enough."""
        if not self._added:
            if self._batch and not self._waiting:
                connection.execute("DELETE FROM recent_deltas")
                self._batch = 0
            return []
        added, self._added = self._added, []
        self._batch += 1
        connection.execute("INSERT INTO recent_deltas VALUES (?, ?)", (self._batch, _encode(added)))
        due = takewhile(lambda log: log.since <= self._batch - MOST_BATCHES, self._waiting.values())
        rows = [self.take(log) for log in list(due)]
        if self._batch % _DELETED_AT_ONCE == 0:
            oldest = next((log.since for log in self._waiting.values()), self._batch + 1)
            connection.execute("DELETE FROM recent_deltas WHERE number < ?", (oldest,))
        return rows

    def take(self, log: OpenLog) -> Row:
        """The row that is added to, or begun, by what waits of the log."""
        body = b"".join(log.waiting)
        if log.size + len(body) > ROW_BYTES:
            body = encode_log(log.head) + b"".join(log.waiting[1:])
            log.row, log.size = log.head[0].seq, 0
        log.size += len(body)
        log.waiting, log.head = [], ()
        del self._waiting[log.number]
        return (log.number << SEQ_BITS | log.row, log.length - 1, body)


def read_recent(connection: sqlite3.Connection, run: int) -> list[Texts]:
    """What there is of the run, oldest first; its log may have some of it."""
    return [texts for texts in _read_all(connection) if texts.run == run]


def _read_all(connection: sqlite3.Connection) -> Iterator[Texts]:
    for (body,) in connection.execute("SELECT body FROM recent_deltas ORDER BY number"):
        yield from _decode(body)


class Waiting(NamedTuple):
    """What is to be added to the row of a log, and the number of its last event then."""

    place: int
    last: int
    texts: bytes


def find_waiting(connection: sqlite3.Connection) -> list[Waiting]:
    """What the table has that the logs have not."""
    by_run: dict[int, list[Texts]] = {}
    for texts in _read_all(connection):
        by_run.setdefault(texts.run, []).append(texts)
    waiting: list[Waiting] = []
    for run, found in by_run.items():
        place, last = connection.execute(_LAST_ROW, {"run": run}).fetchone() or (0, found[-1].last)
        if missing := [each for each in found if each.first > last]:
            waiting.append(Waiting(place, missing[-1].last, b"".join([each.body for each in missing])))
    return waiting


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Texts]).decode
