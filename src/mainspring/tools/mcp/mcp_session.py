"""One session with an MCP server, by the official SDK. This module and those it imports alone know the SDK.

Everything the SDK raises becomes `SessionLost` or `ToolUnavailable` here. One malformed tool would make the SDK refuse a whole
list, so each list is screened on its way in, and what the protocol forbids is set aside.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from importlib.metadata import version
from logging import CRITICAL, NOTSET, getLogger
from types import TracebackType
from typing import TYPE_CHECKING

import anyio
from httpx2 import HTTPStatusError
from mcp import Client, MCPError
from mcp.client import ClientRequestContext, IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.message import SessionMessage
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    JSONRPCResponse,
    Tool,
    ToolListChangedNotification,
    methods,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace
from pydantic import ValidationError

from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.exchange import (
    MOST_BYTES,
    Elicit,
    Progress,
    RejectedTool,
    RemoteTool,
    SessionLost,
    ToolAnswer,
    ToolListing,
    list_errors,
)
from mainspring.tools.mcp.mcp_http import SECONDS, make_guarded_client
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.stdio_process import run_server_process
from mainspring.tools.sandbox.grants import Wrap

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Auth, Timeout
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.session import ElicitationFnT

    Streams = AbstractAsyncContextManager[TransportStreams]

MOST_PAGES = 100
_EARLIEST = "2025-11-25"

# They log addresses, session ids and what servers say, and all that fails is told by the errors we raise.
for name in ("httpx2", "mcp"):
    if getLogger(name).level == NOTSET:
        getLogger(name).setLevel(CRITICAL)


class McpSession:
    """An open session. Its methods raise `SessionLost` if it ends meanwhile, `ToolUnavailable` for what the server refuses."""

    def __init__(self, label: str, client: Client, screen: "_Screen", refusals: list[int]) -> None:
        self._label = label
        self._client = client
        self._screen = screen
        self._refusals = refusals

    async def list_tools(self) -> ToolListing:
        """All tools, page by page. Those that are no tools by the protocol's rules are rejected, not the list."""
        self._screen.clear()
        tools: list[Tool] = []
        cursor = None
        with self._translate_errors("a list of its tools"):
            for _ in range(MOST_PAGES):
                page = await self._client.list_tools(cursor=cursor)
                tools += page.tools
                if (cursor := page.next_cursor) is None:
                    break
        return ToolListing(tuple(map(_convert_tool, tools)), self._screen.list_rejected({tool.name for tool in tools}))

    async def call(self, name: str, arguments: Json, told: Progress) -> ToolAnswer:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            told(shorten_line(message or "") or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}"))

        with self._translate_errors(f"the call of `{name}`"):
            return _convert_answer(await self._client.call_tool(name, arguments, progress_callback=note))

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except MCPError as error:
            raise self._build_failure(error, what) from error
        # The SDK raises a bare RuntimeError for content that the tool's own output schema forbids, and for endless questions.
        except (ValidationError, RuntimeError) as error:
            said = shorten_line(str(error))
            raise ToolUnavailable(f"MCP server `{self._label}` answered {what} with what it may not: {said}") from error

    def _build_failure(self, error: MCPError, what: str) -> Exception:
        return (
            SessionLost(shorten_line(error.message))
            if _is_loss(error)
            else _build_refusal(self._label, what, error, self._refusals)
        )


@asynccontextmanager
async def open_session(
    spec: ServerSpec, guard: AddressGuard, wrap: Wrap | None, elicit: Elicit | None, changed: Callable[[], None]
) -> AsyncGenerator[McpSession, None]:
    """A session, from its handshake to its end; must be left in the task that entered it. `changed` hears of a new tool list.

    A server that does not take the first POST may be one of the older HTTP+SSE transport, so that is tried next, as the
    specification has it. If it is none, the first refusal stands.
    """
    refusals: list[int] = []
    is_open = False
    try:
        async with _open_session(spec, guard, wrap, elicit, changed, refusals) as session:
            is_open = True
            yield session
        return
    except Exception as error:
        if is_open or spec.transport != "http" or not refusals or not _may_be_older(refusals[-1]):
            raise
        refusal = error
    try:
        async with _open_session(replace(spec, transport="sse"), guard, wrap, elicit, changed, []) as session:
            is_open = True
            yield session
    except Exception:
        if is_open:
            raise
        raise refusal from None


def _may_be_older(status: int) -> bool:
    """Whether a server that refused a POST like this may want a GET first. One that wants credentials or patience does not."""
    return 400 <= status < 500 and status not in (401, 403, 407, 429)


@asynccontextmanager
async def _open_session(
    spec: ServerSpec,
    guard: AddressGuard,
    wrap: Wrap | None,
    elicit: Elicit | None,
    changed: Callable[[], None],
    refusals: list[int],
) -> AsyncGenerator[McpSession, None]:
    async def heard(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed()

    screen = _Screen()
    client = Client(
        _screen_streams(_open_streams(spec, guard, wrap, refusals), screen),
        client_info=Implementation(name="mainspring", version=version("mainspring")),
        message_handler=heard,
        elicitation_callback=_make_callback(elicit) if elicit is not None else None,
        cache=None,
    )
    try:
        async with client, anyio.create_task_group() as tasks:
            screen.version = client.protocol_version
            tools = client.server_capabilities.tools
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and tools.list_changed:
                tasks.start_soon(_follow, client, changed)
            yield McpSession(spec.label, client, screen, refusals)
            tasks.cancel_scope.cancel()
    except* HTTPStatusError as group:
        # Its own words hold the whole URL, which may hold a secret.
        status = next(error.response.status_code for error in list_errors(group) if isinstance(error, HTTPStatusError))
        raise ToolUnavailable(f"MCP server `{spec.label}` refused the connection: HTTP {status}") from None
    except* MCPError as group:
        first = next(error for error in list_errors(group) if isinstance(error, MCPError))
        raise (
            SessionLost(first.message) if _is_loss(first) else _build_refusal(spec.label, "the handshake", first, refusals)
        ) from first


async def _follow(client: Client, changed: Callable[[], None]) -> None:
    """Hears of new tool lists in the later protocol, where one has to ask for that. Without it, lists are just old at times."""
    try:
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                changed()
    except (MCPError, SubscriptionLost):
        changed()


def _make_callback(elicit: Elicit) -> "ElicitationFnT":
    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        content = await elicit(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        return ElicitResult(action="decline") if content is None else ElicitResult(action="accept", content=content)

    return answer


def _open_streams(spec: ServerSpec, guard: AddressGuard, wrap: Wrap | None, refusals: list[int]) -> "Streams":
    def client(
        headers: dict[str, str] | None = None, timeout: "Timeout | None" = None, auth: "Auth | None" = None
    ) -> "AsyncClient":
        return make_guarded_client(guard, spec.headers, refusals.append)

    match spec.transport:
        case "stdio":
            return run_server_process(spec, wrap)
        case "sse":
            return sse_client(spec.url, timeout=SECONDS, httpx_client_factory=client)
        case "http":
            return _open_http_streams(spec.url, client())


@asynccontextmanager
async def _open_http_streams(url: str, client: "AsyncClient") -> "AsyncGenerator[TransportStreams, None]":
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams:
        yield streams


@asynccontextmanager
async def _screen_streams(streams: "Streams", screen: "_Screen") -> "AsyncGenerator[TransportStreams, None]":
    async with streams as (incoming, outgoing):
        yield _ScreenedStream(incoming, screen), outgoing


class _Screen:
    """Takes from a tool list what the protocol of the session does not allow, and remembers it."""

    def __init__(self) -> None:
        self.version = _EARLIEST
        self._sound: set[str] = set()
        self._unsound: list[RejectedTool] = []

    def clear(self) -> None:
        self._sound, self._unsound = set(), []

    def list_rejected(self, kept: set[str]) -> tuple[RejectedTool, ...]:
        """What was taken out, here and by the SDK itself, which leaves out tools with headers that it must not send."""
        missing = [RejectedTool(name, "its x-mcp-header annotations are not valid") for name in sorted(self._sound - kept)]
        return (*self._unsound, *missing)

    def sift(self, result: Json) -> None:
        """Changes the result of a request, if that is a list of tools."""
        if not isinstance(tools := result.get("tools"), list):
            return
        if self._flaw(result) is not None:
            result["tools"] = [tool for place, tool in enumerate(tools) if self._is_sound(tool, place, result)]
        self._sound |= {tool["name"] for tool in result["tools"]}

    def _is_sound(self, tool: object, place: int, result: Json) -> bool:
        if (flaw := self._flaw({**result, "tools": [tool]})) is not None:
            name = tool.get("name") if isinstance(tool, dict) else None
            self._unsound.append(RejectedTool(str(name or f"tool {place}"), flaw))
        return flaw is None

    def _flaw(self, result: Json) -> str | None:
        try:
            methods.parse_server_result("tools/list", self.version, result)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'][2:]))}: {first['msg']}"
        return None


class _ScreenedStream:
    """The messages of another stream, tool lists screened."""

    def __init__(self, inner: "ReadStream[SessionMessage | Exception]", screen: _Screen) -> None:
        self._inner = inner
        self._screen = screen

    @property
    def last_context(self) -> Context | None:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            self._screen.sift(item.message.result)
        return item

    def __aiter__(self) -> "_ScreenedStream":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> "_ScreenedStream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _is_loss(error: MCPError) -> bool:
    """Whether the session, not the request, is at fault. The code does not tell, for servers use the SDK's codes as well."""
    said = error.message.lower()
    return (
        said == "connection closed" or said.startswith("sse stream ended") or said in ("session terminated", "session not found")
    )


def _build_refusal(label: str, what: str, error: MCPError, statuses: list[int]) -> ToolUnavailable:
    said = shorten_line(error.message)
    # The SDK keeps the status of such an answer to itself.
    status = f"HTTP {statuses[-1]}: " if statuses and said == "Server returned an error response" else ""
    return ToolUnavailable(f"MCP server `{label}` refused {what}: {status}{said} ({error.code})")


def _convert_tool(tool: Tool) -> RemoteTool:
    hints = tool.annotations
    return RemoteTool(
        tool.name,
        tool.description or "",
        tool.input_schema,
        hints.model_dump(by_alias=True, mode="json", exclude_none=True) if hints is not None else {},
    )


def _convert_answer(result: CallToolResult) -> ToolAnswer:
    content = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
    return ToolAnswer(tuple(content), result.structured_content, bool(result.is_error))
