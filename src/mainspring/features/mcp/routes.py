"""`/v1/mcp_servers`: the MCP servers of the settings, what they offer, and why one is down."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, ToolRateLimited, ToolUnavailable
from mainspring.core.items import Json
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.bodies import parse_body, read_json_body
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import Page, make_page
from mainspring.http.wire import hide_addresses
from mainspring.tools.mcp.server_watch import ServerState

LONGEST_CURSOR = 8_192


class McpTool(Struct, frozen=True):
    name: str
    description: str
    parameters: Json


class UnusableTool(Struct, frozen=True):
    name: str
    reason: str


class ShownServer(Struct, frozen=True):
    """A server. `error` is why it is down, `last_error` why it was down last; `rejected` are tools that it lists and that cannot
    be used. `server` and `protocol` are what it calls itself and speaks, `latency_ms` is how long its last answer took."""

    label: str
    state: str
    error: str | None
    tools: Sequence[McpTool]
    rejected: Sequence[UnusableTool]
    server: str = ""
    protocol: str = ""
    latency_ms: float | None = None
    last_error: str | None = None
    object: str = "mcp_server"


class ServerAnswer(Struct, frozen=True):
    """What a server has answered, as the protocol spells it. It is the server's word, and no more to be trusted than that."""

    server_label: str
    result: Json
    object: str = "mcp_server.answer"


class ReadResource(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/mcp_servers/{label}/resources/read`."""

    uri: Annotated[str, Meta(min_length=1, max_length=8192)]


class GetPrompt(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/mcp_servers/{label}/prompts/get`."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    arguments: dict[str, str] = {}


Fetch = Callable[[str, str, Json, str], Awaitable[Json]]


class McpRoutes:
    def __init__(self, list_states: Callable[[], Sequence[ServerState]], fetch: Fetch) -> None:
        self._list_states, self._fetch = list_states, fetch

    def endpoints(self) -> tuple[Endpoint, ...]:
        one, cursor = "/v1/mcp_servers/{label}", (Parameter("cursor", {"type": "string"}),)
        return (
            Endpoint("GET", "/v1/mcp_servers", self.list, "responses", Page, schemas=(ShownServer,)),
            Endpoint("GET", f"{one}/resources", self.list_resources, "responses", ServerAnswer, query=cursor),
            Endpoint("POST", f"{one}/resources/read", self.read_resource, "responses", ServerAnswer, ReadResource),
            Endpoint("GET", f"{one}/prompts", self.list_prompts, "responses", ServerAnswer, query=cursor),
            Endpoint("POST", f"{one}/prompts/get", self.get_prompt, "responses", ServerAnswer, GetPrompt),
        )

    async def list_resources(self, request: Request) -> HttpResponse:
        """Lists the resources of an MCP server that shows them, a page as the server has it."""
        return await self._answer(request, "resources/list", _read_cursor(request))

    async def read_resource(self, request: Request) -> HttpResponse:
        """Reads a resource of an MCP server that shows them."""
        body = parse_body(await read_json_body(request), ReadResource)
        return await self._answer(request, "resources/read", {"uri": body.uri})

    async def list_prompts(self, request: Request) -> HttpResponse:
        """Lists the prompts of an MCP server that shows them, a page as the server has it."""
        return await self._answer(request, "prompts/list", _read_cursor(request))

    async def get_prompt(self, request: Request) -> HttpResponse:
        """Gets a prompt of an MCP server that shows them, filled in with arguments."""
        body = parse_body(await read_json_body(request), GetPrompt)
        return await self._answer(request, "prompts/get", {"name": body.name, "arguments": body.arguments})

    async def _answer(self, request: Request, method: str, params: Json) -> HttpResponse:
        label = str(request.path_params["label"])
        try:
            result = await self._fetch(label, method, params, get_tenant(request))
        except ToolUnavailable as error:
            message = error.message if get_caller(request).is_operator else hide_addresses(error.message)
            if isinstance(error, ToolRateLimited):
                raise Fault(error.status, error.code, message, param="label", retry_after=error.retry_after) from None
            raise Fault(502, "mcp_server_failed", message, param="label") from None
        return json_response(ServerAnswer(label, {name: value for name, value in result.items() if name != "_meta"}))

    async def list(self, request: Request) -> HttpResponse:
        """Lists the MCP servers of the settings, with their tools. Operators are told all of why one is down."""
        is_operator = get_caller(request).is_operator
        told = [_show(state, is_operator=is_operator) for state in self._list_states()]
        return json_response(make_page(told, [server.label for server in told], has_more=False))


def _read_cursor(request: Request) -> Json:
    cursor = request.query_params.get("cursor")
    if cursor is not None and len(cursor) > LONGEST_CURSOR:
        told = f"`cursor` has more than {LONGEST_CURSOR} characters; send the `nextCursor` of the page before, or none"
        raise InvalidRequest(told, param="cursor")
    return {} if cursor is None else {"cursor": cursor}


def _show(server: ServerState, *, is_operator: bool) -> ShownServer:
    tools = () if server.listing is None else server.listing.tools
    rejected = () if server.listing is None else server.listing.rejected
    error, last = [why if why is None or is_operator else hide_addresses(why) for why in (server.error, server.last_error)]
    return ShownServer(
        server.label,
        server.state,
        error,
        [McpTool(tool.name, tool.description, tool.schema) for tool in tools],
        [UnusableTool(tool.name, tool.reason) for tool in rejected],
        server.server,
        server.protocol,
        None if server.latency is None else round(1000 * server.latency, 1),
        last,
    )
