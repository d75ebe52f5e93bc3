"""The decision log: what was decided and why, in an SQLite file of its own that can be kept, queried and thrown away by itself.

Theory of operation. A decision is written when it begins, without an outcome; its calls and its outcome follow in one step when
it ends, so a call never stands there without its decision. Rows older than the retention go when others come; baselines stay.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import to_json
from mainspring.storage.location import Location, parse_location
from mainspring.storage.run_rows import RUNS
from mainspring.storage.sql import ServerTables, SqlConnection, choose_database
from mainspring.storage.sqlite import Schema
from mainspring_tasks.call_trace import ErrorCode
from mainspring_tasks.decision_types import Outcome
from mainspring_tasks.log_entries import (
    MIN_SAMPLE,
    BaselineSnapshot,
    DecisionLog,
    DriftComparison,
    Shares,
    ToolInvocationLog,
    Trace,
    compare_shares,
)

P = ParamSpec("P")
T = TypeVar("T")
Form = Literal["json", "jsonl"]

RETENTION_SECONDS: Final = 30 * 86_400.0
SWEEP_SECONDS: Final = 3600.0
MOST_ROWS: Final = 1000
_OUTCOMES: Final = ", ".join([f"'{outcome}'" for outcome in Outcome])
_CODES: Final = ", ".join([f"'{code}'" for code in ErrorCode.__args__])  # type: ignore[attr-defined]
_TABLES: Final = (
    f"""
    CREATE TABLE IF NOT EXISTS decision_logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        decision_id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        run_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        message TEXT NOT NULL,
        created_at REAL NOT NULL,
        intent_type TEXT,
        confidence REAL,
        extracted_params TEXT,
        decision_type TEXT,
        outcome_category TEXT CHECK (outcome_category IN ({_OUTCOMES})),
        response_text TEXT,
        duration_ms REAL
    )
    """,
    "CREATE INDEX IF NOT EXISTS decisions_by_conversation ON decision_logs (conversation_id, created_at)",
    "CREATE INDEX IF NOT EXISTS decisions_by_user ON decision_logs (user_id, created_at)",
    "CREATE INDEX IF NOT EXISTS decisions_by_time ON decision_logs (created_at)",
    "CREATE INDEX IF NOT EXISTS decisions_by_outcome ON decision_logs (outcome_category, created_at)",
    f"""
    CREATE TABLE IF NOT EXISTS tool_invocation_logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        decision_id TEXT NOT NULL REFERENCES decision_logs (decision_id) ON DELETE CASCADE,
        tool_name TEXT NOT NULL,
        parameters TEXT NOT NULL,
        result TEXT,
        success INTEGER NOT NULL,
        error_code TEXT CHECK (error_code IN ({_CODES})),
        error_message TEXT,
        duration_ms REAL NOT NULL,
        invoked_at REAL NOT NULL,
        sequence INTEGER NOT NULL CHECK (sequence >= 1),
        UNIQUE (decision_id, sequence)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS baselines (
        name TEXT PRIMARY KEY,
        body BLOB NOT NULL
    )
    """,
)
DECISIONS: Final = Schema(
    application_id=0x4D73_646C,  # "Msdl"
    migrations=(_TABLES,),
    tables=("decision_logs", "tool_invocation_logs", "baselines"),
    name="the decision log",
    remedy="choose another file with --log, or with `log` under [decisions] in the settings",
    version_table="decision_log",
    joins=(RUNS.application_id,),  # logs that were put into the database of the runs stay there
    unmarked="SELECT decision_id, outcome_category FROM decision_logs LIMIT 0",
)
SERVED_DECISIONS: Final = ServerTables(
    name="decisions",
    migrations=(
        f"""
        CREATE TABLE mainspring_decision_logs (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            decision_id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            run_id TEXT NOT NULL,
            conversation_id TEXT NOT NULL,
            user_id TEXT NOT NULL,
            message TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            intent_type TEXT,
            confidence DOUBLE PRECISION,
            extracted_params TEXT,
            decision_type TEXT,
            outcome_category TEXT CHECK (outcome_category IN ({_OUTCOMES})),
            response_text TEXT,
            duration_ms DOUBLE PRECISION
        );
        CREATE INDEX ON mainspring_decision_logs (left(conversation_id, 100), created_at);
        CREATE INDEX ON mainspring_decision_logs (left(user_id, 100), created_at);
        CREATE INDEX ON mainspring_decision_logs (created_at, id);
        CREATE INDEX ON mainspring_decision_logs (outcome_category, created_at);
        CREATE TABLE mainspring_tool_invocation_logs (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            decision_id TEXT NOT NULL REFERENCES mainspring_decision_logs (decision_id) ON DELETE CASCADE,
            tool_name TEXT NOT NULL,
            parameters TEXT NOT NULL,
            result TEXT,
            success INT NOT NULL,
            error_code TEXT CHECK (error_code IN ({_CODES})),
            error_message TEXT,
            duration_ms DOUBLE PRECISION NOT NULL,
            invoked_at DOUBLE PRECISION NOT NULL,
            sequence INT NOT NULL CHECK (sequence >= 1),
            UNIQUE (decision_id, sequence)
        );
        CREATE TABLE mainspring_baselines (name TEXT PRIMARY KEY, body BYTEA NOT NULL);
        """,
    ),
    tables=("mainspring_decision_logs", "mainspring_tool_invocation_logs", "mainspring_baselines"),
)
_DECISION: Final = DecisionLog.__struct_fields__
_TOOL: Final = ToolInvocationLog.__struct_fields__
_OUTCOME: Final = (
    "run_id", "intent_type", "confidence", "extracted_params", "decision_type", "outcome_category", "response_text",
    "duration_ms",
)  # fmt: skip
_JSON: Final = frozenset({"extracted_params", "parameters", "result"})
_TIMES: Final = frozenset({"created_at", "invoked_at"})
_SELECT: Final = f"SELECT {', '.join(_DECISION)} FROM decision_logs"


class Query(Struct, frozen=True):
    """A filter of decisions: every field that is set must match. An outcome is given whole, or by its first half."""

    conversation_id: str | None = None
    user_id: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    decision_type: str | None = None
    outcome: str | None = None


EVERY_DECISION: Final = Query()


class DecisionLogs:
    """The log in a file or on a server, created and opened on first use. All methods raise `StoreError` if that fails."""

    def __init__(
        self,
        database: Path | Location,
        *,
        retention_seconds: float | None = RETENTION_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = choose_database(parse_location(database), DECISIONS, SERVED_DECISIONS)
        self._retention = retention_seconds
        self._clock = clock
        self._swept_at = -SWEEP_SECONDS

    async def open(self) -> None:
        """Opens the file now rather than on first use, to find out whether that works."""
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def write_decision_log(self, entry: DecisionLog) -> None:
        """Adds a decision, usually before it is made. Raises `InvalidRequest` if its id is taken."""
        await self._write(self._add, entry)

    async def finish(self, entry: DecisionLog, tools: Sequence[ToolInvocationLog]) -> None:
        """Writes the calls and the outcome of an open decision in one transaction. Raises `NotFound`."""
        await self._write(_finish, entry, tools)

    async def assign(self, decision_id: str, run_id: str) -> None:
        """Sets the run of an open decision before the run starts. Raises `NotFound`."""
        await self._write(_assign, decision_id, run_id)

    async def open_decisions(self) -> Sequence[DecisionLog]:
        """Decisions without an outcome, oldest first, at most 1000."""
        statement = f"{_SELECT} WHERE outcome_category IS NULL ORDER BY id LIMIT {MOST_ROWS}"
        return await self._read(lambda connection: [_decision(row) for row in connection.execute(statement)])

    async def write_tool_invocation_log(self, entry: ToolInvocationLog) -> None:
        """Adds a call to a decision. Raises `NotFound` if there is no such decision, `InvalidRequest` if its sequence number is
        taken."""
        await self._write(_write_tool, entry)

    async def get_decision_trace(self, decision_id: str) -> Trace:
        """A decision with its calls. Raises `NotFound`."""
        return await self._read(_trace, decision_id)

    async def query_decisions(self, query: Query = EVERY_DECISION, *, limit: int = 100, offset: int = 0) -> Sequence[DecisionLog]:
        """Matching decisions, newest first, at most 1000 at a time. Raises `InvalidRequest` for an invalid limit or offset."""
        if not 1 <= limit <= MOST_ROWS or offset < 0:
            raise InvalidRequest(
                f"limit must be 1 to {MOST_ROWS}, and offset not negative, not {limit} and {offset}", param="limit"
            )
        where, values = _where(query)
        statement = f"{_SELECT} {where} ORDER BY created_at DESC, id DESC LIMIT ? OFFSET ?"
        return await self._read(
            lambda connection: [_decision(row) for row in connection.execute(statement, (*values, limit, offset))]
        )

    async def get_metrics_summary(self, query: Query = EVERY_DECISION) -> Shares:
        """Shares of intents, tools and outcomes among the matching decisions."""
        return await self._read(_shares, query)

    async def export_logs(self, form: Form = "jsonl", query: Query = EVERY_DECISION) -> AsyncIterator[str]:
        """Matching decisions with their calls, oldest first: one JSON array, or a line each. Yields pieces of text."""
        is_first, after = True, 0
        if form == "json":
            yield "["
        while traces := await self._read(_traces, query, after):
            after = traces[-1].decision.id
            for trace in traces:
                text = to_json(trace)
                yield f"{text}\n" if form == "jsonl" else text if is_first else f",{text}"
                is_first = False
        if form == "json":
            yield "]\n"

    async def create_baseline(self, name: str, query: Query = EVERY_DECISION, *, description: str = "") -> BaselineSnapshot:
        """Stores the shares of the matching decisions under a new name. Raises `InvalidRequest` if they are too few."""
        return await self._write(_baseline, name, query, description)

    async def baselines(self) -> Sequence[BaselineSnapshot]:
        statement = "SELECT body FROM baselines ORDER BY name"
        return await self._read(lambda connection: [_snapshot(row[0]) for row in connection.execute(statement)])

    async def compare_to_baseline(self, name: str, query: Query = EVERY_DECISION) -> DriftComparison:
        """How the matching decisions differ from a baseline; without `since`, those made after it.

        Raises `NotFound`, and `InvalidRequest` if they are too few.
        """
        return await self._read(_comparison, name, query)

    async def _read(self, work: Callable[Concatenate[SqlConnection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._database.open()
        return await self._database.read(work, *args, **kwargs)

    async def _write(self, work: Callable[Concatenate[SqlConnection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._database.open()
        return await self._database.write(work, *args, **kwargs)

    def _add(self, connection: SqlConnection, entry: DecisionLog) -> None:
        self._sweep(connection)
        try:
            _insert(connection, "decision_logs", entry)
        except sqlite3.IntegrityError as error:
            raise InvalidRequest(f"decision `{entry.decision_id}` cannot be written: {error}", param="decision_id") from None

    def _sweep(self, connection: SqlConnection) -> None:
        now = self._clock()
        if self._retention is not None and now - self._swept_at >= SWEEP_SECONDS:
            connection.execute("DELETE FROM decision_logs WHERE created_at < ?", (now - self._retention,))
            self._swept_at = now


def _assign(connection: SqlConnection, decision_id: str, run_id: str) -> None:
    statement = "UPDATE decision_logs SET run_id = ? WHERE decision_id = ? AND outcome_category IS NULL"
    if connection.execute(statement, (run_id, decision_id)).rowcount == 0:
        raise NotFound(f"there is no open decision `{decision_id}` in the log")


def _finish(connection: SqlConnection, entry: DecisionLog, tools: Sequence[ToolInvocationLog]) -> None:
    for tool in tools:
        _write_tool(connection, tool)
    settings = ", ".join([f"{column} = ?" for column in _OUTCOME])
    statement = f"UPDATE decision_logs SET {settings} WHERE decision_id = ? AND outcome_category IS NULL"
    changed = connection.execute(statement, (*_encode(entry, _OUTCOME), entry.decision_id))
    if changed.rowcount == 0:
        raise NotFound(f"there is no open decision `{entry.decision_id}` in the log")


def _write_tool(connection: SqlConnection, entry: ToolInvocationLog) -> None:
    try:
        _insert(connection, "tool_invocation_logs", entry)
    except sqlite3.IntegrityError as error:
        if "FOREIGN KEY" in str(error):
            raise NotFound(f"there is no decision `{entry.decision_id}` in the log for this call") from None
        told = f"call {entry.sequence} of decision `{entry.decision_id}` cannot be written: {error}"
        raise InvalidRequest(told, param="sequence") from None


def _trace(connection: SqlConnection, decision_id: str) -> Trace:
    row = connection.execute(f"{_SELECT} WHERE decision_id = ?", (decision_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no decision `{decision_id}` in the log; it may be older than the log keeps them")
    return Trace(_decision(row), _tools(connection, decision_id))


def _traces(connection: SqlConnection, query: Query, after: int) -> list[Trace]:
    where, values = _where(query, "id > ?")
    statement = f"{_SELECT} {where} ORDER BY id LIMIT {MOST_ROWS}"
    decisions = [_decision(row) for row in connection.execute(statement, (*values, after))]
    return [Trace(decision, _tools(connection, decision.decision_id)) for decision in decisions]


def _tools(connection: SqlConnection, decision_id: str) -> tuple[ToolInvocationLog, ...]:
    statement = f"SELECT {', '.join(_TOOL)} FROM tool_invocation_logs WHERE decision_id = ? ORDER BY sequence"
    return tuple([_tool(row) for row in connection.execute(statement, (decision_id,))])


def _shares(connection: SqlConnection, query: Query) -> Shares:
    where, values = _where(query, "outcome_category IS NOT NULL")
    chosen = f"FROM decision_logs {where}"
    size, average = connection.execute(f"SELECT count(*), avg(duration_ms) {chosen}", values).fetchone()
    tools = f"FROM tool_invocation_logs WHERE decision_id IN (SELECT decision_id {chosen})"
    calls, good = connection.execute(f"SELECT count(*), coalesce(sum(success), 0) {tools}", values).fetchone()

    def shares(column: str, source: str) -> dict[str, float]:
        found = connection.execute(
            f"SELECT {column}, count(*) {source} AND {column} IS NOT NULL GROUP BY {column} ORDER BY {column}", values
        ).fetchall()
        total = sum([count for _, count in found])
        return {str(name): count / total for name, count in found}

    outcomes = shares("outcome_category", chosen)
    return Shares(
        sample_size=size,
        intents=shares("intent_type", chosen),
        # What was refused before any tool ran, or was no tool at all, is no use of a tool.
        tools=shares("tool_name", f"{tools} AND (error_code IS NULL OR error_code NOT IN ('TOOL_NOT_FOUND', 'INTENT_ERROR'))"),
        outcomes=outcomes,
        error_rate=sum([share for name, share in outcomes.items() if name.startswith("ERROR:")]),
        tool_success_rate=good / calls if calls else None,
        average_ms=average,
    )


def _baseline(connection: SqlConnection, name: str, query: Query, description: str) -> BaselineSnapshot:
    shares = _enough(connection, query)
    where, values = _where(query, "outcome_category IS NOT NULL")
    first, last = connection.execute(f"SELECT min(created_at), max(created_at) FROM decision_logs {where}", values).fetchone()
    try:
        made = BaselineSnapshot(
            name, description, _time(first), _time(last), shares.intents, shares.tools, shares.error_rate, shares.sample_size
        )
        connection.execute("INSERT INTO baselines VALUES (?, ?)", (name, msgspec.json.encode(made)))
    except ValueError as error:
        raise InvalidRequest(str(error), param="name") from None
    except sqlite3.IntegrityError:
        raise InvalidRequest(f"there is a baseline `{name}` already; choose another name", param="name") from None
    return made


def _comparison(connection: SqlConnection, name: str, query: Query) -> DriftComparison:
    row = connection.execute("SELECT body FROM baselines WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = [found[0] for found in connection.execute("SELECT name FROM baselines ORDER BY name")]
        raise NotFound(f"there is no baseline `{name}`; known: {', '.join(known) or 'none'}", param="name")
    baseline = _snapshot(row[0])
    if query.since is None:
        # What the baseline was made of would hide what has changed since.
        query = replace(query, since=baseline.sample_end + timedelta(microseconds=1))
    return compare_shares(baseline, _enough(connection, query))


def _enough(connection: SqlConnection, query: Query) -> Shares:
    shares = _shares(connection, query)
    if shares.sample_size < MIN_SAMPLE:
        raise InvalidRequest(f"{shares.sample_size} decisions are too few; at least {MIN_SAMPLE} are needed", param="sample")
    return shares


def _where(query: Query, *conditions: str) -> tuple[str, tuple[object, ...]]:
    """The WHERE clause and its values. Extra conditions come last, and so do their values."""
    found: list[tuple[str, object]] = []
    for column in ("conversation_id", "user_id", "tenant", "decision_type"):
        if (value := getattr(query, column)) is not None:
            found.append((f"{column} = ?", value))
    if query.since is not None:
        found.append(("created_at >= ?", query.since.timestamp()))
    if query.until is not None:
        found.append(("created_at < ?", query.until.timestamp()))
    if query.outcome is not None:
        is_whole = query.outcome in [outcome.value for outcome in Outcome]
        prefix = query.outcome.rstrip(":*")
        if not is_whole and not any(outcome.startswith(f"{prefix}:") for outcome in Outcome):
            known = ", ".join(Outcome)
            raise InvalidRequest(f"no outcome is `{query.outcome:.80}`, or begins with it; known: {known}", param="outcome")
        found.append(("outcome_category = ?", query.outcome) if is_whole else ("outcome_category LIKE ?", f"{prefix}:%"))
    clauses = [clause for clause, _ in found] + list(conditions)
    return f"WHERE {' AND '.join(clauses)}" if clauses else "", tuple([value for _, value in found])


def _insert(connection: SqlConnection, table: str, entry: DecisionLog | ToolInvocationLog) -> None:
    columns = [field for field in entry.__struct_fields__ if field != "id"]
    marks = ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", _encode(entry, columns))


def _encode(entry: DecisionLog | ToolInvocationLog, columns: Sequence[str]) -> tuple[object, ...]:
    fields = asdict(entry)
    fields |= {name: fields[name].timestamp() for name in _TIMES & fields.keys()}
    fields |= {name: to_json(fields[name]) for name in _JSON & fields.keys() if fields[name] is not None}
    return tuple([fields[column] for column in columns])


def _decode(row: Sequence[object], columns: Sequence[str]) -> dict[str, object]:
    fields = dict(zip(columns, row, strict=True))
    fields |= {name: _time(fields[name]) for name in _TIMES & fields.keys()}
    return fields | {name: msgspec.json.decode(str(fields[name])) for name in _JSON & fields.keys() if fields[name] is not None}


def _decision(row: Sequence[object]) -> DecisionLog:
    return msgspec.convert(_decode(row, _DECISION), DecisionLog)


def _tool(row: Sequence[object]) -> ToolInvocationLog:
    return msgspec.convert(_decode(row, _TOOL), ToolInvocationLog, strict=False)


def _snapshot(body: bytes) -> BaselineSnapshot:
    return msgspec.json.decode(body, type=BaselineSnapshot)


def _time(seconds: object) -> datetime:
    assert isinstance(seconds, float | int)
    return datetime.fromtimestamp(seconds, UTC)
