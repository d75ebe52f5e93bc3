"""Keeps an operator's MCP server connected, so that requests do not wait for it.

A request waits for a list of tools only while the server starts, or while a session that is open is asked for a new list, and
never longer than `start_seconds`, which all that wait share, and which they have again `STABLE_SECONDS` later. Whatever takes
longer, and every attempt after a failure, happens in the background; until it succeeds, the server has no tools, and says why.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Literal

from anyio import move_on_after
from msgspec import Struct

from mainspring.core.backoff import backoff
from mainspring.core.errors import MainspringError, ToolUnavailable
from mainspring.tools.mcp.exchange import LIST_TTL, ToolListing
from mainspring.tools.mcp.server_connection import FIRST_PAUSE, LONGEST_PAUSE, McpConnection

# A session that lasted so long is no sign of a server that dies again and again.
STABLE_SECONDS = 60.0


class ServerState(Struct, frozen=True):
    """How a configured server is doing; at a `personal` one each user signs in, and a `refused` one is another than was approved.
    `error` is why it is down, `listing` what it has said last that it has. `server` and `protocol` are what it calls itself and
    speaks, `latency` are the seconds that its last answer took, `last_error` is why it was down last."""

    label: str
    state: Literal["ready", "starting", "down", "personal", "refused"]
    error: str | None = None
    listing: ToolListing | None = None
    server: str = ""
    protocol: str = ""
    latency: float | None = None
    last_error: str | None = None


class ServerRefused(ToolUnavailable):
    """The server is another than was approved."""


Check = Callable[[ToolListing], Awaitable[None]]


class ServerWatch:
    """One server, and the task that keeps it connected from the first question on. `check` raises `ServerRefused` for a list of
    a server that is not to be used."""

    def __init__(self, connection: McpConnection, start_seconds: float, check: Check | None = None) -> None:
        self._connection, self._check = connection, check
        self._is_refused = False
        self._start_seconds = start_seconds
        self._task: asyncio.Task[None] | None = None
        self._known: ToolListing | None = None
        self._error: str | None = None
        self._last_error: str | None = None
        self._deadline: float | None = None
        self._patience = start_seconds
        self._answered_at = -math.inf

    @property
    def state(self) -> ServerState:
        asked = self._connection
        about = (asked.server, asked.protocol, asked.latency, self._last_error)
        if self._error is not None:
            how: Literal["refused", "down"] = "refused" if self._is_refused else "down"
            return ServerState(asked.spec.label, how, self._error, None, *about)
        return ServerState(asked.spec.label, "ready" if self._known is not None else "starting", None, self._known, *about)

    async def list_tools(self) -> ToolListing:
        """The server's tools, without waiting for a server that is down. Raises `ToolUnavailable`."""
        self.start()
        if (listing := self._connection.cached_tools) is not None:
            return listing
        may_wait = self._error is None and (self._known is None or self._connection.is_open)
        if may_wait and (listing := await self._wait()) is not None:
            return listing
        if self._error is not None:
            raise ServerRefused(self._error) if self._is_refused else ToolUnavailable(self._error)
        if self._known is not None:
            return self._known  # it is being connected again
        raise ToolUnavailable(f"MCP server `{self._connection.spec.label}` is not ready yet; its tools come when it is")

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"watch {self._connection.spec.label}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self) -> ToolListing | None:
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._patience
        with move_on_after(self._deadline - now):
            return await self._list()
        return None

    async def _list(self, *, is_fresh: bool = False) -> ToolListing:
        try:
            listing = await self._connection.list_tools(is_fresh=is_fresh)
            if self._check is not None:
                await self._check(listing)
        except MainspringError as error:
            self._error, self._is_refused = error.message, isinstance(error, ServerRefused)
            self._last_error = error.message
            raise
        self._known, self._error = listing, None
        self._regain_patience()
        return self._known

    def _regain_patience(self) -> None:
        """A server that takes its time for every list, and always has another, must not be waited for again and again."""
        if self._deadline is None:
            return
        now = asyncio.get_running_loop().time()
        gained = (now - self._answered_at) * self._start_seconds / STABLE_SECONDS
        self._patience = min(self._start_seconds, max(0.0, self._deadline - now) + gained)
        self._answered_at, self._deadline = now, None

    async def _keep(self) -> None:
        attempt, loop = 0, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                listing = await self._list(is_fresh=attempt > 0)
                with move_on_after(0.9 * max(listing.seconds, LIST_TTL)):
                    await self._connection.wait_for_change()
            except MainspringError:
                pass  # it is kept as the reason why there are no tools
            attempt = 1 if loop.time() - began > STABLE_SECONDS else attempt + 1
            pause = (
                FIRST_PAUSE
                if self._error is None and self._connection.is_open
                else backoff(attempt, base=FIRST_PAUSE, cap=LONGEST_PAUSE)
            )
            await asyncio.sleep(max(pause, self._connection.pause_seconds))
