"""Responses over a WebSocket: the same requests and the same events as over HTTP, one connection for many turns.

Theory of operation. Each connection has a reader and a worker. The reader only takes frames in, so that a client that leaves is
noticed at once; the worker answers them one by one, in order. Whatever a frame comes to, a response or an error envelope, is told
when its turn has come: an error told earlier would be taken for one of the response under way. For the same reason a run that
fails is told by `response.failed` alone, without the `error` event that streams have: here `error` is always an envelope, and
always the whole answer to a frame.

A connection remembers its last responses, stored or not, and with them a client that stores nothing can go on. What it remembers
is gone when it closes.

Who may connect is asked at the handshake, and again before each frame: a key that is revoked or expires ends its connections.
"""

from logging import getLogger
from math import inf
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from anyio import CancelScope
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct
from msgspec.structs import replace
from starlette.websockets import WebSocket, WebSocketDisconnect

from mainspring.core.errors import InvalidRequest, MainspringError, MemoryLimit, PreviousNotFound
from mainspring.core.history import History, drop_repeated_calls
from mainspring.core.items import ApprovalResponse, Item, encode
from mainspring.core.lru_cache import LRUCache
from mainspring.core.memory_quota import Hold
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.responses.order import read_order
from mainspring.features.responses.sent_request import FRAME_FIELDS, SentRequest, parse_request
from mainspring.http.auth import admit_again, authorize_again, get_caller
from mainspring.http.bodies import MOST_BODY_BYTES
from mainspring.http.faults import Fault, render_error
from mainspring.http.json_size import check_value_count
from mainspring.http.run_replies import choose_dialect
from mainspring.http.streams import read_frames
from mainspring.http.wire import Dialect, Wire, add_ignored, extract_data

log = getLogger(__name__)

LIFETIME: Final = 3600.0
MOST_WAITING: Final = 16
REMEMBERED: Final = 8
POLICY_VIOLATION: Final = 1008


class ResponseSockets:
    """The WebSocket side of `/v1/responses`. `lifetime` is how many seconds a connection may last."""

    def __init__(self, engine: Engine, agents: AgentRuntime, dialect: Dialect, *, lifetime: float = LIFETIME) -> None:
        self._engine, self._agents = engine, agents
        self._dialect = dialect
        self._lifetime = lifetime

    async def serve(self, socket: WebSocket) -> None:
        """One connection, from its handshake to its end."""
        await socket.accept()
        lasted = f"this connection has lasted its {self._lifetime / 60:g} minutes; open a new one to go on"
        end: Fault | MainspringError | None = Fault(400, "websocket_connection_limit_reached", lasted)
        try:
            with anyio.move_on_after(self._lifetime):
                dialect = replace(choose_dialect(socket, self._dialect), error_event=False)
                end = await _Connection(socket, self._engine, self._agents, dialect).run()
            if end is not None:
                await _send_error(socket, end)
                await socket.close(POLICY_VIOLATION, end.code)
        except WebSocketDisconnect:
            pass


class _Kept(Struct, frozen=True):
    """A response that can be continued on its connection. `holds` count the memory of its history, which it shares with those
    that it continues."""

    history: History
    is_stored: bool
    holds: tuple[Hold, ...]


class _Waiting(NamedTuple):
    """A frame that waits for its turn, and what it counts."""

    text: str
    hold: Hold


class _Frame(Struct):
    """What must be known of a frame before it is read as a request."""

    type: Any = None
    previous_response_id: Any = None


class _Connection:
    def __init__(self, socket: WebSocket, engine: Engine, agents: AgentRuntime, dialect: Dialect) -> None:
        self._socket = socket
        self._engine, self._agents = engine, agents
        self._dialect = dialect
        self._kept: LRUCache[str, _Kept] = LRUCache(REMEMBERED)
        self._end: Fault | MainspringError | None = None
        self._waiting_chars = 0
        self._holder = get_caller(socket).holder

    async def run(self) -> Fault | MainspringError | None:
        """Answers frames until the client leaves, which cancels a response under way, or may stay no more; then returns why."""
        # The reader bounds what waits, not the stream: a frame too many has its turn too, to be told that it was one.
        into, waiting = anyio.create_memory_object_stream[_Waiting | Fault | MemoryLimit](inf)
        async with into, waiting, anyio.create_task_group() as group:
            group.start_soon(self._work, waiting, group.cancel_scope)
            await self._read(into)
            group.cancel_scope.cancel()
        return self._end

    async def _read(self, into: MemoryObjectSendStream[_Waiting | Fault | MemoryLimit]) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            is_much = text is not None and self._waiting_chars and self._waiting_chars + len(text) > MOST_BODY_BYTES
            if is_much or into.statistics().current_buffer_used >= MOST_WAITING:
                into.send_nowait(_TOO_MANY)
            elif text is None:
                into.send_nowait(_NOT_TEXT)
            else:
                try:
                    into.send_nowait(_Waiting(text, self._engine.quota.hold(self._holder, len(text))))
                    self._waiting_chars += len(text)
                except MemoryLimit as error:
                    into.send_nowait(error)

    async def _work(self, waiting: MemoryObjectReceiveStream[_Waiting | Fault | MemoryLimit], connection: CancelScope) -> None:
        try:
            async for frame in waiting:
                if isinstance(frame, _Waiting):
                    self._waiting_chars -= len(frame.text)
                self._end = await self._refusal()
                if self._end is not None:
                    connection.cancel()
                    return
                if (error := await self._answer(frame.text) if isinstance(frame, _Waiting) else frame) is not None:
                    await _send_error(self._socket, error)
                if isinstance(frame, _Waiting):
                    frame.hold.release()
        except WebSocketDisconnect:
            # The reader learns of it too, and ends the connection.
            return

    async def _refusal(self) -> Fault | MainspringError | None:
        """Why the client may not stay."""
        try:
            await authorize_again(self._socket)
        except (Fault, MainspringError) as error:
            return error
        return None

    async def _answer(self, text: str) -> Fault | MainspringError | None:
        """Makes the response that a frame asks for and tells it to its end, or returns what is wrong with the frame."""
        parent: Any = None
        is_well = False
        try:
            await admit_again(self._socket)
            body = text.encode()
            await check_value_count(body)
            parent = _parse_frame(text).previous_response_id
            sent = parse_request(body, FRAME_FIELDS)
            handle = await self._start(sent)
            await self._stream(handle, sent.ignored.list_paths())
            is_well = self._remember(handle)
        except (Fault, MainspringError) as error:
            return error
        except WebSocketDisconnect:
            raise
        except Exception:
            log.exception("a WebSocket frame could not be answered")
            return Fault(500, "server_error", "the server failed; its log says why")
        finally:
            if not is_well and isinstance(parent, str):
                # What failed once is not to be built upon: the next attempt must begin anew, or from the store.
                self._kept.pop(parent)
        return None

    async def _start(self, sent: SentRequest) -> Handle:
        if sent.body.background:
            raise InvalidRequest("background responses are not made over a WebSocket; use POST /v1/responses", param="background")
        engine = self._engine
        spec = await read_order(engine, self._agents, self._socket, sent)
        if spec.parent is None:
            return await engine.start(spec)
        kept = self._kept.get(spec.parent)
        if spec.store and kept is not None and not kept.is_stored:
            return await engine.start(_inline_history(spec, kept.history))
        if spec.store:
            return await engine.start(spec)
        if kept is None:
            raise PreviousNotFound(spec.parent)
        return await engine.start(spec, history=kept.history)

    async def _stream(self, handle: Handle, ignored: list[str]) -> None:
        """Tells a response. There are no headers here: the first event says what was ignored of the request."""
        wire = Wire(self._dialect)
        handle.watch(wire)
        try:
            async for batch in read_frames(handle, wire):
                for frame in batch:
                    data = extract_data(frame)
                    if ignored:
                        data, ignored = add_ignored(data, ignored), []
                    await self._socket.send_text(data.decode())
        finally:
            if not handle.run.has_ended:  # the client has left, and nobody else waits for this run
                handle.request_cancel()

    def _remember(self, handle: Handle) -> bool:
        """Keeps a response that went well, and says whether it did."""
        run = handle.run
        if run.status in ("failed", "cancelled"):
            return False
        history, parent = handle.continued, self._kept.get(run.spec.parent or "")
        before = () if parent is None or parent.history is not handle.history else parent.holds
        size = history.size - sum([hold.size for hold in before])
        try:
            kept = _Kept(history, run.spec.store, (*before, self._engine.quota.hold(self._holder, max(size, 0))))
        except MemoryLimit:
            return False  # it is told in full; only it cannot be continued here
        self._kept[run.spec.id] = kept
        return True


def _parse_frame(text: str) -> _Frame:
    try:
        frame = msgspec.json.decode(text, type=_Frame)
    except msgspec.ValidationError:
        raise InvalidRequest("a frame must be a JSON object with a `type`", param="type", code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(400, "invalid_json", f"the frame is not valid JSON: {error}") from None
    if frame.type != "response.create":
        named = f"`{frame.type[:80]}`" if isinstance(frame.type, str) else "nothing readable"
        raise Fault(400, "unknown_type", f"a frame's type must be `response.create`, not {named}", param="type")
    return frame


def _inline_history(spec: RunSpec, history: History) -> RunSpec:
    """The order for a run that is to be stored but whose parent is not: it holds what came before, instead of a link to it."""
    # Approvals were used by the run they were given to; as input they would be asked for their request again.
    told = [entry.item for entry in history.entries if not entry.hidden]
    before: list[Item] = [item for item in told if not isinstance(item, ApprovalResponse)]
    echo = {**spec.echo, "previous_response_id": spec.parent}
    return replace(spec, parent=None, input=(*before, *drop_repeated_calls(spec.input, history.waiting)), echo=echo)


async def _send_error(socket: WebSocket, error: Fault | MainspringError) -> None:
    """The error envelope of the WebSocket transport."""
    await socket.send_text(encode({"type": "error", "status": error.status, "error": render_error(error)}).decode())


_MUCH = f"{MOST_WAITING} frames or {MOST_BODY_BYTES} characters wait already; send more once one is answered"
_TOO_MANY = Fault(429, "too_many_requests", _MUCH)
_NOT_TEXT = Fault(400, "invalid_json", "a frame must be JSON in a text message, not a binary one")
