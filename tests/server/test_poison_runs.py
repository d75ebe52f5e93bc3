"""A run that ends its process each time it is resumed does so a few times only, and costs no other run its end."""

import json
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_database")]

TOOLS = '''
import os
from pathlib import Path

from mainspring import tool


@tool
def explode(number: int) -> str:
    """Ends the process, as a fault in a library would."""
    with Path("deaths").open("a") as file:
        file.write("x")
    os._exit(9)

'''
POISON: Script = [{"when": "poison", "calls": [{"name": "explode", "arguments": {"number": number}}]} for number in range(8)]
SCRIPT: Script = [
    *POISON,
    {"when": "linger", "say": "I am still here.", "pause": 0.3},
]


def ask(served: Served, path: str, body: object = None) -> dict[str, Any]:
    line = HTTPConnection(urlsplit(served.url).netloc, timeout=PATIENCE)
    sent = None if body is None else json.dumps(body)
    line.request("POST" if sent else "GET", f"/v1/{path}", sent, {"content-type": "application/json"})
    told: dict[str, Any] = json.loads(line.getresponse().read())
    line.close()
    return told


def follow(served: Served, run_id: str) -> dict[str, Any] | None:
    """The run when it has ended, or None when the server has."""
    end = time.monotonic() + PATIENCE
    while served.process.poll() is None:
        assert time.monotonic() < end
        with suppress(OSError, HTTPException):
            if (told := ask(served, f"responses/{run_id}"))["status"] not in ("queued", "in_progress"):
                return told
        time.sleep(0.02)
    return None


def begin(folder: Path, *options: str) -> tuple[str, str]:
    """A run that ends its process, and one of somebody else's. Returns their ids, when the process is gone."""
    (folder / "tools.py").write_text(TOOLS)
    with serving(folder, SCRIPT, "--tool", "tools", *options) as served:
        other = ask(served, "responses", {"input": "linger", "background": True})
        poison = ask(served, "responses", {"input": "poison", "background": True})
        served.process.wait(PATIENCE)
    return poison["id"], other["id"]


def start_again(folder: Path, poison: str, *options: str) -> dict[str, Any] | None:
    with suppress(AssertionError), serving(folder, SCRIPT, "--tool", "tools", *options) as served:
        return follow(served, poison)
    return None


@pytest.mark.parametrize("allowed", [None, 2])
def test_a_run_that_ends_each_process_that_resumes_it_has_failed_after_a_few(tmp_path: Path, allowed: int | None) -> None:
    if allowed is not None:
        (tmp_path / "mainspring.toml").write_text(f"[limits]\nmax_resumes = {allowed}\n")
    poison, other = begin(tmp_path)
    told, starts = None, 0
    while told is None:
        starts += 1
        assert starts < 6
        told = start_again(tmp_path, poison)
    assert (told["status"], told["error"]["code"], told["error"]["reason"]) == ("failed", "server_error", "resume_limit")
    assert starts == (allowed or 3) + 1
    assert len((tmp_path / "deaths").read_text()) == starts
    with serving(tmp_path, SCRIPT, "--tool", "tools") as served:
        ended = follow(served, other)
        assert ended is not None
        assert ended["status"] == "completed"


def test_polite_stops_are_not_counted(tmp_path: Path) -> None:
    script: Script = [{"when": "linger", "say": "I am still here.", "pause": 0.3}]
    (tmp_path / "mainspring.toml").write_text("drain_seconds = 0\n")
    with serving(tmp_path, script) as served:
        run_id = ask(served, "responses", {"input": "linger", "background": True})["id"]
        assert served.stop() == 0
    for _ in range(5):
        with serving(tmp_path, script) as served:
            assert ask(served, f"responses/{run_id}")["status"] == "in_progress"
            assert served.stop() == 0
