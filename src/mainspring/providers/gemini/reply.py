"""What Gemini answers: the chunks of a streamed `generateContent`, as our events."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, ProviderError, Unavailable
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.items import Usage
from mainspring.providers.gemini.request import VENDOR
from mainspring.providers.http_client import Http, Sse, complaint, failure_within, shortened
from mainspring.providers.json_text import counted, json_text, lenient
from mainspring.providers.transcript import sealed
from mainspring.providers.turn import Turn


class Answer:
    """Reads one reply and turns it into events. It does no I/O: feed it bytes, cut as they may be."""

    def __init__(self, turn: Turn, http: Http) -> None:
        self._turn = turn
        self._http = http
        self._sse = Sse()
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self._calls = 0

    @property
    def is_complete(self) -> bool:
        """Gemini has said why it stopped."""
        return self._finish is not None

    def feed(self, data: bytes) -> Iterator[ModelEvent]:
        """The events that these bytes complete."""
        return self._read(self._sse.feed(data))

    def end(self) -> Iterator[ModelEvent]:
        """The last events. Raises `Unavailable` if Gemini never said that it was done."""
        # Half an event is what a connection leaves that broke: no bad output.
        with suppress(BadOutput):
            yield from self._read(self._sse.end())
        if self._finish is None:
            raise Unavailable(f"the stream of {self._http.url} ended before the answer was complete; try again")
        self._turn.end(self._finish, self._usage)
        yield from self._turn.take()

    def _read(self, events: Iterator[tuple[bytes, bytes]]) -> Iterator[ModelEvent]:
        try:
            for name, data in events:
                self._take(name, data)
                yield from self._turn.take()
        except ProviderError:
            # What comes behind a complete answer, or does not, takes nothing of it back.
            if not self.is_complete:
                raise

    def _take(self, name: bytes, data: bytes) -> None:
        try:
            chunk = lenient(_chunk, data)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{self._http.url} sent what is no chunk of Gemini's ({error}): `{text}`") from error
        if chunk.error or name == b"error":
            raise self._broken_off(data)
        if (usage := _counted(chunk.usage)) is not None:
            self._usage = usage
        for candidate in chunk.candidates or ():
            if not candidate.index:
                self._choose(candidate)
        if chunk.feedback is not None and chunk.feedback.reason:
            self._finish = "content_filter"

    def _choose(self, candidate: "_Candidate") -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._say(part)
        if reason := candidate.reason:
            if reason not in _FINISH:
                kind = BadOutput if reason in _BOTCHED else Unavailable
                said = f": {candidate.message}" if candidate.message else ""
                raise kind(f"{self._http.url} gave up on the answer (`{reason}`){self._http.redacted(said)}; try again")
            self._finish = _FINISH[reason]

    def _say(self, part: "_Part") -> None:
        turn, text, signature = self._turn, part.text or "", part.signature
        if part.call is not None:
            if signature:
                turn.seal(sealed(VENDOR, f"call.{signature}"))
            self._calls += 1
            turn.call(
                index=self._calls, id=part.call.id or "", name=part.call.name or "", arguments=json_text(part.call.args) or "{}"
            )
            return
        if part.thought:
            turn.reasoning(text)
        else:
            turn.text(text)
        if signature:
            kind = "thought" if part.thought else "text" if text else "blank"
            turn.seal(sealed(VENDOR, f"{kind}.{signature}"))

    def _broken_off(self, data: bytes) -> ProviderError:
        said = complaint(data)
        return failure_within(said._replace(message=self._http.redacted(said.message)), self._http.url)


class _Call(Struct, gc=False):
    id: str | None = None
    name: str | None = None
    args: object = None


class _Part(Struct, gc=False, rename={"signature": "thoughtSignature", "call": "functionCall"}):
    text: str | None = None
    thought: bool | None = None
    signature: str | None = None
    call: _Call | None = None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False, rename={"reason": "finishReason", "message": "finishMessage"}):
    index: int | None = None
    content: _Content | None = None
    reason: str | None = None
    message: str | None = None


class _Feedback(Struct, gc=False, rename={"reason": "blockReason"}):
    reason: str | None = None


class _Usage(
    Struct,
    gc=False,
    rename={
        "prompt": "promptTokenCount",
        "tools": "toolUsePromptTokenCount",
        "cached": "cachedContentTokenCount",
        "candidates": "candidatesTokenCount",
        "thoughts": "thoughtsTokenCount",
    },
):
    prompt: object = None
    tools: object = None
    cached: object = None
    candidates: object = None
    thoughts: object = None


class _Chunk(Struct, gc=False, rename={"feedback": "promptFeedback", "usage": "usageMetadata"}):
    candidates: list[_Candidate] | None = None
    feedback: _Feedback | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: object = None


def _counted(data: msgspec.Raw) -> Usage | None:
    """Usage in our terms, if it can be read: no answer is lost because nobody counted it.

    Gemini counts thoughts beside the answer, and what its own tools read beside the prompt.
    """
    try:
        usage = _usage.decode(data)
    except ValueError:
        return None
    if usage is None:
        return None
    prompt, candidates, thoughts = counted(usage.prompt), counted(usage.candidates), counted(usage.thoughts) or 0
    if prompt is None and candidates is None:
        return None
    return Usage(
        input_tokens=(prompt or 0) + (counted(usage.tools) or 0),
        output_tokens=(candidates or 0) + thoughts,
        cached_tokens=counted(usage.cached) or 0,
        reasoning_tokens=thoughts,
    )


_FINISH: Final[dict[str, Finish]] = {
    "STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length",
    **dict.fromkeys(
        ["SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR",
         "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"], "content_filter",
    ),
}  # fmt: skip
_BOTCHED: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})
_chunk: Final = msgspec.json.Decoder(_Chunk)
_usage: Final = msgspec.json.Decoder(_Usage | None)
