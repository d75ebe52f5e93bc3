"""What a model on Bedrock answers: the events of ConverseStream, or a whole answer of Converse, as ours."""

from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish
from mainspring.core.items import Usage
from mainspring.providers.anthropic.request import Redacted, Thinking, seal_thought
from mainspring.providers.bedrock.event_stream import EventStreamSplitter
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import json_text
from mainspring.providers.reply import NULL, ReplyReader, read_counts, read_finish
from mainspring.providers.turn import TurnBuilder


class BedrockReply(ReplyReader[TurnBuilder]):
    """Reads numbered blocks of text, thoughts and calls. Thoughts that are signed are sealed for `vendor`."""

    chunk_name = "event of Converse"
    may_be_whole = True

    def __init__(self, turn: TurnBuilder, http: Http, vendor: str) -> None:
        super().__init__(turn, http, EventStreamSplitter())
        self._vendor = vendor
        self._thought: list[str] = []
        self._signature = ""

    def _take(self, data: bytes) -> None:
        event = self._decode(_event, data)
        if (piece := event.contentBlockDelta) is not None:
            self._continue(piece.contentBlockIndex, piece.delta)
        elif (begun := event.contentBlockStart) is not None:
            if (call := begun.start.toolUse) is not None:
                self._turn.call(index=begun.contentBlockIndex, id=call.toolUseId or "", name=call.name or "")
        elif event.contentBlockStop is not None:
            self._seal()
        elif event.messageStop is not None:
            self._stop(event.messageStop.stopReason)
        elif event.metadata is not None:
            self._usage = _usage_of(event.metadata.usage)
            self.is_over = self._finish is not None

    def _take_whole(self, data: bytes) -> None:
        answer = self._decode(_answer, data)
        for index, block in enumerate(answer.output.message.content):
            self._continue(index, block)
            self._seal()
        self._usage = _usage_of(answer.usage)
        self._stop(answer.stopReason)

    def _continue(self, index: int, block: "_Block") -> None:
        if block.text is not None:
            self._turn.text(block.text)
        elif (call := block.toolUse) is not None:
            self._turn.call(index=index, id=call.toolUseId or "", name=call.name or "", arguments=json_text(call.input))
        elif (thought := block.reasoningContent) is not None:
            told = thought.reasoningText or thought
            if told.text:
                self._thought.append(told.text)
                self._turn.reasoning(told.text)
            self._signature = told.signature or self._signature
            if thought.redactedContent:
                self._turn.seal(seal_thought(Redacted(thought.redactedContent), self._vendor))

    def _seal(self) -> None:
        if self._signature:
            self._turn.seal(seal_thought(Thinking("".join(self._thought), self._signature), self._vendor))
        self._thought, self._signature = [], ""

    def _stop(self, reason: str) -> None:
        self._seal()
        if reason.startswith("malformed"):
            raise BadOutput(f"{self._http.url} gave up on the answer (`{reason}`); try again")
        self._finish = read_finish(reason, FINISHES, self._http.url)


class _Call(Struct, gc=False):
    toolUseId: str | None = None
    name: str | None = None
    input: object = None


class _ThoughtText(Struct, gc=False):
    text: str | None = None
    signature: str | None = None


class _Thought(_ThoughtText, gc=False):
    reasoningText: _ThoughtText | None = None
    redactedContent: str | None = None


class _Block(Struct, frozen=True, gc=False):
    """A block, or what is new in one."""

    text: str | None = None
    toolUse: _Call | None = None
    reasoningContent: _Thought | None = None


class _Piece(Struct, gc=False):
    contentBlockIndex: int = 0
    delta: _Block = _Block()
    start: _Block = _Block()


class _Stop(Struct, gc=False):
    stopReason: str = "end_turn"


class _Metadata(Struct, gc=False):
    usage: msgspec.Raw = NULL


class _Event(Struct, gc=False):
    contentBlockStart: _Piece | None = None
    contentBlockDelta: _Piece | None = None
    contentBlockStop: _Piece | None = None
    messageStop: _Stop | None = None
    metadata: _Metadata | None = None


class _Message(Struct, gc=False):
    content: list[_Block] = []


class _Output(Struct, gc=False):
    message: _Message


class _Answer(Struct, gc=False):
    output: _Output
    stopReason: str = "end_turn"
    usage: msgspec.Raw = NULL


def _usage_of(data: msgspec.Raw) -> Usage | None:
    """Usage in our terms: what was read from the cache or written to it is input."""
    if not (counts := read_counts(data)):
        return None
    cached, written = counts["cacheReadInputTokens"], counts["cacheWriteInputTokens"]
    return Usage(
        input_tokens=counts["inputTokens"] + cached + written,
        output_tokens=counts["outputTokens"],
        cached_tokens=cached,
        cache_write_tokens=written,
    )


FINISHES: Final[dict[str, Finish]] = {
    "max_tokens": "length", "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter", "content_filtered": "content_filter",
    "end_turn": "stop", "tool_use": "stop", "stop_sequence": "stop",
}  # fmt: skip
_event: Final = msgspec.json.Decoder(_Event)
_answer: Final = msgspec.json.Decoder(_Answer)
