"""A wire tap between a client and the server: bytes pass unchanged, in the pieces they came in, and every exchange is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httptools
from msgspec import Struct
from tests.server.linter import TERMINAL, events_of, linted

Json = dict[str, Any]


class Exchange(Struct):
    """A request, and as much of the answer as has passed."""

    method: str = ""
    target: str = ""
    sent: bytes = b""
    status: int = 0
    kind: str = ""
    answer: bytes = b""
    is_whole: bool = False

    @property
    def body(self) -> Json:
        """The JSON that the client sent."""
        return dict(json.loads(self.sent))


class Tap:
    """Listens at `url`; what it hears is in `exchanges`."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._port = port

    def streams(self) -> list[Exchange]:
        """The streams of responses; other APIs have other events."""
        told = [exchange for exchange in self.exchanges if exchange.kind == "text/event-stream"]
        return [exchange for exchange in told if not exchange.target.startswith(("/v1/chat/completions", "/v1/messages"))]

    def posted(self) -> list[Json]:
        """The bodies of all requests for a response, in order."""
        wanted = ("POST", "/v1/responses")
        return [exchange.body for exchange in self.exchanges if (exchange.method, exchange.target) == wanted]

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", self._port)
        queue: list[Exchange] = []
        tasks = [
            asyncio.create_task(_pass(reader, before, _Asked(self.exchanges, queue).parser)),
            asyncio.create_task(_pass(behind, writer, _Told(queue).parser)),
        ]
        try:
            # Either side may hang up; then the other learns of it.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for side in (before, writer):
                side.close()
                with suppress(ConnectionError):
                    await side.wait_closed()


@asynccontextmanager
async def tapping(port: int) -> AsyncIterator[Tap]:
    tap = Tap(port)
    listening = await asyncio.start_server(tap.relay, "127.0.0.1", 0)
    tap.url = "http://{}:{}/v1".format(*listening.sockets[0].getsockname())
    try:
        yield tap
    finally:
        listening.close()


def lint(exchanges: Sequence[Exchange]) -> None:
    """Checks every stream that passed. Streams of one response, cut or resumed, must be pieces of the same one."""
    told: dict[str, dict[int, Json]] = {}
    for exchange in exchanges:
        events = events_of(exchange.answer) if exchange.is_whole else _cut(exchange.answer)
        if not events:
            continue
        first = events[0]
        name = first["response"]["id"] if "response" in first else urlsplit(exchange.target).path.rpartition("/")[2]
        known = told.setdefault(name, {})
        for event in events:
            assert known.setdefault(event["sequence_number"], event) == event, "a stream read again is the same"
    for known in told.values():
        events = [known[number] for number in sorted(known)]
        if any(event["type"] in TERMINAL for event in events):
            linted(events)


def _cut(stream: bytes) -> list[Json]:
    """The whole events of a stream that the client left."""
    whole = stream[: stream.rfind(b"\n\n") + 2].removesuffix(b"data: [DONE]\n\n")
    return events_of(whole + b"data: [DONE]\n\n") if whole else []


async def _pass(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, parser: httptools.HttpRequestParser | httptools.HttpResponseParser
) -> None:
    is_http = True
    with suppress(ConnectionError):
        while data := await source.read(65536):
            if is_http:
                try:
                    parser.feed_data(data)
                except httptools.HttpParserUpgrade:
                    is_http = False
            sink.write(data)
            await sink.drain()


class _Asked:
    """Hears requests."""

    def __init__(self, exchanges: list[Exchange], queue: list[Exchange]) -> None:
        self._exchanges, self._queue = exchanges, queue
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self._exchange = Exchange()
        self._exchanges.append(self._exchange)
        self._queue.append(self._exchange)

    def on_url(self, url: bytes) -> None:
        self._exchange.method = self.parser.get_method().decode()
        self._exchange.target += url.decode()

    def on_body(self, body: bytes) -> None:
        self._exchange.sent += body


class _Told:
    """Hears answers; they come in the order of their requests."""

    def __init__(self, queue: list[Exchange]) -> None:
        self._queue = queue
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._queue[0].kind = value.decode().partition(";")[0]

    def on_headers_complete(self) -> None:
        self._queue[0].status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._queue[0].answer += body

    def on_message_complete(self) -> None:
        if self._queue[0].status != 100:  # "Go on", to a client with a large body, is no answer yet.
            self._queue.pop(0).is_whole = True
