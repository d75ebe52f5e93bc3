"""An operator of many tenants: whose things are whose in every list, in the metrics, and in the log."""

import json
from pathlib import Path

import openai
import pytest
from anyio import to_thread
from tests.cli.command import Shell
from tests.server import process

from mainspring.http.auth import Keys
from mainspring.storage.sqlite_runs import SqliteStore

SETTINGS = """
log_level = "info"
metrics_by_tenant = true
agents = []
tools = ["mytools:add"]
[governance.rules]
add = "ask"
[budget]
per = "tenant"
[budget.limits]
max_tool_calls = 1000
"""
TOOLS = 'def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n'
TURNS: process.Script = [
    {"when": "add", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},
    {"when": "hi", "say": "Hello."},
    {"when": "hi", "say": "Hello."},
]


@pytest.fixture
async def shell(tmp_path: Path) -> Shell:
    """A folder whose server has served three tenants."""
    (tmp_path / "mainspring.toml").write_text(SETTINGS)
    (tmp_path / "mytools.py").write_text(TOOLS)
    async with SqliteStore(tmp_path / "served.db") as store:
        keys = {tenant: await Keys(store).create(tenant=tenant) for tenant in ("", "north", "south")}
    with process.serving(tmp_path, TURNS, env={"PYTHONPATH": str(tmp_path)}) as served:
        for tenant, words in (("", "hi"), ("north", "hi"), ("south", "add them")):
            async with openai.AsyncOpenAI(base_url=served.url, api_key=keys[tenant], max_retries=0) as client:
                await client.responses.create(input=words)
        async with openai.AsyncOpenAI(base_url=served.url.removesuffix("/v1"), api_key=keys[""]) as client:
            (tmp_path / "metrics.txt").write_text(await client.get("/metrics", cast_to=str))
        served.stop()
        assert served.process.stdout is not None
        (tmp_path / "log.txt").write_text(await to_thread.run_sync(served.process.stdout.read))
    return Shell(tmp_path)


async def test_lists_metrics_and_the_log_say_whose_things_they_are(shell: Shell) -> None:
    async def run(*arguments: str) -> str:
        done = await to_thread.run_sync(lambda: shell.run(*arguments, "--database", "served.db"))
        assert done.code == 0, done.err
        return done.out

    listed = (await run("runs")).splitlines()
    assert listed[0].split()[:2] == ["run", "tenant"]
    assert sorted([line.split()[1] for line in listed[1:]]) == ["-", "north", "south"]
    assert [json.loads(line)["tenant"] for line in (await run("runs", "--tenant", "north", "--json")).splitlines()] == ["north"]
    assert (await run("traces", "list", "--tenant", "south")).splitlines()[1].split()[0] == "south"
    assert len((await run("keys", "list", "--tenant", "north", "--json")).splitlines()) == 1
    assert (await run("approvals", "list", "--json")) == ""
    waiting = [json.loads(line) for line in (await run("approvals", "list", "--all-tenants", "--json")).splitlines()]
    assert [(each["tenant"], each["tool"]) for each in waiting] == [("south", "add")]
    assert (await run("approvals", "list", "--all-tenants")).splitlines()[1].split()[0] == "south"
    budgets = (await run("budgets", "list", "--all-tenants")).splitlines()
    assert {"north", "south"} <= {line.split()[0] for line in budgets[1:]}
    metrics = (shell.folder / "metrics.txt").read_text()
    assert 'status="completed"' in next(line for line in metrics.splitlines() if 'tenant="north"' in line)
    assert "of tenant `south` is requires_action" in (shell.folder / "log.txt").read_text()
