"""Measures what a model says in a turn, so that one that never ends is cut, and one that outruns the store waits for it.

A backend is asked to keep to a number of tokens, and may not heed it. Only it can count them, so an answer is cut when it
certainly has more: a token stands for some four characters, and over a whole answer never for `CHARS_PER_TOKEN`.
"""

from math import inf
from typing import Final

CHARS_PER_TOKEN: Final = 32
SLACK_CHARS: Final = 4_096
DELTA_BYTES: Final = 256
ITEM_BYTES: Final = 8_192
PACE_BYTES: Final = 1_048_576


class TurnMeter:
    """Counts the events of one turn. None is no limit.

    `size` bounds the memory that the turn takes: beside its characters, each piece counts `DELTA_BYTES`, and every beginning and
    end of an item `ITEM_BYTES`.
    """

    __slots__ = ("_chars", "_due", "_most_chars", "_most_size", "_size")

    def __init__(self, tokens: int | None, size: int | None) -> None:
        self._most_chars = inf if tokens is None else max(tokens, 0) * CHARS_PER_TOKEN + SLACK_CHARS
        self._most_size = inf if size is None else size
        self._chars = self._size = 0
        self._due = PACE_BYTES

    def take(self, chars: int, overhead: int) -> bool:
        """Counts an event. False if it exceeds a limit."""
        self._chars += chars
        self._size += chars + overhead
        return self._chars <= self._most_chars and self._size <= self._most_size

    def take_delta(self, chars: int) -> bool:
        """Counts a delta, unless it exceeds a limit or `is_due` would be true: then it returns False."""
        size, said = self._size + chars + DELTA_BYTES, self._chars + chars
        if size >= self._due or size > self._most_size or said > self._most_chars:
            return False
        self._size, self._chars = size, said
        return True

    @property
    def size(self) -> int:
        return self._size

    @property
    def excess(self) -> int:
        """How many of the characters are too many."""
        return int(max(self._chars - self._most_chars, self._size - self._most_size, 0))

    def is_due(self) -> bool:
        """Whether so much has been said since the last time that the store should have it before there is more."""
        if self._size < self._due:
            return False
        self._due = self._size + PACE_BYTES
        return True
