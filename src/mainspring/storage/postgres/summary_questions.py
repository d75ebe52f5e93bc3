"""Which runs a list has, in PostgreSQL, and a line for each: what is told of a run without its log and its answer."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.ports import Filter, RunSummary, SummaryPage, UsageGroup, UsageSum
from mainspring.storage.postgres.audit_questions import Fetch
from mainspring.storage.postgres.postgres_server import Row
from mainspring.storage.postgres.run_tables import escape, make_key, unescape
from mainspring.storage.segment import not_found
from mainspring.storage.summary_rows import make_pattern

_JOIN = "LEFT JOIN mainspring_summaries ON run = number"
# A run that stopped for a person is gone on with by one that continues it, or that comes after it in its conversation.
_CONTINUED = """(
    EXISTS (SELECT FROM mainspring_runs later WHERE later.parent_key = mainspring_runs.key AND later.tenant = owner)
    OR EXISTS (
        SELECT FROM mainspring_runs later WHERE later.conversation_key = mainspring_runs.conversation_key
        AND later.tenant = owner AND later.number > mainspring_runs.number
    )
)"""
_LINE = f"""
    SELECT number, id, status, created_at, model, tenant, parent, ended_at, coalesce(agent, ''), coalesce(caller, ''),
        coalesce(prompt, ''), coalesce(reason, ''), coalesce(input_tokens, 0), coalesce(output_tokens, 0), coalesce(error, ''),
        CASE WHEN waits_until IS NULL OR {_CONTINUED} THEN NULL ELSE waits_until END
    FROM mainspring_runs {_JOIN}
"""
STATES: Final = """
    SELECT number, status FROM mainspring_runs WHERE number > $1
    UNION SELECT number, status FROM mainspring_runs WHERE status = 'in_progress'
"""
_GROUPS: Final[dict[UsageGroup, str]] = {
    "day": "to_char(to_timestamp(begun_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    "model": "model",
    "agent": "agent",
    "caller": "caller",
    "tenant": "owner",
}


_NAMED: Final = ("id", "model", "tenant", "parent", "agent", "caller", "prompt", "error")
# Where a line has texts that may have a NUL.
_TEXTS = [(place, name) for place, name in enumerate(RunSummary.__struct_fields__) if name in _NAMED]


class ChosenRuns(Struct):
    """The clauses that choose runs, and their values."""

    join: str
    where: str
    sort: str
    values: list[object]


async def choose_runs(fetch: Fetch, after: str | None, newest_first: bool, only: Filter) -> ChosenRuns:
    """Raises `NotFound` for an unknown `after`."""
    values: list[object] = []
    conditions = list(_list_conditions(only, values))
    if after is not None:
        seen = "SELECT created_at, number FROM mainspring_runs WHERE key = $1 AND tenant = coalesce($2, tenant)"
        tenant = None if only.tenant is None else escape(only.tenant)
        if not (place := await fetch(seen, make_key(after), tenant)):
            raise not_found(after, "after")
        sign, (moment, number) = "<" if newest_first else ">", place[0]
        conditions.append(f"(created_at, number) {sign} ({take(values, moment)}::float8, {take(values, number)}::bigint)")
    order = "DESC" if newest_first else "ASC"
    is_joined = only.agent is not None or only.text is not None or only.waits_at is not None
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return ChosenRuns(_JOIN if is_joined else "", where, f"ORDER BY created_at {order}, number {order}", values)


async def summarize(fetch: Fetch, limit: int, after: str | None, newest_first: bool, only: Filter) -> SummaryPage:
    found = await choose_runs(fetch, after, newest_first, only)
    query = f"{_LINE} {found.where} {found.sort} LIMIT {take(found.values, limit + 1)}"
    rows = await fetch(query, *found.values)
    return SummaryPage(tuple([_read_line(row) for row in rows[:limit]]), has_more=len(rows) > limit)


async def find_summaries(fetch: Fetch, numbers: Sequence[int]) -> list[RunSummary]:
    return [_read_line(row) for row in await fetch(f"{_LINE} WHERE number = ANY($1::bigint[]) ORDER BY number", list(numbers))]


async def sum_usage(fetch: Fetch, by: UsageGroup, only: Filter) -> list[UsageSum]:
    query = f"""
        SELECT {_GROUPS[by]}, model, count(*), count(*) FILTER (WHERE status = 'failed'), count(ended_at),
            coalesce(sum(ended_at - created_at), 0), sum(input_tokens)::bigint, sum(output_tokens)::bigint
        FROM mainspring_summaries JOIN mainspring_runs ON number = run
        WHERE created_at >= $1 AND created_at < $2 AND ($3::text IS NULL OR owner = $3) GROUP BY 1, 2 ORDER BY 1, 2
    """
    tenant = None if only.tenant is None else escape(only.tenant)
    rows = await fetch(query, only.since or 0.0, only.before or float("inf"), tenant)
    return [UsageSum(unescape(row[0]), unescape(row[1]), *row[2:]) for row in rows]


def take(values: list[Any], value: object) -> str:
    """The place of one more value among those of a statement."""
    values.append(value)
    return f"${len(values)}"


def _list_conditions(only: Filter, values: list[object]) -> Sequence[str]:
    """What the runs must fit. What an index leaves out is left out in words."""
    found: list[str] = []
    for name, text in (("tenant", only.tenant), ("model", only.model)):
        if text is not None:
            place = take(values, escape(text))
            found.append(f"left({name}, 100) = left({place}, 100) AND {name} = {place}")
    if only.ids is not None:
        found.append(f"key = ANY({take(values, [make_key(id) for id in only.ids])}::bytea[])")
    if only.parent is not None:
        found.append(f"parent_key = {take(values, make_key(only.parent))}")
    if only.conversation is not None:
        found.append(f"conversation_key = {take(values, make_key(only.conversation))}")
    if only.background is not None:
        found.append("background" if only.background else "NOT background")
    if only.since is not None:
        found.append(f"created_at >= {take(values, only.since)}")
    if only.before is not None:
        found.append(f"created_at < {take(values, only.before)}")
    if only.status:
        found.append(f"status = ANY({take(values, list(only.status))}::text[])")
        if "completed" not in only.status:
            found.append("status <> 'completed'")
    return [*found, *_list_line_conditions(only, values)]


def _list_line_conditions(only: Filter, values: list[object]) -> Sequence[str]:
    found: list[str] = []
    if only.agent is not None:
        place = take(values, escape(only.agent))
        found.append(f"agent <> '' AND left(agent, 100) = left({place}, 100) AND agent = {place}")
        if only.tenant is not None:
            found.append(f"left(owner, 100) = left({take(values, escape(only.tenant))}, 100)")
    if only.text is not None:
        pattern, id = take(values, make_pattern(escape(only.text))), take(values, make_key(only.text))
        found.append(f"(prompt ILIKE {pattern} OR error ILIKE {pattern} OR key = {id})")
    if only.waits_at is not None:
        found.append(f"waits_until > {take(values, only.waits_at)} AND NOT {_CONTINUED}")
    return found


def _read_line(row: Row) -> RunSummary:
    line = RunSummary(*row)
    texts = {name: unescape(row[place]) for place, name in _TEXTS if row[place] is not None}
    return replace(line, **texts)
