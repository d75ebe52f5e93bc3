"""Recordings of what backends answered, byte for byte and border for border, to be played again without them.

A cassette is a file of JSON lines, one per exchange: what was asked, the status, and the body in the pieces in which it arrived.
It holds no header that was sent and no secret of the backend's address; what the user said is in it. `Recorder` writes one,
`Player` plays one: each request gets the first answer not yet played that was given to the very same request.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from msgspec import Struct
from multidict import CIMultiDict

from mainspring.errors import InvalidRequest, Refused
from mainspring.items import Json
from mainspring.providers._http import Asked, Received

KEPT = ("Content-Type", "Retry-After")
VERSION = 1


class Piece(Struct, frozen=True, omit_defaults=True):
    """Some bytes that arrived together; text if they are text."""

    text: str = ""
    base64: str = ""

    @classmethod
    def of(cls, data: bytes) -> "Piece":
        try:
            return cls(text=data.decode())
        except UnicodeDecodeError:
            return cls(base64=b64encode(data).decode())

    @property
    def data(self) -> bytes:
        return b64decode(self.base64) if self.base64 else self.text.encode()


class Exchange(Struct, frozen=True, omit_defaults=True):
    """One request and its answer. `is_cut` says that the answer was not read to its end: it broke off, or nobody wanted more."""

    method: str
    path: str
    status: int
    headers: dict[str, str] = {}
    body: Json | None = None
    pieces: tuple[Piece, ...] = ()
    is_cut: bool = False
    version: int = VERSION

    def answers(self, asked: Asked) -> bool:
        return (self.method, self.path, self.body) == (asked.method, asked.path, _decoded(asked.body))


class Recorder:
    """Writes every exchange to a file as it ends. A file that is there is replaced."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise InvalidRequest(f"cannot record to {path}: {error.strerror}; choose another file", param="record") from None

    async def answer(self, asked: Asked, ask: Callable[[], Awaitable[Received]]) -> Received:
        return _Taped(asked, await ask(), self._write)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _write(self, exchange: Exchange) -> None:
        if not self._file.closed:
            self._file.write(msgspec.json.encode(exchange) + b"\n")
            self._file.flush()


class _Taped:
    """An answer that is written down as it is read."""

    def __init__(self, asked: Asked, received: Received, write: Callable[[Exchange], None]) -> None:
        self._asked, self._received, self._write = asked, received, write
        self._pieces: list[Piece] = []
        self._is_written = False
        self.status, self.headers = received.status, received.headers

    async def read(self) -> bytes:
        data = await self._received.read()
        if data:
            self._pieces.append(Piece.of(data))
        else:
            self._end(is_cut=False)
        return data

    def close(self) -> None:
        self._end(is_cut=True)
        self._received.close()

    def _end(self, *, is_cut: bool) -> None:
        if self._is_written:
            return
        self._is_written = True
        kept = {name: self.headers[name] for name in KEPT if name in self.headers}
        asked = self._asked
        self._write(
            Exchange(asked.method, asked.path, self.status, kept, _decoded(asked.body), tuple(self._pieces), is_cut=is_cut)
        )


class Player:
    """Answers from a file, and never from a network. Raises `InvalidRequest` if the file is no recording."""

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
            self._exchanges = [_exchange.decode(line) for line in lines]
        except OSError as error:
            raise InvalidRequest(f"cannot read the recording {path}: {error.strerror}", param="replay") from None
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{path} is no recording of ours: {error}", param="replay") from None
        if any(exchange.version != VERSION for exchange in self._exchanges):
            raise InvalidRequest(f"{path} was recorded by another version; record it again", param="replay")
        self._path = path

    async def answer(self, asked: Asked, ask: Callable[[], Awaitable[Received]]) -> Received:
        for place, exchange in enumerate(self._exchanges):
            if exchange.answers(asked):
                return _Played(self._exchanges.pop(place))
        raise Refused(self._mismatch(asked))

    def close(self) -> None:
        pass

    def _mismatch(self, asked: Asked) -> str:
        what = f"the recording {self._path} has no answer to {asked.method} {asked.path}"
        close = [exchange for exchange in self._exchanges if (exchange.method, exchange.path) == (asked.method, asked.path)]
        if not close:
            return f"{what} (left); record it again"
        return f"{what} with this body: {_difference(close[0].body, _decoded(asked.body))}; record it again"


class _Played:
    """A recorded answer, in the pieces in which it came."""

    def __init__(self, exchange: Exchange) -> None:
        self._pieces = list(exchange.pieces)
        self._is_cut = exchange.is_cut
        self.status = exchange.status
        self.headers: Mapping[str, str] = CIMultiDict(exchange.headers)

    async def read(self) -> bytes:
        # Whoever reads from a network lets others go first.
        await asyncio.sleep(0)
        if self._pieces:
            return self._pieces.pop(0).data
        if self._is_cut:
            raise aiohttp.ClientPayloadError("the recorded answer breaks off here")
        return b""

    def close(self) -> None:
        self._pieces.clear()


def _decoded(body: bytes | None) -> Json | None:
    return None if body is None else msgspec.json.decode(body, type=dict)


def _difference(recorded: Json | None, asked: Json | None) -> str:
    """The first field that is not as it was."""
    recorded, asked = recorded or {}, asked or {}
    for field in dict.fromkeys([*recorded, *asked]):
        if recorded.get(field) != asked.get(field):
            return f"`{field}` was {recorded.get(field)!r:.200} and is {asked.get(field)!r:.200}"
    return "it has been played already"


_exchange = msgspec.json.Decoder(Exchange)
