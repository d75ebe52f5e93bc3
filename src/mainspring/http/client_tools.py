"""Client tools that are no plain functions: `custom`, `shell`, `local_shell`, `apply_patch`, `tool_search`, those of namespaces.

The model calls each like a function (`core.declared_tools`); inside, a call is a `FunctionCall` with a `form`, its answer a
`FunctionCallOutput` with the same. Only the client sees its own kinds of items and its own names: `parse_client_items` and
`flatten_call` read them, `render_client_item` writes them.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.declared_tools import SEARCH, Identity, describe_loaded, flatten_name
from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    ApprovalResponse,
    CallForm,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Json,
    Part,
    Unknown,
    are_arguments_large,
    convert,
    text_of,
)
from mainspring.http.kinds import FORMED


def parse_client_items(items: Iterable[Item]) -> list[Item]:
    """Items of a client's own kinds as the calls and outputs that they are; others as they came. Raises `InvalidRequest`."""
    return [_parse_item(item) for item in _pair_searches(items)]


def flatten_call(item: Item, names: Mapping[Identity, str]) -> Item:
    """A call of a tool in a namespace, by the model's name for it: that of `names`, or else the usual one. Others as they are."""
    if not isinstance(item, FunctionCall) or not item.namespace or item.inner is not UNSET:
        return item
    identity = (item.namespace, item.name)
    return replace(item, name=names.get(identity) or flatten_name(*identity), inner=item.name)


def _pair_searches(items: Iterable[Item]) -> Iterable[Item]:
    """The items, with a call id for each search of the server's: it has none, and outputs come in the order of calls."""
    names, waiting = count(1), deque[str]()
    for item in items:
        match item:
            case Unknown({"type": "tool_search_call"}) if item.data.get("call_id") is None:
                waiting.append(f"search_{next(names)}")
                yield Unknown({**item.data, "call_id": waiting[-1], "execution": "server"})
            case Unknown({"type": "tool_search_output"}) if item.data.get("call_id") is None and waiting:
                yield Unknown({**item.data, "call_id": waiting.popleft(), "execution": "server"})
            case _:
                yield item


def _parse_item(item: Item) -> Item:
    if not isinstance(item, Unknown):
        return item
    data = item.data
    match data:
        case {"type": "additional_tools", "tools": list()}:
            return item
        case {"type": "tool_search_call", "call_id": str(call_id), "arguments": given}:
            form: CallForm = "server_tool_search" if data.get("execution") == "server" else "tool_search"
            return _make_call(form, data, call_id, SEARCH, given if isinstance(given, dict) else {})
        case {"type": "tool_search_output", "call_id": str(call_id), "tools": [*tools]}:
            form = "server_tool_search" if data.get("execution") == "server" else "tool_search"
            return replace(_make_output(form, data, call_id, _describe_found(tools)), tools=tuple(tools))
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(given)}:
            call = _make_call("custom", data, call_id, name, {"input": given})
            return replace(call, namespace=str(data["namespace"])) if data.get("namespace") else call
        case {"type": "custom_tool_call_output", "call_id": str(call_id), "output": str() | list() as output}:
            return _make_output("custom", data, call_id, _parse_parts(output))
        case {"type": "shell_call", "call_id": str(call_id), "action": dict(action)}:
            return _make_call("shell", data, call_id, "shell", action)
        case {"type": "shell_call_output", "call_id": str(call_id), "output": list(output)}:
            return _make_output("shell", data, call_id, _json(output))
        case {"type": "local_shell_call", "call_id": str(call_id), "action": dict(action)}:
            rest = {key: value for key, value in action.items() if key != "type"}
            return _make_call("local_shell", data, call_id, "local_shell", rest)
        case {"type": "local_shell_call_output", "call_id": str(call_id), "output": str(output)}:
            return _make_output("local_shell", data, call_id, output)
        case {"type": "local_shell_call_output", "id": str(call_id), "output": str(output)}:
            # The standard calls the call's id just `id` here.
            return _make_output("local_shell", {}, call_id, output)
        case {"type": "apply_patch_call", "call_id": str(call_id), "operation": dict(operation)}:
            return _make_call("apply_patch", data, call_id, "apply_patch", operation)
        case {"type": "apply_patch_call_output", "call_id": str(call_id), "status": str(status)}:
            failed = status == "failed"
            said = str(data.get("output") or ("The patch could not be applied." if failed else "Done."))
            return _make_output("apply_patch", data, call_id, said, is_error=failed)
        case {"type": str(kind)} if kind in _KINDS:
            raise InvalidRequest(f"an item of type `{kind}` is not as it should be: {_KINDS[kind]}", param="input")
        case _:
            return item


_KINDS = {
    "custom_tool_call": "call_id, name and input are strings",
    "custom_tool_call_output": "call_id is a string, output a string or a list of parts",
    "shell_call": "call_id is a string, action an object",
    "shell_call_output": "call_id is a string, output a list",
    "local_shell_call": "call_id is a string, action an object",
    "local_shell_call_output": "call_id (or id) and output are strings",
    "apply_patch_call": "call_id is a string, operation an object",
    "apply_patch_call_output": "call_id is a string, status is `completed` or `failed`",
    "additional_tools": "tools is a list",
    "tool_search_call": "call_id is a string, arguments an object",
    "tool_search_output": "call_id is a string and tools a list",
}


def _describe_found(tools: Sequence[object]) -> str:
    """What a search has found, as the model reads it: the tools themselves are declared to it."""
    names: list[str] = []
    for tool in tools:
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": [*members]}:
                names += [flatten_name(namespace, str(member.get("name"))) for member in members if isinstance(member, dict)]
            case {"name": str(name)}:
                names.append(name)
            case _:
                pass
    return describe_loaded(names)


def _make_call(form: CallForm, data: Json, call_id: str, name: str, arguments: Json) -> FunctionCall:
    # Whatever its status: a call that a client sends with its output has been made.
    return FunctionCall(call_id, name, _json(arguments), id=str(data.get("id") or ""), form=form)


def _make_output(
    form: CallForm, data: Json, call_id: str, output: str | tuple[Part, ...], *, is_error: bool = False
) -> FunctionCallOutput:
    return FunctionCallOutput(call_id, output, id=str(data.get("id") or ""), is_error=is_error or UNSET, form=form)


def _parse_parts(output: str | list[object]) -> str | tuple[Part, ...]:
    if isinstance(output, str):
        return output
    try:
        return convert(output, tuple[Part, ...])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the output of a custom tool call: {error}", param="input") from None


def render_client_item(item: Item) -> Item:
    """An item as the client knows it."""
    match item:
        case FunctionCall(form=str(form)) if form not in FORMED:
            return Unknown(_render_call(item, form))
        case FunctionCall(inner=str(inner)):
            return replace(item, name=inner, inner=UNSET)
        case FunctionCallOutput(form=str(form)) if form not in FORMED:
            return Unknown(_render_output(item, form))
        case ApprovalResponse(kept=dict()):
            return replace(item, kept=UNSET)
        case _:
            return item


def _render_call(call: FunctionCall, form: CallForm) -> Json:
    given = parse_arguments(call)
    if form in ("tool_search", "server_tool_search"):
        return {**_render_search_head(call, form), "id": derive_id("tsc", call.id), "arguments": given, "status": call.status}
    head: Json = {"type": "custom_tool_call" if form == "custom" else f"{form}_call", "id": call.id, "call_id": call.call_id}
    match form:
        case "custom":
            place = {"namespace": call.namespace} if call.namespace else {}
            return {**head, **place, "name": call.own_name, "input": read_custom_input(call), "status": call.status}
        case "shell":
            limits = {"timeout_ms": given.get("timeout_ms"), "max_output_length": given.get("max_output_length")}
            action = {"commands": read_commands(given), **limits}
            return {**head, "action": action, "environment": {"type": "local"}, "status": call.status}
        case "local_shell":
            action = {"env": {}, **given, "type": "exec", "command": _words(given.get("command"))}
            return {**head, "action": action, "status": call.status}
        case "apply_patch":
            operation = {"type": given.get("type", "update_file"), "path": given.get("path", "")}
            if operation["type"] != "delete_file":
                operation["diff"] = given.get("diff", "")
            return {**head, "operation": operation, "status": "in_progress" if call.status == "in_progress" else "completed"}
        case _:
            raise AssertionError(f"clients perform no {form}")


def _render_search_head(item: FunctionCall | FunctionCallOutput, form: CallForm) -> Json:
    """Only a search that the client performs has an id to answer it by."""
    is_clients = form == "tool_search"
    kind = "tool_search_call" if isinstance(item, FunctionCall) else "tool_search_output"
    return {"type": kind, "execution": "client" if is_clients else "server", "call_id": item.call_id if is_clients else None}


def _render_output(output: FunctionCallOutput, form: CallForm) -> Json:
    if form in ("tool_search", "server_tool_search"):
        head = _render_search_head(output, form)
        return {**head, "id": derive_id("tso", output.id), "tools": output.tools or [], "status": output.status}
    kind = "custom_tool_call_output" if form == "custom" else f"{form}_call_output"
    head = {"type": kind, "id": output.id, "call_id": output.call_id}
    text, failed = text_of(output.output), output.is_error is True
    match form:
        case "custom":
            return {**head, "output": output.output, "status": output.status}
        case "shell":
            return {**head, "output": _parse_shell_output(text, failed), "status": output.status}
        case "local_shell":
            return {**head, "output": text, "status": output.status}
        case "apply_patch":
            return {**head, "output": text, "status": "failed" if failed else "completed"}
        case _:
            raise AssertionError(f"clients perform no {form}")


def _parse_shell_output(text: str, failed: bool) -> list[object]:
    """What the client had sent; or what was said instead of running the command."""
    try:
        sent = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        sent = None
    if isinstance(sent, list):
        return sent
    return [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1 if failed else 0}}]


def read_custom_input(call: FunctionCall) -> str:
    """The text that a custom tool is called with; a call that was cut off has what there is of it."""
    given = parse_arguments(call).get("input")
    return given if isinstance(given, str) else call.arguments


def read_commands(given: Json) -> list[str]:
    return _words(given.get("commands"))


def _words(value: object) -> list[str]:
    """A list of words, also of what a model that ignores the schema made of it."""
    match value:
        case None:
            return []
        case list():
            return [word if isinstance(word, str) else _json(word) for word in value]
        case str():
            return [value]
        case _:
            return [_json(value)]


def parse_arguments(call: FunctionCall) -> Json:
    if are_arguments_large(call.arguments):
        return {}
    try:
        given = msgspec.json.decode(call.arguments) if call.arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
