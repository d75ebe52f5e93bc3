"""The messages of JSON-RPC 2.0, and the event streams that carry them over HTTP: bytes in, messages out, no I/O."""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct

from mainspring.core.items import Json
from mainspring.core.json_values import check_depth, count_values
from mainspring.tools.mcp.exchange import MOST_BYTES

MOST_VALUES = 131_072
MOST_STREAM_BYTES = 4 * MOST_BYTES
MORE_BYTES_PER_SECOND = 1024 * 1024
LINE_BYTES = 1024
PARSE_ERROR = -32700
METHOD_NOT_FOUND = -32601
INVALID_REQUEST = -32600
URLS_REQUIRED = -32042
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022


class RpcFault(Struct, frozen=True):
    """Why a request was not carried out."""

    code: int
    message: str = ""
    data: object = None


class RpcMessage(Struct, frozen=True):
    """Anything that a server sends: a request has a method and an id, a notification a method, an answer a result or an error.
    Parameters that are no object are for whoever reads them to leave out: an answer may come behind them."""

    jsonrpc: Literal["2.0"]
    id: int | str | None = None
    method: str | None = None
    params: object = None
    result: Json | None = None
    error: RpcFault | None = None

    @property
    def is_answer(self) -> bool:
        return self.method is None and (self.result is not None or self.error is not None)


class Reply(Struct, frozen=True):
    """The result of a request, and how many bytes it came in."""

    result: Json
    size: int = 0


class RequestRefused(Exception):
    """The server did not carry out a request, or answered it with what is no answer; `status` is that of HTTP."""

    def __init__(self, fault: RpcFault, status: int = 0) -> None:
        super().__init__(fault.message)
        self.fault, self.status = fault, status


Hear = Callable[[RpcMessage, int | None], Awaitable[None]]
"""Is given all that a server sends and that is no answer, and the request on whose stream it came, if it has one."""


class BadAnswer(Exception):
    """A request was carried out, and its result is none that it may have."""


def refuse(message: str, status: int = 0) -> RequestRefused:
    """The error for an answer that is none."""
    return RequestRefused(RpcFault(0, message), status)


def encode_request(number: int, method: str, params: Json) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def encode_notification(method: str, params: Json | None = None) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})


def encode_cancel(number: int) -> bytes:
    """Says that nobody waits for the answer to this request any more."""
    return encode_notification("notifications/cancelled", {"requestId": number, "reason": "the caller has left"})


def encode_answer(number: int | str, answer: Json | RpcFault) -> bytes:
    if isinstance(answer, RpcFault):
        error = {"code": answer.code, "message": answer.message}
        return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "error": error})
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "result": answer})


async def parse_message(data: bytes) -> RpcMessage:
    """Raises `RequestRefused` for what is no message, or has too many values. Pauses for others between pieces of a long one."""
    for values in count_values(data, MOST_VALUES):
        if values > MOST_VALUES:
            raise refuse(f"The answer has more than {MOST_VALUES} values; ask for less")
        await checkpoint()
    try:
        check_depth(data)
        return _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise refuse(f"Failed to parse an answer: {error}") from None


def read_reply(message: RpcMessage, number: int, size: int) -> Reply:
    """The result of the request of this number. Raises `RequestRefused` if there is none."""
    # A server that could not read the id of a request names none in its error.
    if message.error is not None and message.id in (number, None):
        raise RequestRefused(message.error)
    if message.id != number or message.result is None:
        raise refuse("The answer is to another request, or to none")
    return Reply(message.result, size)


class StreamBudget:
    """How much a server may say on one stream: `MOST_STREAM_BYTES` at once, and `MORE_BYTES_PER_SECOND` later. A line counts as
    `LINE_BYTES` more, since a short one is as much work as a long one."""

    def __init__(self) -> None:
        self._left = float(MOST_STREAM_BYTES)
        self._at = time.monotonic()

    def charge(self, data: bytes) -> None:
        """Counts what has arrived. Raises `RequestRefused` if that is too much."""
        now = time.monotonic()
        self.refund((now - self._at) * MORE_BYTES_PER_SECOND)
        self._at = now
        self._left -= len(data) + LINE_BYTES * (data.count(b"\n") + data.count(b"\r"))
        if self._left < 0:
            raise refuse(f"What it says is more than {MOST_STREAM_BYTES >> 20} MiB, or too many lines; ask for less")

    def refund(self, size: float) -> None:
        """Takes back what was charged for an answer: it was asked for, and has a limit of its own."""
        self._left = min(self._left + size, MOST_STREAM_BYTES)


class EventReader:
    """Splits an event stream into (name, data). `last_id` and `retry_seconds` are what the server has said last of either,
    `count` how much it has said at all.

    Raises `RequestRefused` for an event of more than `limit` bytes, and for more than its budget allows.
    """

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self.budget = StreamBudget()
        self.last_id = ""
        self.count = 0
        self.retry_seconds: float | None = None
        self._limit = limit
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """The events that `data` completes, without those that say nothing."""
        self.budget.charge(data)
        self._rest += data
        if self._size + len(self._rest) > self._limit:
            raise refuse(f"An event is larger than {self._limit >> 20} MiB; ask for less")
        if b"\n" not in data and b"\r" not in data:
            return
        # The second half of a line break may still be on its way.
        held = b"\r" if self._rest.endswith(b"\r") else b""
        whole = bytes(self._rest[: len(self._rest) - len(held)])
        *lines, rest = (whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in whole else whole).split(b"\n")
        self._rest = bytearray(rest + held)
        for line in lines:
            if line:
                self._read_field(line)
                continue
            name, said = self._name, b"\n".join(self._data)
            self._name, self._size = "", 0
            self._data.clear()
            if said:
                yield name, said

    def forget_rest(self) -> None:
        """Drops what is not whole: a stream that is resumed begins with an event."""
        self._rest.clear()
        self._data.clear()
        self._name, self._size = "", 0

    def _read_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        self.count += field != b""
        match field.removeprefix(b"\xef\xbb\xbf"):
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
            case b"event":
                self._name = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self.last_id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) < 10:
                self.retry_seconds = int(value) / 1000
            case _:
                pass


_DECODER = msgspec.json.Decoder(RpcMessage)
