"""What the load harness puts around a server: a fast backend, an MCP server, and two forwarders to compare with.

    python bench/upstream.py backend PORT               an OpenAI-compatible Chat Completions backend
    python bench/upstream.py floor PORT BACKEND         copies bytes between connections: nothing can cost less
    python bench/upstream.py calibrator PORT BACKEND    a bare ASGI application on uvicorn that forwards with aiohttp
    python bench/upstream.py mcp PORT                   an MCP server over HTTP with one tool, `plus`

The backend answers by the last user text: `small` says three words; `deltas N` says N pieces, one per packet; `loop N TOOL` makes
two calls in each of N turns and then answers; `hold N` says N pieces and keeps the line open; `paced RATE N` says N pieces, RATE
a second, each with the microsecond it was sent in. Each prints `ready` when it listens, and ends with its parent.
"""

import asyncio
import ctypes
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, NamedTuple, cast

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PHASES = 10


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return frame(f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode())


COUNTS = '{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}'
COUNTED = f'{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{COUNTS}}}'
FIRST = HEAD + chunk({"role": "assistant", "content": ""})
PIECE = chunk({"content": "word "})
END = frame(f"data: {COUNTED}\n\n".encode()) + frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"
STOP = chunk({}, "stop") + END


def make_calls(turn: int, tool: str) -> list[dict[str, object]]:
    return [
        {
            "index": index,
            "id": f"call_{turn}_{index}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps({"a": turn, "b": index})},
        }
        for index in range(2)
    ]


class Pacer:
    """Writes to all streams of one rate from one timer; a tenth of them at a time, so that they do not come all at once."""

    def __init__(self, rate: int) -> None:
        self._seconds = 1 / rate / PHASES
        self._streams: list[dict[asyncio.Transport, int]] = [{} for _ in range(PHASES)]
        self._joined = 0
        self._due = asyncio.get_running_loop().time()
        self._phase = 0
        self._tick()

    def join(self, transport: asyncio.Transport, pieces: int) -> None:
        self._streams[self._joined % PHASES][transport] = pieces
        self._joined += 1

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = max(self._due + self._seconds, loop.time())
        loop.call_at(self._due, self._tick)
        self._phase = (self._phase + 1) % PHASES
        streams = self._streams[self._phase]
        piece = chunk({"content": f"@{time.monotonic_ns() // 1000} "})
        for transport, left in list(streams.items()):
            if transport.is_closing():
                del streams[transport]
            elif left:
                transport.write(piece)
                streams[transport] = left - 1
            else:
                transport.write(STOP)
                del streams[transport]


class Backend(asyncio.Protocol):
    pacers: ClassVar[dict[int, Pacer]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._seen, self._due = cast(asyncio.Transport, transport), bytearray(), 0

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while len(self._seen) >= self._due and (end := self._seen.find(b"\r\n\r\n", 0, 65_536)) >= 0:
            head = bytes(self._seen[:end])
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            self._due = end + 4 + length
            if len(self._seen) < self._due:
                return
            body = bytes(self._seen[end + 4 : self._due])
            del self._seen[: self._due]
            self._due = 0
            self._answer(read_request(body) if body else None)

    def _answer(self, body: "Asked | None") -> None:
        if body is None:
            self._send_json({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "bench"}]})
            return
        asked, turn = body.text, body.turns
        kind, *amounts = asked.split()
        calls = make_calls(turn, amounts[1]) if kind == "loop" and turn < int(amounts[0]) else []
        if not body.is_stream:
            said = {"role": "assistant", "content": None if calls else "word word word", "tool_calls": calls or None}
            choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if calls else "stop"}
            reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            self._send_json({**reply, "usage": json.loads(COUNTS)})
        elif calls:
            made = b"".join(chunk({"tool_calls": [call]}) for call in calls)
            self._transport.write(FIRST + made + chunk({}, "tool_calls") + END)
        elif kind == "paced":
            self._transport.write(FIRST)
            rate, pieces = map(int, amounts)
            if rate not in self.pacers:
                self.pacers[rate] = Pacer(rate)
            self.pacers[rate].join(self._transport, pieces)
        elif kind in ("hold", "deltas"):
            self._transport.write(FIRST)
            self._say(int(amounts[0]), b"" if kind == "hold" else STOP)
        else:
            self._transport.write(FIRST + PIECE * 3 + STOP)

    def _say(self, left: int, end: bytes) -> None:
        """One piece per packet, as a model would send them."""
        if self._transport.is_closing():
            return
        self._transport.write(PIECE if left else end)
        if left:
            asyncio.get_running_loop().call_soon(self._say, left - 1, end)

    def _send_json(self, body: object) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)


class Asked(NamedTuple):
    """What the backend answers by: the last user text, and how many turns there have been."""

    text: str
    turns: int
    is_stream: bool


LONG_BYTES = 16_384
_USER = re.compile(rb'"role":"user","content":"([^"\\]*)"')


def read_request(body: bytes) -> Asked:
    """A long request is not parsed: that would take most of a core that the server is measured on."""
    if len(body) > LONG_BYTES and (texts := _USER.findall(body, 0, LONG_BYTES)):
        return Asked(texts[-1].decode(), body.count(b'"role":"assistant"'), b'"stream":true' in body)
    asked = json.loads(body)
    messages = asked["messages"]
    text = next(read_text(message["content"]) for message in reversed(messages) if message["role"] == "user")
    return Asked(text, sum(message["role"] == "assistant" for message in messages), bool(asked.get("stream")))


def read_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else content[-1]["text"]


class Floor(asyncio.Protocol):
    """One end of a connection that is forwarded. The first end opens the second."""

    def __init__(self, backend: int | None, other: "Floor | None" = None) -> None:
        self._backend, self.other = backend, other
        self.transport: asyncio.Transport | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._backend is not None:
            other = self.other = Floor(None, self)
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(loop.create_connection(lambda: other, "127.0.0.1", self._backend))
        elif self.other is not None and self.other._early:
            self.transport.write(self.other._early)
            self.other._early = b""

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve_protocol(make: Callable[[], asyncio.Protocol], port: int) -> None:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port, backlog=2048)
    print("ready", flush=True)
    await server.serve_forever()


Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def calibrate(port: int, backend: int) -> None:
    import aiohttp
    import uvicorn

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()) as session:

        async def forward(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            body, is_whole = b"", False
            while not is_whole:
                message = await receive()
                body += message.get("body", b"")
                is_whole = not message.get("more_body")
            url = f"http://127.0.0.1:{backend}{scope['path']}"
            async with session.post(url, data=body, headers={"content-type": "application/json"}) as answer:
                headers = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                async for data in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(forward, http="httptools", log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", port), backlog=2048)
        print("ready", flush=True)
        await server.serve([listening])


def serve_mcp(port: int) -> None:
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    def plus(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    listening = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run([listening])


def end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    import uvloop

    end_with_parent()
    role, port, *backend = sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:])
    match role:
        case "backend":
            # Not uvloop, which would gather what is written in a burst: models are slower.
            asyncio.run(serve_protocol(Backend, port))
        case "floor":
            uvloop.run(serve_protocol(lambda: Floor(backend[0]), port))
        case "calibrator":
            uvloop.run(calibrate(port, backend[0]))
        case "mcp":
            serve_mcp(port)


if __name__ == "__main__":
    main()
