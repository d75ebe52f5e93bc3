"""An account as it is shown to people."""

from msgspec import Struct

from mainspring.features.budgets.budget import State
from mainspring.features.budgets.enforce import MEASURES
from mainspring.features.budgets.enforcement import ceilings
from mainspring.features.budgets.ledger import Account


class Line(Struct, frozen=True):
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
    lines: tuple[Line, ...]
    runs: tuple[str, ...]
    object: str = "budget"


def statement(account: Account) -> Statement:
    most, left = ceilings(account.budget), account.left
    names = [measure.name for measure in MEASURES]
    shares = [reserved.share for reserved in account.held.values()]
    lines = [
        Line(
            name,
            account.spent.amount(name),
            0 if getattr(most, name) is None else sum([getattr(share, name) or 0 for share in shares]),
            getattr(left, name),
            getattr(most, name),
        )
        for name in names
    ]
    return Statement(account.budget.budget_id, account.budget.state, tuple(lines), tuple(account.held))
