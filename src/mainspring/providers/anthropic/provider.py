"""The Messages API: Claude as its vendor serves it, and those who copied the format.

Three parts. `Anthropic` is the provider: it asks, reads as the bytes arrive, and hands events on at once. `body_of` writes the
request (`_anthropic_request`). `Answer` reads the reply without doing I/O: bytes in, events out. An answer is a row of numbered
blocks: text, thoughts, calls. Thoughts are signed; what the vendor wants back of them is sealed into their items. Blocks of
kinds we did not ask for are left out.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, ProviderError, Refused, Unavailable
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import FunctionCall, Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.anthropic.request import VENDOR, Redacted, Thinking, body_of, kept
from mainspring.providers.http_client import Http, Reply, Sse, Tape, complaint, failure_within, shortened
from mainspring.providers.json_text import counted, json_text, lenient
from mainspring.providers.turn import Turn

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"


class Anthropic:
    """A backend that speaks the Messages API. `base_url` is what `/v1/messages` is appended to.

    `timeout` is how many seconds the backend may stay silent. `headers` go with every request, and beside the key may name
    another `anthropic-version` or an `anthropic-beta`. Closing the stream early closes the connection.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "anthropic",
        new_id: NewId = random_id,
        timeout: float = 600.0,
        tape: Tape | None = None,
    ) -> None:
        self.name = name
        key = {"x-api-key": api_key.strip()} if api_key and api_key.strip() else {}
        sent = {"anthropic-version": VERSION, **key, **{name.lower(): value for name, value in (headers or {}).items()}}
        root = base_url.strip().rstrip("/").removesuffix("/v1")
        self._http = Http(root, api_key=None, headers=sent, timeout=timeout, tape=tape)
        self._new_id = new_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(Turn(self._new_id, taken=calls), self._http)
        with closing(await self._post("v1/messages", body_of(request))) as reply:
            while not answer.is_over and (data := await reply.more(is_complete=answer.is_complete)):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event
            await reply.drain()

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens the vendor counts in the request."""
        body = {name: value for name, value in body_of(request).items() if name in _COUNTED}
        with closing(await self._post("v1/messages/count_tokens", body)) as reply:
            data = await reply.body()
        try:
            return _count.decode(data).input_tokens
        except ValueError as error:
            raise self._unreadable(reply, data, f"no number of tokens ({error})") from error

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers. Raises a `ProviderError` if it has no such list."""
        with closing(await self._http.send("GET", "v1/models", query={"limit": "1000"})) as reply:
            data = await reply.body()
        try:
            listed = _models.decode(data).data
        except (ValueError, RecursionError) as error:
            raise self._unreadable(reply, data, f"no list of models ({error})") from error
        return tuple([ModelInfo(model.id, VENDOR, model.created) for model in listed])

    async def close(self) -> None:
        await self._http.close()

    async def _post(self, path: str, body: Json) -> Reply:
        try:
            data = msgspec.json.encode(body)
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(f"the request cannot be written as JSON: {error}") from error
        reply = await self._http.send("POST", path, data)
        if reply.mime == "text/html":
            reply.close()
            raise BadOutput(f"{reply.url} answered with a web page; check the base URL")
        return reply

    def _unreadable(self, reply: Reply, data: bytes, what: str) -> BadOutput:
        return BadOutput(f"{reply.url} answered with {what}: `{self._http.redacted(shortened(data))}`")


class Answer:
    """Reads one reply and turns it into events. It does no I/O: feed it bytes, cut as they may be."""

    def __init__(self, turn: Turn, http: Http) -> None:
        self._turn = turn
        self._http = http
        self._sse = Sse()
        self._thought: list[str] = []
        self._signature = ""
        # Calls that are being made, by the number of their block, with the arguments they began with.
        self._calls: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self._finish: Finish | None = None
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        """The model has said why it stopped; all of its answer is there."""
        return self._finish is not None

    def feed(self, data: bytes) -> Iterator[ModelEvent]:
        """The events that these bytes of an event stream complete."""
        return self._read(self._sse.feed(data))

    def end(self) -> Iterator[ModelEvent]:
        """The last events. Raises `Unavailable` if the backend never said that it was done."""
        if not self.is_over:
            # Half an event is what a connection leaves that broke: no bad output.
            with suppress(BadOutput):
                yield from self._read(self._sse.end())
        if self._finish is None:
            raise Unavailable(f"the stream of {self._http.url} ended before the answer was complete; try again")
        self._turn.end(self._finish, self._usage())
        yield from self._turn.take()

    def _read(self, events: Iterator[tuple[bytes, bytes]]) -> Iterator[ModelEvent]:
        try:
            for name, data in events:
                if name == b"error":
                    raise self._broken_off(data)
                self._take(data)
                yield from self._turn.take()
                if self.is_over:
                    return
        except ProviderError:
            # What comes behind a complete answer, or does not, takes nothing of it back.
            if not self.is_complete:
                raise
            self.is_over = True

    def _take(self, data: bytes) -> None:
        event = self._decoded(data)
        match event.type:
            case "content_block_delta":
                self._continue(event.index or 0, event.delta or _NO_DELTA)
            case "content_block_start":
                self._begin(event.index or 0, event.content_block or _NO_BLOCK)
            case "content_block_stop":
                self._stop(event.index or 0)
            case "message_start":
                self._add_usage(event.message.usage if event.message else _NULL)
            case "message_delta":
                self._add_usage(event.usage)
                self._stopped(event.delta or _NO_DELTA)
            case "message_stop":
                self.is_over = True
            case "message":
                self._take_whole(event)
            case _ if event.type == "error" or event.error:
                raise self._broken_off(data)
            case _:
                pass

    def _take_whole(self, event: "_Event") -> None:
        """An answer in one piece, from a backend that does not stream."""
        for index, block in enumerate(event.content or ()):
            self._begin(index, block)
            self._stop(index)
        self._add_usage(event.usage)
        self._stopped(_Delta(stop_reason=event.stop_reason or "end_turn", stop_details=event.stop_details))
        self.is_over = True

    def _begin(self, index: int, block: "_Block") -> None:
        match block.type:
            case "text":
                self._turn.text(block.text or "")
            case "thinking":
                self._thought, self._signature = [], block.signature or ""
                self._think(block.thinking or "")
            case "redacted_thinking":
                self._turn.seal(kept(Redacted(block.data or "")))
            case "tool_use":
                self._calls[index] = json_text(block.input or None)
                self._turn.call(index=index, id=block.id or "", name=block.name or "")
            case _:
                pass

    def _continue(self, index: int, delta: "_Delta") -> None:
        match delta.type:
            case "text_delta":
                self._turn.text(delta.text or "")
            case "input_json_delta":
                # Tools that the vendor runs itself are called like this too, and are none of ours.
                if index in self._calls and delta.partial_json:
                    self._calls[index] = ""
                    self._turn.call(index=index, arguments=delta.partial_json)
            case "thinking_delta":
                self._think(delta.thinking or "")
            case "signature_delta":
                self._signature = delta.signature or ""
            case _:
                pass

    def _stop(self, index: int) -> None:
        if self._signature:
            self._turn.seal(kept(Thinking("".join(self._thought), self._signature)))
            self._thought, self._signature = [], ""
        if arguments := self._calls.pop(index, ""):
            self._turn.call(index=index, arguments=arguments)

    def _think(self, delta: str) -> None:
        self._thought.append(delta)
        self._turn.reasoning(delta)

    def _stopped(self, delta: "_Delta") -> None:
        if not delta.stop_reason:
            return
        self._finish = _FINISH.get(delta.stop_reason, "stop")
        match delta.stop_details:
            case {"type": "refusal", "explanation": str(explanation)}:
                self._turn.refusal(explanation)
            case _:
                pass

    def _add_usage(self, data: msgspec.Raw) -> None:
        """Takes what is counted: each number stands for all so far. No answer is lost because nobody counted it."""
        try:
            usage = _usage.decode(data)
        except ValueError:
            return
        details = None if usage is None else usage.output_tokens_details
        for counts in (usage, details):
            for name in () if counts is None else counts.__struct_fields__:
                if (tokens := counted(getattr(counts, name))) is not None:
                    self._counts[name] = tokens

    def _usage(self) -> Usage | None:
        """Usage in our terms: what is read from the cache or written to it is input too."""
        if not self._counts:
            return None
        count = self._counts.get
        cached, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        return Usage(
            input_tokens=count("input_tokens", 0) + cached + written,
            output_tokens=count("output_tokens", 0),
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=count("thinking_tokens", 0),
        )

    def _decoded(self, data: bytes) -> "_Event":
        try:
            return lenient(_event, data)
        except (ValueError, RecursionError) as error:
            with suppress(ValueError, RecursionError):
                if _is_foreign(msgspec.json.decode(data)):
                    return _NOTHING
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{self._http.url} sent what is no event of the Messages API ({error}): `{text}`") from error

    def _broken_off(self, data: bytes) -> ProviderError:
        said = complaint(data)
        return failure_within(said._replace(message=self._http.redacted(said.message)), self._http.url)


def _is_foreign(event: object) -> bool:
    """An event, or a piece of a block, of a kind that we do not know: it may look like anything."""
    match event:
        case {"type": str(kind)} if kind not in _KNOWN:
            return True
        case {"content_block": {"type": str(kind)}} | {"delta": {"type": str(kind)}}:
            return kind not in _KNOWN
        case _:
            return False


_NULL = msgspec.Raw(b"null")


class _Block(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None


class _Delta(Struct, gc=False):
    """What is new in a block, or, without a type, in the message."""

    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: object = None


class _Message(Struct, gc=False):
    usage: msgspec.Raw = _NULL


_NO_BLOCK = _Block()
_NO_DELTA = _Delta()


class _Event(Struct, gc=False):
    """An event of a stream, or a whole answer."""

    type: str = ""
    index: int | None = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: msgspec.Raw = _NULL
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: object = None
    error: object = None


class _Details(Struct, gc=False):
    thinking_tokens: object = None


class _Usage(Struct, gc=False):
    input_tokens: object = None
    output_tokens: object = None
    cache_creation_input_tokens: object = None
    cache_read_input_tokens: object = None
    output_tokens_details: _Details | None = None


class _Count(Struct, gc=False):
    input_tokens: int


class _Model(Struct, gc=False):
    id: str
    created_at: datetime | None = None

    @property
    def created(self) -> int:
        return 0 if self.created_at is None else int(self.created_at.timestamp())


class _Models(Struct, gc=False):
    data: list[_Model]


# The answer to a paused turn or one beyond the model's window is cut off, as much as one beyond its limit.
_FINISH: dict[str, Finish] = {
    "max_tokens": "length", "model_context_window_exceeded": "length", "pause_turn": "length", "refusal": "content_filter",
}  # fmt: skip
_COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"})
_KNOWN = frozenset(
    {
        "content_block_delta", "content_block_start", "content_block_stop", "message_start", "message_delta", "message_stop",
        "message", "error", "text", "thinking", "redacted_thinking", "tool_use",
        "text_delta", "input_json_delta", "thinking_delta", "signature_delta",
    }
)  # fmt: skip
_NOTHING = _Event()
_event = msgspec.json.Decoder(_Event)
_usage = msgspec.json.Decoder(_Usage | None)
_count = msgspec.json.Decoder(_Count)
_models = msgspec.json.Decoder(_Models)
