"""A request as a backend takes it that has shown what it does not take: what every wire format has in common.

What is left out can be done without, what is written otherwise means the same, and what a backend cannot be told in its format is
told in words, and checked here. `RULES` are how backends put it.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeGuard

from msgspec.structs import replace

from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Tool,
    ToolDefinition,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.chat.refusals import REFUSALS
from mainspring.providers.json_text import json_text
from mainspring.providers.profiles import NEUTRAL, ModelProfile
from mainspring.providers.told_tools import describe_tools, write_call, write_output
from mainspring.providers.transcript import find_schema, find_seal, list_functions, parse_call_arguments, render_error

RULES: Final = tuple(
    [
        rule
        for rule in REFUSALS
        if rule.field
        in (
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "strict",
            "schemas",
            "descriptions",
            "response_format",
            "system",
            "reasoning_effort",
            "temperature",
            "top_p",
        )
    ]
)


def adapt_request(request: ModelRequest, profile: ModelProfile) -> ModelRequest:
    """The request as the backend takes it; the same if nothing is known of it."""
    if profile == NEUTRAL:
        return request
    changes: Json = {}
    if not profile.temperature:
        changes["temperature"] = None
    if not profile.top_p:
        changes["top_p"] = None
    if not profile.reasoning_effort:
        changes["reasoning"] = None
    if not profile.parallel_tool_calls:
        changes["parallel_tool_calls"] = True
    if (most := profile.most_output) is not None:
        changes["max_output_tokens"] = min(request.max_output_tokens or most, most)
    if not profile.seals:
        changes["items"] = [item for item in request.items if find_seal(item) is None]
    return _adapt_words(_adapt_tools(replace(request, **changes) if changes else request, profile), profile)


def _adapt_tools(request: ModelRequest, profile: ModelProfile) -> ModelRequest:
    choice, tools = request.tool_choice, list_functions(request)
    is_forced = choice.name is not None or choice.mode == "required"
    if not profile.tools:
        told = (
            ()
            if choice.mode == "none" or not tools
            else (describe_tools(list(map(_describe, tools)), name=choice.name or "", is_required=is_forced),)
        )
        bare = replace(request, tools=(), declared=(), tool_choice=ToolChoice(), items=list(_retell_calls(request.items)))
        return _instruct(bare, *told)
    if tools and profile != NEUTRAL:
        request = replace(request, tools=tuple([_adapt_tool(tool, profile) for tool in request.tools]))
    if tools and profile.tool_choice == "auto" and choice.mode != "none":
        # What is `allowed` is judged by the engine, too.
        wish = f"Answer by calling the tool `{choice.name}`." if choice.name else "Answer by calling one of the tools."
        request = _instruct(replace(request, tool_choice=ToolChoice()), *([wish] if is_forced else []))
    return request


def _adapt_words(request: ModelRequest, profile: ModelProfile) -> ModelRequest:
    schema, is_beside = find_schema(request), bool(list_functions(request))
    is_refused = profile.response_format == "none" or (is_beside and profile.response_format == "without_tools")
    if schema is not None and (is_refused or profile.format_told):
        wish = f"Answer with JSON only, by this JSON Schema: {json_text(schema)}" if schema else "Answer with JSON only."
        rest = {name: value for name, value in (request.text or {}).items() if name != "format" or not is_refused}
        request = _instruct(replace(request, text=rest or None), wish)
    if profile.system == "user":
        said = [Message("user", item.content) if _is_of_system(item) else item for item in request.items]
        lead = [user(request.instructions)] if request.instructions else []
        request = replace(request, instructions=None, items=[*lead, *said])
    return request


def _instruct(request: ModelRequest, *words: str) -> ModelRequest:
    return replace(request, instructions="\n\n".join(filter(None, [request.instructions, *words])) or None)


def _adapt_tool(tool: Tool, profile: ModelProfile) -> Tool:
    if not isinstance(tool, ToolDefinition):
        return tool
    changes: Json = {}
    if not profile.strict and tool.strict is not None:
        changes["strict"] = None
    if profile.descriptions != "full" and not tool.description:
        changes["description"] = tool.name
    match profile.schemas:
        case "common" if tool.parameters:
            changes["parameters"] = drop_rare(tool.parameters)
        case "bare" if tool.parameters:
            changes["parameters"] = bare_schema(tool.parameters)
        case "told" if tool.parameters:
            changes["description"] = (
                f"{tool.description}\nIts arguments fit this JSON Schema: {json_text(tool.parameters)}".strip()
            )
            changes["parameters"] = None
    return replace(tool, **changes) if changes else tool


def _describe(tool: ToolDefinition) -> Json:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}


def _retell_calls(items: Sequence[Item]) -> Iterator[Item]:
    """Calls and outputs in words, each output with the images and files it has."""
    for item in items:
        match item:
            case FunctionCall():
                yield assistant(write_call(item.name, json_text(parse_call_arguments(item))))
            case FunctionCallOutput(output=tuple(parts)):
                seen = [part for part in parts if not isinstance(part, InputText | OutputText)]
                yield Message("user", (InputText(write_output(render_error(item))), *seen))
            case FunctionCallOutput():
                yield user(write_output(render_error(item)))
            case _:
                yield item


def _is_of_system(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role not in ("user", "assistant")


def drop_rare(schema: Json) -> Json:
    """The schema without the word that some take for an error. What it said is checked here."""
    kept = {word: value for word, value in schema.items() if word != "additionalProperties"}
    return kept | {
        word: {name: drop_rare(part) for name, part in value.items() if isinstance(part, dict)}
        if word in ("properties", "$defs")
        else drop_rare(value)
        for word, value in kept.items()
        if isinstance(value, dict)
    }


def bare_schema(schema: Json) -> Json:
    """Names, types and descriptions, and one type each. What else was said is checked here."""
    return _bare(
        schema, {**_list_parts(schema, "definitions"), **_list_parts(schema, "$defs")}, iter(range(MOST_PARTS)), MOST_DEPTH
    )


def _bare(schema: Json, known: Json, left: Iterator[int], depth: int) -> Json:
    if not depth or next(left, None) is None:
        # References may lead round in circles, or to more with every step.
        return {"type": "object"}
    described = schema.get("description")
    schema = _choose(schema, known)
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((each for each in kinds if each != "null"), "string") if isinstance(kinds, list) else kinds
    bare: Json = {"type": kind}
    if isinstance(described := described or schema.get("description"), str):
        bare["description"] = described
    if properties := _list_parts(schema, "properties"):
        bare["properties"] = {name: _bare(part, known, left, depth - 1) for name, part in properties.items()}
        bare["required"] = [name for name in schema.get("required") or () if name in bare["properties"]]
    if kind == "array":
        items = schema.get("items")
        bare["items"] = _bare(items, known, left, depth - 1) if isinstance(items, dict) else {"type": "string"}
    return bare


def _choose(schema: Json, known: Json) -> Json:
    """What a reference refers to, or the first of alternatives that is not null."""
    for _ in range(MOST_DEPTH):
        match schema:
            case {"$ref": str(reference)}:
                schema = known.get(reference.rpartition("/")[2], {"type": "object"})
            case {"anyOf": [*parts]} | {"oneOf": [*parts]} | {"allOf": [*parts]} if "type" not in schema:
                schema = next((part for part in parts if isinstance(part, dict) and part.get("type") != "null"), {})
            case _:
                return schema
    return {"type": "object"}


def _list_parts(schema: Json, word: str) -> Json:
    parts = schema.get(word)
    return {name: part for name, part in parts.items() if isinstance(part, dict)} if isinstance(parts, dict) else {}


MOST_DEPTH: Final = 12
MOST_PARTS: Final = 2_000
