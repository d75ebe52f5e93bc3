"""Traces: a trace per run, a step per turn, an action per call, and failures by the taxonomy; all of it read off the log."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import CHOOSE, order

from mainspring import Engine, tool
from mainspring.core.errors import ContextOverflow, Malformed, NotFound, RateLimited, Unavailable
from mainspring.core.events import (
    CallJudged,
    Event,
    ItemDone,
    ItemStarted,
    Reason,
    Recorded,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCall, Usage, decode, encode, user
from mainspring.core.run import Call, Run
from mainspring.features.traces.collector import TraceCollector
from mainspring.features.traces.failures import CATEGORIES, KINDS, classify_status
from mainspring.features.traces.trace_builder import build_trace
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.providers.scripted import Scripted, Turn, call, calls, fail, say, turn

USAGE = Usage(10, 5)


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
async def crash() -> str:
    """Fails."""
    raise RuntimeError("boom")


@tool(timeout=0.01)
async def dream() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


class Opinion:
    name = "opinion"

    async def judge(self, call: Call, run: Run) -> Verdict:
        match call.item.name:
            case "add" if '"a":13' in call.item.arguments:
                return Deny("13 brings bad luck")
            case "add" if '"a":7' in call.item.arguments:
                return Ask("Add to 7?")
            case _:
                return Allow()


async def traced(*turns: Turn, **options: Any) -> tuple[Run, TraceRecord]:
    """A run of these turns, and the trace of its stored log."""
    model = Scripted(*turns, *[say("That is all.")] * 3)
    async with Engine(model, tools=[add, crash, dream], policies=[Opinion()]) as engine:
        run = await engine.run("go", **options)
        records = await engine.store.events(run.spec.id)
        trace = build_trace(records)
        assert trace == await engine.trace(run.spec.id)
    assert decode(encode(trace), TraceRecord) == trace
    return run, trace


@pytest.mark.requirement("C36", "C61", "C-T18", "D69")
async def test_a_run_is_a_trace_a_turn_a_step_and_a_call_an_action() -> None:
    run, trace = await traced(
        turn(calls=[call("add", a=1, b=2), call("crash")], usage=USAGE),
        turn(say="Nearly.", calls=[call("add", a=3, b=4)], usage=USAGE),
        turn(say="Three and seven.", usage=USAGE),
        metadata={"task_id": "T-1", "desk": "north"},
        agent="adder",
    )
    assert re.fullmatch(r"TRC-\d{8}-\d{6}-[0-9A-F]{4}", trace.trace_id)
    assert (trace.run_id, trace.task_id, trace.context.agent_id) == (run.spec.id, "T-1", "adder")
    assert (trace.input.prompt, trace.output.result) == ("go", "Three and seven.")
    assert trace.metadata.tags == {"task_id": "T-1", "desk": "north"}
    assert [step.step_id for step in trace.turns] == ["step-1", "step-2", "step-3"]
    assert len(trace.turns) == run.turns == run.answered
    assert [[(action.tool, action.status) for action in step.actions] for step in trace.execution] == [
        [("add", "success"), ("crash", "failure")],
        [("add", "success")],
        [],
    ]
    assert [action.output for action in trace.actions] == ["3", "The tool `crash` failed: RuntimeError: boom", "7"]
    assert [step.finish for step in trace.execution] == ["tool_call", "tool_call", "stop"]
    assert trace.usage == run.usage == Usage(30, 15)
    assert (trace.started_at, trace.completed_at) == (run.started_at, run.clock)
    for step in trace.execution:
        assert step.first_token_at is not None
        assert step.model_at is not None
        assert trace.started_at <= step.started_at <= step.first_token_at <= step.model_at
        assert all(step.model_at <= (action.judged_at or 0) <= (action.started_at or 0) for action in step.actions)
    assert trace.outcome.status == "completed"


@pytest.mark.requirement("D76")
async def test_a_completed_run_is_no_failure_whatever_it_got_over() -> None:
    _, trace = await traced(calls(call("crash")), fail(Unavailable("down")), say("Done."), retry_model_errors=True)
    assert (trace.outcome.status, trace.outcome.failure_code, trace.outcome.failure_message) == ("completed", None, None)
    assert [(failure.code, failure.resolution.status) for failure in trace.failures] == [
        ("TL02", "resolved"),
        ("TL08", "resolved"),
    ]
    assert not any(failure.resolution.escalation_required for failure in trace.failures)


async def test_calls_that_are_not_performed_are_skipped_and_say_why() -> None:
    _, denied = await traced(calls(call("add", a=13, b=1), call("add", a="x"), call("nope")))
    assert [(action.status, action.verdict, action.policy) for action in denied.actions] == [
        ("skipped", "deny", "opinion"),
        ("skipped", "deny", "valid_arguments"),
        ("skipped", "deny", "known_tool"),
    ]
    assert [failure.code for failure in denied.failures] == ["TL03", "TL01", "TL01"]
    security = denied.failures[0]
    assert (security.category, security.severity, security.message) == ("F-SEC", "high", "13 brings bad luck")
    assert security.action_id == denied.actions[0].action_id
    _, asked = await traced(calls(call("add", a=7, b=1), call("choose")), tools=(CHOOSE,))
    assert [(action.status, action.verdict) for action in asked.actions] == [("skipped", "ask"), ("skipped", "client")]
    assert (asked.outcome.status, asked.outcome.run_status, asked.failures) == ("escalated", "requires_action", ())


async def test_a_tool_that_took_too_long_is_told_apart_from_one_that_failed() -> None:
    _, trace = await traced(calls(call("dream"), call("crash")))
    assert [action.status for action in trace.actions] == ["timeout", "failure"]
    assert [failure.code for failure in trace.failures] == ["TL02", "TL02"]
    assert [failure.resolution.retry_count for failure in sorted(trace.failures, key=lambda failure: failure.at)] == [0, 1]


ENDS: list[tuple[Turn, dict[str, Any], str, str, str | None]] = [
    (calls(call("add", a=1, b=1)), {"max_turns": 1}, "timeout", "incomplete", "TL04"),
    (calls(call("add", a=1, b=1)), {"max_tokens": 1}, "cancelled", "incomplete", "TL06"),
    (calls(call("add", a=1, b=1), call("add", a=1, b=2)), {"max_tool_calls": 1}, "cancelled", "incomplete", "TL06"),
    (say("I am cut", finish="length"), {}, "failed", "incomplete", "TL06"),
    (say("hm", finish="content_filter"), {}, "failed", "incomplete", "TL08"),
    (fail(RateLimited("slow down")), {}, "failed", "failed", "TL08"),
    (fail(ContextOverflow("too long")), {}, "failed", "failed", "TL05"),
    (calls(call("crash")), {"max_errors_in_row": 1}, "failed", "failed", "TL08"),
    (say("Fine."), {}, "completed", "completed", None),
]


@pytest.mark.parametrize(("said", "options", "status", "run_status", "code"), ENDS)
async def test_ends_are_told_by_the_taxonomy(said: Turn, options: Any, status: str, run_status: str, code: str | None) -> None:
    run, trace = await traced(said, **options)
    outcome = trace.outcome
    assert (outcome.status, outcome.run_status, outcome.failure_code) == (status, run_status, code), run.reason
    assert outcome.reason == run.reason
    if code is not None:
        last = trace.failures[-1]
        assert (last.code, last.message, last.resolution.status) == (code, outcome.failure_message, "pending")
        assert KINDS[last.code].name == last.name
        assert outcome.failure_category == last.category


async def test_a_failure_that_ended_the_run_is_told_once() -> None:
    _, trace = await traced(fail(RateLimited("slow down")))
    assert [failure.message for failure in trace.failures] == ["slow down"]


async def test_a_cancelled_run_is_cancelled_and_no_failure() -> None:
    async with Engine(Scripted(turn(say="I begin", stall=True))) as engine:
        handle = await engine.ask("go")
        async for record in handle.events():
            if record.seq == 3:
                await handle.cancel()
        trace = await engine.trace(handle.id)
    assert (trace.outcome.status, trace.outcome.failure_code, trace.failures) == ("cancelled", None, ())
    assert [step.status for step in trace.execution] == ["aborted"]
    assert trace.turns == ()


async def test_a_run_under_way_is_a_trace_that_runs() -> None:
    async with Engine(Scripted(turn(say="I begin", stall=True))) as engine:
        handle = await engine.ask("go")
        async for record in handle.events():
            if record.seq == 3:
                break
        trace = await engine.trace(handle.id)
        assert (trace.outcome.status, trace.completed_at, trace.duration_ms) == ("running", None, None)
        assert [(step.status, step.model_at) for step in trace.execution] == [("running", None)]
        await handle.cancel()


async def test_nudges_and_summaries_have_their_place() -> None:
    long = turn(say="word " * 300, calls=[call("add", a=1, b=1)])
    run, trace = await traced(long, say("A summary."), say("Done."), say("Really done."), confirm="Sure?", compact_threshold=300)
    assert [(step.kind, step.nudge) for step in trace.execution] == [
        ("turn", ""), ("compaction", ""), ("turn", ""), ("turn", "confirm"),
    ]  # fmt: skip
    assert len(trace.turns) == run.turns == 3
    assert trace.usage == run.usage


async def test_calls_that_were_approved_belong_to_the_run_that_makes_them() -> None:
    model = Scripted(calls(call("add", a=7, b=1)), say("Eight."))
    async with Engine(model, tools=[add], policies=[Opinion()]) as engine:
        paused = await engine.run("go")
        (request,) = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        run = await engine.run([ApprovalResponse(request.id, approve=True)], previous=paused.spec.id)
        trace = await engine.trace(run.spec.id)
    assert trace.metadata.continues == paused.spec.id
    assert [(step.kind, [(action.tool, action.status) for action in step.actions]) for step in trace.execution] == [
        ("opening", [("add", "success")]),
        ("turn", []),
    ]


def test_statuses_are_those_of_the_taxonomy() -> None:
    assert {reason: classify_status(reason) for reason in (*Reason, None)} == {
        Reason.FINAL_ANSWER: "completed",
        Reason.REFUSAL: "completed",
        Reason.CLIENT_ACTION: "escalated",
        Reason.APPROVAL_NEEDED: "escalated",
        Reason.MAX_TURNS: "timeout",
        Reason.MAX_TOOL_CALLS: "cancelled",
        Reason.OUTPUT_TRUNCATED: "failed",
        Reason.CONTENT_FILTER: "failed",
        Reason.PROVIDER_ERROR: "failed",
        Reason.RATE_LIMITED: "failed",
        Reason.ERRORS_IN_ROW: "failed",
        Reason.DEADLINE: "timeout",
        Reason.BUDGET: "cancelled",
        Reason.REPEATED_CALL: "failed",
        Reason.CANCELLED: "cancelled",
        Reason.INTERNAL_ERROR: "failed",
        None: "running",
    }
    assert {code: (kind.category, kind.severity) for code, kind in KINDS.items()} == {
        "TL01": ("F-EXE", "medium"),
        "TL02": ("F-EXE", "medium"),
        "TL03": ("F-SEC", "high"),
        "TL04": ("F-RES", "medium"),
        "TL05": ("F-RES", "high"),
        "TL06": ("F-RES", "medium"),
        "TL07": ("F-VAL", "low"),
        "TL08": ("F-EXE", "high"),
    }


def test_the_codes_mean_what_the_documentation_says() -> None:
    page = (Path(__file__).parents[2] / "docs/tracing.md").read_text()
    documented = {
        code: (meaning, *rest.split(", "))
        for code, meaning, rest in re.findall(r"^\| (TL\d\d) \| (.+?) \| (.+?) \|$", page, re.M)
    }
    assert documented == {
        code: (kind.meaning, kind.category, kind.severity) for code, kind in KINDS.items() if code in documented
    }
    assert len(documented) >= 7
    named = dict(re.findall(r"(F-[A-Z]{3}) \((\w+)\)", page.partition("The categories are")[2]))
    assert named == {category: CATEGORIES[category] for category in {kind[1] for kind in documented.values()}}


@pytest.mark.parametrize(("stop", "code"), [(None, "TL03"), (Reason.BUDGET, "TL06")])
def test_what_a_budget_does_not_cover_is_told_apart_from_what_it_has_run_out_of(stop: Reason | None, code: str) -> None:
    made = FunctionCall("call_1", "look", "{}", id="fc_1")
    story: list[Event] = [RunStarted(order()), TurnStarted(), ItemStarted(made), ItemDone(made), TurnEnded(usage=USAGE)]
    story += [CallJudged("call_1", "deny", "budget", "no", stop)]
    trace = build_trace([Recorded(seq, 100.0 + seq, event) for seq, event in enumerate(story)], [])
    assert [failure.code for failure in trace.failures] == [code]


def test_times_come_from_the_log_and_a_call_id_may_be_used_again() -> None:
    made = FunctionCall("call_1", "look", "{}", id="fc_1")
    story: list[Event] = [RunStarted(order())]
    for number in (1, 2):
        item = FunctionCall("call_1", "look", "{}", id=f"fc_{number}")
        story += [TurnStarted(), ItemStarted(item), ItemDone(item), TurnEnded(usage=USAGE)]
        story += [CallJudged("call_1", "allow", "gate"), ToolStarted("call_1"), ToolEnded("call_1", str(number))]
    log = [Recorded(seq, 100.0 + seq, event) for seq, event in enumerate([*story, RunEnded("incomplete", Reason.MAX_TURNS)])]
    trace = build_trace(log, [made])
    steps = [step for step in trace.execution if step.kind == "turn"]
    assert [(step.started_at, step.model_at, step.completed_at, step.duration_ms) for step in steps] == [
        (101.0, 104.0, 107.0, 6000.0),
        (108.0, 111.0, 114.0, 6000.0),
    ]
    assert [[(action.output, action.started_at, action.duration_ms) for action in step.actions] for step in steps] == [
        [("1", 106.0, 1000.0)],
        [("2", 113.0, 1000.0)],
    ]
    assert (trace.trace_id[:20], trace.duration_ms) == ("TRC-19700101-000140-", 15000.0)


@pytest.mark.requirement("D69")
def test_running_out_of_time_is_an_end_of_its_own() -> None:
    story: list[Event] = [RunStarted(order()), TurnStarted(), TurnAborted(), RunEnded("incomplete", Reason.DEADLINE)]
    trace = build_trace([Recorded(seq, 100.0 + seq, event) for seq, event in enumerate(story)])
    assert (trace.outcome.status, trace.outcome.failure_code, trace.outcome.reason) == ("timeout", "TL06", "deadline")
    assert [step.status for step in trace.execution] == ["aborted"]


def test_a_log_that_does_not_begin_with_its_start_is_refused() -> None:
    with pytest.raises(Malformed, match="begins with run_started"):
        build_trace([Recorded(0, 1.0, TurnStarted())])


@pytest.mark.requirement("C36")
def test_a_collector_is_told_step_by_step() -> None:
    collector = TraceCollector()
    trace = collector.start_trace("T-1", "S-1", run_id="resp_1", at=1.0)
    assert (trace.outcome.status, trace.task_id, trace.session_id) == ("running", "T-1", "S-1")
    collector.add_step(trace.trace_id, "one", at=2.0)
    collector.add_action(trace.trace_id, "two", "call_1", "look", at=3.0, started_at=3.0, completed_at=4.0, status="failure")
    failure = collector.record_failure(trace.trace_id, "it broke", "F-DEP", "high", at=4.0)
    assert (failure.code, failure.resolution.retryable, failure.resolution.escalation_required) == ("TL08", True, False)
    assert [step.step_id for step in collector.trace(trace.trace_id).execution] == ["one", "two"], "a missing step is added"
    done = collector.complete_trace(trace.trace_id, "failed", at=5.0, failure=failure)
    assert [(step.status, step.completed_at) for step in done.execution] == [("completed", 5.0), ("completed", 5.0)]
    assert (done.outcome.failure_message, done.outcome.failure_category, done.duration_ms) == ("it broke", "F-DEP", 4000.0)
    with pytest.raises(NotFound, match="no trace `TRC-"):
        collector.add_step(trace.trace_id, "late", at=6.0)


def test_what_keeps_failing_or_cannot_be_repeated_needs_somebody() -> None:
    collector = TraceCollector()
    trace_id = collector.start_trace("", "", run_id="resp_1", at=1.0).trace_id
    needs = [collector.record_failure(trace_id, "again", "F-EXE", "high", at=2.0).resolution for _ in range(2)]
    assert [need.escalation_required for need in needs] == [False, True]
    assert collector.record_failure(trace_id, "no", "F-SEC", "high", at=3.0, code="TL03").resolution.escalation_required


def test_a_prompt_is_the_last_thing_said() -> None:
    started = RunStarted(order(input=(user("first"), user("second"))))
    assert build_trace([Recorded(0, 1.0, started)]).input.prompt == "second"
