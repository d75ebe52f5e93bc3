"""A run told as the events of the iterative runtime."""

from pathlib import Path

import anyio
import pytest
from tests.agents.world import engine_of, look, written

from mainspring import Engine
from mainspring.core.history import History
from mainspring.core.run import Run, fold, open_run
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.agent_stream import ToolLoopEvent, render_events
from mainspring.providers.scripted import call, calls, fail, say, turn

PLAIN = ToolLoopConfig(enable_double_confirmation=False)


async def events_of(engine: Engine, run_id: str) -> list[ToolLoopEvent]:
    found: list[ToolLoopEvent] = []
    run: Run | None = None
    for record in await engine.store.events(run_id):
        before, run = run, open_run(record, History()) if run is None else fold(run, record)
        found += render_events(before, record, run)
    return found


def kinds(events: list[ToolLoopEvent]) -> list[str]:
    return [event.event_type for event in events]


async def test_a_run_is_told_event_by_event_and_completed_is_last(tmp_path: Path) -> None:
    written(tmp_path, "bee", governance={"tool_policies": {"write": "ask", "fail": "deny"}})
    engine, _ = engine_of(tmp_path, turn(say="Hm.", calls=[call("look", at="a"), call("none")]), say("One."), say('{"a": 1}'))
    async with engine:
        result = await engine.agents.invoke_iterative("bee", {})
        events = await events_of(engine, result.run_id)
    assert kinds(events) == [
        "loop_started",
        "iteration_started", "llm_request", "llm_token", "llm_response", "tool_call_requested", "tool_call_requested",
        "tool_call_blocked", "tool_call_started", "tool_call_completed",
        "iteration_started", "llm_request", "llm_token", "llm_response", "confirmation_prompt",
        "iteration_started", "llm_request", "llm_token", "llm_response", "confirmation_result",
        "completed",
    ]  # fmt: skip
    assert [event.iteration for event in events if event.event_type == "iteration_started"] == [1, 2, 3]
    by_kind = {event.event_type: event for event in reversed(events)}
    assert by_kind["loop_started"].data["tools"] == ["look", "write"]
    assert by_kind["llm_response"].data["content"] == "Hm."
    assert by_kind["llm_response"].data["tool_calls"] == 2
    assert by_kind["tool_call_requested"].data["arguments"] == '{"at":"a"}'
    assert by_kind["tool_call_blocked"].data["tool"] == "none"
    assert by_kind["tool_call_blocked"].data["policy"] == "known_tool"
    done = by_kind["tool_call_completed"].data
    assert (done["tool"], done["success"], done["output"]) == ("look", True, "nothing at a")
    assert by_kind["confirmation_result"].data == {"confirmed": True}
    assert events[-1].data == {
        "termination_reason": "completed",
        "total_tokens": result.tokens_used,
        "tokens_available": True,
        "tool_calls_made": 1,
        "tools_used": ["look"],
        "output": {"a": 1},
        "run_id": result.run_id,
        "error": None,
    }
    assert [event.timestamp for event in events] == sorted(event.timestamp for event in events)


@pytest.mark.requirement("D76")
async def test_d76_a_completed_run_is_told_as_no_failure(tmp_path: Path) -> None:
    written(tmp_path, "bee")
    engine, _ = engine_of(tmp_path, say("Done."))
    async with engine:
        events = await events_of(engine, (await engine.agents.invoke_iterative("bee", {}, PLAIN)).run_id)
    assert "error" not in kinds(events)
    assert events[-1].data["termination_reason"] == "completed"


async def test_what_goes_wrong_is_told_and_completed_is_still_last(tmp_path: Path) -> None:
    written(tmp_path, "bee", constraints={"max_retries": 1})
    engine, _ = engine_of(tmp_path, fail("provider_unavailable"), fail("provider_unavailable"))
    async with engine:
        events = await events_of(engine, (await engine.agents.invoke_iterative("bee", {}, PLAIN)).run_id)
    assert [event.data.get("phase") for event in events if event.event_type == "error"] == ["llm", "llm", "run"]
    assert events[-1].data["termination_reason"] == "error"


async def test_repeats_are_told(tmp_path: Path) -> None:
    written(tmp_path, "bee")
    engine, _ = engine_of(tmp_path, *[call("look", at="a")] * 6, say("So far."))
    async with engine:
        events = await events_of(engine, (await engine.agents.invoke_iterative("bee", {}, PLAIN)).run_id)
    found = [event.data for event in events if event.event_type == "loop_detected"]
    assert [(data["warned"], data.get("withheld")) for data in found] == [(True, None), (True, "look"), (False, None)]
    assert events[-1].data["termination_reason"] == "loop_detected"


async def test_calls_that_a_limit_keeps_from_running_are_told_as_blocked(tmp_path: Path) -> None:
    async def dawdle() -> str:
        """Never ends."""
        await anyio.sleep_forever()
        return ""

    written(tmp_path, "bee")
    engine, _ = engine_of(tmp_path, calls(call("dawdle"), call("look", at="a")), tools=[dawdle, look])
    async with engine:
        result = await engine.agents.invoke_iterative("bee", {}, PLAIN, max_seconds=0.2)
        events = await events_of(engine, result.run_id)
    (stopped,) = [event.data for event in events if event.event_type == "tool_call_completed"]
    (blocked,) = [event.data for event in events if event.event_type == "tool_call_blocked"]
    assert (stopped["tool"], stopped["success"]) == ("dawdle", False)
    assert (blocked["tool"], blocked["reason"]) == ("look", "Not executed: the time limit of this run is reached.")
    assert events[-1].data["termination_reason"] == "duration_exceeded"


async def test_delegation_is_told_beside_its_call(tmp_path: Path) -> None:
    written(tmp_path, "boss", dependencies=[{"agent": "helper"}])
    written(tmp_path, "helper")
    engine, _ = engine_of(tmp_path, call("agent_helper", task="x"), say("A"), say("A"), say("Done."))
    async with engine:
        events = await events_of(engine, (await engine.agents.invoke_iterative("boss", {}, PLAIN)).run_id)
    told_of = [kind for kind in kinds(events) if kind.startswith(("delegation", "tool_call"))]
    assert told_of == [
        "tool_call_requested", "tool_call_started", "delegation_started", "delegation_progress", "delegation_progress",
        "tool_call_completed", "delegation_completed",
    ]  # fmt: skip
