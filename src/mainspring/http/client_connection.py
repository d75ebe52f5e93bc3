"""The connection to the client of a request: who has left is told by a call, and what is written waits for nobody.

Theory of operation. Our own protocol (`connections.py`) puts itself into the scope of its requests, so that a stream needs no
task that waits for its client to leave, no lock, and no message for each piece. Under another server there is only ASGI, and the
same is made of `receive` and `send`, with a task each.
"""

from asyncio import Task, get_running_loop, shield
from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

CONNECTION: Final = "mainspring.connection"


class BodyWriter(Protocol):
    """Writes the body of a response that has begun, in pieces. Whoever finds it full waits in `drain` before writing more."""

    @property
    def is_full(self) -> bool: ...

    def write_chunk(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


class ClientConnection(BodyWriter, Protocol):
    """A connection that knows when its client has left."""

    @property
    def unread(self) -> int:
        """How many bytes wait for the client."""

    def watch(self, then: Callable[[], None]) -> Callable[[], None]:
        """Calls `then` if the client leaves before the response is complete. Returns what ends that."""


def watch_client(scope: Scope, receive: Receive, then: Callable[[], None]) -> Callable[[], object]:
    """Calls `then` if the client leaves, until what this returns is called."""
    connection: ClientConnection | None = scope.get(CONNECTION)
    if connection is not None:
        return connection.watch(then)
    return get_running_loop().create_task(_wait_for_disconnect(receive, then)).cancel


async def _wait_for_disconnect(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()


def find_writer(scope: Scope, send: Send) -> BodyWriter:
    connection: ClientConnection | None = scope.get(CONNECTION)
    return _AsgiWriter(send) if connection is None else connection


class _AsgiWriter:
    """Whatever is written while a message is under way goes into the next one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent: list[bytes] = []
        self._sending: Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return self._sending is not None

    def write_chunk(self, data: bytes) -> None:
        self._unsent.append(data)
        if self._sending is None:
            self._sending = get_running_loop().create_task(self._send_all())

    async def drain(self) -> None:
        if self._sending is not None:
            await shield(self._sending)

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._sending = None
