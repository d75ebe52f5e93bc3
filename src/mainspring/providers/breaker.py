"""A circuit breaker: while a backend keeps failing, requests are refused without asking it.

Theory of operation. The breaker is *closed* while requests succeed. `failures` in a row open it: from then on requests are
refused at once. After `cool` seconds the next request is let through as the only *probe*. If it fails, the breaker is open for
another `cool` seconds. Its first event closes the breaker on trial: requests pass, but until an answer is complete, one more
failure opens it again. A cancelled probe shows nothing, and the next request takes its place.

`Unavailable` and `BadOutput` are failures. Any other error comes from a healthy backend, and so does an empty answer. Every
opening and closing begins a new period, and a request counts only in the period it belongs to: those in flight when the breaker
opens decide nothing.

Each tenant has a breaker of its own: one whose requests make a backend fail does not take it away from the others.
"""

import math
from contextlib import aclosing, suppress
from logging import getLogger
from typing import Final

from anyio import current_time

from mainspring.core.errors import BadOutput, EmptyAnswer, ProviderError, Unavailable
from mainspring.core.lru_cache import LRUCache
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import Provider
from mainspring.providers.wrapper import ProviderWrapper

log = getLogger(__name__)

TENANTS: Final = 10_000


class Breaker(ProviderWrapper):
    """Refuses requests with `Unavailable` while the provider keeps failing; `retry_after` says when the next probe is due."""

    def __init__(self, provider: Provider, *, failures: int = 5, cool: float = 30.0) -> None:
        if failures < 1:
            raise ValueError(f"`failures` is at least 1, not {failures}")
        super().__init__(provider)
        self._limit, self._cool = failures, cool
        self._circuits: LRUCache[str, Circuit] = LRUCache(TENANTS)

    async def stream(self, request: ModelRequest) -> ModelStream:
        if (circuit := self._circuits.get(request.tenant)) is None:
            self._circuits[request.tenant] = circuit = Circuit(self.name, self._limit, self._cool)
        period = circuit.admit()
        try:
            async with aclosing(self._provider.stream(request)) as events:
                if (event := await anext(events, None)) is not None:
                    period = circuit.record_answer(period)
                    with suppress(StopAsyncIteration):
                        while True:
                            event = await events.asend((yield event))
            circuit.record_success(period)
        except ProviderError as error:
            is_ill = isinstance(error, Unavailable | BadOutput) and not isinstance(error, EmptyAnswer)
            if is_ill and error.was_asked:
                circuit.record_failure(period, error)
            elif error.was_asked:
                circuit.record_success(circuit.record_answer(period))
            raise
        finally:
            circuit.leave(period)


class Circuit:
    """What the requests of one tenant show of a backend."""

    def __init__(self, name: str, limit: int, cool: float) -> None:
        self._name, self._limit, self._cool = name, limit, cool
        self._period = 0
        self._failed = 0
        self._why = ""
        self._open_until: float | None = None
        self._is_probing = False

    def admit(self) -> int:
        """The period that the request belongs to. Raises `Unavailable` while the breaker is open."""
        if self._open_until is not None:
            left = max(0.0, self._open_until - current_time())
            if left or self._is_probing:
                when = f"in {math.ceil(left)} s" if left else "by another request at this moment"
                told = f"provider `{self._name}` failed {self._failed} times in a row and is tried again {when}"
                raise Unavailable(f"{told}; the last failure: {self._why}", retry_after=left or None, was_asked=False)
            self._is_probing = True
        return self._period

    def leave(self, period: int) -> None:
        """The request is over, however it ended."""
        if period == self._period:
            self._is_probing = False

    def record_answer(self, period: int) -> int:
        """The backend has answered. Returns the period that the request belongs to from here on."""
        if period == self._period and self._open_until is not None:
            self._open_until = None
            self._failed = self._limit - 1
            self._period += 1
            log.info("provider %s answers again", self._name)
            return self._period
        return period

    def record_success(self, period: int) -> None:
        if period == self._period and self._open_until is None:
            self._failed = 0

    def record_failure(self, period: int, error: ProviderError) -> None:
        if period != self._period:
            return
        self._failed += 1
        if self._failed >= self._limit:
            self._why = error.message
            self._open_until = current_time() + self._cool
            self._period += 1
            self._is_probing = False
            log.warning("provider %s is not asked for %g s: %s", self._name, self._cool, error.message)
