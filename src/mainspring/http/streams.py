"""Server-sent events: many viewers of one run, each at its own pace, all reading the same bytes."""

from collections.abc import AsyncIterator, Callable
from logging import getLogger
from weakref import WeakKeyDictionary

import anyio
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from mainspring.core.errors import MainspringError
from mainspring.engine.engine import Handle
from mainspring.http.wire import DONE, Dialect, Wire

log = getLogger(__name__)

PING = b": ping\n\n"
PING_SECONDS = 15.0


class Wires:
    """The wire events of runs that somebody watches, made once per run and dialect."""

    def __init__(self) -> None:
        self._wires: WeakKeyDictionary[Handle, dict[Dialect, Wire]] = WeakKeyDictionary()

    def find(self, handle: Handle, dialect: Dialect) -> Wire:
        wires = self._wires.setdefault(handle, {})
        if (wire := wires.get(dialect)) is None:
            wires[dialect] = wire = Wire(dialect)
            handle.watch(wire)
        return wire


async def read_frames(handle: Handle, wire: Wire, after: int = -1) -> AsyncIterator[list[bytes]]:
    """The events behind number `after`, as many at a time as there are, each whole. Ends with the run."""
    position = after + 1
    async for shown in handle.follow_published():
        end = wire.ends[shown - 1]
        if position < end:
            yield wire.frames[position:end]
            position = end


class EventStream(HttpResponse):
    """A run as a stream of server-sent events. `on_disconnect` is called if the client leaves before the end;
    `end` is sent last."""

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncIterator[list[bytes]], headers: dict[str, str], on_disconnect: Callable[[], None], end: bytes = DONE
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}, media_type=self.media_type)
        self._source = source
        self._on_disconnect, self._end = on_disconnect, end

    def init_headers(self, headers: dict[str, str] | None = None) -> None:  # type: ignore[override]
        super().init_headers(headers)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        is_whole = False
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_disconnect, receive, group.cancel_scope.cancel)
            lock = anyio.Lock()
            group.start_soon(_ping, send, lock)
            try:
                async for batch in self._source:
                    async with lock:
                        await send({"type": "http.response.body", "body": b"".join(batch), "more_body": True})
                end = self._end
            except MainspringError as error:
                # The server stops, or another has taken the run over: the client may read on there, from its last event.
                log.info("a stream was broken off: %s", error)
                end = b""
            is_whole = True
            await send({"type": "http.response.body", "body": end, "more_body": False})
            group.cancel_scope.cancel()
        if not is_whole:
            self._on_disconnect()


async def wait_for_disconnect(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()


async def _ping(send: Send, lock: anyio.Lock) -> None:
    """A comment now and then keeps proxies from closing a quiet stream."""
    while True:
        await anyio.sleep(PING_SECONDS)
        async with lock:
            await send({"type": "http.response.body", "body": PING, "more_body": True})
