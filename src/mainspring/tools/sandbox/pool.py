"""Slots whose worker is up before anybody asks, each for one lease only. What is taken is replaced in the background."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from logging import getLogger

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.slot import Slot

log = getLogger(__name__)


class Pool:
    """Keeps `count` slots ready, from `fill` to `close`."""

    def __init__(self, count: int, make: Callable[[], Awaitable[Slot]]) -> None:
        self._count = count
        self._make = make
        self._ready: deque[Slot] = deque()
        self._filling: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        return len(self._ready)

    def fill(self) -> None:
        """Begins to replace what is missing. If that fails, it is tried again with the next lease."""
        if self._count and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def filled(self) -> None:
        """Returns when nothing is missing any more, or could not be made."""
        if self._filling is not None:
            await asyncio.wait([self._filling])

    def take(self) -> Slot | None:
        """A slot with a waiting worker; None if there is none at the moment."""
        taken = self._ready.popleft() if self._ready else None
        self.fill()
        return taken

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        while self._ready:
            await self._ready.popleft().remove()

    async def _fill(self) -> None:
        while len(self._ready) < self._count:
            try:
                self._ready.append(await self._make())
            except SandboxError as error:
                log.warning("no worker could be started ahead: %s", error.message)
                return
