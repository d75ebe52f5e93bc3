"""A log in memory: records in a row, in which deltas that were dealt with take little more than their text.

Records are kept as they come. `pack` puts those away that are not likely to be read again: a stretch of deltas that go on with
each other becomes columns of texts and times, and is made anew for whoever does read it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, overload

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.events import DELTAS, Recorded, TextDelta
from mainspring.core.stored_log import find_texts

PACK: Final = 16
MOST_PIECES: Final = 32


class _Stretch:
    """Deltas that go on with each other. The first is whole."""

    __slots__ = ("_ends", "_more", "_pieces", "_times", "first")

    def __init__(self, first: Recorded) -> None:
        event = first.event
        self.first = first
        self._more = replace(event, logprobs=UNSET) if type(event) is TextDelta else event
        self._pieces: list[str] = []
        self._ends = array("I")
        self._times = array("d")

    def __len__(self) -> int:
        return len(self._ends) + 1

    def add(self, records: Sequence[Recorded]) -> None:
        said: list[str] = [record.event.delta for record in records]  # type: ignore[union-attr]
        before = self._ends[-1] if self._ends else 0
        self._pieces.append("".join(said))
        if len(self._pieces) > MOST_PIECES:
            self._pieces = ["".join(self._pieces)]
        self._ends.extend(list(accumulate(map(len, said), initial=before))[1:])
        self._times.extend([record.at for record in records])

    def list_records(self, start: int, stop: int) -> Iterator[Recorded]:
        if start == 0 and stop > 0:
            yield self.first
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        for place in range(max(start, 1), stop):
            begin = self._ends[place - 2] if place > 1 else 0
            text = self._pieces[0][begin : self._ends[place - 1]]
            yield Recorded(self.first.seq + place, self._times[place - 1], replace(self._more, delta=text))


class Log(Sequence[Recorded]):
    """Records, numbered from 0."""

    __slots__ = ("_fresh", "_starts", "_stretches", "append", "packed")

    def __init__(self, records: Sequence[Recorded] = ()) -> None:
        self._stretches: list[_Stretch | Recorded] = []
        self._starts: list[int] = []
        self.packed = 0
        self._fresh = list(records)
        # That of the list itself: each event is appended.
        self.append = self._fresh.append

    def pack(self, upto: int) -> None:
        """Puts away the records before number `upto`. Worth it for `PACK` of them."""
        upto = min(upto, len(self))
        count = upto - self.packed
        if count <= 0:
            return
        fresh, place = self._fresh[:count], 0
        while place < count:
            last, record = self._stretches[-1] if self._stretches else None, fresh[place]
            if type(last) is _Stretch and (stop := find_texts(last.first, fresh, place)) > place:
                last.add(fresh[place:stop])
                place = stop
                continue
            self._stretches.append(_Stretch(record) if type(record.event) in DELTAS else record)
            self._starts.append(record.seq)
            place += 1
        del self._fresh[:count]
        self.packed = upto

    def truncate(self, length: int) -> None:
        """Drops the records from number `length` on."""
        kept = self[:length]
        self._stretches, self._starts, self.packed = [], [], 0
        self._fresh[:] = kept

    def __len__(self) -> int:
        return self.packed + len(self._fresh)

    def read_from(self, start: int) -> list[Recorded]:
        """The records from number `start` on."""
        return self._fresh[start - self.packed :] if start >= self.packed else self[start:]

    def __iter__(self) -> Iterator[Recorded]:
        yield from self._unpack(0, self.packed)
        yield from self._fresh

    def skim(self) -> Iterator[Recorded]:
        """The records, but of deltas that were packed together the first alone: for whoever does not ask what was said."""
        for part in self._stretches:
            yield part if isinstance(part, Recorded) else part.first
        yield from self._fresh

    @overload
    def __getitem__(self, index: int) -> Recorded: ...
    @overload
    def __getitem__(self, index: slice) -> list[Recorded]: ...
    def __getitem__(self, index: int | slice) -> Recorded | list[Recorded]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            packed = self.packed
            found = self._fresh[max(start - packed, 0) : max(stop - packed, 0)]
            if start < packed:
                found = [*self._unpack(start, min(stop, packed)), *found]
            return found if step == 1 else found[::step]
        place = index if index >= 0 else len(self) + index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self._fresh[place - self.packed] if place >= self.packed else next(self._unpack(place, place + 1))

    def _unpack(self, start: int, stop: int) -> Iterator[Recorded]:
        place = bisect_right(self._starts, start) - 1
        while start < stop:
            part = self._stretches[place]
            if isinstance(part, Recorded):
                yield part
                start += 1
            else:
                first = self._starts[place]
                end = min(stop, first + len(part))
                yield from part.list_records(start - first, end - first)
                start = end
            place += 1
