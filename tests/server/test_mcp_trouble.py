"""A configured MCP server that hangs or dies costs its own tools and nothing else."""

import json
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, Served, serving

ZOO = Path(__file__).parents[1] / "mcp" / "zoo.py"
DONE: dict[str, object] = {"say": "Done.", "expect": {"regex": r"\[output\] .*tick"}}


def read(name: str) -> dict[str, object]:
    """A call of the tool, whose name has a prefix where two servers offer it."""
    return {"calls": [{"name": name, "arguments": {"text": "tick"}}]}


def configure(folder: Path, **animals: str) -> None:
    """Writes the settings, with one server for each animal."""
    tables = []
    for label, animal in animals.items():
        arguments = json.dumps([str(ZOO), animal, str(folder / f"{label}.log")])
        tables.append(f"[mcp.{label}]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\nsandboxed = false\n")
    (folder / "mainspring.toml").write_text("\n".join(tables))


def ask(served: Served, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    line = HTTPConnection(urlsplit(served.url).netloc, timeout=PATIENCE)
    line.request(
        "GET" if body is None else "POST", path, None if body is None else json.dumps(body), {"content-type": "application/json"}
    )
    answer = line.getresponse()
    assert answer.status == 200
    found: dict[str, Any] = json.loads(answer.read())
    line.close()
    assert found["status"] != "failed", found
    return found


def wait_for(served: Served, states: dict[str, str]) -> None:
    end = time.monotonic() + PATIENCE
    while (seen := ask(served, "/readyz")["mcp"]) != states:
        assert time.monotonic() < end, seen
        time.sleep(0.05)


def test_a_server_that_hangs_at_its_start_holds_up_nobody(tmp_path: Path) -> None:
    configure(tmp_path, well="good", ill="mute")
    script: Script = [turn for _ in range(10) for turn in (read("read"), DONE)]
    with serving(tmp_path, script, env={"MAINSPRING_MCP_START_SECONDS": "0.1"}) as served:
        wait_for(served, {"well": "ready", "ill": "starting"})
        for _ in range(10):
            answer = ask(served, "/v1/responses", {"input": "hello"})
            assert [item["type"] for item in answer["output"]] == ["mcp_call", "message"]
        # It would be `down` by now if one of them had waited for it.
        assert ask(served, "/readyz")["mcp"] == {"well": "ready", "ill": "starting"}


def test_a_server_that_dies_again_and_again_holds_up_nobody(tmp_path: Path) -> None:
    configure(tmp_path, well="good", ill="mortal")
    script: Script = [turn for _ in range(10) for turn in (read("well__read"), DONE)]
    with serving(tmp_path, script, env={"MAINSPRING_MCP_START_SECONDS": "0.1"}) as served:
        wait_for(served, {"well": "ready", "ill": "ready"})
        for _ in range(10):
            answer = ask(served, "/v1/responses", {"input": "hello"})
            assert [item["type"] for item in answer["output"]] == ["mcp_call", "message"]
    # It is started again with growing pauses, however many ask.
    assert (tmp_path / "ill.log").read_text().count('"initialize"') < 8


def test_a_server_that_comes_back_has_its_tools_again(tmp_path: Path) -> None:
    configure(tmp_path, well="good", ill="good")
    settings = (tmp_path / "mainspring.toml").read_text()
    (tmp_path / "mainspring.toml").write_text(settings.replace(json.dumps(sys.executable), json.dumps(str(tmp_path / "late"))))
    call = read("well__read")
    script: Script = [call, {"say": "Done.", "expect": "There is no tool `well__read`"}, call, DONE]
    with serving(tmp_path, script, env={"MAINSPRING_MCP_START_SECONDS": "0.1"}) as served:
        wait_for(served, {"well": "down", "ill": "down"})
        assert ask(served, "/v1/responses", {"input": "hello"})["status"] == "completed"
        (tmp_path / "late").symlink_to(sys.executable)
        wait_for(served, {"well": "ready", "ill": "ready"})
        assert ask(served, "/v1/responses", {"input": "hello"})["status"] == "completed"


@pytest.mark.parametrize("flood", ["blank", "babble", "notifier", "pinger", "answerer"])
def test_a_server_that_talks_without_end_is_stopped(tmp_path: Path, flood: str) -> None:
    configure(tmp_path, well="good", ill=flood)
    script: Script = [turn for _ in range(3) for turn in (read("well__read"), DONE)]
    with serving(tmp_path, script, env={"MAINSPRING_MCP_START_SECONDS": "0.1"}) as served:
        log = tmp_path / "ill.log"
        end = time.monotonic() + PATIENCE
        # It has been started again, so it has been stopped.
        while not log.exists() or log.read_text().count('"initialize"') < 2:
            assert time.monotonic() < end, ask(served, "/readyz")
            time.sleep(0.05)
        for _ in range(3):
            answer = ask(served, "/v1/responses", {"input": "hello"})
            assert [item["type"] for item in answer["output"]] == ["mcp_call", "message"]


def test_a_server_whose_tools_always_change_is_not_waited_for_again_and_again(tmp_path: Path) -> None:
    configure(tmp_path, well="good", ill="fickle")
    log = tmp_path / "ill.log"
    script: Script = [turn for _ in range(12) for turn in (read("well__read"), DONE)]
    with serving(tmp_path, script, env={"MAINSPRING_MCP_START_SECONDS": "3"}) as served:
        wait_for(served, {"well": "ready", "ill": "ready"})
        for _ in range(12):
            ask(served, "/v1/responses", {"input": "hello"})
    # Each list takes 2 s. If every request had waited for a new one, there would be one for each.
    assert log.read_text().count('"tools/list"') < 8
