"""A sequence that is never changed, only continued, at the cost of what is added.

Continuing the newest version shares its memory; continuing an older one copies. A conversation is continued at its end almost
always, so a long one costs no more per step than a short one, and a fork is still correct. `notes` belong to the memory: what was
worked out about the beginning of one version holds for every longer one that shares it, and a copy begins without.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, cast, overload

T = TypeVar("T")


class Chain(Sequence[T], Generic[T]):
    __slots__ = ("_length", "_shared", "notes")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._shared: list[T] = list(items)
        self._length = len(self._shared)
        self.notes: dict[object, object] = {}

    def extend(self, items: Iterable[T]) -> "Chain[T]":
        """A chain with `items` behind this one's; this one stays as it is."""
        if self._length and not items:
            return self
        shared, notes = self._shared, self.notes
        if len(shared) != self._length or not shared:
            shared, notes = shared[: self._length], {}
        shared.extend(items)
        longer: Chain[T] = Chain.__new__(Chain)
        longer._shared = shared
        longer._length = len(shared)
        longer.notes = notes
        return longer

    def pick(self, wanted: Callable[[T], bool]) -> list[T]:
        """The items that are wanted. The function is asked about each once, for all versions that share memory."""
        seen, places = cast(tuple[int, list[int]], self.notes.get(wanted, (0, [])))
        if seen < self._length:
            places += [place for place in range(seen, self._length) if wanted(self._shared[place])]
            self.notes[wanted] = (self._length, places)
        return [self._shared[place] for place in places if place < self._length]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._shared, self._length)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._shared[start:stop] if step == 1 else [self._shared[place] for place in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._shared[index if index >= 0 else self._length + index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and len(other) == len(self) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Chain({list(self)!r})"
