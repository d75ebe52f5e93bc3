"""One budget for many runs, in whatever order, process and machine they share a store.

Theory of operation. The account of a budget is a log of its own: entries are documents under the budget's, numbered from 0, and
each is added only if no other has taken its number. So there is one order of events, and whoever decided on an old state decides
again. A run reserves its share before it begins and is held to it: the share is the budget that its order carries, so the run
works without the ledger from then on. When the run has ended, what it really used takes the place of the share.

Nothing has to happen in time. A share counts as used while it is held, so a run that was killed blocks its share and no more.
Once it has been resumed and has ended, it is settled; if nobody was there to do so, the next admission does it from the log.
Where no log tells, because the run was not to be stored or is deleted, the whole share stays used, unless somebody releases it.

So does that of a run which died before its first event: nobody can tell it from one that was deleted.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import CallerError, InvalidRequest, NotFound
from mainspring.core.events import Event, RunEnded, RunStarted
from mainspring.core.history import History, history_of
from mainspring.core.lru_cache import LRUCache
from mainspring.core.run import Run, replay
from mainspring.core.spec import RunSpec
from mainspring.engine.conversation import reread
from mainspring.features.budgets.amounts import Amounts, Spent
from mainspring.features.budgets.budget import AutonomyBudget, State, move_budget
from mainspring.features.budgets.budget_policy import apply_budget, measure_use
from mainspring.features.budgets.enforce import MEASURES
from mainspring.features.budgets.preflight import require_cleared, run_preflight
from mainspring.ports import Document, Store

BUDGET: Final = "budget"
ENTRY: Final = "budget_entry"
REMEMBERED: Final = 256
NO_LIMIT: Final = Amounts()


class AccountOpened(Struct, frozen=True, tag="Opened"):
    budget: AutonomyBudget


class Moved(Struct, frozen=True, tag=True):
    state: State
    by: str = ""


class Amended(Struct, frozen=True, tag=True):
    """Other rules and limits from now on, in the state that the budget is in."""

    budget: AutonomyBudget


class Reserved(Struct, frozen=True, tag=True, omit_defaults=True):
    """The share of a run. Two processes may try to begin the same one: `admitted` says how many have not given up."""

    run_id: str
    share: Amounts
    admitted: int = 1


class Settled(Struct, frozen=True, tag=True):
    run_id: str
    spent: Spent


LedgerEntry = AccountOpened | Amended | Moved | Reserved | Settled


class BudgetAccount(Struct, frozen=True):
    """A budget as its entries make it: what is used, and what is held for runs that have not been settled."""

    budget: AutonomyBudget
    entries: int = 1
    spent: Spent = Spent()
    held: dict[str, Reserved] = {}

    @property
    def reserved(self) -> Amounts:
        """All shares together."""
        return sum([reserved.share for reserved in self.held.values()], Amounts())

    @property
    def left(self) -> Amounts:
        """What may still be reserved."""
        return self.budget.amounts - self.spent.amounts - self.reserved


def fold(account: BudgetAccount, entry: LedgerEntry) -> BudgetAccount:
    """The account one entry later."""
    account = replace(account, entries=account.entries + 1)
    match entry:
        case Moved(state, by):
            return replace(account, budget=move_budget(account.budget, state, by=by))
        case Reserved(run_id):
            return replace(account, held={**account.held, run_id: entry})
        case Settled(run_id, spent):
            held = {id: reserved for id, reserved in account.held.items() if id != run_id}
            return replace(account, held=held, spent=account.spent + spent)
        case Amended(budget):
            return replace(account, budget=replace(budget, state=account.budget.state, approved_by=account.budget.approved_by))
        case AccountOpened():
            raise InvalidRequest(f"budget `{account.budget.budget_id}` has been opened already")
        case _:
            assert_never(entry)


def _share_of(left: Amounts, spec: RunSpec) -> Amounts:
    """What a run gets of what is left: what it may use by its own limits."""
    limits, last = spec.limits, spec.completion.close is not None
    turns = None if limits.max_turns is None else limits.max_turns + last
    return left.min(Amounts(turns, limits.max_seconds, limits.max_tool_calls, tokens=limits.max_tokens))


class Ledger:
    """Keeps the accounts of budgets in a store. As a sink of the engine, it settles runs as they end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: LRUCache[tuple[str, str], _Known] = LRUCache(REMEMBERED)

    async def open(self, budget: AutonomyBudget, *, tenant: str = "") -> BudgetAccount:
        """Raises `InvalidRequest` if the tenant has a budget of this id."""
        first = Document(ENTRY, "0", msgspec.json.encode(AccountOpened(budget)), tenant, budget.budget_id)
        if not await self._store.put([Document(BUDGET, budget.budget_id, b"{}", tenant), first], if_absent=True):
            raise InvalidRequest(f"budget `{budget.budget_id}` is there already; give the new one its own id")
        return BudgetAccount(budget)

    async def keep(self, budget: AutonomyBudget, *, tenant: str = "") -> BudgetAccount:
        """The account of this budget, opened if there is none yet, and with these rules from now on if it had others."""

        def amend(account: BudgetAccount) -> Amended | None:
            state, by = account.budget.state, account.budget.approved_by
            return None if replace(budget, state=state, approved_by=by) == account.budget else Amended(budget)

        try:
            await self.find_account(budget.budget_id, tenant=tenant)
        except NotFound:
            with suppress(InvalidRequest):  # somebody was quicker
                return await self.open(budget, tenant=tenant)
        return await self._add(tenant, budget.budget_id, amend)

    async def list_accounts(self, *, tenant: str = "") -> Sequence[BudgetAccount]:
        """All accounts of a tenant, oldest first."""
        return [await self.find_account(found.id, tenant=tenant) for found in await self._store.documents(BUDGET, tenant=tenant)]

    async def find_account(self, budget_id: str, *, tenant: str = "") -> BudgetAccount:
        """Raises `NotFound`."""
        known = self._known.get((tenant, budget_id)) or _Known()
        found = await self._store.documents(ENTRY, tenant=tenant, parent=budget_id, after=known.number)
        account = known.account
        for entry in [_entries.decode(document.body) for document in found]:
            account = (
                BudgetAccount(entry.budget) if isinstance(entry, AccountOpened) else fold(_require(account, budget_id), entry)
            )
        if found:
            self._known[tenant, budget_id] = _Known(account, found[-1].number)
        return _require(account, budget_id)

    async def find_state(self, tenant: str, budget_id: str) -> State | None:
        """How the budget stands, None if it is not shared."""
        try:
            return (await self.find_account(budget_id, tenant=tenant)).budget.state
        except NotFound:
            return None

    async def move(self, budget_id: str, state: State, *, by: str = "", tenant: str = "") -> BudgetAccount:
        """Moves the budget on in its life. Raises `InvalidRequest` if there is no way there, and `NotFound`."""

        def next_state(account: BudgetAccount) -> Moved:
            move_budget(account.budget, state)
            return Moved(state, by)

        return await self._add(tenant, budget_id, next_state)

    async def admit(
        self, spec: RunSpec, budget_id: str, *, at_most: Amounts = NO_LIMIT, overlays: tuple[AutonomyBudget, ...] = ()
    ) -> RunSpec:
        """Reserves a share for the run, and returns its order under that share and the overlays.

        Without limits of its own, nor `at_most`, it takes all that is left. Raises `NotFound`, and `InvalidRequest` if preflight
        fails or too little is left. A run that was admitted before gets the share that it had.
        """
        await self.settle_ended(budget_id, tenant=spec.tenant)

        def reserve(account: BudgetAccount) -> Reserved:
            if (held := account.held.get(spec.id)) is not None:
                return replace(held, admitted=held.admitted + 1)
            require_cleared(run_preflight(spec, account.budget, spec.tools, time.time()))
            share = _share_of(account.left.min(at_most), spec)
            try:
                apply_budget(spec, account.budget.with_amounts(share))
            except InvalidRequest as error:
                holders = ", ".join([f"`{run_id}`" for run_id in account.held]) or "none"
                told = f"{error.message}; held by runs: {holders}"
                raise InvalidRequest(told, param=error.param, code=error.code) from None
            return Reserved(spec.id, share)

        account = await self._add(spec.tenant, budget_id, reserve)
        return apply_budget(spec, replace(account.budget.with_amounts(account.held[spec.id].share), overlays=overlays))

    async def settle(self, run: Run, budget_id: str, *, tenant: str | None = None) -> BudgetAccount:
        """What the run, which has ended, really used takes the place of its share. Settling twice does nothing. `tenant` is whose
        the budget is, if not the run's."""
        spent = await measure_use(run)
        # Files of unknown name are this run's and nobody else's.
        files = tuple([f"{run.spec.id}{name}" if name.startswith("?") else name for name in spent.files])
        payer = run.spec.tenant if tenant is None else tenant
        return await self._settle(payer, budget_id, run.spec.id, replace(spent, files=files))

    async def settle_ended(self, budget_id: str, *, tenant: str = "") -> BudgetAccount:
        """Settles every share whose run has ended without anybody there to do so."""
        account = await self.find_account(budget_id, tenant=tenant)
        for reserved in account.held.values():
            if not await self._has_ended(reserved.run_id):
                continue
            try:
                account = await self.settle(await self._replay_run(reserved.run_id), budget_id, tenant=tenant)
            except CallerError:
                account = await self._settle(tenant, budget_id, reserved.run_id, Spent.whole(reserved.share, reserved.run_id))
        return account

    async def withdraw(self, run_id: str, budget_id: str, *, tenant: str = "") -> None:
        """Gives back what `admit` reserved for a run that has not begun, unless another process may still begin it."""

        def give_back(account: BudgetAccount) -> Reserved | Settled | None:
            if (held := account.held.get(run_id)) is None:
                return None
            return replace(held, admitted=held.admitted - 1) if held.admitted > 1 else Settled(run_id, Spent())

        try:
            await self._store.load(run_id)  # its share is settled when it has ended
        except NotFound:
            await self._add(tenant, budget_id, give_back)

    async def release(self, run_id: str, budget_id: str, *, tenant: str = "") -> BudgetAccount:
        """Gives back the share of a run that never began. Raises `InvalidRequest` if the store knows that it did."""
        try:
            await self._store.load(run_id)
        except NotFound:
            return await self._settle(tenant, budget_id, run_id, Spent())
        raise InvalidRequest(f"run `{run_id}` has begun; its share is settled when it has ended")

    async def __call__(self, run: Run, event: Event) -> None:
        if isinstance(event, RunEnded) and isinstance(named := (run.spec.budget or {}).get("budget_id"), str):
            try:
                await self.settle(run, named)
            except NotFound:
                return  # a budget of its own, which nobody shares

    async def _has_ended(self, run_id: str) -> bool:
        try:
            return (await self._store.load(run_id)).response is not None
        except NotFound:
            return False

    async def _replay_run(self, run_id: str) -> Run:
        """The run at its end. Raises a `CallerError` if what it continued is gone."""
        log = await self._store.events(run_id)
        assert isinstance(log[0].event, RunStarted)
        spec, history = log[0].event.spec, History()
        if spec.conversation is not None:
            history = await reread(self._store, spec.tenant, spec.conversation)
        elif spec.parent is not None:
            history = history_of(await self._store.history(spec.parent, tenant=spec.tenant))
        return replay(log, history)

    async def _settle(self, tenant: str, budget_id: str, run_id: str, spent: Spent) -> BudgetAccount:
        return await self._add(tenant, budget_id, lambda account: Settled(run_id, spent) if run_id in account.held else None)

    async def _add(self, tenant: str, budget_id: str, decide: Callable[[BudgetAccount], LedgerEntry | None]) -> BudgetAccount:
        """Adds what `decide` makes of the account as it stands; None adds nothing. It is asked again if another was faster."""
        while True:
            account = await self.find_account(budget_id, tenant=tenant)
            if (entry := decide(account)) is None:
                return account
            document = Document(ENTRY, str(account.entries), msgspec.json.encode(entry), tenant, budget_id)
            if await self._store.put([document], if_absent=True):
                return fold(account, entry)
            self._known.pop((tenant, budget_id))


class _Known(Struct, frozen=True):
    """An account up to the entry of this number."""

    account: BudgetAccount | None = None
    number: int | None = None


def _require(account: BudgetAccount | None, budget_id: str) -> BudgetAccount:
    if account is None:
        raise NotFound(f"there is no budget `{budget_id}`; list those there are, or name it in `[budget]` of the settings")
    return account


_entries = msgspec.json.Decoder(LedgerEntry)


class StatementLine(Struct, frozen=True):
    """One limit: what is used of it, what is held for runs under way, and what is left. Without a limit, nothing is held."""

    measure: str
    used: float
    held: float
    left: float | None
    limit: float | None


class Statement(Struct, frozen=True):
    """A budget and its use. `runs` are those that hold a share of it."""

    id: str
    state: State
    lines: tuple[StatementLine, ...]
    runs: tuple[str, ...]
    object: str = "budget"


def make_statement(account: BudgetAccount) -> Statement:
    most, left = account.budget.amounts.measures, account.left.measures
    used, held = account.spent.amounts.measures, account.reserved.measures
    lines = [
        StatementLine(name, used[name] or 0, 0 if most[name] is None else held[name] or 0, left[name], most[name])
        for name in [measure.name for measure in MEASURES]
    ]
    return Statement(account.budget.budget_id, account.budget.state, tuple(lines), tuple(account.held))
