"""The operator's word in decision runs: the policies, budgets and accounts that hold for every other run of the caller's tenant.

A decision run belongs to a tenant of its own, of the caller's and the person. What is counted is counted for the caller's.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.events import Event, RunEnded
from mainspring.core.run import Call, Run
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import OWNED
from mainspring.engine.policy_order import PolicySlots
from mainspring.features.budgets.plan import Admission, Before
from mainspring.ports import Ask, CallPolicy, Deny, Sink, Verdict


class NotAdmitted(Exception):
    """The operator's budget does not cover the run, which has not begun."""


class Governing:
    """What the operator wants of decision runs. `policies` judge their calls, `sinks` are told of them."""

    def __init__(self, policies: Sequence[PolicySlots] = (), admission: Admission | None = None) -> None:
        self._admission = admission
        self.policies: tuple[PolicySlots, ...] = tuple(
            [{slot: [_Unasked(policy) for policy in asked] for slot, asked in slots.items()} for slots in policies]
        )
        self.sinks: tuple[Sink, ...] = () if admission is None else (_Settling(admission),)

    async def admitted(self, spec: RunSpec, paused: Run | None) -> RunSpec:
        """The order under the operator's budget; `paused` is the run that it lets go on. Raises `NotAdmitted`."""
        if self._admission is None:
            return spec
        before = Before() if paused is None else Before(paused.spec.budget, paused)
        try:
            admitted = await self._admission.admit(replace(_payers(spec), budget=None, purse=None), before)
        except InvalidRequest as error:
            raise NotAdmitted(error.message) from None
        return replace(admitted, tenant=spec.tenant)

    async def withdraw(self, spec: RunSpec) -> None:
        """Gives back what was reserved for a run that did not begin."""
        if self._admission is not None:
            await self._admission.withdraw(_payers(spec))


class _Unasked:
    """A policy of the operator's. Its question is a no here: who talks about their tasks is not whom it wants asked."""

    def __init__(self, policy: CallPolicy) -> None:
        self.name, self._judge = policy.name, policy.judge
        self.never_waits = getattr(policy, "never_waits", False)

    async def judge(self, call: Call, run: Run) -> Verdict:
        verdict = await self._judge(call, replace(run, spec=_payers(run.spec)))
        return Deny(f"{verdict.prompt} Nobody can be asked here.") if isinstance(verdict, Ask) else verdict


class _Settling:
    """Settles the accounts of runs as they end."""

    hears = frozenset({RunEnded})

    def __init__(self, admission: Admission) -> None:
        self._ledger = admission.ledger

    async def __call__(self, run: Run, event: Event) -> None:
        await self._ledger(replace(run, spec=_payers(run.spec)), event)


def _payers(spec: RunSpec) -> RunSpec:
    return replace(spec, tenant=spec.tenant.partition(OWNED)[0])
