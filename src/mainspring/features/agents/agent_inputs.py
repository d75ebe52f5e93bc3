"""The inputs of an agent: validated against its definition, completed by defaults, and rendered as a message."""

from collections.abc import Mapping

from mainspring.core.items import InputText, Json, Message, Part, to_json
from mainspring.definitions import parameters
from mainspring.features.agents.agent_definition import AgentDefinition
from mainspring.features.prompts.prompt_template import fill_parts, fill_text
from mainspring.features.prompts.prompts import parse_value


def complete_inputs(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """The inputs with every default. Raises `InvalidInputs` (422). An agent that declares no inputs takes any."""
    if not definition.inputs:
        return dict(given)
    return parameters.complete_inputs(definition.inputs, given, f"agent `{definition.name}`")


def parse_inputs(definition: AgentDefinition, given: Mapping[str, object]) -> Json:
    """Inputs that arrive as text: a value for an input of another type is parsed as JSON, if it is valid JSON."""
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
    """The agent's first user message: its template filled in, or else the inputs as JSON."""
    template = definition.prompts.user
    return fill_text(template, inputs) if template else to_json(inputs)


def make_message(definition: AgentDefinition, inputs: Json, id: str) -> Message:
    """That message. An image or a file, as requests have them, is shown where its name stands in the template."""
    if not definition.prompts.user:
        return Message("user", (InputText(to_json(inputs)),), id)
    shown = {name: part if isinstance(part := parse_value(value), Part) else value for name, value in inputs.items()}
    return Message("user", fill_parts(definition.prompts.user, shown), id)


def build_input_schema(definition: AgentDefinition) -> Json:
    """The inputs as JSON Schema, for callers of the agent as a tool. An agent without declared inputs takes a task in words."""
    if not definition.inputs:
        task = {"type": "string", "description": "What to do, with everything that is needed to do it."}
        return {"type": "object", "properties": {"task": task}, "required": ["task"], "additionalProperties": False}
    return parameters.build_inputs_schema(definition.inputs)
