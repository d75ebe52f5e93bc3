"""An MCP server that looks around: its one tool `attempt` does as it is told and says what came of it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def connected(address: str) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5):
        return "connected"


def written(path: str) -> str:
    Path(path).write_text("spy")
    return "written"


def left_behind(mark: str) -> str:
    """A grandchild in a session of its own, whose parent is gone."""
    sleeper = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)  # {mark}\n"
    subprocess.run([sys.executable, "-c", sleeper], check=True, stdin=-3, stdout=-3, stderr=-3)
    return "left"


def ran(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20, check=False).stdout


ATTEMPTS: dict[str, Callable[[str], str]] = {
    "read": lambda path: Path(path).read_text(),
    "list": lambda path: json.dumps(sorted(os.listdir(path))),
    "write": written,
    "connect": connected,
    "environ": lambda _: json.dumps(dict(os.environ)),
    "leave": left_behind,
    "run": ran,
    "cwd": lambda _: os.getcwd(),
}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    match request:
        case {"method": "initialize", "id": number}:
            about = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "spy", "version": "1"},
            }
            return {"id": number, "result": about}
        case {"method": "tools/list", "id": number}:
            return {"id": number, "result": {"tools": [{"name": "attempt", "inputSchema": {"type": "object"}}]}}
        case {"method": "tools/call", "id": number, "params": {"arguments": {"what": what, "with": given}}}:
            try:
                text, is_error = ATTEMPTS[what](given), False
            except OSError as error:
                text, is_error = type(error).__name__, True
            return {"id": number, "result": {"content": [{"type": "text", "text": text}], "isError": is_error}}
        case {"id": number}:
            return {"id": number, "error": {"code": -32601, "message": "Method not found"}}
        case _:
            return None


for line in sys.stdin:
    if (told := answer(json.loads(line))) is not None:
        print(json.dumps({"jsonrpc": "2.0", **told}), flush=True)
