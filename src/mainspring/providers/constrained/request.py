"""What a model is asked whose calls are constrained: tools as words and as a schema, calls of the past as plain messages."""

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core import items
from mainspring.core.errors import Refused
from mainspring.core.items import FunctionCall, Json, Part, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.constrained.grammar_schema import tidy_schema
from mainspring.providers.transcript import find_schema, list_functions

CALLS = """To use a tool, write {"tool": NAME, "arguments": {...}}. You are then told its result."""
REPLIES = (
    """To answer, write {"reply": ...}. Answer as soon as you know enough, and always when a tool result answers the question."""
)
RETRY_TEMPERATURE = 0.4


class Misfit(Struct, frozen=True):
    """A call that its tool does not take: the tool's name, the answer as the model wrote it, and what is wrong with it."""

    tool: str
    written: str
    flaw: str


class Choices(Struct, frozen=True):
    """What the model may do: call one of `tools`, or reply if it may. `form` is the schema of a reply that is not just text."""

    tools: tuple[ToolDefinition, ...] = ()
    may_reply: bool = True
    form: Json | None = None


def find_choices(request: ModelRequest) -> Choices:
    """Raises `Refused` if the one tool that must be called is not there."""
    choice = request.tool_choice
    tools = list_functions(request)
    if choice.name is not None:
        forced = tuple([tool for tool in tools if tool.name == choice.name])
        if not forced:
            known = ", ".join([f"`{tool.name}`" for tool in tools]) or "none"
            raise Refused(f"tool `{choice.name}` must be called but is not among the tools; known: {known}")
        return Choices(forced, may_reply=False)
    if choice.mode == "none":
        return Choices()
    if choice.allowed is not None:
        tools = [tool for tool in tools if tool.name in choice.allowed]
    form = find_schema(request)
    return Choices(tuple(tools), may_reply=choice.mode != "required", form={"type": "object"} if form == {} else form)


def strip_tools(request: ModelRequest) -> ModelRequest:
    """The request as plain chat: no tools, and no trace of their protocol."""
    return replace(
        request,
        items=tuple(_plain(request.items, _mention_call)),
        tools=(),
        tool_choice=ToolChoice(),
        parallel_tool_calls=True,
        text=_tidy_text(request.text),
    )


def constrain(request: ModelRequest, choices: Choices, misfit: Misfit | None = None) -> ModelRequest:
    """The request with the choices described in words and enforced by a schema.

    What to call is not left to chance, unless a temperature is asked for, or the model is to do better than its last `misfit`.
    """
    form = {"type": "json_schema", "name": "answer", "schema": _schema(choices)}
    tools = "\n".join([_line(tool) for tool in choices.tools])
    words = f"You can use these tools:\n{tools}\n{f'{CALLS} {REPLIES}' if choices.may_reply else CALLS}"
    history = list(_plain(request.items, _write_call))
    if misfit is not None:
        wrong = f"This call of {misfit.tool} cannot be made: {misfit.flaw}. Write it again with arguments that fit."
        history += [items.assistant(misfit.written), items.user(wrong)]
    return replace(
        strip_tools(request),
        items=tuple(history),
        instructions=f"{request.instructions}\n\n{words}" if request.instructions else words,
        temperature=max(request.temperature or 0.0, 0.0 if misfit is None else RETRY_TEMPERATURE),
        text={**(request.text or {}), "format": form},
    )


def find_answered_call(request: ModelRequest) -> FunctionCall | None:
    """The call whose output is the last thing the model was told, if it is."""
    history = [item for item in request.items if not isinstance(item, items.Reasoning)]
    if not history or not isinstance(output := history[-1], items.FunctionCallOutput):
        return None
    calls = [item for item in history if isinstance(item, FunctionCall) and item.call_id == output.call_id]
    return calls[-1] if calls else None


def _tidy_text(text: Json | None) -> Json | None:
    if text is None or (form := text.get("format")) is None or not isinstance(schema := form.get("schema"), dict):
        return text
    return {**text, "format": {**form, "schema": tidy_schema(schema, "`text.format`")}}


def _schema(choices: Choices) -> Json:
    """One alternative per tool, and one to reply. The schemas stand in `$defs`, where their own references lead."""
    definitions: Json = {}
    alternatives: list[Json] = []
    for number, tool in enumerate(choices.tools, 1):
        # A converter's complaint names the place; few of them know how a pointer escapes unusual characters.
        name = f"tool_{number}_{re.sub('[^A-Za-z0-9]', '_', tool.name)}"
        definitions[name] = tidy_schema(_arguments(tool), f"tool `{tool.name}`", f"#/$defs/{name}")
        alternatives.append(_object(tool={"const": tool.name}, arguments={"$ref": f"#/$defs/{name}"}))
    if choices.may_reply:
        form = choices.form if choices.form is not None else {"type": "string"}
        definitions["reply"] = tidy_schema(form, "`text.format`", "#/$defs/reply")
        alternatives.append(_object(reply={"$ref": "#/$defs/reply"}))
    return {"anyOf": alternatives, "$defs": definitions}


def _arguments(tool: ToolDefinition) -> Json:
    """The schema of a tool's arguments. An object of which nothing is said is that of a tool without parameters."""
    schema = tool.parameters or {}
    if schema.keys() & _SHAPES:
        return schema
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _line(tool: ToolDefinition) -> str:
    schema = tool.parameters or {}
    properties = schema.get("properties")
    arguments = {name: _drop_title(inner) for name, inner in properties.items()} if isinstance(properties, dict) else schema
    return f"- {tool.name}: {tool.description or tool.name} Arguments: {items.encode(arguments).decode()}"


def _drop_title(schema: object) -> object:
    """A small model takes the title, which repeats the name, for the value."""
    return {key: value for key, value in schema.items() if key != "title"} if isinstance(schema, dict) else schema


def _plain(history: Sequence[items.Item], spelled: Callable[[FunctionCall], str]) -> Iterator[items.Item]:
    """The items as messages. Outputs that follow each other are one message, since many models want the roles to alternate."""
    names = {item.call_id: item.name for item in history if isinstance(item, FunctionCall)}
    told: list[Part] = []
    for item in history:
        if isinstance(item, items.FunctionCallOutput):
            told += _write_output(item, names.get(item.call_id, "tool"))
            continue
        if told:
            yield items.Message("user", _join(told))
            told = []
        yield items.assistant(spelled(item)) if isinstance(item, FunctionCall) else item
    if told:
        yield items.Message("user", _join(told))


def _write_output(output: items.FunctionCallOutput, name: str) -> list[Part]:
    label = "Tool error" if output.is_error is True else "Tool result"
    words = items.InputText(f"{label} ({name}): {items.text_of(output.output)}")
    if isinstance(output.output, str):
        return [words]
    return [words, *[part for part in output.output if not isinstance(part, items.InputText | items.OutputText)]]


def _join(parts: Sequence[Part]) -> tuple[Part, ...]:
    """One text where there is nothing but text: not every chat template takes several."""
    if all(isinstance(part, items.InputText) for part in parts):
        return (items.InputText("\n".join([items.text_of([part]) for part in parts])),)
    return tuple(parts)


def _write_call(call: FunctionCall) -> str:
    """A call as the model wrote it, or would have: spelled in JSON even where its arguments are none."""
    try:
        arguments: object = items.parse_arguments(call.arguments)
    except ValueError:
        arguments = call.arguments
    return items.encode({"tool": call.name, "arguments": arguments}).decode()


def _mention_call(call: FunctionCall) -> str:
    """A call in words, for a model that is to answer in words: it would copy JSON."""
    return f"I use the tool {call.name}."


_SHAPES = frozenset({"properties", "patternProperties", "additionalProperties", "required", "$ref", "anyOf", "oneOf", "allOf"})
