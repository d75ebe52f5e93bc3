"""A queue in which those who wait take turns, so that whoever has very much that waits holds up nobody else."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Entries of several holders. Those of one holder are taken in their order."""

    def __init__(self) -> None:
        # The holder whose turn it is first.
        self._lines: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return sum([len(line) for line in self._lines.values()])

    def __bool__(self) -> bool:
        return bool(self._lines)

    def count(self, holder: str) -> int:
        return len(self._lines.get(holder, ()))

    def add(self, holder: str, entry: T) -> None:
        self._lines.setdefault(holder, deque()).append(entry)

    def remove(self, holder: str, entry: T) -> bool:
        """Takes away an entry that still waits. False if it does not."""
        line = self._lines.get(holder)
        if line is None or entry not in line:
            return False
        line.remove(entry)
        if not line:
            del self._lines[holder]
        return True

    def take(self, may: Callable[[str], bool] = lambda holder: True) -> tuple[str, T] | None:
        """The entry that is next, and whose it is; None if nobody waits who `may`."""
        holder = next((each for each in self._lines if may(each)), None)
        if holder is None:
            return None
        line = self._lines.pop(holder)
        entry = line.popleft()
        if line:
            self._lines[holder] = line  # behind the others
        return holder, entry
