"""The route table of the server, and what surrounds every request: ids, errors, health."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from logging import getLogger

from anyio import create_task_group
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.app.engine import Engine
from mainspring.app.openapi import Health, Model, Models, document
from mainspring.core.errors import MainspringError
from mainspring.core.ids import random_id
from mainspring.features.agents.agent_runtime import PREFIX
from mainspring.features.agents.routes import AgentRoutes
from mainspring.features.approvals.routes import ApprovalRoutes
from mainspring.features.budgets.routes import BudgetRoutes
from mainspring.features.containers.routes import ContainerRoutes
from mainspring.features.conversations.routes import Conversations
from mainspring.features.memory.routes import MemoryRoutes
from mainspring.features.responses.compact import Compact
from mainspring.features.responses.input_tokens import Tokens
from mainspring.features.responses.routes import Responses
from mainspring.features.responses.websocket import Sockets
from mainspring.features.traces.metrics_route import MetricsRoute
from mainspring.features.traces.routes import Traces
from mainspring.features.workflows.routes import WorkflowRoutes
from mainspring.http.auth import Guard, Keys
from mainspring.http.faults import Fault, fault_response, json_response
from mainspring.http.wire import Dialect
from mainspring_tasks.decision_settings import DecisionSettings
from mainspring_tasks.routes import ChatRoutes

log = getLogger(__name__)

Handler = Callable[[Request], Awaitable[HttpResponse]]


def server(
    engine: Engine,
    dialect: Dialect | None = None,
    *,
    keys: Keys | None = None,
    is_local: bool = True,
    decisions: DecisionSettings | None = None,
) -> Starlette:
    """The application: an engine behind its routes. The engine runs as long as the application does.

    `is_local` says that only this machine can reach it; then, and while there are no keys, none is asked for.
    """
    responses = Responses(engine, dialect or Dialect())
    conversations = Conversations(engine)
    containers = ContainerRoutes(engine)
    agents = AgentRoutes(engine)
    approvals = ApprovalRoutes(engine, dialect or Dialect())
    budgets = BudgetRoutes(engine)
    chat = ChatRoutes(engine, decisions or DecisionSettings())
    sockets = Sockets(engine, dialect or Dialect())
    traces = Traces(engine)
    workflows = WorkflowRoutes(engine)
    memory = MemoryRoutes(engine)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine:
            resumed = await engine.resume_all()
            if resumed:
                log.info("took up %d unfinished runs", len(resumed))
            async with create_task_group() as tasks:
                tasks.start_soon(engine.watch_over)
                tasks.start_soon(chat.own)
                yield
                tasks.cancel_scope.cancel()

    async def models(request: Request) -> HttpResponse:
        found = await engine.core.provider.models()
        listed = [Model(model.id, model.created, model.owned_by) for model in found]
        named = [Model(f"{PREFIX}{name}", 0, "mainspring") for name in engine.agents.registry.agents]
        return json_response(Models([*listed, *named]))

    async def describe(request: Request) -> HttpResponse:
        """This document."""
        return json_response(document(app.routes))

    async def health(request: Request) -> HttpResponse:
        sandbox = await engine.builtins.health()
        return json_response(Health("ok" if sandbox is None or sandbox.is_ok else "degraded", sandbox))

    async def ready(request: Request) -> HttpResponse:
        await engine.store.list(limit=1)
        return json_response(Health("ready"))

    app = Starlette(
        routes=[
            Route("/v1/responses", responses.create, methods=["POST"]),
            Route("/v1/responses", responses.list, methods=["GET"]),
            WebSocketRoute("/v1/responses", sockets.serve),
            Route("/v1/responses/compact", Compact(engine).create, methods=["POST"]),
            Route("/v1/responses/input_tokens", Tokens(engine).count, methods=["POST"]),
            Route("/v1/responses/{response_id}", responses.retrieve, methods=["GET"]),
            Route("/v1/responses/{response_id}", responses.delete, methods=["DELETE"]),
            Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
            Route("/v1/responses/{response_id}/input_items", responses.input_items, methods=["GET"]),
            Route("/v1/conversations", conversations.create, methods=["POST"]),
            Route("/v1/conversations/{conversation_id}", conversations.retrieve, methods=["GET"]),
            Route("/v1/conversations/{conversation_id}", conversations.update, methods=["POST"]),
            Route("/v1/conversations/{conversation_id}", conversations.delete, methods=["DELETE"]),
            Route("/v1/conversations/{conversation_id}/items", conversations.list_items, methods=["GET"]),
            Route("/v1/conversations/{conversation_id}/items", conversations.add_items, methods=["POST"]),
            Route("/v1/conversations/{conversation_id}/items/{item_id}", conversations.retrieve_item, methods=["GET"]),
            Route("/v1/conversations/{conversation_id}/items/{item_id}", conversations.delete_item, methods=["DELETE"]),
            Route("/v1/agents", agents.list, methods=["GET"]),
            Route("/v1/agents/{name}", agents.retrieve, methods=["GET"]),
            Route("/v1/agents/{name}/invoke", agents.invoke, methods=["POST"]),
            Route("/v1/agents/{name}/invoke-iterative", agents.invoke_iterative, methods=["POST"]),
            Route("/v1/agents/{name}/invoke-iterative/stream", agents.stream_iterative, methods=["POST"]),
            Route("/v1/approvals", approvals.list, methods=["GET"]),
            Route("/v1/approvals/{approval_id}", approvals.retrieve, methods=["GET"]),
            Route("/v1/approvals/{approval_id}", approvals.answer, methods=["POST"]),
            Route("/v1/chat", chat.chat, methods=["POST"]),
            Route("/v1/decisions", chat.decide, methods=["POST"]),
            Route("/v1/budgets", budgets.list, methods=["GET"]),
            Route("/v1/budgets/{budget_id}", budgets.retrieve, methods=["GET"]),
            Route("/v1/traces", traces.list, methods=["GET"]),
            Route("/v1/traces/{run_id}", traces.retrieve, methods=["GET"]),
            Route("/v1/memory/search", memory.search, methods=["GET"]),
            Route("/v1/memory/observations", memory.forget, methods=["DELETE"]),
            Route("/v1/memory/observations/{observation_id}", memory.retrieve, methods=["GET"]),
            Route("/v1/containers", containers.create, methods=["POST"]),
            Route("/v1/containers", containers.list, methods=["GET"]),
            Route("/v1/containers/{container_id}", containers.retrieve, methods=["GET"]),
            Route("/v1/containers/{container_id}", containers.delete, methods=["DELETE"]),
            Route("/v1/containers/{container_id}/files", containers.add_file, methods=["POST"]),
            Route("/v1/containers/{container_id}/files", containers.list_files, methods=["GET"]),
            Route("/v1/containers/{container_id}/files/{file_id}", containers.retrieve_file, methods=["GET"]),
            Route("/v1/containers/{container_id}/files/{file_id}", containers.delete_file, methods=["DELETE"]),
            Route("/v1/containers/{container_id}/files/{file_id}/content", containers.content, methods=["GET"]),
            Route("/v1/workflows", workflows.list, methods=["GET"]),
            Route("/v1/workflows/{name}", workflows.retrieve, methods=["GET"]),
            Route("/v1/workflows/{name}/runs", workflows.start, methods=["POST"]),
            Route("/v1/workflows/{name}/runs", workflows.runs, methods=["GET"]),
            Route("/v1/workflows/{name}/runs/{run_id}", workflows.retrieve_run, methods=["GET"]),
            Route("/v1/workflows/{name}/runs/{run_id}/cancel", workflows.cancel, methods=["POST"]),
            Route("/v1/workflows/{name}/runs/{run_id}/events", workflows.events, methods=["GET"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/openapi.json", describe, methods=["GET"]),
            Route("/metrics", MetricsRoute(engine).show, methods=["GET"], include_in_schema=False),
            Route("/health", health, methods=["GET"]),
            Route("/healthz", health, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
        ],
        exception_handlers={
            MainspringError: _engine_fault,
            Fault: _engine_fault,
            HTTPException: _http_fault,
            Exception: _our_fault,
        },
        lifespan=lifespan,
    )
    # A path with a slash too many is another path; a redirect would be an answer that no client expects.
    app.router.redirect_slashes = False
    app.add_middleware(Guard, keys=keys or Keys(engine.store), is_local=is_local)
    app.add_middleware(RequestIds)
    return app


_SENSIBLE = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Answers every request with an `x-request-id`: the client's own if it sent a sensible one, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _SENSIBLE.fullmatch(given) else random_id("req").encode()

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
            await send(message)

        await self._app(scope, receive, labelled)


async def _engine_fault(request: Request, error: Exception) -> HttpResponse:
    assert isinstance(error, Fault | MainspringError)
    return fault_response(error)


async def _http_fault(request: Request, error: Exception) -> HttpResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        message = f"{request.method} is not possible at {request.url.path}; use {allowed}"
        response = fault_response(Fault(405, "method_not_allowed", message))
        response.headers["allow"] = allowed
        return response
    return fault_response(Fault(error.status_code, "not_found", f"there is nothing at {request.url.path}"))


def _methods(request: Request) -> set[str]:
    """What can be done at the path of this request; one path may have several routes, and the first that fits names it."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in fitting if route.path == fitting[0].path for method in route.methods or ()}


async def _our_fault(request: Request, error: Exception) -> HttpResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return fault_response(Fault(500, "server_error", "the server failed; its log says why"))
