"""Rate limits: how many requests a backend gets at once and per minute. Requests beyond that wait in a fair queue.

Every tenant has a queue of its own, first in, first out, and a free place goes to each queue in turn. A tenant with a thousand
runs delays another by one turn of each queue at most.

With `share_limits` the places are those of all processes on a store. One task then asks for as many as requests wait, so that one
update serves all of them, and says that those in use still are.
"""

from asyncio import CancelledError, Event, Future, Task, TimerHandle, get_running_loop, wait
from collections import deque
from contextlib import aclosing, suppress
from logging import getLogger

from anyio import current_time, move_on_after

from mainspring.core.errors import RateLimited, StoreError
from mainspring.core.fair_queue import FairQueue
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import LIMIT_SECONDS, Grant, Provider, RateWindow, SharedLimit, SharedLimits
from mainspring.providers.wrapper import ProviderWrapper

log = getLogger(__name__)

MINUTE = 60.0
# How long to wait until other processes are asked again whether they have given back a place.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
CLOSE_SECONDS = 2.0
# What a client whose request was refused is told to wait.
RETRY_SECONDS = 5.0


class RateLimiter(ProviderWrapper):
    """Keeps at most `concurrency` streams open, and lets at most `per_minute` begin within any 60 seconds.

    With `model` the limits apply to that model only. A place is free again when its stream has ended, failed or been closed.
    Raises `RateLimited` when `line` requests of the same tenant wait already, and after `patience` seconds.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        concurrency: int | None = None,
        per_minute: int | None = None,
        model: str | None = None,
        line: int = 100,
        patience: float = 300.0,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("per_minute", per_minute), ("line", line)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is at least 1, not {value}")
        super().__init__(provider)
        self._model = model
        self._concurrency, self._per_minute, self._longest, self._patience = concurrency, per_minute, line, patience
        self._waiting: FairQueue[Future[None]] = FairQueue()
        self._open = 0
        self._begun: deque[float] = deque(maxlen=per_minute or 0)
        self._timer: TimerHandle | None = None
        # What is shared with other processes: places that were got and that nobody has taken yet, and who asks for them.
        self._shared: SharedLimit | None = None
        self._granted = 0
        self._changed = Event()
        self._updating: Task[None] | None = None

    def share_limits(self, limits: SharedLimits) -> None:
        windows = () if self._per_minute is None else (RateWindow(self._per_minute, MINUTE),)
        name = f"provider {self.name}" + ("" if self._model is None else f" {self._model}")
        self._shared = limits.open_limit(name, most_at_once=self._concurrency, windows=windows)
        super().share_limits(limits)

    async def stream(self, request: ModelRequest) -> ModelStream:
        is_limited = self._model in (None, request.model)
        if is_limited:
            await self._enter(request.tenant)
        try:
            async with aclosing(self._provider.stream(request)) as events:
                take = None
                with suppress(StopAsyncIteration):
                    while True:
                        take = yield await events.asend(take)
        finally:
            if is_limited:
                self._leave()

    async def _enter(self, tenant: str) -> None:
        """Waits for a place and takes it. On cancel the request leaves the queue."""
        if (count := self._waiting.count(tenant)) >= self._longest:
            raise self._refusal(f"{count} requests of this tenant are waiting for it already")
        place: Future[None] = get_running_loop().create_future()
        self._waiting.add(tenant, place)
        self._admit()
        self._tell_others()
        with move_on_after(self._patience):
            try:
                await place
                return
            except CancelledError:
                self._withdraw(tenant, place)
                raise
        raise self._refusal(f"no place became free in {self._patience:g} s, and {len(self._waiting)} more requests wait")

    def _refusal(self, why: str) -> RateLimited:
        return RateLimited(
            f"provider `{self.name}` is busy: {why}; try again later, or raise its limits",
            retry_after=RETRY_SECONDS,
            was_asked=False,
        )

    def _withdraw(self, tenant: str, place: "Future[None]") -> None:
        if place.done() and not place.cancelled():
            # It was granted a moment ago, and nobody uses it.
            self._leave()
        else:
            self._waiting.remove(tenant, place)

    def _leave(self) -> None:
        self._open -= 1
        self._admit()
        self._tell_others()

    def _admit(self) -> None:
        """Grants the free places to waiting requests."""
        while self._waiting and self._has_place() and (found := self._waiting.take()) is not None:
            if not (place := found[1]).cancelled():
                self._open += 1
                self._granted -= 1
                self._begun.append(current_time())
                place.set_result(None)

    def _tell_others(self) -> None:
        """Has the task that speaks to the other processes say what has changed here."""
        if self._shared is not None:
            self._changed.set()
            if self._updating is None or self._updating.done():
                self._changed = Event()
                self._updating = get_running_loop().create_task(self._update_shared(self._shared, self._changed))

    def _has_place(self) -> bool:
        if self._shared is not None:
            return self._granted > 0
        if self._concurrency is not None and self._open >= self._concurrency:
            return False
        if self._per_minute is None or len(self._begun) < self._per_minute or current_time() >= self._begun[0] + MINUTE:
            return True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = get_running_loop().call_at(self._begun[0] + MINUTE, self._admit)
        return False

    async def _update_shared(self, shared: SharedLimit, changed: Event) -> None:
        """Tells the other processes how many places are used here and gets more, until there is nothing to tell."""
        pause, told = FIRST_PAUSE, -1
        while self._open or self._waiting or told:
            changed.clear()
            waiting, told = len(self._waiting), self._open
            try:
                grant = await shared.update(told, waiting)
            except StoreError as error:
                log.warning("provider `%s` waits, since its limits cannot be read: %s", self.name, error)
                grant = Grant(0, LONGEST_PAUSE)
            self._granted, told = grant.count, told + grant.count
            self._admit()
            self._granted = 0  # those that nobody waits for any more are given back
            pause = FIRST_PAUSE if grant.count else min(2 * pause, LONGEST_PAUSE)
            if self._open == told:
                with move_on_after(min(max(pause, grant.wait), LIMIT_SECONDS / 3) if self._waiting else LIMIT_SECONDS / 3):
                    await changed.wait()

    async def close(self) -> None:
        if self._updating is not None:
            with move_on_after(CLOSE_SECONDS):
                await wait([self._updating])
            self._updating.cancel()
        await super().close()
