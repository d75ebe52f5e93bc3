"""What a call does to the world, by the declarations of its tool."""

from typing import Final, get_args

from mainspring.core.items import Effect, Json, ToolDefinition, parse_arguments

EVERYTHING: Final[frozenset[Effect]] = frozenset(get_args(Effect))


def read_effects(tool: ToolDefinition, arguments: Json) -> frozenset[Effect]:
    """What this call may do. A tool that declares nothing may do everything; so may an operation that it does not declare."""
    operation = read_operation(tool, arguments)
    if isinstance(operation, str) and operation in tool.operations:
        return frozenset(tool.operations[operation]) or EVERYTHING
    return frozenset(tool.effects) or EVERYTHING


def read_operation(tool: ToolDefinition, arguments: Json) -> str | None:
    """The argument `operation`, or its default; empty if the tool has no such parameter, None if it has but it says nothing."""
    properties = (tool.parameters or {}).get("properties")
    declared = properties.get("operation") if isinstance(properties, dict) else None
    if declared is None and not tool.operations and "operation" not in arguments:
        return ""
    default = declared.get("default") if isinstance(declared, dict) else None
    said = arguments.get("operation", default)
    return said if isinstance(said, str) else None


def is_harmless_again(tool: ToolDefinition, arguments: str) -> bool:
    """Whether a call is declared to be repeatable, or to read and nothing else (be it by the network)."""
    if tool.repeatable:
        return True
    try:
        effects = read_effects(tool, parse_arguments(arguments))
    except ValueError:
        return False
    return "read" in effects and effects <= {"read", "network"}
