"""Resources and prompts of an MCP server, as tools that a model may call: the operator says for which servers."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from mainspring.core.items import Json
from mainspring.tools.mcp.exchange import RemoteTool, ToolAnswer
from mainspring.tools.mcp.json_rpc import BadAnswer
from mainspring.tools.mcp.server_specs import ServerSpec

_CURSOR: Json = {"cursor": {"type": "string", "description": "Where to go on, as the last page said."}}


class Reading(Struct, frozen=True):
    """A request of the protocol that only reads: `key` is the parameter that names what it is about, if it names something."""

    method: str
    name: str
    description: str
    properties: Json
    key: str = ""
    capability: str = "resources"


READINGS = (
    Reading("resources/list", "list_resources", "Lists the resources of the server, page by page.", _CURSOR),
    Reading(
        "resources/templates/list",
        "list_resource_templates",
        "Lists how the URIs of the server's resources are made, page by page.",
        _CURSOR,
    ),
    Reading("resources/read", "read_resource", "Reads a resource of the server.", {"uri": {"type": "string"}}, "uri"),
    Reading("prompts/list", "list_prompts", "Lists the server's prompts, page by page.", _CURSOR, capability="prompts"),
    Reading(
        "prompts/get",
        "get_prompt",
        "Gets a prompt of the server, filled in with arguments.",
        {"name": {"type": "string"}, "arguments": {"type": "object", "additionalProperties": {"type": "string"}}},
        "name",
        "prompts",
    ),
)
METHODS = {reading.method: reading for reading in READINGS}


def list_reading_tools(spec: ServerSpec, capabilities: Json) -> Iterable[RemoteTool]:
    """The tools by which a model reads what the server has, as far as the operator wants that."""
    for reading in READINGS:
        is_wanted = spec.resources if reading.capability == "resources" else spec.prompts
        if is_wanted and reading.capability in capabilities:
            schema: Json = {"type": "object", "properties": reading.properties, "required": [reading.key] if reading.key else []}
            about = f"{reading.description} Server: {spec.label}."
            yield RemoteTool(reading.name, about, schema, {"readOnlyHint": True, "openWorldHint": False}, method=reading.method)


def render_reading(method: str, result: Json) -> ToolAnswer:
    """What a model reads of a result. Raises `BadAnswer`."""
    match method, result:
        case "resources/read", {"contents": [*contents]}:
            return ToolAnswer(tuple([{"type": "resource", "resource": each} for each in contents]))
        case "prompts/get", {"messages": [*messages]}:
            return ToolAnswer(tuple([block for message in messages for block in _render_message(message)]))
        case (("resources/read" | "prompts/get"), _):
            raise BadAnswer("there is nothing in it that could be read")
        case _:
            kept = {name: value for name, value in result.items() if name not in ("_meta", "resultType", "ttlMs", "cacheScope")}
            return ToolAnswer(({"type": "text", "text": msgspec.json.encode(kept).decode()},))


def _render_message(message: object) -> list[Json]:
    match message:
        case {"role": str(role), "content": {"type": "text", "text": str(text)}}:
            return [{"type": "text", "text": f"{role}: {text}"}]
        case {"content": dict(content)}:
            return [content]
        case _:
            raise BadAnswer("a message of the prompt is none")
