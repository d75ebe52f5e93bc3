"""The binary event stream of Amazon (`application/vnd.amazon.eventstream`), as JSON objects.

A message is a length, the length of its headers, a checksum of both, headers, a payload, and a checksum of all of it, numbers
big-endian. An event becomes `{EVENT TYPE: PAYLOAD}`, an exception or an error an `error`.
"""

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

import msgspec

from mainspring.core.errors import BadOutput
from mainspring.providers.reply import LineSplitter

MESSAGE_BYTES = 16 * 1024 * 1024 + 1024
HEADER_BYTES = 128 * 1024
OVERHEAD = 16


class EventStreamSplitter(LineSplitter):
    """Splits the stream into (nothing or `error`, JSON). Raises `BadOutput` for what is damaged or too long; what is not whole at
    the end was cut off, and is left out."""

    __slots__ = ("_left",)

    def __init__(self, limit: int = MESSAGE_BYTES) -> None:
        super().__init__(limit)
        self._left = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        left = self._left
        left += data
        start = 0
        try:
            while len(left) - start >= _PRELUDE.size:
                total, headers, checksum = _PRELUDE.unpack_from(left, start)
                if crc32(left[start : start + 8]) != checksum:
                    raise BadOutput("a message of the event stream has a wrong checksum: it was damaged on its way; ask again")
                if headers > min(HEADER_BYTES, total - OVERHEAD) or not OVERHEAD <= total <= self._limit:
                    raise BadOutput(f"the backend sent a message of {total} bytes; no answer is that long, or that short")
                if len(left) - start < total:
                    return
                message = bytes(left[start : start + total])
                start += total
                yield _read_message(message, headers)
        finally:
            del left[:start]

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


def _read_message(message: bytes, size: int) -> tuple[bytes, bytes]:
    if crc32(message[:-4]) != int.from_bytes(message[-4:], "big"):
        raise BadOutput("a message of the event stream has a wrong checksum: it was damaged on its way; ask again")
    headers = _read_headers(message[_PRELUDE.size : _PRELUDE.size + size])
    payload = message[_PRELUDE.size + size : -4]
    match headers.get(":message-type"):
        case "event":
            name = msgspec.json.encode(headers.get(":event-type", ""))
            return b"", b"{" + name + b":" + (payload or b"{}") + b"}"
        case "exception":
            said = {"type": headers.get(":exception-type", ""), "message": _read_words(payload)}
        case _:
            said = {"type": headers.get(":error-code", ""), "message": headers.get(":error-message", "")}
    return b"error", msgspec.json.encode({"error": said})


def _read_headers(data: bytes) -> dict[str, str]:
    """The headers that are text. Raises `BadOutput`."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            size = data[at]
            name, kind = data[at + 1 : at + 1 + size].decode(), data[at + 1 + size]
            at += 2 + size
            if kind in (_BYTES, _TEXT):
                length = int.from_bytes(data[at : at + 2], "big")
                value, at = data[at + 2 : at + 2 + length], at + 2 + length
                if kind == _TEXT:
                    found[name] = value.decode()
            else:
                at += _FIXED[kind]
        if at != len(data):
            raise ValueError("it ends within a header")
    except (IndexError, KeyError, ValueError) as error:
        raise BadOutput(f"a message of the event stream has headers that cannot be read ({error})") from error
    return found


def _read_words(payload: bytes) -> str:
    try:
        said = msgspec.json.decode(payload, type=_Exception)
    except (ValueError, RecursionError):
        return payload.decode(errors="replace")
    return said.message or said.originalMessage


class _Exception(msgspec.Struct):
    message: str = ""
    originalMessage: str = ""


_PRELUDE = Struct(">III")
_BYTES, _TEXT = 6, 7
# By the number of its type: true, false, byte, short, integer, long, time, UUID.
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
