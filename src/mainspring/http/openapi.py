"""The OpenAPI document of an endpoint table."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import get_args

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from mainspring.core.items import ITEMS, PARTS, Item, Json, Part, Role, Tool
from mainspring.http.endpoints import IDEMPOTENCY_KEY, PUBLIC, WEBSOCKET, Endpoint


class ErrorDetails(Struct, frozen=True):
    """What is wrong, and what to do. `param` names the field at fault, if it is one."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(Struct, frozen=True):
    error: ErrorDetails


_FILE: Json = {"type": "string", "format": "binary"}
_EVENT: Json = {
    "description": "Each event; `data` is JSON, but for the last, which is `[DONE]`.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_IDEMPOTENCY: Json = {"name": IDEMPOTENCY_KEY, "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 255}}
_REFERENCE = "#/components/schemas/{name}"


def build_document(endpoints: Sequence[Endpoint], version: str) -> Json:
    """The document for these endpoints, but for those that are not in the schema."""
    told = [endpoint for endpoint in endpoints if endpoint.in_schema and endpoint.method != WEBSOCKET]
    paths: dict[str, Json] = {}
    for endpoint in told:
        paths.setdefault(endpoint.path.replace(":path}", "}"), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainspring", "version": version},
        "paths": paths,
        "components": {"schemas": _schemas(told), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _schemas(endpoints: Sequence[Endpoint]) -> dict[str, Json]:
    answers: set[type[Struct]] = {ErrorReply, ErrorDetails}
    bodies: set[type[Struct]] = set()
    for endpoint in endpoints:
        answers |= {kind for kind in (endpoint.answer, endpoint.accepted, *endpoint.schemas) if kind is not None}
        bodies |= {endpoint.body} if endpoint.body is not None else set()
    kinds = sorted([*answers, *bodies, *ITEMS.values(), *PARTS.values()], key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template=_REFERENCE)
    for kind in (*ITEMS.values(), *PARTS.values()):
        properties, required = components[kind.__name__]["properties"], components[kind.__name__]["required"]
        for name in properties.keys() - {*required}:  # null is as good as nothing
            properties[name] = _allow_null(properties[name])
    for kind in answers:  # whatever has a value is written, also where a reader could do without
        components[kind.__name__]["required"] = [field.name for field in fields(kind) if field.default is not UNSET]
    return components | {"Item": _ITEM, "Part": _PART, "Tool": _UNKNOWN}


def _allow_null(schema: Json) -> Json:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    inner = {key: value for key, value in schema.items() if key != "default"}
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"anyOf": [inner, {"type": "null"}], **default}


def _operation(endpoint: Endpoint) -> Json:
    answer = endpoint.answer
    content: Json = {"application/json": {"schema": {"type": "object"} if answer is None else _reference(answer)}}
    if endpoint.is_file:
        content = {"application/octet-stream": {"schema": _FILE}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    responses: Json = {"200": {"description": "The answer.", "content": content}}
    if endpoint.accepted is not None:
        waits = {"application/json": {"schema": _reference(endpoint.accepted)}}
        responses["202"] = {"description": "Something else has to happen first.", "content": waits}
    for status in sorted(_errors(endpoint)):
        failure = {"application/json": {"schema": _reference(ErrorReply)}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": failure}
    path = endpoint.path.replace(":path}", "}")
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    operation: Json = {
        "operationId": f"{endpoint.method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": endpoint.summary,
        "description": _describe_scopes(endpoint),
        "responses": responses,
        "parameters": [
            *[{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names],
            *[{"name": each.name, "in": "query", "schema": each.schema} for each in endpoint.query],
            *([_IDEMPOTENCY] if endpoint.takes_key else []),
        ],
    }
    if endpoint.form and endpoint.body is not None:
        form = {"allOf": [_reference(endpoint.body)], **_require_file(endpoint.form)}
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    elif endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _reference(endpoint.body)}}}
        if endpoint.takes_file:
            operation["requestBody"]["content"]["multipart/form-data"] = {"schema": _require_file("file")}
    return operation


def _require_file(name: str) -> Json:
    return {"type": "object", "properties": {name: _FILE}, "required": [name]}


def _describe_scopes(endpoint: Endpoint) -> str:
    if endpoint.scope == PUBLIC:
        return "Needs no key."
    return f"Needs a key with the scope {' or '.join([f'`{scope}`' for scope in (endpoint.scope, *endpoint.also)])}."


def _errors(endpoint: Endpoint) -> set[int]:
    found = {500, *endpoint.errors}
    if endpoint.scope != PUBLIC:
        found |= {401, 403}
    if "{" in endpoint.path or "after" in [each.name for each in endpoint.query]:
        found.add(404)
    if endpoint.query or endpoint.takes_key:
        found.add(400)
    if endpoint.body is not None:
        found |= {400, 413, 415}
    return found


def _reference(kind: type) -> Json:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def _schema(kind: type) -> Json:
    if kind in (Item, Part, Tool):
        return _reference(kind)
    if kind is object:
        return {"description": "Anything."}
    raise NotImplementedError(f"no schema for {kind}")


# Items, parts and tools are open: whatever has a `type` is one. A message may do without, and its content may be a plain string.
_UNKNOWN: Json = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
_CONTENT: Json = {"anyOf": [{"type": "string"}, {"type": "array", "items": _reference(Part)}, {"type": "null"}]}
_MESSAGE: Json = {
    "type": "object",
    "properties": {"role": {"enum": list(get_args(Role))}, "content": _CONTENT},
    "required": ["role"],
}
_ITEM: Json = {"anyOf": [*map(_reference, ITEMS.values()), _MESSAGE, _UNKNOWN]}
_PART: Json = {"anyOf": [*map(_reference, PARTS.values()), _UNKNOWN]}
