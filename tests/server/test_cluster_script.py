"""`scripts/cluster`: a deployment of local processes, up and down by one command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.kit.processes import ROOT
from tests.kit.waiting import PATIENCE


@pytest.mark.slow
def test_a_deployment_comes_up_answers_and_is_gone_when_it_is_ended(tmp_path: Path) -> None:
    def cluster(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(ROOT / "scripts" / "cluster.py"), *arguments, "--folder", str(tmp_path / "cluster")]
        return subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE, cwd=tmp_path)

    try:
        up = cluster("up", "--servers", "2", "--workers", "1")
        assert up.returncode == 0, up.stderr
        lines = {line.split()[0]: line.split() for line in up.stdout.splitlines()}
        assert {"postgres", "server1", "server2", "worker1"} <= set(lines)

        def ask(path: str, body: object) -> Any:
            head = {"content-type": "application/json"}
            with urlopen(Request(lines["server1"][-1] + path, json.dumps(body).encode(), head), timeout=60) as made:
                return json.load(made)

        run = ask("/responses", {"input": "Hello"})
        with urlopen(f"{lines['server2'][-1]}/responses/{run['id']}", timeout=60) as found:
            assert json.load(found) == run
        assert run["status"] == "completed"
        sent = {"filename": "a.txt", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}
        assert ask("/uploads", sent)["status"] == "pending", "there is a place for files"
        assert cluster("up").returncode == 1, "a second one in the same folder"
        assert cluster("status").returncode == 0
    finally:
        down = cluster("down")
    assert down.returncode == 0
    assert cluster("status").returncode == 1
    assert not (tmp_path / "cluster").exists()
    assert not [name for name, line in lines.items() if name[-1].isdigit() and Path(f"/proc/{line[1]}/exe").exists()]
