"""Which runs a list has, and a line for each: what is told of a run without a look at its log or its answer.

A line has a row of its own, because the rows of runs have answers in them: to read what is behind one is to read it.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mainspring.core.events import Status
from mainspring.ports import Filter, RunSummary, SummaryPage, UsageGroup, UsageSum
from mainspring.storage.segment import not_found
from mainspring.storage.sqlite import Migration

SUMMARIES: Final[Migration] = (
    """
    CREATE TABLE summaries (
        run INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        begun_at REAL NOT NULL,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        prompt TEXT NOT NULL,
        reason TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        error TEXT NOT NULL,
        waits_until REAL
    )
    """,
    "CREATE INDEX summaries_by_agent ON summaries (owner, agent, begun_at) WHERE agent <> ''",
    "CREATE INDEX summaries_that_wait ON summaries (begun_at) WHERE waits_until IS NOT NULL",
)
# A conversation is JSON in a blob, and not every SQLite reads JSON from blobs.
CONVERSATION: Final = "json_extract(CAST(conversation AS TEXT), '$.id')"
_LATER, _OWN = [CONVERSATION.replace("conversation", f"{name}.conversation") for name in ("later", "runs")]
_JOIN = "LEFT JOIN summaries ON run = number"
# A run that stopped for a person is gone on with by one that continues it, or that comes after it in its conversation.
_CONTINUED = f"""
    EXISTS (SELECT 1 FROM runs later WHERE later.tenant = owner AND later.parent = runs.id AND later.parent IS NOT NULL)
    OR runs.conversation IS NOT NULL AND EXISTS (
        SELECT 1 FROM runs later WHERE later.tenant = owner AND later.conversation IS NOT NULL AND later.number > runs.number
        AND {_LATER} = {_OWN}
    )
"""
_LINE = f"""
    SELECT number, id, status, created_at, model, coalesce(owner, tenant), parent, ended_at, coalesce(agent, ''),
        coalesce(caller, ''), coalesce(prompt, ''), coalesce(reason, ''), coalesce(input_tokens, 0), coalesce(output_tokens, 0),
        coalesce(error, ''), CASE WHEN waits_until IS NULL OR {_CONTINUED} THEN NULL ELSE waits_until END
    FROM runs
"""
_CONDITIONS = (
    ("tenant", "tenant = ?"),
    ("model", "model = ?"),
    ("background", "background = ?"),
    ("parent", "parent = ? AND parent IS NOT NULL"),
    ("conversation", f"{CONVERSATION} = ? AND conversation IS NOT NULL"),
    ("since", "created_at >= ?"),
    ("before", "created_at < ?"),
    ("agent", "agent = ? AND agent <> ''"),
    ("waits_at", f"waits_until > ? AND NOT ({_CONTINUED})"),
)
# All lines are looked through once, without the runs that they are of: those have their answers in them.
_HAS_TEXT = """number IN (
    SELECT run FROM summaries WHERE owner = coalesce(?, owner) AND (prompt LIKE ? ESCAPE '\\' OR error LIKE ? ESCAPE '\\')
    UNION ALL SELECT number FROM runs WHERE id = ?
)"""
_OF_MODEL = "SELECT 1 FROM runs WHERE tenant = ? AND model = ? LIMIT 1"
_STATES = "SELECT number, status FROM runs WHERE number > ? UNION SELECT number, status FROM runs WHERE status = 'in_progress'"
_GROUPS: Final[dict[UsageGroup, str]] = {
    "day": "strftime('%Y-%m-%d', begun_at, 'unixepoch')",
    "model": "model",
    "agent": "agent",
    "caller": "caller",
    "tenant": "owner",
}


def find_runs(
    connection: sqlite3.Connection, select: str, limit: int, after: str | None, newest_first: bool, only: Filter
) -> Iterator[Any]:
    """The rows of a `SELECT` for the runs that fit. Raises `NotFound` for an unknown `after`."""
    wanted = [(condition, value) for field, condition in _CONDITIONS if (value := getattr(only, field)) is not None]
    conditions: list[str] = ["background = 1" if only.background else "TRUE", *[condition for condition, _ in wanted]]
    values: list[object] = [value for _, value in wanted]
    # What an index leaves out must be left out in words. An index is named where SQLite would take one with more runs; few runs
    # have one parent or conversation, so those are left to it. Of a model there are many runs, or none.
    narrow = (only.parent, only.conversation, only.agent, only.waits_at, only.ids)
    names_index = only.tenant is not None and narrow == (None,) * len(narrow)
    index = "INDEXED BY runs_in_background" if only.background and names_index else ""
    if only.agent is not None and only.tenant is not None:
        conditions.append("owner = ?")
        values.append(only.tenant)
    if only.ids is not None:
        conditions.append(f"id IN ({', '.join('?' * len(only.ids))})")
        values.extend(only.ids)
    if only.text is not None:
        conditions.append(_HAS_TEXT)
        values.extend([only.tenant, pattern := make_pattern(only.text), pattern, only.text])
    if only.status:
        conditions.append(f"status IN ({', '.join('?' * len(only.status))})")
        values.extend(only.status)
        if "completed" not in only.status:
            conditions.append("status <> 'completed'")
            index = index or ("INDEXED BY runs_by_status" if names_index else "")
    if index and only.model is not None and connection.execute(_OF_MODEL, (only.tenant, only.model)).fetchone() is None:
        return
    if after is not None:
        seen = "SELECT created_at, number FROM runs WHERE id = ? AND tenant = coalesce(?, tenant)"
        place = connection.execute(seen, (after, only.tenant)).fetchone()
        if place is None:
            raise not_found(after, "after")
        conditions.append(f"(created_at, number) {'<' if newest_first else '>'} (?, ?)")
        values.extend(place)
    order = "DESC" if newest_first else "ASC"
    join = _JOIN if select is _LINE or only.agent is not None or only.waits_at is not None else ""
    where = f"WHERE {' AND '.join(conditions)} ORDER BY created_at {order}, number {order} LIMIT ?"
    yield from connection.execute(f"{select} {index} {join} {where}", (*values, limit))


def make_pattern(text: str) -> str:
    """A pattern for `LIKE` that fits what has the text in it."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


def summarize(connection: sqlite3.Connection, limit: int, after: str | None, newest_first: bool, only: Filter) -> SummaryPage:
    found = [RunSummary(*row) for row in find_runs(connection, _LINE, limit + 1, after, newest_first, only)]
    return SummaryPage(tuple(found[:limit]), has_more=len(found) > limit)


def find_summaries(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[RunSummary]:
    query = f"{_LINE} {_JOIN} WHERE number IN ({', '.join('?' * len(numbers))}) ORDER BY number"
    return [RunSummary(*row) for row in connection.execute(query, numbers)]


def list_states(connection: sqlite3.Connection, after: int) -> dict[int, Status]:
    return dict(connection.execute(_STATES, (after,)).fetchall())


def find_last_number(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM runs").fetchone()[0])


def sum_usage(connection: sqlite3.Connection, by: UsageGroup, only: Filter) -> list[UsageSum]:
    query = f"""
        SELECT {_GROUPS[by]}, model, count(*), sum(status = 'failed'), count(ended_at), coalesce(sum(ended_at - created_at), 0.0),
            sum(input_tokens), sum(output_tokens)
        FROM summaries JOIN runs ON number = run
        WHERE created_at >= ? AND created_at < ? AND (? IS NULL OR owner = ?) GROUP BY 1, 2 ORDER BY 1, 2
    """
    since, before = only.since or 0.0, only.before or float("inf")
    return [UsageSum(*row) for row in connection.execute(query, (since, before, only.tenant, only.tenant))]
