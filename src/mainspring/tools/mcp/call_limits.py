"""How many calls one MCP server is made: at once, and in a minute. Its trouble stays its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil

from mainspring.core.errors import ToolRateLimited
from mainspring.ports import RateWindow, SharedLimits
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.work_turns import Turns

MINUTE = 60.0


class CallLimits:
    """The limits of one server. A call beyond `concurrency` waits for a turn, as tenants take them; one beyond
    `rate` is refused.

    With `shared`, the calls of all processes on a store count for the rate, under this `name`, else those of this one.
    """

    def __init__(self, spec: ServerSpec, name: str = "", shared: SharedLimits | None = None) -> None:
        self._label, self._rate = spec.label, spec.rate
        self._turns = Turns(spec.concurrency)
        self._begun: deque[float] = deque()
        self._shared = None
        if shared is not None and spec.rate is not None:
            self._shared = shared.open_limit(name, windows=(_make_window(spec.rate),))

    @asynccontextmanager
    async def admit(self, tenant: str, *, is_new: bool = True) -> AsyncIterator[None]:
        """Raises `ToolRateLimited` for a call too many, and `StoreError`. One that goes on was counted when it was new."""
        if self._rate is not None and is_new and (wait := await self._count(self._rate)) is not None:
            told = f"MCP server `{self._label}` may be called {self._rate:g} times a minute; try again in {wait:.0f} s"
            raise ToolRateLimited(told, wait)
        async with self._turns.take(tenant):
            yield

    async def _count(self, rate: float) -> float | None:
        """Counts a call. In how many seconds it may be made if it is one too many."""
        if self._shared is not None:
            grant = await self._shared.update(0, 1)
            return None if grant.count else grant.wait
        window, now = _make_window(rate), asyncio.get_running_loop().time()
        while self._begun and self._begun[0] <= now - window.seconds:
            self._begun.popleft()
        if len(self._begun) >= window.count:
            return self._begun[0] + window.seconds - now
        self._begun.append(now)
        return None


def _make_window(rate: float) -> RateWindow:
    return RateWindow(ceil(rate), MINUTE) if rate >= 1 else RateWindow(1, MINUTE / rate)
