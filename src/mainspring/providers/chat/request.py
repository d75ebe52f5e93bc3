"""What a Chat Completions backend is asked: a `ModelRequest` as its JSON body."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core import items
from mainspring.core.drafts import words
from mainspring.core.errors import Refused
from mainspring.core.items import Json, Part
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.core.tokens import estimate
from mainspring.providers import transcript
from mainspring.providers.json_text import drop_none
from mainspring.providers.media import is_audio, is_document, list_readable
from mainspring.providers.profiles import ModelProfile, cap_output, find_profile
from mainspring.providers.transcript import AnsweredCall, ModelTurn, Turn

CALL_ID_CHARS: Final = 40


def build_body(request: ModelRequest, host: str, profile: ModelProfile | None = None) -> Json:
    """The request as JSON. Raises `Refused` for content that this wire format cannot carry."""
    profile = profile or find_profile(request.model, host)
    body: Json = {
        "model": request.model,
        "messages": _messages(request, _Style(name_origin(host), profile.recall != "none")),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tools = transcript.list_functions(request)
    if tools:
        body["tools"] = list(map(_tool, tools))
        if (choice := _choice(request.tool_choice)) is not None:
            body["tool_choice"] = choice
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    options = {
        "temperature": request.temperature if profile.temperature else None,
        "top_p": request.top_p if profile.top_p else None,
        profile.limit: _cap_output(request, profile),
        "response_format": _response_format((request.text or {}).get("format")),
        "reasoning_effort": (request.reasoning or {}).get("effort"),
        "logprobs": True if request.top_logprobs is not None else None,
        "top_logprobs": request.top_logprobs or None,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "stop": list(request.stop) or None,
        "seed": request.seed,
    }
    return body | drop_none(options) | (request.extra or {})


def _cap_output(request: ModelRequest, profile: ModelProfile) -> int | None:
    """The bound on the output. One that may not fit the context beside the prompt is left out: that bounds the answer, then."""
    most, window = cap_output(request, profile), profile.window
    if most is None or window is None or most < window - _ROUGHLY * estimate(request.items, request.instructions, request.tools):
        return most
    return None


def name_origin(host: str) -> str:
    """Whom what a backend has sealed belongs to: no other host is sent it."""
    return f"chat@{host.replace('.', '_')}"


class _Style(Struct, frozen=True):
    """How turns are written, beside what they say. `recalls` says that reasoning goes back with calls."""

    origin: str
    recalls: bool


def _tool(tool: items.ToolDefinition) -> Json:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters, **strict},
    }


def _choice(choice: ToolChoice) -> str | Json | None:
    """Auto is what backends do anyway, and some reject the word. What is `allowed` is the engine's business: it judges calls."""
    if choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return None if choice.mode == "auto" else choice.mode


def _response_format(form: object) -> Json | None:
    match form:
        case {"type": "json_schema", **inner}:
            schema = {key: inner.get(key) for key in ("name", "description", "schema", "strict")}
            return {"type": "json_schema", "json_schema": {"name": "answer", **drop_none(schema)}}
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case _:
            return None


def _messages(request: ModelRequest, style: _Style) -> list[Json | msgspec.Raw]:
    def write(turn: Turn) -> list[Json]:
        if isinstance(turn, ModelTurn):
            return _write_turn(turn, style)
        content = _content(turn.parts)
        return [] if content == [] else [{"role": turn.role, "content": content}]

    said: list[Json | msgspec.Raw] = []
    if request.instructions:
        said.append({"role": "system", "content": request.instructions})
    messages = said + transcript.write_turns(request.items, style, write)
    if not messages:
        raise Refused("there is nothing to ask: the conversation is empty; say something in `input`")
    return messages


def _write_turn(turn: ModelTurn, style: _Style) -> list[Json]:
    """What the model said in one turn: its own message, then the outputs, then what only a user may show. Reasoning is left out,
    but for models that want it back with their calls."""
    texts = turn.texts
    if not texts and not turn.calls:
        return []
    message: Json = {"role": "assistant", "content": "\n".join(texts) if texts else None}
    if turn.calls:
        message["tool_calls"] = _write_calls(turn, style.origin)
        sealed = [secret for item in turn.items if isinstance(secret := _unseal(style.origin, item), list)]
        if sealed:
            message["reasoning_details"] = list(chain.from_iterable(sealed))
        if style.recalls:
            thoughts = [word for item in turn.items if isinstance(item, items.Reasoning) for word in words(item)]
            message["reasoning_content"] = "".join(thoughts)
    return [message, *[_output(called) for called in turn.calls], *_exhibits(turn)]


def _output(called: AnsweredCall) -> Json:
    """Every call has an answer, or backends refuse it all. The standard does without the tool's name, a few backends want it."""
    id = transcript.shorten_id(called.call.call_id, CALL_ID_CHARS)
    return {"role": "tool", "tool_call_id": id, "name": called.call.name, "content": called.output_text}


def _exhibits(turn: ModelTurn) -> list[Json]:
    """A tool message holds text only; images and files of outputs follow as a user's message that names their calls."""
    parts: list[Json] = []
    for called in turn.calls:
        if shown := called.attachments:
            parts.append({"type": "text", "text": f"Attached by the output of `{called.call.name}` ({called.call.call_id}):"})
            parts += map(_part, list_readable(shown, is_document))
    return [{"role": "user", "content": parts}] if parts else []


def _write_calls(turn: ModelTurn, origin: str) -> list[Json]:
    """The calls of a turn, each with what this backend has sealed before it."""
    calls: list[Json] = []
    extra: Json = {}
    for item in turn.items:
        if isinstance(item, items.FunctionCall):
            calls.append(_write_call(item) | extra)
            extra = {}
        elif isinstance(secret := _unseal(origin, item), dict):
            extra = {"extra_content": secret}
    return calls


def _unseal(origin: str, item: items.Item) -> Json | list[Json] | None:
    """What this backend has sealed: an object goes back with a call, a list with its message."""
    secret = transcript.unseal(origin, item) if isinstance(item, items.Reasoning) else None
    # A client may send anything back.
    with suppress(ValueError, RecursionError):
        return None if secret is None else _sealed.decode(secret)
    return None


def _write_call(call: items.FunctionCall) -> Json:
    function = {"name": call.name, "arguments": transcript.repair_arguments(call.arguments)}
    return {"id": transcript.shorten_id(call.call_id, CALL_ID_CHARS), "type": "function", "function": function}


def _content(parts: Sequence[Part]) -> str | list[Json]:
    match parts:
        case [items.InputText(text) | items.OutputText(text)]:
            return text
        case _:
            return [_part(part) for part in parts if isinstance(part, _SENDABLE) or is_audio(part)]


def _part(part: Part) -> Json:
    match part:
        case items.InputText(text) | items.OutputText(text) | items.Refusal(text):
            return {"type": "text", "text": text}
        case items.InputImage(image_url=str(url)):
            return {"type": "image_url", "image_url": {"url": url, "detail": part.detail}}
        case items.InputFile(file_data=str(data)):
            return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data}}
        case items.InputFile(file_id=str(file_id)):
            return {"type": "file", "file": {"file_id": file_id}}
        case items.Unknown({"type": "input_audio"} as audio):
            return audio
        case items.InputImage():
            raise Refused("an image without `image_url` cannot be sent to a Chat Completions backend; pass a URL or a data URL")
        case _:
            raise Refused("a file by URL cannot be sent to a Chat Completions backend; pass `file_data`")


_sealed: Final[msgspec.json.Decoder[Json | list[Json]]] = msgspec.json.Decoder(Json | list[Json])
# The estimate may be too low.
_ROUGHLY: Final = 1.5
_SENDABLE = (items.InputText, items.InputImage, items.InputFile, items.OutputText, items.Refusal)
