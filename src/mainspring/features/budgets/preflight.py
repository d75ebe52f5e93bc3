"""What must hold before a run begins under a budget, and what somebody should know: PF-01 to PF-10."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Effect, Tool, ToolDefinition
from mainspring.core.spec import RunSpec
from mainspring.features.budgets.budget import AutonomyBudget

_SEEN = frozenset({f"SC-{number:02}" for number in range(5, 11)})
_POINTS = frozenset({"EF-01", "EF-02", "EF-03", "EF-04"})


class PreflightCheck(Struct, frozen=True):
    """A question and its answer. A run does not begin after a `fail`; `message` says what to do about it, or a `warn`."""

    id: str
    result: Literal["pass", "warn", "fail"] = "pass"
    message: str = ""


def run_preflight(spec: RunSpec, budget: AutonomyBudget | None, tools: Sequence[Tool], now: float) -> tuple[PreflightCheck, ...]:
    """All ten answers in order; only the first if there is no budget."""
    if budget is None:
        return (PreflightCheck("PF-01", "fail", "there is no budget; name one that exists"),)
    effects = _list_effects(tools)
    flaws = (*_check_state(budget, now), *_check_scope(budget, effects), *_check_limits(budget, spec), *_check_conduct(budget))
    passed = {id: PreflightCheck(id) for id in [f"PF-{number:02}" for number in range(1, 11)]}
    return tuple((passed | {flaw.id: flaw for flaw in flaws}).values())


def require_cleared(checks: Sequence[PreflightCheck]) -> tuple[PreflightCheck, ...]:
    """The checks, of which none has failed; raises `InvalidRequest` with all that have."""
    if failed := [f"{check.id}: {check.message}" for check in checks if check.result == "fail"]:
        raise InvalidRequest(f"the run cannot begin under its budget: {'; '.join(failed)}", param="budget")
    return tuple(checks)


def _check_state(budget: AutonomyBudget, now: float) -> Iterator[PreflightCheck]:
    if budget.state != "active":
        yield PreflightCheck("PF-02", "fail", f"the budget `{budget.budget_id}` is {budget.state}; activate it")
    if budget.expires_at is not None and now >= budget.expires_at.timestamp():
        yield PreflightCheck(
            "PF-03", "fail", f"the budget `{budget.budget_id}` expired at {budget.expires_at.isoformat()}; make a new one"
        )
    if not budget.in_scope:
        yield PreflightCheck("PF-04", "fail", "`in_scope` is empty; say what the task is")


def _check_scope(budget: AutonomyBudget, effects: frozenset[Effect]) -> Iterator[PreflightCheck]:
    if not effects.isdisjoint(("write", "destructive")) and not budget.files.write:
        yield PreflightCheck("PF-05", "warn", "tools may write, and `files.write` allows no file")
    if "execute" in effects and not budget.allowed_commands:
        yield PreflightCheck("PF-06", "warn", "tools may run programs, and `allowed_commands` allows none")
    if "network" in effects and not budget.network.enabled:
        yield PreflightCheck("PF-07", "warn", "tools may use the network, and `network.enabled` is false")


def _check_limits(budget: AutonomyBudget, spec: RunSpec) -> Iterator[PreflightCheck]:
    limits = budget.limits
    if limits.max_cost is not None and budget.price(spec.model) is None:
        yield PreflightCheck("PF-08", "fail", f"`max_cost` is set, and `prices` has none for the model `{spec.model}`; add it")
    elif None in (limits.max_iterations, limits.max_duration_minutes, limits.max_tool_calls):
        yield PreflightCheck("PF-08", "warn", "iterations, time or calls have no limit")


def _check_conduct(budget: AutonomyBudget) -> Iterator[PreflightCheck]:
    reported = [condition.id for condition in budget.stop_conditions if condition.id not in _SEEN]
    if reported:
        yield PreflightCheck("PF-09", "warn", f"{', '.join(reported)} hold only when somebody signals them")
    elif not budget.stop_conditions:
        yield PreflightCheck("PF-09", "warn", "there are no `stop_conditions`; limits alone end the run")
    strange = [trigger.id for trigger in budget.escalation_triggers if trigger.id not in _POINTS]
    if strange:
        yield PreflightCheck(
            "PF-10", "warn", f"the triggers {', '.join(strange)} name no point that can escalate; write EF-01 to EF-04"
        )
    elif not budget.default_escalation_target:
        yield PreflightCheck("PF-10", "warn", "`default_escalation_target` is empty; questions are for nobody in particular")


def _list_effects(tools: Sequence[Tool]) -> frozenset[Effect]:
    """All that the tools say they may do. One that says nothing is asked about call by call."""
    mine = [tool for tool in tools if isinstance(tool, ToolDefinition) and tool.kind != "function"]
    return frozenset([effect for tool in mine for effects in (tool.effects, *tool.operations.values()) for effect in effects])
