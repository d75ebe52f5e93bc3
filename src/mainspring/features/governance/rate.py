"""Is the caller calling too often?

Theory of operation. Each caller, that is each subject of each tenant, has the moments of its last calls, oldest first. Two
windows slide over them: at most `per_minute` within any 60 seconds, at most `burst` within any one. A call that is refused here
is not kept, so waiting always helps; one that a later policy refuses is, so that nobody tries out what may pass at full speed.
Callers are kept in the order of their last call, and are forgotten a minute after it.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict
from mainspring.tools.declarations import find_served_tool

MINUTE: Final = 60.0
BURST: Final = 1.0


class Rate:
    """Denies calls beyond the rate, and says when to try again. It counts within this process."""

    name = "rate"
    never_waits = True

    def __init__(self, per_minute: int = 60, burst: int = 10, *, clock: Callable[[], float] = time.monotonic) -> None:
        if per_minute < 1 or burst < 1:
            raise ValueError(f"a rate must be above 0, not {per_minute} per minute with bursts of {burst}")
        self._limits = ((per_minute, MINUTE), (burst, BURST))
        self._clock = clock
        self._callers: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    async def judge(self, call: Call, run: Run) -> Verdict:
        if find_served_tool(call, run) is None or (why := self.refusal((run.spec.tenant, run.spec.caller.subject))) is None:
            return Allow()
        return Deny(why)

    def refusal(self, caller: tuple[str, str]) -> str | None:
        """Why this caller must wait, in words for the model; None if it need not, and then this call is counted."""
        now = self._clock()
        self._forget(now - MINUTE)
        moments = self._callers.get(caller) or deque(maxlen=max(limit for limit, _ in self._limits))
        for limit, seconds in self._limits:
            if len(moments) >= limit and (wait := moments[-limit] + seconds - now) > 0:
                return f"The rate of {limit} calls in {seconds:g} s is used up; try again in {wait:.1f} s."
        moments.append(now)
        self._callers[caller] = moments
        self._callers.move_to_end(caller)
        return None

    def _forget(self, before: float) -> None:
        while self._callers and next(iter(self._callers.values()))[-1] <= before:
            self._callers.popitem(last=False)
