"""What a Responses backend is asked: a `ModelRequest` as its JSON body, items as they are but for what it would refuse."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from mainspring.core import items
from mainspring.core.declared_tools import group_tools, identify_declared, identify_tool, map_names
from mainspring.core.errors import Refused
from mainspring.core.items import Item, Json, Part
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.adapted_request import adapt_request
from mainspring.providers.json_text import drop_none, merge_extra
from mainspring.providers.media import EmbeddedFile, is_sound_or_film, list_readable
from mainspring.providers.profiles import ModelProfile, find_profile
from mainspring.providers.transcript import (
    UNANSWERED,
    is_sealed,
    parse_call_arguments,
    render_error,
    repair_arguments,
    shorten_id,
)

ID_CHARS: Final = 64
NOTES: Final = {
    "url_citation": {"url", "title", "start_index", "end_index"},
    "file_citation": {"file_id", "filename", "index"},
    "container_file_citation": {"container_id", "file_id", "filename", "start_index", "end_index"},
    "file_path": {"file_id", "index"},
}


def build_body(request: ModelRequest, host: str, profile: ModelProfile | None = None) -> Json:
    """The request as JSON: nothing is kept upstream, so all reasoning comes and goes with us."""
    profile = profile or find_profile(request.model, host)
    request = adapt_request(request, profile)
    extra = dict(request.extra or {})
    wanted = ["message.output_text.logprobs"] if request.top_logprobs is not None else []
    included = [
        *(["reasoning.encrypted_content"] if profile.encrypted_reasoning else []),
        *[value for value in extra.pop("include", None) or () if isinstance(value, str)],
        *wanted,
    ]
    body = merge_extra(build_question(request, host, profile), extra)
    kept: Json = {"include": list(dict.fromkeys(included))} if included else {}
    return body | kept | ({"store": False} if profile.store else {}) | {"stream": True}


def build_question(request: ModelRequest, host: str, profile: ModelProfile | None = None) -> Json:
    """What the model is asked and with which tools, but not how to answer: as much as counts in tokens."""
    profile = profile or find_profile(request.model, host)
    told, tools = list(_ItemWriter(profile).write(request.items)), _list_tools(request)
    if not told and not request.instructions:
        raise Refused("there is nothing to ask: the conversation is empty; say something in `input`")
    body: Json = {"model": request.model, "input": told}
    if request.tools:
        body["tools"] = group_tools(tools, partial(_tool, profile))
        body["tool_choice"] = _choice(request.tool_choice, request.all_tools)
        if profile.parallel_tool_calls:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    options = {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "text": request.text,
        "reasoning": request.reasoning,
        "top_logprobs": request.top_logprobs or None,
    }
    return body | drop_none(options)


def _list_tools(request: ModelRequest) -> list[items.Tool]:
    """The tools as their client has declared them, but for those that items bring along. Tools we do not know are upstream's."""
    brought = [tool for item in request.items for tool in _list_brought(item)]
    known, others = identify_declared(brought), [items.Unknown(tool) for tool in brought]
    return [
        tool
        for tool in request.all_tools
        if not (identify_tool(tool) in known if isinstance(tool, items.ToolDefinition) else tool in others)
    ]


def _list_brought(item: Item) -> Sequence[Json]:
    match item:
        case items.Unknown({"type": "additional_tools", "tools": [*tools]}):
            return tools
        case items.FunctionCallOutput(form="tool_search", tools=tuple(tools)):
            return tools
        case _:
            return ()


def _tool(profile: ModelProfile, tool: items.ToolDefinition) -> Json:
    """Strict only if somebody said so: a schema that is not made for it would be refused."""
    if tool.form == "server_tool_search":
        return {"type": "tool_search"}
    if tool.form == "tool_search":
        return {"type": "tool_search", "execution": "client", "description": tool.description, "parameters": tool.parameters}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
        **({"strict": bool(tool.strict)} if profile.strict else {}),
    }


def _choice(choice: ToolChoice, declared: Sequence[items.Tool]) -> str | Json:
    """What is `allowed` is told and, since a model may not heed it, judged by the engine all the same."""
    paths = {name: ".".join(path) for path, name in map_names(declared).items() if path[0]}
    if choice.name is not None:
        return {"type": "function", "name": paths.get(choice.name, choice.name)}
    if choice.allowed and choice.mode != "none":
        tools = [{"type": "function", "name": paths.get(name, name)} for name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
    return choice.mode


class _ItemWriter:
    """Items on their way to a backend. Ids are given at most once, and only those it can have made itself."""

    def __init__(self, profile: ModelProfile) -> None:
        self._sealed_only = profile.reasoning_items == "sealed"
        self._is_bare = profile.item_fields == "needed"
        self._ids: set[str] = set()
        self._calls: set[str] = set()

    def write(self, history: Sequence[Item]) -> Iterator[Json]:
        pairs = _pairs(history)
        call_ids: dict[int, str | None] = {}
        for place, item in enumerate(history):
            match item:
                case items.Message(role="assistant"):
                    yield from self._message(item)
                case items.Message():
                    if content := [_write_part(part) for part in item.content]:
                        yield {"type": "message", "role": item.role, "content": content}
                case items.FunctionCall():
                    call = self._call(item)
                    yield call
                    if place in pairs:
                        call_ids[pairs[place]] = call["call_id"]
                    else:
                        yield _write_output(call["call_id"], items.FunctionCallOutput("", UNANSWERED, form=item.form))
                case items.FunctionCallOutput() if place in call_ids:
                    yield _write_output(call_ids[place], item)
                case items.Reasoning() if _leads_on(history, place):
                    yield from self._thought(item)
                # A call or an output must have its counterpart.
                case items.Unknown() if place in pairs or not isinstance(item.data.get("call_id"), str):
                    yield item.data

    def _message(self, message: items.Message) -> Iterator[Json]:
        if content := [said for part in message.content if (said := _write_output_part(part)) is not None]:
            id = self._id(message.id, "msg_") or self._new("msg_")
            spoken = {"type": "message", "role": "assistant", "id": id, "status": message.status, "content": content}
            if self._is_bare:
                yield {key: said for key, said in spoken.items() if key not in ("id", "status")}
            else:
                yield spoken | {"phase": message.phase} if isinstance(message.phase, str) else spoken

    def _call(self, call: items.FunctionCall) -> Json:
        if call.form == "server_tool_search":
            return _write_search(call, "server", None)
        call_id = shorten_id(call.call_id, ID_CHARS)
        while not call_id or call_id in self._calls:
            # Other backends use an id again in a later turn.
            call_id = shorten_id(f"{call.call_id}.{len(self._calls)}", 0)
        self._calls.add(call_id)
        if call.form == "tool_search":
            return _write_search(call, "client", call_id)
        id = self._id(call.id, "fc_")
        made = {"type": "function_call", "call_id": call_id, "name": call.own_name, "arguments": repair_arguments(call.arguments)}
        if call.namespace:
            made["namespace"] = call.namespace
        return made | {"id": id} if id else made

    def _thought(self, thought: items.Reasoning) -> Iterator[Json]:
        """What the backend has sealed goes back to it; what others have, never. Plain thoughts are for those who take them."""
        sealed = thought.encrypted_content or None
        content = [{"type": "reasoning_text", "text": part.text} for part in thought.content or ()]
        if is_sealed(sealed) if sealed else self._sealed_only or not content:
            return
        summary = [{"type": "summary_text", "text": part.text} for part in thought.summary]
        told: Json = {"type": "reasoning", "id": self._id(thought.id, "rs_") or self._new("rs_"), "summary": summary}
        if content:
            told["content"] = content
        yield told | {"encrypted_content": sealed} if sealed else told

    def _id(self, id: str, prefix: str) -> str | None:
        if self._is_bare or not id.startswith(prefix) or len(id) > ID_CHARS or id in self._ids:
            return None
        self._ids.add(id)
        return id

    def _new(self, prefix: str) -> str:
        number = len(self._ids)
        while (id := f"{prefix}{number:024}") in self._ids:
            number += 1
        self._ids.add(id)
        return id


def _write_search(call: items.FunctionCall, execution: str, call_id: str | None) -> Json:
    return {"type": "tool_search_call", "execution": execution, "call_id": call_id, "arguments": parse_call_arguments(call)}


def _write_output(call_id: str | None, item: items.FunctionCallOutput) -> Json:
    if item.form in ("tool_search", "server_tool_search"):
        execution = "client" if item.form == "tool_search" else "server"
        return {"type": "tool_search_output", "execution": execution, "call_id": call_id, "tools": item.tools or []}
    return {"type": "function_call_output", "call_id": call_id, "output": _output(item)}


def _pairs(history: Sequence[Item]) -> dict[int, int]:
    """Where each call and its output are, both ways for the kinds we do not know: a backend refuses one without the other."""
    waiting: dict[tuple[type[Item], str], list[int]] = {}
    pairs: dict[int, int] = {}
    for place, item in enumerate(history):
        match item:
            case items.FunctionCall():
                waiting.setdefault((items.FunctionCall, item.call_id), []).append(place)
            case items.FunctionCallOutput() if calls := waiting.get((items.FunctionCall, item.call_id)):
                pairs[calls.pop(0)] = place
            case items.Unknown({"type": str(kind), "call_id": str(call_id)}) if not kind.endswith("_output"):
                waiting.setdefault((items.Unknown, call_id), []).append(place)
            case items.Unknown({"call_id": str(call_id)}) if calls := waiting.get((items.Unknown, call_id)):
                pairs[place] = calls.pop(0)
                pairs[pairs[place]] = place
    return pairs


def _leads_on(history: Sequence[Item], place: int) -> bool:
    """Whether the model said something behind this thought: a backend refuses a thought that leads to nothing."""
    behind = next((item for item in history[place + 1 :] if not isinstance(item, items.Reasoning)), None)
    is_said = isinstance(behind, items.Message) and behind.role == "assistant"
    return is_said or isinstance(behind, items.FunctionCall | items.Unknown)


def _write_part(part: Part) -> Json:
    match part:
        case items.InputText(text) | items.OutputText(text) | items.Refusal(text):
            return {"type": "input_text", "text": text}
        case items.InputImage():
            fields = {"image_url": part.image_url, "file_id": part.file_id}
            return {"type": "input_image", "detail": part.detail, **{key: value for key, value in fields.items() if value}}
        case items.InputFile():
            fields = {key: getattr(part, key) for key in ("filename", "file_data", "file_url", "file_id")}
            return {"type": "input_file", **{key: value for key, value in fields.items() if value}}
        case items.Unknown(data):
            return data
        case _:
            raise Refused(f"a part of type {type(part).__name__} cannot be sent to this backend; send text, images or files")


def _write_output_part(part: Part) -> Json | None:
    match part:
        case items.OutputText(text) if text:
            return {"type": "output_text", "text": text, "annotations": [note for note in part.annotations if _is_note(note)]}
        case items.InputText(text) if text:
            return {"type": "output_text", "text": text, "annotations": []}
        case items.Refusal(text) if text:
            return {"type": "refusal", "refusal": text}
        case items.Unknown(data):
            return data
        case _:
            return None


def _is_note(note: Json) -> bool:
    return NOTES.get(str(note.get("type")), {"?"}) <= note.keys()


def _output(item: items.FunctionCallOutput) -> str | list[Json]:
    """The format cannot mark an error: it must say so itself."""
    if isinstance(item.output, str):
        return render_error(item)
    mark = [items.InputText("Error:")] if item.is_error is True else []
    return [_write_part(part) for part in (*mark, *list_readable(item.output, _can_read))] or ""


def _can_read(file: EmbeddedFile) -> bool:
    return not is_sound_or_film(file)
