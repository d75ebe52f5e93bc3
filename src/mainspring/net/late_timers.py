"""Timers for long limits that are hardly ever reached. They cost next to nothing, and may be half a second late.

One timer of the event loop looks at all of them, as long as there are any. A short limit has a timer of its own.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

LATEST: Final = 0.5
"""How many seconds one may be late."""
SHORT: Final = 10.0


class Timer(Protocol):
    def cancel(self) -> None: ...


def call_late(loop: AbstractEventLoop, seconds: float, tell: Callable[[], None]) -> Timer:
    """Calls `tell` in so many seconds, or a little later, unless that is cancelled."""
    if seconds < SHORT:
        return loop.call_later(seconds, tell)
    timers = _timers.get(loop)
    if timers is None:
        timers = _timers[loop] = _LateTimers()
    return timers.add(loop, loop.time() + seconds, tell)


class _LateTimer:
    __slots__ = ("_others", "due", "tell")

    def __init__(self, others: "set[_LateTimer]", due: float, tell: Callable[[], None] | None) -> None:
        self._others, self.due, self.tell = others, due, tell
        others.add(self)

    def cancel(self) -> None:
        self._others.discard(self)
        self.tell = None  # which may know this

    def fire(self) -> None:
        """Tells, unless it was cancelled since it was found due."""
        tell = self.tell
        self.cancel()
        if tell is not None:
            tell()


class _LateTimers:
    """Those of one event loop."""

    def __init__(self) -> None:
        self._waiting: set[_LateTimer] = set()
        self._is_looking = False

    def add(self, loop: AbstractEventLoop, due: float, tell: Callable[[], None]) -> Timer:
        if not self._is_looking:
            self._is_looking = True
            loop.call_later(LATEST, self._look, loop)
        return _LateTimer(self._waiting, due, tell)

    def _look(self, loop: AbstractEventLoop) -> None:
        now = loop.time()
        for timer in [timer for timer in self._waiting if timer.due <= now]:
            self._waiting.remove(timer)
            loop.call_soon(timer.fire)
        self._is_looking = bool(self._waiting)
        if self._is_looking:
            loop.call_later(LATEST, self._look, loop)


_timers: Final[WeakKeyDictionary[AbstractEventLoop, _LateTimers]] = WeakKeyDictionary()
