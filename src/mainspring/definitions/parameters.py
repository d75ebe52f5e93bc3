"""Typed inputs and outputs of a definition: declared in its file, held against what is given, and completed by their defaults."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mainspring.core.errors import InvalidInputs
from mainspring.core.items import Json
from mainspring.core.json_values import parse_json
from mainspring.definitions.parsed_file import hint

InputType = Literal["string", "integer", "number", "boolean", "array", "object", "any"]

MOST_TOLD: Final = 20
"""How many names are told that nobody has declared."""

_TYPES: Final[dict[InputType, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}


class InputParameter(Struct, frozen=True):
    """An input or an output. None in `enum` is any value of the type."""

    type: InputType = "string"
    description: str = ""
    required: bool = False
    default: Any | UnsetType = UNSET
    enum: tuple[Any, ...] | None = None


def complete_inputs(parameters: Mapping[str, InputParameter], given: Mapping[str, object], owner: str) -> Json:
    """The inputs with every default. Raises `InvalidInputs` (422) naming all that is wrong with them."""
    unknown = [name[:80] for name in given if name not in parameters][:MOST_TOLD]
    problems = [f"there is no input `{name}`; {hint(name, tuple(parameters))}" for name in unknown]
    for name, value in given.items():
        if name in parameters and (flaw := find_flaw(parameters[name], value)) is not None:
            problems.append(f"`{name}` {flaw}")
    inputs: Json = {}
    for name, parameter in parameters.items():
        if name in given:
            inputs[name] = given[name]
        elif parameter.required:
            about = f": {parameter.description}" if parameter.description else ""
            problems.append(f"`{name}` ({parameter.type}) is missing{about}")
        elif parameter.default is not UNSET:
            inputs[name] = parameter.default
    if problems:
        raise InvalidInputs(f"the inputs of {owner} are not right: {'; '.join(problems)}", param="inputs")
    return inputs


def find_flaw(parameter: InputParameter, value: object) -> str | None:
    """Why a value cannot be that input; None if it can."""
    if not is_of_type(value, parameter.type):
        return f"must be of type {parameter.type}, not {_name_type(value)}"
    if parameter.enum is not None and not any(_is_same(value, each) for each in parameter.enum):
        known = ", ".join([msgspec.json.encode(each).decode() for each in parameter.enum])
        return f"must be one of {known}, not {msgspec.json.encode(value).decode()[:80]}"
    return None


def is_of_type(value: object, kind: InputType) -> bool:
    """Whether a JSON value is of this type. Truth values are no numbers."""
    return kind == "any" or (isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)))


def parse_input(text: str) -> object:
    """An input from where all values are texts: read as JSON, if it is that."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def build_inputs_schema(parameters: Mapping[str, InputParameter]) -> Json:
    required = [name for name, parameter in parameters.items() if parameter.required]
    properties = {name: _build_property(parameter) for name, parameter in parameters.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _build_property(parameter: InputParameter) -> Json:
    told: Json = {} if parameter.type == "any" else {"type": parameter.type}
    if parameter.description:
        told["description"] = parameter.description
    if parameter.enum is not None:
        told["enum"] = list(parameter.enum)
    if parameter.default is not UNSET:
        told["default"] = parameter.default
    return told


def _is_same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _name_type(value: object) -> str:
    return next((kind for kind in _TYPES if is_of_type(value, kind)), "null")
