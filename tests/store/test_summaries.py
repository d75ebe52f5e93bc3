"""The lines of runs: what a list tells of them, read without logs and answers, on every store."""

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.store.logs import spec

from mainspring.core.events import ErrorInfo, Reason, Recorded, RunEnded, RunStarted, Status
from mainspring.core.history import ASKED
from mainspring.core.items import Json
from mainspring.core.response import Response
from mainspring.core.spec import Caller, RunSpec
from mainspring.ports import Document, Filter, Snapshot, Store
from mainspring.storage import summary_rows
from mainspring.storage.sqlite_runs import SqliteStore


async def begun(store: Store, order: RunSpec, at: float = 100.0) -> None:
    await store.append(order.id, [Recorded(0, at, RunStarted(order))])


async def ended(
    store: Store, id: str, status: Status = "completed", reason: Reason = Reason.FINAL_ANSWER, *documents: Document
) -> None:
    usage: Json = {"input_tokens": 7, "output_tokens": 3}
    told = Response(id=id, created_at=100, status=status, model="m", text={}, usage=usage)
    error = ErrorInfo("provider_unavailable", "nobody is at home") if status == "failed" else None
    await store.append(id, [Recorded(1, 105.0, RunEnded(status, reason, error))], Snapshot(told, (), documents))


async def found(store: Store, **fields: object) -> list[str]:
    return [run.id for run in (await store.summarize(limit=50, only=Filter(**fields))).runs]  # type: ignore[arg-type]


async def test_a_line_says_what_is_known_when_a_run_begins_and_when_it_has_ended(store: Store) -> None:
    order = replace(spec("resp_1", text="What  is\nnew? " + "x" * 999), agent="scout", tenant="acme", caller=Caller("key:1"))
    await begun(store, order)
    [line] = (await store.summarize()).runs
    assert (line.status, line.agent, line.tenant, line.caller, line.ended_at) == ("in_progress", "scout", "acme", "key:1", None)
    assert (line.prompt[:14], len(line.prompt), line.reason) == ("What is new? x", 300, "")
    await ended(store, "resp_1", "failed", Reason.PROVIDER_ERROR)
    [line] = await store.find_summaries([line.number])
    assert (line.status, line.reason, line.error) == ("failed", "provider_error", "nobody is at home")
    assert (line.input_tokens, line.output_tokens, line.created_at, line.ended_at) == (7, 3, 100.0, 105.0)


async def test_lines_are_found_by_agent_text_and_ids(store: Store) -> None:
    await begun(store, replace(spec("resp_1", text="Tidy up"), agent="scout", tenant="acme"))
    await begun(store, replace(spec("resp_2", text="Look UP"), agent="clerk", tenant="zeta"), 101.0)
    await begun(store, spec("resp_3"), 102.0)
    assert await found(store) == ["resp_3", "resp_2", "resp_1"]
    assert await found(store, agent="scout") == ["resp_1"]
    assert await found(store, agent="scout", tenant="acme") == ["resp_1"]
    assert await found(store, agent="scout", tenant="zeta") == []
    assert await found(store, text="up") == ["resp_2", "resp_1"]
    assert await found(store, text="resp_3") == ["resp_3"]
    assert await found(store, ids=("resp_1", "resp_3", "resp_9")) == ["resp_3", "resp_1"]
    assert await found(store, agent="scout", since=101.0) == []
    assert [run.id for run in (await store.list(only=Filter(text="tidy"))).runs] == ["resp_1"]


async def test_a_run_waits_for_a_person_until_its_time_is_up_or_another_goes_on_with_it(store: Store) -> None:
    asked = Document(ASKED, "mcpr_1", b'{"run":"resp_1","at":105.0,"until":200.0}')
    await begun(store, spec("resp_1"))
    await ended(store, "resp_1", "requires_action", Reason.APPROVAL_NEEDED, asked)
    assert await found(store, waits_at=150.0) == ["resp_1"]
    assert await found(store, waits_at=200.0) == []
    await begun(store, spec("resp_2", "resp_1"))
    assert await found(store, waits_at=150.0) == []
    assert [run.waits_until for run in (await store.summarize()).runs] == [None, None]


async def test_states_are_those_of_new_runs_and_of_the_unfinished(store: Store) -> None:
    for number in (1, 2, 3):
        await begun(store, spec(f"resp_{number}"), float(number))
    numbers = [run.number for run in (await store.summarize(newest_first=False)).runs]
    assert numbers == sorted(numbers)
    assert await store.find_last_number() == numbers[-1]
    await ended(store, "resp_1")
    await ended(store, "resp_3")
    assert await store.list_states(numbers[-1]) == {numbers[1]: "in_progress"}
    assert await store.list_states(numbers[1]) == {numbers[1]: "in_progress", numbers[2]: "completed"}


async def test_a_run_that_is_deleted_leaves_no_line_and_no_sum(store: Store) -> None:
    await begun(store, spec("resp_1"))
    await ended(store, "resp_1")
    [used] = await store.sum_usage("day")
    assert (used.group, used.model, used.runs, used.ended, used.seconds) == ("1970-01-01", "m", 1, 1, 5.0)
    assert (used.failed, used.input_tokens, used.output_tokens) == (0, 7, 3)
    assert await store.sum_usage("day", Filter(since=101.0)) == []
    assert await store.sum_usage("day", Filter(tenant="acme")) == []
    await store.delete("resp_1")
    assert (await store.summarize()).runs == ()
    assert await store.sum_usage("day") == []


@pytest.mark.parametrize(
    "only",
    [
        Filter(),
        Filter(tenant="acme"),
        Filter(tenant="acme", status=("failed",)),
        Filter(tenant="acme", model="m"),
        Filter(tenant="acme", agent="scout"),
        Filter(waits_at=150.0),
    ],
    ids=["all", "tenant", "status", "model", "agent", "waiting"],
)
async def test_a_page_of_lines_is_one_statement_over_an_index(tmp_path: Path, only: Filter) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        for number in range(30):
            await begun(store, replace(spec(f"resp_{number}"), tenant="acme", agent="scout"), float(number))
    connection = sqlite3.connect(tmp_path / "runs.db")
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    summary_rows.summarize(connection, 20, None, True, only)
    [asked] = [text for text in statements if text.lstrip().startswith("SELECT")]
    connection.set_trace_callback(None)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked}")]
    connection.close()
    outer = [step for step in plan if "later" not in step and "SUBQUERY" not in step]
    assert "segments" not in asked
    assert "INDEX" in outer[0], plan
    assert not [step for step in outer if step in ("SCAN runs", "SCAN summaries")], plan
