"""One run, seen through all eyes: response, loop result, trace, spans, metrics and observations tell the same."""

from collections import Counter
from pathlib import Path

import pytest
from tests.agents.world import engine_of, written
from tests.trace.test_metrics import scraped, value

from mainspring.core.delegation import child_id
from mainspring.core.events import CallJudged, TurnEnded
from mainspring.core.items import Usage
from mainspring.core.response import response
from mainspring.engine.traceparent import derive_span_id
from mainspring.features.agents.agent_result import ToolLoopConfig, read_result
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.observation import Observation
from mainspring.features.traces.spans import Span, build_spans
from mainspring.providers.scripted import call, say, turn

PLAIN = ToolLoopConfig(enable_double_confirmation=False)
USAGE = Usage(100, 10)


@pytest.mark.requirement("C61")
async def test_every_view_of_a_run_tells_the_same(tmp_path: Path) -> None:
    written(tmp_path / "agents", "clerk")
    engine, script = engine_of(
        tmp_path / "agents",
        turn(calls=[call("look", at="a"), call("fail"), call("nothing")], usage=USAGE),
        turn(calls=[call("look", at="b")], usage=USAGE),
        turn(say="Nothing anywhere.", usage=USAGE),
        database=tmp_path / "runs.db",
        memory=True,
    )
    async with engine:
        result = await engine.agents.invoke_iterative("clerk", {"task": "look around"}, PLAIN)
        run = (await engine.attach(result.run_id)).run
        log = await engine.store.events(result.run_id)
        stored = (await engine.store.load(result.run_id)).response
        trace = await engine.trace(result.run_id)
        told = scraped(engine)
    spans = list(build_spans(trace, "scripted"))
    script.assert_done()

    assert stored == response(run)
    assert result == read_result(run)
    turns = sum(isinstance(record.event, TurnEnded) for record in log)
    assert turns == result.iterations == len(trace.turns) == sum([span.name.startswith("chat") for span in spans]) == 3
    assert turns == value(told, "mainspring_turns_total", model=run.spec.model, status="completed")

    judged = [record.event for record in log if isinstance(record.event, CallJudged)]
    performed = [action for action in trace.actions if action.started_at is not None]
    assert len(judged) == len(trace.actions) == sum(told["mainspring_tool_calls_total"].samples.values()) == 4
    assert len(performed) == result.tool_calls_made == sum([event.verdict == "allow" for event in judged]) == 3
    assert trace.calls == tuple(performed)
    assert tuple(dict.fromkeys([action.tool for action in performed])) == result.tools_used

    assert run.usage == trace.usage == Usage(300, 30)
    assert result.tokens_used == trace.usage.total_tokens == spans_tokens(spans)
    assert stored is not None
    assert stored.usage is not None
    assert stored.usage["total_tokens"] == sum(told["mainspring_tokens_total"].samples.values()) == 330

    assert (trace.started_at, trace.completed_at) == (log[0].at, log[-1].at) == (spans[0].start, spans[0].end)
    seconds = value(told, "mainspring_run_duration_seconds_sum", preset="iterative")
    assert seconds == pytest.approx(log[-1].at - log[0].at, abs=0.001)
    assert (run.status, trace.outcome.status, result.termination_reason) == ("completed", "completed", "completed")
    observed = Counter([seen.event_type for seen in await observations(tmp_path)])
    assert observed == {"llm_response": len(trace.turns), "tool_call": len(trace.actions)}
    assert (trace.context.agent_id, spans[0].name) == ("clerk", "invoke_agent clerk")


async def observations(folder: Path) -> list[Observation]:
    """What is remembered, read by another engine on the same file."""
    engine, _ = engine_of(folder / "agents", database=folder / "runs.db", memory=True)
    async with engine:
        memory = engine.memory
        assert isinstance(memory, Memory)
        found = await memory.search("", tenant="", top_k=100)
        return [await memory.get(each.citation, tenant="") for each in found]


def spans_tokens(spans: list[Span]) -> int:
    """The tokens of all turns."""
    used = [span.attributes for span in spans if span.name.startswith("chat")]
    return sum([int(str(each[f"gen_ai.usage.{kind}_tokens"])) for each in used for kind in ("input", "output")])


@pytest.mark.requirement("C36")
async def test_a_delegated_run_is_linked_with_the_one_that_called_it(tmp_path: Path) -> None:
    written(tmp_path, "boss", dependencies=[{"agent": "helper", "purpose": "Helps."}])
    written(tmp_path, "helper", inputs={"what": {"required": True}})
    engine, _ = engine_of(
        tmp_path, call("agent_helper", what="lines"), say("Three."), say("Yes, three."), say("It has three lines.")
    )
    async with engine:
        result = await engine.agents.invoke_iterative("boss", {"task": "x"}, PLAIN)
        parent = await engine.trace(result.run_id)
        (child_run,) = parent.metadata.children
        child = await engine.trace(child_run)
    assert child_run == child_id(result.run_id, parent.actions[0].action_id)
    assert (child.metadata.parent, child.context.agent_id) == (result.run_id, "helper")
    assert next(build_spans(child, "scripted")).parent == derive_span_id(result.run_id)
    assert parent.started_at <= child.started_at
    assert (child.completed_at or 0) <= (parent.completed_at or 0)
