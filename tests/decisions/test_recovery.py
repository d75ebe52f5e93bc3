"""What becomes of a decision whose process ends: nothing is done by halves, and nothing for the wrong person."""

import sys
from pathlib import Path

import anyio
import pytest
from tests.decisions.dying import opened
from tests.decisions.world import Actor, answer, world
from tests.kit.processes import ROOT, run
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine
from mainspring.core.model_request import ModelRequest
from mainspring.features.approvals.pending import Approvals
from mainspring.ports import CallContext, ToolCall
from mainspring.providers.scripted import Turn, call, stall
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring_tasks import words
from mainspring_tasks.decision_engine import LLMAgentEngine, derive_owner
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import AgentDecision, DecisionContext
from mainspring_tasks.log_entries import Trace
from mainspring_tasks.task_tools import TOOLS, LocalTasks


async def test_a_run_that_is_left_is_taken_up_by_no_other_engine_and_ended_by_the_next_agent(tmp_path: Path) -> None:
    asked, store = anyio.Event(), MemoryStore()
    tasks, logs = LocalTasks(str(tmp_path / "tasks.db")), DecisionLogs(tmp_path / "decisions.db")
    decisions: list[AgentDecision] = []

    def thinking(request: ModelRequest) -> Turn:
        asked.set()
        return stall()

    await store.open()
    async with anyio.create_task_group() as group:
        engine = Engine(Actor(call("add_task", description="Milk"), thinking), store=store)
        agent = LLMAgentEngine(engine.host, tasks, logs)

        async def decide() -> None:
            decisions.append(await agent.process_message(DecisionContext("ada", "add milk", "c")))

        async with engine, agent:
            group.start_soon(decide)
            with anyio.fail_after(PATIENCE):
                await asked.wait()
    (decision,) = decisions
    told = f'I have added "Milk". {words.INTERRUPTED}'
    (row,) = await logs.query_decisions()
    # Whether an agent that is being closed can still read what it did is a matter of moments.
    assert decision.response_text in (words.BROKEN, told)
    if decision.response_text == words.BROKEN:
        (run_id,) = await store.list_unfinished()
        assert (row.run_id, row.outcome_category) == (run_id, None)
    async with Engine(Actor(), store=store) as engine:
        assert await engine.resume_all() == []
    async with Engine(Actor(), store=store) as engine, LLMAgentEngine(engine.host, tasks, logs):
        assert await store.list_unfinished() == []
    trace = await logs.get_decision_trace(row.decision_id)
    assert trace.decision.outcome_category == "ERROR:RESPONSE_GENERATION"
    assert trace.decision.response_text == told
    assert [(tool.tool_name, tool.success) for tool in trace.tools] == [("add_task", True)]
    await tasks.close()
    await logs.close()


def killed(folder: Path, message: str, moment: str) -> int:
    return run([sys.executable, "-m", "tests.decisions.dying", str(folder), message, moment], cwd=ROOT).returncode


async def left(folder: Path) -> tuple[list[Trace], list[str]]:
    """The log after the server's own engine and the next agent have opened the store, oldest first, and the tasks."""
    engine, agent, logs = opened(folder)
    async with engine:
        assert await engine.resume_all() == []
        async with agent:
            assert await engine.store.list_unfinished() == []
        rows = [await logs.get_decision_trace(row.decision_id) for row in await logs.query_decisions()]
        waiting = await Approvals(engine.core).list(tenant=derive_owner("", "ada"), state="pending")
        assert waiting.approvals == ()
    await logs.close()
    tasks = LocalTasks(str(folder / "tasks.db"))
    listed = (await tasks.call("ada", "list_tasks", {})).structured
    await tasks.close()
    assert isinstance(listed, dict)
    return rows[::-1], [task["description"] for task in listed["data"]]


@pytest.mark.slow
async def test_what_was_added_before_a_kill_is_on_record(tmp_path: Path) -> None:
    assert killed(tmp_path, "add milk", "add") == -9
    (trace,), tasks = await left(tmp_path)
    assert tasks == ["Milk"]
    assert trace.decision.run_id
    assert (trace.decision.decision_type, trace.decision.outcome_category) == ("INVOKE_TOOL", "ERROR:RESPONSE_GENERATION")
    assert [(tool.tool_name, tool.success) for tool in trace.tools] == [("add_task", True)]


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "remaining", "success"), [("before", ["Milk"], False), ("after", [], True)])
async def test_a_yes_is_carried_out_or_not_by_the_process_that_heard_it(
    moment: str, remaining: list[str], success: bool, tmp_path: Path
) -> None:
    tasks = LocalTasks(str(tmp_path / "tasks.db"))
    await tasks.call("ada", "add_task", {"description": "Milk"})
    await tasks.close()
    assert killed(tmp_path, "delete milk", "ask") == 0
    assert killed(tmp_path, "yes", moment) == -9
    (_, trace), found = await left(tmp_path)
    assert found == remaining
    assert trace.decision.decision_type == "EXECUTE_PENDING"
    assert trace.decision.outcome_category == ("SUCCESS:TASK_COMPLETED" if success else "ERROR:TOOL_INVOCATION")
    assert [(tool.tool_name, tool.success) for tool in trace.tools] == [("delete_task", success)]


async def test_an_operators_server_with_the_same_tools_is_not_taken_for_ours(tmp_path: Path) -> None:
    arguments = ("-m", "mainspring", "tasks", "serve", "--user", "alice", "--database", str(tmp_path / "tasks.db"))
    spec = ServerSpec("tasks", "stdio", command=sys.executable, args=arguments, trusted=True, sandboxed=False)
    servers = McpTools([spec])
    try:
        ours = next(tool for tool in TOOLS if tool.name == "add_task")
        theirs = next(tool for tool in (await servers.collect_tools()).definitions if tool.name == "add_task")
        made = ToolCall("call_1", "add_task", '{"description": "Milk"}', {"description": "Milk"})
        result = await servers.execute(made, CallContext("resp_1", ours, print))
        assert (result.is_error, str(result.output)[:40]) == (True, "No MCP server has a tool `add_task`; it ")
        assert not (await servers.execute(made, CallContext("resp_1", theirs, print))).is_error
    finally:
        await servers.close()
    tasks = LocalTasks(str(tmp_path / "tasks.db"))
    listed = (await tasks.call("alice", "list_tasks", {})).structured
    await tasks.close()
    assert isinstance(listed, dict)
    assert len(listed["data"]) == 1


async def test_a_decision_is_made_though_nobody_waits_for_it(tmp_path: Path) -> None:
    async with world(tmp_path, call("add_task", description="Milk"), answer("Added.", "CREATE_TASK")) as w:
        with anyio.CancelScope() as scope:
            async with w.agent.turn("ada", "c") as turn:
                scope.cancel()
                await turn.decide(DecisionContext("ada", "add milk", "c"))
        assert await w.names() == ["Milk"]
        (row,) = await w.logs.query_decisions()
        assert row.outcome_category == "SUCCESS:TASK_COMPLETED"


async def test_what_is_said_at_once_is_decided_in_order(tmp_path: Path) -> None:
    order: list[str] = []

    def first(request: ModelRequest) -> Turn:
        order.append("asked")
        return answer("One.")

    async with world(tmp_path, first, first, first) as w:

        async def say(number: int) -> None:
            async with w.agent.turn("ada", "c") as turn:
                order.append(f"begin {number}")
                await turn.decide(DecisionContext("ada", "hello", "c"))
                order.append(f"end {number}")

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(say, number)
    assert order == [step for number in range(3) for step in (f"begin {number}", "asked", f"end {number}")]
