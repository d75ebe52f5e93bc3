"""The inputs of an agent: held to its definition, completed by its defaults, and put into words."""

from collections.abc import Mapping

import msgspec

from mainspring.core.errors import InvalidInputs
from mainspring.core.items import Json
from mainspring.definitions.parsed_file import hint
from mainspring.features.agents.agent_definition import SLOT, AgentDefinition, Kind, Parameter, fits


def checked(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """The inputs with every default. Raises `InvalidInputs` (422) naming all that is wrong with them.

    An agent that declares no inputs takes any."""
    if not definition.inputs:
        return dict(given)
    problems = [problem for name, value in given.items() if (problem := _problem(definition, name, value)) is not None]
    inputs: Json = {}
    for name, parameter in definition.inputs.items():
        if name in given:
            inputs[name] = given[name]
        elif parameter.required:
            problems.append(f"`{name}` is missing{': ' + parameter.description if parameter.description else ''}")
        elif parameter.default is not msgspec.UNSET:
            inputs[name] = parameter.default
    if problems:
        raise InvalidInputs(f"the inputs of agent `{definition.name}` are not right: {'; '.join(problems)}", param="inputs")
    return inputs


def understood(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """Inputs from where all values are texts: one for an input of another type is read as JSON, if it is that."""
    return {name: _read(definition.inputs.get(name), value) for name, value in given.items()}


def message(definition: AgentDefinition, inputs: Json) -> str:
    """What the agent is told by its user: its own template filled in, or else the inputs as JSON."""
    template = definition.prompts.user
    if not template:
        return _json(inputs)
    return SLOT.sub(lambda slot: _text(inputs.get(slot[1], "")), template)


def schema(definition: AgentDefinition) -> Json:
    """The inputs as JSON Schema, for those who call the agent as a tool. One that declares none is given a task in words."""
    if not definition.inputs:
        task = {"type": "string", "description": "What to do, with everything that is needed to do it."}
        return {"type": "object", "properties": {"task": task}, "required": ["task"], "additionalProperties": False}
    required = [name for name, parameter in definition.inputs.items() if parameter.required]
    properties = {name: _property(parameter) for name, parameter in definition.inputs.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _property(parameter: Parameter) -> Json:
    told: Json = {} if parameter.type == "any" else {"type": parameter.type}
    if parameter.description:
        told["description"] = parameter.description
    if parameter.enum is not None:
        told["enum"] = list(parameter.enum)
    if parameter.default is not msgspec.UNSET:
        told["default"] = parameter.default
    return told


def _problem(definition: AgentDefinition, name: str, value: object) -> str | None:
    parameter = definition.inputs.get(name)
    if parameter is None:
        return f"there is no input `{name[:80]}`; {hint(name, tuple(definition.inputs))}"
    if not fits(value, parameter.type):
        return f"`{name}` must be of type {parameter.type}, not {_kind(value)}"
    if parameter.enum is not None and not any(value == each and type(value) is type(each) for each in parameter.enum):
        return f"`{name}` must be one of {', '.join([_json(each) for each in parameter.enum])}, not {_json(value)[:80]}"
    return None


def _read(parameter: Parameter | None, value: object) -> object:
    match value:
        case {"type": "input_text", "text": str(text)}:
            value = text
        case _:
            pass
    if parameter is None or not isinstance(value, str) or parameter.type in ("string", "any"):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _kind(value: object) -> str:
    kinds: tuple[Kind, ...] = ("boolean", "integer", "number", "string", "array", "object")
    return next((kind for kind in kinds if fits(value, kind)), "null")


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
