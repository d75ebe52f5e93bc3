"""Asking again: a provider whose passing failures are tried anew, as long as nobody has heard anything of the turn."""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import random

from anyio import sleep

from mainspring.core.errors import ProviderError, RateLimited
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.wrapper import ProviderWrapper


class Retrying(ProviderWrapper):
    """Makes up to `attempts` tries, the first included. Raises the failure of the last one.

    Tried again is what is `retryable` and came from the backend itself, before the first event of the turn: after that a reader
    has seen half an answer, and only the loop, which can hide it, may ask again. Between tries it waits a random time of up to
    `base` seconds, doubled each time and at most `cap`; everybody who failed at once must not come back at once. A backend that
    says when to come back is not asked earlier, and if that is later than `longest` seconds, not at all. While it waits, it
    holds no connection and no place in a line.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        attempts: int = 3,
        base: float = 0.5,
        cap: float = 20.0,
        longest: float = 60.0,
        random: Callable[[], float] = random,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"`attempts` counts the first try too and is at least 1, not {attempts}")
        super().__init__(provider)
        self._attempts, self._base, self._cap, self._longest, self._random = attempts, base, cap, longest, random

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        attempt = 1
        while True:
            is_begun = False
            try:
                async with aclosing(self._provider.stream(request)) as events:
                    async for event in events:
                        is_begun = True
                        yield event
                return
            except ProviderError as error:
                if is_begun or attempt == self._attempts or not self._may_pass(error, request):
                    raise
                pause = self._pause(attempt, error.retry_after)
            await sleep(pause)
            attempt += 1

    def _may_pass(self, error: ProviderError, request: ModelRequest) -> bool:
        if isinstance(error, RateLimited) and not request.is_patient:
            return False
        return error.retryable and error.was_asked and (error.retry_after or 0.0) <= self._longest

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        if retry_after is not None:
            return retry_after + self._random() * self._base
        return self._random() * backoff(attempt, base=self._base, cap=self._cap)


def backoff(attempt: int, *, base: float, cap: float = math.inf) -> float:
    """Seconds to wait after a failed attempt, counted from 1: exponential, from `base` to `cap`."""
    return min(cap, base * 2.0 ** (attempt - 1))
