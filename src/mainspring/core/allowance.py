"""What a turn may use: it is reserved before the turn begins, so that what is used never exceeds the allowance.

The input of a turn is what the last one was told and said, by its own count, and an estimate of what has come since; of a first
turn it is all estimate. The output is bounded by what is left beside it. So a backend that keeps to the bound stays within the
allowance, but for what an estimate falls short of.
"""

from collections.abc import Sequence

from mainspring.core.items import Item, Usage
from mainspring.core.run import Run
from mainspring.core.spec import MILLION
from mainspring.core.tokens import estimate, tokens_of


def sum_used(run: Run) -> Usage:
    """What the run has used, with what turns that were cut off must have."""
    return run.usage + run.lost


def estimate_input(run: Run, items: Sequence[Item]) -> int:
    """How many tokens the input of the next turn has, if these are its items."""
    since = tokens_of([entry.item for entry in run.transcript[run.counted :] if not entry.hidden]) if run.context else 0
    return max(run.context + since, estimate(items, run.spec.instructions, run.tools))


def room(run: Run, items: Sequence[Item]) -> int | None:
    """How many tokens the output of the next turn may have, below 1 if the turn may not begin; None if there is no allowance."""
    if (allowance := run.spec.allowance) is None:
        return None
    used, asked, price = sum_used(run) + run.delegated.usage, estimate_input(run, items), allowance.price
    bounds = [] if allowance.tokens is None else [allowance.tokens - used.total_tokens - asked]
    if allowance.cost is not None:
        dearest = max([each for each in (price.input, price.cached, price.cache_write) if each is not None])
        left = allowance.cost - price.of(used) - asked * dearest / MILLION
        if left < 0 or price.output:
            bounds.append(int(left / price.output * MILLION) if left > 0 else 0)
    return min(bounds, default=None)
