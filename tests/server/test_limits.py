"""The limits of runs, as operators, definitions and requests set them: real servers with settings files, asked over HTTP."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents.world import written
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, serving

Json = dict[str, Any]

ZOO = Path(__file__).parents[1] / "mcp" / "zoo.py"
TOOLS = '''
from mainspring import tool

BOX = []

@tool(effects=("read",))
async def look(at: int) -> str:
    """Looks at something."""
    return f"nothing at {at}"

@tool(effects=("read",))
def fail(at: int) -> str:
    """Never works."""
    raise RuntimeError("broken")

@tool(effects=("write",))
async def put(what: str) -> str:
    """Puts something into the box, in its own time."""
    import asyncio
    await asyncio.sleep(0.2)
    BOX.append(what)
    return "ok"

@tool(effects=("read",))
async def get() -> str:
    """What is in the box."""
    return BOX[-1] if BOX else "EMPTY"
'''


class Door:
    """A client of one server."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def post(self, path: str, **body: object) -> Json:
        answer = self._http.post(path, json=body)
        told: Json = answer.json()
        return {"status_code": answer.status_code, **told}

    def respond(self, **body: object) -> Json:
        return self.post("/responses", input="Go.", **body)

    def outputs(self, run_id: str) -> list[str]:
        """What the calls of a run came to."""
        items = self._http.get(f"/responses/{run_id}").json()["output"]
        return [item["output"] or json.dumps(item["error"]) for item in items if "output" in item]


@contextmanager
def door(folder: Path, settings: str, *turns: Json) -> Iterator[Door]:
    (folder / "boxes.py").write_text(TOOLS)
    head = 'tools = ["boxes"]\nagents = ["agents"]\n'
    (folder / "mainspring.toml").write_text(head + settings)
    (folder / "agents").mkdir(exist_ok=True)
    script: Script = list(turns)
    with (
        serving(folder, script, env={"PYTHONPATH": str(folder)}) as served,
        httpx.Client(base_url=served.url, timeout=PATIENCE) as http,
    ):
        yield Door(http)


def asks(*names: str, **arguments: object) -> Json:
    return {"calls": [{"name": name, "arguments": arguments} for name in names]}


def looks(count: int) -> list[Json]:
    return [asks("look", at=number) for number in range(count)]


@pytest.mark.requirement("C44", "D64")
def test_the_smaller_timeout_wins_for_a_shell_and_a_tool_of_an_mcp_server(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    zoo = f'[mcp.zoo]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(ZOO))}, "stall", "zoo.log"]\n'
    settings = f'builtins = ["shell"]\nsandbox = "unsafe"\n{zoo}sandboxed = false\n'
    body = {"inputs": {}, "tool_call_timeout_seconds": 1, "enable_double_confirmation": False}
    turns = (asks("shell", command="sleep 600"), asks("read", text="x"), {"say": "Gave up."})
    with door(tmp_path, settings, *turns) as it:
        told = it.post("/agents/bee/invoke-iterative", **body)
        outputs = it.outputs(told["run_id"])
    assert told["termination_reason"] == "completed", told
    assert [text for text in outputs if "longer than 1 s" not in text] == []
    assert len(outputs) == 2


@pytest.mark.requirement("C-T9", "C78")
def test_an_agent_with_dependencies_makes_ordinary_calls_one_by_one(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    written(agents, "boss", dependencies=[{"agent": "helper"}])
    written(agents, "helper")
    turn = {"calls": [{"name": "put", "arguments": {"what": "honey"}}, {"name": "get", "arguments": {}}]}
    with door(tmp_path, "", turn, {"say": "Done."}) as it:
        told = it.post("/agents/boss/invoke-iterative", inputs={}, enable_double_confirmation=False)
        outputs = it.outputs(told["run_id"])
    assert outputs == ["ok", "honey"]
