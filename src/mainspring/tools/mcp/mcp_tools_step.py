"""Adds the tools of MCP servers to an order; the answer begins with the list of them.

A request names its servers in `tools` of type `mcp`, with their credentials. Those must not be recorded: they are removed from
the order here, before the run starts.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.history import list_answers
from mainspring.core.ids import NewId
from mainspring.core.items import Item, Json, ServerTool, Tool, ToolDefinition, Unknown
from mainspring.core.spec import RunSpec, ToolChoice
from mainspring.ports import OrderContext, OrderStep
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec, parse_server_spec
from mainspring.tools.mcp.toolset import ServerOffer, ToolRoute, Toolset

MARK = "mcp:"


def make_choice_mark(label: str, name: str | None) -> str:
    """How `tool_choice` names the tools of a server, or one of them, before they are known."""
    return f"{MARK}{label}" if name is None else f"{MARK}{label}/{name}"


class McpToolsStep(OrderStep):
    """Adds the tools of MCP servers to an order."""

    name = "mcp tools"
    runs_in_place = True

    def __init__(self, servers: McpTools, new_id: NewId) -> None:
        self._servers, self._new_id = servers, new_id

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        # An agent that answers in one turn has no tools at all, and a step of a workflow only its own.
        is_single = bool(order.agent) and not order.tools and order.tool_choice.mode == "none"
        return order if is_single or order.step_call is not None else await join_mcp_tools(order, self._servers, self._new_id)

    def release(self, run_id: str) -> None:
        self._servers.unbind(run_id)


async def join_mcp_tools(spec: RunSpec, servers: McpTools, new_id: NewId) -> RunSpec:
    """The order with the tools of the operator's servers and of its own, bound to its run. Raises `InvalidRequest` for a server
    that is described wrongly; one that cannot be reached is listed with the reason, and has no tools."""
    given = [tool.data for tool in spec.tools if isinstance(tool, Unknown) and tool.data.get("type") == "mcp"]
    described = [_parse_tool(number, tool) for number, tool in enumerate(given)]
    own = [
        server
        for server in servers.servers
        if all(each.servers is None or server.label in each.servers for each in spec.charters)
    ]
    if not described and not own:
        return replace(spec, tool_choice=_resolve_choice(spec.tool_choice, Toolset())) if _has_marks(spec.tool_choice) else spec
    _check_labels([*own, *described])
    others = tuple([tool for tool in spec.tools if not (isinstance(tool, Unknown) and tool.data.get("type") == "mcp")])
    known = [tool for tool in others if isinstance(tool, ToolDefinition)]
    # A run that goes on after a sign-in has the tool that was called for it.
    is_answered = bool(list_answers(spec.input))
    found = await servers.collect_tools(
        [*own, *described],
        principal=spec.tenant,
        user=spec.user,
        taken=[tool.name for tool in known],
        own=[tool.name for tool in known if tool.kind != "function"],
        keeps_sign_in=is_answered,
    )
    servers.bind(spec.id, found)
    deferred = {tool["server_label"]: str(tool.get("server_description") or "") for tool in given if tool.get("defer_loading")}
    tools: tuple[Tool, ...] = (*others, *[_build_definition(route, deferred) for route in found.routes.values()])
    # What the operator's servers have is the operator's business; a client is told of those that it named.
    listed = tuple([_build_list(offer, new_id) for offer in found.offers if not offer.spec.trusted])
    return replace(spec, tools=tools, tool_choice=_resolve_choice(spec.tool_choice, found), listed=listed)


def _parse_tool(number: int, tool: Json) -> ServerSpec:
    try:
        return parse_server_spec(tool)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param="tools") from None


def _check_labels(servers: Sequence[ServerSpec]) -> None:
    labels = [spec.label for spec in servers]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidRequest(f"two MCP servers have the label `{label}`; give each its own `server_label`", param="tools")


def _build_definition(route: ToolRoute, deferred: Mapping[str, str]) -> ToolDefinition:
    """The tool as the run has it; `deferred` are the servers whose tools are searched for, and what they are about."""
    server = ServerTool(route.spec.label, route.tool.name, route.spec.at)
    made = replace(route.definition, server=server, asks=route.needs_approval)
    about = deferred.get(route.spec.label)
    return made if about is None else replace(made, deferred=True, about=about)


def _build_list(offer: ServerOffer, new_id: NewId) -> Item:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema, "annotations": tool.annotations}
        for tool in offer.tools
    ]
    listed: Json = {"type": "mcp_list_tools", "id": new_id("mcpl"), "server_label": offer.spec.label, "tools": tools}
    return Unknown(listed if offer.error is None else {**listed, "error": offer.error})


def _has_marks(choice: ToolChoice) -> bool:
    return any(name.startswith(MARK) for name in (*(choice.allowed or ()), choice.name or ""))


def _resolve_choice(choice: ToolChoice, found: Toolset) -> ToolChoice:
    """The choice with every mark replaced by the names that the model knows the tools by."""
    if not _has_marks(choice):
        return choice
    if choice.allowed is not None:
        return replace(choice, allowed=tuple([name for mark in choice.allowed for name in _resolve_mark(mark, found)]))
    names = tuple(_resolve_mark(choice.name or "", found))
    return replace(choice, name=names[0]) if len(names) == 1 else replace(choice, name=None, allowed=names)


def _resolve_mark(mark: str, found: Toolset) -> Iterable[str]:
    if not mark.startswith(MARK):
        return [mark]
    label, _, tool = mark.removeprefix(MARK).partition("/")
    names = [name for name, route in found.routes.items() if route.spec.label == label and (not tool or route.tool.name == tool)]
    if not names:
        what = f"a tool `{tool}` of the MCP server `{label}`" if tool else f"the MCP server `{label}`"
        raise InvalidRequest(f"tool_choice names {what}, which this request does not have", param="tool_choice")
    return names
