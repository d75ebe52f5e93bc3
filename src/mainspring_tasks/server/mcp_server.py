"""The MCP server: the protocol's side of the five tools. Importing it imports the SDK, which takes a second."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import msgspec
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from mainspring.core.items import Json, to_json
from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.identity import Identity, Unidentified
from mainspring_tasks.server.perform import Clock, perform
from mainspring_tasks.server.task import TaskRefusal, TaskReply, utc_now
from mainspring_tasks.server.task_definitions import CALLABLE, TOOLS, TaskTool, quote

INSTRUCTIONS = "The user's own list of tasks. Find a task's id with list_tasks; ask the user before deleting anything."
# The tools change with the program only, and are the same for everybody.
FRESH_MS: Final = 3_600_000


def build_task_server(store: TaskStore, identity: Identity, *, clock: Clock = utc_now) -> "Server[dict[str, Any]]":
    """A server on an open store, for any transport. It asks `identity` at each call whose it is."""

    async def list_tools(context: "ServerRequestContext[Any]", params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_describe_tool(tool) for tool in TOOLS.values()])

    async def call_tool(context: "ServerRequestContext[Any]", params: CallToolRequestParams) -> CallToolResult:
        if params.name not in CALLABLE:
            raise MCPError(INVALID_PARAMS, f"there is no tool `{quote(params.name)}`; known: {', '.join(TOOLS)}")
        try:
            user = identity(_headers(context))
        except Unidentified as error:
            return _result(TaskRefusal("VALIDATION_ERROR", str(error)).reply)
        return _result(await perform(store, user, params.name, params.arguments or {}, clock=clock))

    return Server(
        "mainspring-tasks",
        title="Tasks",
        version=version("mainspring"),
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(FRESH_MS, "public"), "server/discover": CacheHint(FRESH_MS, "public")},
        get_tool_input_schema=_schema,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _schema(name: str) -> Json | None:
    tool = CALLABLE.get(name)
    return None if tool is None else tool.parameters


def _headers(context: "ServerRequestContext[Any]") -> Mapping[str, str]:
    return {} if context.request is None else context.request.headers


def _describe_tool(tool: TaskTool) -> Tool:
    hints = ToolAnnotations(
        title=tool.title,
        read_only_hint=tool.is_read_only,
        destructive_hint=tool.is_destructive,
        idempotent_hint=tool.is_idempotent,
        open_world_hint=False,
    )
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.parameters,
        output_schema=tool.answer,
        annotations=hints,
    )


def _result(reply: TaskReply) -> CallToolResult:
    """The reply, once for programs and once for models, which read the same."""
    text = to_json(reply)
    return CallToolResult(
        content=[TextContent(text=text)], structured_content=msgspec.json.decode(text), is_error=not reply.success
    )
