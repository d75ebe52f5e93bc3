"""One backend behind its retries, rate limits, circuit breaker and time limits, in the one order that works."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from mainspring.ports import Provider
from mainspring.providers.breaker import Breaker
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying

Count = Annotated[int, Meta(ge=1)]
LONGEST_QUEUE: Final = 100
Seconds = Annotated[float, Meta(gt=0)]


class RateLimits(Struct, frozen=True, kw_only=True):
    """How much a backend may be asked; None is no limit."""

    concurrency: Count | None = None
    """How many requests may be open at once."""
    per_minute: Count | None = None
    """How many requests may begin within any 60 seconds."""


class BackendOptions(RateLimits, frozen=True, kw_only=True):
    """What a backend is wrapped in; by default nothing. The limits are those of all its models together."""

    attempts: Count = 1
    """How often a turn is tried, the first time included, if the backend fails before its first event."""
    failures: Count | None = None
    """After how many failures in a row the circuit breaker opens: the backend is not asked for `cool_seconds`."""
    cool_seconds: Seconds = 30.0
    """How long the circuit breaker stays open."""
    first_seconds: Seconds | None = None
    """How long the first event of an answer may take."""
    idle_seconds: Seconds | None = None
    """How long each further event may take."""
    wait_seconds: Seconds = 300.0
    """How long a request waits in the queue when a limit is reached."""
    queue: Count | None = None
    """How many requests of one tenant may wait when a limit is reached; the next is refused with 429. Default: 100, and 20 for
    a local model."""
    models: dict[str, RateLimits] = {}
    """Limits for single models, besides those of the backend."""


def compose(provider: Provider, options: BackendOptions) -> Provider:
    """The provider wrapped as the options say; the provider itself if they say nothing.

    From the inside out: time limits count only while the backend itself is waited for. The breaker comes next, so that a probe
    is one request and a request that has waited in the queue sees what happened meanwhile. The rate limits follow, and a model's
    own limits surround those of the backend, so that nobody holds a place of the backend while waiting for one of the model.
    Retries are outermost: each attempt queues, passes the breaker, and holds nothing in between. What the breaker and the limits
    refuse is not tried again.
    """
    if options.first_seconds is not None or options.idle_seconds is not None:
        provider = Deadlines(provider, first=options.first_seconds, idle=options.idle_seconds)
    if options.failures is not None:
        provider = Breaker(provider, failures=options.failures, cool=options.cool_seconds)
    provider = _limit(provider, options, options)
    for model, limits in options.models.items():
        provider = _limit(provider, limits, options, model)
    if options.attempts > 1:
        provider = Retrying(provider, attempts=options.attempts)
    return provider


def _limit(provider: Provider, limits: RateLimits, options: BackendOptions, model: str | None = None) -> Provider:
    if limits.concurrency is None and limits.per_minute is None:
        return provider
    return RateLimiter(
        provider,
        concurrency=limits.concurrency,
        per_minute=limits.per_minute,
        model=model,
        line=options.queue or LONGEST_QUEUE,
        patience=options.wait_seconds,
    )
