"""The browser's only way out: a forward proxy that connects to checked addresses alone.

Every request of a page, be it a redirect, an image, a script or a WebSocket, arrives here as a host and a port. They pass the
same checks as a URL of `web_fetch`, and the connection goes to the checked address. Refusals are recorded and reported to the
model.

A connection carries one request: an absolute URL for plain HTTP, or a tunnel for everything else.
"""

import asyncio
import re
from asyncio import StreamReader, StreamWriter, Task
from collections.abc import Awaitable, Callable
from contextlib import suppress
from socket import socket
from types import TracebackType
from typing import Self

import anyio

from mainspring.core.errors import InvalidRequest
from mainspring.tools.addresses import AddressGuard, parse_endpoint
from mainspring.tools.builtin.web_fetch import check_url
from mainspring.tools.contract import ToolContext

MOST_CONNECTIONS = 64
MOST_BYTES = 64 << 20
"""What one call may load, of everything together."""
MOST_REFUSALS = 20
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 10.0
HEAD_BYTES = 1 << 16

Flaw = Callable[[str], Awaitable[str | None]]

_TUNNEL = re.compile(r"CONNECT (?P<authority>[^\s/?#@]+) HTTP/1\.[01]")
_PLAIN = re.compile(r"(?P<method>[A-Z]+) http://(?P<authority>[^\s/?#@]+)(?P<path>(?:[/?]\S*)?) HTTP/1\.[01]")
_LENGTH = re.compile(r"content-length:\s*(\d{1,15})", re.IGNORECASE)
_OF_HOP = ("connection:", "proxy-", "keep-alive:", "host:", "te:", "upgrade:")
_BROKEN = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError)


class Proxy:
    """Serves what connects to a listening socket, as `context` allows, from `async with` on."""

    def __init__(self, door: socket, guard: AddressGuard, flaw: Flaw | None, *, most_bytes: int = MOST_BYTES) -> None:
        self.port: int = door.getsockname()[1]
        self.context = ToolContext()
        self.refused: dict[str, str] = {}
        """Refused origins, with the reason. `BrowserSession.take_notes` empties it."""
        self._door, self._guard, self._flaw, self._most_bytes = door, guard, flaw, most_bytes
        self._taken = 0
        self._tasks: set[Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._door, limit=HEAD_BYTES)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, context: ToolContext) -> None:
        """Starts a new call, with its context and a byte count of 0."""
        self.context = context
        self._taken = 0

    def drop(self) -> None:
        """Closes every connection, and clears the refusals."""
        self.refused = {}
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= MOST_CONNECTIONS:
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            # Cancelled by `drop`; only `__aexit__` waits for this task.
            pass
        except _BROKEN:
            writer.write(_build_refusal(502, "the other side cannot be reached, or broke off"))
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with anyio.fail_after(HEAD_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, _, rest = head.partition("\r\n")
        if tunnel := _TUNNEL.fullmatch(first):
            origin, request = f"https://{tunnel['authority']}", b""
        elif plain := _PLAIN.fullmatch(first):
            origin, request = f"http://{plain['authority']}", _build_request(plain, rest)
        else:
            writer.write(_build_refusal(400, "this is no request for a proxy"))
            return
        try:
            theirs, them = await self._connect(origin)
        except InvalidRequest as error:
            if len(self.refused) < MOST_REFUSALS:
                self.refused[origin] = error.message
            writer.write(_build_refusal(403, error.message))
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await self._join((reader, them), (theirs, writer))
            else:
                them.write(request)
                length = _LENGTH.search(rest)
                await _copy(reader, them, int(length[1]) if length else 0)
                writer.write(await _read_response(theirs))
                await self._pass_bytes(theirs, writer)
        finally:
            them.close()

    async def _connect(self, origin: str) -> tuple[StreamReader, StreamWriter]:
        """A connection to a checked address. Raises `InvalidRequest` if there may be none, `OSError` if there can be none."""
        check_url(origin, self.context)
        if self._flaw is not None and (why := await self._flaw(origin)) is not None:
            raise InvalidRequest(why)
        host, port = parse_endpoint(origin)
        failure = OSError(f"`{host}` has no address")
        for address in await self._guard.resolve(host, port):
            try:
                with anyio.fail_after(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port, limit=HEAD_BYTES)
            except OSError as error:
                failure = error
        raise failure

    async def _join(self, *ways: tuple[StreamReader, StreamWriter]) -> None:
        """Passes bytes both ways until one side ends."""
        async with anyio.create_task_group() as tasks:

            async def pass_on(reader: StreamReader, writer: StreamWriter) -> None:
                with suppress(*_BROKEN):
                    await self._pass_bytes(reader, writer)
                tasks.cancel_scope.cancel()

            for reader, writer in ways:
                tasks.start_soon(pass_on, reader, writer)

    async def _pass_bytes(self, reader: StreamReader, writer: StreamWriter) -> None:
        while chunk := await reader.read(HEAD_BYTES):
            self._taken += len(chunk)
            if self._taken > self._most_bytes:
                self.refused["the rest"] = f"more than {self._most_bytes:,} bytes were loaded in one call; open a smaller page"
                return
            writer.write(chunk)
            await writer.drain()
        await writer.drain()


async def _copy(reader: StreamReader, writer: StreamWriter, length: int) -> None:
    while length > 0 and (chunk := await reader.read(min(length, HEAD_BYTES))):
        length -= len(chunk)
        writer.write(chunk)
        await writer.drain()


def _build_request(plain: re.Match[str], rest: str) -> bytes:
    """The request for the origin server. The connection closes after the answer, so no second request can follow."""
    if "transfer-encoding:" in rest.lower():
        raise ValueError("a body without a length")
    path = plain["path"] if plain["path"].startswith("/") else f"/{plain['path']}"
    lines = [f"{plain['method']} {path} HTTP/1.1", f"Host: {plain['authority']}", *_keep_headers(rest)]
    return _build_head(lines)


async def _read_response(server: StreamReader) -> bytes:
    """The head of the response, with `Connection: close`."""
    with anyio.fail_after(HEAD_SECONDS):
        while True:
            first, _, rest = (await server.readuntil(b"\r\n\r\n")).decode("latin-1").partition("\r\n")
            if not first.startswith("HTTP/1."):
                raise ValueError("no answer of HTTP")
            if first.partition(" ")[2][:1] != "1":
                return _build_head([first, *_keep_headers(rest)])


def _keep_headers(rest: str) -> list[str]:
    return [line for line in rest.split("\r\n") if line and not line.lower().startswith(_OF_HOP)]


def _build_head(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


def _build_refusal(status: int, why: str) -> bytes:
    body = f"Not loaded: {why}.".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + body
