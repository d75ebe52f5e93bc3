"""MCP over HTTP: `/mcp` in both eras of the protocol.

A request that says itself who sends it is answered as it stands. Others belong to a session. Whatever runs is answered as a
stream to clients that accept one, so that it can tell progress and ask, and no proxy closes a quiet connection. In the stateless
protocol a client cancels by leaving; in a session it says so, and what it leaves goes on.
"""

from contextlib import suppress
from logging import getLogger
from typing import Final
from urllib.parse import urlsplit

from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.items import Json
from mainspring.engine.traceparent import clean_traceparent
from mainspring.features.mcp_server.client_messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ClientReply,
    ClientRequest,
    Notice,
    RequestId,
    RpcError,
    parse_message,
    render_result,
    write_frame,
)
from mainspring.features.mcp_server.client_sessions import McpSessions
from mainspring.features.mcp_server.mcp_door import McpDoor, Pending, Send
from mainspring.features.mcp_server.peer import (
    REVISIONS,
    VERSION_HEADER,
    WITH_SESSIONS,
    Peer,
    is_stateless_call,
    read_stateless,
)
from mainspring.features.mcp_server.services import McpServices
from mainspring.http.auth import authorize_again, get_caller
from mainspring.http.bodies import read_json_body
from mainspring.http.client_connection import BodyWriter, watch_client
from mainspring.http.faults import Fault, json_response
from mainspring.http.idempotency import read_key
from mainspring.http.origins import is_loopback
from mainspring.http.queries import Deleted
from mainspring.http.streams import EventStream

log = getLogger(__name__)

SESSION_HEADER: Final = "mcp-session-id"
_STATUSES: Final = {
    PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400, METHOD_NOT_FOUND: 404,
}  # fmt: skip


class Underway(Struct):
    """A request of a session that is being answered. `scope` ends that."""

    scope: CancelScope
    pending: Pending | None = None
    is_cancelled: bool = False


class HttpTransport:
    def __init__(self, services: McpServices) -> None:
        self._door = McpDoor(services)
        self._sessions = McpSessions(services.engine.store, services.settings)
        self._origins = frozenset([origin.rstrip("/").lower() for origin in services.settings.allow_origins])
        self._underway: dict[tuple[str, RequestId], Underway] = {}

    async def post(self, request: Request) -> HttpResponse:
        """One message of a client."""
        self._check_origin(request)
        raw = await read_json_body(request)
        try:
            message = parse_message(raw)
        except RpcError as error:
            return json_response(error.render(None), 400)
        if isinstance(message, ClientRequest):
            if not _accepts(request, "application/json") and not _accepts(request, "text/event-stream"):
                raise Fault(406, "not_acceptable", "accept `application/json, text/event-stream`", param="accept")
            return await self._answer(message, request)
        if request.headers.get(VERSION_HEADER) not in WITH_SESSIONS and SESSION_HEADER not in request.headers:
            if isinstance(message, ClientReply):
                raise Fault(400, "mcp_session_missing", "an answer belongs to a session, or comes with the call again")
            return HttpResponse(status_code=202)  # the stateless protocol has no notifications that mean something here
        peer = await self._find_session(request)
        if isinstance(message, ClientReply):
            await self._door.take_reply(message, peer)
        else:
            await self._take_notice(message, peer)
        return HttpResponse(status_code=202)

    async def listen(self, request: Request) -> HttpResponse:
        """Streams what the server has to say in a session: that its lists have changed."""
        self._check_origin(request)
        if SESSION_HEADER not in request.headers:
            told = "a stream of notices belongs to a session; without one, POST `subscriptions/listen`"
            raise Fault(405, "method_not_allowed", told)
        if not _accepts(request, "text/event-stream"):
            raise Fault(406, "not_acceptable", "accept `text/event-stream`", param="accept")
        peer = await self._find_session(request)

        async def write(writer: BodyWriter) -> None:
            with suppress(Fault):
                await self._door.watch_lists(peer, _send_while_admitted(_make_send(writer), request))

        return EventStream(write, {}, lambda: None, end=b"")

    async def end(self, request: Request) -> HttpResponse:
        """Ends a session."""
        self._check_origin(request)
        id = request.headers.get(SESSION_HEADER, "")
        if not await self._sessions.close(get_caller(request).holder, id):
            raise _no_session()
        return json_response(Deleted(id, "mcp_session"))

    async def _answer(self, call: ClientRequest, request: Request) -> HttpResponse:
        is_stateless = is_stateless_call(call, request.headers)
        try:
            if is_stateless:
                peer = read_stateless(call, get_caller(request), request.headers)
                peer = replace(peer, traceparent=clean_traceparent(peer.traceparent), key=read_key(request))
                return await self._begin(call, peer, request)
            if call.method == "initialize":
                return await self._initialize(call, request)
            return await self._begin(call, await self._find_session(request), request)
        except RpcError as error:
            return json_response(error.render(call.id), _STATUSES.get(error.code, 200) if is_stateless else 200)

    async def _initialize(self, call: ClientRequest, request: Request) -> HttpResponse:
        peer, told = self._door.initialize(call, get_caller(request))
        session = await self._sessions.open(peer.caller.holder, peer.revision, peer.capabilities)
        return json_response(render_result(call.id, told), headers={SESSION_HEADER: session})

    async def _begin(self, call: ClientRequest, peer: Peer, request: Request) -> HttpResponse:
        """Answers a request. One of a session can be cancelled from here on, also before its run has begun."""
        under = Underway(CancelScope())
        if not peer.session:
            answer = await self._door.begin(call, peer)
        else:
            self._underway[(peer.session, call.id)] = under
            try:
                answer = await self._door.begin(call, peer)
            except BaseException:
                self._end(call, peer, under)
                raise
        if not isinstance(answer, Pending):
            self._end(call, peer, under)
            return json_response(render_result(call.id, answer))
        under.pending = answer
        if under.is_cancelled:
            self._end(call, peer, under)
            await _stop(answer)
            return HttpResponse(status_code=202)
        leave = answer.leave if peer.is_stateless else _go_on
        if _accepts(request, "text/event-stream"):

            async def write(writer: BodyWriter) -> None:
                send = _make_send(writer)
                if answer.work is None:  # it may last longer than the key is good
                    send = _send_while_admitted(send, request)
                if (told := await self._finish(call, peer, under, send)) is not None:
                    await send(told)

            return EventStream(write, {}, leave, end=b"")
        stop_watching = watch_client(request.scope, request.receive, leave)
        try:
            told = await self._finish(call, peer, under, None)
            return HttpResponse(status_code=202) if told is None else json_response(told)
        finally:
            stop_watching()

    async def _finish(self, call: ClientRequest, peer: Peer, under: Underway, send: Send | None) -> Json | None:
        """The answer to a request that took its time; None if its client has cancelled it."""
        assert under.pending is not None
        work = under.pending.work if peer.session else None
        try:
            if work is not None:
                await self._sessions.note_call(peer.caller.holder, peer.session, call.id, work.id)
            with under.scope:
                return render_result(call.id, await self._door.finish(under.pending, peer, send))
            return None
        except RpcError as error:
            return error.render(call.id)
        except Fault:  # the key is good no more
            return None
        except Exception:  # whatever it is, the client is told that there is no answer
            log.exception("%s failed at /mcp", call.method)
            return RpcError(INTERNAL_ERROR, "the server failed; its log says why").render(call.id)
        finally:
            self._end(call, peer, under)
            if work is not None:
                with CancelScope(shield=True):
                    await self._sessions.forget_call(peer.caller.holder, peer.session, call.id)

    def _end(self, call: ClientRequest, peer: Peer, under: Underway) -> None:
        if self._underway.get((peer.session, call.id)) is under:
            del self._underway[(peer.session, call.id)]

    async def _take_notice(self, notice: Notice, peer: Peer) -> None:
        if notice.method != "notifications/cancelled":
            return
        id = notice.params.get("requestId")
        if not isinstance(id, str | int):
            return
        if (under := self._underway.get((peer.session, id))) is None:
            if (
                work := await self._sessions.find_call(peer.caller.holder, peer.session, id)
            ) is not None:  # another process answers it
                await self._door.cancel_work(work, peer)
            return
        under.is_cancelled = True
        under.scope.cancel()
        if under.pending is not None:
            await _stop(under.pending)

    async def _find_session(self, request: Request) -> Peer:
        """Raises `Fault`."""
        caller, id = get_caller(request), request.headers.get(SESSION_HEADER)
        version = request.headers.get(VERSION_HEADER)
        if version is not None and version not in REVISIONS:
            known = ", ".join(REVISIONS)
            raise Fault(400, "unsupported_protocol", f"`{version[:40]}` is no known revision of MCP; known: {known}")
        if id is None:
            raise Fault(400, "mcp_session_missing", "send `initialize` first, and then the header `Mcp-Session-Id` of its answer")
        session = await self._sessions.find(caller.holder, id)
        if session is None:
            raise _no_session()
        return Peer(
            caller=caller,
            revision=session.revision,
            capabilities=session.capabilities,
            session=id,
            traceparent=clean_traceparent(request.headers.get("traceparent", "")),
            key=read_key(request),
        )

    def _check_origin(self, request: Request) -> None:
        """Raises `Fault` 403 for a web page of somebody else's: no key makes it one that may speak for whoever looks at it."""
        origin = request.headers.get("origin")
        if origin is None:
            return
        host = request.headers.get("host", "")
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if origin.lower() in own or origin.rstrip("/").lower() in self._origins or _is_local_page(origin, host):
            return
        told = f"pages of `{origin[:80]}` may not connect; the operator can name them in `allow_origins` under `[mcp_server]`"
        raise Fault(403, "foreign_origin", told)


def _is_local_page(origin: str, host: str) -> bool:
    """Whether a page of this machine asks a server that it has called by a name of this machine."""
    try:
        return is_loopback(urlsplit(origin).hostname or "") and is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _accepts(request: Request, kind: str) -> bool:
    accepted = request.headers.get("accept", "*/*").lower()
    return kind in accepted or "*/*" in accepted or f"{kind.partition('/')[0]}/*" in accepted


def _make_send(writer: BodyWriter) -> Send:
    async def send(message: Json) -> None:
        writer.write_chunk(write_frame(message))
        if writer.is_full:
            await writer.drain()

    return send


def _send_while_admitted(send: Send, request: Request) -> Send:
    """Sends as long as the key of the request is good: a stream may outlast it. Raises `Fault` when it is not."""

    async def check_and_send(message: Json) -> None:
        await authorize_again(request)
        await send(message)

    return check_and_send


async def _stop(pending: Pending) -> None:
    if pending.work is not None:
        await pending.work.cancel()


def _go_on() -> None:
    """The client has left, and its run goes on."""


def _no_session() -> Fault:
    return Fault(404, "mcp_session_ended", "there is no such session, or it has ended; send `initialize` again")
