"""May the run make this call at all? The limits of the spec, as a policy."""

from mainspring.core.rules import excess
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict


class WithinLimits:
    """Denies calls beyond `max_tool_calls_per_turn`, `max_tool_calls` and `max_repeats`; the last two end the run."""

    name = "limits"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        over = excess(run, call)
        return Allow() if over is None else Deny(over.message, over.stop)
