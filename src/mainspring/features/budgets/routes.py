"""`/v1/budgets`: the accounts of shared budgets, what is used of them and what is left. `/v1/usage`: what runs have used."""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.items import Usage
from mainspring.features.budgets.budget import State
from mainspring.features.budgets.ledger import Statement, make_statement
from mainspring.features.budgets.plan import Admission
from mainspring.http.auth import get_caller
from mainspring.http.endpoints import COUNT, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, make_page, read_choice, read_number
from mainspring.http.tenants import TENANT, choose_tenant, require_operator
from mainspring.ports import Filter, RunStore, UsageGroup, UsageSum

SECONDS_KEPT: Final = 300.0
MOST_KEPT: Final = 64
_DAY: Final = 86_400

_Question = tuple[UsageGroup, str | None, float, float]

_ONE: Final = "/v1/budgets/{budget_id}"
_GROUPS: Final[dict[str, UsageGroup]] = {
    "day": "day", "model": "model", "agent": "agent", "key": "caller", "tenant": "tenant",
}  # fmt: skip
_USAGE: Final = (
    Parameter("by", {"enum": list(_GROUPS), "default": "day"}),
    Parameter("from", COUNT),
    Parameter("to", COUNT),
    TENANT,
)


class UsageLine(Struct, frozen=True):
    """What the runs of a group have used. `seconds` is how long they took on average; `cost` is that of the models whose price
    is known, null if none is."""

    group: str
    runs: int
    failed: int
    seconds: float | None
    input_tokens: int
    output_tokens: int
    cost: float | None


class UsageReport(Struct, frozen=True):
    by: str
    data: Sequence[UsageLine]
    total: UsageLine
    object: str = "usage"


class BudgetRoutes:
    """Every endpoint under `/v1/budgets`, and the sums. Budgets of single runs have no account, and are not listed."""

    def __init__(self, admission: Admission, store: RunStore) -> None:
        self._find_price, self._ledger, self._usage = admission.find_price, admission.ledger, UsageCache(store)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/budgets", self.list, "budgets", Page, query=(TENANT,)),
            Endpoint("GET", _ONE, self.retrieve, "budgets", Statement, query=(TENANT,)),
            Endpoint("POST", f"{_ONE}/suspend", self.suspend, "admin", Statement, query=(TENANT,)),
            Endpoint("POST", f"{_ONE}/activate", self.activate, "admin", Statement, query=(TENANT,)),
            Endpoint("GET", "/v1/usage", self.sum_usage, "budgets", UsageReport, query=_USAGE),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the budgets of the tenant, oldest first."""
        told = [make_statement(account) for account in await self._ledger.list_accounts(tenant=choose_tenant(request) or "")]
        return json_response(make_page(told, [budget.id for budget in told], has_more=False))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a budget of the tenant."""
        budget_id = str(request.path_params["budget_id"])
        return json_response(make_statement(await self._ledger.find_account(budget_id, tenant=choose_tenant(request) or "")))

    async def suspend(self, request: Request) -> HttpResponse:
        """Suspends a budget: its runs stop, and no others begin."""
        return await self._move(request, "suspended")

    async def activate(self, request: Request) -> HttpResponse:
        """Activates a suspended budget again."""
        return await self._move(request, "active")

    async def _move(self, request: Request, state: State) -> HttpResponse:
        require_operator(request)  # a tenant does not take back what was decided about it
        tenant, by = choose_tenant(request) or "", get_caller(request).subject
        account = await self._ledger.move(str(request.path_params["budget_id"]), state, by=by, tenant=tenant)
        return json_response(make_statement(account))

    async def sum_usage(self, request: Request) -> HttpResponse:
        """Sums up what runs have used, by day (of UTC), model, agent, key or tenant. Runs count when they began; sums of days
        before yesterday may be five minutes old."""
        by = request.query_params.get("by", "day")
        group = read_choice(request, "by", _GROUPS) or "day"
        since, before = read_number(request, "from"), read_number(request, "to")
        found = await self._usage.sum_usage(group, Filter(tenant=choose_tenant(request), since=since, before=before))
        lines = [self._add(name, sums) for name, sums in groupby(found, key=lambda each: each.group)]
        return json_response(UsageReport(by, lines, self._add("", found)))

    def _add(self, group: str, sums: Iterable[UsageSum]) -> UsageLine:
        sums = list(sums)
        ended, costs = sum([each.ended for each in sums]), [cost for each in sums if (cost := self._price(each)) is not None]
        return UsageLine(
            group,
            sum([each.runs for each in sums]),
            sum([each.failed for each in sums]),
            sum([each.seconds for each in sums]) / ended if ended else None,
            sum([each.input_tokens for each in sums]),
            sum([each.output_tokens for each in sums]),
            sum(costs) if costs else None,
        )

    def _price(self, used: UsageSum) -> float | None:
        price = self._find_price(used.model)
        return None if price is None else price.of(Usage(used.input_tokens, used.output_tokens))


class UsageCache:
    """What runs have used, without a look at every run each time.

    The runs of days before yesterday are many and seldom change: their sums are kept for some minutes. So a run of theirs that
    is deleted, or that ends only now, is counted as it was for that much longer. Those of today and yesterday are summed each
    time.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._kept: dict[_Question, tuple[float, Sequence[UsageSum]]] = {}

    async def sum_usage(self, by: UsageGroup, only: Filter) -> Sequence[UsageSum]:
        """As the store has it. Of the filter, tenant and times count."""
        since, before = only.since or 0.0, only.before or float("inf")
        recent = float((time.time() // _DAY - 1) * _DAY)
        past = await self._sum_past(by, only.tenant, since, min(before, recent)) if since < recent else ()
        if before <= recent:
            return past
        return _merge(past, await self._store.sum_usage(by, Filter(tenant=only.tenant, since=max(since, recent), before=before)))

    async def _sum_past(self, by: UsageGroup, tenant: str | None, since: float, before: float) -> Sequence[UsageSum]:
        question, now = (by, tenant, since, before), time.monotonic()
        if (known := self._kept.pop(question, None)) is None or known[0] < now:
            found = await self._store.sum_usage(by, Filter(tenant=tenant, since=since, before=before))
            known = (now + SECONDS_KEPT, found)
        self._kept[question] = known
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return known[1]


def _merge(past: Sequence[UsageSum], recent: Sequence[UsageSum]) -> Sequence[UsageSum]:
    found = {(each.group, each.model): each for each in past}
    for each in recent:
        known = found.get((each.group, each.model))
        found[each.group, each.model] = each if known is None else _add(known, each)
    return [found[names] for names in sorted(found)]


def _add(one: UsageSum, other: UsageSum) -> UsageSum:
    return replace(
        one,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        ended=one.ended + other.ended,
        seconds=one.seconds + other.seconds,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
    )
