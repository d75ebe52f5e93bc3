"""Identifiers: a prefix that says what a thing is, and 24 random letters and digits.

Whoever makes ids takes a `NewId` in its constructor, so a test can pass `counting()` and know every id beforehand.
"""

from collections.abc import Callable
from itertools import count
from secrets import token_hex

NewId = Callable[[str], str]


def random_id(prefix: str) -> str:
    """A new id such as `resp_9f...`: unique, and with 96 random bits not to be guessed."""
    return f"{prefix}_{token_hex(12)}"


def counting() -> NewId:
    """Ids in order (`msg_1`, `fc_2`, ...), for tests and recordings."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def derive_id(prefix: str, item_id: str) -> str:
    """The id of something that belongs to exactly one other item: `fc_a1` gives `fco_a1`."""
    return f"{prefix}_{item_id.partition('_')[2] or item_id}"
