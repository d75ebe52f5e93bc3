"""What Chat backends refuse, and how a request is changed so that they take it: a table of words and changes.

A refusal that the table knows changes the request, which is sent again; what a model has refused is remembered. What is dropped
can be done without, and what is written otherwise means the same.
"""

import re
from collections.abc import Callable, Mapping, Set
from hashlib import blake2b
from re import Pattern
from typing import Final

from mainspring.core.items import Json
from mainspring.providers.json_text import json_text


def adapt(body: Json, refused: Set[str]) -> Json:
    """The body as a backend takes it that has refused these fields."""
    left_out = {*refused, *(_WITH_TOOLS if "tools" in refused else ())} - _CHANGES.keys()
    adapted = {name: value for name, value in body.items() if name not in left_out}
    for field, change in _CHANGES.items():
        if field in refused:
            adapted = change(adapted)
    return adapted


def _ask_whole(body: Json) -> Json:
    """A model with tools whose calls get lost in streams answers in one piece."""
    return (
        {**{name: value for name, value in body.items() if name != "stream_options"}, "stream": False}
        if "tools" in body
        else body
    )


def _rename_limit(body: Json) -> Json:
    return {"max_completion_tokens" if name == "max_tokens" else name: value for name, value in body.items()}


def _drop_names(body: Json) -> Json:
    return {**body, "messages": [{key: said for key, said in each.items() if key != "name"} for each in body["messages"]]}


def _fill_content(body: Json) -> Json:
    return {**body, "messages": [{**each, "content": each["content"] or ""} for each in body["messages"]]}


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
    return {**body, "messages": [{"role": "system", "content": "\n\n".join(system)}, *rest]}


def _ask_for_call(body: Json) -> Json:
    """A call cannot be forced: the model is asked for one."""
    choice = body.get("tool_choice", "none")
    if choice == "none":
        return body
    name = choice["function"]["name"] if isinstance(choice, dict) else ""
    wish = f"Answer by calling the tool `{name}`." if name else "Answer by calling one of the tools."
    return _instruct({key: value for key, value in body.items() if key != "tool_choice"}, wish)


def _ask_for_format(body: Json) -> Json:
    """A model that may call tools cannot be held to a format: it is asked for one, and its answer is checked here."""
    if "tools" not in body or "response_format" not in body:
        return body
    schema = body["response_format"].get("json_schema", {}).get("schema")
    wish = f"Answer with JSON only, by this JSON Schema: {json_text(schema)}" if schema else "Answer with JSON only."
    return _instruct({key: value for key, value in body.items() if key != "response_format"}, wish)


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


def _simplify_schemas(body: Json) -> Json:
    """Schemas of tools in fewer words. What the others said is checked here."""
    told = [(tool, tool["function"]) for tool in body.get("tools", ())]
    tools = [{**tool, "function": {**function, "parameters": _simplify(function["parameters"])}} for tool, function in told]
    return {**body, "tools": tools} if tools else body


def _simplify(schema: object) -> object:
    if isinstance(schema, list):
        return [_simplify(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {word: value for word, value in schema.items() if word not in _RARE_WORDS}
    for word in ("properties", "$defs"):
        if isinstance(parts := kept.get(word), dict):
            kept[word] = {name: _simplify(part) for name, part in parts.items()}
    return kept | {word: _simplify(kept[word]) for word in ("items", "anyOf", "oneOf", "allOf") if word in kept}


def _unknown(name: str) -> Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    no = r"(unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(parameter|argument|field|input)[^.]*"
    return re.compile(rf"{no}{name}|{name}[^.]*{no}|\b{name}\b[^.]* (is|are) not (supported|permitted|allowed)", re.I)


_RARE_WORDS: Final = (
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "$schema",
    "patternProperties",
    "propertyNames",
)
_RARE: Final = f"({'|'.join(map(re.escape, _RARE_WORDS))})"
_NOT_KNOWN: Final = "(unknown|unsupported|unexpected|not supported|not permitted|cannot find)"
STREAM: Final = "stream"
"""Calls get lost when they are streamed."""
RECALLED: Final = "messages.reasoning_content"
"""The model wants its reasoning back with its calls."""
REFUSALS: Final = (
    ("stream_options", re.compile(r"stream_options")),
    ("parallel_tool_calls", re.compile(r"parallel_tool_calls")),
    ("tools", re.compile(r"not support (tools|tool use|tool calling|function)|enable-auto-tool-choice|tool use is not", re.I)),
    ("reasoning_effort", _unknown("reasoning_effort")),
    ("max_tokens", re.compile(r"\bmax_tokens\b.*\bmax_completion_tokens\b", re.I)),
    # The names of tools on their outputs.
    ("messages.name", re.compile(r"messages.*\bname\b.*(unsupported|unexpected|not (supported|permitted|allowed))", re.I)),
    ("messages.content", re.compile(r"\bcontent\b.*(must be (a )?strings?|valid string|null|none)", re.I)),
    ("messages.id", re.compile(r"\btool.?(call|use).?id\b.*(match pattern|length of 9)", re.I)),
    ("messages.system", re.compile(r"system (message|role).*(beginning|first)|only one system", re.I)),
    (RECALLED, re.compile(r"reasoning_content.*(passed back|sent back|missing|required)", re.I)),
    ("messages.tools", re.compile(r"(tools|toolConfig)\b.*must be (defined|specified|provided)|tools param", re.I)),
    ("tools.schema", re.compile(rf"{_NOT_KNOWN}[^.]*{_RARE}|{_RARE}[^.]*{_NOT_KNOWN}", re.I)),
    ("tool_choice", re.compile(r"tool_choice.*(incompatible|not support|unsupported|only .*auto)", re.I)),
    ("response_format.tools", re.compile(r"(json mode|response_format|structured output).*\b(tool|function)", re.I)),
    ("response_format.type", re.compile(r"response_format.*json_schema", re.I)),
    # With these, a value that is not supported means that only the default is.
    ("temperature", re.compile(r"temperature.*(not support|unsupported|only the default)|unsupported.*temperature", re.I)),
    ("top_p", re.compile(r"top_p.*(not support|unsupported|only the default)|unsupported.*top_p", re.I)),
)
_WITH_TOOLS: Final = ("tool_choice", "parallel_tool_calls")
_CHANGES: Final[Mapping[str, Callable[[Json], Json]]] = {
    STREAM: _ask_whole,
    "max_tokens": _rename_limit,
    "messages.name": _drop_names,
    "messages.content": _fill_content,
    "messages.id": _derive_ids,
    "messages.system": _merge_system,
    "messages.tools": _declare_called,
    "tools.schema": _simplify_schemas,
    "tool_choice": _ask_for_call,
    "response_format.tools": _ask_for_format,
    "response_format.type": _give_schema,
}
REWRITTEN: Final = frozenset(
    {
        "messages.name",
        "messages.content",
        "messages.id",
        "messages.system",
        "messages.tools",
        "tool_choice",
        "response_format.tools",
    }
)
"""Those whose changes read or write messages."""
