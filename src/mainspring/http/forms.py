"""Forms with files (`multipart/form-data`), read as they arrive: a file of any size is never whole in memory."""

import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import Final

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from mainspring.http.faults import Fault

# Those of RFC 8187 and its forerunners. Python knows others, which unpack or execute what they are given.
_CHARSETS: Final = ("utf-8", "iso-8859-1", "us-ascii")
_BOUNDARY = re.compile(r"[A-Za-z0-9'()+_,./:=? -]{1,70}")
MOST_PARTS: Final = 100
MOST_HEAD_BYTES: Final = 16_384
MOST_FIELD_BYTES: Final = 65_536
# Python looks through all that is before each of them.
MOST_PARAMETERS: Final = 50


class FormPart(Struct, frozen=True):
    """A part of a form, and what it says to be. `pieces` are to be read before the next part is asked for; what is not read is
    passed over."""

    name: str
    filename: str
    pieces: AsyncGenerator[bytes, None]
    content_type: str = ""

    async def read_field(self) -> str:
        """The value of a field. Raises `Fault` for one that is too long or no text."""
        value = await read_all(self.pieces, MOST_FIELD_BYTES, self.name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise refuse_form(f"its `{self.name:.80}` is not text") from None


async def read_all(pieces: AsyncIterable[bytes], most: int, name: str) -> bytes:
    """All of them. Raises `Fault` 413 for more than so many bytes."""
    read = bytearray()
    async for piece in pieces:
        read += piece
        if len(read) > most:
            raise _too_large(most, name[:80])
    return bytes(read)


def read_form(request: Request, most: int) -> AsyncGenerator[FormPart, None]:
    """The parts of a request's form, all of it no more than so many bytes. Raises `Fault` for what is no form, or ends early."""
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        message = f"send the body as it is, not compressed as `{coding[:80]}`"
        raise Fault(415, "unsupported_media_type", message, param="content-encoding")
    return parse_form(request.headers.get("content-type", ""), _receive(request, most))


async def _receive(request: Request, most: int) -> AsyncIterator[bytes]:
    if int(request.headers.get("content-length", 0)) > most:
        raise _too_large(most, "body")
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > most:
                raise _too_large(most, "body")
            yield piece
    except ClientDisconnect:  # nobody is left to read this, but it is no failure of ours
        raise Fault(400, "incomplete_body", "the connection ended before the body did", param="body") from None


async def parse_form(content_type: str, body: AsyncIterator[bytes]) -> AsyncGenerator[FormPart, None]:
    """The parts of a form. Raises `Fault`."""
    boundary = _parse_parameter("Content-Type", content_type, "boundary")
    if not _BOUNDARY.fullmatch(boundary):
        raise refuse_form("its boundary is missing or strange")
    reader = _Reader(body)
    delimiter = b"\r\n--" + boundary.encode()
    await _skip(reader.read_until(delimiter))
    for _ in range(MOST_PARTS):
        if await reader.read_exactly(2) == b"--":
            return
        head = await reader.read_head(delimiter)
        about = _find_header(head, "content-disposition")
        pieces = reader.read_until(delimiter)
        name, filename = (_parse_parameter("Content-Disposition", about, each) for each in ("name", "filename"))
        async with aclosing(pieces):
            yield FormPart(name, filename, pieces, _find_header(head, "content-type"))
            await _skip(pieces)
    if await reader.read_exactly(2) != b"--":
        raise refuse_form(f"it has more than {MOST_PARTS} parts")


class _Reader:
    """The body, with what was received and is not read yet."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        # The first boundary stands at the very beginning, as if behind a line end.
        self._body, self._rest = body, b"\r\n"

    async def _receive(self) -> None:
        try:
            self._rest += await anext(self._body)
        except StopAsyncIteration:
            raise refuse_form("it does not end with its boundary") from None

    async def read_until(self, mark: bytes) -> AsyncGenerator[bytes, None]:
        """What is before the mark, which is read as well."""
        while (place := self._rest.find(mark)) < 0:
            # The end may be the beginning of the mark.
            if ready := self._rest[: len(self._rest) - len(mark) + 1] if len(self._rest) >= len(mark) else b"":
                self._rest = self._rest[len(ready) :]
                yield ready
            await self._receive()
        last, self._rest = self._rest[:place], self._rest[place + len(mark) :]
        if last:
            yield last

    async def read_exactly(self, count: int) -> bytes:
        while len(self._rest) < count:
            await self._receive()
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    async def read_head(self, delimiter: bytes) -> str:
        """The head of a part, up to the empty line behind it; of one without any, nothing."""
        while (place := self._rest.find(b"\r\n\r\n")) < 0 and delimiter not in self._rest:
            if len(self._rest) > MOST_HEAD_BYTES:
                raise refuse_form("the head of a part is too long")
            await self._receive()
        if place < 0 or self._rest.find(delimiter, 0, place) >= 0:
            return ""
        head, self._rest = self._rest[:place], self._rest[place + 4 :]
        return head.decode("utf-8", "replace")


async def _skip(pieces: AsyncIterable[bytes]) -> None:
    async for _ in pieces:
        pass


def _find_header(head: str, wanted: str) -> str:
    lines = [line.partition(":") for line in head.split("\r\n")]
    return next((value.strip() for name, _, value in lines if name.strip().lower() == wanted), "")


def _parse_parameter(header: str, value: str, name: str) -> str:
    if value.count(";") > MOST_PARAMETERS:
        raise refuse_form(f"its `{header}` has more than {MOST_PARAMETERS} semicolons")
    message = Message()
    message[header] = value.replace("\n", " ").replace("\r", " ")
    found = message.get_param(name, "", header)
    if not isinstance(found, tuple):
        return collapse_rfc2231_value(found)
    # A name in another script comes as three: its character set, its language, and its bytes, each taken for a character.
    charset, _, text = found
    if (charset or "us-ascii").lower() not in _CHARSETS:
        raise refuse_form(f"its `{name}` is written in a character set other than {', '.join(_CHARSETS)}")
    try:
        return text.encode("latin-1").decode(charset or "us-ascii")
    except ValueError:
        raise refuse_form(f"its `{name}` is not in the character set that it names") from None


def _too_large(most: int, name: str) -> Fault:
    return Fault(413, "request_too_large", f"`{name}` has more than {most} bytes; send less", param=name)


def refuse_form(why: str) -> Fault:
    return Fault(400, "invalid_form", f"the form cannot be read: {why}; send multipart/form-data with a `file`", param="body")
