"""Clients that run on Node: their installation from the lock file, once per lock file, and their runs."""

import fcntl
import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.clients.process import environment

FOLDER = Path(__file__).parent / "node"
INSTALLING = 300
SECONDS = 60
_UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")


def run(script: str, *arguments: str, url: str, model: str) -> Any:
    """What a script of ours prints: JSON."""
    done = subprocess.run(
        ["node", script, *arguments],
        cwd=FOLDER,
        env=environment(BASE_URL=url, MODEL=model, AI_SDK_LOG_WARNINGS="false"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def install(folder: Path = FOLDER) -> None:
    """Makes `node_modules` what the lock file says; skips the test where that cannot be."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed, and this client needs it")
    if _version(["node", "--version"]) < 20:
        pytest.skip("these clients need Node 20 or newer")
    # Tests run in several processes; the first installs, the others wait for it.
    with (folder / ".gitignore").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "node_modules" / ".stamp"
        wanted = sha256((folder / "package-lock.json").read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALLING,
        )
        if done.returncode != 0 and any(sign in done.stderr for sign in _UNREACHABLE):
            pytest.skip("the Node clients are not installed, and npm cannot reach its registry")
        assert done.returncode == 0, done.stderr
        stamp.write_text(wanted)


def _version(command: list[str]) -> int:
    said = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ).stdout
    return int(said.lstrip("v").partition(".")[0])
