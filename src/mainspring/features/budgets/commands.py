"""`mainspring budgets`: what keys and tenants have used of their budgets."""

from typing import Annotated, Literal

import typer

from mainspring.cli.database import open_database
from mainspring.cli.operator import name_operator
from mainspring.cli.options import AllTenants, AsJson, Database, Tenant
from mainspring.cli.output import write_lines, write_table, write_text
from mainspring.cli.tenant_choice import choose_tenants, write_of_tenants
from mainspring.features.budgets.ledger import Ledger, make_statement

app = typer.Typer()

BudgetId = Annotated[str, typer.Argument(metavar="BUDGET_ID", help="Budget, as `list` names it.")]


@app.command("list")
async def list_budgets(database: Database, tenant: Tenant = "", all_tenants: AllTenants = False, json: AsJson = False) -> None:
    """Lists the budgets of a tenant, or of all."""
    async with open_database(database) as engine:
        tenants, ledger = await choose_tenants(engine.store, tenant, all_tenants=all_tenants), Ledger(engine.store)
        found = {each: [make_statement(account) for account in await ledger.list_accounts(tenant=each)] for each in tenants}
    titles = ("budget", "state", "runs under way")
    none = "there are no shared budgets; a table `[budget]` of the settings that says whose it is makes them"
    write_of_tenants(
        found, titles, lambda each: (each.id, each.state, str(len(each.runs))), as_json=json, named=all_tenants, none=none
    )


@app.command()
async def show(budget_id: BudgetId, database: Database, tenant: Tenant = "", json: AsJson = False) -> None:
    """Shows what is used of a budget, what is held for runs under way, and what is left."""
    async with open_database(database) as engine:
        found = make_statement(await Ledger(engine.store).settle_ended(budget_id, tenant=tenant))
    if json:
        write_lines([found])
        return
    write_text(f"{found.id}: {found.state}; runs that hold a share: {', '.join(found.runs) or 'none'}")
    rows = [(line.measure, *map(_number, (line.used, line.held, line.left, line.limit))) for line in found.lines]
    write_table([("measure", "used", "held", "left", "limit"), *rows])


@app.command()
async def move(
    budget_id: BudgetId,
    state: Annotated[
        Literal["active", "suspended", "expired", "completed"], typer.Argument(metavar="STATE", help="The new state.")
    ],
    database: Database,
    tenant: Tenant = "",
) -> None:
    """Suspends a budget, so that its runs stop, activates it again, or ends it for good."""
    async with open_database(database) as engine:
        await Ledger(engine.store).move(budget_id, state, by=name_operator(), tenant=tenant)
    print(f"{budget_id} is {state}")


@app.command()
async def release(
    budget_id: BudgetId,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="Run that holds a share and never began.")],
    database: Database,
    tenant: Tenant = "",
) -> None:
    """Releases what is held for a run that died before it began, or that was not stored."""
    async with open_database(database) as engine:
        await Ledger(engine.store).release(run_id, budget_id, tenant=tenant)
    print(f"nothing of {budget_id} is held for {run_id}")


def _number(amount: float | None) -> str:
    return "any" if amount is None else f"{amount:.6g}"
