"""MCP on standard input and output: one client, a message a line, in both eras of the protocol.

Whatever else the process prints goes to standard error, since a line that is no message would end the connection.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from logging import getLogger
from select import select
from shutil import copyfileobj
from stat import S_ISFIFO, S_ISSOCK
from threading import Thread
from typing import Final

from anyio import CancelScope, Event, Lock, create_task_group, move_on_after, sleep, to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from mainspring.core.items import Json, encode
from mainspring.features.mcp_server.client_messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ClientReply,
    ClientRequest,
    Notice,
    RequestId,
    RpcError,
    parse_message,
    render_result,
)
from mainspring.features.mcp_server.mcp_door import McpDoor, Pending
from mainspring.features.mcp_server.peer import Peer, is_stateless_call, read_stateless
from mainspring.features.mcp_server.services import McpServices
from mainspring.http.auth import ApiCaller
from mainspring.http.bodies import MOST_BODY_BYTES

log = getLogger(__name__)

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
# How long requests have to be answered after the client has closed its end.
GOODBYE_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.01
# How many requests are answered at a time, and how long nothing more is read where there are as many: they may wait for something
# that the client has to say. Then one more is refused.
MOST_AT_ONCE: Final = 256
FULL_SECONDS: Final = 1.0


class StdioTransport:
    """Serves the client behind standard input until that ends. `caller` is who it is taken for."""

    def __init__(self, services: McpServices, caller: ApiCaller) -> None:
        self._door, self._caller = McpDoor(services), caller
        self._peer: Peer | None = None
        self._underway: dict[RequestId, CancelScope] = {}
        self._count, self._has_ended = 0, Event()
        self._serving, self._writing = CancelScope(), Lock()
        self._out = STDOUT

    async def serve(self) -> None:
        source, self._out = os.dup(STDIN), os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
        async with create_task_group() as tasks:
            self._serving = tasks.cancel_scope
            async for line in _read_lines(source):
                try:
                    message = _parse_line(line)
                except RpcError as error:
                    await self._send(error.render(None))
                    continue
                match message:
                    case ClientRequest() if await self._has_room():
                        # It can be cancelled from here on, also before its run has begun.
                        scope = self._underway[message.id] = CancelScope()
                        self._count += 1
                        tasks.start_soon(self._answer, message, scope)
                    case ClientRequest(id=id):
                        told = f"{MOST_AT_ONCE} requests are being answered; send this one again when some of them are"
                        await self._send(RpcError(INTERNAL_ERROR, told).render(id))
                    case ClientReply():
                        if self._peer is not None:
                            await self._door.take_reply(message, self._peer)
                    case Notice(method="notifications/cancelled", params={"requestId": str() | int() as id}):
                        if (found := self._underway.get(id)) is not None:
                            found.cancel()
                    case Notice():
                        pass
            with move_on_after(GOODBYE_SECONDS):  # whoever sends a request by a pipe gets its answer
                while self._underway:  # noqa: ASYNC110
                    await sleep(LOOK_SECONDS)
            tasks.cancel_scope.cancel()

    async def _has_room(self) -> bool:
        with move_on_after(FULL_SECONDS):
            while self._count >= MOST_AT_ONCE:
                self._has_ended = Event()
                await self._has_ended.wait()
        return self._count < MOST_AT_ONCE

    async def _answer(self, call: ClientRequest, scope: CancelScope) -> None:
        try:
            if (told := await self._find_answer(call, scope)) is not None:
                await self._send(told)
        finally:
            self._count -= 1
            self._has_ended.set()
            if self._underway.get(call.id) is scope:
                del self._underway[call.id]

    async def _find_answer(self, call: ClientRequest, scope: CancelScope) -> Json | None:
        """What to send; None if the client has cancelled its request."""
        try:
            with scope:
                return render_result(call.id, await self._find_result(call, scope))
            return None
        except RpcError as error:
            return error.render(call.id)
        except Exception:  # whatever it is, the client is told that there is no answer
            log.exception("%s failed", call.method)
            return RpcError(INTERNAL_ERROR, "the server failed; MAINSPRING_DEBUG=1 shows why").render(call.id)

    async def _find_result(self, call: ClientRequest, scope: CancelScope) -> Json:
        if is_stateless_call(call, {}):
            peer = read_stateless(call, self._caller, None)
        elif call.method == "initialize":
            self._peer, told = self._door.initialize(call, self._caller)
            return told
        elif self._peer is None:
            raise RpcError(INVALID_REQUEST, "send `initialize` first")
        else:
            peer = self._peer
        with CancelScope(shield=True):  # what has begun half could not be cancelled
            answer = await self._door.begin(call, peer)
        if not isinstance(answer, Pending):
            return answer
        try:
            await checkpoint_if_cancelled()
            return await self._door.finish(answer, peer, self._send)
        except BaseException:
            with CancelScope(shield=True):
                if scope.cancel_called and answer.work is not None:
                    await answer.work.cancel()
            raise

    async def _send(self, message: Json) -> None:
        data = encode(message) + b"\n"
        async with self._writing:
            try:
                await to_thread.run_sync(_write_all, self._out, data)
            except BrokenPipeError:  # the client has gone
                self._serving.cancel()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a socket or a terminal that is our input as well, which is read without blocking
            select([], [descriptor], [])


def _parse_line(line: bytes | None) -> ClientRequest | Notice | ClientReply:
    if line is None:
        raise RpcError(PARSE_ERROR, f"a message has at most {MOST_BODY_BYTES} bytes; send less at a time")
    return parse_message(line)


async def _read_lines(source: int) -> AsyncIterator[bytes | None]:
    """Lines that are not empty; None for one that is too long."""
    reader = asyncio.StreamReader(limit=MOST_BODY_BYTES)
    pipe = os.fdopen(_make_pipe(source), "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    is_too_long, has_ended = False, False
    while not has_ended:
        try:
            line = await reader.readuntil()
        except asyncio.LimitOverrunError as error:
            await reader.readexactly(error.consumed)
            is_too_long = True
            continue
        except asyncio.IncompleteReadError as error:
            line, has_ended = error.partial, True
        if is_too_long:
            is_too_long = False
            yield None
        elif line.strip():
            yield line


def _make_pipe(source: int) -> int:
    """The source if it can be waited for, else a pipe of what it holds: files and devices cannot."""
    mode = os.fstat(source).st_mode
    if S_ISFIFO(mode) or S_ISSOCK(mode) or os.isatty(source):
        return source
    end, begin = os.pipe()
    Thread(target=_copy, args=(source, begin), daemon=True).start()
    return end


def _copy(source: int, target: int) -> None:
    with os.fdopen(source, "rb") as read, suppress(BrokenPipeError), os.fdopen(target, "wb") as written:
        copyfileobj(read, written)
