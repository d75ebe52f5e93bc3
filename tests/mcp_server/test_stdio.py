"""`mainspring mcp serve`: the SDK's own client starts it, in both eras."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult
from tests.agents.world import written as write_agent
from tests.clients.process import environment
from tests.kit.waiting import PATIENCE

from mainspring.http.bodies import MOST_BODY_BYTES

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


def start(folder: Path, stdin: int | IO[bytes], stdout: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    (folder / "mainspring.toml").write_text('model = "scripted:script.json"\n')
    (folder / "script.json").write_text('{"turns": [{"say": "Done."}]}')
    command = [sys.executable, "-m", "mainspring", "mcp", "serve"]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, cwd=folder, env=environment())


PING = b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}\n'
REQUEST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n'


def test_requests_by_a_pipe_are_answered_and_one_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, subprocess.PIPE) as process:
        told, _ = process.communicate(b"[" * (MOST_BODY_BYTES + 1) + b"\n" + REQUEST, timeout=PATIENCE)
    assert [json.loads(line)["error"]["code"] for line in told.splitlines()] == [-32700, -32600]
    assert process.returncode == 0


def test_requests_in_a_file_are_answered(tmp_path: Path) -> None:
    (tmp_path / "requests").write_bytes(REQUEST)
    with (tmp_path / "requests").open("rb") as requests, start(tmp_path, requests) as process:
        told, _ = process.communicate(timeout=PATIENCE)
    assert json.loads(told)["error"]["code"] == -32600
    assert process.returncode == 0


def test_it_ends_when_nobody_reads_any_more(tmp_path: Path) -> None:
    read, written = os.pipe()
    os.close(read)
    with start(tmp_path, subprocess.PIPE, written) as process:
        os.close(written)
        assert process.stdin is not None
        process.stdin.write(REQUEST)
        process.stdin.flush()  # and it stays open
        assert process.wait(PATIENCE) == 0


def test_no_more_is_read_than_can_be_answered(tmp_path: Path) -> None:
    """However many requests a client sends before it reads an answer."""
    count = 6_000
    with start(tmp_path, subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(PING % 0)
        server.stdin.flush()
        server.stdout.readline()
        before = peak_bytes(server.pid)
        server.stdin.write(b"".join([PING % number for number in range(1, count)]))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline())["id"] for _ in range(1, count)]
        grown = peak_bytes(server.pid) - before
        server.stdin.close()
        assert server.wait(PATIENCE) == 0
    assert sorted(answers) == [*range(1, count)]
    assert grown < 16 * 1024 * 1024


def peak_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
