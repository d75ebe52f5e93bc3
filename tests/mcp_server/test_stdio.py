"""`mainspring mcp serve`: the SDK's own client starts it, in both eras."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult
from tests.agents.world import written as write_agent
from tests.clients.process import environment
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.slow

TOOLS = '''
from mainspring import tool


@tool(effects=("destructive",))
def wipe(disk: str) -> str:
    """Must not run twice."""
    print("what a tool prints is no message")
    return f"wiped {disk}"
'''
SETTINGS = """
agents = ["agents"]
tools = ["disks:wipe"]
model = "scripted:script.json"
[mcp_server]
tools = ["wipe"]
[governance.rules]
wipe = "ask"
"""


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_starts_it_and_a_person_approves_by_a_form(mode: Literal["auto", "legacy"], tmp_path: Path) -> None:
    write_agent(tmp_path / "agents", "helper", inputs={"job": {"required": True}})
    (tmp_path / "disks.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text(SETTINGS)
    (tmp_path / "script.json").write_text('{"turns": [{"say": "Done."}], "repeat": true}')
    asked: list[str] = []

    async def choose(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        schema = params.requested_schema  # type: ignore[union-attr]
        return ElicitResult(action="accept", content={"answer": schema["properties"]["answer"]["enum"][1]})

    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mainspring", "mcp", "serve"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
    )
    async with Client(stdio_client(command), mode=mode, elicitation_callback=choose) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["agent_helper", "wipe"]
        helped = await client.call_tool("agent_helper", {"job": "tidy"})
        assert helped.content[0].text == "Done."  # type: ignore[union-attr]
        wiped = await client.call_tool("wipe", {"disk": "sda"})
        assert wiped.content[0].text == "wiped sda"  # type: ignore[union-attr]
    assert len(asked) == 1


def test_a_request_by_a_pipe_is_answered(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('model = "scripted:script.json"\n')
    (tmp_path / "script.json").write_text('{"turns": [{"say": "Done."}]}')
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "mcp", "serve"],
        input='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n',
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert json.loads(done.stdout)["error"]["code"] == -32600
    assert done.returncode == 0
