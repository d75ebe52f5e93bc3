"""The ASGI application over an endpoint table, and what surrounds every request: ids, keys, errors."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from logging import getLogger

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.errors import MainspringError
from mainspring.core.ids import random_id
from mainspring.http.auth import AuthMiddleware, Keys
from mainspring.http.endpoints import Endpoint, ScopeTable
from mainspring.http.faults import Fault, fault_response, json_response
from mainspring.http.openapi import build_document

log = getLogger(__name__)


def build_app(
    endpoints: Sequence[Endpoint],
    *,
    keys: Keys,
    is_local: bool,
    version: str,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
) -> Starlette:
    """The application that serves these endpoints, and `/openapi.json`, which describes them.

    `is_local` says that only this machine can reach it; then, and while there are no keys, none is asked for. `version` is that
    of the API.
    """

    async def describe(request: Request) -> HttpResponse:
        """Returns this document."""
        return json_response(build_document(table, version))

    table = (*endpoints, Endpoint("GET", "/openapi.json", describe, "admin"))
    app = Starlette(
        routes=[endpoint.make_route() for endpoint in table],
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
    app.add_middleware(AuthMiddleware, keys=keys, scopes=ScopeTable(table), is_local=is_local)
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

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
            await send(message)

        await self._app(scope, receive, send_with_id)


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
