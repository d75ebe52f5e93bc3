"""A week with one person: nothing lost, nothing deleted unasked, no tool for small talk, all of it on record."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.decisions.week import LEFT, WEEK, Line
from tests.decisions.world import Cue, World, heard, world

from mainspring.core.events import ItemDone, ToolStarted
from mainspring.core.items import FunctionCall, Message, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.providers.scripted import Call, Turn, prompt
from mainspring_tasks.decision_log import Query
from mainspring_tasks.decision_types import DecisionType

USER = "ada-lovelace"


def checking(line: Line, w: World, cue: Cue) -> Callable[[ModelRequest], Turn | Call]:
    """The cue, after a look at what the model is asked: the same in each of its turns."""

    def turn(request: ModelRequest) -> Turn | Call:
        said = [item.text for item in request.items if isinstance(item, Message)]
        if line.kind is not DecisionType.EXECUTE_PENDING:
            assert heard(request) == line.message
            earlier = [message.content for message in w.history][-20:]
            assert said[: len(earlier)] == earlier
        assert len(said) <= 21
        assert (request.temperature, request.max_output_tokens, request.parallel_tool_calls) == (0.0, 1024, False)
        assert len([tool for tool in request.tools if isinstance(tool, ToolDefinition)]) == 5
        assert request.text is not None
        assert USER not in prompt(request)
        return cue(request) if callable(cue) else cue

    return turn


@pytest.mark.slow
async def test_a_week_ends_with_the_tasks_that_it_should(tmp_path: Path) -> None:
    assert len(WEEK) >= 120
    expected: list[str] = []
    async with world(tmp_path) as w:
        w.user = USER
        made = []
        for number, line in enumerate(WEEK):
            w.clock.pass_(minutes=line.minutes)
            done = await w.say(line.message, *[checking(line, w, cue) for cue in line.cues])
            line.effect(expected)
            about = f"message {number}, {line.message!r}: {done.decision.response_text!r}"
            assert (done.decision.decision_type, done.report.outcome) == (line.kind, line.outcome), about
            assert await w.names() == expected, about
            assert not (line.talk and done.report.calls), about
            assert line.kind is not DecisionType.INVOKE_TOOL or done.decision.tool_calls[-1].tool_name == line.tool, about
            assert done.decision.response_text, about
            made.append(done)
        assert expected == LEFT
        await deletions_were_confirmed(w)
        rows = [*await w.logs.query_decisions(Query(user_id=USER), limit=1000)][::-1]
        assert [(row.decision_id, row.outcome_category) for row in rows] == [
            (done.id, done.report.outcome.value) for done in made
        ]
        assert [row.message for row in rows] == [line.message for line in WEEK]
        assert all(row.decision_type and row.response_text and row.duration_ms is not None for row in rows)
        await every_call_is_on_record(w, [row.decision_id for row in rows])


async def deletions_were_confirmed(w: World) -> None:
    rows = [*await w.logs.query_decisions(limit=1000)][::-1]
    deletions = 0
    for before, row in zip([None, *rows], rows, strict=False):
        tools = (await w.logs.get_decision_trace(row.decision_id)).tools
        deleted = [tool.parameters["task_id"] for tool in tools if tool.tool_name == "delete_task" and tool.success]
        if deleted:
            deletions += len(deleted)
            assert before is not None
            assert (before.decision_type, row.decision_type) == ("REQUEST_CONFIRMATION", "EXECUTE_PENDING")
            assert len(deleted) == 1
    assert deletions == 6


async def every_call_is_on_record(w: World, decisions: list[str]) -> None:
    """What the runs' own logs say that tools did is what the decision log says."""
    for decision_id in decisions:
        trace = await w.logs.get_decision_trace(decision_id)
        if not trace.decision.run_id:
            assert trace.tools == ()
            continue
        log = await w.store.events(trace.decision.run_id)
        names = {record.event.item.call_id: record.event.item.name for record in log if _is_call(record.event)}  # type: ignore[union-attr]
        started = [names.get(record.event.call_id, "delete_task") for record in log if isinstance(record.event, ToolStarted)]
        performed = [tool.tool_name for tool in trace.tools if tool.error_code not in ("INTENT_ERROR", "TOOL_NOT_FOUND")]
        assert performed == started
        assert [tool.sequence for tool in trace.tools] == list(range(1, len(trace.tools) + 1))


def _is_call(event: object) -> bool:
    return isinstance(event, ItemDone) and isinstance(event.item, FunctionCall)
