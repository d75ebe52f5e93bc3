"""One Chromium for an engine, started by the first call that needs it, and the sessions in it.

Theory of operation. A session belongs to a tenant and a conversation, and uses one of the browser's listening sockets as its
proxy. Their number is limited in total and per tenant; see `choose_evicted`. A session that is idle for too long, or whose page
hangs, is closed. When Chromium exits, all sessions are gone, and the next call starts another one. On a store that others share,
a session goes on in their browsers; see `shared_sessions`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from logging import getLogger
from time import monotonic
from types import TracebackType
from typing import Self

import anyio

from mainspring.core.errors import StoreError, ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.sandbox import SandboxHealth
from mainspring.ports import DocumentStore, Drivers
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.browser.browser_session import BrowserSession
from mainspring.tools.browser.chromium import Chromium, find_chromium, run_chromium
from mainspring.tools.browser.devtools import CommandFailed
from mainspring.tools.browser.proxy import Flaw, Proxy
from mainspring.tools.browser.shared_sessions import SharedSessions
from mainspring.tools.builtin.containers import Key, choose_evicted
from mainspring.tools.contract import ToolContext
from mainspring.tools.sandbox.grants import Wrap

log = getLogger(__name__)

MOST, MOST_EACH = 8, 4
IDLE_SECONDS = 600.0
BACKEND = "bwrap"
PAGES = [{"type": "page"}, {"exclude": True}]


class Browser:
    """The sessions of an engine, from `async with` on. `wrap` and `health` are the sandbox's."""

    def __init__(
        self,
        wrap: Wrap,
        health: Callable[[], Awaitable[SandboxHealth | None]],
        guard: AddressGuard,
        flaw: Flaw | None = None,
        *,
        most: int = MOST,
        most_each: int = MOST_EACH,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._wrap, self._health, self._guard, self._flaw = wrap, health, guard, flaw
        self._most, self._most_each, self._clock = most, most_each, clock
        self._sessions: OrderedDict[Key, BrowserSession] = OrderedDict()
        self._changing = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._chromium: Chromium | None = None
        self._free: list[Proxy] = []
        self._shared: SharedSessions | None = None

    def keep_in(self, store: DocumentStore, drivers: Drivers) -> None:
        """Has other processes on this store go on with the sessions."""
        self._shared = SharedSessions(store, drivers, IDLE_SECONDS)

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sweeper.cancel()
        await asyncio.wait([self._sweeper])
        async with self._changing:
            await self._stop()

    @property
    def pid(self) -> int | None:
        """The browser's process id, None if it is not running."""
        return self._chromium.pid if self._chromium is not None else None

    @asynccontextmanager
    async def session(self, context: ToolContext, *, makes: bool = False) -> AsyncIterator[BrowserSession]:
        """The session of a conversation for one call. With `makes`, a missing one is created.

        Raises `ToolUnavailable` or `SandboxError` if there is no browser, `SandboxFull` if there is no room.
        """
        key = (context.tenant, context.scope or context.run_id)
        if self._shared is None:
            async with self._use(key, context, makes) as session:
                yield session
            return
        async with self._shared.hold(key, makes=makes) as held:
            if not held.is_home:
                await self.close(key)
            is_new = key not in self._sessions
            async with self._use(key, context, makes or bool(held.state.address)) as session:
                if is_new:
                    await session.restore("" if makes else held.state.address, held.state.cookies)
                try:
                    yield session
                finally:
                    # A page that hangs is where it was.
                    with anyio.CancelScope(shield=True), suppress(CommandFailed, TimeoutError, ToolUnavailable):
                        held.keep(*await session.describe())

    @asynccontextmanager
    async def _use(self, key: Key, context: ToolContext, makes: bool) -> AsyncIterator[BrowserSession]:
        async with self._changing:
            session = await self._find_session(key, makes)
            session.users += 1
        try:
            async with session.lock:
                session.proxy.begin(context)
                yield session
        except ToolUnavailable:
            await self.close(key, session)
            raise
        except TimeoutError:
            await self.close(key, session)
            raise ToolUnavailable("the page does not answer any more, and was closed; open it again, or another one") from None
        finally:
            session.users -= 1
            session.last_use = self._clock()
            if self._sessions.get(key) is session:
                self._sessions.move_to_end(key)

    async def forget(self, key: Key) -> None:
        """Ends a session, wherever it is."""
        await self.close(key)
        if self._shared is not None:
            await self._shared.remove(key)

    async def close(self, key: Key, session: BrowserSession | None = None) -> None:
        """Ends a session, if it is here, and is this one."""
        with anyio.CancelScope(shield=True):
            async with self._changing:
                if key in self._sessions and session in (None, self._sessions[key]):
                    await self._drop(key)

    async def expire(self) -> None:
        """Closes idle sessions, and those that go on elsewhere; also called periodically."""
        if self._shared is not None:
            await self._shared.sweep()
        async with self._changing:
            oldest = self._clock() - IDLE_SECONDS
            for key, session in list(self._sessions.items()):
                is_gone = session.last_use <= oldest or (self._shared is not None and not await self._shared.is_here(key))
                if is_gone and not session.users:
                    await self._drop(key)
            if not self._sessions:
                await self._stop()

    async def _find_session(self, key: Key, makes: bool) -> BrowserSession:
        if self._chromium is not None and not self._chromium.protocol.is_open:
            log.warning("Chromium has ended by itself; the pages in it are gone")
            await self._stop()
        if (session := self._sessions.get(key)) is not None:
            return session
        if not makes:
            raise ToolUnavailable("no page is open in this conversation; begin with `open`")
        await self._make_room(key[0])
        chromium = self._chromium or await self._start()
        session = BrowserSession(chromium.protocol, self._free[-1])
        try:
            await session.begin()
        except (CommandFailed, TimeoutError) as error:
            await self._stop()
            raise ToolUnavailable("the browser does not answer, and was ended; try again") from error
        self._free.pop()
        self._sessions[key] = session
        return session

    async def _start(self) -> Chromium:
        health = await self._health()
        if health is None or health.backend != BACKEND:
            kind = "none" if health is None else f"`{health.backend}`"
            why = f": {'; '.join(health.refused)}" if health is not None and health.refused else ""
            raise ToolUnavailable(
                f"the browser needs the sandbox `{BACKEND}`, which alone holds its network; here is {kind}{why}"
            )
        async with AsyncExitStack() as stack:
            chromium = await stack.enter_async_context(run_chromium(self._wrap, self._most, find_chromium()))
            chromium.protocol.listeners[""] = self._hear
            await chromium.protocol.send(
                "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True, filter=PAGES
            )
            doors = [await stack.enter_async_context(Proxy(door, self._guard, self._flaw)) for door in chromium.doors]
            self._stack = stack.pop_all()
        self._chromium, self._free = chromium, doors
        return chromium

    async def _stop(self) -> None:
        """Ends Chromium with everything in it."""
        self._sessions.clear()
        self._chromium, self._free = None, []
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key)
        try:
            await session.close()
            self._free.append(session.proxy)
        except (CommandFailed, TimeoutError, ToolUnavailable):
            # A browser that cannot even close a page is broken for all sessions.
            log.warning("Chromium does not answer, and is ended; the pages in it are gone")
            await self._stop()

    async def _make_room(self, tenant: str) -> None:
        unused = [key for key, session in self._sessions.items() if not session.users]
        limits = {"most": self._most, "most_each": self._most_each}
        key = choose_evicted(self._sessions.keys(), unused, tenant, **limits, what="browser sessions", advice="`close` one")
        if key is not None:
            await self._drop(key)

    def _hear(self, method: str, params: Json) -> None:
        if method == "Target.attachedToTarget":
            about = params["targetInfo"]
            for session in self._sessions.values():
                if session.context == about.get("browserContextId"):
                    session.attach(params["sessionId"], about["targetId"])
                    return
            if self._chromium is not None:
                self._chromium.protocol.post("Runtime.runIfWaitingForDebugger", params["sessionId"])
        elif method == "Target.detachedFromTarget":
            for session in self._sessions.values():
                session.detach(params["sessionId"])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 4)
            with suppress(ToolUnavailable, StoreError):
                await self.expire()
