"""Carries messages over one stream that all requests share: the output of a process, or the event stream of HTTP+SSE."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from anyio.abc import TaskGroup

from mainspring.core.items import Json
from mainspring.tools.mcp.exchange import SessionLost
from mainspring.tools.mcp.json_rpc import (
    INVALID_REQUEST,
    LINE_BYTES,
    PARSE_ERROR,
    Hear,
    Reply,
    RequestRefused,
    RpcMessage,
    StreamBudget,
    encode_cancel,
    encode_request,
    parse_message,
    read_reply,
)

MOST_QUESTIONS = 16

# Whoever says this may not know which request it is about. Any other error without an id is about a notification.
_UNREAD = (PARSE_ERROR, INVALID_REQUEST)


class SharedLink:
    """Matches answers to requests by their numbers. `send` writes a message; whoever reads the stream charges its budget for what
    arrives, and calls `receive`.

    A question of the server's is answered in a task of its own, `MOST_QUESTIONS` at a time; who asks more gets no answer.
    """

    # Requests share the stream, so that leaving one does not cancel it, and they have no headers.
    is_http = False

    def __init__(self, send: Callable[[bytes], Awaitable[None]], hear: Hear, tasks: TaskGroup, budget: StreamBudget) -> None:
        self._send, self._hear, self._tasks, self._budget = send, hear, tasks, budget
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._questions = 0

    def adopt(self, version: str | None, *, is_stateless: bool) -> None:
        """Says nothing of it: the messages say it themselves."""

    async def ask(self, number: int, method: str, params: Json, headers: bytes = b"") -> Reply:
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            await self._send(encode_request(number, method, params))
            return await waiter
        finally:
            del self._waiting[number]
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()  # nobody may have looked at it

    async def tell(self, message: bytes) -> None:
        await self._send(message)

    async def cancel(self, number: int) -> None:
        await self._send(encode_cancel(number))

    async def listen(self) -> None:
        """Does nothing: all is heard anyway."""

    async def receive(self, data: bytes) -> None:
        """Takes a message that has arrived. Raises `RequestRefused` for what is none."""
        message = await parse_message(data)
        if message.is_answer:
            self._settle(message, len(data))
        elif message.id is None:
            await self._hear(message, None)
        elif self._questions < MOST_QUESTIONS:
            self._questions += 1
            self._tasks.start_soon(self._answer, message)

    def fail(self, reason: str) -> None:
        """Ends all requests: there will be no answers."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(SessionLost(reason))

    def _settle(self, message: RpcMessage, size: int) -> None:
        number = message.id
        if number is None and message.error is not None and message.error.code in _UNREAD and len(self._waiting) == 1:
            number = next(iter(self._waiting))  # it could not read the only request there is
        waiter = self._waiting.get(number) if isinstance(number, int) else None
        if waiter is None or waiter.done():
            return
        self._budget.refund(size + LINE_BYTES)
        try:
            waiter.set_result(read_reply(message, int(number or 0), size))
        except RequestRefused as error:
            waiter.set_exception(error)

    async def _answer(self, message: RpcMessage) -> None:
        with suppress(SessionLost, RequestRefused):  # whoever asks next will notice
            await self._hear(message, None)
        self._questions -= 1
