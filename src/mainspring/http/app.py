"""The ASGI application over an endpoint table, and what surrounds every request: ids, keys, errors."""

import re
from asyncio import Semaphore
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from logging import getLogger
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.errors import MainspringError
from mainspring.core.ids import random_id
from mainspring.http.auth import AuthMiddleware, Keys, find_path, get_caller
from mainspring.http.endpoints import Endpoint, FoundEndpoint, Handler, ScopeTable
from mainspring.http.faults import Fault, fault_response, json_response
from mainspring.http.openapi import build_document
from mainspring.http.queries import Page

log = getLogger(__name__)

LISTS_AT_ONCE: Final = 2

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def build_app(
    endpoints: Sequence[Endpoint],
    *,
    keys: Keys,
    is_local: bool,
    version: str,
    lifespan: Lifespan,
    layers: Sequence[Middleware] = (),
) -> Starlette:
    """The application that serves these endpoints, and `/openapi.json`, which describes them.

    `is_local` says that only this machine can reach it; then, and while there are no keys, none is asked for. `version` is that
    of the API. `layers` surround everything else, the outermost first.
    """

    async def describe(request: Request) -> HttpResponse:
        """Returns this document."""
        return json_response(build_document(table, version))

    table = (*endpoints, Endpoint("GET", "/openapi.json", describe, "admin"))
    return Api(table, keys=keys, is_local=is_local, lifespan=lifespan, layers=layers)


class Api(Starlette):
    """An application whose HTTP requests find their endpoint in the table. Of the framework's stack they need nothing else, and
    its layers cost more than they do; sockets pass through its router."""

    def __init__(
        self, table: Sequence[Endpoint], *, keys: Keys, is_local: bool, lifespan: Lifespan, layers: Sequence[Middleware]
    ) -> None:
        self._table = ScopeTable(table)
        super().__init__(
            routes=[endpoint.make_route() for endpoint in table],
            middleware=[
                *layers,
                Middleware(RequestIds),
                Middleware(AuthMiddleware, keys=keys, scopes=self._table, is_local=is_local),
            ],
            lifespan=lifespan,
        )

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = RequestHandler(self._table, self.router)
        for layer in reversed(self.user_middleware):
            app = layer.cls(app, *layer.args, **layer.kwargs)
        return app


class RequestHandler:
    """Has the endpoint of a request answer it. Whatever that raises becomes an error as clients know it."""

    def __init__(self, table: ScopeTable, router: ASGIApp) -> None:
        self._table, self._router = table, router
        self._lists: WeakValueDictionary[str, Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        # A stream may last for hours, so the request is not kept for it.
        response = await self._answer(ApiRequest(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> HttpResponse:
        found = self._table.find(request.method, find_path(request.scope))
        try:
            return await self._find_answer(request, found)
        except (Fault, MainspringError) as error:
            return _refuse(error, request, found)
        except HTTPException as error:
            return _refuse(Fault(error.status_code, "not_found", self._tell_missing(request.url.path)), request, found)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return _refuse(Fault(500, "server_error", "the server failed; its log says why"), request, found)

    async def _find_answer(self, request: Request, found: FoundEndpoint) -> HttpResponse:
        if found.endpoint is not None:
            request.scope["path_params"] = found.params
            handler = cast("Handler", found.endpoint.handler)
            if found.endpoint.answer is not Page:
                return await handler(request)
            # A page may have megabytes: those of one key do not keep the others from the store and the loop.
            async with self._lists.setdefault(get_caller(request).holder, Semaphore(LISTS_AT_ONCE)):
                return await handler(request)
        if not found.allowed:
            raise Fault(404, "not_found", self._tell_missing(request.url.path))
        allowed, path = ", ".join(found.allowed), request.url.path
        meant = self._table.undouble(path)
        message = f"{request.method} is not possible at {path}; {f'did you mean {meant}?' if meant else f'use {allowed}'}"
        raise Fault(405, "method_not_allowed", message, headers={"allow": allowed})

    def _tell_missing(self, path: str) -> str:
        meant = self._table.suggest(path)
        return f"there is nothing at {path}; {f'did you mean {meant}?' if meant else '/docs lists what there is'}"


def _refuse(fault: Fault | MainspringError, request: Request, found: FoundEndpoint) -> HttpResponse:
    return fault_response(fault, found.choose_render(request.headers))


_SENSIBLE = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Answers every request with an `x-request-id`, and a `request-id` for clients that look there: the client's own if it sent a
    sensible one, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _SENSIBLE.fullmatch(given) else random_id("req").encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {
                    **message,
                    "headers": [*message["headers"], (b"x-request-id", request_id), (b"request-id", request_id)],
                }
            await send(message)

        await self._app(scope, receive, send_with_id)


class HeaderTable(Headers):
    """Headers by name: each request is asked for a dozen of them, and has few. Of several with one name, the first
    counts, as it does for the framework."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key.lower(), default)

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self._values


class ApiRequest(Request):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._headers = HeaderTable(scope["headers"])
