"""What is said about a tool: its description, schema, status and origin, by its code or by the operator."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from mainspring.core.items import Effect, Json
from mainspring.tools.contract import Tool

Status = Literal["active", "deprecated", "blocked"]

_STRICTER = ("active", "deprecated", "blocked")


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said about a tool. A field left out says nothing and leaves the word to others.

    `reason` says why a tool is deprecated or blocked. `source`, `version`, `owner` and `license` say where it comes from.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)", description="up to 64 letters, digits, `_` and `-`")]
    description: str | None = None
    schema: Json | None = None
    status: Status = "active"
    reason: str | None = None
    source: str | None = None
    version: str | None = None
    owner: str | None = None
    license: str | None = None
    tags: tuple[str, ...] | None = None
    effects: tuple[Effect, ...] | None = None
    repeatable: bool | None = None
    timeout: float | None = None
    result_limit: int | None = None


def entry_of(tool: Tool) -> Entry:
    """What the code says of itself."""
    return Entry(
        name=tool.name,
        description=tool.description,
        schema=getattr(tool, "parameters_schema", None),
        source=getattr(tool, "source", type(tool).__module__),
        effects=tuple(getattr(tool, "effects", ())),
        repeatable=getattr(tool, "repeatable", False),
        timeout=getattr(tool, "timeout", None),
        result_limit=getattr(tool, "result_limit", None),
    )


def merged(upper: Entry | None, lower: Entry | None) -> Entry:
    """What `upper` says, and where it says nothing, `lower`. Of two statuses the stricter holds, whoever says it."""
    if upper is None or lower is None:
        (only,) = [entry for entry in (upper, lower) if entry is not None]
        return only
    said = {field.name: value for field in fields(Entry) if (value := getattr(upper, field.name)) is not None}
    return replace(lower, **said | {"status": max(upper.status, lower.status, key=_STRICTER.index)})


def described(entry: Entry) -> Json:
    """The tool in OpenAI's function form; without a schema it takes no arguments, as far as anyone knows."""
    description = entry.description or ""
    if entry.status == "deprecated":
        description = f"Deprecated{f': {entry.reason}' if entry.reason else ''}. {description}".rstrip()
    return {"name": entry.name, "description": description, "parameters": entry.schema or {"type": "object", "properties": {}}}


def generate_tool_description(tool: Tool, entry: Entry | None = None) -> Json:
    """`name`, `description` and `parameters` of a tool: the entry's where it says something, else the tool's own."""
    return described(merged(entry, entry_of(tool)))
