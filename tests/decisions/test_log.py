"""The decision log: what may be in it, in which order, how it is asked, and what it is measured by."""

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.kit.databases import database_in

from mainspring.core.errors import InvalidRequest, NotFound, StoreError
from mainspring.storage.location import parse_location
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring_tasks.decision_log import DecisionLogs, Query
from mainspring_tasks.decision_types import Outcome, choose_outcome, parse_outcome
from mainspring_tasks.log_entries import BaselineSnapshot, DecisionLog, Drift, Shares, ToolInvocationLog, Trace, compare_shares
from mainspring_tasks.server.sqlite_tasks import TASKS

on_both = pytest.mark.usefixtures("each_database")

START = datetime(2026, 3, 2, 9, tzinfo=UTC)


@asynccontextmanager
async def opened(folder: Path, now: datetime = START) -> AsyncIterator[DecisionLogs]:
    logs = DecisionLogs(parse_location(database_in(folder, "decisions.db")), clock=now.timestamp)
    try:
        yield logs
    finally:
        await logs.close()


def decision(number: int, outcome: Outcome | None = Outcome.RESPONSE_GIVEN, **fields: object) -> DecisionLog:
    entry = DecisionLog(
        decision_id=f"dec_{number}",
        conversation_id="conv_1",
        user_id="ada",
        message=f"message {number}",
        created_at=START + timedelta(seconds=number),
        decision_type=None if outcome is None else "RESPOND_ONLY",
        outcome_category=None if outcome is None else outcome.value,
        intent_type="GENERAL_CHAT",
        duration_ms=10.0,
    )
    return replace(entry, **fields)


def invocation(number: int, sequence: int = 1, **fields: object) -> ToolInvocationLog:
    entry = ToolInvocationLog(
        decision_id=f"dec_{number}",
        tool_name="list_tasks",
        parameters={"status": "all"},
        sequence=sequence,
        invoked_at=START,
        success=True,
        result=[],
        duration_ms=2.5,
    )
    return replace(entry, **fields)


def test_only_the_thirteen_can_be_told_and_only_letter_by_letter() -> None:
    for outcome in Outcome:
        assert parse_outcome(outcome.value) is outcome
    for wrong in (
        "PENDING",
        "ERROR:LLM_FAILURE",
        "success:response_given",
        "SUCCESS",
        "SUCCESS:RESPONSE_GIVEN:",
        "SUCCESS:A:B",
        "",
    ):
        with pytest.raises(ValueError, match="outcome_category must be one of REFUSAL:OUT_OF_SCOPE, "):
            parse_outcome(wrong)
        with pytest.raises(ValueError, match="outcome_category must be one of"):
            decision(1, outcome_category=wrong)


async def test_nothing_else_can_be_stored_behind_our_back_either(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1))
        connection = sqlite3.connect(tmp_path / "decisions.db")
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute("UPDATE decision_logs SET outcome_category = 'ERROR:LLM_FAILURE'")
        connection.close()


def test_refusal_goes_before_ambiguity_before_error_before_success() -> None:
    order = list(Outcome)
    for place, outcome in enumerate(order):
        assert choose_outcome(set(order[place:])) is outcome
    assert choose_outcome(set()) is Outcome.RESPONSE_GIVEN


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"message": "x" * 4001}, r"DecisionLog\.message must have at most 4000"),
        ({"intent_type": "BUY"}, "'BUY' is not a valid IntentType"),
        ({"decision_type": "REFUSE"}, "'REFUSE' is not a valid DecisionType"),
        ({"decision_type": None}, "must be set together"),
    ],
)
def test_an_entry_that_breaks_a_rule_cannot_be_made(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(decision(1), **fields)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"sequence": 0}, "sequence must be at least 1"),
        ({"success": False}, "error_code is required if success is false"),
        ({"error_code": "VALIDATION_ERROR"}, "error_code is required if success is false, and not allowed otherwise"),
        ({"success": False, "error_code": "NOT_FOUND"}, "error_code must be one of VALIDATION_ERROR, INTENT_ERROR"),
    ],
)
def test_a_call_that_breaks_a_rule_cannot_be_made(fields: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(invocation(1), **fields)


@pytest.mark.requirement("D46")
@on_both
async def test_calls_belong_to_a_decision_that_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        with pytest.raises(NotFound, match="no decision `dec_1` in the log for this call"):
            await logs.write_tool_invocation_log(invocation(1))
        await logs.write_decision_log(decision(1, None))
        await logs.write_tool_invocation_log(invocation(1))
        with pytest.raises(InvalidRequest, match="call 1 of decision `dec_1` cannot be written"):
            await logs.write_tool_invocation_log(invocation(1))
        with pytest.raises(InvalidRequest, match="decision `dec_1` cannot be written"):
            await logs.write_decision_log(decision(1))
        await logs.finish(
            decision(1, Outcome.TASK_COMPLETED), [invocation(1, 2, success=False, error_code="TIMEOUT_ERROR", result=None)]
        )
        with pytest.raises(NotFound, match="no open decision `dec_1`"):
            await logs.finish(decision(1), [])
        trace = await logs.get_decision_trace("dec_1")
        assert trace.decision == decision(1, Outcome.TASK_COMPLETED, id=1)
        assert [(tool.sequence, tool.success, tool.error_code) for tool in trace.tools] == [
            (1, True, None),
            (2, False, "TIMEOUT_ERROR"),
        ]
        assert replace(trace.tools[0], id=1) == invocation(1, id=1)
        with pytest.raises(NotFound, match="no decision `dec_9`"):
            await logs.get_decision_trace("dec_9")


@on_both
async def test_an_end_that_cannot_be_written_leaves_no_half_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1, None))
        with pytest.raises(InvalidRequest):
            await logs.finish(decision(1), [invocation(1), invocation(1)])
        trace = await logs.get_decision_trace("dec_1")
        assert (trace.tools, trace.decision.outcome_category) == ((), None)


@on_both
async def test_decisions_are_found_by_what_they_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1))
        await logs.write_decision_log(decision(2, Outcome.USER_INPUT, user_id="bob"))
        await logs.write_decision_log(decision(3, Outcome.TOOL_INVOCATION, conversation_id="conv_2"))
        await logs.write_decision_log(decision(4, Outcome.TASK_COMPLETED, decision_type="INVOKE_TOOL", tenant="acme"))
        await logs.write_decision_log(decision(5, None))

        async def found(*, limit: int = 100, offset: int = 0, **fields: object) -> list[str]:
            return [entry.decision_id[4:] for entry in await logs.query_decisions(Query(**fields), limit=limit, offset=offset)]  # type: ignore[arg-type]

        assert await found() == ["5", "4", "3", "2", "1"]
        assert await found(limit=2, offset=1) == ["4", "3"]
        assert await found(user_id="bob") == ["2"]
        assert await found(conversation_id="conv_2") == ["3"]
        assert await found(tenant="acme") == ["4"]
        assert await found(decision_type="INVOKE_TOOL") == ["4"]
        assert await found(outcome="ERROR:USER_INPUT") == ["2"]
        assert await found(outcome="ERROR") == await found(outcome="ERROR:") == ["3", "2"]
        with pytest.raises(InvalidRequest, match="no outcome is `ERR`"):
            await found(outcome="ERR")
        assert await found(since=START + timedelta(seconds=2), until=START + timedelta(seconds=4)) == ["3", "2"]
        for limit, offset in ((0, 0), (1001, 0), (1, -1)):
            with pytest.raises(InvalidRequest, match="limit must be 1 to 1000"):
                await logs.query_decisions(limit=limit, offset=offset)


@on_both
async def test_a_summary_counts_what_is_decided(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1, Outcome.TASK_COMPLETED, intent_type="LIST_TASKS", duration_ms=30.0))
        await logs.write_tool_invocation_log(invocation(1))
        await logs.write_tool_invocation_log(invocation(1, 2, success=False, error_code="DATABASE_ERROR"))
        await logs.write_decision_log(decision(2, Outcome.RESPONSE_GENERATION, intent_type=None))
        await logs.write_decision_log(decision(3, None))
        assert await logs.get_metrics_summary() == Shares(
            sample_size=2,
            intents={"LIST_TASKS": 1.0},
            tools={"list_tasks": 1.0},
            outcomes={"ERROR:RESPONSE_GENERATION": 0.5, "SUCCESS:TASK_COMPLETED": 0.5},
            error_rate=0.5,
            tool_success_rate=0.5,
            average_ms=20.0,
        )
        empty = await logs.get_metrics_summary(Query(user_id="nobody"))
        assert (empty.sample_size, empty.intents, empty.error_rate, empty.tool_success_rate) == (0, {}, 0, None)


@on_both
async def test_all_of_it_can_be_exported(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        assert "".join([piece async for piece in logs.export_logs("json")]) == "[]\n"
        for number in range(3):
            await logs.write_decision_log(decision(number))
        await logs.write_tool_invocation_log(invocation(1))
        whole = json.loads("".join([piece async for piece in logs.export_logs("json")]))
        lines = "".join([piece async for piece in logs.export_logs("jsonl")]).splitlines()
        assert [json.loads(line) for line in lines] == whole
        traces = msgspec.convert(whole, list[Trace])
        assert [trace.decision.decision_id for trace in traces] == ["dec_0", "dec_1", "dec_2"]
        assert traces[1] == await logs.get_decision_trace("dec_1")


@on_both
async def test_a_baseline_needs_ten_decisions_and_a_name_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        for number in range(9):
            await logs.write_decision_log(decision(number))
        with pytest.raises(InvalidRequest, match="9 decisions are too few; at least 10 are needed"):
            await logs.create_baseline("march")
        await logs.write_decision_log(decision(9, Outcome.USER_INPUT, intent_type="LIST_TASKS"))
        made = await logs.create_baseline("march", description="a good month")
        assert (made.sample_size, made.error_rate) == (10, 0.1)
        assert (made.sample_start, made.sample_end) == (START, START + timedelta(seconds=9))
        assert made.intent_distribution == {"GENERAL_CHAT": 0.9, "LIST_TASKS": 0.1}
        with pytest.raises(InvalidRequest, match="there is a baseline `march` already"):
            await logs.create_baseline("march")
        assert list(await logs.baselines()) == [made]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"sample_size": 9}, "sample_size must be at least 10"),
        ({"intent_distribution": {"LIST_TASKS": 0.9}}, "intent_distribution must sum to 1"),
        ({"name": " "}, "name must not be empty"),
    ],
)
def test_a_baseline_that_breaks_a_rule_cannot_be_made(fields: dict[str, object], rule: str) -> None:
    sound = BaselineSnapshot("march", "", START, START, {"LIST_TASKS": 1.005}, {}, 0.0, 10)
    with pytest.raises(ValueError, match=rule):
        replace(sound, **fields)


@on_both
async def test_drift_is_what_has_moved_by_more_than_a_tenth(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        for number in range(10):
            await logs.write_decision_log(decision(number, intent_type="LIST_TASKS" if number < 5 else "GENERAL_CHAT"))
        await logs.create_baseline("march")
        later = Query(since=START + timedelta(days=1))
        with pytest.raises(InvalidRequest, match="0 decisions are too few"):
            await logs.compare_to_baseline("march", later)
        with pytest.raises(NotFound, match="no baseline `april`; known: march"):
            await logs.compare_to_baseline("april", later)
        for number in range(100, 110):
            at = START + timedelta(days=2, seconds=number)
            await logs.write_decision_log(
                decision(number, intent_type="LIST_TASKS" if number < 106 else "GENERAL_CHAT", created_at=at)
            )
        steady = await logs.compare_to_baseline("march", later)
        assert [(drift.name, round(drift.change, 2), drift.is_flagged) for drift in steady.drifts] == [
            ("error_rate", 0.0, False),
            ("GENERAL_CHAT", -0.1, False),
            ("LIST_TASKS", 0.1, False),
        ]
        assert not steady.drift_detected
        await logs.write_decision_log(decision(200, intent_type="LIST_TASKS", created_at=START + timedelta(days=3)))
        assert (await logs.compare_to_baseline("march", later)).drift_detected
        # What the baseline was made of does not count, though nobody says so.
        assert (await logs.compare_to_baseline("march")).sample_size == 11


def test_errors_drift_too() -> None:
    before = BaselineSnapshot("march", "", START, START, {}, {}, 0.0, 10)
    flagged = [drift for drift in compare_shares(before, Shares(10, {}, {}, {}, 0.39, None, None)).drifts if drift.is_flagged]
    assert flagged == [Drift("errors", "error_rate", 0.0, 0.39)]


@on_both
async def test_a_call_that_was_refused_is_no_use_of_a_tool(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1))
        await logs.write_tool_invocation_log(invocation(1))
        for sequence, (name, code) in enumerate([("shell", "TOOL_NOT_FOUND"), ("delete_task", "INTENT_ERROR")], 2):
            refused = invocation(1, sequence=sequence, tool_name=name, success=False, error_code=code, error_message="no")
            await logs.write_tool_invocation_log(refused)
        shares = await logs.get_metrics_summary()
        assert (shares.tools, shares.tool_success_rate) == ({"list_tasks": 1.0}, 1 / 3)


def test_tools_drift_too_also_those_that_are_new() -> None:
    before = BaselineSnapshot("march", "", START, START, {}, {"list_tasks": 1.0}, 0.0, 10)
    now = Shares(10, {}, {"list_tasks": 0.8, "add_task": 0.2}, {}, 0.0, None, None)
    assert [drift for drift in compare_shares(before, now).drifts if drift.is_flagged] == [
        Drift("tool", "add_task", 0.0, 0.2),
        Drift("tool", "list_tasks", 1.0, 0.8),
    ]


async def test_what_is_older_than_thirty_days_goes_and_baselines_stay(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        for number in range(10):
            await logs.write_decision_log(decision(number))
        await logs.write_tool_invocation_log(invocation(3))
        await logs.create_baseline("march")
    async with opened(tmp_path, START + timedelta(days=30, seconds=5)) as logs:
        await logs.write_decision_log(decision(0, decision_id="dec_new", created_at=START + timedelta(days=30)))
        left = [entry.decision_id for entry in await logs.query_decisions()]
        assert left == ["dec_new", "dec_9", "dec_8", "dec_7", "dec_6", "dec_5"]
        assert [baseline.name for baseline in await logs.baselines()] == ["march"]
    connection = sqlite3.connect(tmp_path / "decisions.db")
    assert connection.execute("SELECT count(*) FROM tool_invocation_logs").fetchone() == (0,)
    connection.close()


async def test_ten_thousand_decisions_are_asked_by_index(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(0))
        connection = sqlite3.connect(tmp_path / "decisions.db")
        connection.executemany(
            "INSERT INTO decision_logs (decision_id, tenant, run_id, conversation_id, user_id, message, created_at, intent_type, "
            "decision_type, outcome_category) VALUES (?, '', '', ?, ?, 'x', ?, 'LIST_TASKS', 'INVOKE_TOOL', ?)",
            [
                (
                    f"d{number}",
                    f"conv_{number % 100}",
                    f"user_{number % 10}",
                    START.timestamp() + number,
                    list(Outcome)[number % 13],
                )
                for number in range(10_000)
            ],
        )
        connection.commit()
        for column in ("conversation_id", "user_id", "outcome_category"):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT * FROM decision_logs WHERE {column} = 'x' ORDER BY created_at DESC LIMIT 100"
            ).fetchall()
            assert "USING INDEX decisions_by_" in str(plan)
        connection.close()
        assert len(await logs.query_decisions(Query(user_id="user_3"), limit=1000)) == 1000
        assert (await logs.get_metrics_summary()).sample_size == 10_001
        assert len(await logs.query_decisions(Query(outcome="ERROR"), limit=1000)) == 1000


async def test_the_file_is_its_owners_alone_and_a_folder_is_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1))
        assert (tmp_path / "decisions.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "x" / "decisions.db").mkdir(parents=True)
    async with opened(tmp_path / "x") as logs:
        with pytest.raises(StoreError, match="is a folder; choose another file with --log"):
            await logs.query_decisions()


FIRST = (
    """
    CREATE TABLE decision_logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT, decision_id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, run_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL, user_id TEXT NOT NULL, message TEXT NOT NULL, created_at REAL NOT NULL, intent_type TEXT,
        confidence REAL, extracted_params TEXT, decision_type TEXT, outcome_category TEXT, response_text TEXT, duration_ms REAL
    )
    """,
    f"""
    INSERT INTO decision_logs (decision_id, tenant, run_id, conversation_id, user_id, message, created_at)
    VALUES ('dec_0', '', '', 'conv_1', 'ada', 'hi', {START.timestamp()})
    """,
)


async def test_a_log_of_before_there_was_a_mark_is_still_ours(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        for statement in FIRST:
            connection.execute(statement)
    for number in (1, 2):
        async with opened(tmp_path) as logs:
            await logs.write_decision_log(decision(number))
    async with opened(tmp_path) as logs:
        assert [entry.decision_id for entry in await logs.query_decisions()] == ["dec_2", "dec_1", "dec_0"]


async def test_a_log_may_be_in_the_database_of_the_runs(tmp_path: Path) -> None:
    for _ in range(2):
        async with SqliteStore(tmp_path / "decisions.db") as store, opened(tmp_path) as logs:
            assert await store.list_unfinished() == []
            assert await logs.open_decisions() == []


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE things (x)", "CREATE TABLE decision_logs (x)", f"PRAGMA application_id = {TASKS.application_id}"],
)
async def test_the_file_of_another_program_stays_as_it_is(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "decisions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    async with opened(tmp_path) as logs:
        with pytest.raises(StoreError, match="a database of another program; choose another file with --log"):
            await logs.write_decision_log(decision(1))
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, ["decisions.db"])


async def test_a_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await logs.write_decision_log(decision(1))
    with closing(sqlite3.connect(tmp_path / "decisions.db")) as connection, connection:
        connection.execute("UPDATE decision_log SET version = 99")
    async with opened(tmp_path) as logs:
        with pytest.raises(StoreError, match="newer Mainspring"):
            await logs.query_decisions()


@on_both
async def test_many_may_use_a_log_at_once_that_is_not_open_yet(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        await asyncio.gather(*[logs.write_decision_log(decision(number)) for number in range(20)])
        assert len(await logs.query_decisions()) == 20
