"""The server behind Mainspring itself: what our client makes of it, and a delete that waits for a person."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tasks.conftest import SERVE, served

from mainspring.app.engine import Engine
from mainspring.providers.scripted import Scripted, call, say, turn
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ApprovalFilter, ServerSpec, ToolFilter
from mainspring_tasks.server.identity import issue_token, read_secret
from mainspring_tasks.server.sqlite_tasks import SqliteTasks
from mainspring_tasks.server.task_definitions import make_definitions

pytestmark = pytest.mark.slow

ASKS = ApprovalFilter(always=ToolFilter(tool_names=("delete_task",)), never=ToolFilter())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteTasks]:
    store = SqliteTasks(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


def spec(path: Path) -> ServerSpec:
    args = (*SERVE[1:], "--user", "alice", "--database", str(path))
    return ServerSpec("tasks", "stdio", command=sys.executable, args=args, trusted=True, require_approval=ASKS, sandboxed=False)


async def test_our_client_makes_of_the_server_what_is_written_down(store: SqliteTasks) -> None:
    tools = McpTools([spec(store.path)])
    try:
        found = await tools.collect_tools()
    finally:
        await tools.close()
    assert [offer.error for offer in found.offers] == [None]
    assert [replace(tool, timeout=None) for tool in found.definitions] == list(make_definitions())
    assert {tool.name for tool in make_definitions() if "destructive" in tool.effects} == {"delete_task"}
    assert [name for name, route in found.routes.items() if route.needs_approval] == ["delete_task"]


async def test_a_delete_waits_for_a_person_and_an_addition_does_not(store: SqliteTasks) -> None:
    script = Scripted(
        turn(calls=[call("add_task", description="Buy milk")]),
        turn(calls=[call("delete_task", task_id="6a1f6f0e-2a0c-4d56-8a4e-0d2f3c1b9e77")], expect="Buy milk"),
    )
    async with Engine(script, mcp=McpTools([spec(store.path)])) as engine:
        run = await engine.run("Add milk, delete the other.")
    assert run.status == "requires_action"
    assert [kept.description for kept in await store.list("alice")] == ["Buy milk"]


async def test_one_engine_speaks_for_many_users(store: SqliteTasks, tmp_path: Path) -> None:
    secret = read_secret(tmp_path / "tasks.key", make=True)
    with served(tmp_path, "--secret-file", "tasks.key", "--database", "tasks.db") as server:
        for user in ("alice", "bob"):
            headers = {"Authorization": f"Bearer {issue_token(secret, user)}"}
            tools = McpTools([ServerSpec("tasks", url=server.url, headers=headers, trusted=True, require_approval="never")])
            script = Scripted(turn(calls=[call("add_task", description=f"for {user}")]), say("Done.", expect="pending"))
            async with Engine(script, mcp=tools) as engine:
                assert (await engine.run("Add it.")).status == "completed"
    assert [kept.description for kept in await store.list("alice")] == ["for alice"]
    assert [kept.description for kept in await store.list("bob")] == ["for bob"]
