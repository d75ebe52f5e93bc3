"""Arguments held against the schema of their tool at a glance: words become the types that they stand for."""

import json
import re
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from mainspring.core.items import Json, ToolDefinition, are_arguments_large
from mainspring.providers.json_text import WHOLE_VALUE, parse_loosely


def list_properties(tool: ToolDefinition | None) -> Json:
    properties = (tool.parameters or {}).get("properties") if tool is not None else None
    return properties if isinstance(properties, dict) else {}


def type_value(value: str, schema: object) -> object:
    """A word as the schema wants it: text stays text, anything else is read as JSON if it is JSON."""
    kind = schema.get("type", "string") if isinstance(schema, dict) and "anyOf" not in schema else None
    if kind == "string" or (_takes_text(schema) and value != "null" and not value.startswith(("[", "{"))):
        return value
    for written in (value, "null" if value == "None" else value.lower()):
        with suppress(ValueError, RecursionError):
            return json.loads(written, parse_constant=_refuse)
    is_collection = not list_kinds(schema).isdisjoint(("array", "object"))
    literal = parse_loosely(value.strip()) if is_collection else None
    return value if literal is None else literal


def _refuse(constant: str) -> None:
    raise ValueError(f"`{constant}` is no JSON")


def _takes_text(schema: object) -> bool:
    """Whether text is one of several types that a value may have."""
    match schema:
        case {"anyOf": [*others]}:
            return any(map(_takes_text, others))
        case {"type": [*kinds]}:
            return "string" in kinds
        case {"type": "string"}:
            return True
        case _:
            return False


def type_values(arguments: Json, tool: ToolDefinition | None) -> Json:
    """The arguments, those that are words as the schema wants them."""
    properties = list_properties(tool)

    def type_one(key: str, value: object) -> object:
        schema = properties.get(key)
        kinds = list_kinds(schema)
        if kinds and _find_kind(value) not in kinds:
            value = _find_given(value, schema)
        if isinstance(value, str):
            return type_value(value, schema)
        if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
            return int(value)
        return json.dumps(value) if kinds == {"string"} and type(value) in (int, float) else value

    return {key: type_one(key, value) for key, value in arguments.items()}


def _find_given(value: object, schema: object) -> object:
    """The value that is within one of another type: in a list of one, or described by its type as a schema does. What has a
    default need not be null."""
    match value:
        case [str() | int() | float() as only] if "array" not in list_kinds(schema):
            return only
        case {"value": str() | int() | float() as only, **rest} if not rest or rest.keys() == {"type"}:
            return only
        case None if isinstance(schema, dict) and _find_kind(schema.get("default")) in list_kinds(schema):
            return schema["default"]
        case _:
            return value


def _find_kind(value: object) -> str:
    return next((name for name, types in _TYPES.items() if type(value) in types), "")


def list_types(tool: ToolDefinition | None) -> dict[str, set[str]]:
    """The types that the properties may have, of those that may not have any."""
    kinds = {key: list_kinds(schema) for key, schema in list_properties(tool).items()}
    return {key: each for key, each in kinds.items() if each}


def list_kinds(schema: object) -> set[str]:
    """The types that a value may have; none if it may have any."""
    if type(schema) is dict and type(name := schema.get("type")) is str and "anyOf" not in schema:
        return {name} if name in _TYPES else set()
    match schema:
        case {"anyOf": [*others]}:
            kinds = [list_kinds(each) for each in others]
            return set().union(*kinds) if all(kinds) else set()
        case {"type": [*names]}:
            return {*map(str, names)} if all(name in _TYPES for name in map(str, names)) else set()
        case {"type": str(name)} if name in _TYPES:
            return {name}
        case _:
            return set()


def are_right(text: str, tool: ToolDefinition) -> bool:
    """Whether the arguments are what they should be at a look: an object that fits, of nothing but what the tool has. Others may
    be right, too, and an empty one may have the real one behind it."""
    if text[:1] != "{" or text[-1:] != "}" or "<|" in text or are_arguments_large(text):
        return False
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(value) and value.keys() <= list_properties(tool).keys() and fits(value, tool)


def fit_arguments(text: str, tool: ToolDefinition) -> str:
    """Arguments as the tool takes them: the types of their words, and the brace that is missing. As they are if that is not all
    that is wrong with them, or if they are too many to read."""
    if are_arguments_large(text):
        return text
    # Behind a number or within a text, more may have been to come.
    closed = (
        [f"{text}}}", f"{text.rstrip().removesuffix(',')}}}"] if WHOLE_VALUE.search(text) or text.rstrip().endswith(",") else []
    )
    for written in (text, *closed):
        with suppress(ValueError, RecursionError):
            value = json.loads(written)
            if not isinstance(value, dict) or (written is text and fits(value, tool)):
                return text
            typed = type_values(value, tool)
            return _rewrite(written, value, typed) if fits(typed, tool) else text
    return text


def _rewrite(text: str, value: Json, typed: Json) -> str:
    """The text with other values. What goes on already is not written otherwise."""
    for key in [key for key in value if typed[key] != value[key]]:
        value = {**value, key: typed[key]}
        new = json.dumps(typed[key], ensure_ascii=False)
        # Another object within the arguments may have the key, too.
        places = islice(re.finditer(rf'"{re.escape(key)}"\s*:\s*(?=[^\s])', text), _MOST_PLACES)
        written = (text[: place.end()] + new + text[_find_end(text, place.end()) :] for place in places)
        text = next((each for each in written if _is_written(each, value)), text)
    return text


def _find_end(text: str, place: int) -> int:
    """Where the value ends that begins here."""
    with suppress(ValueError, RecursionError):
        return _decoder.raw_decode(text, place)[1]
    return len(text)


def _is_written(text: str, value: Json) -> bool:
    with suppress(ValueError, RecursionError):
        return bool(json.loads(text) == value)
    return False


def fits(arguments: Json, tool: ToolDefinition) -> bool:
    """Whether nothing is missing, unknown or of another type. What else a schema says is for the gate to judge."""
    schema, properties = tool.parameters or {}, list_properties(tool)
    is_open = bool(schema.get("additionalProperties")) or "patternProperties" in schema
    required = schema.get("required")
    if not is_open and not arguments.keys() <= properties.keys():
        return False
    if isinstance(required, list) and not {*map(str, required)} <= arguments.keys():
        return False
    return all(_is_type(value, properties.get(key)) for key, value in arguments.items())


def _is_type(value: object, schema: object) -> bool:
    kinds = list_kinds(schema)
    return not kinds or any(
        (isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)))
        or (kind == "integer" and isinstance(value, float) and value.is_integer())
        for kind in kinds
    )


_MOST_PLACES: Final = 20
_decoder: Final = json.JSONDecoder()
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
    "null": (type(None),),
}  # fmt: skip
