"""What Gemini answers: the chunks of a streamed `generateContent`, as our events."""

from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, Unavailable
from mainspring.core.events import Finish
from mainspring.core.items import Usage
from mainspring.providers.gemini.request import VENDOR
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import json_text, split_objects
from mainspring.providers.reply import NULL, ReplyReader, read_counts
from mainspring.providers.transcript import seal
from mainspring.providers.turn import TurnBuilder


class GeminiReply(ReplyReader[TurnBuilder]):
    """Reads the chunks of a streamed `generateContent`. Nothing marks the last of them but the end of the stream."""

    chunk_name = "chunk of Gemini's"
    may_be_whole = True

    def __init__(self, turn: TurnBuilder, http: Http) -> None:
        super().__init__(turn, http)
        self._calls = 0

    def _take(self, data: bytes) -> None:
        chunk = self._decode(_chunk, data)
        if chunk.error:
            raise self._failure(data)
        if (usage := _usage_of(chunk.usage)) is not None:
            self._usage = usage
        for candidate in chunk.candidates or ():
            if not candidate.index:
                self._choose(candidate)
        if chunk.feedback is not None and (chunk.feedback.reason or _NONE) not in UNSAID:
            self._finish = "content_filter"

    def _take_whole(self, data: bytes) -> None:
        """A chunk, or the array of all of them that a proxy has for a stream."""
        for chunk in split_objects(data) or [data.strip().removeprefix(b"[").removesuffix(b"]")]:
            self._take(chunk)

    def _take_done(self) -> None:
        """Proxies write this, and may have lost the reason."""
        super()._take_done()
        if self._turn.has_answer:
            self._finish = self._finish or "stop"

    def _choose(self, candidate: "_Candidate") -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._say(part)
        if (reason := candidate.reason or _NONE) not in UNSAID:
            if reason not in FINISHES:
                kind = BadOutput if reason in BOTCHED else Unavailable
                said = f": {candidate.message}" if candidate.message else ""
                raise kind(f"{self._http.url} gave up on the answer (`{reason}`){self._http.redact(said)}; try again")
            self._finish = FINISHES[reason]

    def _say(self, part: "_GeminiPart") -> None:
        turn, text, signature = self._turn, part.text or "", part.signature
        if part.call is not None:
            if signature:
                turn.seal(seal(VENDOR, f"call.{signature}"))
            self._calls += 1
            arguments = json_text(part.call.args) or "{}"
            turn.call(index=self._calls, id=part.call.id or "", name=part.call.name or "", arguments=arguments)
            return
        (turn.reasoning if part.thought else turn.text)(text)
        if signature:
            kind = "thought" if part.thought else "text" if text else "blank"
            turn.seal(seal(VENDOR, f"{kind}.{signature}"))


class _GeminiCall(Struct, gc=False):
    id: str | None = None
    name: str | None = None
    args: object = None


class _GeminiPart(Struct, gc=False, rename={"signature": "thoughtSignature", "call": "functionCall"}):
    text: str | None = None
    thought: bool | None = None
    signature: str | None = None
    call: _GeminiCall | None = None


class _Content(Struct, gc=False):
    parts: list[_GeminiPart] | None = None


class _Candidate(Struct, gc=False, rename={"reason": "finishReason", "message": "finishMessage"}):
    index: int | None = None
    content: _Content | None = None
    reason: str | None = None
    message: str | None = None


class _Feedback(Struct, gc=False, rename={"reason": "blockReason"}):
    reason: str | None = None


class _GeminiChunk(Struct, gc=False, rename={"feedback": "promptFeedback", "usage": "usageMetadata"}):
    candidates: list[_Candidate] | None = None
    feedback: _Feedback | None = None
    usage: msgspec.Raw = NULL
    error: object = None


def _usage_of(data: msgspec.Raw) -> Usage | None:
    """Usage in our terms. Gemini counts thoughts beside the answer, and what its own tools read beside the prompt."""
    counts = read_counts(data)
    if not counts.keys() & {"promptTokenCount", "candidatesTokenCount"}:
        return None
    return Usage(
        input_tokens=counts["promptTokenCount"] + counts["toolUsePromptTokenCount"],
        output_tokens=counts["candidatesTokenCount"] + counts["thoughtsTokenCount"],
        cached_tokens=counts["cachedContentTokenCount"],
        reasoning_tokens=counts["thoughtsTokenCount"],
    )


FINISHES: Final[dict[str, Finish]] = {
    "STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length",
    **dict.fromkeys(
        ["SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR",
         "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"], "content_filter",
    ),
}  # fmt: skip
_NONE: Final = "FINISH_REASON_UNSPECIFIED"
UNSAID: Final = frozenset({_NONE, "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"})
BOTCHED: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})
_chunk: Final = msgspec.json.Decoder(_GeminiChunk)
