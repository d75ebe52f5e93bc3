"""What Ollama answers: JSON lines, as our events."""

from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, Unavailable
from mainspring.core.events import Finish
from mainspring.core.items import Usage
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import json_text, parse_count, split_objects
from mainspring.providers.reply import LineSplitter, ReplyReader, read_finish
from mainspring.providers.turn import TurnBuilder


class OllamaReply(ReplyReader[TurnBuilder]):
    """Reads the lines of a chat. The last one says that it is done and counts the tokens."""

    chunk_name = "line of Ollama's"

    def __init__(self, turn: TurnBuilder, http: Http) -> None:
        super().__init__(turn, http, LineSplitter())
        self._calls = 0

    def _take(self, data: bytes) -> None:
        try:
            chunk = self._decode(_chunk, data)
        except BadOutput:
            if not (several := split_objects(data)):
                raise
            for each in several:
                if not self.is_over:
                    self._take(each)
            return
        if chunk.error:
            raise self._failure(data)
        if (message := chunk.message) is not None:
            self._turn.reasoning(message.thinking or "")
            self._turn.text(message.content or "")
            for call in message.tool_calls or ():
                self._calls += 1
                arguments = json_text(call.function.arguments) or "{}"
                self._turn.call(index=self._calls, id=call.id or "", name=call.function.name or "", arguments=arguments)
        if not chunk.done:
            return
        if chunk.done_reason in ("load", "unload"):
            raise Unavailable(f"{self._http.url} did not answer, but {chunk.done_reason}ed the model; try again")
        self._finish = read_finish(chunk.done_reason or "stop", _FINISH, self._http.url)
        read, written = parse_count(chunk.prompt_eval_count), parse_count(chunk.eval_count)
        self._usage = None if read is None and written is None else Usage(read or 0, written or 0)
        self.is_over = True


class _OllamaFunction(Struct, gc=False):
    name: str | None = None
    arguments: object = None


class _OllamaToolCall(Struct, gc=False):
    function: _OllamaFunction
    id: str | None = None


class _OllamaMessage(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_OllamaToolCall] | None = None


class _OllamaChunk(Struct, gc=False):
    message: _OllamaMessage | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: object = None
    eval_count: object = None
    error: object = None


_FINISH: Final[dict[str, Finish]] = {"stop": "stop"}
_chunk: Final = msgspec.json.Decoder(_OllamaChunk)
