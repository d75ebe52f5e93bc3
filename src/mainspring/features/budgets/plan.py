"""Which budget a run works under: the operator's, narrowed by what its order asks for.

Theory of operation. A `Plan` is the operator's word. With `per` run, every run has the whole budget for itself. With `per` key or
tenant there is one account for all runs of a key or a tenant, kept by the `Ledger`: each run reserves a share of it before it
begins. An order may bring a budget of its own (an agent's) and name a level in its metadata; both become overlays, so they narrow
and never widen. A run that a person's approval continues goes on under what the paused one had, less what that has used.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from mainspring.core.autonomy import Autonomy
from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.core.items import Json, ToolDefinition
from mainspring.core.run import Run
from mainspring.core.spec import Price, RunSpec, spec_for
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget, Share
from mainspring.features.budgets.budget_policy import (
    BudgetPolicy,
    apply_budget,
    measure_delegated,
    measure_use,
    min_amounts,
    read_budget,
)
from mainspring.features.budgets.ledger import Ledger
from mainspring.features.budgets.preflight import require_cleared, run_preflight
from mainspring.features.budgets.settings import BudgetCommand, BudgetSettings, TenantBudget
from mainspring.ports import OrderContext, OrderStep, Store
from mainspring.tools.scope import AllowedCommand

LEVEL: Final = "mainspring_autonomy_level"
SHARE: Final = 0.2

S = TypeVar("S", bound=Struct)


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """The budget of every run, or of those of one key or tenant together. `tenants` have others.

    `share` is how much of each limit of an account one run may reserve, so that several fit in at a time.
    """

    budget: AutonomyBudget
    per: Literal["run", "key", "tenant"] = "run"
    share: Share = SHARE
    tenants: dict[str, AutonomyBudget] = {}

    def budget_for(self, spec: RunSpec) -> AutonomyBudget:
        budget, key = self.tenants.get(spec.tenant, self.budget), spec.caller.subject
        return replace(budget, budget_id=f"{budget.budget_id}.{key}") if self.per == "key" and key else budget


def find_plan_doubts(plan: Plan, tools: Sequence[ToolDefinition], model: str) -> list[str]:
    """What in a plan, which is right in form, may be a slip. `tools` are all that there are; none if it is not known."""
    order, told = spec_for("responses", id="preflight", model=model or "model", input=()), []
    for name, budget in {"budget": plan.budget, **{f"budget.tenants.{id}": own for id, own in plan.tenants.items()}}.items():
        checks = [check for check in run_preflight(order, budget, tools, time.time()) if check.result != "pass"]
        # To go without conditions is a choice, and the usual one.
        told += [f"{name}: {check.id}: {check.message}" for check in checks if check.id != "PF-09" or budget.stop_conditions]
    return told


def build_plan(settings: BudgetSettings) -> Plan | None:
    """The plan that the settings describe; None by default.

    `limits`, `files` and `network` change those of the level's preset, other fields replace the preset's. A tenant's budget is
    the common one but for what the tenant's own table says.
    """
    if settings == BudgetSettings():
        return None
    tenants = {name: _make_budget(_merge(settings, own)) for name, own in (settings.tenants or {}).items()}
    share = SHARE if settings.share is None else settings.share
    return Plan(_make_budget(settings), settings.per or "run", share, tenants)


def _make_budget(table: TenantBudget) -> AutonomyBudget:
    preset = replace(LEVELS[Autonomy.FULL if table.level is None else Autonomy.parse(table.level)], budget_id="default")
    changes = {name: value for name, value in _list_given(table).items() if name in AutonomyBudget.__struct_fields__}
    for name in ("limits", "files", "network"):
        if name in changes:
            given = {key: None if value == "unlimited" else value for key, value in _list_given(changes[name]).items()}
            changes[name] = replace(getattr(preset, name), **given)
    if table.allowed_commands is not None:
        changes["allowed_commands"] = tuple([_make_command(command) for command in table.allowed_commands])
    return replace(preset, **changes)


def _make_command(command: str | BudgetCommand) -> AllowedCommand:
    if isinstance(command, str):
        return AllowedCommand(command)
    most = None if command.max_calls == "unlimited" else command.max_calls
    return AllowedCommand(command.command, command.args_pattern, most)


def _merge(table: S, own: Struct) -> S:
    """The table but for what `own` says; tables in it are merged alike."""
    changes: Json = {}
    for name, value in _list_given(own).items():
        match getattr(table, name), value:
            case Struct() as inner, Struct():
                changes[name] = _merge(inner, value)
            case dict() as inner, dict():
                changes[name] = {**inner, **value}
            case _:
                changes[name] = value
    return replace(table, **changes)


def _list_given(table: Struct) -> Json:
    return {name: value for name, value in asdict(table).items() if value is not None}


class PausedRun(Struct, frozen=True):
    """What the run was under that a person's answer lets go on, and that run, if it is still there."""

    budget: Json | None = None
    run: Run | None = None

    @property
    def layers(self) -> tuple[AutonomyBudget, ...]:
        return () if self.budget is None else msgspec.convert(self.budget, AutonomyBudget).layers


_NOTHING: Final = PausedRun()


class Admission(OrderStep):
    """Puts orders under their budgets. `policy` judges by those, `ledger` has the accounts of shared ones.

    `root` is the folder that relative paths are in, where a budget does not say.
    """

    name = "budget"
    runs_in_place = True

    def __init__(self, store: Store, plan: Plan | None = None, *, root: str = "") -> None:
        self.plan, self.ledger = plan, Ledger(store)
        self.is_shared = plan is not None and plan.per != "run"
        self.policy = BudgetPolicy(self.ledger.find_state if self.is_shared else None)
        self._root = root

    def find_price(self, model: str) -> Price | None:
        """What the tokens of a model cost; None if no price is known."""
        return None if self.plan is None else self.plan.budget.price(model)

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if (continued := context.continued) is None:
            return await self.admit(order)
        before = PausedRun(continued.budget)
        with suppress(MainspringError):  # it was not stored, or is gone
            before = PausedRun(continued.budget, await context.find_run(continued.run_id))
        return await self.admit(order, before)

    async def admit(self, spec: RunSpec, before: PausedRun = _NOTHING) -> RunSpec:
        """The order under its budget, if it has one. Raises `InvalidRequest` if preflight fails or too little is left, before
        anything is reserved."""
        own = None if self.plan is None else self._find_own(self.plan, spec, before)
        first = None if own is None else self._set_root(replace(own, overlays=()))
        asked = self._list_layers(spec, first, before, () if own is None else own.overlays)
        for budget in asked:
            require_cleared(run_preflight(spec, budget, spec.tools, time.time()))
        left = [await self._subtract_used(budget, before) for budget in asked]
        if first is not None and self.is_shared:
            return await self._reserve(spec, first, tuple(left))
        if first is not None:
            require_cleared(run_preflight(spec, first, spec.tools, time.time()))
            left = [await self._subtract_used(first, before), *left]
        return apply_budget(spec, replace(left[0], overlays=tuple(left[1:]))) if left else spec

    async def withdraw(self, order: RunSpec) -> None:
        """Gives back what was reserved for a run that did not begin."""
        for account in await self.ledger.list_accounts(tenant=order.tenant) if self.is_shared else ():
            if order.id in account.held:
                await self.ledger.withdraw(order.id, account.budget.budget_id, tenant=order.tenant)

    def _find_own(self, plan: Plan, spec: RunSpec, before: PausedRun) -> AutonomyBudget:
        """The operator's budget. A run that goes on is paid from where it was, whoever has approved it."""
        budget = plan.budget_for(spec)
        account = next((layer.budget_id for layer in before.layers[:1]), "")
        is_ours = plan.per == "key" and account.startswith(f"{budget.budget_id.removesuffix(f'.{spec.caller.subject}')}.")
        return replace(budget, budget_id=account) if is_ours else budget

    async def _reserve(self, spec: RunSpec, budget: AutonomyBudget, overlays: tuple[AutonomyBudget, ...]) -> RunSpec:
        assert self.plan is not None
        await self.ledger.keep(budget, tenant=spec.tenant)
        most = budget.amounts.scale(self.plan.share, at_least=1).min(min_amounts(overlays))
        return await self.ledger.admit(spec, budget.budget_id, at_most=most, overlays=overlays)

    def _list_layers(
        self, spec: RunSpec, first: AutonomyBudget | None, before: PausedRun, more: tuple[AutonomyBudget, ...]
    ) -> list[AutonomyBudget]:
        """What holds besides: the operator's overlays, what the order brings, and what the run had that goes on with it.
        Whoever continues a run cannot leave that out."""
        given = read_budget(spec)
        layers = [*more, *(() if given is None else given.layers), *before.layers]
        own = {layer.budget_id: replace(layer, overlays=()) for layer in reversed(layers)}
        found = [layer for layer in reversed(own.values()) if first is None or not _is_again(layer, first)]
        if (level := spec.metadata.get(LEVEL)) is not None:
            try:
                named = LEVELS[Autonomy.parse(level)]
            except ValueError as error:
                raise InvalidRequest(f"metadata.{LEVEL} {error}", param="metadata") from None
            if named.budget_id not in [budget.budget_id for budget in found]:
                found.append(named)
        prices = {} if first is None else first.prices
        return [replace(self._set_root(budget), prices={**budget.prices, **prices}) for budget in found]

    def _set_root(self, budget: AutonomyBudget) -> AutonomyBudget:
        return budget if budget.files.root else replace(budget, files=replace(budget.files, root=self._root))

    async def _subtract_used(self, budget: AutonomyBudget, before: PausedRun) -> AutonomyBudget:
        """The budget, less what the run that goes on has used of it."""
        for layer in before.layers if before.run is not None else ():
            if layer.budget_id == budget.budget_id and before.run is not None:
                used = await measure_use(before.run, layer) + measure_delegated(before.run, layer)
                return budget.with_amounts((layer.amounts - used.amounts).min(budget.amounts))
        return budget


def _is_again(layer: AutonomyBudget, first: AutonomyBudget) -> bool:
    """Whether this is the operator's budget, as an order has it that was under it before: all but its limits is the same."""
    return replace(layer.with_amounts(first.amounts), state=first.state, approved_by=first.approved_by) == first
