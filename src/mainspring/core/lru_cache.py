"""A cache of bounded size: the entry that was set or looked up the longest ago makes room (LRU)."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """For one thread; `functools.lru_cache` is for results of functions, and for several."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        if (value := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return value

    def pop(self, key: K) -> V | None:
        return self._entries.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        return list(self._entries.items())
