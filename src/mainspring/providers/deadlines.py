"""Time limits on a model that should be speaking: for its first event, and for each one after that.

How long a connection may take, and how long it may stay silent, `_http` knows itself. But a backend that is reached and keeps its
line alive without ever getting to the point is not silent, and a model in this process has no line at all.
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
    """Raises `Unavailable`, the stream behind it closed, when an event takes too long; None means as long as it likes.

    Only the time spent waiting for the backend counts, never that of a reader who is slow to ask for the next event.
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
            watch, time = _IdleTimer(loop, self._idle), loop.time
            try:
                async for event in events:
                    watch.waiting = None
                    yield event
                    watch.since, watch.waiting = time(), current_task(loop)
            except CancelledError:
                if not watch.has_struck():
                    raise
                raise Unavailable(
                    f"provider `{self.name}` fell silent for {self._idle:g} s within its answer; try again"
                ) from None
            finally:
                watch.stop()

    async def _first_event(self, events: AsyncGenerator[ModelEvent, None]) -> ModelEvent | None:
        with move_on_after(self._first):
            return await anext(events, None)
        advice = "is the model loaded? raise the limit for the first event if it is slow"
        raise Unavailable(f"provider `{self.name}` said nothing for {self._first:g} s; {advice}")


class _IdleTimer:
    """Cancels whoever has been waiting for too long. One timer serves a whole stream: it looks at what `since` says when it runs
    out, so that an event costs no more than writing the time down."""

    __slots__ = ("_limit", "_loop", "_struck", "_timer", "since", "waiting")

    def __init__(self, loop: AbstractEventLoop, limit: float) -> None:
        self._loop, self._limit = loop, limit
        self._struck: Task[Any] | None = None
        self._timer = loop.call_later(limit, self._look)
        self.since = loop.time()
        self.waiting = current_task(loop)

    def has_struck(self) -> bool:
        """Whether the cancellation that has arrived is this watch's own and nobody else's."""
        return self._struck is not None and self._struck.uncancel() == 0

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waiting, now = self.waiting, self._loop.time()
        # Somebody else's cancellation is not to be mixed up with this one's.
        since = now if waiting is None or waiting.cancelling() else self.since
        if waiting is None or now < since + self._limit:
            self._timer = self._loop.call_at(since + self._limit, self._look)
        else:
            self._struck = waiting
            waiting.cancel()
