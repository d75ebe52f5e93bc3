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

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import InvalidRequest
from mainspring.events import Reason
from mainspring.items import FunctionCall, Usage
from mainspring.loop.run import Call, Run
from mainspring.loop.tokens import estimate
from mainspring.policies.autonomy.budget import MILLION, AutonomyBudget, State
from mainspring.policies.autonomy.context import Spent, ceilings
from mainspring.policies.autonomy.enforce import Decision, EnforcementResult
from mainspring.policies.autonomy.enforcer import RuntimeEnforcer
from mainspring.policies.autonomy.reading import context_of
from mainspring.policies.declared import served
from mainspring.policies.shell import Reader
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.spec import RunSpec

REMEMBERED: Final = 256

N = TypeVar("N", int, float)


class _Counted(Struct):
    """An enforcer that has counted the first calls of a run, up to `last`."""

    enforcer: RuntimeEnforcer
    calls: int = 0
    last: FunctionCall | None = None


class Budgeted:
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
        self._reader = Reader()
        self._known: OrderedDict[str, _Counted] = OrderedDict()

    async def judge(self, call: Call, run: Run) -> Verdict:
        budget, tool = budget_of(run.spec), served(call, run)
        if budget is None or tool is None:
            return Allow()
        if self._state is not None:
            state = await self._state(run.spec.tenant, budget.budget_id)
            budget = budget if state is None else replace(budget, state=state)
        enforcer = await self._counted(run, budget)
        context = replace(
            await context_of(call.item, tool, self._reader),
            now=run.clock,
            failures=run.errors_in_row,
            signals=frozenset(self._signals(run) if self._signals is not None else ()),
            is_priced=budget.price(run.spec.model) is not None,
        )
        return verdict_of(enforcer.decide(context))

    async def _counted(self, run: Run, budget: AutonomyBudget) -> RuntimeEnforcer:
        """An enforcer that has counted all of this run. The calls of a run are judged one after the other."""
        known = self._known.get(run.spec.id)
        if known is None or known.calls > len(run.allowed) or (known.calls and run.allowed[known.calls - 1] is not known.last):
            known = self._known[run.spec.id] = _Counted(RuntimeEnforcer(budget, reader=self._reader))
        self._known.move_to_end(run.spec.id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        enforcer = known.enforcer
        enforcer.budget = budget
        for item in run.allowed[known.calls :]:
            await _count(enforcer, item, run.spec, self._reader)
            known.calls, known.last = known.calls + 1, item
        enforcer.measure(measured(run, budget))
        return enforcer


async def spent_by(run: Run, reader: Reader) -> Spent:
    """What this run has used of its budget, which it must have, as its log tells."""
    budget = budget_of(run.spec)
    assert budget is not None, "only a run with a budget can use it"
    enforcer = RuntimeEnforcer(budget, reader=reader)
    for item in run.allowed:
        await _count(enforcer, item, run.spec, reader)
    enforcer.measure(measured(run, budget))
    return enforcer.spent


async def _count(enforcer: RuntimeEnforcer, item: FunctionCall, spec: RunSpec, reader: Reader) -> None:
    tool = spec.tool(item.name)
    assert tool is not None, "only a tool of the run is ever allowed"
    enforcer.count(await context_of(item, tool, reader))


def budget_of(spec: RunSpec) -> AutonomyBudget | None:
    return None if spec.budget is None else msgspec.convert(spec.budget, AutonomyBudget)


def measured(run: Run, budget: AutonomyBudget) -> Spent:
    """What a run has used of turns, time, tokens and money. A turn that failed has left no count: its request is estimated."""
    usage, lost = run.usage, run.turns - run.answered - run.in_turn
    if lost > 0:
        asked = estimate([entry.item for entry in run.transcript if not entry.hidden], run.spec.instructions, run.spec.tools)
        usage = usage + Usage(lost * asked, is_estimated=True)
    price = budget.price(run.spec.model)
    cost = 0.0 if price is None else price.of(usage)
    return Spent(iterations=run.turns, seconds=run.elapsed, tokens=usage.total_tokens, cost=cost)


def verdict_of(decision: Decision) -> Verdict:
    match decision.outcome:
        case EnforcementResult.BLOCKED:
            stop = Reason.DEADLINE if decision.point == "EF-06" else Reason.BUDGET
            return Deny(decision.reason, stop if decision.stops else None)
        case EnforcementResult.ESCALATED:
            return Ask(f"{decision.reason} This is for `{decision.target}` to decide ({decision.urgency}).")
        case _:
            return Allow(decision.reason)


def narrowed(spec: RunSpec, budget: AutonomyBudget) -> RunSpec:
    """The order under this budget: it carries it, and the loop holds its limits between calls too.

    What is counted is this run's alone; `Ledger.admit` has several runs share. Raises `InvalidRequest` if there is not enough
    left to begin.
    """
    most, limits, price = ceilings(budget), spec.limits, budget.price(spec.model)
    for name in ("iterations", "seconds", "tokens", "cost"):
        if getattr(most, name) == 0:
            told = f"the budget `{budget.budget_id}` has nothing left of {name}; raise its limit or use another"
            raise InvalidRequest(told, param="budget", code="budget_exceeded")
    cheapest = 0.0 if price is None else min([each for each in msgspec.structs.astuple(price) if each is not None])
    affordable = None if most.cost is None or not cheapest else max(int(most.cost / cheapest * MILLION), 1)
    turns, completion = most.iterations, spec.completion
    if turns is not None and completion.close is not None:
        # The closing turn comes on top of the limit that it follows, and must be within the budget too.
        turns, completion = (turns - 1, completion) if turns > 1 else (turns, replace(completion, close=None))
    held = replace(
        limits,
        budget_turns=least(limits.budget_turns, turns),
        max_seconds=least(limits.max_seconds, most.seconds),
        max_tokens=least(limits.max_tokens, most.tokens, affordable),
        max_tool_calls=least(limits.max_tool_calls, most.calls or None),
    )
    return replace(spec, limits=held, completion=completion, budget=msgspec.json.decode(msgspec.json.encode(budget)))


def least(*bounds: N | None) -> N | None:
    """The strictest of these bounds, of which None is none."""
    return min([bound for bound in bounds if bound is not None], default=None)
