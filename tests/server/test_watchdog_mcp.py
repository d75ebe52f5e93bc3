"""While an MCP server answers with whatever it likes, nobody else notices: the call fails or is answered, and that is all."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from tests.server.process import Script
from tests.server.test_watchdog import MB, Attacked, start_server

pytestmark = pytest.mark.slow

Json = dict[str, Any]


def encode(asked: Json, **more: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], **more}).encode()


def say(asked: Json, *texts: str, **more: object) -> bytes:
    return encode(asked, result={"content": [{"type": "text", "text": text} for text in texts], "resultType": "complete", **more})


def chop(data: bytes) -> bytes:
    """Chunks of one byte each."""
    return b"".join([b"1\r\n%c\r\n" % byte for byte in data]) + b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)


def notify(method: str, **params: object) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n\n"


def ask_many(asked: Json, count: int) -> bytes:
    """A result that consists of questions."""
    questions = {f"q{number}": {"method": "ping"} for number in range(count)}
    return encode(asked, result={"resultType": "input_required", "inputRequests": questions, "requestState": "s"})


# What answers a call, by the name of the tool: its content type and its body in chunks.
ANSWERS: dict[str, tuple[str, Callable[[Json], bytes]]] = {
    "bytes_in_chunks": ("application/json", lambda asked: chop(say(asked, "x" * 2 * MB))),
    "event_in_chunks": ("text/event-stream", lambda asked: chop(b"data: " + say(asked, "x" * 2 * MB) + b"\n\n")),
    "progress": (
        "text/event-stream",
        lambda asked: chunk(notify("notifications/progress", progressToken=asked["id"], progress=1, message="x") * 100_000),
    ),
    "many_values": ("application/json", lambda asked: chunk(encode(asked, result={"content": [], "x": [[]] * 132_000}))),
    "json_in_text": (
        "application/json",
        lambda asked: chunk(say(asked, "[" + "[]," * 5 * MB + "[]]", structuredContent={"x": 1})),
    ),
    "many_blocks": ("application/json", lambda asked: chunk(say(asked, *["x"] * 43_000))),
    "one_large_text": ("application/json", lambda asked: chunk(say(asked, '[{,"\\' * 2 * MB))),
    "questions": ("application/json", lambda asked: chunk(ask_many(asked, 60_000))),
}


# Why some of them fail, in a word of the error; the others are answered.
REFUSED = {
    "chunks of a few bytes": ("bytes_in_chunks", "event_in_chunks"),
    "too many lines": ("progress",),
    "more than 131072 values": ("many_values",),
    "questions at once": ("questions",),
}


class Hostile(BaseHTTPRequestHandler):
    """Speaks the stateless protocol well, but for its answers to calls."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body, kind = b"", "application/json"
        match asked["method"]:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                body = chunk(encode(asked, result={"resultType": "complete", **about}))
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ANSWERS]
                body = chunk(encode(asked, result={"tools": tools, "resultType": "complete"}))
            case _:
                kind, make = ANSWERS[asked["params"]["name"]]
                body = make(asked)
        with suppress(OSError):
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("transfer-encoding", "chunked")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hostile_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    calls: Script = [{"when": name, "calls": [{"name": name, "arguments": {}}]} for name in ANSWERS]
    script: Script = [turn for call in calls for turn in (call, {"when": call["when"], "say": "Done."})]
    with hostile_server() as url:
        (folder / "mainspring.toml").write_text(f'[mcp.hostile]\nurl = "{url}"')
        with start_server(folder, [*script, {"when": "", "say": "Hello there."}]) as attacked:
            yield attacked


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_nobody_elses_trouble(attacked: Attacked, name: str) -> None:
    with attacked.expect_calm():
        answer = attacked.attacker.order(name)
    assert answer["status"] == "completed"
    call = cast(list[Json], answer["output"])[0]
    refusals = [part for part, names in REFUSED.items() if name in names]
    assert [part in json.dumps(call) for part in refusals] == [True] * (call["status"] == "failed")
