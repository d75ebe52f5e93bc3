"""How many calls one MCP server is made: at once, and in a minute. Its trouble stays its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.core.errors import ToolRateLimited
from mainspring.tools.mcp.server_specs import ServerSpec

MINUTE = 60.0


class CallLimits:
    """The limits of one server. A call beyond `concurrency` waits for its turn, one beyond `rate` is refused."""

    def __init__(self, spec: ServerSpec) -> None:
        self._label, self._rate = spec.label, spec.rate
        self._slots = asyncio.Semaphore(spec.concurrency)
        self._begun: deque[float] = deque()

    @asynccontextmanager
    async def admit(self, *, is_new: bool = True) -> AsyncIterator[None]:
        """Raises `ToolRateLimited` for a call too many. One that goes on was counted when it was new."""
        if self._rate is not None and is_new:
            self._count(self._rate)
        async with self._slots:
            yield

    def _count(self, rate: float) -> None:
        now = asyncio.get_running_loop().time()
        window = MINUTE if rate >= 1 else MINUTE / rate
        while self._begun and self._begun[0] <= now - window:
            self._begun.popleft()
        if len(self._begun) >= max(rate, 1):
            wait = self._begun[0] + window - now
            told = f"MCP server `{self._label}` may be called {rate:g} times a minute; try again in {wait:.0f} s"
            raise ToolRateLimited(told, wait)
        self._begun.append(now)
