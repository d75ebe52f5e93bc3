"""Time limits for the first event of a model's answer, and for each event after it.

`http_client` knows how long a connection may take and how long it may stay silent. But a backend that keeps its connection alive
without producing events is not silent, and a model in this process has no connection at all.
"""

from asyncio import AbstractEventLoop, CancelledError, Task, current_task, get_running_loop
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from anyio import move_on_after

from mainspring.core.errors import Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.wrapper import ProviderWrapper


class Deadlines(ProviderWrapper):
    """Closes the stream and raises `Unavailable` when an event takes too long; None is no limit.

    Only the time spent waiting for the backend counts, not that of a slow reader.
    """

    def __init__(self, provider: Provider, *, first: float | None = None, idle: float | None = None) -> None:
        super().__init__(provider)
        self._first, self._idle = first, idle

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async with aclosing(self._provider.stream(request)) as events:
            if (event := await self._first_event(events)) is None:
                return
            yield event
            if self._idle is None:
                async for event in events:
                    yield event
                return
            loop = get_running_loop()
            timer, time = _IdleTimer(loop, self._idle), loop.time
            try:
                async for event in events:
                    timer.waiting = None
                    yield event
                    timer.since, timer.waiting = time(), current_task(loop)
            except CancelledError:
                if not timer.has_struck():
                    raise
                what = f"provider `{self.name}` fell silent for {self._idle:g} s within its answer"
                raise Unavailable(f"{what}; try again") from None
            finally:
                timer.stop()

    async def _first_event(self, events: AsyncGenerator[ModelEvent, None]) -> ModelEvent | None:
        with move_on_after(self._first):
            return await anext(events, None)
        advice = "is the model loaded? raise the limit for the first event if it is slow"
        raise Unavailable(f"provider `{self.name}` said nothing for {self._first:g} s; {advice}")


class _IdleTimer:
    """Cancels a task that has been waiting for too long. One timer serves a whole stream: it checks `since` when it expires, so
    that an event costs no more than storing the time."""

    __slots__ = ("_limit", "_loop", "_struck", "_timer", "since", "waiting")

    def __init__(self, loop: AbstractEventLoop, limit: float) -> None:
        self._loop, self._limit = loop, limit
        self._struck: Task[Any] | None = None
        self._timer = loop.call_later(limit, self._look)
        self.since = loop.time()
        self.waiting = current_task(loop)

    def has_struck(self) -> bool:
        """Whether the cancellation that has arrived is only this timer's own."""
        return self._struck is not None and self._struck.uncancel() == 0

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waiting, now = self.waiting, self._loop.time()
        # Somebody else's cancellation must not be mistaken for this timer's.
        since = now if waiting is None or waiting.cancelling() else self.since
        if waiting is None or now < since + self._limit:
            self._timer = self._loop.call_at(since + self._limit, self._look)
        else:
            self._struck = waiting
            waiting.cancel()
