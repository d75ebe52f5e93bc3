"""Limits of single API keys: requests and tokens in a minute, and requests at a time.

Theory of operation. A key has a window of 60 seconds, which begins with the first request after the last one. A request counts
when it is admitted, its tokens when its run has ended; whoever has used up either waits for the next window. Each process counts
for itself, and remembers the keys that came last.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct

from mainspring.core.lru_cache import LRUCache
from mainspring.core.spec import pick_least
from mainspring.ports import EndedRun, RunObserver

MINUTE: Final = 60.0
MOST_KEYS: Final = 10_000
Count = Annotated[int, Meta(ge=1)]
Headers = tuple[tuple[bytes, bytes], ...]


class KeyLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a key may use at one process; None is no limit."""

    requests_per_minute: Count | None = None
    """How many requests it may send in a minute."""
    tokens_per_minute: Count | None = None
    """How many tokens its runs may use in a minute, what is read and what is said. A request is refused once they are used up."""
    requests_at_once: Count | None = None
    """How many requests it may have under way, open streams among them."""

    def complete(self, usual: "KeyLimits") -> "KeyLimits":
        """These limits, and the usual ones where these say nothing."""
        if self == usual or usual == NO_LIMITS:
            return NO_LIMITS if self == NO_LIMITS else self
        return KeyLimits(
            self.requests_per_minute or usual.requests_per_minute,
            self.tokens_per_minute or usual.tokens_per_minute,
            self.requests_at_once or usual.requests_at_once,
        )

    def find_excess(self, most: "KeyLimits") -> str | None:
        """The limit that lets a key use more than another may; None if there is none."""
        pairs = {
            "requests_per_minute": (self.requests_per_minute, most.requests_per_minute),
            "tokens_per_minute": (self.tokens_per_minute, most.tokens_per_minute),
            "requests_at_once": (self.requests_at_once, most.requests_at_once),
        }
        return next((name for name, (own, other) in pairs.items() if pick_least(own, other) != own), None)


NO_LIMITS: Final = KeyLimits()


@dataclass(slots=True)
class _Window:
    until: float
    requests: int = 0
    tokens: int = 0


class KeyAdmission(Struct, frozen=True):
    """What the answer to a request says of the limits. A request that is beyond one has a `refusal`, and `seconds` to wait."""

    headers: Headers = ()
    refusal: str = ""
    seconds: float = 0.0


class KeyUse(RunObserver):
    """What each key has used of its minute."""

    name = "key limits"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: LRUCache[str, _Window] = LRUCache(MOST_KEYS)

    def admit(self, key: str, limits: KeyLimits) -> KeyAdmission:
        """Counts a request, unless a limit is reached."""
        window, now = self._find(key), self._clock()
        left = max(window.until - now, 0.0)
        for what, used, most in (
            ("requests", window.requests, limits.requests_per_minute),
            ("tokens", window.tokens, limits.tokens_per_minute),
        ):
            if most is not None and used >= most:
                told = f"this API key has used its {most} {what} of a minute; try again in {left:.0f} s"
                return KeyAdmission(refusal=told, seconds=left)
        window.requests += 1
        requests = _render("requests", window.requests, limits.requests_per_minute, left)
        return KeyAdmission(requests + _render("tokens", window.tokens, limits.tokens_per_minute, left))

    def run_ended(self, ended: EndedRun) -> None:
        subject, tokens = ended.run.spec.caller.subject, ended.run.usage.total_tokens
        if subject and tokens:
            self._find(subject).tokens += tokens

    def _find(self, key: str) -> _Window:
        window, now = self._windows.get(key), self._clock()
        if window is None or now >= window.until:
            window = self._windows[key] = _Window(now + MINUTE)
        return window


def _render(what: str, used: int, most: int | None, left: float) -> Headers:
    """The headers that clients of the OpenAI API know."""
    if most is None:
        return ()
    values = {"limit": str(most), "remaining": str(max(most - used, 0)), "reset": f"{left:.0f}s"}
    return tuple([(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()])
