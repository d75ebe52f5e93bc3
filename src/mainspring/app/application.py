"""Applications with runs of their own on an engine: their tools and rules, under the operator's policies and budgets.

Theory of operation. The runs of an application belong to tenants that no key has: the caller's tenant, `OWNED`, and whatever the
application tells apart, such as a person. So no other door leads to them and no other engine resumes them. The operator's
policies, budgets and accounts see such a run as one of the caller's tenant. What a policy would ask a person is denied: whoever
uses the application is not whom the operator wants asked.
"""

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, NotAdmitted
from mainspring.core.events import Event, RunEnded
from mainspring.core.run import Call, Run
from mainspring.core.spec import RunSpec
from mainspring.engine.policy_order import PolicySlots
from mainspring.features.budgets.ledger import Ledger
from mainspring.features.budgets.plan import Admission
from mainspring.ports import OWNED, Ask, CallPolicy, CountingPolicy, Deny, OrderContext, OrderStep, QuickPolicy, Verdict


def ask_nobody(slots: PolicySlots) -> PolicySlots:
    """The operator's policies for the runs of an application."""
    return {slot: [AskNobody(policy) for policy in policies] for slot, policies in slots.items()}


class AskNobody:
    """A policy of the operator's that sees the caller's tenant and whose question is a denial."""

    def __init__(self, policy: CallPolicy) -> None:
        self.name, self._judge = policy.name, policy.judge
        self.never_waits = isinstance(policy, QuickPolicy) and policy.never_waits
        self.counts_calls = isinstance(policy, CountingPolicy) and policy.counts_calls

    async def judge(self, call: Call, run: Run) -> Verdict:
        verdict = await self._judge(call, replace(run, spec=_as_caller(run.spec)))
        return Deny(f"{verdict.prompt} Nobody can be asked here.") if isinstance(verdict, Ask) else verdict


class CallerBudgetStep(OrderStep):
    """Puts the runs of an application under the budget of the caller's tenant. Raises `NotAdmitted`."""

    name = "budget"
    runs_in_place = True

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        try:
            admitted = await self._admission.prepare(replace(_as_caller(order), budget=None, allowance=None), context)
        except InvalidRequest as error:
            raise NotAdmitted(error.message) from None
        return replace(admitted, tenant=order.tenant)

    async def withdraw(self, order: RunSpec) -> None:
        await self._admission.withdraw(_as_caller(order))


class CallerLedger:
    """Settles the accounts of the caller's tenant when a run of an application ends."""

    hears = frozenset({RunEnded})

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(self, run: Run, event: Event) -> None:
        await self._ledger(replace(run, spec=_as_caller(run.spec)), event)


def _as_caller(spec: RunSpec) -> RunSpec:
    return replace(spec, tenant=spec.tenant.partition(OWNED)[0])
