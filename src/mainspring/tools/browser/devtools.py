"""A client of the DevTools protocol over one socket: JSON messages that end with NUL, answers in any order, events in between."""

import asyncio
from asyncio import Future, StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import anyio
import msgspec
from msgspec import Struct

from mainspring.core.errors import PeerError, ToolUnavailable
from mainspring.core.items import Json

MOST_BYTES = 32 << 20
SECONDS = 10.0

Listener = Callable[[str, Json], None]


class CommandFailed(PeerError):
    """The browser answered a command with an error."""


class _Message(Struct, frozen=True):
    id: int = 0
    method: str = ""
    params: Json = {}
    result: Json = {}
    error: Json | None = None
    sessionId: str = ""


class DevTools:
    """`listeners` receive events by session; the empty one is the browser itself."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.listeners: dict[str, Listener] = {}
        self.is_open = True
        self._reader, self._writer = reader, writer
        self._numbers = count(1)
        self._open: dict[int, tuple[str, Future[_Message]]] = {}
        self._decoder = msgspec.json.Decoder(_Message)

    async def send(self, method: str, session: str = "", /, *, seconds: float = SECONDS, **params: object) -> Json:
        """What the browser answers. Raises `CommandFailed`, `TimeoutError`, or `ToolUnavailable` if the browser is gone."""
        if not self.is_open:
            raise ToolUnavailable("the browser has ended, and its pages are gone; open the page again")
        number = self.post(method, session, **params)
        answer: Future[_Message] = asyncio.get_running_loop().create_future()
        self._open[number] = session, answer
        try:
            with anyio.fail_after(seconds):
                message: _Message = await answer
        finally:
            del self._open[number]
        if message.error is not None:
            raise CommandFailed(f"the browser refused {method}: {message.error.get('message')}")
        return message.result

    def post(self, method: str, session: str = "", /, **params: object) -> int:
        """Sends a command without waiting for its answer."""
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._writer.write(msgspec.json.encode(order) + b"\0")
        return number

    def fail(self, session: str | None, error: ToolUnavailable) -> None:
        """Has whoever waits for an answer in a session, or with None in any, get this error."""
        for place, answer in self._open.values():
            if session in (None, place) and not answer.done():
                answer.set_exception(error)

    async def read(self) -> None:
        """Dispatches messages until the browser ends."""
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
                while True:
                    self._hear(self._decoder.decode((await self._reader.readuntil(b"\0"))[:-1]))
        finally:
            self.is_open = False
            self._writer.close()
            self.fail(None, ToolUnavailable("the browser ended, and its pages are gone; open the page again"))

    def _hear(self, message: _Message) -> None:
        if message.id:
            _, answer = self._open.get(message.id, ("", None))
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif (listener := self.listeners.get(message.sessionId)) is not None:
            listener(message.method, message.params)
