"""Retries with exponential backoff and jitter, as long as no event of the turn has been handed on."""

from collections.abc import Callable
from contextlib import aclosing, suppress
from random import random

from anyio import sleep

from mainspring.core.backoff import backoff
from mainspring.core.errors import ProviderError, RateLimited
from mainspring.core.items import Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import Provider
from mainspring.providers.wrapper import ProviderWrapper, add_usage, sum_usage


class Retrying(ProviderWrapper):
    """Makes up to `attempts` attempts, the first included. Raises the error of the last one.

    Retries an error that is `retryable` and came from the backend itself before the first event: after that a reader has seen
    half an answer, and only the loop, which can hide it, may ask again. Waits a random time of up to `base` seconds, doubled
    with each attempt up to `cap`, so that clients that failed together do not return together. A `retry_after` is honoured, and
    one longer than `longest` seconds ends the retries. While waiting, it holds no connection and no place in a queue. What failed
    attempts have used is charged with the last.
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

    async def stream(self, request: ModelRequest) -> ModelStream:
        attempt, spent = 1, Usage()
        while True:
            is_begun = False
            try:
                async with aclosing(self._provider.stream(request)) as events:
                    take = None
                    with suppress(StopAsyncIteration):
                        while True:
                            event = await events.asend(take)
                            is_begun = True
                            take = yield event if attempt == 1 else add_usage(event, spent)
                return
            except ProviderError as error:
                spent = sum_usage(spent, error.usage)
                error.usage = spent if attempt > 1 else error.usage
                may_pass = error.retryable and error.was_asked and (error.retry_after or 0.0) <= self._longest
                if is_begun or attempt == self._attempts or not may_pass:
                    raise
                if isinstance(error, RateLimited) and not request.is_patient:
                    raise
                longest = backoff(attempt, base=self._base, cap=self._cap) if error.retry_after is None else self._base
                pause = (error.retry_after or 0.0) + self._random() * longest
            await sleep(pause)
            attempt += 1
