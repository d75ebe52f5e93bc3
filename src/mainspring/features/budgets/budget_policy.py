"""The budget of a run at the gate.

Theory of operation. The order for a run carries its budget, so its log does too. What the run has used is derived from that log:
turns, time, tokens, and the calls that were allowed. Nothing else is remembered, so a call gets the same verdict whether the run
is waited for, streamed, in the background, or taken up again by another process. Enforcers are kept only not to count twice.

| decision | verdict |
|---|---|
| ALLOWED | allow |
| WARNED | allow, and the warning is in the log |
| ESCALATED | a person is asked |
| BLOCKED | deny; the run ends for its budget if the decision says so |
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import reduce
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.allowance import sum_used
from mainspring.core.errors import InvalidRequest
from mainspring.core.events import Reason
from mainspring.core.items import FunctionCall, Json
from mainspring.core.lru_cache import LRUCache
from mainspring.core.run import Call, Run
from mainspring.core.spec import Allowance, Price, RunSpec, pick_least
from mainspring.features.budgets.amounts import Amounts, Spent
from mainspring.features.budgets.budget import AutonomyBudget, State
from mainspring.features.budgets.budget_scope import EnforcementContext, read_call
from mainspring.features.budgets.enforce import BudgetDecision, EnforcementResult, RuntimeEnforcer, pick_strictest
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.tools.declarations import find_served_tool

REMEMBERED: Final = 256


class _Counted(Struct):
    """Enforcers for each layer of a run's budget that have counted its first calls, up to `last`. `source` is that budget."""

    source: Json
    enforcers: tuple[RuntimeEnforcer, ...]
    calls: int = 0
    last: FunctionCall | None = None


class BudgetPolicy:
    """Judges by the budget of the run; a run without one passes. The client's own tools are not its concern.

    `state` says how a shared budget stands at the moment, None if it is not shared: one that was suspended stops its runs.
    `signals` are the stop conditions that hold for a run as somebody else has found.
    """

    name = "budget"

    def __init__(
        self,
        state: Callable[[str, str], Awaitable[State | None]] | None = None,
        signals: Callable[[Run], Collection[str]] | None = None,
    ) -> None:
        # The parser of commands has its own time limit; only where the state comes from can keep the gate waiting.
        self.never_waits = state is None
        self._state, self._signals = state, signals
        self._known: LRUCache[str, _Counted] = LRUCache(REMEMBERED)

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = find_served_tool(call, run)
        if run.spec.budget is None or tool is None:
            return Allow()
        enforcers = await self._count_run(run, run.spec.budget)
        await self._look_up(run, enforcers[0])
        signals = frozenset(self._signals(run) if self._signals is not None else ())
        made = await read_call(call.item, tool)
        context = replace(made, now=run.clock, failures=run.errors_in_row, signals=signals)
        priced = [(enforcer, enforcer.budget.price(run.spec.model) is not None) for enforcer in enforcers]
        decisions = [enforcer.decide(replace(context, is_priced=is_priced)) for enforcer, is_priced in priced]
        return make_verdict(pick_strictest(decisions))

    async def _look_up(self, run: Run, enforcer: RuntimeEnforcer) -> None:
        """Only the first layer is ever shared."""
        if self._state is not None:
            state = await self._state(run.spec.tenant, enforcer.budget.budget_id)
            enforcer.budget = enforcer.budget if state is None else replace(enforcer.budget, state=state)

    async def _count_run(self, run: Run, source: Json) -> tuple[RuntimeEnforcer, ...]:
        """Enforcers that have counted all of this run. The calls of a run are judged one after the other."""
        known = self._known.get(run.spec.id)
        if known is None or known.source is not source or not _continues(known, run):
            layers = msgspec.convert(source, AutonomyBudget).layers
            enforcers = tuple([RuntimeEnforcer(layer) for layer in layers])
            known = self._known[run.spec.id] = _Counted(source, enforcers)
        for item in run.allowed[known.calls :]:
            context = await _read_allowed_call(item, run.spec)
            for enforcer in known.enforcers:
                enforcer.count(context)
            known.calls, known.last = known.calls + 1, item
        for enforcer in known.enforcers:
            enforcer.measure(measure_run(run, enforcer.budget) + measure_delegated(run, enforcer.budget))
        return known.enforcers


def _continues(known: _Counted, run: Run) -> bool:
    """Whether what was counted is the beginning of this run."""
    return known.calls <= len(run.allowed) and (not known.calls or run.allowed[known.calls - 1] is known.last)


async def measure_use(run: Run, budget: AutonomyBudget | None = None) -> Spent:
    """What this run has used of a budget as its log tells; of its own if none is named. Without one, it was prevented from
    beginning when it had reserved a share, and has used nothing."""
    budget = budget or read_budget(run.spec)
    if budget is None:
        return Spent()
    enforcer = RuntimeEnforcer(budget)
    for item in run.allowed:
        enforcer.count(await _read_allowed_call(item, run.spec))
    enforcer.measure(measure_run(run, budget))
    return enforcer.spent


async def _read_allowed_call(item: FunctionCall, spec: RunSpec) -> EnforcementContext:
    """What a call that was allowed did."""
    tool = spec.tool(item.name)
    assert tool is not None, "only a tool of the run is ever allowed"
    return await read_call(item, tool)


def read_budget(spec: RunSpec) -> AutonomyBudget | None:
    return None if spec.budget is None else msgspec.convert(spec.budget, AutonomyBudget)


def measure_run(run: Run, budget: AutonomyBudget) -> Spent:
    """What a run has used of turns, time, tokens and money."""
    usage, price = sum_used(run), budget.price(run.spec.model)
    cost = 0.0 if price is None else price.of(usage)
    turns = 0 if run.spec.step_call is not None else run.turns
    return Spent(iterations=turns, seconds=run.elapsed, tokens=usage.total_tokens, cost=cost)


def measure_delegated(run: Run, budget: AutonomyBudget) -> Spent:
    """What other runs have used on behalf of this one's calls. They account for it themselves where a budget is shared."""
    used, price = run.delegated, budget.price(run.spec.model)
    cost = 0.0 if price is None else price.of(used.usage)
    return Spent(iterations=used.turns, calls=used.calls, tokens=used.usage.total_tokens, cost=cost)


def make_verdict(decision: BudgetDecision) -> Verdict:
    match decision.outcome:
        case EnforcementResult.BLOCKED:
            stop = Reason.DEADLINE if decision.point == "EF-06" else Reason.BUDGET
            return Deny(decision.reason, stop if decision.stops else None)
        case EnforcementResult.ESCALATED:
            return Ask(f"{decision.reason} This is for `{decision.target}` to decide ({decision.urgency}).")
        case _:
            return Allow(decision.reason)


def min_amounts(budgets: Iterable[AutonomyBudget]) -> Amounts:
    """The strictest of their limits."""
    return reduce(Amounts.min, [budget.amounts for budget in budgets], Amounts())


def apply_budget(spec: RunSpec, budget: AutonomyBudget) -> RunSpec:
    """The order under this budget: it carries it, and the loop holds its limits between calls too.

    What is counted is this run's alone; `Ledger.admit` has several runs share. Raises `InvalidRequest` if there is not enough
    left to begin.
    """
    most, limits, price = min_amounts(budget.layers), spec.limits, budget.price(spec.model)
    if spec.step_call is not None:
        # No model is asked: what it does is held to the budget, and what it says costs nothing.
        most = replace(most, iterations=None, tokens=None, cost=None)
    for name in ("iterations", "seconds", "tokens", "cost"):
        if most.measures[name] == 0:
            told = f"the budget `{budget.budget_id}` has nothing left of {name}; raise its limit or use another"
            raise InvalidRequest(told, param="budget", code="budget_exceeded")
    turns, completion = most.iterations, spec.completion
    if turns is not None and completion.close is not None:
        # The closing turn comes on top of the limit that it follows, and must be within the budget too.
        turns, completion = (turns - 1, completion) if turns > 1 else (turns, replace(completion, close=None))
    held = replace(
        limits,
        budget_turns=pick_least(limits.budget_turns, turns),
        max_seconds=pick_least(limits.max_seconds, most.seconds),
        max_tool_calls=pick_least(limits.max_tool_calls, most.calls or None),
    )
    allowance = None if most.tokens is None and most.cost is None else Allowance(most.tokens, most.cost, price or Price(0, 0))
    whole = msgspec.json.decode(msgspec.json.encode(budget))
    return replace(spec, limits=held, completion=completion, budget=whole, allowance=allowance)
