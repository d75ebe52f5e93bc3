"""Agents on disk, as their authors write them, and an engine that has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mainspring import Engine, tool
from mainspring.features.agents.agent_definition import AgentDefinition, parse_definition
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import Scripted

Json = dict[str, Any]

BASE: Json = {"version": "1.0.0", "role": "implementer", "autonomy_level": "full"}


def written(folder: Path, name: str, **fields: object) -> Path:
    """A definition as a file of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_bytes(msgspec.json.encode({"name": name, **BASE, **fields}))
    return file


def defined(name: str = "worker-bee", **fields: object) -> AgentDefinition:
    """A definition, read as from a file."""
    return parse_definition(msgspec.json.encode({"name": name, **BASE, **fields}).decode(), Path("agent.json"))


@tool(effects=("read",))
def look(at: str) -> str:
    """Looks at something."""
    return f"nothing at {at}"


@tool(effects=("write",))
def write(text: str) -> str:
    """Writes something."""
    return f"wrote {text}"


@tool(effects=("read",))
def fail() -> str:
    """Never works."""
    raise RuntimeError("broken")


def engine_of(
    folder: Path, *turns: Turn | Call, tools: list[Callable[..., object]] | None = None, **options: Any
) -> tuple[Engine, Scripted]:
    script = Scripted(*turns, chunk=0)
    return Engine(script, tools=[look, write, fail] if tools is None else tools, agents=[folder], **options), script
