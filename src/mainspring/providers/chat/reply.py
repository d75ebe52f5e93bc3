"""What a Chat Completions backend answers: chunks, whole or streamed, as our events."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from mainspring.core.events import Finish, ModelEvent
from mainspring.core.items import Json, Usage
from mainspring.providers.call_draft import Index
from mainspring.providers.chat.request import name_origin
from mainspring.providers.cumulative_text import CumulativeText
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import MOST_TOKENS, json_text
from mainspring.providers.profiles import RefusalRule
from mainspring.providers.reply import NULL, EventSplitter, ReplyReader, read_counts, read_finish
from mainspring.providers.transcript import seal
from mainspring.providers.turn import TurnBuilder


class ChatCompletionReply(ReplyReader[TurnBuilder]):
    """Reads the chunks of a Chat Completions stream, or a whole completion."""

    def __init__(self, turn: TurnBuilder, http: Http) -> None:
        super().__init__(turn, http)
        self._details: list[Json] = []
        # None once the text is known to come piece by piece.
        self._pieces: CumulativeText | None = CumulativeText()
        # What stands around the words of a chunk that has nothing else, and how often that may be learned anew.
        self._around: _Around | None = None
        self._lessons = _LESSONS

    chunk_name = "Chat Completions chunk"
    may_be_whole = True
    _spent: Usage | None = None
    _announces_calls = False
    _has_messages = False
    is_second = False
    """The answer follows one that had nothing in it."""
    tried: RefusalRule | None = None
    """What was changed because the answer before this one was a refusal."""

    @property
    def has_calls(self) -> bool:
        return self._turn.has_calls

    @property
    def lacks_calls(self) -> bool:
        """The backend has said that the answer ends with calls, and none has come, nor what may be one."""
        return self._announces_calls and not self._turn.has_calls and not self._turn.is_holding

    @property
    def said(self) -> str:
        return self._turn.said

    @property
    def is_silent(self) -> bool:
        return self._turn.is_silent

    @property
    def is_empty(self) -> bool:
        """The answer is complete, and there is nothing in it."""
        return self._finish == "stop" and self._turn.is_silent and not self._turn.has_answer

    def restart(self, *, tried: RefusalRule | None = None, is_second: bool = False) -> None:
        """Waits for another answer instead of this one."""
        self.tried, self.is_second = tried, is_second
        self._spent, self._chunks, self._pieces = self._usage or Usage(), EventSplitter(), CumulativeText()
        self._finish, self.is_over, self._around = None, False, None

    def _take(self, data: bytes) -> None:
        if (around := self._around) is not None and data[: around.start] == around.head and data[around.end :] == around.tail:
            # The token path: a chunk that differs from an earlier one in its words alone.
            try:
                words = _words.decode(data[around.start : around.end])
            except ValueError:
                pass  # it is another one, or its words are half
            else:
                self._turn.text(words)
                return
        if data == b"null":
            return
        chunk = self._decode(_chunk, data)
        if (chunk.error and not _is_no_error(chunk.error)) or (
            chunk.choices is None and (chunk.object == "error" or _is_complaint(data))
        ):
            raise self._failure(data)
        usage = _usage_of(chunk.usage) or (None if chunk.x_groq is None else _usage_of(chunk.x_groq.usage))
        if usage is not None:
            self._usage = usage if self._spent is None else self._spent + usage
        for choice in chunk.choices or ():
            if not choice.index:
                self._choose(choice)
            if choice.usage is not NULL and (told := _usage_of(choice.usage)) is not None:
                # Where Moonshot counts.
                self._usage = told if self._spent is None else self._spent + told
        if self._lessons and self._pieces is None:
            self._lessons -= 1
            self._around = _find_around(data, chunk)

    def _take_done(self) -> None:
        """Some gateways never give a reason for the end: behind an answer, that it ends properly is reason enough."""
        super()._take_done()
        if self._turn.has_answer:
            self._finish = self._finish or "stop"

    def end(self) -> Iterator[ModelEvent]:
        if self._pieces is not None:
            self._turn.text(self._pieces.end())
        yield from super().end()

    def _find_new(self, pieces: CumulativeText, content: str) -> str:
        new = pieces.feed(content)
        if pieces.is_plain:
            self._pieces = None
        return new

    def _is_said(self, content: str) -> bool:
        """Whether the last piece has all the words once more."""
        return len(content) > _SHORT and content == self._turn.said

    def _seal_details(self) -> None:
        """Reasoning that is signed or encrypted travels before the calls that it led to, and comes back with them."""
        details, self._details = _join_details(self._details), []
        if any(detail.get("signature") or detail.get("data") for detail in details):
            self._turn.seal(seal(name_origin(self._http.host), json_text(details)))

    def _choose(self, choice: "_Choice") -> None:
        delta = choice.delta
        if choice.message is not None and (delta is None or delta == _NO_DELTA):
            # Where a delta has told it all, a message at the end tells it once more.
            self._has_messages = self._has_messages or self._turn.is_silent
            delta = choice.message if self._has_messages else None
        if choice.text and delta is None:
            # The older endpoint's name for the words.
            self._turn.text(choice.text)
        if delta is not None:
            if delta.reasoning_details:
                self._details += _objects(delta.reasoning_details)
            if delta.tool_calls and self._details:
                self._seal_details()
            if self._pieces is not None and isinstance(delta.content, str):
                delta.content = self._find_new(self._pieces, delta.content)
            if self._pieces is not None and delta.tool_calls and (held := self._pieces.end()):
                self._turn.text(held)
            if choice.finish_reason and isinstance(delta.content, str) and self._is_said(delta.content):
                delta.content = None
            _say(self._turn, delta, self._http.host, _logprobs(choice.logprobs) if choice.logprobs is not None else ())
        if reason := choice.finish_reason:
            self._finish = read_finish(reason, _FINISH, self._http.url)
            self._announces_calls = reason.lower() in _CALLING
            # vLLM and SGLang tell which text has ended the answer.
            if isinstance(told := choice.stop_reason or choice.matched_stop, str):
                self._turn.stop_sequence = told


def _find_around(data: bytes, chunk: "_ChatChunk") -> "_Around | None":
    """What stands before and behind the words of a chunk that has nothing else."""
    if not chunk.choices or (delta := chunk.choices[0].delta) is None or not isinstance(words := delta.content, str) or not words:
        return None
    index = chunk.choices[0].index
    if index or chunk != _ChatChunk([_Choice(index, _ChatDelta(words))], object=chunk.object):
        return None
    head, written, tail = data.partition(msgspec.json.encode(words))
    if not head.endswith((b'"content":', b'"content": ')) or not tail or written in tail:
        return None
    return _Around(head, tail, len(head), -len(tail))


def _is_no_error(error: object) -> bool:
    """Whether an error has a code of 0 and no words, as with each piece of an answer."""
    return isinstance(error, dict) and not any(error.values())


def _is_complaint(data: bytes) -> bool:
    """Whether what has no choices is one of the ways to say that something went wrong without an `error`."""
    try:
        said = _other.decode(data)
    except ValueError:
        return False
    match said.base_resp, said.errors:
        case {"status_code": int(code)}, _:
            return code != 0
        case _, [dict(), *_]:
            return True
        case _:
            return isinstance(said.detail, str | list) or (isinstance(said.msg, str) and said.code is not UNSET)


def _join_details(pieces: list[Json]) -> list[Json]:
    """The `reasoning_details` that these are pieces of: those in a row of one index and type are one."""
    joined: list[Json] = []
    for (index, _), row in groupby(pieces, lambda piece: (piece.get("index"), piece.get("type"))):
        parts = list(row)
        if index is None:
            joined += parts
            continue
        whole: Json = {key: value for part in parts for key, value in part.items() if value is not None}
        for key in ("text", "summary", "data"):
            if key in whole:
                whole[key] = "".join([_plain(part.get(key)) for part in parts])
        joined.append(whole)
    return joined


def _say(turn: TurnBuilder, delta: "_ChatDelta", host: str, logprobs: Sequence[Json] = ()) -> None:
    """One delta, in the order its parts are thought, said and done."""
    if thought := delta.reasoning_content or delta.reasoning:
        turn.reasoning(_plain(thought))
    elif delta.reasoning_details:
        for detail in _objects(delta.reasoning_details):
            turn.reasoning(_plain(detail.get("text")) or _plain(detail.get("summary")))
    content = delta.content
    if isinstance(content, str):
        turn.text(content, logprobs)
    elif content is not None:
        _say_parts(turn, content)
    if delta.refusal:
        turn.refusal(_plain(delta.refusal))
    if delta.annotations:
        for annotation in _objects(delta.annotations):
            turn.annotation(_flat(annotation))
    if delta.tool_calls:
        _call(turn, _list_calls(delta.tool_calls), host)
    if delta.function_call is not None and not delta.tool_calls:
        # Before there were tool calls there was one function call, and it needed no number.
        turn.call(index="function_call", name=delta.function_call.name or "", arguments=json_text(delta.function_call.arguments))


def _list_calls(calls: "list[_ChatToolCall] | _ChatToolCall | str") -> "list[_ChatToolCall]":
    """The calls of a delta; some have one without a list, or all of them in a text."""
    if isinstance(calls, str):
        with suppress(ValueError, RecursionError):
            return _calls.decode(calls)
        return []
    return calls if isinstance(calls, list) else [calls]


def _call(turn: TurnBuilder, calls: "list[_ChatToolCall]", host: str) -> None:
    places: set[tuple[Index | None, str]] = set()
    for call in calls:
        place, function = (call.index, str(call.id or "")), call.function or _NO_FUNCTION
        if isinstance(function, str):
            function = _ChatFunction(function)
        # Some leave the function out, and have its fields in its place.
        name = function.name or call.name or ""
        given = next(
            (each for each in (function.arguments, function.parameters, call.arguments, call.input) if each is not None), None
        )
        arguments = json_text(given)
        if name and isinstance(call.extra_content, dict):
            # What the vendor wants back with the call travels before it, as what others want back with their thoughts does.
            turn.seal(seal(name_origin(host), json_text(call.extra_content)))
        turn.call(index=place[0], id=place[1], name=name, arguments=arguments, is_beside=place in places)
        places.add(place)


def _say_parts(turn: TurnBuilder, content: "list[_ContentPart | str] | _ContentPart") -> None:
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            turn.text(part)
        elif part.type == "tool_use":
            turn.call(id=part.id or "", name=part.name or "", arguments=json_text(part.input))
        elif part.type in ("thinking", "reasoning"):
            told = part.thinking or part.text
            thinking = [told] if isinstance(told, str) else told or []
            for thought in thinking:
                turn.reasoning(thought if isinstance(thought, str) else thought.text or "")
        elif part.type == "refusal":
            turn.refusal(part.refusal or "")
        else:
            turn.text(part.text or "")


def _logprobs(value: object) -> list[Json]:
    """The tokens of a chunk with their log probabilities, as the Responses wire has them."""
    content = value.get("content") if isinstance(value, dict) else None
    told = [(entry, _objects(entry.get("top_logprobs"))) for entry in _objects(content)]
    return [{**_chance(entry), "top_logprobs": list(map(_chance, others))} for entry, others in told]


def _chance(entry: Json) -> Json:
    token, logprob = entry.get("token"), entry.get("logprob")
    # What a backend gives no chance at all it may write as null.
    chance = logprob if isinstance(logprob, int | float) else _IMPOSSIBLE
    return {"token": _plain(token), "logprob": chance, "bytes": entry.get("bytes") or list(_plain(token).encode())}


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


class _Around(NamedTuple):
    """What stands before and behind the words of a chunk, and from where to where they go."""

    head: bytes
    tail: bytes
    start: int
    end: int


class _ChatFunction(Struct, gc=False):
    name: str | None = None
    arguments: object = None
    parameters: object = None


class _ChatToolCall(Struct, gc=False):
    index: Index | None = None
    id: str | int | None = None
    function: _ChatFunction | str | None = None
    name: str | None = None
    arguments: object = None
    input: object = None
    extra_content: object = None


class _Thinking(Struct, gc=False):
    text: str | None = None


class _ContentPart(Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | list[_Thinking | str] | None = None
    refusal: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None


class _ChatDelta(Struct, gc=False):
    """What the answer consists of has its type, or the answer is unreadable; the rest is taken if it is as it should be."""

    content: str | list[_ContentPart | str] | _ContentPart | None = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_details: object = None
    refusal: object = None
    annotations: object = None
    tool_calls: list[_ChatToolCall] | _ChatToolCall | str | None = None
    function_call: _ChatFunction | None = None


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: _ChatDelta | None = None
    message: _ChatDelta | None = None
    text: str | None = None
    finish_reason: str | None = None
    usage: msgspec.Raw = NULL
    logprobs: object = None
    stop_reason: object = None
    matched_stop: object = None


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _GroqNote(Struct, gc=False):
    usage: msgspec.Raw = NULL


class _ChatChunk(Struct, gc=False):
    """A chunk of a stream, or a whole answer: they differ in `delta` and `message` only."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = NULL
    x_groq: _GroqNote | None = None
    error: object = None
    object: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: _Tokens | None = None
    cache_write_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens | None = None


class _PlainUsage(Struct, gc=False):
    """Usage as most backends tell it."""

    prompt_tokens: _Tokens
    completion_tokens: _Tokens
    total_tokens: _Tokens
    prompt_cache_hit_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


def _usage_of(data: msgspec.Raw) -> Usage | None:
    """Usage in our terms. Some backends leave reasoning out of the completion and have it in the total only."""
    if data is NULL or data == NULL:  # as in every chunk but one
        return None
    with suppress(ValueError):
        plain = _plain_usage.decode(data)
        before, behind = plain.prompt_tokens_details or _NO_DETAILS, plain.completion_tokens_details or _NO_DETAILS
        return Usage(
            input_tokens=plain.prompt_tokens,
            output_tokens=max(plain.completion_tokens, plain.total_tokens - plain.prompt_tokens),
            cached_tokens=before.cached_tokens or plain.prompt_cache_hit_tokens or 0,
            cache_write_tokens=before.cache_write_tokens or 0,
            reasoning_tokens=behind.reasoning_tokens or 0,
        )
    counts = read_counts(data)
    if not counts.keys() & {"prompt_tokens", "completion_tokens"}:
        if not counts.keys() & {"input_tokens", "output_tokens"}:
            return None
        counts |= {"prompt_tokens": counts["input_tokens"], "completion_tokens": counts["output_tokens"]}
    return Usage(
        input_tokens=counts["prompt_tokens"],
        output_tokens=max(counts["completion_tokens"], counts["total_tokens"] - counts["prompt_tokens"]),
        cached_tokens=counts["prompt_tokens_details.cached_tokens"] or counts["prompt_cache_hit_tokens"],
        cache_write_tokens=counts["prompt_tokens_details.cache_write_tokens"],
        reasoning_tokens=counts["completion_tokens_details.reasoning_tokens"],
    )


_FINISH: Final[dict[str, Finish]] = {"stop": "stop", "tool_calls": "stop", "length": "length", "content_filter": "content_filter"}
_CALLING = frozenset({"tool_calls", "function_call", "tool_use"})
_IMPOSSIBLE = -9999.0
_SHORT = 8
_LESSONS = 4
_NO_FUNCTION = _ChatFunction()
_NO_DELTA = _ChatDelta()
_NO_DETAILS = _Details()


class _OtherAnswer(Struct, gc=False):
    base_resp: object = None
    errors: object = None
    code: object = UNSET
    msg: object = None
    detail: object = None


_chunk = msgspec.json.Decoder(_ChatChunk)
_words = msgspec.json.Decoder(str)
_plain_usage = msgspec.json.Decoder(_PlainUsage)
_other = msgspec.json.Decoder(_OtherAnswer)
_calls = msgspec.json.Decoder(list[_ChatToolCall])
