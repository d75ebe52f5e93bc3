"""A circuit breaker: a backend that fails again and again is left alone for a while.

Theory of operation. The breaker is *closed* while all is well. `failures` in a row open it: from then on calls are refused at
once, without a word to the backend. After `cool` seconds the next call is let through as the only *probe*. If that fails, the
breaker is open for another `cool` seconds; its first event closes the breaker on trial: calls pass, but until an answer is
whole, one more failure opens it again. A probe that is cancelled has shown nothing, and the next call takes its place.

`Unavailable` and `BadOutput` are failures. Any other error was said by a backend that is well. Every opening and closing begins a
new period, and a call counts only in the period it belongs to: those still on their way when the breaker opens decide nothing.
"""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from logging import getLogger

from anyio import current_time

from mainspring.core.errors import BadOutput, ProviderError, Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.wrapper import ProviderWrapper

log = getLogger(__name__)


class Breaker(ProviderWrapper):
    """Refuses calls with `Unavailable` while the provider is failing; `retry_after` says when it will be tried again."""

    def __init__(self, provider: Provider, *, failures: int = 5, cool: float = 30.0) -> None:
        if failures < 1:
            raise ValueError(f"`failures` is at least 1, not {failures}")
        super().__init__(provider)
        self._limit, self._cool = failures, cool
        self._period = 0
        self._failed = 0
        self._why = ""
        self._open_until: float | None = None
        self._is_probing = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        period = self._admit()
        try:
            async with aclosing(self._provider.stream(request)) as events:
                if (event := await anext(events, None)) is not None:
                    period = self._record_answer(period)
                    yield event
                    async for event in events:
                        yield event
            self._record_success(period)
        except ProviderError as error:
            if isinstance(error, Unavailable | BadOutput) and error.was_asked:
                self._record_failure(period, error)
            elif error.was_asked:
                self._record_success(self._record_answer(period))
            raise
        finally:
            if period == self._period:
                self._is_probing = False

    def _admit(self) -> int:
        """The period the call belongs to. Raises `Unavailable` if it must not be made."""
        if self._open_until is not None:
            left = max(0.0, self._open_until - current_time())
            if left or self._is_probing:
                when = f"it is tried again in {math.ceil(left)} s" if left else "one call is trying it now"
                told = f"provider `{self.name}` failed {self._failed} times in a row and is left alone; {when}"
                raise Unavailable(
                    f"{told}; the last failure: {self._why}",
                    retry_after=left or None,
                    was_asked=False,
                )
            self._is_probing = True
        return self._period

    def _record_answer(self, period: int) -> int:
        """The backend has said something. Returns the period the call belongs to from here on."""
        if period == self._period and self._open_until is not None:
            self._open_until = None
            self._failed = self._limit - 1
            self._period += 1
            log.info("provider %s answers again", self.name)
            return self._period
        return period

    def _record_success(self, period: int) -> None:
        if period == self._period and self._open_until is None:
            self._failed = 0

    def _record_failure(self, period: int, error: ProviderError) -> None:
        if period != self._period:
            return
        self._failed += 1
        if self._failed >= self._limit:
            self._why = error.message
            self._open_until = current_time() + self._cool
            self._period += 1
            self._is_probing = False
            log.warning("provider %s is left alone for %g s: %s", self.name, self._cool, error.message)
