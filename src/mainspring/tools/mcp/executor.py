"""Executes the tools of MCP servers.

A connection to a server that the operator configured serves everybody, any other one principal: credentials and tool lists that
came with a request are not shared. Connections stay open between runs and are closed after a period without use.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import anyio

from mainspring.core.errors import MainspringError, ToolTimeout
from mainspring.core.items import ServerTool, ToolDefinition, ToolKind
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.connection import CONNECT_SECONDS, Connection
from mainspring.tools.mcp.content import render_answer
from mainspring.tools.mcp.exchange import ToolListing
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import ServerOffer, ToolRoute, Toolset, build_offer, build_toolset
from mainspring.tools.mcp.watch import ServerState, ServerWatch

if TYPE_CHECKING:
    from mainspring.tools.sandbox.grants import Wrap

IDLE_SECONDS = 600.0
MOST_STRANGERS = 64


class McpTools:
    """Executes calls of MCP tools. `servers` are the operator's; a run may have others bound to it while it runs, and up to
    `most_strangers` of those stay connected afterwards. A run waits for the operator's servers for `start_seconds` at most.

    Must be created and closed in the event loop that uses it.
    """

    kind: ToolKind = "mcp"

    def __init__(
        self,
        servers: Sequence[ServerSpec] = (),
        *,
        guard: AddressGuard | None = None,
        wrap: "Wrap | None" = None,
        connect_seconds: float = CONNECT_SECONDS,
        start_seconds: float = CONNECT_SECONDS,
        most_strangers: int = MOST_STRANGERS,
    ) -> None:
        labels = [spec.label for spec in servers]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two MCP servers are called `{twice[0]}`; give one of them another label")
        self.servers = tuple(servers)
        self._guard = guard or AddressGuard()
        self._wrap = wrap
        self._connect_seconds, self._start_seconds = connect_seconds, start_seconds
        self._watches: dict[bytes, ServerWatch] = {}
        self._most_strangers = most_strangers
        self._connections: dict[tuple[bytes, str], Connection] = {}
        self._released: set[Connection] = set()
        # Cached for as long as the server's list is unchanged.
        self._offers: dict[tuple[bytes, str], tuple[ToolListing, ServerOffer]] = {}
        self._bound: dict[str, Toolset] = {}

    async def collect_tools(
        self, servers: Sequence[ServerSpec] | None = None, *, principal: str = "", taken: Collection[str] = ()
    ) -> Toolset:
        """The tools of these servers, by default the operator's. A server that fails has an offer without tools that says why.

        `taken` are names that others have; the client's functions keep theirs.
        """
        self._release_idle()
        wanted = self.servers if servers is None else tuple(servers)
        offers: dict[int, ServerOffer] = {}

        async def ask(place: int, spec: ServerSpec) -> None:
            offers[place] = await self._fetch_offer(spec, principal)

        async with anyio.create_task_group() as tasks:
            for place, spec in enumerate(wanted):
                tasks.start_soon(ask, place, spec)
        return build_toolset([offers[place] for place in range(len(wanted))], principal=principal, taken=taken)

    def connect(self) -> None:
        """Starts to connect the operator's servers, in the background."""
        for spec in self.servers:
            self._watch(spec).start()

    @property
    def states(self) -> tuple[ServerState, ...]:
        """How the operator's servers are doing."""
        return tuple([self._watch(spec).state for spec in self.servers])

    def bind(self, run_id: str, tools: Toolset) -> None:
        """Routes the calls of this run to the tools of this set."""
        self._bound[run_id] = tools

    def unbind(self, run_id: str) -> None:
        self._bound.pop(run_id, None)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        tools = self._bound.get(context.run_id)
        # A resumed run has no set bound to it; it has the operator's servers.
        tools = tools if tools is not None else await self.collect_tools()
        route = tools.route(call.name)
        if route is None or not _is_meant(route, context.tool):
            missing = ", ".join([f"`{offer.spec.label}`: {offer.error}" for offer in tools.offers if offer.error])
            why = f"; not available: {missing}" if missing else "; it may have been renamed, or its server is no longer given"
            return ToolResult(call.id, f"No MCP server has a tool `{call.name}`{why}", is_error=True)
        return await self._perform(call, context, route, tools.principal)

    async def close(self) -> None:
        """Ends every session, and every server that is a process."""
        for watch in self._watches.values():
            watch.stop()
        self._watches.clear()
        connections = [*self._connections.values(), *self._released]
        self._connections.clear()
        self._released.clear()
        async with anyio.create_task_group() as tasks:
            for connection in connections:
                tasks.start_soon(connection.close)

    async def _fetch_offer(self, spec: ServerSpec, principal: str) -> ServerOffer:
        try:
            listing = await (self._watch(spec) if spec.trusted else self._get_connection(spec, principal)).list_tools()
        except MainspringError as error:
            return ServerOffer(spec, error=error.message)
        known, offer = self._offers.get(self._key(spec, principal), (None, None))
        if offer is None or known != listing or offer.spec != spec:
            offer = await build_offer(spec, listing)
            self._offers[self._key(spec, principal)] = listing, offer
        return offer

    async def _perform(self, call: ToolCall, context: CallContext, route: ToolRoute, principal: str) -> ToolResult:
        connection = self._get_connection(route.spec, principal)
        seconds = context.tool.timeout if context.tool.timeout is not None else route.spec.timeout
        try:
            answer = await connection.call(
                route.tool.name, call.parsed, progress=context.progress, seconds=seconds, repeatable=context.tool.repeatable
            )
        except MainspringError as error:
            # The tool may be gone, or want other arguments by now.
            connection.forget_tools()
            return ToolResult(call.id, error.message, is_error=True, is_late=isinstance(error, ToolTimeout))
        return ToolResult(call.id, render_answer(answer), answer.is_error)

    def _get_connection(self, spec: ServerSpec, principal: str) -> Connection:
        key = self._key(spec, principal)
        if key not in self._connections:
            self._connections[key] = Connection(spec, guard=self._guard, wrap=self._wrap, connect_seconds=self._connect_seconds)
        return self._connections[key]

    def _watch(self, spec: ServerSpec) -> ServerWatch:
        if spec.target not in self._watches:
            self._watches[spec.target] = ServerWatch(self._get_connection(spec, ""), self._start_seconds)
        return self._watches[spec.target]

    def _key(self, spec: ServerSpec, principal: str) -> tuple[bytes, str]:
        return spec.target, "" if spec.trusted else principal

    def _release_idle(self) -> None:
        """Closes connections of requests that were idle for too long, and the least recently used if there are too many."""
        self._released = {connection for connection in self._released if not connection.is_over}
        strangers = sorted(
            [(connection.idle_seconds(), key) for key, connection in self._connections.items() if not connection.spec.trusted],
            reverse=True,
        )
        surplus = len(strangers) - self._most_strangers
        for place, (seconds, key) in enumerate(strangers):
            if seconds > 0 and (seconds > IDLE_SECONDS or place < surplus):
                self._offers.pop(key, None)
                connection = self._connections.pop(key)
                connection.release()
                self._released.add(connection)


def _is_meant(route: ToolRoute, tool: ToolDefinition) -> bool:
    """Whether the run means the tool of this server: another server may have a tool of that name."""
    meant = tool.server
    return not isinstance(meant, ServerTool) or (meant.label, meant.at) == (route.spec.label, route.spec.at)
