"""The policies `rate` and `autonomy_level`: how often a caller may call, and how much an agent may do without a person."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from mainspring.core.autonomy import Autonomy, Level
from mainspring.core.effects import read_effects
from mainspring.core.items import Effect
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Deny, QuickPolicy, RateWindow, SharedLimits, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_texts

MINUTE: Final = 60.0
BURST: Final = 1.0

_ORDER: Final[tuple[Effect, ...]] = ("read", "write", "execute", "network", "destructive")


class RatePolicy(QuickPolicy):
    """Denies calls beyond the rate, and says when to try again. With `shared`, it counts the calls of all processes on a store,
    else those of this one.

    Each caller, that is each subject of each tenant, has the moments of its last calls, oldest first. Two windows slide over
    them: at most `per_minute` within any 60 seconds, at most `burst` within any one. A call that is refused here is not kept, so
    waiting always helps; one that a later policy refuses is, so that nobody tries out what may pass at full speed. Callers are
    kept in the order of their last call, and are forgotten a minute after it.
    """

    name = "rate"
    counts_calls = True

    def __init__(
        self,
        per_minute: int = 60,
        burst: int = 10,
        *,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedLimits | None = None,
    ) -> None:
        if per_minute < 1 or burst < 1:
            raise ValueError(f"a rate must be above 0, not {per_minute} per minute with bursts of {burst}")
        self._limits = (RateWindow(per_minute, MINUTE), RateWindow(burst, BURST))
        self._clock, self._shared = clock, shared
        self.never_waits = shared is None
        self._callers: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    async def judge(self, call: Call, run: Run) -> Verdict:
        if find_served_tool(call, run) is None:
            return Allow()
        caller = (run.spec.tenant, run.spec.caller.subject)
        why = self.refusal(caller) if self._shared is None else await _ask_shared(self._shared, caller, self._limits)
        return Allow() if why is None else Deny(why)

    def refusal(self, caller: tuple[str, str]) -> str | None:
        """Why this caller must wait, in words for the model; None if it need not, and then this call is counted."""
        now = self._clock()
        self._forget(now - MINUTE)
        moments = self._callers.get(caller) or deque(maxlen=max([window.count for window in self._limits]))
        for window in self._limits:
            if len(moments) >= window.count and (wait := moments[-window.count] + window.seconds - now) > 0:
                return _tell_wait(window, wait)
        moments.append(now)
        self._callers[caller] = moments
        self._callers.move_to_end(caller)
        return None

    def _forget(self, before: float) -> None:
        while self._callers and next(iter(self._callers.values()))[-1] <= before:
            self._callers.popitem(last=False)


async def _ask_shared(limits: SharedLimits, caller: tuple[str, str], windows: Sequence[RateWindow]) -> str | None:
    name = sha256("\0".join(caller).encode()).hexdigest()
    grant = await limits.open_limit(f"calls {name}", windows=windows).update(0, 1)
    return None if grant.count else _tell_wait(grant.window or windows[0], grant.wait)


def _tell_wait(window: RateWindow, wait: float) -> str:
    return f"The rate of {window.count} calls in {window.seconds:g} s is used up; try again in {wait:.1f} s."


class LevelPolicy(QuickPolicy):
    """Allows, asks or denies by the level: by what tools do, not by what they are called.

    | level | read | read and network | anything else |
    |---|---|---|---|
    | 0, read-only | allowed | denied, unless `network_reads` | denied |
    | 1, supervised | allowed | allowed | asked about |
    | 2, standard; 3, full | allowed | allowed | allowed |

    A tool that declares `read` and `network` fetches; one that declares `network` alone acts on others. Supervised leaves a call
    whose command is judged on its own to the policy `commands`, which `commands_judged` promises is asked as well. With
    `logs_only`, nobody is asked: the verdict says what a person would have been. No level lifts another policy.
    """

    name = "autonomy_level"

    def __init__(
        self, level: Level, *, network_reads: bool = False, commands_judged: bool = False, logs_only: bool = False
    ) -> None:
        self._level = Autonomy.parse(level)
        self._read_only: frozenset[Effect] = frozenset(("read", "network") if network_reads else ("read",))
        self._commands_judged, self._logs_only = commands_judged, logs_only

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool, level = find_served_tool(call, run), self._level
        if tool is None or level >= Autonomy.STANDARD:
            return Allow()
        try:
            arguments = parsed_arguments(call.item.arguments)
            effects, commands = read_effects(tool, arguments), read_texts(tool, arguments, "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        does = ", ".join([effect for effect in _ORDER if effect in effects])
        if level is Autonomy.SUPERVISED:
            if _is_reading(effects, frozenset(("read", "network"))) or (commands and self._commands_judged):
                return Allow()
            said = f"The autonomy level `supervised` asks before `{tool.name}`, which may {_verbs(does)}."
            return Allow(said) if self._logs_only else Ask(said)
        if _is_reading(effects, self._read_only):
            return Allow()
        return Deny(f"The autonomy level `read-only` does not allow `{tool.name}`, which may {_verbs(does)}; only read.")


def _is_reading(effects: frozenset[Effect], allowed: frozenset[Effect]) -> bool:
    return "read" in effects and effects <= allowed


def _verbs(effects: str) -> str:
    return effects.replace("network", "use the network").replace("destructive", "destroy")
