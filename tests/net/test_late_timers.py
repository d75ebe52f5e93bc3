"""Timers for long limits: one of the event loop for all of them."""

import heapq
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import cast

from mainspring.net.late_timers import LATEST, call_late


class HandMade:
    """As much of an event loop as timers need. Its time passes when it is told to, and it remembers what was asked of it."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, list[tuple[float, int, Callable[[], object]]]()
        self.loop = cast(AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        heapq.heappush(self.asked, (self.now + delay, len(self.asked), lambda: callback(*args)))

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_later(0, callback)

    def pass_to(self, moment: float) -> None:
        while self.asked and self.asked[0][0] <= moment:
            self.now, _, callback = heapq.heappop(self.asked)
            callback()
        self.now = moment


def test_long_limits_share_a_timer_and_are_told_hardly_late() -> None:
    loop, told = HandMade(), list[str]()
    call_late(loop.loop, 30, lambda: told.append("first"))
    call_late(loop.loop, 20, lambda: told.append("never")).cancel()
    loop.pass_to(10)
    call_late(loop.loop, 30, lambda: told.append("second"))
    assert len(loop.asked) == 1
    loop.pass_to(29.9)
    assert told == []
    loop.pass_to(30 + LATEST)
    assert told == ["first"]
    loop.pass_to(40 + LATEST)
    assert (told, loop.asked) == (["first", "second"], [])
    call_late(loop.loop, 10, lambda: told.append("third"))
    loop.pass_to(60)
    assert told[-1] == "third"


def test_a_limit_that_is_taken_away_as_it_passes_is_not_told() -> None:
    """Whoever it watches over may end in the same round of the loop: nobody is cancelled for that."""
    loop, told = HandMade(), list[str]()

    def end_both() -> None:
        told.append("one")
        for timer in timers:
            timer.cancel()

    timers = [call_late(loop.loop, 20, end_both) for _ in range(2)]
    loop.pass_to(30)
    assert told == ["one"]


def test_a_short_limit_has_a_timer_of_its_own() -> None:
    loop, told = HandMade(), list[float]()
    call_late(loop.loop, 0.05, lambda: told.append(loop.now))
    loop.pass_to(1)
    assert told == [0.05]
