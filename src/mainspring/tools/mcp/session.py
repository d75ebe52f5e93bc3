"""One session with an MCP server: which protocol is spoken, lists of tools, calls, and what the server asks meanwhile.

Two kinds of protocol are spoken. A server of the stateless one (2026-07-28) answers `server/discover`; each request then says
who asks and what they can do, and what the server needs to know comes back as a result, to be answered by the same request again.
Any other server is sent `initialize`, and may ask questions while a request is under way. Of those, `ping` is answered, an
elicitation if there is somebody to ask, and sampling if the operator allows it; all others are refused. A call that the server
works on as a task is followed by the id of that, however long it takes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from mainspring.core.backoff import backoff
from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.net.client import encode_headers
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.call_exchange import MOST_ROUNDS, CallExchange
from mainspring.tools.mcp.exchange import (
    LIST_TTL,
    MOST_BYTES,
    STATELESS,
    SessionLost,
    ToolAnswer,
    ToolListing,
    TooMuchSaid,
    list_errors,
)
from mainspring.tools.mcp.http_link import HttpLink, open_http_link
from mainspring.tools.mcp.json_rpc import (
    HEADER_MISMATCH,
    UNSUPPORTED_VERSION,
    URLS_REQUIRED,
    BadAnswer,
    Hear,
    Reply,
    RequestRefused,
    RpcFault,
    encode_notification,
    refuse,
)
from mainspring.tools.mcp.listed_tools import ToolFacts, ToolReader, encode_call_headers
from mainspring.tools.mcp.resources import list_reading_tools
from mainspring.tools.mcp.server_questions import Questions, is_number
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.shared_link import SharedLink
from mainspring.tools.mcp.sse_link import open_sse_link
from mainspring.tools.mcp.stdio_process import open_process_link
from mainspring.tools.sandbox.grants import Wrap

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import Authorizer

# Either carries messages to a server and back, and raises `SessionLost` and `RequestRefused`.
Link = HttpLink | SharedLink

WITH_SESSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
# A process that does not know the question may say nothing. A server that is reached by HTTP answers every request, if late.
DISCOVER_SECONDS, HTTP_DISCOVER_SECONDS = 10.0, 20.0
CANCEL_SECONDS = 5.0
MOST_PAGES = 100
SHORTEST_POLL, USUAL_POLL, LONGEST_POLL = 0.05, 1.0, 30.0
LONGEST_TTL = 86_400.0
# Of the id of a task, which is in the log, and in a header of each request about it.
MOST_ID_BYTES = 2_048
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0

# What one says who wants credentials, or patience.
_NO_ENTRY = (401, 403, 407, 429)
_CLIENT = {"name": "mainspring", "version": version("mainspring")}
_META = "io.modelcontextprotocol/"
TASKS = f"{_META}tasks"


@asynccontextmanager
async def open_session(
    spec: ServerSpec,
    guard: AddressGuard,
    wrap: Wrap | None,
    changed: Callable[[], None],
    authorizer: "Authorizer | None" = None,
    *,
    can_ask: bool,
) -> "AsyncGenerator[McpSession, None]":
    """A session, from its handshake to its end; must be left in the task that entered it. `changed` hears of a new tool list,
    `can_ask` says that there are people to ask.

    A server that does not take the first POST may be one of the older HTTP+SSE transport, so that is tried next, as the
    specification has it. If it is none, the first refusal stands. A process that ends when it is asked for the stateless protocol
    is started once more, and not asked for that.
    """
    is_open = False
    try:
        async with _open_session(spec, guard, wrap, changed, authorizer, can_ask=can_ask) as session:
            is_open = True
            yield session
        return
    except HandshakeRefused as error:
        if is_open or spec.transport != "http" or not _may_be_older(error.http_status):
            raise
        refusal: Exception | None = error
        older = replace(spec, transport="sse")
    except ProbeEnded:
        refusal, older = None, spec
    try:
        opening = _open_session(older, guard, wrap, changed, authorizer, can_ask=can_ask, probes=refusal is not None)
        async with opening as session:
            is_open = True
            yield session
    except Exception:
        if is_open or refusal is None:
            raise
        raise refusal from None


def _may_be_older(status: int) -> bool:
    """Whether a server that refused a POST like this may want a GET first. One that wants credentials or patience does not."""
    return 400 <= status < 500 and status not in _NO_ENTRY


@asynccontextmanager
async def _open_session(
    spec: ServerSpec,
    guard: AddressGuard,
    wrap: Wrap | None,
    changed: Callable[[], None],
    authorizer: "Authorizer | None" = None,
    *,
    can_ask: bool,
    probes: bool = True,
) -> "AsyncGenerator[McpSession, None]":
    questions, tasks = Questions(_list_capabilities(spec, can_ask=can_ask), changed), anyio.create_task_group()
    session: McpSession | None = None
    try:
        async with _open_link(spec, guard, wrap, questions.hear, authorizer) as link:
            session = McpSession(spec, link, questions, tasks)
            await session.shake_hands(probes=probes)
            async with tasks:
                questions.tasks = tasks
                tasks.start_soon(session.follow)
                yield session
                tasks.cancel_scope.cancel()
    except RequestRefused as error:
        raise ToolUnavailable(f"MCP server `{spec.label}` refused the connection: {error}") from error
    except Exception as error:
        if spec.transport == "stdio" and session is not None and session.is_probing and _has_ended(error):
            raise ProbeEnded from error
        raise


def _has_ended(error: Exception) -> bool:
    """Whether the server has ended by itself."""
    found = list_errors(error)
    return all(isinstance(each, SessionLost) and not isinstance(each, TooMuchSaid) for each in found)


def _list_capabilities(spec: ServerSpec, *, can_ask: bool) -> Json:
    return ({"elicitation": {"form": {}, "url": {}}} if can_ask else {}) | ({"sampling": {}} if spec.sampling else {})


def _open_link(
    spec: ServerSpec, guard: AddressGuard, wrap: Wrap | None, hear: Hear, authorizer: "Authorizer | None"
) -> AbstractAsyncContextManager[Link]:
    match spec.transport:
        case "stdio":
            return open_process_link(spec, wrap, hear)
        case "sse":
            return open_sse_link(spec, guard, hear, authorizer)
        case "http":
            return open_http_link(spec, guard, hear, authorizer)


class HandshakeRefused(ToolUnavailable):
    """The server does not speak this protocol, or not with us; `http_status` is what it has said, 0 if it was no HTTP error."""

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class ProbeEnded(Exception):
    """The server has ended when it was asked for the stateless protocol, as some do that speak an older one (rmcp before 3.0)."""


class McpSession:
    """An open session. Its methods raise `SessionLost` if it ends meanwhile, `ToolUnavailable` for what the server refuses."""

    def __init__(self, spec: ServerSpec, link: Link, questions: "Questions", tasks: TaskGroup) -> None:
        self.server = ""
        self.capabilities: Json = {}
        self.protocol = ""
        self._spec, self._label, self._link, self._questions, self._tasks = spec, spec.label, link, questions, tasks
        self._numbers = count(1)
        self.is_probing = self._is_stateless = self._tells_of_changes = False
        self._meta: Json = {}
        self._known: dict[str, ToolFacts] | None = None

    async def shake_hands(self, *, probes: bool = True) -> None:
        """Agrees on a protocol. With `probes`, the server is asked for the stateless one first."""
        try:
            self.is_probing = probes
            is_agreed = probes and await self._discover()
            self.is_probing = False
            if not is_agreed:
                await self._initialize_or_discover()
        except RequestRefused as error:
            raise HandshakeRefused(self._describe("the handshake", error), error.status) from error

    async def follow(self) -> None:
        """Hears of new tool lists, for as long as the session lasts. Without it, lists are just old at times."""
        if not self._is_stateless:
            await self._link.listen()
        failures = 0
        while self._is_stateless and self._tells_of_changes:
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                await self._ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            except RequestRefused:
                self._tells_of_changes = False
            except SessionLost:
                pass
            if loop.time() - began > LONGEST_PAUSE:
                failures = 0
            failures += 1
            self._questions.changed()  # nobody knows what has changed meanwhile
            await asyncio.sleep(backoff(failures, base=FIRST_PAUSE, cap=LONGEST_PAUSE))

    async def list_tools(self) -> ToolListing:
        """All tools, page by page. Those that are no tools by the protocol's rules are rejected, not the list."""
        reader = ToolReader(mirrors=self._is_stateless, has_tasks=self._has_tasks)
        cursor, size, ttl = None, 0, LONGEST_TTL
        with self._translate_errors("a list of its tools"):
            for _ in range(MOST_PAGES):
                reply = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
                reader.read_page(reply.result)
                size += reply.size
                ttl = min(ttl, _read_seconds(reply.result))
                cursor = reply.result.get("nextCursor")
                if not isinstance(cursor, str) or size > MOST_BYTES:
                    break
            else:
                ttl = LIST_TTL  # so long a list is not read for every run
        self._known = reader.known
        # A server that tells of changes need not be asked again before it does.
        seconds = ttl if self._is_stateless and not (ttl == 0 and self._tells_of_changes) else LIST_TTL
        tools = (*reader.tools, *list_reading_tools(self._spec, self.capabilities))
        return ToolListing(tools, tuple(reader.rejected), seconds, self.server)

    async def call(self, name: str, arguments: Json, exchange: CallExchange) -> ToolAnswer:
        """The answer of a tool, once the server has been told all that it asks for."""
        if self._known is None:
            await self._learn_tools()
        with self._translate_errors(f"the call of `{name}`"):
            try:
                result = await self._call(name, arguments, exchange)
            except RequestRefused as error:
                if error.fault.code == URLS_REQUIRED:
                    await exchange.answer_urls(error.fault)
                elif error.fault.code == HEADER_MISMATCH and self._is_stateless:
                    # The tool's schema is another by now; the server has not carried out the call.
                    self._questions.changed()
                    if exchange.confirm_approved is not None:
                        await exchange.confirm_approved()
                    await self._learn_tools()
                else:
                    raise
                result = await self._call(name, arguments, exchange)
            return self._convert_answer(name, result)

    async def fetch(self, method: str, params: Json, name: str = "") -> Json:
        """The result of a request that is no call: of resources and prompts. `name` is what it is about, if that has one."""
        headers = encode_call_headers(name, method) if self._is_stateless and self._link.is_http and name else b""
        with self._translate_errors(f"`{method}`"):
            return (await self._ask(method, params, headers)).result

    async def _learn_tools(self) -> None:
        try:
            await self.list_tools()
        except ToolUnavailable:
            self._known = {}  # a server without a list may have tools all the same

    async def _call(self, name: str, arguments: Json, exchange: CallExchange) -> Json:
        if exchange.kept.task:
            return await self._follow_task(exchange)
        asked: Json = {"name": name, "arguments": arguments}
        headers = self._build_headers(name, arguments) if self._is_stateless and self._link.is_http else b""
        if not self._is_stateless and (known := (self._known or {}).get(name)) is not None and known.needs_task:
            asked["task"] = {"ttl": int(1000 * self._spec.task_timeout)}
        more = await self._resume_inputs(exchange)
        for place in range(MOST_ROUNDS + 1):
            result = (await self._ask("tools/call", {**asked, **more}, headers, exchange)).result
            if (task := self._find_task(result, asked)) is not None:
                await exchange.keep_task(task)
                return await self._follow_task(exchange)
            if result.get("resultType") != "input_required" or not self._is_stateless:
                return result
            wanted, state = result.get("inputRequests"), result.get("requestState")
            more = {} if state is None else {"requestState": state}
            if isinstance(wanted, dict) and wanted:
                more["inputResponses"] = await exchange.answer_inputs(wanted, state)
            else:
                await asyncio.sleep(min(0.25, 0.05 * 2**place))
        raise refuse(f"It asks for input for more than {MOST_ROUNDS} rounds")

    async def _resume_inputs(self, exchange: CallExchange) -> Json:
        """What a call that goes on is sent with: what a person has said since."""
        if not self._is_stateless or not exchange.kept.asked:
            return {}
        answers, state = await exchange.complete_inputs(), exchange.kept.state
        return {"inputResponses": answers} | ({} if state is None else {"requestState": state})

    def _find_task(self, result: Json, asked: Json) -> str | None:
        """The id of the task that the call has become."""
        match result:
            case {"resultType": "task", "taskId": str(task)} if self._is_stateless:
                pass
            case {"task": {"taskId": str(task)}} if not self._is_stateless and "task" in asked:
                pass
            case _:
                return None
        if not task or len(task.encode(errors="replace")) > MOST_ID_BYTES:
            raise BadAnswer(f"its task has no id, or one of more than {MOST_ID_BYTES} bytes")
        return task

    async def _follow_task(self, exchange: CallExchange) -> Json:
        """The result of a task. The answers to its questions are told once; it may list them for a while yet."""
        task, told, said = exchange.kept.task, set[str](), ""
        while True:
            result = (await self._ask_task("tasks/get", task)).result
            status, message = result.get("status"), result.get("statusMessage")
            if isinstance(message, str) and message != said and exchange.told is not None:
                exchange.told(shorten_line(said := message))
            match status:
                case "completed" | "failed" | "input_required" if not self._is_stateless:
                    return (await self._ask_task("tasks/result", task, exchange=exchange)).result
                case "completed" if isinstance(done := result.get("result"), dict):
                    return {"resultType": "complete", **done}
                case "failed":
                    raise RequestRefused(_read_fault(result.get("error")))
                case "cancelled":
                    raise refuse("The task was cancelled")
                case "working":
                    pass
                case "input_required":
                    asked = result.get("inputRequests")
                    fresh = {key: each for key, each in asked.items() if key not in told} if isinstance(asked, dict) else {}
                    if fresh:
                        answers = await self._answer_task(exchange, fresh)
                        await self._ask_task("tasks/update", task, {"inputResponses": answers})
                        told |= fresh.keys()
                case _:
                    raise BadAnswer(f"its task has the status `{shorten_line(str(status), 40)}`")
            await asyncio.sleep(_read_pause(result))

    async def _answer_task(self, exchange: CallExchange, fresh: Json) -> Json:
        if exchange.kept.asked and fresh.keys() <= exchange.kept.answers.keys() | exchange.kept.asked.keys():
            answers = await exchange.complete_inputs()
        else:
            answers = await exchange.answer_inputs(fresh, None)
        return {key: answers[key] for key in fresh if key in answers}

    async def _ask_task(self, method: str, task: str, more: Json | None = None, exchange: CallExchange | None = None) -> Reply:
        headers = encode_call_headers(task, method) if self._is_stateless and self._link.is_http else b""
        return await self._ask(method, {"taskId": task, **(more or {})}, headers, exchange)

    def abandon_task(self, task: str) -> None:
        """As `cancel_task`, in the background."""
        if not self._tasks.cancel_scope.cancel_called:
            self._tasks.start_soon(self.cancel_task, task)

    async def cancel_task(self, task: str) -> None:
        """Tells the server that nobody waits for a task any more."""
        with suppress(SessionLost, RequestRefused), anyio.move_on_after(CANCEL_SECONDS):
            await self._ask_task("tasks/cancel", task)

    def _build_headers(self, name: str, arguments: Json) -> bytes:
        known = (self._known or {}).get(name)
        return known.build_headers(arguments) if known is not None else encode_call_headers(name)

    async def _ask(self, method: str, params: Json, headers: bytes = b"", exchange: CallExchange | None = None) -> Reply:
        number = next(self._numbers)
        meta = self._meta
        if exchange is not None:
            meta = {**meta, "progressToken": number} if exchange.told is not None else meta
            self._questions.calls[number] = exchange
        if self._is_stateless and not headers:
            headers = encode_headers([("Mcp-Method", method)])
        try:
            reply = await self._link.ask(number, method, {**params, "_meta": meta} if meta else params, headers)
            if reply.size > self._spec.max_result_bytes:
                raise refuse(f"The answer is larger than {self._spec.max_result_bytes} bytes; ask for less")
            return reply
        except asyncio.CancelledError:
            if not (self._is_stateless and self._link.is_http) and not self._tasks.cancel_scope.cancel_called:
                self._tasks.start_soon(self._cancel, number)
            raise
        finally:
            self._questions.calls.pop(number, None)

    async def _cancel(self, number: int) -> None:
        # Whoever asks next will notice if that fails.
        with suppress(SessionLost, RequestRefused), anyio.move_on_after(CANCEL_SECONDS):
            await self._link.cancel(number)

    async def _discover(self) -> bool:
        """Whether the server speaks the stateless protocol."""
        meta = {
            f"{_META}protocolVersion": STATELESS,
            f"{_META}clientInfo": _CLIENT,
            f"{_META}clientCapabilities": {**self._questions.capabilities, "extensions": {TASKS: {}}},
        }
        self._link.adopt(STATELESS, is_stateless=True)
        try:
            reply = await self._probe(meta)
        except RequestRefused as error:
            spoken = _list_versions(error.fault)
            if error.status in _NO_ENTRY or (spoken and not {STATELESS, *WITH_SESSIONS} & spoken):
                raise
            if STATELESS not in spoken:
                return False
            reply = await self._probe(meta)  # it is a server of this protocol, by its own account
        except TimeoutError:
            return False
        offered = reply.result.get("supportedVersions")
        if not isinstance(offered, list) or STATELESS not in offered:
            return False
        self._is_stateless, self._meta, self.protocol = True, meta, STATELESS
        self._note_capabilities(reply.result)
        return True

    async def _probe(self, meta: Json) -> Reply:
        method = "server/discover"
        async with asyncio.timeout(HTTP_DISCOVER_SECONDS if self._link.is_http else DISCOVER_SECONDS):
            return await self._link.ask(next(self._numbers), method, {"_meta": meta}, encode_headers([("Mcp-Method", method)]))

    async def _initialize_or_discover(self) -> None:
        try:
            await self._initialize()
        except RequestRefused as error:
            # One that is slow to start has heard the first question after we gave up, and speaks the stateless protocol since.
            if STATELESS not in _list_versions(error.fault) or not await self._discover():
                raise

    async def _initialize(self) -> None:
        self._link.adopt(None, is_stateless=False)
        asked = {"protocolVersion": WITH_SESSIONS[0], "capabilities": self._questions.capabilities, "clientInfo": _CLIENT}
        result = (await self._link.ask(next(self._numbers), "initialize", asked)).result
        spoken = result.get("protocolVersion")
        if spoken not in WITH_SESSIONS:
            raise refuse(f"Unsupported protocol version from the server: {shorten_line(str(spoken), 40)}")
        self.protocol = str(spoken)
        self._link.adopt(self.protocol, is_stateless=False)
        self._note_capabilities(result)
        self._questions.answer_by(self._link.tell)
        await self._link.tell(encode_notification("notifications/initialized"))

    def _note_capabilities(self, result: Json) -> None:
        meta = result.get("_meta")
        match result.get("serverInfo") or (meta.get(f"{_META}serverInfo") if isinstance(meta, dict) else None):
            case {"name": str(name), "version": str(version)}:
                self.server = shorten_line(f"{name} {version}", 200)
            case _:
                pass
        match result.get("capabilities"):
            case dict(capabilities):
                self.capabilities = capabilities
            case _:
                return
        match capabilities.get("tools"):
            case {"listChanged": True}:
                self._tells_of_changes = True
            case _:
                pass

    @property
    def _has_tasks(self) -> bool:
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, dict) and TASKS in extensions

    def _convert_answer(self, name: str, result: Json) -> ToolAnswer:
        kind, content, is_error = result.get("resultType", "complete"), result.get("content"), result.get("isError") is True
        if kind != "complete" and self._is_stateless:
            raise BadAnswer(f"it is of the type `{shorten_line(str(kind), 40)}`, which is not supported")
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise BadAnswer("its content is no list of blocks")
        known = (self._known or {}).get(name)
        if known is not None and not is_error and (flaw := known.find_flaw(result)) is not None:
            raise BadAnswer(flaw)
        return ToolAnswer(tuple(content), result.get("structuredContent"), is_error)

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except RequestRefused as error:
            raise ToolUnavailable(self._describe(what, error)) from error
        except BadAnswer as error:
            said = shorten_line(str(error))
            raise ToolUnavailable(f"MCP server `{self._label}` answered {what} with what it may not: {said}") from error

    def _describe(self, what: str, error: RequestRefused) -> str:
        said = shorten_line(error.fault.message)
        status = f"HTTP {error.status}: " if error.status and said != f"HTTP {error.status}" else ""
        code = f" ({error.fault.code})" if error.fault.code else ""
        return f"MCP server `{self._label}` refused {what}: {status}{said}{code}"


def _list_versions(fault: RpcFault) -> set[str]:
    """The versions that a server names which does not speak the one it was asked in."""
    offered = fault.data.get("supported") if fault.code == UNSUPPORTED_VERSION and isinstance(fault.data, dict) else None
    return {each for each in offered if isinstance(each, str)} if isinstance(offered, list) else set()


def _read_fault(error: object) -> RpcFault:
    match error:
        case {"code": int(code), "message": str(message)}:
            return RpcFault(code, message)
        case _:
            return RpcFault(0, "The task failed")


def _read_pause(result: Json) -> float:
    """How long a task is left alone before it is looked at again."""
    told = result.get("pollIntervalMs", result.get("pollInterval"))
    return max(SHORTEST_POLL, min(LONGEST_POLL, told / 1000)) if is_number(told) else USUAL_POLL


def _read_seconds(result: Json) -> float:
    """How long a list is fresh, by its `ttlMs`."""
    ttl = result.get("ttlMs")
    return max(0.0, min(LONGEST_TTL, ttl / 1000)) if is_number(ttl) else 0.0
