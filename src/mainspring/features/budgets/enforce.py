"""The decision: `enforce` says whether the next step may happen, and why. Pure: the same question has always the same answer.

| point | asks about | beyond it |
|---|---|---|
| EF-01, EF-02 | files read, files written | the call is blocked |
| EF-03 | commands, and how often each | the call is blocked |
| EF-04 | hosts, and how many requests | the call is blocked |
| EF-05, EF-06 | iterations, time | the run stops |
| EF-07, EF-08 | files modified, lines changed | the call is blocked |
| calls, tokens, cost | what their names say | the run stops |

What is not listed is blocked unless a trigger has a person asked; what nobody can tell is asked about. Of all that is found the
strictest stands.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from mainspring.features.budgets.amounts import Amounts, Spent
from mainspring.features.budgets.budget import AutonomyBudget, EscalationTrigger, StopCondition
from mainspring.features.budgets.budget_scope import EnforcementContext, find_objections, locate
from mainspring.tools.scope import Objection, find_rule


class EnforcementResult(StrEnum):
    ALLOWED = "allowed"
    WARNED = "warned"
    ESCALATED = "escalated"
    BLOCKED = "blocked"


class BudgetDecision(Struct, frozen=True):
    """What an enforcement point says. `stops` ends the run; `target` and `urgency` are whom to ask, and how soon."""

    outcome: EnforcementResult = EnforcementResult.ALLOWED
    point: str = ""
    reason: str = ""
    stops: bool = False
    target: str = ""
    urgency: str = ""


class Measure(Struct, frozen=True):
    """A limit of a budget. A stock is known only after it was used, so nothing may begin once it is used up."""

    name: str
    point: str
    unit: str
    stops: bool = False
    is_stock: bool = False


MEASURES: Final = (
    Measure("iterations", "EF-05", "iterations", stops=True),
    Measure("seconds", "EF-06", "seconds", stops=True, is_stock=True),
    Measure("calls", "calls", "tool calls", stops=True),
    Measure("tokens", "tokens", "tokens", stops=True, is_stock=True),
    Measure("cost", "cost", "in cost", stops=True, is_stock=True),
    Measure("files", "EF-07", "files modified"),
    Measure("lines", "EF-08", "lines changed"),
    Measure("requests", "EF-04", "network requests"),
)
_MEANINGS: Final = {
    "SC-05": "its share of the turns is used",
    "SC-06": "its share of the time is used",
    "SC-07": "its share of the files is used",
    "SC-08": "its share of the lines is used",
    "SC-09": "failures in a row",
    "SC-10": "a call outside the scope",
}
_POINTS: Final = {"EF-01": "files read", "EF-02": "files written", "EF-03": "commands", "EF-04": "network"}
_CONDITIONS: Final = {"SC-05": "iterations", "SC-06": "seconds", "SC-07": "files", "SC-08": "lines"}
_SEVERITY: Final = {outcome: severity for severity, outcome in enumerate(EnforcementResult)}
_ACTIONS: Final = {"stop": EnforcementResult.BLOCKED, "escalate": EnforcementResult.ESCALATED, "warn": EnforcementResult.WARNED}
FAILURES: Final = 3


def enforce(budget: AutonomyBudget, spent: Spent, context: EnforcementContext) -> BudgetDecision:
    """Whether the step may happen. What it would use is counted in; nothing is remembered."""
    then, limits, outside = add_step(budget, spent, context), budget.amounts, tuple(find_objections(budget, context))
    found = [
        *_judge_state(budget, context),
        *_judge_limits(then, limits),
        *[_judge_objection(budget, objection) for objection in outside],
        *_judge_conditions(budget, then, limits, context, outside),
    ]
    return pick_strictest(found)


def pick_strictest(found: Sequence[BudgetDecision]) -> BudgetDecision:
    """The decision that stands; of mere warnings, all of them."""
    found = [decision for decision in found if decision.outcome is not EnforcementResult.ALLOWED]
    if not found:
        return BudgetDecision()
    worst = max(found, key=lambda decision: (_SEVERITY[decision.outcome], decision.stops))
    if worst.outcome is not EnforcementResult.WARNED:
        return worst
    return BudgetDecision(worst.outcome, worst.point, " ".join([decision.reason for decision in found]))


def add_step(budget: AutonomyBudget, spent: Spent, context: EnforcementContext) -> Spent:
    """What has been used once the step has happened."""
    commands: dict[str, int] = {}
    for words in context.commands:
        if (rule := find_rule(words, budget.allowed_commands)) is not None:
            commands[rule.key] = commands.get(rule.key, 0) + 1
    return spent + Spent(
        iterations=context.iterations,
        calls=context.calls,
        files=tuple([_name_file(target, budget, len(spent.files) + n) for n, target in enumerate(context.writes)]),
        lines=context.lines,
        requests=len(context.hosts),
        commands=commands,
    )


def _name_file(target: str | None, budget: AutonomyBudget, number: int) -> str:
    """The name that a file counts under. One whose name is not known is another one every time."""
    if target is None:
        return f"?{number}"
    try:
        return locate(target, budget.files.root)
    except ValueError:
        return target


def _judge_state(budget: AutonomyBudget, context: EnforcementContext) -> Iterator[BudgetDecision]:
    name = budget.budget_id
    if budget.state != "active":
        yield _block("budget", f"The budget `{name}` is {budget.state}, not active.", stops=True)
    if budget.expires_at is not None and context.now >= budget.expires_at.timestamp():
        yield _block("budget", f"The budget `{name}` expired at {budget.expires_at.isoformat()}.", stops=True)
    if budget.limits.max_cost is not None and not context.is_priced:
        yield _block("cost", f"The budget `{name}` limits the cost, and has no price for this model.", stops=True)


def _judge_limits(then: Spent, limits: Amounts) -> Iterator[BudgetDecision]:
    bounds, amounts = limits.measures, then.amounts.measures
    for measure in MEASURES:
        most, used = bounds[measure.name], amounts[measure.name] or 0
        if most is not None and (used > most or (measure.is_stock and used >= most)):
            said = f"The budget allows {most:g} {measure.unit}, and this would be {used:g}."
            yield _block(measure.point, said, stops=measure.stops)
    for command, most in limits.commands.items():
        if (used := then.commands.get(command, 0)) > most:
            yield _block("EF-03", f"The budget allows {most} calls of `{command}`, and this would be {used}.")


def _judge_objection(budget: AutonomyBudget, objection: Objection) -> BudgetDecision:
    point = f"{objection.point}, {_POINTS[objection.point]}"
    said = f"The budget `{budget.budget_id}` does not cover this ({point}): {objection.why}."
    trigger = _find_trigger(budget, objection.point)
    if objection.severity == "denied" or (objection.severity == "unlisted" and trigger is None):
        return _block(objection.point, said)
    return _escalate(budget, objection.point, said, trigger)


def _find_trigger(budget: AutonomyBudget, point: str) -> EscalationTrigger | None:
    if any(condition.id == "SC-10" and condition.action == "escalate" for condition in budget.stop_conditions):
        return EscalationTrigger(point)
    return next((trigger for trigger in budget.escalation_triggers if trigger.id == point), None)


def _judge_conditions(
    budget: AutonomyBudget, then: Spent, limits: Amounts, context: EnforcementContext, outside: tuple[Objection, ...]
) -> Iterator[BudgetDecision]:
    """The stop conditions that hold, each with its consequence."""
    is_violated = any(objection.severity != "unclear" for objection in outside)
    for condition in budget.stop_conditions:
        if condition.id == "SC-10":
            # With `escalate`, `_find_trigger` has a person asked instead.
            holds = is_violated and condition.action != "escalate"
        elif condition.id == "SC-09":
            holds = context.failures >= FAILURES
        elif (measure := _CONDITIONS.get(condition.id)) is not None:
            most = limits.measures[measure]
            holds = most is not None and (then.amounts.measures[measure] or 0) > condition.at * most
        else:
            holds = condition.id in context.signals
        if holds:
            yield _apply_condition(budget, condition)


def _apply_condition(budget: AutonomyBudget, condition: StopCondition) -> BudgetDecision:
    meaning = condition.description or _MEANINGS.get(condition.id, "")
    told = f": {meaning}" if meaning else ""
    said = f"The stop condition {condition.id} of the budget `{budget.budget_id}` holds{told}."
    if condition.action == "escalate":
        return _escalate(budget, condition.id, said, None)
    return BudgetDecision(_ACTIONS[condition.action], condition.id, said, stops=condition.action == "stop")


def _block(point: str, reason: str, *, stops: bool = False) -> BudgetDecision:
    return BudgetDecision(EnforcementResult.BLOCKED, point, reason, stops)


def _escalate(budget: AutonomyBudget, point: str, reason: str, trigger: EscalationTrigger | None) -> BudgetDecision:
    target = (trigger and trigger.target) or budget.default_escalation_target
    urgency = trigger.urgency if trigger is not None else "normal"
    return BudgetDecision(EnforcementResult.ESCALATED, point, reason, target=target, urgency=urgency)


class RuntimeEnforcer:
    """Holds a budget and tracks its use: `decide` answers and counts nothing, `count` counts what did happen. Counting is adding
    up, so an enforcer can be made again from a log at any time."""

    def __init__(self, budget: AutonomyBudget) -> None:
        self.budget = budget
        self._counted = self._measured = Spent()

    @property
    def spent(self) -> Spent:
        return self._counted + self._measured

    def measure(self, used: Spent) -> None:
        """Sets what is read off a meter and not counted here: time, tokens and cost."""
        self._measured = used

    def decide(self, context: EnforcementContext) -> BudgetDecision:
        return enforce(self.budget, self.spent, context)

    def count(self, context: EnforcementContext) -> None:
        self._counted = add_step(self.budget, self._counted, context)
