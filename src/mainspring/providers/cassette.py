"""Recordings of what backends answered, byte for byte and chunk for chunk, to be played again without them.

A cassette is a file of JSON lines, one per exchange: the request, the status, and the body in the pieces in which it arrived. It
holds no header that was sent and no secret of the backend's address, but it holds what the user said. `Recorder` writes one,
`Player` plays one: each request gets the first answer not yet played that was given to the very same request.
"""

import asyncio
import os
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct
from multidict import CIMultiDict

from mainspring.core.errors import InvalidRequest, Refused
from mainspring.core.ids import random_id
from mainspring.core.items import Json
from mainspring.net.connection import Disconnected
from mainspring.ports import HttpAnswer, RecordedRequest

KEPT = ("Content-Type", "Retry-After")
VERSION = 1

AskNetwork = Callable[[], Awaitable[HttpAnswer]]


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

    def answers(self, asked: RecordedRequest) -> bool:
        return (self.method, self.path, self.body) == (asked.method, asked.path, _decode(asked.body))


class StableIds:
    """Made-up ids that are the same whenever the same is asked."""

    def __init__(self) -> None:
        self._seed = b""
        self._count = 0

    def about(self, asked: RecordedRequest) -> None:
        self._seed, self._count = sha256(asked.path.encode() + b"\0" + (asked.body or b"")).digest(), 0

    def new_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{sha256(self._seed + str(self._count).encode()).hexdigest()[:24]}"


class Recorder:
    """Writes every exchange to a file as it ends. The file is opened with the first of them, and one that is there replaced."""

    needs_all = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._ids = StableIds()
        self.new_id = self._ids.new_id

    async def answer(self, asked: RecordedRequest, ask: AskNetwork, secrets: Sequence[str]) -> HttpAnswer:
        """Raises `Refused` if there is no writing to the file: whoever asked for a recording does not want an answer without."""
        self._ids.about(asked)
        if self._file is None:
            try:
                self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            except OSError as error:
                raise Refused(f"cannot record to {self._path}: {error.strerror}; choose another file") from None
        return _RecordedAnswer(asked, await ask(), self._write, secrets)

    def close(self) -> None:
        if self._file is not None:
            # What could not be written has been told already.
            with suppress(OSError):
                self._file.close()

    def _write(self, exchange: Exchange) -> None:
        if self._file is None or self._file.closed:
            return
        try:
            self._file.write(msgspec.json.encode(exchange) + b"\n")
            self._file.flush()
        except OSError as error:
            raise Refused(f"cannot record to {self._path}: {error.strerror}; the recording is not complete") from None


class ExchangeRecorder:
    """Keeps every exchange in memory as it ends."""

    needs_all = False

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.new_id = random_id

    async def answer(self, asked: RecordedRequest, ask: AskNetwork, secrets: Sequence[str]) -> HttpAnswer:
        return _RecordedAnswer(asked, await ask(), self.exchanges.append, secrets)


class _RecordedAnswer:
    """An answer that is written down as it is read."""

    def __init__(
        self, asked: RecordedRequest, received: HttpAnswer, write: Callable[[Exchange], None], secrets: Sequence[str]
    ) -> None:
        self._asked, self._received, self._write, self._secrets = asked, received, write, secrets
        self._pieces: list[bytes] = []
        self._is_written = False
        self.status, self.headers = received.status, received.headers

    async def read(self) -> bytes:
        data = await self._received.read()
        if data:
            self._pieces.append(data)
        else:
            self._end(is_cut=False)
        return data

    def close(self) -> None:
        try:
            self._end(is_cut=True)
        finally:
            self._received.close()

    def _end(self, *, is_cut: bool) -> None:
        if self._is_written:
            return
        self._is_written = True
        kept = {name: self.headers[name] for name in KEPT if name in self.headers}
        asked, pieces = self._asked, tuple([Piece.of(piece) for piece in _mask(self._pieces, self._secrets)])
        self._write(Exchange(asked.method, asked.path, self.status, kept, _decode(asked.body), pieces, is_cut=is_cut))


def _mask(pieces: Sequence[bytes], secrets: Sequence[str]) -> list[bytes]:
    """The pieces without the secrets, even where one is cut in two; every piece keeps its length."""
    whole = b"".join(pieces)
    for secret in secrets:
        whole = whole.replace(secret.encode(), b"*" * len(secret.encode()))
    ends = list(accumulate([len(piece) for piece in pieces], initial=0))
    return [whole[start:end] for start, end in pairwise(ends)]


class Player:
    """Answers from a file, and never from a network. Raises `InvalidRequest` if the file is no recording."""

    needs_all = True

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
        self._ids = StableIds()
        self.new_id = self._ids.new_id

    async def answer(self, asked: RecordedRequest, ask: AskNetwork, secrets: Sequence[str]) -> HttpAnswer:
        self._ids.about(asked)
        for place, exchange in enumerate(self._exchanges):
            if exchange.answers(asked):
                return _PlayedAnswer(self._exchanges.pop(place))
        what = f"the recording {self._path} has no answer to {asked.method} {asked.path}"
        close = [exchange for exchange in self._exchanges if (exchange.method, exchange.path) == (asked.method, asked.path)]
        why = f"with this body: {_difference(close[0].body, _decode(asked.body))}" if close else "(left)"
        raise Refused(f"{what} {why}; record it again")

    def close(self) -> None:
        pass


class _PlayedAnswer:
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
            raise Disconnected("the recorded answer breaks off here")
        return b""

    def close(self) -> None:
        self._pieces.clear()


def _decode(body: bytes | None) -> Json | None:
    return None if body is None else msgspec.json.decode(body, type=dict)


def _difference(recorded: Json | None, asked: Json | None) -> str:
    """The first field that is not as it was."""
    recorded, asked = recorded or {}, asked or {}
    for field in dict.fromkeys([*recorded, *asked]):
        if recorded.get(field) != asked.get(field):
            return f"`{field}` was {recorded.get(field)!r:.200} and is {asked.get(field)!r:.200}"
    return "it has been played already"


_exchange = msgspec.json.Decoder(Exchange)
