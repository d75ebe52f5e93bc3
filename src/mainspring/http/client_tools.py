"""Client tools that are no functions: `custom`, `shell`, `local_shell` and `apply_patch`.

The model calls each like a function whose schema is given here; inside, a call is a `FunctionCall` with a `form`, its answer a
`FunctionCallOutput` with the same. Only the client sees its own kinds of items: `parse_client_item` reads them,
`render_client_item` writes them.
"""

import msgspec
from msgspec import UNSET

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import (
    CallForm,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Json,
    Part,
    ToolDefinition,
    Unknown,
    convert,
    text_of,
)
from mainspring.tools.builtin.builtins import find_hosted_tool

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": ["integer", "null"], "minimum": 1}
_WORDS: Json = {"type": "array", "items": _TEXT, "minItems": 1}


def _object(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_SHELL = ToolDefinition(
    "shell",
    "Runs shell commands on the user's machine, one after the other, and returns what each wrote and its exit code.",
    _object(["commands"], commands=_WORDS, timeout_ms=_COUNT, max_output_length=_COUNT),
    form="shell",
)
_LOCAL_SHELL = ToolDefinition(
    "local_shell",
    "Runs one command on the user's machine. `command` is the program and its arguments; use `bash -lc` for a shell line.",
    _object(
        ["command"],
        command=_WORDS,
        working_directory={"type": ["string", "null"]},
        timeout_ms=_COUNT,
        env={"type": "object", "additionalProperties": _TEXT},
        user={"type": ["string", "null"]},
    ),
    form="local_shell",
)
_APPLY_PATCH = ToolDefinition(
    "apply_patch",
    "Creates, updates or deletes one file in the user's workspace. `diff` is what changes, as hunks that begin with `@@` and "
    "hold lines beginning with a space, `-` or `+`; a new file has only `+` lines, and to delete a file takes no diff.",
    _object(
        ["type", "path"], type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]}, path=_TEXT, diff=_TEXT
    ),
    form="apply_patch",
)
_FIXED = {"shell": _SHELL, "local_shell": _LOCAL_SHELL, "apply_patch": _APPLY_PATCH}


def define_client_tool(tool: Json) -> ToolDefinition | None:
    """The tool as the model is told of it; None if the client does not perform this kind. Raises `InvalidRequest`."""
    match tool:
        case {"type": "custom", "name": str(name), **rest}:
            schema = _object(["input"], input={"type": "string", "description": _describe_format(rest.get("format"))})
            return ToolDefinition(name, str(rest.get("description") or ""), schema, form="custom")
        case {"type": "custom"}:
            raise InvalidRequest("a custom tool needs a `name`")
        case _ if find_hosted_tool(tool) is not None:
            return None
        case {"type": str(kind)}:
            return _FIXED.get(kind)
        case _:
            return None


def _describe_format(form: object) -> str:
    match form:
        case {"type": "grammar", "syntax": str(syntax), "definition": str(rules)}:
            return f"Plain text that matches this {syntax} grammar:\n{rules}"
        case _:
            return "Plain text, passed on as it is."


def parse_client_item(item: Item) -> Item:
    """An item of a client's own kind as the call or the output that it is; any other as it came. Raises `InvalidRequest`."""
    if not isinstance(item, Unknown):
        return item
    data = item.data
    match data:
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(given)}:
            return _make_call("custom", data, call_id, name, {"input": given})
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
}


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
        case FunctionCall(form=str(form)) if form != "code_interpreter":
            return Unknown(_render_call(item, form))
        case FunctionCallOutput(form=str(form)) if form != "code_interpreter":
            return Unknown(_render_output(item, form))
        case _:
            return item


def _render_call(call: FunctionCall, form: CallForm) -> Json:
    given = parse_arguments(call)
    head: Json = {"type": "custom_tool_call" if form == "custom" else f"{form}_call", "id": call.id, "call_id": call.call_id}
    match form:
        case "custom":
            return {**head, "name": call.name, "input": read_custom_input(call), "status": call.status}
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


def _render_output(output: FunctionCallOutput, form: CallForm) -> Json:
    kind = "custom_tool_call_output" if form == "custom" else f"{form}_call_output"
    head: Json = {"type": kind, "id": output.id, "call_id": output.call_id}
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
    except msgspec.DecodeError:
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
    try:
        given = msgspec.json.decode(call.arguments) if call.arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
