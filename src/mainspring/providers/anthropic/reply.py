"""What Claude answers: the events of the Messages API, as ours.

An answer is a row of numbered blocks: text, thoughts, calls. Thoughts are signed; what the vendor wants back of them is sealed
into their items. Blocks of kinds we did not ask for are left out, but go back to the vendor if it pauses the turn.
"""

from collections import defaultdict
from contextlib import suppress

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish
from mainspring.core.items import Json, Usage
from mainspring.providers.anthropic.request import Redacted, Thinking, seal_thought
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import json_text
from mainspring.providers.reply import NULL, EventSplitter, ReplyReader, read_counts, read_finish
from mainspring.providers.transcript import parse_any_arguments
from mainspring.providers.turn import TurnBuilder


class AnthropicReply(ReplyReader[TurnBuilder]):
    """Reads the events of a message, or a whole message."""

    chunk_name = "event of the Messages API"

    def __init__(self, turn: TurnBuilder, http: Http) -> None:
        super().__init__(turn, http)
        self._thought: list[str] = []
        self._signature = ""
        # Calls that are being made, by the number of their block, with the arguments they began with.
        self._calls: dict[int, str] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._said: dict[int, _SaidBlock] = {}
        self._earlier: list[Json] = []
        self._spent = Usage()
        self._is_paused = False
        self._pauses = 0

    def resume(self) -> list[Json] | None:
        """If the vendor has paused the turn: the blocks so far, to be sent back; the reader waits for what follows them."""
        if not self._is_paused or self._pauses == MOST_PAUSES:
            return None
        self._earlier += [block for _, said in sorted(self._said.items()) if (block := said.build()) is not None]
        self._spent, self._chunks = self._usage or Usage(), EventSplitter()
        self._said, self._calls, self._counts = {}, {}, defaultdict(int)
        self._finish, self.is_over, self._is_paused = None, False, False
        self._pauses += 1
        return self._earlier

    def _take(self, data: bytes) -> None:
        event = self._decode_event(data)
        match event.type:
            case "content_block_delta":
                self._continue(event.index or 0, event.delta or _NO_BLOCK)
            case "content_block_start":
                self._said[event.index or 0] = _SaidBlock(self._decode(_start, data).content_block)
                self._begin(event.index or 0, event.content_block or _NO_BLOCK)
            case "content_block_stop":
                self._stop(event.index or 0)
            case "message_start":
                self._add_usage(event.message.usage if event.message else NULL)
            case "message_delta":
                self._add_usage(event.usage)
                self._stop_turn(event.delta or _NO_BLOCK)
            case "message_stop":
                self.is_over = True
            case "message":
                self._said = {index: _SaidBlock(block) for index, block in enumerate(self._decode(_start, data).content)}
                self._take_message(event)
            case _ if event.type == "error" or event.error:
                raise self._failure(data)

    def _take_message(self, event: "_AnthropicEvent") -> None:
        """An answer in one piece, from a backend that does not stream."""
        for index, block in enumerate(event.content or ()):
            self._begin(index, block)
            self._stop(index)
        self._add_usage(event.usage)
        reason, told = event.stop_reason or "end_turn", event.stop_sequence
        self._stop_turn(_Block(stop_reason=reason, stop_sequence=told, stop_details=event.stop_details))
        self.is_over = True

    def _begin(self, index: int, block: "_Block") -> None:
        match block.type:
            case "text":
                self._turn.text(block.text or "")
            case "thinking":
                self._thought, self._signature = [], block.signature or ""
                self._think(block.thinking or "")
            case "redacted_thinking":
                self._turn.seal(seal_thought(Redacted(block.data or "")))
            case "tool_use":
                self._calls[index] = json_text(block.input or None)
                self._turn.call(index=index, id=block.id or "", name=block.name or "")

    def _continue(self, index: int, delta: "_Block") -> None:
        if (said := self._said.get(index)) is not None:
            said.add(delta)
        match delta.type:
            case "text_delta":
                is_thought = said is not None and said.begun.get("type") == "thinking"
                (self._think if is_thought else self._turn.text)(delta.text or "")
            case "input_json_delta":
                # Tools that the vendor runs itself are called like this too, and are none of ours.
                if index in self._calls and delta.partial_json:
                    self._calls[index] = ""
                    self._turn.call(index=index, arguments=delta.partial_json)
            case "thinking_delta":
                self._think(delta.thinking or "")
            case "signature_delta":
                self._signature = delta.signature or ""

    def _stop(self, index: int) -> None:
        if self._signature:
            self._turn.seal(seal_thought(Thinking("".join(self._thought), self._signature)))
            self._thought, self._signature = [], ""
        if arguments := self._calls.pop(index, ""):
            self._turn.call(index=index, arguments=arguments)

    def _think(self, delta: str) -> None:
        self._thought.append(delta)
        self._turn.reasoning(delta)

    def _stop_turn(self, delta: "_Block") -> None:
        if not delta.stop_reason:
            return
        self._finish = read_finish(delta.stop_reason, FINISHES, self._http.url)
        self._is_paused = delta.stop_reason == "pause_turn"
        if delta.stop_reason == "stop_sequence" and delta.stop_sequence:
            self._turn.stop_sequence = delta.stop_sequence
        match delta.stop_details:
            case {"type": "refusal", "explanation": str(explanation)}:
                self._turn.refusal(explanation)

    def _add_usage(self, data: msgspec.Raw) -> None:
        """Takes what is counted: each number stands for all so far. Tokens read from the cache or written to it are input."""
        self._counts |= read_counts(data)
        if counts := self._counts:
            cached, written = counts["cache_read_input_tokens"], counts["cache_creation_input_tokens"]
            self._usage = self._spent + Usage(
                input_tokens=counts["input_tokens"] + cached + written,
                output_tokens=counts["output_tokens"],
                cached_tokens=cached,
                cache_write_tokens=written,
                reasoning_tokens=counts["output_tokens_details.thinking_tokens"],
            )

    def _decode_event(self, data: bytes) -> "_AnthropicEvent":
        try:
            return self._decode(_event, data)
        except BadOutput:
            with suppress(ValueError, RecursionError):
                if _is_foreign(msgspec.json.decode(data)):
                    return _NOTHING
            raise


def _is_foreign(event: object) -> bool:
    """An event, or a piece of a block, of a kind that we do not know: it may look like anything."""
    match event:
        case {"type": str(kind)} if kind not in KNOWN_KINDS:
            return True
        case {"content_block": {"type": str(kind)}} | {"delta": {"type": str(kind)}}:
            return kind not in KNOWN_KINDS
        case _:
            return False


class _Block(Struct, gc=False):
    """A block, what is new in one, or, without a type, what is new in the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None
    partial_json: str | None = None
    citation: object = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: object = None


_NO_BLOCK = _Block()


class _AnthropicEvent(Struct, gc=False):
    """An event of a stream, or a whole answer."""

    type: str = ""
    index: int | None = None
    delta: _Block | None = None
    content_block: _Block | None = None
    message: "_AnthropicEvent | None" = None
    usage: msgspec.Raw = NULL
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: object = None
    error: object = None


class _StartEvent(Struct, gc=False):
    content_block: Json = {}
    content: list[Json] = []


class _SaidBlock(Struct, eq=False):
    """A block of whatever kind as it came: its beginning, and what was added to it."""

    begun: Json
    pieces: list[str] = []
    citations: list[object] = []

    def add(self, delta: "_Block") -> None:
        if delta.type == "signature_delta":
            self.begun["signature"] = delta.signature
        elif delta.citation is not None:
            self.citations.append(delta.citation)
        elif piece := delta.text or delta.partial_json or delta.thinking:
            self.pieces.append(piece)

    def build(self) -> Json | None:
        """The block as it can be sent back; None for an empty text, which is refused."""
        block, said = self.begun, "".join(self.pieces)
        match block.get("type"):
            case "text" | "thinking" as kind:
                block[kind] = f"{block.get(kind) or ''}{said}"
            case _ if said:
                block["input"] = parse_any_arguments(said)
        if self.citations:
            block["citations"] = self.citations
        return None if block.get("type") == "text" and not block["text"].strip() else block


MOST_PAUSES = 20
# The answer beyond the model's window is cut off, as much as one beyond its limit, and as one that is paused without end.
FINISHES: dict[str, Finish] = {
    "max_tokens": "length", "model_context_window_exceeded": "length", "pause_turn": "length", "refusal": "content_filter",
    "end_turn": "stop", "tool_use": "stop", "stop_sequence": "stop",
}  # fmt: skip
KNOWN_KINDS = frozenset(
    {
        "content_block_delta", "content_block_start", "content_block_stop", "message_start", "message_delta", "message_stop",
        "message", "error", "text", "thinking", "redacted_thinking", "tool_use",
        "text_delta", "input_json_delta", "thinking_delta", "signature_delta",
    }
)  # fmt: skip
_NOTHING = _AnthropicEvent()
_start = msgspec.json.Decoder(_StartEvent)
_event = msgspec.json.Decoder(_AnthropicEvent)
