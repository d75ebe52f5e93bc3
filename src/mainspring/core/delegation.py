"""How a call of another agent is recognised, and the id of the run that it starts."""

from hashlib import sha256
from typing import Final

TOOL_PREFIX: Final = "agent_"
"""Begins the names of the tools that are agents."""


def is_delegation(tool: str) -> bool:
    """Whether a call of this tool is work for another agent."""
    return tool.startswith(TOOL_PREFIX)


def child_id(run_id: str, call_id: str) -> str:
    """The id of the run that a call of a run starts."""
    return f"resp_{sha256(f'{run_id} delegates {call_id}'.encode()).hexdigest()[:24]}"
