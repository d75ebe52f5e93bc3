"""Server-sent events: many viewers of one run, each at its own pace, all reading the same bytes."""

from asyncio import AbstractEventLoop, CancelledError, Future, Lock, TimerHandle, current_task, get_running_loop, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from logging import getLogger
from typing import Generic
from weakref import WeakKeyDictionary

from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from mainspring.core.errors import MainspringError
from mainspring.core.memory_quota import measure_items
from mainspring.engine.handle import Handle
from mainspring.http.client_connection import BodyWriter, find_writer, watch_client
from mainspring.http.frame_log import DONE, D, FrameLog

log = getLogger(__name__)

PING = b": ping\n\n"
PING_SECONDS = 15.0
PIECE_BYTES = 262_144
"""How much is written for a client before it has read what was written."""
READ_FRAMES = 512
FRAME_BYTES = 256
"""What a frame takes beside what it says."""
WriteEvents = Callable[[BodyWriter], Awaitable[None]]
RenderBreak = Callable[[MainspringError], bytes]


class Wires(Generic[D]):
    """The wire events of runs that somebody watches, made once per run and dialect, as `kind` spells them."""

    def __init__(self, kind: type[FrameLog[D]]) -> None:
        self._kind = kind
        self._wires: WeakKeyDictionary[Handle, dict[D, FrameLog[D]]] = WeakKeyDictionary()
        self._ended: WeakKeyDictionary[Handle, dict[D, EndedFrames[D]]] = WeakKeyDictionary()

    def find(self, handle: Handle, dialect: D) -> FrameLog[D]:
        wires = self._wires.setdefault(handle, {})
        if (wire := wires.get(dialect)) is None or wire.is_over:
            wires[dialect] = wire = self._kind(dialect)
            handle.watch(wire)
        return wire

    def find_writer(self, handle: Handle, dialect: D, after: int = -1) -> WriteEvents:
        """What writes the events behind number `after`. Raises `MemoryLimit` if there is no room for those of a run that has
        ended."""
        if handle.is_live or not handle.run.has_ended:
            return RunPusher(handle, self.find(handle, dialect), after).write
        ended = self._ended.setdefault(handle, {})
        if dialect not in ended:
            handle.journal.hold.add_copy(_estimate_frames(handle))
            ended[dialect] = EndedFrames(handle, self._kind(dialect))
        return write_batches(ended[dialect].read(handle, after))


def _estimate_frames(handle: Handle) -> int:
    """What is said is told once in deltas, and four times as a whole."""
    return FRAME_BYTES * len(handle.log) + 5 * measure_items(handle.run.output)


class EndedFrames(Generic[D]):
    """The frames of a run that has ended, made once for all that read them at the same time."""

    def __init__(self, handle: Handle, wire: FrameLog[D]) -> None:
        self._wire = wire
        self._making = handle.retell_in_slices(wire)
        self._lock = Lock()

    async def read(self, handle: Handle, after: int) -> AsyncIterator[list[bytes]]:
        """The handle is kept as long as somebody reads: whoever comes meanwhile gets the same one."""
        async with self._lock:  # if whoever makes them leaves, the next one goes on
            for _ in self._making:
                await sleep(0)
        frames = self._wire.frames
        for start in range(after + 1, len(frames), READ_FRAMES):
            yield frames[start : start + READ_FRAMES]


@contextmanager
def follow_wire(handle: Handle, wire: FrameLog[D], reader: object, after: int = -1) -> Iterator[FrameLog[D]]:
    """The wire from which the reader gets the events behind number `after`."""
    if not wire.has(after + 1):
        wire = wire.begin_again()
        handle.watch(wire)
    wire.enter(reader, after + 1)
    try:
        yield wire
    finally:
        wire.leave(reader)
        if wire.is_over:
            handle.unwatch(wire)


async def read_frames(handle: Handle, wire: FrameLog[D], after: int = -1) -> AsyncIterator[list[bytes]]:
    """The events behind number `after`, as many at a time as there are, each whole. Ends with the run."""
    reader = object()
    with follow_wire(handle, wire, reader, after) as wire:
        async for shown in handle.follow_published():
            if batch := wire.read(reader, shown):
                yield batch
                del batch  # nobody needs it while this waits for the next


class EventStream(HttpResponse):
    """A stream of server-sent events: those that `write` writes, and `end`. `on_disconnect` is called if the client leaves before
    that. A `ping` is sent now and then. Of a stream that breaks off, `render_break` spells the last event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        write: WriteEvents,
        headers: dict[str, str],
        on_disconnect: Callable[[], None],
        end: bytes = DONE,
        ping: bytes = PING,
        render_break: RenderBreak = lambda error: b"",
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}, media_type=self.media_type)
        self._write = write
        self._on_disconnect, self._end, self._ping, self._render_break = on_disconnect, end, ping, render_break

    def init_headers(self, headers: dict[str, str] | None = None) -> None:  # type: ignore[override]
        super().init_headers(headers)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        task, has_left = current_task(), False
        assert task is not None

        def leave() -> None:
            nonlocal has_left
            if not has_left:
                has_left = True
                task.cancel()

        stop_watching = watch_client(scope, receive, leave)
        try:
            end = await self._write_all(find_writer(scope, send)) if scope["method"] != "HEAD" else b""
        except CancelledError:
            if not has_left or task.uncancel():
                raise
        finally:
            stop_watching()
        if has_left:
            self._on_disconnect()
        else:
            await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _write_all(self, writer: BodyWriter) -> bytes:
        """Writes what there is to tell. Returns what is to be sent last."""
        with _pings.setdefault(get_running_loop(), Pings()).send_to(writer, self._ping):
            try:
                await self._write(writer)
            except MainspringError as error:
                # The server stops, or another has taken the run over: a client whose API can do so reads on there.
                log.info("a stream was broken off: %s", error)
                return self._render_break(error)
            return self._end


class RunPusher(Generic[D]):
    """Writes the events of a run behind number `after` in the moment they may be seen. The task of the request is woken only when
    there is much to write, when its client has not read what it was sent, and at the end."""

    __slots__ = ("_after", "_handle", "_is_due", "_loop", "_rest", "_waiter", "_wire", "_writer")

    def __init__(self, handle: Handle, wire: FrameLog[D], after: int = -1) -> None:
        self._handle, self._wire, self._after = handle, wire, after
        self._waiter: Future[None] | None = None
        self._rest: list[bytes] = []
        self._is_due = False

    async def write(self, writer: BodyWriter) -> None:
        self._writer, self._loop = writer, get_running_loop()
        tell = self._push_soon if self._handle.journal.shows_each else self._push
        with follow_wire(self._handle, self._wire, self, self._after) as self._wire:
            self._handle.listen(tell)
            try:
                await self._write_all()
            finally:
                self._handle.unlisten(tell)

    async def _write_all(self) -> None:
        journal = self._handle.journal
        while True:
            if self._writer.is_full:
                await self._writer.drain()
            batch, self._rest = self._rest or self._read(), []
            if batch:
                await _write_batch(self._writer, batch)
            elif not journal.is_closed:
                self._waiter = self._loop.create_future()
                await self._waiter
            elif journal.failure is not None:
                raise journal.failure
            else:
                return
            del batch  # as above

    def _read(self) -> list[bytes]:
        shown = self._handle.journal.shown
        return self._wire.read(self, shown) if shown else []

    def _push(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # the task is at it
            return
        try:
            batch = self._read()
            if sum(map(len, batch)) > PIECE_BYTES:
                self._rest = batch
            elif batch:
                self._writer.write_chunk(b"".join(batch))
            if self._rest or self._writer.is_full or self._handle.journal.is_closed:
                waiter.set_result(None)
        except Exception as error:  # Whatever it is, only this stream fails by it, and in its own task.
            waiter.set_exception(error)

    def _push_soon(self) -> None:
        """Events come one by one: those of one round of the event loop are written together."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._push_due)

    def _push_due(self) -> None:
        self._is_due = False
        self._push()


def write_batches(batches: AsyncIterator[list[bytes]]) -> WriteEvents:
    async def write(writer: BodyWriter) -> None:
        async for batch in batches:
            await _write_batch(writer, batch)
            del batch  # as above

    return write


async def _write_batch(writer: BodyWriter, batch: list[bytes]) -> None:
    for piece in cut_pieces(batch):
        writer.write_chunk(piece)
        if writer.is_full:
            await writer.drain()


def cut_pieces(batch: list[bytes]) -> Iterator[bytes]:
    """The batch in pieces of `PIECE_BYTES` at most. A run that has ended is one batch; no reader gets a copy of it all."""
    if sum(map(len, batch)) <= PIECE_BYTES:
        yield b"".join(batch)
        return
    waiting: list[bytes] = []
    size = 0
    for frame in batch:
        for start in range(0, len(frame), PIECE_BYTES):
            part = frame[start : start + PIECE_BYTES]
            if size + len(part) > PIECE_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += len(part)
    yield b"".join(waiting)


class Pings:
    """A comment now and then, which keeps proxies from closing a quiet stream. One timer serves all of them."""

    def __init__(self) -> None:
        self._due: dict[BodyWriter, tuple[float, bytes]] = {}
        self._timer: TimerHandle | None = None

    @contextmanager
    def send_to(self, writer: BodyWriter, ping: bytes) -> Iterator[None]:
        self._due[writer] = get_running_loop().time() + PING_SECONDS, ping
        if self._timer is None:
            self._wait()
        try:
            yield
        finally:
            del self._due[writer]

    def _wait(self) -> None:
        """The first in the dict is due first: whoever was sent one goes to its end."""
        self._timer = get_running_loop().call_at(next(iter(self._due.values()))[0], self._send) if self._due else None

    def _send(self) -> None:
        now = get_running_loop().time()
        for writer, (_, ping) in list(takewhile(lambda each: each[1][0] <= now, self._due.items())):
            del self._due[writer]
            self._due[writer] = now + PING_SECONDS, ping
            if not writer.is_full:
                writer.write_chunk(ping)
        self._wait()


_pings: WeakKeyDictionary[AbstractEventLoop, Pings] = WeakKeyDictionary()
