"""MCP servers that misbehave, each in its own way, on standard input and output.

    zoo.py ANIMAL LOG

Every message that arrives is appended to LOG, so that a test sees what reached the server, over all its lives.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

ANIMAL, LOG = sys.argv[1], Path(sys.argv[2])
HUGE = 100 * 1024 * 1024
FLOODS = {
    "blank": b"\n",
    "babble": b"1\n",
    "notifier": b'{"jsonrpc": "2.0", "method": "notifications/message"}\n',
    "pinger": b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
    "answerer": b'{"jsonrpc": "2.0", "id": 9999, "result": {}}\n',
}

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
READ: dict[str, Any] = {"name": "read", "description": "Reads.", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
WRITE: dict[str, Any] = {"name": "write", "inputSchema": SCHEMA}
MALFORMED: list[Any] = [
    READ,
    {"name": "schemaless"},
    {"name": "null", "inputSchema": None},
    {"name": "array", "inputSchema": []},
    {"name": "empty", "inputSchema": {}},
    {"name": "untyped", "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#"}},
    {"inputSchema": SCHEMA},
    "not even an object",
    {"name": "regex", "inputSchema": {"type": "object", "properties": {"text": {"type": "string", "pattern": "("}}}},
    WRITE,
    WRITE,
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request: dict[str, Any], text: str, **more: object) -> None:
    send({"id": request["id"], "result": {"content": [{"type": "text", "text": text}], **more}})


def refuse(request: dict[str, Any], code: int, message: str) -> None:
    send({"id": request["id"], "error": {"code": code, "message": message}})


def calls() -> int:
    return LOG.read_text().count('"tools/call"')


def tools(request: dict[str, Any]) -> dict[str, Any]:
    match ANIMAL:
        case "malformed":
            return {"tools": MALFORMED}
        case "endless":
            page = int(request.get("params", {}).get("cursor", 0))
            return {"tools": [{**READ, "name": f"read{page}"}], "nextCursor": str(page + 1)}
        case "renamed" if calls():
            return {"tools": [{**READ, "name": "peruse"}]}
        case "changed" if calls():
            return {"tools": [{**READ, "inputSchema": {**SCHEMA, "required": ["text"]}}]}
        case "liar":
            return {"tools": [{**READ, "outputSchema": {"type": "object", "required": ["word"]}}]}
        case _:
            return {"tools": [READ, WRITE]}


def called(request: dict[str, Any], inbox: Iterator[str]) -> None:
    match ANIMAL:
        case "stall":
            pass
        case "crash" if calls() == 1:
            sys.exit("the spring broke")
        case "doomed":
            sys.exit("the spring broke again")
        case "huge":
            sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {{"content": [{{"type": "text", "text": "')
            for _ in range(HUGE // 65_536):
                sys.stdout.write("x" * 65_536)
            sys.stdout.write('"}]}}\n')
            sys.stdout.flush()
        case "renamed" | "changed" if calls() == 1:
            send({"method": "notifications/tools/list_changed"})
            answer(request, "for the last time")
        case "renamed":
            refuse(request, -32602, f"Unknown tool: {request['params']['name']}")
        case "liar":
            answer(request, "none", structuredContent={"wort": "none"})
        case "curious":
            answer(request, " ".join([reply(inbox, "elicitation/create"), reply(inbox, "sampling/createMessage")]))
        case "progress":
            token = request["params"]["_meta"]["progressToken"]
            for step in (1, 2):
                told = {"progressToken": token, "progress": step, "total": 2}
                send({"method": "notifications/progress", "params": told})
            answer(request, "done")
        case "talker":
            token = request["params"]["_meta"]["progressToken"]
            for step in range(3_000):
                told = {"progressToken": token, "progress": step, "message": "x" * 2_000}
                send({"method": "notifications/progress", "params": told})
            answer(request, "done")
        case "wrong":
            for number in (request["id"] + 1, str(request["id"]), None):
                send({"id": number, "result": {"content": [{"type": "text", "text": "for somebody else"}]}})
            answer(request, "for you")
        case "twice":
            answer(request, "one")
            answer(request, "two")
        case "deep":
            sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {"[" * 100_000}{"]" * 100_000}}}\n')
            answer(request, "not so deep")
        case "asker":
            for number in range(3_000):
                send({"id": f"ping {number}", "method": "ping"})
            answer(request, "asked")
        case "shouter":
            if calls() == 1:
                Thread(target=shout, daemon=True).start()
            answer(request, "heard")
        case "polite":
            send({"id": "q", "method": "elicitation/create", "params": {"message": "Which colour?", "requestedSchema": SCHEMA}})
            answer(request, json.dumps(json.loads(next(inbox))["result"]))
        case "env":
            answer(request, json.dumps(dict(os.environ)))
        case _:
            answer(request, json.dumps(request["params"].get("arguments")))


def shout() -> None:
    """Complains without end, and keeps note of how often it was listened to."""
    with LOG.with_suffix(".shouts").open("w") as notes:
        while True:
            sys.stderr.write("x\n" * 10_000)
            sys.stderr.flush()
            notes.write("x")
            notes.flush()


def reply(inbox: Iterator[str], method: str) -> str:
    """What the client says to a question of ours."""
    send({"id": method, "method": method, "params": {"message": "?", "messages": [], "maxTokens": 1, "requestedSchema": SCHEMA}})
    return "refused" if "error" in json.loads(next(inbox)) else "answered"


def received() -> Iterator[str]:
    for line in sys.stdin:
        with LOG.open("a") as log:
            log.write(line)
        yield line


def main() -> None:
    pids = [os.getpid()]
    if ANIMAL == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pids.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    LOG.with_suffix(".pids").write_text(" ".join(map(str, pids)))
    if ANIMAL == "slow":
        time.sleep(1)
    inbox = received()
    for line in inbox:
        request = json.loads(line)
        if ANIMAL == "mute":
            continue
        if ANIMAL == "garbage":
            sys.stdout.buffer.write(b'hello\n{"jsonrpc": "2.0", "id":\n\xff\xfe\n[]\n\n{"id": 1}\n')
            sys.stdout.flush()
        match request.get("method"):
            case "server/discover" if ANIMAL == "brittle":
                sys.exit("expected initialize request")
            case "server/discover" if ANIMAL == "nameless":
                send({"id": None, "error": {"code": -32700, "message": "Parse error"}})
            case "notifications/initialized" if ANIMAL == "nameless":
                send({"id": None, "error": {"code": -32601, "message": "Method not found"}})
            case "initialize":
                about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
                send({"id": request["id"], "result": {**about, "serverInfo": {"name": ANIMAL, "version": "1"}}})
            case "tools/list":
                if ANIMAL == "fickle" and LOG.read_text().count('"tools/list"') > 1:
                    time.sleep(2)
                send({"id": request["id"], "result": tools(request)})
                if ANIMAL in FLOODS:
                    while True:
                        sys.stdout.buffer.write(FLOODS[ANIMAL] * 10_000)
                if ANIMAL == "fickle":
                    send({"method": "notifications/tools/list_changed"})
                if ANIMAL == "deaf":
                    time.sleep(600)
                if ANIMAL == "mortal":
                    raise OSError("the spring broke")
            case "tools/call":
                called(request, inbox)
            case str() if "id" in request:
                refuse(request, -32601, "Method not found")
            case _:
                pass
    if ANIMAL == "stubborn":
        time.sleep(600)


main()
