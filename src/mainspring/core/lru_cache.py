"""A cache of bounded size: the entry that was set or looked up the longest ago makes room (LRU)."""

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """For one thread; `functools.lru_cache` is for results of functions, and for several.

    With `weigh`, all entries together weigh at most so much; one that weighs more is not kept.
    """

    def __init__(self, size: int, weigh: Callable[[V], int] | None = None, most: float = inf) -> None:
        self._size, self._weigh, self._most = size, weigh, most
        self._weight = 0
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key)
        weight = self._weigh(value) if self._weigh else 0
        if weight > self._most:
            return
        self._entries[key] = value
        self._weight += weight
        while len(self._entries) > self._size or self._weight > self._most:
            self.pop(next(iter(self._entries)))

    def get(self, key: K) -> V | None:
        if (value := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return value

    def pop(self, key: K) -> V | None:
        value = self._entries.pop(key, None)
        if value is not None and self._weigh:
            self._weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        self._entries.clear()
        self._weight = 0

    def items(self) -> list[tuple[K, V]]:
        return list(self._entries.items())
