"""The inputs of an agent: held against its definition, completed by its defaults, and put into words."""

from collections.abc import Mapping

from mainspring.core.items import Json, to_json
from mainspring.definitions import parameters
from mainspring.features.agents.agent_definition import SLOT, AgentDefinition


def complete_inputs(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """The inputs with every default. Raises `InvalidInputs` (422). An agent that declares no inputs takes any."""
    if not definition.inputs:
        return dict(given)
    return parameters.complete_inputs(definition.inputs, given, f"agent `{definition.name}`")


def parse_inputs(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """Inputs from where all values are texts: one for an input of another type is read as JSON, if it is that."""
    inputs: Json = {}
    for name, value in given.items():
        match value:
            case {"type": "input_text", "text": str(text)}:
                value = text
            case _:
                pass
        declared = definition.inputs.get(name)
        is_text = declared is None or declared.type in ("string", "any") or not isinstance(value, str)
        inputs[name] = value if is_text else parameters.parse_input(str(value))
    return inputs


def render_message(definition: AgentDefinition, inputs: Json) -> str:
    """What the agent is told by its user: its own template filled in, or else the inputs as JSON."""
    template = definition.prompts.user
    if not template:
        return to_json(inputs)
    return SLOT.sub(lambda slot: value if isinstance(value := inputs.get(slot[1], ""), str) else to_json(value), template)


def build_input_schema(definition: AgentDefinition) -> Json:
    """The inputs as JSON Schema, for those who call the agent as a tool. One that declares none is given a task in words."""
    if not definition.inputs:
        task = {"type": "string", "description": "What to do, with everything that is needed to do it."}
        return {"type": "object", "properties": {"task": task}, "required": ["task"], "additionalProperties": False}
    return parameters.build_inputs_schema(definition.inputs)
