"""One HTTP/1.1 connection to another server, and the answers that arrive on it.

Theory of operation. The event loop pushes bytes into a `Connection`, `httptools` parses them at once, and what they hold of a
body waits in an `Answer` for its reader. A connection carries one exchange at a time. When its answer is whole it goes back to
its pool, whether or not the reader has read all of it; an answer that is closed before closes its connection, by which servers
know to stop. Everything is bounded: what waits for a slow reader by pausing the transport, heads by `HEAD_BYTES`, the frame
of a body (sizes of chunks, extensions, trailers) by that and a quarter of the body, so that tiny chunks are few, what a
compressed body unpacks to by unpacking only what is read, and silence by one timer for each answer.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

from mainspring.net.late_timers import call_late

if TYPE_CHECKING:
    from mainspring.net.client import HttpClient

HEAD_BYTES = 65_536
"""The most bytes of a head, and of anything else that is no body."""
HIGH_BYTES = 65_536
"""How much of a body waits for its reader before the server has to."""
PIECE_BYTES = 262_144
"""How much of a request is written at once."""


class HttpError(Exception):
    """There is no answer, or not all of one. The message says why."""


class Unreachable(HttpError):
    """There is no connection."""


class ConnectTimeout(Unreachable):
    """There was no connection in time."""


class TlsFailed(Unreachable):
    """The server has no certificate that is trusted, or speaks no TLS."""


class Silence(HttpError):
    """The server sent nothing for too long."""


class MalformedAnswer(HttpError):
    """What the server sent is no HTTP, or more of it than is taken."""


class Disconnected(HttpError):
    """The server closed the connection before its answer was whole."""


class Origin(NamedTuple):
    """Where connections lead."""

    is_tls: bool
    host: str
    port: int


class Answer:
    """What a server answers to one request, as it arrives. Whoever asked must `close` it.

    `read` raises an `HttpError` for an answer that breaks off, behind all that came of it.
    """

    __slots__ = (
        "_connection", "_error", "_is_over", "_loop", "_method", "_most", "_pieces", "_seconds", "_since", "_size", "_taker",
        "_timer", "_unpack", "_waiter", "headers", "reason", "status",
    )  # fmt: skip

    def __init__(self, method: str, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self.status, self.reason = 0, ""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self._method, self._seconds, self._loop = method, seconds, loop
        self._connection: Connection | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._unpack: _Unpacker | None = None
        self._error: HttpError | None = None
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[bytes], bool] | None = None
        self._most = 0
        self._since = 0.0
        self._timer = call_late(loop, seconds, self._watch)

    async def read(self) -> bytes:
        """What has arrived since the last read, waiting for it if need be; empty at the end."""
        while True:
            while self._pieces:
                if data := self._take():
                    return data
            if self._error is not None:
                raise self._error
            if self._is_over:
                if self._unpack is not None:
                    self._unpack.check_end()
                return b""
            await self._wait()

    async def push(self, take: Callable[[bytes], bool], most: int) -> None:
        """Calls `take` with what arrives in the moment it does, until that returns False or there is something to `read`, such as
        a piece of more than `most` bytes. Raises what it raises."""
        if self._pieces or self._error is not None or self._is_over:
            return
        self._taker, self._most = take, most
        try:
            await self._wait()
        finally:
            self._taker = None

    def close(self) -> None:
        """Closes the connection, unless the answer is whole."""
        self._pieces.clear()
        self.fail(Disconnected("the answer was closed"))

    async def receive_head(self) -> None:
        """Waits until status and headers are there."""
        while not self.status and self._error is None:
            await self._wait()
        if self._error is not None and not self.status:
            raise self._error

    async def send(self, connection: "Connection", head: bytes, body: bytes) -> None:
        """Sends the request on the connection. A server that answers before it has all of it gets no more."""
        self._connection = connection
        connection.begin(self)
        if not connection.is_open:  # it was lost before there was anybody to tell
            self.fail(Disconnected("the server closed the connection"))
            return
        if len(body) <= PIECE_BYTES:
            connection.transport.write(head + body)
            connection.is_sent = True
            return
        connection.transport.write(head)
        rest = memoryview(body)
        while rest and not self._has_begun:
            connection.transport.write(rest[:PIECE_BYTES])
            rest = rest[PIECE_BYTES:]
            await asyncio.sleep(0)
            while connection.is_full and not self._has_begun:
                await self._wait()
        connection.is_sent = not rest

    @property
    def _has_begun(self) -> bool:
        return self.status > 0 or self._error is not None

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come, read or not: its connection is free."""
        return self._is_over

    @property
    def has_body(self) -> bool:
        return self._method not in ("HEAD", "CONNECT")

    @property
    def is_tunnel(self) -> bool:
        return self._method == "CONNECT"

    @property
    def is_framed(self) -> bool:
        """The head says where the body ends, which else is where the connection ends."""
        return "Content-Length" in self.headers or "chunked" in self.headers.get("Transfer-Encoding", "").lower()

    def begin(self, status: int, reason: str, headers: CIMultiDict[str]) -> None:
        coding = headers.get("Content-Encoding", "").strip().lower()
        if coding not in ("", "identity") and self.has_body:
            self._unpack = _Unpacker(coding)
        self.status, self.reason, self.headers = status, reason, headers
        self.wake()

    def add(self, data: bytes) -> bool:
        """Takes a piece of the body; whether more may come before these are read."""
        self._pieces.append(data)
        self._size += len(data)
        return self._size <= HIGH_BYTES

    def end(self) -> None:
        """The answer is whole."""
        self._is_over, self._connection = True, None
        self._timer.cancel()
        self.wake()

    def fail(self, error: HttpError) -> None:
        """Ends an answer that is not whole, and its connection."""
        if self._is_over or self._error is not None:
            return
        self._error = error
        self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def deliver(self) -> None:
        """More of the body has arrived."""
        take, waiter = self._taker, self._waiter
        if take is None or waiter is None or waiter.done() or self._size > self._most:
            self.wake()
            return
        self._since = self._loop.time()
        try:
            if len(self._pieces) == 1 and self._unpack is None:
                data, self._size = self._pieces.pop(), 0  # the token path: it is less than what pauses the connection
            else:
                data = self._take()
            if (not data or take(data)) and not self._pieces:
                return
        except Exception as error:  # Whatever it is, it is for whoever waits, and not for the event loop.
            waiter.set_exception(error)
        self._taker = None
        self.wake()

    def _take(self) -> bytes:
        """The bytes that wait, up to `HIGH_BYTES` of them."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        rest: bytes | None = None
        if self._unpack is not None:
            data, rest = self._unpack.take(data)
        elif len(data) > HIGH_BYTES:
            data, rest = data[:HIGH_BYTES], data[HIGH_BYTES:]
        self._size = 0
        if rest is not None:
            self.add(rest)
        if self._connection is not None and self._size <= HIGH_BYTES:
            self._connection.resume()
        return data

    def _wait(self) -> "asyncio.Future[None]":
        """Is done when something happens. To be awaited at once."""
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        return self._waiter

    def _watch(self) -> None:
        """Ends an answer for which somebody has waited too long. One timer serves it all: waiting costs no more than a look at
        the clock."""
        now = self._loop.time()
        since = now if self._waiter is None or self._waiter.done() else self._since
        if now < since + self._seconds:
            self._timer = call_late(self._loop, since + self._seconds - now, self._watch)
        else:
            self.fail(Silence(f"nothing came for {self._seconds:g} s"))


class Connection(asyncio.Protocol):
    """Parses what arrives and hands it to the answer that is under way."""

    __slots__ = (
        "_answer", "_body_size", "_head", "_head_size", "_is_paused", "_is_whole", "_parser", "_pool", "_reason", "_wire_size",
        "has_received", "is_full", "is_sent", "origin", "transport",
    )  # fmt: skip
    transport: asyncio.Transport

    def __init__(self, pool: "HttpClient", origin: Origin) -> None:
        self.origin = origin
        self.is_full = self.is_sent = self.has_received = False
        self._pool = pool
        self._answer: Answer | None = None
        self._parser = HttpResponseParser(self)
        self._head: list[tuple[bytes, bytes]] = []
        self._reason = ""
        self._head_size = self._wire_size = self._body_size = 0
        self._is_whole = self._is_paused = False

    def begin(self, answer: Answer) -> None:
        self._answer = answer
        self._head_size = self._wire_size = self._body_size = 0
        self._is_whole = self.is_sent = self.has_received = False

    def abort(self) -> None:
        """Closes the connection; its answer is told nothing."""
        self._answer = None
        self.transport.abort()

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def close(self) -> None:
        """Closes the connection, and breaks off its answer, which nobody is to ask for again."""
        if self._answer is not None:
            self._answer.fail(HttpError("the client was closed"))
        self.abort()

    def resume(self) -> None:
        if self._is_paused and self.is_open:
            self._is_paused = False
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            if error is None and answer.status and not answer.is_framed:
                answer.end()
            else:
                answer.fail(Disconnected(str(error or "the server closed the connection")))
        self._pool.forget(self)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._answer is not None:
            self._answer.wake()

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Nobody has asked for this; it must not answer the next question.
            self.abort()
            return
        before, self.has_received = self._body_size, True
        self._wire_size += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._is_whole:
                answer.fail(_explain(error))
                return
            self.is_sent = False  # what follows the answer is no other: this connection is not used again
        if self._is_whole:
            self._end(answer)
        elif self._wire_size - self._body_size > HEAD_BYTES + self._head_size + (self._body_size >> 2):
            answer.fail(MalformedAnswer(f"more than {HEAD_BYTES} bytes that are no body, or chunks of a few bytes each"))
        elif self._body_size > before:
            answer.deliver()

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise MalformedAnswer("an answer that nobody has asked for")

    def on_status(self, status: bytes) -> None:
        self._reason = status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and not self._answer.status:
            self._head.append((name, value))
            self._head_size += len(name) + len(value)
            if self._head_size > HEAD_BYTES:
                raise MalformedAnswer(f"a head of more than {HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        head, self._head = self._head, []
        if status < 200 or self._answer is None:
            return
        headers = CIMultiDict([(name.decode("latin-1"), value.decode(errors="replace")) for name, value in head])
        self._answer.begin(status, self._reason, headers)
        self._is_whole = not self._answer.has_body

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._answer is not None and not self._answer.add(body) and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:
            self._is_whole = True
            self.is_sent = self.is_sent and self._parser.should_keep_alive()

    def _end(self, answer: Answer) -> None:
        self._answer = None
        self.resume()
        answer.end()
        if answer.is_tunnel:
            return
        if self.is_sent and answer.has_body:
            self._pool.keep(self)
        else:
            self.abort()


class _Unpacker:
    """Unpacks a body no faster than it is read: a small one that unpacks to a huge one meets the limits of its reader."""

    def __init__(self, coding: str) -> None:
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise MalformedAnswer(f"an answer compressed as `{coding[:40]}`, which was not asked for")
        # 32 above the window size: gzip and zlib headers are told apart by the library.
        self._stream = zlib.decompressobj(47)
        self._has_begun = False
        self._packed = self._unpacked = self._behind = 0

    def take(self, data: bytes) -> tuple[bytes, bytes | None]:
        """What the data unpacks to, up to `HIGH_BYTES`, and what is left to unpack, None if it is all. As in browsers, what
        follows the end is ignored, unless there is much of it. Raises `MalformedAnswer` for that, and for what unpacks to next to
        nothing."""
        self._has_begun = True
        if self._stream.eof:
            self._behind += len(data)
            if self._behind > HEAD_BYTES:
                raise MalformedAnswer("the answer goes on behind the end of what is compressed")
            return b"", None
        try:
            found = self._stream.decompress(data, HIGH_BYTES)
        except zlib.error as error:
            raise MalformedAnswer(f"the answer is not compressed as it says: {error}") from None
        self._packed += len(data) - len(self._stream.unconsumed_tail) - len(self._stream.unused_data)
        self._unpacked += len(found)
        if self._packed > HEAD_BYTES + 8 * self._unpacked:
            raise MalformedAnswer("the compressed answer unpacks to next to nothing")
        # At the limit there may be more even if all of the data has been read.
        return found, self._stream.unconsumed_tail if len(found) == HIGH_BYTES else None

    def check_end(self) -> None:
        if self._has_begun and not self._stream.eof:
            raise Disconnected("the compressed answer ends too early")


def _explain(error: Exception) -> HttpError:
    """The parser wraps what its callbacks raise."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, HttpError):
        return cause
    return MalformedAnswer("it wants another protocol" if isinstance(error, HttpParserUpgrade) else str(error))
