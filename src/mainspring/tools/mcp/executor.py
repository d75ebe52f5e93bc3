"""Executes the tools of MCP servers.

A connection to a server that the operator configured serves everybody, any other one principal: credentials and tool lists that
came with a request are not shared. Connections stay open between runs and are closed after a period without use.

A call whose server asks a person something raises `AskPerson`, and is executed again with the answer. Where the protocol has the
request wait for that, it is held here for `HOLD_SECONDS`, `MOST_HELD` in all; one that is not any more is made anew. A held
request is cancelled when nobody can answer any more: its run was cancelled, or goes on in another process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from logging import getLogger
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import (
    AskPerson,
    InvalidRequest,
    MainspringError,
    NotFound,
    SignInNeeded,
    ToolTimeout,
    ToolUnavailable,
)
from mainspring.core.events import Used
from mainspring.core.ids import random_id
from mainspring.core.items import Json, ServerTool, ToolDefinition, ToolKind
from mainspring.late_module import LateModule
from mainspring.ports import CallContext, QuestionStand, Runs, SharedLimits, ToolCall, ToolResult
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.call_exchange import CallExchange
from mainspring.tools.mcp.call_limits import CallLimits
from mainspring.tools.mcp.exchange import LIST_TTL, ToolAnswer, ToolListing
from mainspring.tools.mcp.json_rpc import BadAnswer
from mainspring.tools.mcp.resources import METHODS, render_reading
from mainspring.tools.mcp.result_content import render_answer
from mainspring.tools.mcp.sampling import Sampler
from mainspring.tools.mcp.server_connection import CONNECT_SECONDS, McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.server_watch import ServerRefused, ServerState, ServerWatch
from mainspring.tools.mcp.toolset import (
    ServerOffer,
    ToolRoute,
    Toolset,
    build_offer,
    build_toolset,
    is_sign_in,
    make_sign_in_tool,
)

if TYPE_CHECKING:
    from mainspring.tools.mcp import lock as mcp_lock
    from mainspring.tools.mcp.lock import LockFile
    from mainspring.tools.mcp.sign_in import Authorizer, SignIns
    from mainspring.tools.sandbox.grants import Wrap
else:
    mcp_lock = LateModule("mainspring.tools.mcp.lock")

log = getLogger(__name__)

IDLE_SECONDS = 600.0
MOST_STRANGERS = 64
HOLD_SECONDS = 3600.0
LOOK_SECONDS = 5.0
MOST_HELD = 256


class HeldCall(Struct):
    """A call that waits for a person while its request is under way."""

    work: "asyncio.Task[ToolAnswer]"
    exchange: CallExchange
    expiry: asyncio.TimerHandle


class McpTools:
    """Executes calls of MCP tools. `servers` are the operator's; a run may have others bound to it while it runs, and up to
    `most_strangers` of those stay connected afterwards. A run waits for the operator's servers for `start_seconds` at most.
    Whether what a call asks can still be answered is looked at every `look_seconds`.

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
        look_seconds: float = LOOK_SECONDS,
        sign_ins: "SignIns | None" = None,
        lock: "LockFile | None" = None,
    ) -> None:
        labels = [spec.label for spec in servers]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two MCP servers are called `{twice[0]}`; give one of them another label")
        self.servers = tuple(servers)
        self.sign_ins, self._lock = sign_ins, lock
        self._certificates: dict[str, tuple[float, str]] = {}
        self._guard = guard or AddressGuard()
        self._wrap = wrap
        self._connect_seconds, self._start_seconds = connect_seconds, start_seconds
        self._watches: dict[bytes, ServerWatch] = {}
        self._most_strangers, self._look_seconds = most_strangers, look_seconds
        self._connections: dict[tuple[bytes, str], McpConnection] = {}
        self._released: set[McpConnection] = set()
        # Cached for as long as the server's list is unchanged.
        self._offers: dict[tuple[bytes, str], tuple[ToolListing, ServerOffer]] = {}
        self._bound: dict[str, Toolset] = {}
        self._limits: dict[tuple[bytes, str], CallLimits] = {}
        self._shared_limits: SharedLimits | None = None
        self._held: dict[str, HeldCall] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._warned: set[tuple[str, str]] = set()

    async def collect_tools(
        self,
        servers: Sequence[ServerSpec] | None = None,
        *,
        principal: str = "",
        user: str = "",
        taken: Collection[str] = (),
        own: Collection[str] = (),
        keeps_sign_in: bool = False,
    ) -> Toolset:
        """The tools of these servers, by default the operator's. A server that fails has an offer without tools that says why.

        `taken` are names that others have; the client's functions keep theirs. No tool is called like one of our `own`. A server
        that the user has yet to sign in to offers the tool for that alone; with `keeps_sign_in`, also those that they have signed
        in to offer it.
        """
        self._release_idle()
        wanted = self.servers if servers is None else tuple(servers)
        offers: dict[int, ServerOffer] = {}

        async def ask(place: int, spec: ServerSpec) -> None:
            offer = await self._fetch_offer(spec, principal, user)
            if spec.is_personal and keeps_sign_in and not offer.needs_sign_in and offer.error is None:
                offer = replace(offer, tools=(*offer.tools, make_sign_in_tool(spec)))
            offers[place] = offer

        async with anyio.create_task_group() as tasks:
            for place, spec in enumerate(wanted):
                tasks.start_soon(ask, place, spec)
        found = [offers[place] for place in range(len(wanted))]
        made = build_toolset(found, principal=principal, user=user, taken=taken, own=own)
        self._warn(found, made.offers)
        return made

    def _warn(self, given: Sequence[ServerOffer], kept: Sequence[ServerOffer]) -> None:
        """Tells the operator once of each tool that is refused for its name."""
        for before, after in zip(given, kept, strict=True):
            for each in after.rejected[len(before.rejected) :]:
                if after.spec.trusted and (known := (after.spec.label, each.name)) not in self._warned:
                    self._warned.add(known)
                    log.warning("tool `%s` of MCP server `%s` cannot be used: %s", each.name, after.spec.label, each.reason)

    def share_limits(self, limits: SharedLimits) -> None:
        """Has the rate of each server hold for all processes on a store together."""
        self._shared_limits = limits
        self._limits.clear()

    def connect(self) -> None:
        """Starts to connect the operator's servers, in the background."""
        for spec in self.servers:
            if not spec.is_personal:
                self._watch(spec).start()

    @property
    def states(self) -> tuple[ServerState, ...]:
        """How the operator's servers are doing."""
        return tuple([self._get_state(spec) for spec in self.servers])

    def _get_state(self, spec: ServerSpec) -> ServerState:
        return ServerState(spec.label, "personal") if spec.is_personal else self._watch(spec).state

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
        tools = tools if tools is not None else await self.collect_tools(principal=context.tenant, user=context.user)
        route = tools.route(call.name)
        if route is None or not _is_meant(route, context.tool):
            missing = ", ".join([f"`{offer.spec.label}`: {offer.error}" for offer in tools.offers if offer.error])
            why = f"; not available: {missing}" if missing else "; it may have been renamed, or its server is no longer given"
            return ToolResult(call.id, f"No MCP server has a tool `{call.name}`{why}", is_error=True)
        if is_sign_in(route.spec, route.tool.name):
            return await self._confirm_sign_in(call, route.spec, tools)
        return await self._perform(call, context, route, tools)

    async def close(self) -> None:
        """Ends every session, and every server that is a process."""
        for watch in self._watches.values():
            watch.stop()
        self._watches.clear()
        for id in list(self._held):
            self._drop_held(id)
        for task in self._background:
            task.cancel()
        connections = [*self._connections.values(), *self._released]
        self._connections.clear()
        self._released.clear()
        async with anyio.create_task_group() as tasks:
            for connection in connections:
                tasks.start_soon(connection.close)

    async def _fetch_offer(self, spec: ServerSpec, principal: str, user: str) -> ServerOffer:
        try:
            listing = await self._list_tools(spec, principal, user)
        except MainspringError as error:
            if isinstance(error, SignInNeeded) and spec.is_personal:
                return ServerOffer(spec, (make_sign_in_tool(spec),), needs_sign_in=True)
            return ServerOffer(spec, error=error.message, is_refused=isinstance(error, ServerRefused))
        key = self._key(spec, principal, user)
        known, offer = self._offers.get(key, (None, None))
        if offer is None or known != listing or offer.spec != spec:
            offer = await build_offer(spec, listing)
            self._offers[key] = listing, offer
        return offer if self._lock is None else await self._review(offer, self._lock)

    async def _review(self, offer: ServerOffer, file: "LockFile") -> ServerOffer:
        """The offer as far as it is what was approved."""
        try:
            lock = file.read()
            if lock is None or not offer.spec.trusted:
                return offer
            return lock.review(offer, await self._find_certificate(offer.spec))
        except MainspringError as error:
            return ServerOffer(offer.spec, error=f"refused: {error.message}", is_refused=True)

    async def _check_server(self, spec: ServerSpec, listing: ToolListing) -> None:
        """Raises `ServerRefused` for a server that is another than was approved."""
        if self._lock is not None:
            reviewed = await self._review(await build_offer(spec, listing), self._lock)
            if reviewed.is_refused:
                raise ServerRefused(reviewed.error or "refused")

    async def _require_approved(self, spec: ServerSpec) -> None:
        """Raises `ServerRefused` for a server that is another than was approved, `ToolUnavailable` if nobody can tell."""
        if self._lock is not None:
            offer = await self._fetch_offer(spec, "", "")
            if offer.is_refused or (offer.error is not None and self._lock.read() is not None):
                raise (ServerRefused if offer.is_refused else ToolUnavailable)(offer.error or "refused")

    async def _find_certificate(self, spec: ServerSpec) -> str:
        now = asyncio.get_running_loop().time()
        until, known = self._certificates.get(spec.label, (0.0, ""))
        if until < now:
            known = await mcp_lock.fetch_certificate(spec, self._guard)
            self._certificates[spec.label] = now + LIST_TTL, known
        return known

    async def _find_change(self, route: ToolRoute, tools: Toolset) -> str | None:
        """Why a tool must not run that is no more what was approved."""
        if self._lock is None or not route.spec.trusted or self._lock.read() is None:
            return None
        offer = await self._fetch_offer(route.spec, tools.principal, tools.user)
        if any(tool.name == route.tool.name for tool in offer.tools):
            return None
        flaw = next((each.reason for each in offer.rejected if each.name == route.tool.name), None)
        return offer.error or flaw or "its server has it no more"

    async def _confirm_approved(self, route: ToolRoute, tools: Toolset) -> None:
        """Raises `ToolUnavailable` for a tool that has changed, as far as its server says by now."""
        if (flaw := await self._find_change(route, tools)) is not None:
            raise ToolUnavailable(f"`{route.definition.name}` was not called: {flaw}")

    async def _list_tools(self, spec: ServerSpec, principal: str, user: str) -> ToolListing:
        if not spec.is_personal:
            return await (self._watch(spec) if spec.trusted else self._get_connection(spec, principal, user)).list_tools()
        account = self._get_sign_ins().find_account(spec, principal, user)
        if not await self._get_sign_ins().is_signed_in(spec, account):
            raise SignInNeeded(spec.label)
        try:
            async with asyncio.timeout(self._start_seconds):
                return await self._get_connection(spec, principal, user).list_tools()
        except TimeoutError:
            raise ToolUnavailable(f"MCP server `{spec.label}` is not ready yet; its tools come when it is") from None

    async def _confirm_sign_in(self, call: ToolCall, spec: ServerSpec, tools: Toolset) -> ToolResult:
        """What the model is told after it has asked for a sign-in."""
        offer = await self._fetch_offer(spec, tools.principal, tools.user)
        if offer.needs_sign_in:
            return ToolResult(call.id, f"Nobody has signed in to `{spec.label}` yet.", is_error=True)
        if offer.error is not None:
            return ToolResult(call.id, offer.error, is_error=True)
        names = ", ".join([f"`{name}`" for name, route in tools.routes.items() if route.spec.label == spec.label])
        return ToolResult(call.id, f"The user has signed in to `{spec.label}`. Its tools: {names}")

    def _get_sign_ins(self) -> "SignIns":
        if self.sign_ins is None:
            raise InvalidRequest("a server with `oauth` needs a place for its sign-ins; pass `sign_ins`")
        return self.sign_ins

    async def _perform(self, call: ToolCall, context: CallContext, route: ToolRoute, tools: Toolset) -> ToolResult:
        try:
            await self._confirm_approved(route, tools)
        except ToolUnavailable as error:
            return ToolResult(call.id, error.message, is_error=True)
        connection = self._get_connection(route.spec, tools.principal, tools.user)
        try:
            async with self._get_limits(route.spec, tools.principal, tools.user).admit(
                context.tenant, is_new=context.kept is None
            ):
                if not route.tool.method:
                    return await self._converse(call, context, route, connection, partial(self._confirm_approved, route, tools))
                answer = await _read(call, route, connection)
        except AskPerson:
            raise
        except SignInNeeded as error:
            return await self._refuse_for_now(call, route, tools, error)
        except MainspringError as error:
            return _report(call, error, connection)
        return ToolResult(call.id, render_answer(answer), answer.is_error)

    async def fetch(self, label: str, method: str, params: Json, tenant: str = "") -> Json:
        """What one of the operator's servers has of resources or prompts, for a tenant. Raises `NotFound` if it is not
        there, or what it has is not to be shown."""
        reading = METHODS[method]
        for spec in self.servers:
            is_shown = spec.resources if reading.capability == "resources" else spec.prompts
            if spec.label == label and is_shown and not spec.is_personal:
                await self._require_approved(spec)
                async with self._get_limits(spec, "").admit(tenant):
                    return await self._get_connection(spec, "").fetch(method, params, str(params.get(reading.key, "")))
        raise NotFound(f"There is no MCP server `{label}` that shows its {reading.capability}.", param="label")

    async def _converse(
        self,
        call: ToolCall,
        context: CallContext,
        route: ToolRoute,
        connection: McpConnection,
        confirm_approved: Callable[[], Awaitable[None]],
    ) -> ToolResult:
        """The answer of the tool, or why there is none, and what it has used; or what its server asks first, as `AskPerson`."""
        held = self._take_held(context)
        exchange = held.exchange if held is not None else _make_exchange(route.spec, context)
        exchange.confirm_approved = confirm_approved
        seconds = context.tool.timeout if context.tool.timeout is not None else route.spec.timeout
        work = (
            held.work
            if held is not None
            else connection.call(
                route.tool.name, call.parsed, seconds=seconds, repeatable=context.tool.repeatable, exchange=exchange
            )
        )
        try:
            if not isinstance(work, asyncio.Task) and not connection.holds_questions:
                answer = await work
            else:
                answer = await self._wait(work, exchange, context)
            return ToolResult(call.id, render_answer(answer), answer.is_error, exchange.used)
        except asyncio.CancelledError:
            if exchange.kept.task:
                self._start(_cancel_task(context, connection, exchange.kept.task))
            raise
        except AskPerson:
            if exchange.kept.task and context.runs is not None:
                self._start(self._watch_task(connection, exchange.kept.task, context, context.runs))
            raise
        except SignInNeeded:
            raise
        except MainspringError as error:
            return _report(call, error, connection, exchange.used)

    async def _wait(
        self,
        work: "Coroutine[object, object, ToolAnswer] | asyncio.Task[ToolAnswer]",
        exchange: CallExchange,
        context: CallContext,
    ) -> ToolAnswer:
        """The answer of a call that may ask while it is under way: then it is held, and goes on without us."""
        loop = asyncio.get_running_loop()
        task = work if isinstance(work, asyncio.Task) else loop.create_task(work)
        while exchange.question is None or task.done():
            if task.done():
                return await task
            asking = loop.create_task(exchange.has_question.wait())
            try:
                await asyncio.wait((task, asking), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                task.cancel()
                raise
            finally:
                asking.cancel()
        id = random_id("held")
        question = exchange.ask(exchange.question, id)
        exchange.wait_for(exchange.question, id)
        if len(self._held) >= MOST_HELD:
            self._drop_held(next(iter(self._held)))
        self._held[id] = HeldCall(task, exchange, loop.call_later(HOLD_SECONDS, self._drop_held, id))
        if context.runs is not None:
            self._start(self._watch_held(id, context, context.runs))
        raise question

    async def _watch_held(self, id: str, context: CallContext, runs: Runs) -> None:
        """Cancels a held call once nobody can answer its question here any more."""
        if await self._outlast_question(context, runs) != "used_here":
            self._drop_held(id)

    async def _watch_task(self, connection: McpConnection, task: str, context: CallContext, runs: Runs) -> None:
        """Cancels the task of a call whose question was withdrawn."""
        if await self._outlast_question(context, runs) == "closed":
            with suppress(MainspringError):
                await connection.cancel_task(task)

    async def _outlast_question(self, context: CallContext, runs: Runs) -> QuestionStand:
        """How it stands about the question of a call when it is not open any more, or a call would be held no longer. One look is
        not enough: an answer is used a moment before its run begins."""
        with suppress(MainspringError):
            await (await runs.attach(context.run_id)).wait()
        loop = asyncio.get_running_loop()
        until = loop.time() + HOLD_SECONDS
        seen: QuestionStand = "open"
        while loop.time() < until:
            try:
                now = await runs.find_question(context.question, context.tenant)
            except MainspringError:  # a store that is away says nothing
                now = "open"
            if now == seen != "open":
                return now
            seen = now
            await asyncio.sleep(self._look_seconds)
        return "open"

    def _take_held(self, context: CallContext) -> HeldCall | None:
        """The call that a person has answered, if it still waits here."""
        kept = (context.kept or {}).get("held")
        held = self._held.pop(kept, None) if isinstance(kept, str) else None
        if held is None:
            return None
        held.expiry.cancel()
        has_failed = held.work.done() and (held.work.cancelled() or held.work.exception() is not None)
        if has_failed or context.answer is None:
            held.work.cancel()
            return None
        held.exchange.told = context.progress
        held.exchange.take_answer(context.answer)
        return held

    def _drop_held(self, id: str) -> None:
        if (held := self._held.pop(id, None)) is not None:
            held.expiry.cancel()
            held.work.cancel()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _get_limits(self, spec: ServerSpec, principal: str, user: str = "") -> CallLimits:
        key = self._key(spec, principal, user)
        if key not in self._limits:
            name = sha256(f"{spec.label}\0{spec.at}\0{key[1]}".encode()).hexdigest()
            self._limits[key] = CallLimits(spec, f"mcp {name}", self._shared_limits)
        return self._limits[key]

    async def _refuse_for_now(self, call: ToolCall, route: ToolRoute, tools: Toolset, error: SignInNeeded) -> ToolResult:
        """The next call of the tool waits for the user, who is shown a link."""
        spec, sign_ins = route.spec, self._get_sign_ins()
        if not spec.is_personal:
            return ToolResult(call.id, error.message, is_error=True)
        if error.scope:
            account = sign_ins.find_account(spec, tools.principal, tools.user)
            await sign_ins.want(spec, account, route.tool.name, error.scope)
        told = f"`{spec.label}` wants the user to sign in first. Call `{call.name}` again, and the user is asked to."
        return ToolResult(call.id, told, is_error=True)

    def _get_connection(self, spec: ServerSpec, principal: str, user: str = "") -> McpConnection:
        key = self._key(spec, principal, user)
        if key not in self._connections:
            self._connections[key] = McpConnection(
                spec,
                guard=self._guard,
                wrap=self._wrap,
                can_ask=True,
                authorizer=self._make_authorizer(spec, principal, user),
                connect_seconds=self._connect_seconds,
            )
        return self._connections[key]

    def _make_authorizer(self, spec: ServerSpec, principal: str, user: str) -> "Authorizer | None":
        if spec.oauth is None:
            return None
        sign_ins = self._get_sign_ins()
        return sign_ins.authorize(spec, sign_ins.find_account(spec, principal, user))

    def _watch(self, spec: ServerSpec) -> ServerWatch:
        if spec.target not in self._watches:
            check = None if self._lock is None else partial(self._check_server, spec)
            self._watches[spec.target] = ServerWatch(self._get_connection(spec, ""), self._start_seconds, check)
        return self._watches[spec.target]

    def _key(self, spec: ServerSpec, principal: str, user: str) -> tuple[bytes, str]:
        if spec.is_personal:
            return spec.target, f"{principal}\0{user}"
        return spec.target, "" if spec.trusted else principal

    def _release_idle(self) -> None:
        """Closes connections of requests that were idle for too long, and the least recently used if there are too many."""
        self._released = {connection for connection in self._released if not connection.is_over}
        strangers = sorted(
            [(connection.idle_seconds(), key) for key, connection in self._connections.items() if _is_strange(connection.spec)],
            reverse=True,
        )
        surplus = len(strangers) - self._most_strangers
        for place, (seconds, key) in enumerate(strangers):
            if seconds > 0 and (seconds > IDLE_SECONDS or place < surplus):
                self._offers.pop(key, None)
                self._limits.pop(key, None)
                connection = self._connections.pop(key)
                connection.release()
                self._released.add(connection)


def _is_strange(spec: ServerSpec) -> bool:
    """Whether a connection to it is for some requests only."""
    return spec.is_personal or not spec.trusted


def _is_meant(route: ToolRoute, tool: ToolDefinition) -> bool:
    """Whether the run means the tool of this server: another server may have a tool of that name."""
    meant = tool.server
    return not isinstance(meant, ServerTool) or (meant.label, meant.at) == (route.spec.label, route.spec.at)


def _make_exchange(spec: ServerSpec, context: CallContext) -> CallExchange:
    return CallExchange(
        spec.label,
        context.progress,
        can_ask=True,
        is_trusted=spec.trusted,
        kept=context.kept,
        said=context.answer,
        keep=context.keep,
        sampler=Sampler(context) if spec.sampling else None,
    )


def _report(call: ToolCall, error: MainspringError, connection: McpConnection, used: Used | None = None) -> ToolResult:
    """What the model is told of a call that failed. What its server had the model say meanwhile has been used all the same."""
    # The tool may be gone, or want other arguments by now.
    connection.forget_tools()
    return ToolResult(call.id, error.message, is_error=True, used=used, is_late=isinstance(error, ToolTimeout))


async def _read(call: ToolCall, route: ToolRoute, connection: McpConnection) -> ToolAnswer:
    """What a tool that is no tool of the server reads of it."""
    method, given = route.tool.method, {name: value for name, value in call.parsed.items() if value is not None}
    result = await connection.fetch(method, given, str(given.get(METHODS[method].key, "")))
    try:
        return render_reading(method, result)
    except BadAnswer as error:
        raise ToolUnavailable(f"MCP server `{route.spec.label}` answered `{method}` with what it may not: {error}") from error


async def _cancel_task(context: CallContext, connection: McpConnection, task: str) -> None:
    """Cancels the task of a call once its run has ended. One whose engine only stops goes on, and so does its task."""
    with suppress(MainspringError):
        if context.runs is not None:
            await (await context.runs.attach(context.run_id)).wait()
        await connection.cancel_task(task)
