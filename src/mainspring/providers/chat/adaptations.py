"""How a request is changed so that a Chat backend takes it that has refused a part of it.

What is dropped can be done without, and what is written otherwise means the same. `refusals.py` says how backends put it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import Final

import msgspec
from msgspec.structs import asdict

from mainspring.core.items import Json
from mainspring.ports import ProfileValue
from mainspring.providers.chat.refusals import RARE_WORDS
from mainspring.providers.json_text import json_text
from mainspring.providers.profiles import NEUTRAL, ModelProfile
from mainspring.providers.told_tools import describe_tools, retell_calls


def adapt(body: Json, profile: ModelProfile) -> Json:
    """The body as a backend takes it that has this profile."""
    if profile == NEUTRAL:
        return body
    known = asdict(profile)
    left_out = {field for field in _OPTIONAL if not known[field]}
    adapted = {name: value for name, value in body.items() if name not in left_out}
    for (field, value), change in _CHANGES.items():
        if known[field] == value:
            adapted = change(adapted)
    return adapted


def rewrites_messages(profile: ModelProfile) -> bool:
    """Whether messages are read or written for the profile's sake, which must then not be written yet."""
    known = asdict(profile)
    return any(known[field] == value for field, value in _CHANGES.keys() - _BESIDE_MESSAGES)


def _ask_whole(body: Json) -> Json:
    return {**{name: value for name, value in body.items() if name != "stream_options"}, "stream": False}


def _ask_whole_with_tools(body: Json) -> Json:
    """A model with tools whose calls get lost in streams answers in one piece."""
    return _ask_whole(body) if "tools" in body else body


def _drop_names(body: Json) -> Json:
    return {**body, "messages": [{key: said for key, said in each.items() if key != "name"} for each in body["messages"]]}


def _fill_content(body: Json) -> Json:
    return {**body, "messages": [{**each, "content": each["content"] or ""} for each in body["messages"]]}


def _omit_content(body: Json) -> Json:
    """Leaves out content that is blank beside calls; an output that is blank says so."""

    def fill(message: Json) -> Json:
        if message["content"]:
            return message
        rest = {key: said for key, said in message.items() if key != "content"}
        return rest if "tool_calls" in message else {**rest, "content": "(empty)"}

    return {**body, "messages": list(map(fill, body["messages"]))}


def _tell_content(body: Json) -> Json:
    """Content that is blank says what the message does."""

    def fill(message: Json) -> Json:
        names = ", ".join([f"`{call['function']['name']}`" for call in message.get("tool_calls", ())])
        return message if message["content"] else {**message, "content": f"I call {names}." if names else "(empty)"}

    return {**body, "messages": list(map(fill, body["messages"]))}


def _part_outputs(body: Json) -> Json:
    def part(message: Json) -> Json:
        said = message["content"]
        return message if message["role"] != "tool" else {**message, "content": [{"type": "text", "text": said}]}

    return {**body, "messages": list(map(part, body["messages"]))}


def _open_arguments(body: Json) -> Json:
    """Arguments as the objects that they are."""

    def open_call(call: Json) -> Json:
        return {**call, "function": {**call["function"], "arguments": msgspec.json.decode(call["function"]["arguments"])}}

    return {
        **body,
        "messages": [
            {**each, "tool_calls": list(map(open_call, each["tool_calls"]))} if "tool_calls" in each else each
            for each in body["messages"]
        ],
    }


def _alternate(body: Json) -> Json:
    """What the system says is said by the user, and whoever speaks twice in a row says it in one message."""
    merged: list[Json] = []
    for message in _merge_system(body)["messages"]:
        message = {**message, "role": "user"} if message["role"] == "system" else message
        last = merged[-1] if merged else {"role": ""}
        both = [last, message]
        if last["role"] == message["role"] and all(each.keys() == {"role", "content"} for each in both):
            merged[-1] = {**last, "content": _join(last["content"], message["content"])}
        elif message["content"] or len(message) > 2:
            merged.append(message)
    if merged and merged[0]["role"] != "user":
        merged.insert(0, {"role": "user", "content": "(The assistant speaks first.)"})
    return {**body, "messages": merged}


def _join(first: str | list[Json], second: str | list[Json]) -> str | list[Json]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": "text", "text": said}] if isinstance(said, str) else said for said in (first, second)]
    return [*parts[0], *parts[1]]


def _part_calls(body: Json) -> Json:
    """Has the model make one call at a time, each followed by its output."""
    messages: list[Json] = []
    for caller, group in groupby(body["messages"], _find_caller()):
        turn = list(group)
        calls = () if caller is None else caller["tool_calls"]
        outputs = {message.get("tool_call_id"): message for message in (() if caller is None else turn[1:])}
        if len(calls) < 2 or outputs.keys() != {call["id"] for call in calls} or len(outputs) < len(turn) - 1:
            messages += turn
            continue
        for number, call in enumerate(calls):
            words = {} if number == 0 else {"content": None}
            messages += [{**turn[0], **words, "tool_calls": [call]}, outputs[call["id"]]]
    return {**body, "messages": messages}


def _find_caller() -> Callable[[Json], Json | None]:
    """Tells of each message in a row the one whose calls it makes or answers, if it does."""
    caller: Json | None = None

    def find(message: Json) -> Json | None:
        nonlocal caller
        if message["role"] != "tool":
            caller = message if "tool_calls" in message else None
        return caller

    return find


def _round_effort(body: Json) -> Json:
    """The nearest of the three levels that everybody knows."""
    effort = body.get("reasoning_effort")
    return {**body, "reasoning_effort": _NEAREST[effort]} if effort in _NEAREST else body


def _bridge_outputs(body: Json) -> Json:
    """Has the model speak between the output of a tool and the user."""
    messages: list[Json] = []
    for message in body["messages"]:
        if message["role"] == "user" and messages and messages[-1]["role"] == "tool":
            messages.append({"role": "assistant", "content": "I have the output."})
        messages.append(message)
    return {**body, "messages": messages}


def _retell_calls(body: Json) -> Json:
    """Calls and outputs of the history in words, for a backend that knows no role for outputs."""
    messages: list[Json] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            told = f"The output of `{message.get('name', 'the tool')}`:\n{message['content']}"
            message = {"role": "user", "content": told}
        elif calls := message.get("tool_calls"):
            made = [f"I call `{call['function']['name']}` with {call['function']['arguments']}." for call in calls]
            message = {"role": "assistant", "content": "\n".join([*filter(None, [message["content"]]), *made])}
        messages.append(message)
    return _alternate({**body, "messages": messages})


def _tell_tools(body: Json) -> Json:
    """Tools in words, for a model or a server that knows none: their calls come as text, and are read there."""
    bare = {name: value for name, value in body.items() if name not in _WITH_TOOLS} | {"messages": retell_calls(body["messages"])}
    choice, functions = body.get("tool_choice"), [tool["function"] for tool in body.get("tools", ())]
    if not functions or choice == "none":
        return bare
    name = choice["function"]["name"] if isinstance(choice, dict) else ""
    return _instruct(bare, describe_tools(functions, name=name, is_required=choice == "required"))


def _derive_ids(body: Json) -> Json:
    """Call ids of nine letters and digits: equal ones stay equal, different ones stay different."""

    def derive(message: Json) -> Json:
        message = dict(message)
        if "tool_call_id" in message:
            message["tool_call_id"] = _shorten(message["tool_call_id"])
        if "tool_calls" in message:
            message["tool_calls"] = [{**call, "id": _shorten(call["id"])} for call in message["tool_calls"]]
        return message

    return {**body, "messages": list(map(derive, body["messages"]))}


def _shorten(id: str) -> str:
    return id if re.fullmatch("[a-zA-Z0-9]{9}", id) else blake2b(id.encode(), digest_size=8).hexdigest()[:9]


def _merge_system(body: Json) -> Json:
    """All that the system says in one message, in front."""
    system = [each["content"] for each in body["messages"] if each["role"] == "system" and isinstance(each["content"], str)]
    rest = [each for each in body["messages"] if each["role"] != "system" or not isinstance(each["content"], str)]
    front = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return {**body, "messages": [*front, *rest]}


def _ask_for_call(body: Json) -> Json:
    """A call cannot be forced: the model is asked for one."""
    choice = body.get("tool_choice", "none")
    if choice == "none":
        return body
    name = choice["function"]["name"] if isinstance(choice, dict) else ""
    wish = f"Answer by calling the tool `{name}`." if name else "Answer by calling one of the tools."
    return _instruct({key: value for key, value in body.items() if key != "tool_choice"}, wish)


def _ask_for_format_beside_tools(body: Json) -> Json:
    return _ask_for_format(body) if "tools" in body else body


def _ask_for_format(body: Json) -> Json:
    """A model that cannot be held to a format is asked for one, and its answer is checked here."""
    return {key: value for key, value in _tell_format(body).items() if key != "response_format"}


def _tell_format(body: Json) -> Json:
    if "response_format" not in body:
        return body
    schema = body["response_format"].get("json_schema", {}).get("schema")
    return _instruct(
        body, f"Answer with JSON only, by this JSON Schema: {json_text(schema)}" if schema else "Answer with JSON only."
    )


def _instruct(body: Json, wish: str) -> Json:
    return _merge_system({**body, "messages": [*body["messages"], {"role": "system", "content": wish}]})


def _give_schema(body: Json) -> Json:
    if body.get("response_format") != {"type": "json_object"}:
        return body
    return {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}}


def _declare_called(body: Json) -> Json:
    """Declares the tools that the history has calls of, and forbids their use."""
    if "tools" in body:
        return body
    names = dict.fromkeys([call["function"]["name"] for each in body["messages"] for call in each.get("tool_calls", ())])
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in names
    ]
    return {**body, "tools": tools, "tool_choice": "none"} if tools else body


def _map_functions(body: Json, change: Callable[[Json], Json]) -> Json:
    tools = [{**tool, "function": change(tool["function"])} for tool in body.get("tools", ())]
    return {**body, "tools": tools} if tools else body


def _simplify_schemas(body: Json) -> Json:
    """Schemas of tools without rare words, and none of tools without parameters. What they said is checked here."""

    def simplify(function: Json) -> Json:
        if (function["parameters"] or {}).get("properties") == {}:
            return {key: value for key, value in function.items() if key != "parameters"}
        return {**function, "parameters": _simplify(function["parameters"], RARE_WORDS)}

    return _map_functions(body, simplify)


def _bare_schemas(body: Json) -> Json:
    """Schemas of tools with nothing but names and types. What the other words said is checked here."""
    dropped = (*RARE_WORDS, *_FINE_WORDS)
    return _map_functions(body, lambda function: {**function, "parameters": _simplify(function["parameters"], dropped)})


def _tell_schemas(body: Json) -> Json:
    """Schemas of tools in words, for a server that can make no grammar of so many. Calls are checked here."""

    def tell(function: Json) -> Json:
        told = f"{function.get('description') or ''}\nIts arguments fit this JSON Schema: {json_text(function['parameters'])}"
        return {**function, "description": told.strip(), "parameters": {"type": "object"}}

    return _map_functions(body, tell)


def _fill_descriptions(body: Json) -> Json:
    return _map_functions(body, lambda function: {**function, "description": function.get("description") or function["name"]})


def _join_parts(body: Json) -> Json:
    """Content of several texts as one."""

    def join(message: Json) -> Json:
        parts = message["content"]
        is_text = isinstance(parts, list) and all(part.get("type") == "text" for part in parts)
        return {**message, "content": "\n".join([part["text"] for part in parts])} if is_text else message

    return {**body, "messages": list(map(join, body["messages"]))}


def _shorten_descriptions(body: Json) -> Json:
    """Descriptions of tools in one line of plain characters, and none of their parameters."""

    def shorten(function: Json) -> Json:
        line = _ODD.sub(" ", str(function.get("description") or "")).strip().partition("\n")[0]
        return {
            **function,
            "description": line[:_MOST_DESCRIPTION] or function["name"],
            "parameters": _simplify(function["parameters"], ("description",)),
        }

    return _map_functions(body, shorten)


def _simplify(schema: object, dropped: Collection[str]) -> object:
    if isinstance(schema, list):
        return [_simplify(each, dropped) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {word: value for word, value in schema.items() if word not in dropped}
    for word in ("properties", "$defs"):
        if isinstance(parts := kept.get(word), dict):
            kept[word] = {name: _simplify(part, dropped) for name, part in parts.items()}
    return kept | {word: _simplify(kept[word], dropped) for word in ("items", "anyOf", "oneOf", "allOf") if word in kept}


def _drop_strict(body: Json) -> Json:
    body = _map_functions(body, lambda function: {key: value for key, value in function.items() if key != "strict"})
    schema = (body.get("response_format") or {}).get("json_schema")
    if not schema or "strict" not in schema:
        return body
    kept = {key: value for key, value in schema.items() if key != "strict"}
    return {**body, "response_format": {**body["response_format"], "json_schema": kept}}


_NEAREST: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_MOST_DESCRIPTION: Final = 200
_ODD: Final = re.compile(r"[^\n\w.,:;()/'-]+")
_FINE_WORDS: Final = (
    "$comment", "$id", "const", "default", "deprecated", "description", "examples", "format", "maxItems", "maxLength", "maximum",
    "minItems", "minLength", "minimum", "multipleOf", "not", "pattern", "readOnly", "title", "uniqueItems", "writeOnly",
)  # fmt: skip
_WITH_TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")
_OPTIONAL: Final = (
    "stream_options", "parallel_tool_calls", "reasoning_effort", "temperature", "top_p", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_CHANGES: Final[Mapping[tuple[str, ProfileValue], Callable[[Json], Json]]] = {
    ("tools", False): _tell_tools,
    ("stream_tools", False): _ask_whole_with_tools,
    ("stream", False): _ask_whole,
    ("output_names", False): _drop_names,
    ("calls_together", False): _part_calls,
    ("blank", "empty"): _fill_content,
    ("blank", "told"): _tell_content,
    ("efforts", "three"): _round_effort,
    ("user_after_output", False): _bridge_outputs,
    ("output_role", "user"): _retell_calls,
    ("ids", "nine"): _derive_ids,
    ("system", "first"): _merge_system,
    ("calls_without_tools", False): _declare_called,
    ("descriptions", "filled"): _fill_descriptions,
    ("descriptions", "short"): _shorten_descriptions,
    ("schemas", "common"): _simplify_schemas,
    ("schemas", "bare"): _bare_schemas,
    ("schemas", "told"): _tell_schemas,
    ("strict", False): _drop_strict,
    ("tool_choice", "auto"): _ask_for_call,
    ("format_told", True): _tell_format,
    ("response_format", "without_tools"): _ask_for_format_beside_tools,
    ("json_object", False): _give_schema,
    ("response_format", "none"): _ask_for_format,
    ("system", "user"): _alternate,
    # Last, since the others read what these change.
    ("content", "text"): _join_parts,
    ("output_content", "parts"): _part_outputs,
    ("arguments", "object"): _open_arguments,
    ("blank", "omitted"): _omit_content,
}
_BESIDE_MESSAGES: Final = frozenset(
    {
        ("stream_tools", False),
        ("stream", False),
        ("efforts", "three"),
        ("descriptions", "filled"),
        ("descriptions", "short"),
        ("schemas", "common"),
        ("schemas", "bare"),
        ("schemas", "told"),
        ("strict", False),
        ("json_object", False),
    }
)
