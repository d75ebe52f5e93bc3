"""A budget at work: what was used of it, and what its enforcement points have said.

Theory of operation. `decide` answers and counts nothing; `count` counts what did happen; the `check_` methods do both, and count
only what may happen. Counting is adding up, so an enforcer can be made again from a log at any time.
"""

import time
from collections.abc import Callable

from mainspring.features.budgets.budget import AutonomyBudget
from mainspring.features.budgets.budget_scope import read_lines
from mainspring.features.budgets.enforce import Decision, EnforcementResult, after, enforce
from mainspring.features.budgets.enforcement import EnforcementContext, Spent

GOES_ON = (EnforcementResult.ALLOWED, EnforcementResult.WARNED)


class RuntimeEnforcer:
    """Holds a budget and tracks its use. `decisions` are all that were not plainly `ALLOWED`, in order."""

    def __init__(self, budget: AutonomyBudget, *, clock: Callable[[], float] = time.time) -> None:
        self.budget = budget
        self.decisions: list[Decision] = []
        self._counted = self._measured = Spent()
        self._clock, self._began = clock, clock()

    @property
    def spent(self) -> Spent:
        return self._counted + self._measured

    @property
    def stopped(self) -> Decision | None:
        """The decision that ended the work, if one has."""
        return next((decision for decision in self.decisions if decision.stops), None)

    def measure(self, used: Spent) -> None:
        """Sets what is read off a meter and not counted here: time, tokens and cost."""
        self._measured = used

    def decide(self, context: EnforcementContext) -> Decision:
        decision = enforce(self.budget, self.spent, context)
        if decision.outcome is not EnforcementResult.ALLOWED:
            self.decisions.append(decision)
        return decision

    def count(self, context: EnforcementContext) -> None:
        self._counted = after(self.budget, self._counted, context)

    def check(self, context: EnforcementContext) -> EnforcementResult:
        """Decides, and counts what may happen."""
        decision = self.decide(context)
        if decision.outcome in GOES_ON:
            self.count(context)
        return decision.outcome

    def check_file_read(self, path: str) -> EnforcementResult:
        """EF-01."""
        return self.check(EnforcementContext(self._clock(), reads=(path,)))

    def check_file_write(self, path: str, lines: int = 0) -> EnforcementResult:
        """EF-02, and with it EF-07 and EF-08."""
        return self.check(EnforcementContext(self._clock(), writes=(path,), lines=lines))

    async def check_command(self, command: str) -> EnforcementResult:
        """EF-03, for all that a line of shell would run."""
        line = await read_lines([command])
        return self.check(EnforcementContext(self._clock(), commands=line.commands, writes=line.writes, doubts=line.doubts))

    def check_network(self, domain: str) -> EnforcementResult:
        """EF-04."""
        return self.check(EnforcementContext(self._clock(), hosts=(domain,)))

    def record_iteration(self) -> EnforcementResult:
        """EF-05."""
        return self.check(EnforcementContext(self._clock(), iterations=1))

    def check_duration(self) -> EnforcementResult:
        """EF-06, for the time since this enforcer was made."""
        self.measure(self._measured + Spent(seconds=self._clock() - self._began - self._measured.seconds))
        return self.check(EnforcementContext(self._clock()))

    def evaluate_stop_conditions(self, *, failures: int = 0, signals: frozenset[str] = frozenset()) -> EnforcementResult:
        """The strictest consequence of the stop conditions that hold now."""
        return self.check(EnforcementContext(self._clock(), failures=failures, signals=signals))
