"""A WebSocket with limits, beside those of `connections.py`: on small frames, and on the memory that a message takes."""

from typing import Any, Final, cast

from starlette.requests import HTTPConnection
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mainspring.core.errors import MemoryLimit
from mainspring.core.memory_quota import Hold, MemoryQuota
from mainspring.http.auth import get_caller
from mainspring.http.connections import WatchedReader, write_refusal
from mainspring.http.faults import Fault

# Frames that a client may send in a second, and one more for each so many bytes.
MOST_FRAMES: Final = 256
BYTES_PER_FRAME: Final = 1024
POLICY_VIOLATION: Final = 1008
INVALID_DATA: Final = 1007
TRY_AGAIN_LATER: Final = 1013
# The bounds on headers are those of the library that reads them.
_BAD_HANDSHAKE: Final = Fault(
    400, "invalid_http", "a WebSocket begins without a body, with up to 128 headers of 8,192 bytes each"
)


class BoundedSocket(WatchedReader, WebSocketsSansIOProtocol):
    """uvicorn's protocol for WebSockets, which ends when a client sends many small frames: each takes time to parse. A message
    counts as memory of its key as long as it comes."""

    def __init__(self, quota: MemoryQuota, **given: Any) -> None:
        super().__init__(**given)
        self._quota = quota
        self._coming: Hold | None = None
        self._frames = self._bytes = 0

    def data_received(self, data: bytes) -> None:
        """A piece at a time: a packet of pings alone would take seconds."""
        if not self._count(len(data)):
            self._end(TRY_AGAIN_LATER, MemoryLimit.code)
            return
        for start in range(0, len(data), BYTES_PER_FRAME):
            piece = data[start : start + BYTES_PER_FRAME]
            self._bytes += len(piece)
            super().data_received(piece)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:  # nobody else would ever answer it
                write_refusal(self.transport, _BAD_HANDSHAKE)
                self.transport.close()
            if self._frames > MOST_FRAMES + self._bytes // BYTES_PER_FRAME and not self.close_sent:
                self._end(POLICY_VIOLATION, "too many frames")
            if self.close_sent or self.transport.is_closing():
                return

    def _count(self, size: int) -> bool:
        """Counts what has come of a message, once it is known whose it is."""
        if not self.handshake_complete:
            return True
        try:
            if self._coming is None:
                self._coming = Hold(self._quota, get_caller(HTTPConnection(cast(Any, self.scope))).holder)
            self._coming.add(size)
        except MemoryLimit:
            return False
        return True

    def send_receive_event_to_app(self) -> None:
        if self._coming is not None:
            self._coming.release()  # from now on it counts where it waits
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self._end(INVALID_DATA, "a text message must be UTF-8")
            return
        super().send_receive_event_to_app()

    def handle_events(self) -> None:
        self._frames += len(self.conn.events)
        super().handle_events()

    def check_progress(self, now: float) -> None:
        """Another second begins."""
        self._frames = self._bytes = 0

    def _end(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
