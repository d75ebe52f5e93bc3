"""What becomes of a decision whose process ends: nothing is done by halves, and nothing for the wrong person."""

import sys
from pathlib import Path

import anyio
from tests.decisions.world import Actor, answer, world

from mainspring.app import Engine
from mainspring.decisions import words
from mainspring.decisions.engine import LLMAgentEngine
from mainspring.decisions.log import DecisionLogs
from mainspring.decisions.tasks import TOOLS, LocalTasks
from mainspring.decisions.types import AgentDecision, DecisionContext
from mainspring.loop.request import ModelRequest
from mainspring.ports import CallContext, ToolCall
from mainspring.providers.scripted import Turn, call, stall
from mainspring.store.memory import MemoryStore
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.servers import ServerSpec


async def test_another_engine_that_takes_a_run_up_asks_before_it_does_anything(tmp_path: Path) -> None:
    asked, store = anyio.Event(), MemoryStore()
    tasks, logs = LocalTasks(str(tmp_path / "tasks.db")), DecisionLogs(tmp_path / "decisions.db")
    decisions: list[AgentDecision] = []

    def thinking(request: ModelRequest) -> Turn:
        asked.set()
        return stall()

    await store.open()
    async with anyio.create_task_group() as group:
        agent = LLMAgentEngine(Actor(thinking), tasks, store, logs)

        async def decide() -> None:
            decisions.append(await agent.process_message(DecisionContext("ada", "add milk", "c")))

        async with agent:
            group.start_soon(decide)
            with anyio.fail_after(10):
                await asked.wait()
    (decision,) = decisions
    assert decision.response_text == words.BROKEN
    (row,) = await logs.query_decisions()
    assert row.outcome_category == "ERROR:RESPONSE_GENERATION"
    (run_id,) = await store.unfinished()
    async with Engine(Actor(call("add_task", description="Milk")), store=store) as engine:
        (handle,) = await engine.resume_all()
        run = await handle.wait()
    assert (run.spec.id, run.status, run.tools_used) == (run_id, "requires_action", ())
    assert (await tasks.call("ada", "list_tasks", {})).structured == {
        "success": True,
        "data": [],
        "error": None,
        "error_code": None,
    }
    await tasks.close()
    await logs.close()


async def test_an_operators_server_with_the_same_tools_is_not_taken_for_ours(tmp_path: Path) -> None:
    arguments = ("-m", "mainspring", "tasks", "serve", "--user", "alice", "--database", str(tmp_path / "tasks.db"))
    spec = ServerSpec("tasks", "stdio", sys.executable, arguments, trusted=True, sandboxed=False)
    servers = McpTools([spec])
    try:
        ours = next(tool for tool in TOOLS if tool.name == "add_task")
        theirs = next(tool for tool in (await servers.toolset()).definitions if tool.name == "add_task")
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
