"""The server-sent events of one run in one dialect, with what each reader of them has read.

A child spells the events: it is fed the records of the run, each with the run as it stood after it, and adds frames. That is a
function of the log alone: whoever reads a run again, from whatever point, gets the same bytes.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Hashable
from typing import Final, Generic, Self, TypeVar

from mainspring.core.events import (
    Recorded,
)
from mainspring.core.run import Run

DONE: Final = b"data: [DONE]\n\n"
# How many events are dropped at a time.
MOST_READ: Final = 16

D = TypeVar("D", bound=Hashable)


class FrameLog(ABC, Generic[D]):
    """Whole server-sent events. `ends[n]` counts those that record n completes; so many were dropped as `_dropped` says.

    Events that all readers have are dropped; one that comes for them gets a log of its own. One without readers is over.
    """

    def __init__(self, dialect: D) -> None:
        self.dialect = dialect
        self._readers: dict[object, int] = {}
        self.is_over = False
        self.reset()

    def reset(self) -> None:
        """The log begins anew."""
        self.frames: list[bytes] = []
        self._dropped = 0
        self.ends = array("I")

    @abstractmethod
    def add(self, record: Recorded, run: Run) -> None:
        """Tells what this record adds; `run` is the run after it."""

    @abstractmethod
    def add_delta(self, record: Recorded) -> bool:
        """Tells a delta that goes on with the event before. False if that takes the run."""

    def begin_again(self) -> Self:
        """An empty one for the same run."""
        return type(self)(self.dialect)

    def has(self, position: int) -> bool:
        """Whether everything from this event on can be read."""
        return not self.is_over and position >= self._dropped

    def enter(self, reader: object, position: int) -> None:
        """Somebody reads from this event on."""
        self._readers[reader] = position

    def read(self, reader: object, shown: int) -> list[bytes]:
        """What the reader has not read yet of the first `shown` records."""
        start, stop, dropped = self._readers[reader], self.ends[shown - 1], self._dropped
        if start >= stop:
            return []
        found = self.frames[start - dropped : stop - dropped]
        self._readers[reader] = stop
        # The first ones are large, and a quiet stream would keep them.
        most = MOST_READ if dropped else 1
        if stop - dropped >= most:
            least = min(self._readers.values())
            if least - dropped >= most:
                del self.frames[: least - dropped]
                self._dropped = least
        return found

    def leave(self, reader: object) -> None:
        del self._readers[reader]
        self.is_over = not self._readers
