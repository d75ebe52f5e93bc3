"""The metrics of several processes that serve one address: whichever is asked answers for all.

Theory of operation. A scraper knows one address and expects one count of each thing, which never falls. So each process writes
what it has counted to a file without a name that all of them have, once a second and when it ends, and the one that is asked adds
up. A process that takes the place of another goes on with the other's file. One that is killed loses the counts of a second.
"""

import os
from collections.abc import Sequence
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, lockf

from msgspec import Struct

from mainspring.core.items import decode, encode
from mainspring.features.traces.metrics import Metrics, Samples


class CountedRuns(Struct, frozen=True):
    """What one place has counted, and how many runs are under way there."""

    counted: dict[str, Samples] = {}
    live: int = 0


class SharedMetrics:
    """The metrics of this process with those of the others. `files` are the descriptors of all places, its own first."""

    def __init__(self, metrics: Metrics, files: Sequence[int]) -> None:
        self._metrics, self._files = metrics, files
        self._before = _read(files[0]).counted

    def write(self, live: int) -> None:
        """Shows the others what was counted here."""
        total = Metrics(by_tenant=self._metrics.by_tenant)
        for counted in (self._before, self._metrics.export()):
            total.merge(counted)
        _write(self._files[0], CountedRuns(total.export(), live))

    def text(self, *, live: int, is_store_up: bool) -> str:
        """The metrics of all processes as text for a scraper."""
        self.write(live)
        places, total = [_read(file) for file in self._files], Metrics(by_tenant=self._metrics.by_tenant)
        for place in places:
            total.merge(place.counted)
        return total.text(live=sum([place.live for place in places]), is_store_up=is_store_up)


def _read(file: int) -> CountedRuns:
    lockf(file, LOCK_SH)
    try:
        written = os.pread(file, os.fstat(file).st_size, 0)
    finally:
        lockf(file, LOCK_UN)
    return decode(written, CountedRuns) if written else CountedRuns()


def _write(file: int, counted: CountedRuns) -> None:
    written = encode(counted)
    lockf(file, LOCK_EX)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, written, 0)
    finally:
        lockf(file, LOCK_UN)
