"""The endpoint table: one row per operation says where it is, who may call it, what goes in and what comes out.

Rows stand beside their handlers. The routes of the server, the scopes that its API keys need and its OpenAPI document are three
loops over the table; `scope` has no default, so no route exists without one.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import getdoc
from re import Pattern
from typing import Any, Final, Literal

from msgspec import Struct, field
from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route, WebSocketRoute, compile_path
from starlette.websockets import WebSocket

from mainspring.core.items import Json
from mainspring.http.faults import MESSAGES_HEADER, RenderFault, wrap_error, wrap_for_messages

KeyScope = Literal[
    "responses", "conversations", "models", "approvals", "budgets", "traces", "memory", "metrics", "agents:invoke",
    "workflows:run", "triggers", "decisions", "admin", "*",
]  # fmt: skip
"""What an API key can be for, apart from tools."""

Public = Literal["public"]
PUBLIC: Final[Public] = "public"
"""The scope of endpoints that need no key."""

WEBSOCKET: Final = "WEBSOCKET"
Method = Literal["GET", "POST", "DELETE", "WEBSOCKET"]

Handler = Callable[[Request], Awaitable[HttpResponse]]

IDEMPOTENCY_KEY: Final = "Idempotency-Key"

MODEL_ERRORS: Final = (429, 502, 503)
"""The statuses that a failing model backend becomes."""

COUNT: Final[Json] = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
FLAG: Final[Json] = {"type": "boolean"}


class Parameter(Struct, frozen=True):
    """A parameter of the query, with its JSON Schema."""

    name: str
    schema: Json = field(default_factory=lambda: {"type": "string"})


class Endpoint(Struct, frozen=True):
    """A row. `errors` are the statuses that follow from nothing else in it, `accepted` the answer (202) while the real one has to
    wait, `schemas` what the document describes besides body and answer. With `takes_key`, requests may have an idempotency key.
    An answer may also be an event stream, or a file. With a `form`, the body comes as one, with a file in the part of that name.
    A key that has one of the scopes in `also` will do as well. `render_fault`
    spells what is refused, whoever asks."""

    method: Method
    path: str
    handler: Handler | Callable[[WebSocket], Awaitable[None]]
    scope: KeyScope | Public
    answer: type[Struct] | None = None
    body: type[Struct] | None = None
    query: tuple[Parameter, ...] = ()
    takes_key: bool = False
    errors: tuple[int, ...] = ()
    accepted: type[Struct] | None = None
    schemas: tuple[type[Struct], ...] = ()
    streams: bool = False
    is_file: bool = False
    takes_file: bool = False
    form: str = ""
    in_schema: bool = True
    also: tuple[KeyScope, ...] = ()
    render_fault: RenderFault | None = None

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (getdoc(self.handler) or self.path).partition("\n")[0]

    def make_route(self) -> Route | WebSocketRoute:
        if self.method == WEBSOCKET:
            return WebSocketRoute(self.path, self.handler)
        return Route(self.path, self.handler, methods=[self.method])


def overlap_paths(first: str, second: str) -> bool:
    """Whether a path can fit both of these patterns. A `{name}` stands for one segment, a `{name:path}` for any that are left."""
    one, other = first.split("/"), second.split("/")
    for mine, theirs in zip(one, other, strict=False):
        if ":path}" in mine or ":path}" in theirs:
            return True
        if mine != theirs and "{" not in mine and "{" not in theirs:
            return False
    return len(one) == len(other)


class FoundEndpoint(Struct, frozen=True):
    """What a request is for. Without an endpoint, `allowed` are the methods that its path has, none if there is nothing at it."""

    scope: KeyScope | Public
    endpoint: Endpoint | None = None
    params: dict[str, Any] = {}
    allowed: tuple[str, ...] = ()

    def choose_render(self, headers: Mapping[str, str]) -> RenderFault:
        """How what is refused is spelled: as the endpoint says, else as the API has it that the client speaks."""
        own = None if self.endpoint is None else self.endpoint.render_fault
        return own or (wrap_for_messages if MESSAGES_HEADER in headers else wrap_error)


MOST_SUGGESTED: Final = 80
_DOUBLED: Final = re.compile(r"(.*?)(/.+)\2")


class _Row(Struct, frozen=True):
    path: Pattern[str]
    params: dict[str, Convertor[Any]]
    methods: tuple[str, ...]
    endpoint: Endpoint


class ScopeTable:
    """The endpoint of a request, and the scope that it needs. Rows are grouped by the first two segments of their paths, which
    have no parameters.

    A path without an endpoint needs the scope of its group, or `admin`: what is missing is told to those who could have used it.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._groups: dict[tuple[str, ...], list[_Row]] = {}
        table = tuple(endpoints)
        for endpoint in table:
            methods = ("GET", "HEAD") if endpoint.method == "GET" else (endpoint.method,)
            path, _, params = compile_path(endpoint.path)
            self._groups.setdefault(_group(endpoint.path), []).append(_Row(path, params, methods, endpoint))
        plain: list[tuple[str, str]] = [(each.method, each.path) for each in table if "{" not in each.path]
        self._plain = {(method, path): self._match(method, path) for method, path in plain}

    def find(self, method: str, path: str) -> FoundEndpoint:
        return self._plain.get((method, path)) or self._match(method, path)

    def find_scopes(self, method: str, path: str) -> tuple[KeyScope | Public, ...]:
        """Those of which a key needs one."""
        found = self.find(method, path)
        return (found.scope,) if found.endpoint is None else (found.scope, *found.endpoint.also)

    def suggest(self, path: str) -> str | None:
        """The path that may have been meant: one that is like it, or what a client asks for whose base URL lacks `/v1`, or has
        the path of an endpoint."""
        if len(path) > MOST_SUGGESTED:
            return None
        if (once := self.undouble(path)) is not None:
            return once
        if self._has(f"/v1{path}"):
            return f"/v1{path}"
        return next(iter(get_close_matches(path, [each for _, each in self._plain if each != "/"], 1, 0.8)), None)

    def undouble(self, path: str) -> str | None:
        """A path that ends with the same twice, without the second."""
        doubled = _DOUBLED.fullmatch(path) if len(path) <= MOST_SUGGESTED else None
        once = f"{doubled[1]}{doubled[2]}" if doubled else ""
        return once if self._has(once) else None

    def _has(self, path: str) -> bool:
        return any(row.path.match(path) for row in self._groups.get(_group(path), ()))

    def _match(self, method: str, path: str) -> FoundEndpoint:
        group = self._groups.get(_group(path), [])
        rows = [(row, match) for row in group if (match := row.path.match(path)) is not None]
        for row, match in rows:
            if method in row.methods:
                params = {name: row.params[name].convert(value) for name, value in match.groupdict().items()}
                return FoundEndpoint(row.endpoint.scope, row.endpoint, params)
        if rows:
            first = rows[0][0].endpoint
            named = [row for row, _ in rows if row.endpoint.path == first.path and row.endpoint.method != WEBSOCKET]
            return FoundEndpoint(first.scope, allowed=tuple(sorted([method for row in named for method in row.methods])))
        return FoundEndpoint("admin" if not group or group[0].endpoint.scope == PUBLIC else group[0].endpoint.scope)


def _group(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")[:3])
