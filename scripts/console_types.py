"""Writes console/src/api_types.ts: what the server's answers are, from its own OpenAPI document.

python -m scripts.console_types
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.app.settings import build_parts, find_settings_type
from mainspring.providers.scripted import Scripted

FILE = Path(__file__).resolve().parent.parent / "console" / "src" / "api_types.ts"
HEAD = "// What the server answers. Written by `python -m scripts.console_types` from its OpenAPI document; do not edit.\n"
# The answers that the pages read.
WANTED = (
    "Approval", "AuditRecord", "CallExplanation", "ChatMessages", "ChatReply", "DefinitionSource", "FileObject", "ListedChat",
    "ListedConversation", "Model", "ModelDetails",
    "RunDetails", "RunLine", "SessionState", "SettingList", "ShownDelivery", "ShownEndpoint", "ShownKey", "ShownRun",
    "ShownSchedule", "ShownServer", "ShownTool", "ShownWebhook", "ShownWorkflow", "Statement", "SystemState", "UsageReport",
    "Verification", "WorkerList",
)  # fmt: skip

Schema = dict[str, Any]


def read_document() -> Schema:
    """The OpenAPI document, as the server would send it."""
    app = server(Engine(Scripted(), parts=build_parts(find_settings_type()())))
    [route] = [route for route in app.routes if isinstance(route, Route) and route.path == "/openapi.json"]
    request = Request({"type": "http", "method": "GET", "path": "/openapi.json", "headers": [], "query_string": b""})
    document: Schema = json.loads(asyncio.run(route.endpoint(request)).body)
    return document


def read_schemas() -> dict[str, Schema]:
    schemas: dict[str, Schema] = read_document()["components"]["schemas"]
    return schemas


def write_types() -> str:
    """The file as it should be."""
    schemas, written, left = read_schemas(), dict[str, str](), list(WANTED)
    while left:
        name = left.pop()
        if name not in written:
            written[name] = _declare(_clean(name), schemas[name])
            left += [other for other in schemas if f"#/components/schemas/{other}" in _list_references(schemas[name])]
    return HEAD + "".join([f"\n{written[name]}" for name in sorted(written)])


def _list_references(schema: object) -> set[str]:
    match schema:
        case {"$ref": str(reference)}:
            return {reference}
        case dict():
            return {found for value in schema.values() for found in _list_references(value)}
        case list():
            return {found for value in schema for found in _list_references(value)}
        case _:
            return set()


def _clean(name: str) -> str:
    """Where two packages have a schema of one name, it comes with that of its module."""
    return name.replace(".", "_")


def _declare(name: str, schema: Schema) -> str:
    properties = schema.get("properties")
    if properties is None:
        return f"export type {name} = {_name_type(schema)};\n"
    required = set(schema.get("required", ()))
    lines = [f"  {field}{'' if field in required else '?'}: {_name_type(kind)};\n" for field, kind in properties.items()]
    return f"export interface {name} {{\n{''.join(lines)}}}\n"


def _name_type(schema: Schema) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return _clean(reference.rpartition("/")[2])
        case {"anyOf": list(kinds)} | {"oneOf": list(kinds)}:
            return " | ".join(dict.fromkeys(map(_name_type, kinds)))
        case {"enum": list(values)}:
            return " | ".join(map(json.dumps, values))
        case {"const": value}:
            return json.dumps(value)
        case {"type": "array"}:
            inner = _name_type(schema.get("items") or {})
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case {"type": "object", "additionalProperties": dict(kind)}:
            return f"Record<string, {_name_type(kind)}>"
        case {"type": "object"}:
            return "Record<string, any>"
        case {"type": "string" | "boolean" | "null" as kind}:
            return str(kind)
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": list(kinds)}:
            return " | ".join(dict.fromkeys([_name_type({**schema, "type": kind}) for kind in kinds]))
        case _:
            return "any"


if __name__ == "__main__":
    FILE.write_text(write_types())
