"""`/mcp`: Mainspring as an MCP server. What answers is imported when the first client comes."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import MainspringError
from mainspring.core.items import Json
from mainspring.features.mcp_server.services import McpServices
from mainspring.http.auth import INVOKE
from mainspring.http.endpoints import Endpoint, KeyScope
from mainspring.http.faults import Fault, render_error
from mainspring.http.queries import Deleted
from mainspring.late_module import LateModule

if TYPE_CHECKING:
    from mainspring.features.mcp_server import http_transport
    from mainspring.features.mcp_server.http_transport import HttpTransport
else:
    http_transport = LateModule("mainspring.features.mcp_server.http_transport")

PATH = "/mcp"
_ALSO: tuple[KeyScope, ...] = ("workflows:run", "responses", "memory")


class McpMessage(Struct, frozen=True, omit_defaults=True):
    """A JSON-RPC 2.0 message of the Model Context Protocol."""

    jsonrpc: str
    id: str | int | None = None
    method: str | None = None
    params: Json | None = None
    result: Any = None
    error: Json | None = None


class McpServerRoutes:
    """The one endpoint. `make_services` is called when the first client comes."""

    def __init__(self, make_services: Callable[[], McpServices]) -> None:
        self._make_services = make_services

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                PATH,
                self.post,
                INVOKE,
                McpMessage,
                McpMessage,
                takes_key=True,
                errors=(404, 406),
                streams=True,
                also=_ALSO,
                render_fault=render_fault,
                in_schema=False,  # its errors are those of JSON-RPC, and the protocol describes the rest
            ),
            Endpoint(
                "GET", PATH, self.listen, INVOKE, McpMessage, streams=True, errors=(404, 405, 406), also=_ALSO,
                render_fault=render_fault, in_schema=False,
            ),
            Endpoint(
                "DELETE", PATH, self.end, INVOKE, Deleted, errors=(404,), also=_ALSO, render_fault=render_fault, in_schema=False
            ),
        )  # fmt: skip

    @cached_property
    def _transport(self) -> "HttpTransport":
        return http_transport.HttpTransport(self._make_services())

    async def post(self, request: Request) -> HttpResponse:
        """Takes a message of an MCP client: a request, a notification, or the answer to a question."""
        return await self._transport.post(request)

    async def listen(self, request: Request) -> HttpResponse:
        """Streams notices of a session: that lists have changed."""
        return await self._transport.listen(request)

    async def end(self, request: Request) -> HttpResponse:
        """Ends a session."""
        return await self._transport.end(request)


def render_fault(error: Fault | MainspringError) -> Json:
    """What is refused, as MCP clients read it; `data` is the error as every other endpoint has it."""
    told = render_error(error)
    return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": told["message"], "data": told}}
