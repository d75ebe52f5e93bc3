"""The server describes itself, and the description is true."""

from inspect import getdoc
from pathlib import Path

import aiohttp
from inline_snapshot import snapshot
from starlette.routing import Route, WebSocketRoute
from tests.server.linter import Json
from tests.server.process import serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.http.endpoints import WEBSOCKET, ScopeTable
from mainspring.providers.scripted import Scripted
from mainspring_tasks.decision_settings import DecisionSettings
from mainspring_tasks.part import build


async def test_the_document_lists_every_route_and_its_references_resolve(tmp_path: Path) -> None:
    with serving(tmp_path, [{"when": "x", "say": "y"}]) as served:
        async with (
            aiohttp.ClientSession() as session,
            session.get(served.url.removesuffix("/v1") + "/openapi.json") as answer,
        ):
            told = await answer.json()
    assert told["openapi"] == "3.1.0"
    assert set(told["paths"]["/v1/responses"]) == {"get", "post"}
    assert set(told["paths"]["/v1/responses/{response_id}"]) == {"get", "delete"}
    assert {"/v1/conversations", "/v1/models", "/health", "/healthz", "/v1/responses/compact"} <= set(told["paths"])
    names = _references(told)
    assert "CreateResponse" in names
    assert names <= set(told["components"]["schemas"])
    operations = [(path, operation) for path, methods in told["paths"].items() for operation in methods.values()]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(ids) == len(set(ids))
    for path, operation in operations:
        errors = set(operation["responses"]) - {"200"}
        assert errors >= ({"401", "403", "500"} if path.startswith("/v1/") and path != "/v1/session" else {"500"})
        assert ("404" in errors) or "{" not in path
        assert {"400", "413", "415"} <= errors or "requestBody" not in operation
    plain = {path for path, operation in operations if "$ref" not in _answer(operation)}
    assert plain - {"/v1/containers/{container_id}/files/{file_id}/content", "/v1/files/{file_id}/content"} == {
        "/openapi.json",
        "/v1/conversations/{conversation_id}/items/{item_id}",
    }
    assert {"id", "output", "usage", "error"} <= set(told["components"]["schemas"]["Response"]["required"])


def test_every_route_needs_a_scope_and_has_a_summary() -> None:
    app = server(Engine(Scripted(), parts=[build(DecisionSettings())]))
    table = next(each.kwargs["scopes"] for each in app.user_middleware if "scopes" in each.kwargs)
    assert isinstance(table, ScopeTable)
    routes = [route for route in app.routes if isinstance(route, Route | WebSocketRoute)]
    assert len(routes) == len(app.routes)
    assert [route.path for route in routes if not getdoc(route.endpoint)] == []
    scopes: dict[str, set[str]] = {}
    for route in routes:
        for method in (route.methods or ()) if isinstance(route, Route) else (WEBSOCKET,):
            scopes.setdefault(table.find(method, route.path).scope, set()).add("/".join(route.path.split("/")[:3]))
    assert scopes == snapshot(
        {
            "responses": {
                "/v1/chat",
                "/v1/containers",
                "/v1/embeddings",
                "/v1/files",
                "/v1/mcp_servers",
                "/v1/messages",
                "/v1/prompts",
                "/v1/responses",
                "/v1/runs",
                "/v1/tools",
                "/v1/uploads",
                "/v1/vector_stores",
            },
            "conversations": {"/v1/conversations"},
            "agents:invoke": {"/mcp", "/v1/agents"},
            "approvals": {"/v1/approvals"},
            "decisions": {"/v1/chat", "/v1/decisions"},
            "budgets": {"/v1/budgets", "/v1/usage"},
            "traces": {"/v1/traces"},
            "memory": {"/v1/memory"},
            "workflows:run": {"/v1/workflows"},
            "triggers": {"/v1/schedules", "/v1/webhook_endpoints", "/v1/webhooks"},
            "models": {"/v1/models"},
            "metrics": {"/metrics"},
            "public": {"/docs", "/docs/files", "/health", "/healthz", "/readyz", "/v1/session", "/v1/webhooks"},
            "admin": {
                "/openapi.json",
                "/v1/audit",
                "/v1/budgets",
                "/v1/keys",
                "/v1/models",
                "/v1/policy",
                "/v1/settings",
                "/v1/system",
                "/v1/workers",
            },
        }
    )


def _answer(operation: Json) -> Json:
    content = operation["responses"]["200"]["content"]
    schema: Json = next(iter(content.values()))["schema"]
    return schema


def _references(node: object) -> set[str]:
    if isinstance(node, dict):
        found = {str(node["$ref"]).rpartition("/")[2]} if "$ref" in node else set()
        return found.union(*[_references(value) for value in node.values()])
    return set[str]().union(*[_references(value) for value in node]) if isinstance(node, list) else set()
