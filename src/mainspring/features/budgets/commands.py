"""`mainspring budgets`: what keys and tenants have used of their budgets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mainspring.features.budgets.statement import Statement

app = typer.Typer(name="budgets", help="Lists and shows the budgets that runs share, suspends and activates them.")

Id = Annotated[str, typer.Argument(metavar="BUDGET_ID", help="The budget, as `list` names it.")]
Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that holds the runs.", show_default=False)]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose they are. Default: the default tenant's.", show_default=False)]
Lines = Annotated[bool, typer.Option("--json", help="Print every budget as a line of JSON.")]


@app.command("list")
def list_budgets(database: Database, tenant: Tenant = "", json: Lines = False) -> int:
    """Lists the budgets of a tenant."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import reader
    from mainspring.features.budgets.statement import statement

    async def listed() -> int:
        async with reader(database) as engine:
            told = [statement(account) for account in await engine.admission.ledger.accounts(tenant=tenant)]
        if json:
            write_lines(told)
        else:
            write_table([("budget", "state", "runs under way"), *[(each.id, each.state, str(len(each.runs))) for each in told]])
        return 0

    return launch(listed())


@app.command()
def show(budget_id: Id, database: Database, tenant: Tenant = "", json: Lines = False) -> int:
    """Shows what is used of a budget, what is held for runs under way, and what is left."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import reader
    from mainspring.features.budgets.statement import statement

    async def shown() -> int:
        async with reader(database) as engine:
            told = statement(await engine.admission.ledger.settle_ended(budget_id, tenant=tenant))
        if json:
            write_lines([told])
            return 0
        print(f"{told.id}: {told.state}; runs that hold a share: {', '.join(told.runs) or 'none'}")
        write_table([("measure", "used", "held", "left", "limit"), *_rows(told)])
        return 0

    return launch(shown())


@app.command()
def move(
    budget_id: Id,
    state: Annotated[
        Literal["active", "suspended", "expired", "completed"], typer.Argument(metavar="STATE", help="Where it is to go.")
    ],
    database: Database,
    tenant: Tenant = "",
) -> int:
    """Suspends a budget, so that its runs stop, activates it again, or ends it for good."""
    from getpass import getuser

    from mainspring.cli.follow import launch
    from mainspring.cli.open_database import reader

    async def moved() -> int:
        async with reader(database) as engine:
            await engine.admission.ledger.move(budget_id, state, by=f"user:{getuser()}", tenant=tenant)
        print(f"{budget_id} is {state}")
        return 0

    return launch(moved())


@app.command()
def release(
    budget_id: Id,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="A run that holds a share and never began.")],
    database: Database,
    tenant: Tenant = "",
) -> int:
    """Gives back what is held for a run that died before it began, or that was not stored."""
    from mainspring.cli.follow import launch
    from mainspring.cli.open_database import reader

    async def released() -> int:
        async with reader(database) as engine:
            await engine.admission.ledger.release(run_id, budget_id, tenant=tenant)
        print(f"nothing of {budget_id} is held for {run_id}")
        return 0

    return launch(released())


def _rows(told: "Statement") -> list[tuple[str, ...]]:
    return [
        (line.measure, _number(line.used), _number(line.held), _number(line.left), _number(line.limit)) for line in told.lines
    ]


def _number(amount: float | None) -> str:
    return "any" if amount is None else f"{amount:.6g}"
