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


def adapt(body: Json, refused: Set[str]) -> Json:
    """The body as a backend takes it that has refused these fields."""
    left_out = {*refused, *(_WITH_TOOLS if "tools" in refused else ())} - _CHANGES.keys()
    adapted = {name: value for name, value in body.items() if name not in left_out}
    for field in _CHANGES.keys() & refused:
        adapted = _CHANGES[field](adapted)
    return adapted


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


def _unknown(name: str) -> Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    no = r"(unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(parameter|argument|field|input)[^.]*"
    return re.compile(rf"{no}{name}|{name}[^.]*{no}|\b{name}\b[^.]* (is|are) not (supported|permitted|allowed)", re.I)


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
    # With these, a value that is not supported means that only the default is.
    ("temperature", re.compile(r"temperature.*(not support|unsupported|only the default)|unsupported.*temperature", re.I)),
    ("top_p", re.compile(r"top_p.*(not support|unsupported|only the default)|unsupported.*top_p", re.I)),
)
_WITH_TOOLS: Final = ("tool_choice", "parallel_tool_calls")
_CHANGES: Final[Mapping[str, Callable[[Json], Json]]] = {
    "max_tokens": _rename_limit,
    "messages.name": _drop_names,
    "messages.content": _fill_content,
    "messages.id": _derive_ids,
    "messages.system": _merge_system,
}
