"""What an MCP server says while it is not answering: progress, changes of its tools, and questions, which are answered."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeGuard

import anyio
from anyio.abc import TaskGroup

from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.tools.mcp.call_exchange import CallExchange
from mainspring.tools.mcp.exchange import SessionLost
from mainspring.tools.mcp.json_rpc import INVALID_REQUEST, RequestRefused, RpcFault, RpcMessage, encode_answer, refuse

MOST_AT_ONCE = 16


class Questions:
    """What a server says while it is not answering: progress, changes, and questions, which the call they belong to answers.

    A question that does not come with its call belongs to the one call under way. Are there several, nobody can tell whose person
    it is meant for, so it is refused.
    """

    def __init__(self, capabilities: Json, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.capabilities = capabilities
        self.calls: dict[int, CallExchange] = {}
        self.tasks: TaskGroup | None = None
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._answering: dict[int | str, anyio.CancelScope] = {}

    def answer_by(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Answers questions from now on: the protocol has some."""
        self._send = send

    async def hear(self, message: RpcMessage, request: int | None = None) -> None:
        """Takes what the server says, on the stream of this `request` if it has one of its own."""
        match message:
            case RpcMessage(method="notifications/tools/list_changed"):
                self.changed()
            case RpcMessage(method="notifications/progress", params=dict(params)):
                self._note_progress(params)
            case RpcMessage(method="notifications/cancelled", params={"requestId": int() | str() as number}):
                if (scope := self._answering.get(number)) is not None:
                    scope.cancel()
            case RpcMessage(method="ping", id=int() | str() as number) if self._send is not None:
                await self._send(encode_answer(number, {}))
            case RpcMessage(method=str(method), id=int() | str() as number) if self._send is not None:
                if self.tasks is None or len(self._answering) >= MOST_AT_ONCE or number in self._answering:
                    await self._send(encode_answer(number, RpcFault(INVALID_REQUEST, "Too many questions at once")))
                else:
                    self._answering[number] = anyio.CancelScope()
                    params = message.params if isinstance(message.params, dict) else {}
                    self.tasks.start_soon(self._answer, number, method, params, request)
            case _:
                pass

    async def _answer(self, number: int | str, method: str, params: Json, request: int | None) -> None:
        try:
            with self._answering[number]:
                try:
                    answer: Json | RpcFault = await self._find_call(request).answer_request(method, params)
                except RequestRefused as error:
                    answer = error.fault if error.fault.code else RpcFault(INVALID_REQUEST, error.fault.message)
                if self._send is not None:
                    with suppress(SessionLost, RequestRefused):  # whoever asks next will notice
                        await self._send(encode_answer(number, answer))
        finally:
            del self._answering[number]

    def _find_call(self, request: int | None) -> CallExchange:
        if request is not None and (found := self.calls.get(request)) is not None:
            return found
        under_way = list(dict.fromkeys(self.calls.values()))
        if len(under_way) != 1:
            raise refuse("Several calls are under way, or none: nobody can tell which of them asks")
        return under_way[0]

    def _note_progress(self, params: Json) -> None:
        token, done, total, text = [params.get(name) for name in ("progressToken", "progress", "total", "message")]
        call = self.calls.get(token) if isinstance(token, int) else None
        if call is None or call.told is None or not is_number(done):
            return
        shown = f"{done:g} of {total:g}" if is_number(total) else f"{done:g}"
        call.told(shorten_line(text) or shown if isinstance(text, str) else shown)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that can be reckoned with."""
    return isinstance(value, (int, float)) and abs(value) < 1e300
