"""A connection to one MCP server, for callers of any task.

A session must be left in the task that entered it, and fails as a whole when one request cannot reach the server. So each session
has a task of its own, which enters it, waits, and leaves it; callers only await its answers. A session starts with
the first request, and again with the first request after it was lost. A server that ends before it has answered anything, or
that says too much, is restarted with exponential backoff, 0.5 to 30 s.

Connecting, listing, each call and closing have timeouts. Cancelling a caller cancels its request at the server.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, TypeVar

import anyio

from mainspring.core.backoff import backoff
from mainspring.core.errors import MainspringError, SignInNeeded, ToolTimeout, ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.late_module import LateModule
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.call_exchange import CallExchange
from mainspring.tools.mcp.exchange import (
    STATELESS,
    Elicit,
    Progress,
    SessionLost,
    ToolAnswer,
    ToolListing,
    TooMuchSaid,
    list_errors,
)
from mainspring.tools.mcp.server_specs import CALL_SECONDS, ServerSpec

if TYPE_CHECKING:
    from mainspring.tools.mcp import session as mcp_session
    from mainspring.tools.mcp.session import McpSession
    from mainspring.tools.mcp.sign_in import Authorizer
    from mainspring.tools.sandbox.grants import Wrap
else:
    mcp_session = LateModule("mainspring.tools.mcp.session")

log = getLogger(__name__)

CONNECT_SECONDS = 30.0
LIST_SECONDS = 30.0
CLOSE_SECONDS = 5.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

T = TypeVar("T")


class McpConnection:
    """One server, connected on demand. Raises `ToolUnavailable` for any failure, and `InvalidRequest` for a host that may not be
    reached."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        guard: AddressGuard | None = None,
        wrap: "Wrap | None" = None,
        elicit: Elicit | None = None,
        authorizer: "Authorizer | None" = None,
        can_ask: bool = False,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        guard = guard or AddressGuard()
        self.spec = spec
        self._guard = guard.allow(spec.host) if spec.trusted else guard
        self._wrap = wrap
        self._elicit, self._can_ask, self._authorizer = elicit, can_ask, authorizer
        self._connect_seconds = connect_seconds
        self._life: _Life | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._listing: ToolListing | None = None
        self._listed_at = -math.inf
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[ToolListing] | None = None
        self._failures = 0
        self._failure = ""
        self._resume_at = -math.inf
        self._in_use = 0
        self._last_use = -math.inf
        self._is_closed = False
        # What is known of it since it was reached: who it says it is, what it speaks, and how long its last answer took.
        self.server = self.protocol = ""
        self.latency: float | None = None

    @property
    def cached_tools(self) -> ToolListing | None:
        listing = self._listing
        is_fresh = listing is not None and asyncio.get_running_loop().time() - self._listed_at <= listing.seconds
        return listing if is_fresh else None

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._life is not None and self._life.session is not None and not self._life.stop.is_set()

    @property
    def pause_seconds(self) -> float:
        """How long no new session is tried."""
        return max(0.0, self._resume_at - asyncio.get_running_loop().time())

    async def list_tools(self, *, is_fresh: bool = False) -> ToolListing:
        """The server's tools, cached until the server says that they changed, and no longer than it allows or the session lasts;
        with `is_fresh` asked for in any case.

        Concurrent callers share one request.
        """
        if (listing := self.cached_tools) is not None and not is_fresh:
            return listing
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._fetch_tools())
            self._asking.add_done_callback(_consume_error)
        return await asyncio.shield(self._asking)

    async def call(
        self,
        name: str,
        arguments: Json,
        *,
        progress: Progress | None = None,
        seconds: float = CALL_SECONDS,
        repeatable: bool = False,
        exchange: CallExchange | None = None,
    ) -> ToolAnswer:
        """The answer of a tool. If the session is lost meanwhile, a repeatable call is retried once, and a task looked for once
        more. Raises `AskPerson` if `exchange` can ask people."""
        going = exchange or CallExchange(self.spec.label, progress or _ignore_progress, elicit=self._elicit)

        async def ask(session: "McpSession") -> ToolAnswer:
            return await session.call(name, arguments, going)

        return await self._ask(ask, seconds, is_repeatable=lambda: repeatable or bool(going.kept.task), exchange=going)

    async def fetch(self, method: str, params: Json, name: str = "") -> Json:
        """The result of a request of resources or prompts."""

        async def ask(session: "McpSession") -> Json:
            return await session.fetch(method, params, name)

        return await self._ask(ask, self.spec.timeout, is_repeatable=lambda: True)

    async def cancel_task(self, task: str) -> None:
        """Tells the server that nobody waits for a task any more, if it can be told at all."""

        async def ask(session: "McpSession") -> None:
            await session.cancel_task(task)

        with suppress(MainspringError):
            await self._ask(ask, LIST_SECONDS, is_repeatable=lambda: False)

    def forget_tools(self) -> None:
        """Empties the cache of `list_tools`."""
        self._changed.set()
        self._listing = None
        self._listed_at = -math.inf

    @property
    def holds_questions(self) -> bool:
        """Whether the server may ask while a call is under way, so that the call waits for the answer."""
        return self._can_ask and self.protocol != STATELESS

    async def wait_for_change(self) -> None:
        """Waits until the tools that were listed last may be others."""
        await self._changed.wait()

    def idle_seconds(self) -> float:
        """Seconds since the last use; 0 while in use."""
        return 0.0 if self._in_use else asyncio.get_running_loop().time() - self._last_use

    @property
    def is_over(self) -> bool:
        """Whether nothing of this connection is running."""
        return not self._owners

    def release(self) -> None:
        """Ends the session in the background. The next request starts another."""
        if self._life is not None:
            self._life.stop.set()
            self._life = None
        self.forget_tools()

    async def close(self) -> None:
        """Ends the session, and the server if it is a process. Later requests fail."""
        self._is_closed = True
        if (life := self._life) is not None and life.session is None and life.owner is not None:
            life.owner.cancel()  # nobody waits for it any more, and it may never get ready
        self.release()
        if self._asking is not None:
            self._asking.cancel()
        if self._owners:
            _, late = await asyncio.wait(self._owners, timeout=2 * CLOSE_SECONDS)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_SECONDS)

    async def _fetch_tools(self) -> ToolListing:
        # Set before the request: a change that is announced meanwhile must not be lost.
        self._changed.clear()
        self._listed_at = began = asyncio.get_running_loop().time()
        listing = await self._ask(lambda session: session.list_tools(), LIST_SECONDS, is_repeatable=lambda: True)
        if self._listed_at == began:
            self._listing = listing
        return listing

    async def _ask(
        self,
        question: "Callable[[McpSession], Awaitable[T]]",
        seconds: float,
        *,
        is_repeatable: Callable[[], bool],
        exchange: CallExchange | None = None,
    ) -> T:
        self._in_use += 1
        try:
            try:
                return await self._ask_once(question, seconds, exchange)
            except SessionLost as lost:
                if not is_repeatable():
                    raise ToolUnavailable(
                        f"MCP server `{self.spec.label}` was lost during the call ({lost}); whether it was carried out is not "
                        "known: look before you call again"
                    ) from lost
            # The one repetition is made at once.
            self._resume_at = -math.inf
            try:
                return await self._ask_once(question, seconds, exchange)
            except SessionLost as lost:
                raise ToolUnavailable(f"MCP server `{self.spec.label}` was lost twice ({lost}); try again later") from lost
        finally:
            self._in_use -= 1
            self._last_use = asyncio.get_running_loop().time()

    async def _ask_once(
        self, question: "Callable[[McpSession], Awaitable[T]]", seconds: float, exchange: CallExchange | None = None
    ) -> T:
        life = await self._get_life()
        assert life.session is not None
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds) as limit:
                if exchange is not None:
                    exchange.limit, exchange.seconds = limit, seconds
                answer = await question(life.session)
        except TimeoutError:
            if exchange is not None and exchange.kept.task:
                life.session.abandon_task(exchange.kept.task)
            raise ToolTimeout(
                f"MCP server `{self.spec.label}` did not answer within {seconds:g} s; the request was cancelled"
            ) from None
        except SessionLost as lost:
            await self._retire(life, str(lost))
            if life.fault is not None:
                raise life.fault from lost
            raise SessionLost(life.reason) from lost
        life.has_answered = True
        self.latency = asyncio.get_running_loop().time() - began
        return answer

    async def _get_life(self) -> "_Life":
        life = self._life
        if life is None or life.stop.is_set():
            life = self._life = self._begin()
        await life.opened.wait()
        if life.session is None:
            raise life.fault or ToolUnavailable(self._describe(life))
        return life

    def _begin(self) -> "_Life":
        wait = self.pause_seconds
        if self._is_closed:
            raise ToolUnavailable(f"the connection to MCP server `{self.spec.label}` is closed; open another")
        if wait > 0:
            raise ToolUnavailable(f"{self._failure}; it is tried again in {wait:.1f} s")
        life = _Life()
        owner = asyncio.get_running_loop().create_task(self._own(life), name=f"MCP server {self.spec.label}")
        life.owner = owner
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        return life

    async def _own(self, life: "_Life") -> None:
        """Enters a session, waits until it is to stop, and leaves it."""
        try:
            with anyio.move_on_after(self._connect_seconds) as scope:
                can_ask = self._can_ask or self._elicit is not None
                opening = mcp_session.open_session(
                    self.spec, self._guard, self._wrap, self.forget_tools, self._authorizer, can_ask=can_ask
                )
                async with opening as session:
                    scope.deadline = math.inf
                    life.session = session
                    self.server, self.protocol = session.server, session.protocol
                    life.opened.set()
                    await life.stop.wait()
                    scope.deadline = anyio.current_time() + CLOSE_SECONDS
            if life.session is None:
                life.reason = f"it did not get ready within {self._connect_seconds:g} s"
        # The server or the network may raise anything; it ends this session only.
        except Exception as error:
            log.debug("the session with MCP server %s ended", self.spec.label, exc_info=True)
            life.end(error)
        finally:
            self._note_end(life)

    def _note_end(self, life: "_Life") -> None:
        is_ours = life.stop.is_set() and not life.is_lost
        if self._life is life:
            self._life = None
        self.forget_tools()
        if life.has_answered and not life.has_said_too_much:
            self._failures = 0
        elif not is_ours and not isinstance(life.fault, SignInNeeded):
            self._failures += 1
            self._failure = self._describe(life)
            pause = backoff(self._failures, base=FIRST_PAUSE, cap=LONGEST_PAUSE)
            self._resume_at = asyncio.get_running_loop().time() + pause
            log.warning("%s", self._failure)
        life.stop.set()
        life.opened.set()
        life.ended.set()

    def _describe(self, life: "_Life") -> str:
        if life.fault is not None:
            return life.fault.message
        told = f"MCP server `{self.spec.label}` cannot be used: {life.reason}"
        return f"{told}; it runs in the sandbox: {self.spec.advice}" if self.spec.is_held else told

    async def _retire(self, life: "_Life", symptom: str) -> None:
        """Ends a lost session, and waits for its task, which may know a better reason than the symptom."""
        life.is_lost = True
        life.reason = life.reason or symptom
        if self._life is life:
            self.release()
        life.stop.set()
        with anyio.move_on_after(CLOSE_SECONDS):
            await life.ended.wait()


class _Life:
    """The state of one session. `fault` is an error of ours that ended it, `reason` describes any other."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.stop = asyncio.Event()
        self.ended = asyncio.Event()
        self.owner: asyncio.Task[None] | None = None
        self.session: McpSession | None = None
        self.has_answered = False
        self.is_lost = self.has_said_too_much = False
        self.fault: MainspringError | None = None
        self.reason = ""

    def end(self, error: BaseException) -> None:
        found = list_errors(error)
        self.has_said_too_much = any(isinstance(leaf, TooMuchSaid) for leaf in found)
        self.fault = next((leaf for leaf in found if isinstance(leaf, MainspringError)), None)
        said = [str(leaf) if isinstance(leaf, SessionLost) else f"{type(leaf).__name__}: {leaf}" for leaf in found]
        self.reason = shorten_line(", ".join(dict.fromkeys(said)))


def _consume_error(task: asyncio.Task[ToolListing]) -> None:
    """Marks the exception of a task as retrieved, whose callers may all be gone."""
    if not task.cancelled():
        task.exception()


def _ignore_progress(text: str) -> None:
    pass
