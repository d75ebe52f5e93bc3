"""What an MCP server says while it is not answering: progress, changes of its tools, and questions, which are answered."""

from collections.abc import Awaitable, Callable
from typing import TypeGuard

from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.tools.mcp.exchange import Elicit, Progress
from mainspring.tools.mcp.json_rpc import INVALID_REQUEST, METHOD_NOT_FOUND, RequestRefused, RpcFault, RpcMessage, encode_answer

MOST_AT_ONCE = 64


class Questions:
    """What a server says while it is not answering: progress, changes, and questions, which are answered."""

    def __init__(self, elicit: Elicit | None, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.told: dict[int, Progress] = {}
        self.capabilities: Json = {} if elicit is None else {"elicitation": {"form": {}, "url": {}}}
        self._elicit = elicit
        self._send: Callable[[bytes], Awaitable[None]] | None = None

    def answer_by(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Answers questions from now on: the protocol has some."""
        self._send = send

    async def hear(self, message: RpcMessage) -> None:
        match message:
            case RpcMessage(method="notifications/tools/list_changed"):
                self.changed()
            case RpcMessage(method="notifications/progress", params=dict(params)):
                self._note_progress(params)
            case RpcMessage(method=str(method), id=int() | str() as number) if self._send is not None:
                await self._send(encode_answer(number, await self._answer(method, message.params or {})))
            case _:
                pass

    async def answer_all(self, asked: Json) -> Json:
        """The answers to questions that a result consists of. Raises `RequestRefused` if one has none, or there are
        too many."""
        if len(asked) > MOST_AT_ONCE:
            told = f"It asks {len(asked)} questions at once; at most {MOST_AT_ONCE} are answered"
            raise RequestRefused(RpcFault(INVALID_REQUEST, told))
        answers: Json = {}
        for key, question in asked.items():
            match question:
                case {"method": str(method), **rest}:
                    params = rest.get("params")
                    answer = await self._answer(method, params if isinstance(params, dict) else {})
                case _:
                    answer = RpcFault(INVALID_REQUEST, "It asks for input in no form that is known")
            if isinstance(answer, RpcFault):
                raise RequestRefused(answer)
            answers[key] = answer
        return answers

    async def _answer(self, method: str, params: Json) -> Json | RpcFault:
        match method:
            case "ping":
                return {}
            case "elicitation/create" if self._elicit is not None:
                content = await self._elicit(params)
                return {"action": "decline"} if content is None else {"action": "accept", "content": content}
            case "elicitation/create":
                return RpcFault(INVALID_REQUEST, "Elicitation not supported")
            case _:
                return RpcFault(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")

    def _note_progress(self, params: Json) -> None:
        token, done, total, text = [params.get(name) for name in ("progressToken", "progress", "total", "message")]
        told = self.told.get(token) if isinstance(token, int) else None
        if told is None or not is_number(done):
            return
        shown = f"{done:g} of {total:g}" if is_number(total) else f"{done:g}"
        told(shorten_line(text) or shown if isinstance(text, str) else shown)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that can be reckoned with."""
    return isinstance(value, (int, float)) and abs(value) < 1e300
