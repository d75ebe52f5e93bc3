"""`/v1/budgets`: the accounts of shared budgets, what is used of them and what is left."""

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.features.budgets.ledger import Ledger, Statement, make_statement
from mainspring.http.auth import get_tenant
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, make_page


class BudgetRoutes:
    """Every endpoint under `/v1/budgets`. Budgets of single runs have no account, and are not listed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/budgets", self.list, "budgets", Page),
            Endpoint("GET", "/v1/budgets/{budget_id}", self.retrieve, "budgets", Statement),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the budgets of the tenant, oldest first."""
        told = [make_statement(account) for account in await self._ledger.list_accounts(tenant=get_tenant(request))]
        return json_response(make_page(told, [budget.id for budget in told], has_more=False))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a budget of the tenant."""
        budget_id = str(request.path_params["budget_id"])
        return json_response(make_statement(await self._ledger.find_account(budget_id, tenant=get_tenant(request))))
