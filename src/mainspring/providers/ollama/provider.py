"""Ollama's own wire format: `/api/chat`, answered in JSON lines.

Three parts. `Ollama` is the provider: it asks, and asks again without what the model turns out not to have (tools, thinking),
which it then remembers. `body_of` writes the request: arguments are objects, calls have no ids, an output names its tool.
`Answer` reads the reply without doing I/O: bytes in, events out.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from mainspring.core.drafts import words
from mainspring.core.errors import BadOutput, Refused, Unavailable
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import (
    FunctionCall,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    Refusal,
    ToolDefinition,
    Usage,
    parsed_arguments,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.ports import ModelInfo
from mainspring.providers.http_client import Http, Lines, Reply, Tape, complaint, failure_within, shortened
from mainspring.providers.json_text import counted, json_text, lenient, merged, written
from mainspring.providers.media import attached, embedded
from mainspring.providers.profiles import profile_of
from mainspring.providers.transcript import UNANSWERED, Heard, Said, dialogue, error_text, readable
from mainspring.providers.turn import Turn

FILLER: Final = "Continue."


class Ollama:
    """A backend that speaks Ollama's format. `base_url` is what `/api/chat` is appended to.

    `timeout` is how many seconds it may stay silent: loading a large model takes minutes. `num_ctx` is the context it shall
    load a model with; what does not fit into it, Ollama leaves out without a word. Closing the stream early closes the
    connection, by which Ollama knows to stop.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:11434",
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "ollama",
        new_id: NewId = random_id,
        timeout: float = 600.0,
        tape: Tape | None = None,
        num_ctx: int | None = None,
    ) -> None:
        self.name = name
        self._http = Http(base_url, api_key=api_key, headers=headers, timeout=timeout, tape=tape)
        self._new_id = new_id
        self._num_ctx = num_ctx
        # What models have turned out not to have, by model: fields of the request.
        self._lacking: dict[str, frozenset[str]] = {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(Turn(self._new_id, calls, profile_of(request.model).think), self._http)
        with closing(await self._ask(request)) as reply:
            while not answer.is_over and (data := await reply.read()):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event
            await reply.drain()

    async def models(self) -> Sequence[ModelInfo]:
        """The models on the machine. Raises a `ProviderError` if there is no such list."""
        with closing(await self._http.send("GET", "api/tags")) as reply:
            data = await reply.body()
        try:
            listed = _tags.decode(data)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{reply.url} answered with no list of models ({error}): `{text}`; check the base URL") from error
        return tuple([ModelInfo(model.name, "library") for model in listed.models or ()])

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, request: ModelRequest) -> Reply:
        """Sends the request, without what the model lacks; a lack that is news is remembered, and the request sent again."""
        while True:
            lacking = self._lacking.get(request.model, frozenset())
            body = body_of(request, num_ctx=self._num_ctx, without=lacking)
            try:
                return await self._http.send("POST", "api/chat", written(body))
            except Refused as refusal:
                news = {field for words, field in _LACKS.items() if words in refusal.message and field in body}
                if not news:
                    raise
            self._lacking[request.model] = lacking | news


def body_of(request: ModelRequest, *, num_ctx: int | None = None, without: Set[str] = frozenset()) -> Json:
    """The request as JSON, but for the fields in `without`. Raises `Refused` for content that this wire format cannot carry."""
    can_call = profile_of(request.model).calls and "tools" not in without
    tools = _tools(request) if can_call and request.tool_choice.mode != "none" else []
    form = _form((request.text or {}).get("format"))
    rules = [request.instructions or "", *(_wishes(request.tool_choice, form) if tools else ())]
    options = {
        "num_ctx": num_ctx,
        "num_predict": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    fields = {
        "tools": tools or None,
        "format": None if tools else form,
        "think": _think(request.model, request.reasoning),
        "options": {name: value for name, value in options.items() if value is not None} or None,
    }
    body: Json = {"model": request.model, "messages": _messages(rules, request.items), "stream": True}
    body |= {name: value for name, value in fields.items() if value is not None}
    return {name: value for name, value in merged(body, request.extra).items() if name not in without}


def _wishes(choice: ToolChoice, form: Json | str | None) -> Iterator[str]:
    """What a model with tools can only be asked for: Ollama cannot force a call, and one held to a format could make none."""
    if choice.name is not None:
        yield f"Answer by calling the tool `{choice.name}`."
    elif choice.mode == "required":
        yield "Answer by calling one of the tools."
    if form is not None:
        yield "Answer with JSON only." if form == "json" else f"Answer with JSON only, by this JSON Schema: {json_text(form)}"


def _tools(request: ModelRequest) -> list[Json]:
    return [_tool(tool) for tool in request.tools if isinstance(tool, ToolDefinition)]


def _tool(tool: ToolDefinition) -> Json:
    """Ollama reads the parameters into types of its own: properties are objects, never just true."""
    parameters = {"type": "object", "properties": {}, **(tool.parameters or {})}
    if isinstance(properties := parameters["properties"], dict):
        parameters["properties"] = {name: part if isinstance(part, dict) else {} for name, part in properties.items()}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def _form(form: object) -> Json | str | None:
    match form:
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema
        case {"type": "json_object" | "json_schema"}:
            return "json"
        case _:
            return None


def _think(model: str, reasoning: Json | None) -> bool | str | None:
    """Most models think or do not; those of the gpt-oss family always do, at one of three levels."""
    effort = (reasoning or {}).get("effort")
    if effort is None:
        return None
    if "gpt-oss" in model:
        return _LEVELS.get(effort, "high")
    return bool(effort != "none")


def _messages(rules: Sequence[str], items: Sequence[Item]) -> list[Json]:
    messages: list[Json] = []
    if any(rules):
        messages.append({"role": "system", "content": "\n\n".join(filter(None, rules))})
    for turn in dialogue(items):
        match turn:
            case Heard(role, parts):
                if (message := _heard(role, parts)) is not None:
                    messages.append(message)
            case Said() if not turn.is_mute:
                messages += _said(turn)
            case _:
                pass
    if all(message["role"] == "system" for message in messages):
        # Asked nothing, Ollama only loads the model.
        messages.append({"role": "user", "content": FILLER})
    return messages


def _heard(role: str, parts: Sequence[Part]) -> Json | None:
    texts = [text for text in map(_words, parts) if text]
    images = [_image(part) for part in parts if isinstance(part, InputImage)]
    if not texts and not images:
        return None
    return {"role": role, "content": "\n".join(texts)} | ({"images": images} if images else {})


def _said(turn: Said) -> list[Json]:
    """What the model said in one turn, then the outputs in the order of their calls, then what only a user may show."""
    texts = [text for item in turn.items if isinstance(item, Message) for text in map(_words, item.content) if text]
    # What another vendor has sealed is no thought of a model here.
    open_thoughts = [item for item in turn.items if isinstance(item, Reasoning) and item.encrypted_content in (None, UNSET)]
    message: Json = {"role": "assistant", "content": "\n".join(texts)}
    if thought := "".join([word for item in open_thoughts for word in words(item)]):
        message["thinking"] = thought
    if turn.calls:
        message["tool_calls"] = [_call(called.call) for called in turn.calls]
    messages = [message] if texts or turn.calls else []
    for called in turn.calls:
        text = UNANSWERED if called.output is None else error_text(called.output)
        messages.append({"role": "tool", "tool_name": called.call.name, "content": text})
    return messages + _exhibits(turn)


def _exhibits(turn: Said) -> list[Json]:
    """Models look at images of a user's only; those of an output follow as such, under the name of its tool."""
    exhibits: list[Json | None] = []
    for call, output in [(called.call, called.output) for called in turn.calls]:
        if output is not None and (shown := [part for part in output.output if isinstance(part, InputImage | InputFile)]):
            exhibits.append(_heard("user", [InputText(f"Attached by the output of `{call.name}`:"), *shown]))
    return [message for message in exhibits if message is not None]


def _call(call: FunctionCall) -> Json:
    return {"function": {"name": call.name, "arguments": parsed_arguments(readable(call.arguments))}}


def _words(part: Part) -> str:
    """What a part says; a refusal is as much said as anything, and a file that is text is read out."""
    match part:
        case OutputText(text) | InputText(text) | Refusal(text):
            return text
        case InputFile():
            file = attached(part)
            content = None if file is None else file.text()
            if content is None:
                raise Refused(
                    f"the file `{part.filename or 'file'}` cannot be sent to Ollama; pass text as `file_data`, or images"
                )
            return f"{part.filename or 'file'}:\n{content}"
        case _:
            return ""


def _image(image: InputImage) -> str:
    found = embedded(image.image_url or "")
    if found is None:
        where = image.image_url or image.file_id or "none"
        raise Refused(f"the image `{where:.200}` cannot be sent to Ollama, which fetches nothing; pass it as a data URL")
    return found.data


class Answer:
    """Reads one reply and turns it into events. It does no I/O: feed it bytes, cut as they may be."""

    def __init__(self, turn: Turn, http: Http) -> None:
        self._turn = turn
        self._http = http
        self._lines = Lines()
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self._calls = 0

    @property
    def is_over(self) -> bool:
        return self._finish is not None

    def feed(self, data: bytes) -> Iterator[ModelEvent]:
        """The events that these bytes complete."""
        return self._read(self._lines.feed(data))

    def end(self) -> Iterator[ModelEvent]:
        """The last events. Raises `Unavailable` if Ollama never said that it was done."""
        # Half a line is what a connection leaves that broke: no bad output.
        with suppress(BadOutput):
            yield from self._read(self._lines.end())
        if self._finish is None:
            raise Unavailable(f"the stream of {self._http.url} ended before the answer was complete; try again")
        self._turn.end(self._finish, self._usage)
        yield from self._turn.take()

    def _read(self, lines: Iterator[bytes]) -> Iterator[ModelEvent]:
        for line in lines:
            if self.is_over:
                return
            self._take(line)
            yield from self._turn.take()

    def _take(self, line: bytes) -> None:
        try:
            chunk = lenient(_chunk, line)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(line))
            raise BadOutput(
                f"{self._http.url} sent what is no line of Ollama's ({error}): `{text}`; check the base URL"
            ) from error
        if chunk.error:
            said = complaint(line)
            raise failure_within(said._replace(message=self._http.redacted(said.message)), self._http.url)
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
        heard, spoken = counted(chunk.prompt_eval_count), counted(chunk.eval_count)
        if heard is not None or spoken is not None:
            self._usage = Usage(heard or 0, spoken or 0)


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


class _Model(Struct, gc=False):
    name: str


class _Models(Struct, gc=False):
    models: list[_Model] | None = None


_LACKS: Final = {"does not support tools": "tools", "does not support thinking": "think"}
_LEVELS: Final = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}
_chunk: Final = msgspec.json.Decoder(_Chunk)
_tags: Final = msgspec.json.Decoder(_Models)
