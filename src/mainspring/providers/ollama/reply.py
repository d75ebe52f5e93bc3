"""What Ollama answers: JSON lines, as our events."""

from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import Unavailable
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import json_text
from mainspring.providers.reply import Lines, ReplyReader, count_usage
from mainspring.providers.turn import Turn


class OllamaReply(ReplyReader[Turn]):
    """Reads the lines of a chat. The last one says that it is done and counts the tokens."""

    chunk_name = "line of Ollama's"

    def __init__(self, turn: Turn, http: Http) -> None:
        super().__init__(turn, http, Lines())
        self._calls = 0

    def _take(self, data: bytes) -> None:
        chunk = self._decode(_chunk, data)
        if chunk.error:
            raise self._failure(data)
        if chunk.message is not None:
            self._say(chunk.message)
        if chunk.done:
            self._close(chunk)

    def _say(self, message: "_Message") -> None:
        self._turn.reasoning(message.thinking or "")
        self._turn.text(message.content or "")
        for call in message.tool_calls or ():
            self._calls += 1
            arguments = json_text(call.function.arguments) or "{}"
            self._turn.call(index=self._calls, id=call.id or "", name=call.function.name or "", arguments=arguments)

    def _close(self, chunk: "_Chunk") -> None:
        if chunk.done_reason in ("load", "unload"):
            raise Unavailable(f"{self._http.url} did not answer, but {chunk.done_reason}ed the model; try again")
        self._finish = "length" if chunk.done_reason == "length" else "stop"
        self._usage = count_usage(chunk.prompt_eval_count, chunk.eval_count)
        self.is_over = True


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: object = None


class _ToolCall(Struct, gc=False):
    function: _Function
    id: str | None = None


class _Message(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Chunk(Struct, gc=False):
    message: _Message | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: object = None
    eval_count: object = None
    error: object = None


_chunk: Final = msgspec.json.Decoder(_Chunk)
