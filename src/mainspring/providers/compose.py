"""One backend with everything that may stand before it, in the one order that works."""

from typing import Annotated

from msgspec import Meta, Struct

from mainspring.ports import Provider
from mainspring.providers.breaker import Breaker
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class RateLimits(Struct, frozen=True, kw_only=True):
    """How much may be asked; None is as much as comes."""

    concurrency: Count | None = None
    """How many answers may be under way at once."""
    per_minute: Count | None = None
    """How many may be begun within any 60 seconds."""


class BackendOptions(RateLimits, frozen=True, kw_only=True):
    """What stands before a backend. As it is made, nothing does. The limits are those of all its models together."""

    attempts: Count = 1
    """How often a turn is tried, the first time included, if the backend fails before it has said anything."""
    failures: Count | None = None
    """After how many failures in a row the backend is left alone for a while."""
    cool_seconds: Seconds = 30.0
    """How long it is left alone."""
    first_seconds: Seconds | None = None
    """How long the first event of an answer may take."""
    idle_seconds: Seconds | None = None
    """How long each further event may take."""
    wait_seconds: Seconds = 300.0
    """How long a request waits in line when a limit is reached."""
    models: dict[str, RateLimits] = {}
    """Limits for single models, besides those for all of them."""


def compose(provider: Provider, options: BackendOptions) -> Provider:
    """The provider behind what the options ask for; the bare one if they ask for nothing.

    From the inside: time limits count only while the backend itself is waited for. The breaker stands next, so that a probe
    is one request and a call that has waited in line is stopped by what happened meanwhile. The limits stand before it: what
    they count is what reaches the backend. Trying again comes last, since every try is a request like any other: it
    stands in line, passes the breaker, and in between holds nothing. What breaker and limits refuse is not tried again. A model's
    own limits stand before those of all, so that nobody holds a place of the backend while waiting for one of the model.
    """
    if options.first_seconds is not None or options.idle_seconds is not None:
        provider = Deadlines(provider, first=options.first_seconds, idle=options.idle_seconds)
    if options.failures is not None:
        provider = Breaker(provider, failures=options.failures, cool=options.cool_seconds)
    provider = _limit(provider, options, options.wait_seconds)
    for model, limits in options.models.items():
        provider = _limit(provider, limits, options.wait_seconds, model)
    if options.attempts > 1:
        provider = Retrying(provider, attempts=options.attempts)
    return provider


def _limit(provider: Provider, limits: RateLimits, patience: float, model: str | None = None) -> Provider:
    if limits.concurrency is None and limits.per_minute is None:
        return provider
    return RateLimiter(provider, concurrency=limits.concurrency, per_minute=limits.per_minute, model=model, patience=patience)
