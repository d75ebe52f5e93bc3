"""The OpenAPI document of the server, made from its route table and the structs that its handlers read and write."""

import inspect
from collections.abc import Sequence

import msgspec
from starlette.routing import BaseRoute, Route

import mainspring
from mainspring.items import Item, Json, Part, Tool
from mainspring.loop.response import Response
from mainspring.server.requests import CreateResponse
from mainspring.server.responses import Page

_BODIES: dict[tuple[str, str], type] = {("/v1/responses", "POST"): CreateResponse}
_ANSWERS: dict[tuple[str, str], type] = {
    ("/v1/responses", "POST"): Response,
    ("/v1/responses", "GET"): Page,
    ("/v1/responses/{response_id}", "GET"): Response,
    ("/v1/responses/{response_id}/cancel", "POST"): Response,
    ("/v1/responses/{response_id}/input_items", "GET"): Page,
}
_ERROR: Json = {
    "description": "What is wrong, and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}


def document(routes: Sequence[BaseRoute]) -> Json:
    """The document for these routes."""
    kinds = sorted({*_BODIES.values(), *_ANSWERS.values()}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template="#/components/schemas/{name}")
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Json] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(route.path, {})[method.lower()] = _operation(route, method, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainspring", "version": mainspring.__version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, method: str, known: dict[type, Json]) -> Json:
    place = route.path, method
    answer: Json = {"description": "The answer."}
    content: Json = {"application/json": {"schema": known.get(_ANSWERS.get(place, object), {"type": "object"})}}
    if place in (("/v1/responses", "POST"), ("/v1/responses/{response_id}", "GET")):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    operation: Json = {
        "operationId": f"{method.lower()}{route.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": (inspect.getdoc(route.endpoint) or route.name).split("\n")[0],
        "responses": {"200": {**answer, "content": content}, "default": _ERROR},
    }
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if place in _BODIES:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[_BODIES[place]]}}}
    return operation


def _schema(kind: type) -> Json:
    """Items, parts and tools are open: whatever has a `type` is one."""
    if kind in (Item, Part, Tool):
        return {"type": "object"}
    if kind is object:
        return {"description": "Anything."}
    raise NotImplementedError(f"no schema for {kind}")
