"""An account as it is shown to people."""

from msgspec import Struct

from mainspring.features.budgets.budget import State
from mainspring.features.budgets.enforce import MEASURES
from mainspring.features.budgets.ledger import Account


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


def make_statement(account: Account) -> Statement:
    most, left = account.budget.amounts.measures, account.left.measures
    used, held = account.spent.amounts.measures, account.reserved.measures
    lines = [
        StatementLine(name, used[name] or 0, 0 if most[name] is None else held[name] or 0, left[name], most[name])
        for name in [measure.name for measure in MEASURES]
    ]
    return Statement(account.budget.budget_id, account.budget.state, tuple(lines), tuple(account.held))
