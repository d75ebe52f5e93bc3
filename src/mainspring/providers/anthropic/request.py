"""What Claude is asked: a `ModelRequest` as the JSON body of the Messages API.

The vendor refuses what it finds out of order, so order is made here: user and assistant take turns, a user speaks first and
last, every call is answered in the very next message, no block is empty. What the caller wants and this model cannot do is
left out (`claude_models`) or said in words.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from mainspring.core import items
from mainspring.core.drafts import words
from mainspring.core.errors import Refused
from mainspring.core.items import Json, Part, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.providers import transcript
from mainspring.providers.anthropic.claude_models import Family, find_family
from mainspring.providers.json_text import drop_none, json_text
from mainspring.providers.media import EmbeddedFile, is_document, list_readable, parse_data_url, read_attachment
from mainspring.providers.transcript import InputTurn, ModelTurn

VENDOR = "anthropic"
Recall = Callable[[items.Reasoning], Json | None]

STRICT_TOOLS = 20
LEAST_BUDGET = 1024


class Thinking(Struct, frozen=True, tag_field="type", tag="thinking"):
    """A thought as the vendor wants it back: word for word, with its signature."""

    thinking: str
    signature: Annotated[str, Meta(min_length=1)]


class Redacted(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


def seal_thought(thought: Thinking | Redacted, vendor: str = VENDOR) -> str:
    """The thought as an item keeps it until it is given back."""
    return transcript.seal(vendor, msgspec.json.encode(thought).decode())


def build_body(request: ModelRequest, family: Family | None = None, vendor: str = VENDOR, *, recalls: bool = False) -> Json:
    """The request as JSON. Raises `Refused` for content that this wire format cannot carry. Only the thoughts of `vendor`
    go back, and if it `recalls` those that nobody signed."""
    family = family or find_family(request.model)
    turns = transcript.list_turns(request.items)
    leading = list(takewhile(lambda turn: isinstance(turn, InputTurn) and turn.role == "system", turns))
    form = _form(request, family)
    messages = _messages(turns[len(leading) :], partial(_recall, vendor=vendor, is_open=recalls) if family.thinking else _forget)
    system = [request.instructions or "", *[_words(turn) for turn in leading], form.words]
    limit = family.room(request.max_output_tokens)
    body: Json = {"model": request.model, "max_tokens": limit, "messages": messages, "stream": True}
    options = {
        "system": [_text(text) for text in system if text.strip()],
        "tools": _tools(request, family),
        "output_config": form.output_config,
        "stop_sequences": list(request.stop),
    }
    body |= {name: value for name, value in options.items() if value}
    if "tools" in body and (choice := _choice(request, family)) is not None:
        body["tool_choice"] = choice
    if (thinking := _thinking(request, family, body)) is not None:
        body["thinking"] = thinking
    body |= _sampling(request, family, thinking)
    # What comes first in the prompt changes least: up to each of these marks it is read from the cache.
    for blocks in (body.get("tools"), body.get("system"), messages[-1]["content"]):
        if blocks:
            blocks[-1]["cache_control"] = {"type": "ephemeral", **drop_none({"ttl": request.cache_ttl})}
    return body | (request.extra or {})


def drop_marks(body: Json) -> Json:
    """The parts without marks for the cache."""
    return {
        part: [{name: value for name, value in block.items() if name != "cache_control"} for block in blocks]
        if part != "messages"
        else [{**message, **drop_marks({"content": message["content"]})} for message in blocks]
        for part, blocks in body.items()
    }


class _Form(Struct, frozen=True):
    """How the answer is to look: as settings, and in words where there is no setting."""

    output_config: Json
    words: str = ""


def _form(request: ModelRequest, family: Family) -> _Form:
    effort = family.effort((request.reasoning or {}).get("effort"))
    config: Json = {} if effort is None else {"effort": effort}
    schema = transcript.find_schema(request)
    if schema is None:
        return _Form(config)
    if not schema:
        return _Form(config, "Answer with one JSON object, and with nothing else.")
    if family.structures and (narrow := _strict(schema)) is not None:
        return _Form({**config, "format": {"type": "json_schema", "schema": narrow}})
    return _Form(config, f"Answer with JSON that fits this schema, and with nothing else:\n{json_text(schema)}")


def _strict(schema: Json) -> Json | None:
    try:
        return narrow_schema(schema)
    except (ValueError, RecursionError):
        return None


def _tools(request: ModelRequest, family: Family) -> list[Json]:
    tools: list[Json] = []
    left = STRICT_TOOLS if family.structures else 0
    for tool in transcript.list_functions(request):
        narrow = _strict(_parameters(tool)) if tool.strict and left else None
        left -= narrow is not None
        schema = {"input_schema": _parameters(tool)} if narrow is None else {"input_schema": narrow, "strict": True}
        tools.append({"name": tool.name, **({"description": tool.description} if tool.description else {}), **schema})
    return tools


def _parameters(tool: ToolDefinition) -> Json:
    """The schema of the arguments. At its top the vendor knows no alternatives: those are told in the description."""
    schema = {"type": "object", "properties": {}, **(tool.parameters or {})}
    alternatives: Json = {name: schema.pop(name) for name in ("anyOf", "oneOf", "allOf") if name in schema}
    return _describe_rest(schema, alternatives)


def _choice(request: ModelRequest, family: Family) -> Json | None:
    """Auto is the default. What is `allowed` is the engine's business: it judges calls. Where a model takes no force, it is left
    to choose."""
    choice: Json = {"type": "auto"}
    if request.tool_choice.mode == "none":
        return {"type": "none"}
    if family.forces and request.tool_choice.name is not None:
        choice = {"type": "tool", "name": request.tool_choice.name}
    elif family.forces and request.tool_choice.mode == "required":
        choice = {"type": "any"}
    if not request.parallel_tool_calls:
        choice["disable_parallel_tool_use"] = True
    return None if choice == {"type": "auto"} else choice


def _thinking(request: ModelRequest, family: Family, body: Json) -> Json | None:
    """Whether to think: as wanted, but not before a forced call, where the vendor forbids it."""
    reasoning = request.reasoning or {}
    effort, summary = reasoning.get("effort"), reasoning.get("summary")
    if effort == "none":
        return None if family.rest is None else {"type": family.rest}
    if not (effort or summary) or body.get("tool_choice", {}).get("type") in ("any", "tool"):
        return None
    if family.thinking == "adaptive":
        return {"type": "adaptive", **({"display": "summarized"} if summary else {})}
    limit = body["max_tokens"]
    if family.thinking == "budget" and limit > LEAST_BUDGET and _may_think(body["messages"]):
        wanted = _BUDGETS.get(effort or "medium", _BUDGETS["medium"])
        return {"type": "enabled", "budget_tokens": max(LEAST_BUDGET, min(wanted, limit // 2))}
    return None


def _may_think(messages: Sequence[Json]) -> bool:
    """A turn that is under way must have begun with a thought of this vendor's; one that another model began has not."""
    begun: Json | None = None
    for message in reversed(messages):
        if message["role"] == "assistant":
            begun = message
        elif message["content"][0]["type"] != "tool_result":
            break
    return begun is None or begun["content"][0]["type"] in _THOUGHTS


def _sampling(request: ModelRequest, family: Family, thinking: Json | None) -> Json:
    """Temperature or `top_p`, for models that know them and do not think: more is refused. Here, 1 is the hottest."""
    if not family.samples or (thinking or {}).get("type") in ("enabled", "adaptive"):
        return {}
    if request.temperature is not None:
        return {"temperature": min(request.temperature, 1.0)}
    return {} if request.top_p is None else {"top_p": request.top_p}


def _messages(turns: Sequence[InputTurn | ModelTurn], recall: Recall) -> list[Json]:
    """The conversation. Where nobody has asked anything, or the model has spoken last, a user's words are put in: it has to be
    a user who is answered."""
    messages: list[Json] = []
    used: set[str] = set()
    for turn in turns:
        match turn:
            case InputTurn("user", parts):
                transcript.append_parts(messages, "user", "content", _blocks(parts))
            case InputTurn():
                # Of a system that speaks later the vendor hears only on some models, and only in some places.
                said = [_text(f"<system>\n{words}\n</system>")] if (words := _words(turn)).strip() else []
                transcript.append_parts(messages, "user", "content", said)
            case ModelTurn():
                _add_turn(messages, turn, used, recall)
    if not messages or messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [_text("(no message)")]})
    if messages[-1]["role"] == "assistant":
        transcript.append_parts(messages, "user", "content", [_text(transcript.FILLER)])
    return messages


def _add_turn(messages: list[Json], turn: ModelTurn, used: set[str], recall: Recall) -> None:
    """What the model said in one turn, its calls last, and all their results in one message behind it."""
    said: list[Json] = []
    for item in turn.items:
        match item:
            case items.Reasoning() if (thought := recall(item)) is not None:
                said.append(thought)
            case items.Message():
                said += [_text(text) for text in map(transcript.get_text, item.content) if text.strip()]
    calls, results = [], []
    for called in turn.calls:
        id, name = _make_unique(called.call.call_id, used), _ODD.sub("_", called.call.name)[:128] or "unnamed"
        calls.append({"type": "tool_use", "id": id, "name": name, "input": transcript.parse_call_arguments(called.call)})
        results.append(_result(called.output, id))
    while said and not calls and said[-1]["type"] in _THOUGHTS:
        # A thought that led to nothing may not end a message.
        said.pop()
    transcript.append_parts(messages, "assistant", "content", said + calls)
    transcript.append_parts(messages, "user", "content", results)


def _recall(item: items.Reasoning, vendor: str, is_open: bool) -> Json | None:
    """The vendor's own thought as it came. What others thought, or nobody signed, it would refuse, unless `is_open`."""
    with suppress(ValueError):
        if (secret := transcript.unseal(vendor, item)) is not None:
            block: Json = msgspec.to_builtins(_secret.decode(secret))
            return block
    if is_open and item.encrypted_content in (None, UNSET) and (thought := "".join(words(item))):
        return {"type": "thinking", "thinking": thought, "signature": ""}
    return None


def _forget(item: items.Reasoning) -> None:
    """No thought goes back."""


def _result(output: items.FunctionCallOutput | None, id: str) -> Json:
    if output is None:
        return {"type": "tool_result", "tool_use_id": id, "content": [_text(transcript.UNANSWERED)], "is_error": True}
    parts = (items.InputText(output.output),) if isinstance(output.output, str) else output.output
    is_error = output.is_error is True
    # Only an error must say something.
    content = _blocks(list_readable(parts, is_document)) or ([_text("The call failed and did not say why.")] if is_error else [])
    return {"type": "tool_result", "tool_use_id": id, **drop_none({"content": content or None, "is_error": is_error or None})}


def _make_unique(call_id: str, used: set[str]) -> str:
    """An id that the vendor accepts: of few characters, and no other call's. Those of other backends may be neither."""
    plain = id = _ODD.sub("_", call_id) or "call"
    number = 1
    while id in used:
        number += 1
        id = f"{plain}_{number}"
    used.add(id)
    return id


def _blocks(parts: Sequence[Part]) -> list[Json]:
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: Part) -> Json | None:
    match part:
        case items.InputText(text) | items.OutputText(text) | items.Refusal(text):
            return _text(text) if text.strip() else None
        case items.InputImage(image_url=str(url)):
            found = parse_data_url(url)
            return {"type": "image", "source": {"type": "url", "url": url}} if found is None else _image(found)
        case items.InputImage(file_id=str(file_id)):
            return {"type": "image", "source": {"type": "file", "file_id": file_id}}
        case items.InputImage():
            raise Refused("an image without `image_url` cannot be sent to Claude; pass a URL or a data URL")
        case items.InputFile():
            return _file(part)
        case _:
            return None


def _image(image: EmbeddedFile) -> Json:
    mime = "image/jpeg" if image.mime == "image/jpg" else image.mime
    if mime not in _IMAGES:
        raise Refused(f"an image of type `{mime}` cannot be sent to Claude; convert it to PNG, JPEG, GIF or WebP")
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": image.data}}


def _file(file: items.InputFile) -> Json:
    title = {"title": file.filename[:500]} if isinstance(file.filename, str) and file.filename else {}
    content = read_attachment(file)
    match content:
        case EmbeddedFile(mime="application/pdf"):
            source = {"type": "base64", "media_type": "application/pdf", "data": content.data}
        case EmbeddedFile(mime=mime) if mime.startswith("image/"):
            return _image(content)
        case EmbeddedFile(mime=mime):
            text = content.text()
            if not text or not text.strip():
                raise Refused(f"a file of type `{mime}` cannot be sent to Claude unless it holds text; pass a PDF or text")
            source = {"type": "text", "media_type": "text/plain", "data": text}
        case None if isinstance(file.file_url, str):
            source = {"type": "url", "url": file.file_url}
        case None if isinstance(file.file_id, str):
            source = {"type": "file", "file_id": file.file_id}
        case None:
            raise Refused("a file without content cannot be sent to Claude; pass `file_data` or `file_url`")
    return {"type": "document", "source": source, **title}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _words(turn: InputTurn | ModelTurn) -> str:
    return items.text_of(turn.parts) if isinstance(turn, InputTurn) else ""


def narrow_schema(schema: Any) -> Json:
    """The schema in the vendor's subset for answers and strict tools: closed objects, few keywords, the rest in the description.

    Raises `ValueError` for a schema that cannot be told so: one that leaves its type or its properties open.
    """
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, not `{schema}`")
    rest = {key: value for key, value in schema.items() if key not in _IGNORED}
    kept: Json = {}
    for name in ("$defs", "definitions"):
        if isinstance(parts := rest.pop(name, None), dict):
            kept[name] = {key: narrow_schema(part) for key, part in parts.items()}
    if "$ref" in rest:
        return kept | {"$ref": rest["$ref"]}
    kept |= {name: rest.pop(name) for name in ("title", "description") if isinstance(rest.get(name), str)}
    return _describe_rest(kept | _shape(rest), rest)


def _describe_rest(schema: Json, rest: Json) -> Json:
    """The schema with what the vendor does not take in its description, which the model reads."""
    if not rest:
        return schema
    return {**schema, "description": f"{schema.get('description', '')}\n\nMust fit {json_text(rest)}".strip()}


def _shape(rest: Json) -> Json:
    """What the value is; takes out of `rest` what it has said."""
    for name in ("enum", "const"):
        if name in rest:
            rest.pop("type", None)
            return {name: rest.pop(name)}
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := rest.pop(name, None), list):
            rest.pop("type", None)
            return {"allOf" if name == "allOf" else "anyOf": [narrow_schema(part) for part in parts]}
    match rest.pop("type", None):
        case [*kinds]:
            alternatives = [narrow_schema({**rest, "type": kind}) for kind in kinds]
            rest.clear()
            return {"anyOf": alternatives}
        case "object":
            return _object(rest)
        case "array":
            inner = {"items": narrow_schema(rest.pop("items"))} if "items" in rest else {}
            return {"type": "array", **inner, **({"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {})}
        case "string":
            return {"type": "string", **({"format": rest.pop("format")} if rest.get("format") in _FORMATS else {})}
        case "integer" | "number" | "boolean" | "null" as kind:
            return {"type": kind}
        case kind:
            raise ValueError(f"a schema must say its type, not `{kind}`")


def _object(rest: Json) -> Json:
    properties = rest.pop("properties", None) or {}
    if isinstance(rest.pop("additionalProperties", None), dict):
        raise ValueError("a schema must name its properties")
    required = {"required": rest.pop("required")} if rest.get("required") else {}
    narrowed = {key: narrow_schema(part) for key, part in properties.items()}
    return {"type": "object", "properties": narrowed, **required, "additionalProperties": False}


_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_000, "max": 32_000}
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_secret = msgspec.json.Decoder(Thinking | Redacted)
_IGNORED = frozenset({"$schema", "$id", "$comment"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
