"""Connections with limits: on the head of a request, on the time it may take to send, and on how many one address may hold.

Theory of operation. All of this comes before any key is checked. uvicorn's fast parser takes heads of any size, so this protocol
counts the bytes of a head that has not ended, and looks at a head that has. One sweep each second, for all connections, ends
those that are too slow, to send or to read: a request costs a few additions here and no timer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sized
from functools import partial
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import TYPE_CHECKING, Any, Final, cast

from anyio import move_on_after
from httptools import HttpParserError
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from mainspring.core.items import encode
from mainspring.core.memory_quota import MemoryQuota
from mainspring.http.client_connection import CONNECTION
from mainspring.http.faults import Fault, render_error
from mainspring.http.settings import HttpSettings
from mainspring.late_module import LateModule

# Brings along a library that most servers never need.
if TYPE_CHECKING:
    from mainspring.http import socket_connection
else:
    socket_connection = LateModule("mainspring.http.socket_connection")

BODY_BYTES_PER_SECOND: Final = 1000
# What a body may have around it, in chunks, their extensions and trailers, for each of its bytes.
FRAMING_PER_BYTE: Final = 8
MOST_PIPELINED: Final = 256
MOST_FILES: Final = 65_536
SPARE_FILES: Final = 256
LEAVE_SECONDS: Final = 0.5
"""How long a proxy may still send a request on a connection that it keeps, once the server leaves."""


def raise_file_limit() -> int:
    """Lets this process open as many files as it may; a connection is one. Returns how many."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    files = MOST_FILES if hard < 0 else min(hard, MOST_FILES)
    if 0 <= soft < files:
        setrlimit(RLIMIT_NOFILE, (files, hard))
    return max(files, soft)


class ConnectionTable:
    """How many connections there are, by address, and what each may do."""

    def __init__(self, settings: HttpSettings, files: int, quota: MemoryQuota | None = None) -> None:
        self.settings = settings
        self.most = settings.connections or max(files - SPARE_FILES, 64)
        self.most_per_address = settings.connections_per_address or max(self.most // 2, 1)
        self.most_per_key = max(self.most // 2, 1)
        self.by_address: Counter[str] = Counter()
        # uvicorn wants a class, and calls it once per connection.
        self.protocol = cast("type[asyncio.Protocol]", partial(BoundedProtocol, self))
        self.socket_protocol = cast("type[asyncio.Protocol]", partial(_make_socket, quota or MemoryQuota()))

    def sweep(self, connections: Iterable[object], now: float) -> None:
        """Ends connections whose clients are too slow, and counts anew: an upgrade to a WebSocket leaves without a word."""
        self.by_address = Counter()
        for connection in list(connections):
            if isinstance(connection, WatchedReader):
                connection.check_progress(now)
                connection.check_reader(now, self.settings.unread_seconds)
            client = cast(Any, connection).client
            self.by_address[client[0] if client else ""] += 1


async def leave_connections(connections: Iterable[object], seconds: float) -> None:
    """Has requests go elsewhere that would come by connections which are open. A proxy may be sending one just now, and would
    take it for lost, so those that wait for a request have so long to go with the answer to one."""
    leaving = [each for each in connections if isinstance(each, BoundedProtocol)]
    for connection in leaving:
        connection.leave()
    with move_on_after(seconds):
        while any(each.is_idle for each in leaving):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for connection in leaving:
        if connection.is_idle:
            connection.transport.close()


class WatchedReader:
    """A connection that ends if its client reads nothing of what it is sent, which would be kept for it."""

    __slots__ = ("_unread", "_unread_since")

    transport: asyncio.Transport

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._unread, self._unread_since = 0, 0.0

    def check_progress(self, now: float) -> None:
        """Another second begins."""

    def check_reader(self, now: float, seconds: float) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self._unread:
            self._unread, self._unread_since = unread, now
        elif now - self._unread_since > seconds:
            self.transport.abort()


def _make_socket(quota: MemoryQuota, **given: Any) -> asyncio.Protocol:
    return socket_connection.BoundedSocket(quota, **given)


class BoundedProtocol(WatchedReader, HttpToolsProtocol):
    """uvicorn's protocol, with limits. Refusals are JSON as everywhere; the connection ends with them.

    Most connections wait most of the time, so what each takes is kept small: our fields are slots, since with them a connection
    would have more than Python can share the names of, and queues are made when something waits in them.
    """

    __slots__ = (
        "_body", "_fault", "_is_head", "_is_leaving", "_is_new", "_limits", "_received", "_running", "_since", "_table",
        "_tell_lost",
    )  # fmt: skip

    def __init__(self, table: ConnectionTable, **given: Any) -> None:
        super().__init__(**given)
        self.pipeline = cast(Any, _Pipeline())
        self._table, self._limits = table, table.settings
        self._is_head = True
        self._is_new = True
        self._is_leaving = False
        self._received = self._body = 0
        self._since = self.loop.time()
        self._fault: Fault | None = None
        self._running: RequestResponseCycle | None = None
        self._tell_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _PipelineFlow(transport, self.pipeline)
        table, address = self._table, self._address
        table.by_address[address] += 1
        if len(self.connections) > table.most:
            self._refuse(Fault(503, "too_many_connections", "the server has all the connections it can take; try later"))
        elif table.by_address[address] > table.most_per_address:
            message = f"this address has {table.most_per_address} connections already; close some, or use them again"
            self._refuse(Fault(429, "too_many_connections", message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.by_address[self._address] -= 1
        if self._running is not None:  # uvicorn tells the request that came last
            self._running.disconnected = True
            self._running.message_event.set()
            if self._tell_lost is not None:
                self._tell_lost()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Ends the connection with the next answer. One that is so new that nothing was asked yet stays: its request is on its
        way."""
        if not self._is_new:
            self._is_leaving = True
            if self.cycle is not None:
                self.cycle.keep_alive = False

    @property
    def is_idle(self) -> bool:
        """Whether it is open, was told to leave, and has no request whose answer it could leave with."""
        return self._is_leaving and self._has_answered and not self.transport.is_closing()

    @property
    def _has_answered(self) -> bool:
        """Whether nothing is being asked."""
        return self._received == 0 and (self.cycle is None or self.cycle.response_complete)

    @property
    def is_beginning(self) -> bool:
        """Whether its request is on its way, or has not been answered with a word yet."""
        return self._is_new or (self.cycle is not None and not self.cycle.response_started)

    def data_received(self, data: bytes) -> None:
        if self._received == 0:
            self._since = self.loop.time()
        self._received += len(data)
        super().data_received(data)
        extra = self._received if self._is_head else self._received - self._body * (1 + FRAMING_PER_BYTE)
        if extra > self._limits.head_bytes and not self.transport.is_closing():
            self._refuse(self._large_head() if self._is_head else _LARGE_FRAMING)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_head:  # what comes behind a body is no header, least of all a key
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        limits = self._limits
        if len(self.pipeline) >= MOST_PIPELINED:
            self._fault = Fault(429, "too_many_requests", f"{MOST_PIPELINED} requests wait on this connection already")
        elif len(self.headers) > limits.head_fields:
            message = f"a request may have {limits.head_fields} headers, not {len(self.headers)}"
            self._fault = Fault(431, "too_many_headers", message)
        elif self._received > limits.head_bytes and self._measure_head() > limits.head_bytes:
            self._fault = self._large_head()
        if self._fault is not None:
            raise HttpParserError(self._fault.message)
        self._is_head = self._is_new = False
        self._received, self._body = 1, 0
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        last = self.cycle
        super().on_headers_complete()
        if self.cycle is not last:  # else it is no request but an upgrade
            self.cycle.message_event = cast(Any, _Signal())
            if self._is_leaving:
                self.cycle.keep_alive = False
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._tell_lost is None or self.cycle is not self._running:  # else nobody reads it any more
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_head = True
        self._received = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._tell_lost = None
        if self.pipeline:
            self._running = self.pipeline[-1][0]
            super().on_response_complete()
            return
        # As uvicorn does, but for its timer: `check_progress` ends a connection that is kept for too long.
        self._running = None
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._since = self.loop.time()
            self.flow.resume_reading()

    def watch(self, then: Callable[[], None]) -> Callable[[], None]:
        """Calls `then` if the client leaves before the response is complete. Returns what ends that."""
        self._tell_lost = then
        self.flow.resume_reading()  # else it would not be noticed
        if self.transport.is_closing():
            self.loop.call_soon(then)
        return self._unwatch

    def _unwatch(self) -> None:
        self._tell_lost = None

    @property
    def unread(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def is_full(self) -> bool:
        return self.flow.write_paused

    def write_chunk(self, data: bytes) -> None:
        """A piece of the body that the response to the request that runs has without a length. A client that has left, which
        will be told, gets none."""
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def drain(self) -> None:
        await self.flow.drain()

    def handle_websocket_upgrade(self) -> None:
        """Another protocol takes the connection over: it has no answer to anything but GET, and whoever still writes an answer
        here would no longer know whether it is read."""
        if self.scope["method"] != "GET" or (self.cycle is not None and not self.cycle.response_complete):
            self._refuse(_BAD_UPGRADE)
        else:
            super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._fault or Fault(400, "invalid_http", "this is no HTTP request that can be understood"))

    def check_progress(self, now: float) -> None:
        """Ends the connection if its client takes too long over what it has begun to send, or to ask for something more."""
        if self.flow.read_paused:
            self._since = now  # it is us who do not read
        elif self._is_head:
            if (self._received or self._is_new) and now - self._since > self._limits.head_seconds:
                message = f"the head of the request did not come within {self._limits.head_seconds:g} s"
                self._refuse(Fault(408, "request_timeout", message))
            elif self._has_answered and now - self._since > self.timeout_keep_alive:
                self.transport.close()
        elif now - self._since > self._limits.body_seconds + self._received / BODY_BYTES_PER_SECOND:
            message = f"the body came slower than {BODY_BYTES_PER_SECOND} bytes a second; send it faster, or less of it"
            self._refuse(Fault(408, "request_timeout", message, param="body"))

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _measure_head(self) -> int:
        return len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])

    def _large_head(self) -> Fault:
        return Fault(431, "head_too_large", f"the line and the headers of a request may have {self._limits.head_bytes} bytes")

    def _refuse(self, fault: Fault) -> None:
        """Closes the connection, and says why unless an answer to something else is due on it."""
        cycle = self.cycle
        if cycle is None or (cycle.response_complete if self._is_head else not cycle.response_started):
            write_refusal(self.transport, fault)
        self.transport.close()


def write_refusal(transport: asyncio.Transport, fault: Fault) -> None:
    """Says on a connection that ends why it does."""
    body = encode({"error": render_error(fault)})
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    transport.write(STATUS_LINE[fault.status] + head + body)


class _Signal:
    """An `asyncio.Event` that makes no queue before somebody waits for it."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, ()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        if not self._is_set:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting = (*self._waiting, waiter)
            await waiter


class _Pipeline(list[Any]):
    """What uvicorn does with a queue that is almost always empty."""

    __slots__ = ()

    def appendleft(self, waiting: object) -> None:
        self.insert(0, waiting)


class _PipelineFlow(FlowControl):
    """Reads nothing more while a request waits for the answer to another: else each answer would let thousands in."""

    __slots__ = ("_pipeline",)

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._is_writable_event = cast(Any, _Signal(is_set=True))
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


_LARGE_FRAMING = Fault(
    400, "invalid_http", "there is more around the chunks of the body than in them; send larger ones", param="body"
)
_BAD_UPGRADE = Fault(400, "invalid_http", "a WebSocket begins with GET, when all requests before it are answered")
