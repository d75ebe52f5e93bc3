"""`/v1/mcp_servers`: the MCP servers of the settings, what they offer, and why one is down."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.items import Json
from mainspring.http.auth import get_caller
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, make_page
from mainspring.http.wire import hide_addresses
from mainspring.tools.mcp.watch import ServerState


class ServerTool(Struct, frozen=True):
    name: str
    description: str
    parameters: Json


class UnusableTool(Struct, frozen=True):
    name: str
    reason: str


class ShownServer(Struct, frozen=True):
    """A server. `error` is why it is down; `rejected` are tools that it lists and that cannot be used."""

    label: str
    state: str
    error: str | None
    tools: Sequence[ServerTool]
    rejected: Sequence[UnusableTool]
    object: str = "mcp_server"


class McpRoutes:
    def __init__(self, list_states: Callable[[], Sequence[ServerState]]) -> None:
        self._list_states = list_states

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("GET", "/v1/mcp_servers", self.list, "responses", Page, schemas=(ShownServer,)),)

    async def list(self, request: Request) -> HttpResponse:
        """Lists the MCP servers of the settings, with their tools. Operators are told all of why one is down."""
        is_operator = get_caller(request).is_operator
        told = [_show(state, is_operator=is_operator) for state in self._list_states()]
        return json_response(make_page(told, [server.label for server in told], has_more=False))


def _show(server: ServerState, *, is_operator: bool) -> ShownServer:
    tools = () if server.listing is None else server.listing.tools
    rejected = () if server.listing is None else server.listing.rejected
    error = server.error if server.error is None or is_operator else hide_addresses(server.error)
    return ShownServer(
        server.label,
        server.state,
        error,
        [ServerTool(tool.name, tool.description, tool.schema) for tool in tools],
        [UnusableTool(tool.name, tool.reason) for tool in rejected],
    )
