"""What a Chat Completions backend answers: chunks, whole or streamed, as our events."""

from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, ProviderError, Unavailable
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.items import (
    Json,
    Usage,
)
from mainspring.providers.http_client import Http, Sse, complaint, failure_within, shortened
from mainspring.providers.json_text import counted, json_text, lenient
from mainspring.providers.turn import Index, Turn


class Answer:
    """Reads one reply and turns it into events. It does no I/O: feed it bytes, cut as they may be."""

    def __init__(self, turn: Turn, http: Http) -> None:
        self._turn = turn
        self._http = http
        self._sse = Sse()
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        """The backend has said why it stopped; at most the usage is still to come."""
        return self._finish is not None

    def feed(self, data: bytes) -> Iterator[ModelEvent]:
        """The events that these bytes of an event stream complete."""
        return self._read(self._sse.feed(data))

    def given(self, data: bytes) -> Iterator[ModelEvent]:
        """The events of an answer that came in one piece: from a backend that does not stream, or does not say that it does."""
        if data.lstrip().startswith((b"data:", b"event:", b":")):
            yield from self.feed(data)
            return
        self._take(b"", data)
        self._finish = self._finish or "stop"
        self.is_over = True
        yield from self._turn.take()

    def end(self) -> Iterator[ModelEvent]:
        """The last events. Raises `Unavailable` if the backend never said that it was done."""
        if not self.is_over:
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
                if data.startswith(b"[DONE]"):
                    self.is_over = True
                    return
                self._take(name, data)
                yield from self._turn.take()
        except ProviderError:
            # What comes behind a complete answer, or does not, takes nothing of it back.
            if not self.is_complete:
                raise
            self.is_over = True

    def _take(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            raise self._broken_off(data)
        chunk = self._decoded(data)
        if chunk.error:
            raise self._broken_off(data)
        if (usage := _counted(chunk.usage)) is not None:
            self._usage = usage
        if chunk.choices is None:
            if chunk.object == "error":
                raise self._broken_off(data)
            return
        for choice in chunk.choices:
            if not choice.index:
                self._choose(choice)

    def _choose(self, choice: "_Choice") -> None:
        delta = choice.delta
        if delta is None and self._turn.is_silent:
            delta = choice.message
        if delta is not None:
            _say(self._turn, delta)
        if reason := choice.finish_reason:
            if reason in _GAVE_UP:
                raise Unavailable(f"{self._http.url} gave up on the answer (`{reason}`); try again, or look at the server's log")
            self._finish = _FINISH.get(reason, "stop")

    def _decoded(self, data: bytes) -> "_Chunk":
        try:
            return lenient(_chunk, data)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{self._http.url} sent what is no Chat Completions chunk ({error}): `{text}`") from error

    def _broken_off(self, data: bytes) -> ProviderError:
        said = complaint(data)
        return failure_within(said._replace(message=self._http.redacted(said.message)), self._http.url)


def _say(turn: Turn, delta: "_Delta") -> None:
    """One delta, in the order its parts are thought, said and done."""
    if thought := delta.reasoning_content or delta.reasoning:
        turn.reasoning(_plain(thought))
    elif delta.reasoning_details:
        for detail in _objects(delta.reasoning_details):
            turn.reasoning(_plain(detail.get("text")) or _plain(detail.get("summary")))
    content = delta.content
    if isinstance(content, str):
        turn.text(content)
    elif content is not None:
        _say_parts(turn, content)
    if delta.refusal:
        turn.refusal(_plain(delta.refusal))
    if delta.annotations:
        for annotation in _objects(delta.annotations):
            turn.annotation(_flat(annotation))
    if delta.tool_calls:
        _call(turn, delta.tool_calls)
    if delta.function_call is not None:
        # Before there were tool calls there was one function call, and it needed no number.
        turn.call(index="function_call", name=delta.function_call.name or "", arguments=json_text(delta.function_call.arguments))


def _call(turn: Turn, calls: "list[_ToolCall]") -> None:
    places: list[tuple[Index | None, str]] = []
    for call in calls:
        place, function = (call.index, str(call.id or "")), call.function or _NO_FUNCTION
        name, arguments = function.name or "", json_text(function.arguments)
        turn.call(index=place[0], id=place[1], name=name, arguments=arguments, is_beside=place in places)
        places.append(place)


def _say_parts(turn: Turn, content: "list[_ContentPart | str]") -> None:
    for part in content:
        if isinstance(part, str):
            turn.text(part)
        elif part.type == "thinking":
            thinking = [part.thinking] if isinstance(part.thinking, str) else part.thinking or []
            for thought in thinking:
                turn.reasoning(thought if isinstance(thought, str) else thought.text or "")
        elif part.type == "refusal":
            turn.refusal(part.refusal or "")
        else:
            turn.text(part.text or "")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else ""


def _objects(value: object) -> list[Json]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _flat(annotation: Json) -> Json:
    """An annotation as the Responses wire has it: its fields beside its type, not one level down."""
    kind = annotation.get("type")
    inner = annotation.get(kind) if isinstance(kind, str) else None
    fields = {"type": kind, **inner} if isinstance(inner, dict) else annotation
    return {name: value for name, value in fields.items() if isinstance(value, str | int)}


_NULL = msgspec.Raw(b"null")


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: object = None


class _ToolCall(Struct, gc=False):
    index: Index | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Thinking(Struct, gc=False):
    text: str | None = None


class _ContentPart(Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | list[_Thinking | str] | None = None
    refusal: str | None = None


class _Delta(Struct, gc=False):
    """What the answer consists of has its type, or the answer is unreadable; the rest is taken if it is as it should be."""

    content: str | list[_ContentPart | str] | None = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_details: object = None
    refusal: object = None
    annotations: object = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: object = None
    cache_write_tokens: object = None
    reasoning_tokens: object = None


class _Usage(Struct, gc=False):
    prompt_tokens: object = None
    completion_tokens: object = None
    total_tokens: object = None
    prompt_cache_hit_tokens: object = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(Struct, gc=False):
    """A chunk of a stream, or a whole answer: they differ in `delta` and `message` only."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NULL
    error: object = None
    object: str | None = None


def _counted(data: msgspec.Raw) -> Usage | None:
    """Usage in our terms, if it can be read: no answer is lost because nobody counted it.

    Some backends leave reasoning out of the completion and have it in the total only.
    """
    try:
        usage = _usage.decode(data)
    except ValueError:
        return None
    if usage is None:
        return None
    prompt, completion = counted(usage.prompt_tokens), counted(usage.completion_tokens)
    if prompt is None and completion is None:
        return None
    read, written = usage.prompt_tokens_details or _NO_DETAILS, usage.completion_tokens_details or _NO_DETAILS
    return Usage(
        input_tokens=prompt or 0,
        output_tokens=max(completion or 0, (counted(usage.total_tokens) or 0) - (prompt or 0)),
        cached_tokens=counted(read.cached_tokens) or counted(usage.prompt_cache_hit_tokens) or 0,
        cache_write_tokens=counted(read.cache_write_tokens) or 0,
        reasoning_tokens=counted(written.reasoning_tokens) or 0,
    )


_FINISH: dict[str, Finish] = {
    "length": "length", "max_tokens": "length", "model_length": "length",
    "content_filter": "content_filter", "content-filter": "content_filter",
}  # fmt: skip
_GAVE_UP = frozenset({"error", "abort", "insufficient_system_resource"})
_NO_FUNCTION = _Function()
_NO_DETAILS = _Details()
_chunk = msgspec.json.Decoder(_Chunk)
_usage = msgspec.json.Decoder(_Usage | None)
