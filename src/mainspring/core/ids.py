"""Identifiers: a prefix that says what a thing is, and 24 random letters and digits.

Whoever makes ids takes a `NewId` in its constructor, so a test can pass `counting()` and know every id beforehand.
"""

import os
from collections.abc import Callable
from itertools import count
from secrets import token_hex
from typing import Final

NewId = Callable[[str], str]

DIGITS: Final = 24
BATCH: Final = 128


def random_id(prefix: str) -> str:
    """A new id such as `resp_9f...`: unique, and with 96 random bits not to be guessed."""
    try:
        return f"{prefix}_{_unused.pop()}"
    except IndexError:
        # One question to the system for many ids: it takes longer than all the rest.
        made = token_hex(BATCH * DIGITS // 2)
        _unused.extend([made[start : start + DIGITS] for start in range(0, len(made), DIGITS)])
        return random_id(prefix)


# A process that is forked must not go on with what its parent will use.
_unused: Final[list[str]] = []
os.register_at_fork(after_in_child=_unused.clear)


def counting() -> NewId:
    """Ids in order (`msg_1`, `fc_2`, ...), for tests and recordings."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def derive_id(prefix: str, item_id: str) -> str:
    """The id of something that belongs to exactly one other item: `fc_a1` gives `fco_a1`."""
    return f"{prefix}_{item_id.partition('_')[2] or item_id}"
