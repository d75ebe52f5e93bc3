"""How many bytes requests and runs hold in memory, counted before they are held: in all, and for one holder.

A holder is an API key, or a tenant where there is no key. What is counted is text as it is sent or stored; what becomes of it in
memory is a small multiple of that.
"""

from collections import Counter
from collections.abc import Iterable

from mainspring.core.errors import HistoryTooLarge, MemoryLimit
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
    encode,
    split_media,
)

# What an item counts beside its text.
ITEM_BYTES = 256


def find_holder(subject: str, tenant: str) -> str:
    """Who memory is counted for: the key, if there is one, else the tenant."""
    return subject or tenant


def measure_items(items: Iterable[Item]) -> int:
    """About how many bytes they are. Long texts are not copied to find out."""
    return sum([ITEM_BYTES + _measure(item) for item in items])


def _measure(item: Item) -> int:
    if type(item) is Message:
        return sum(map(_measure_part, item.content))
    match item:
        case FunctionCall():
            return len(item.arguments)
        case FunctionCallOutput(output=str(text)):
            return len(text)
        case _:
            return len(encode(item))


def _measure_part(part: Part) -> int:
    if type(part) is InputText or type(part) is OutputText:
        return len(part.text)
    rest, media = split_media(part)
    return len(encode(rest)) + len(media)


class MemoryQuota:
    """The count. One holder may have half of `most`; None is no limit."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, holder: str, size: int) -> bool:
        """Counts these bytes, or says that there is no room for them."""
        if self.most is not None and (self._held[holder] + size > self.most // 2 or self._held.total() + size > self.most):
            return False
        self._held[holder] += size
        return True

    def count(self, holder: str, size: int) -> int:
        """Counts what is there already, until it is just more than the holder may have: the rest would be taken from others.
        Returns how many bytes that are."""
        if self.most is not None:
            size = max(min(size, self.most // 2 + 1 - self._held[holder]), 0)
        self._held[holder] += size
        return size

    def is_over(self, holder: str) -> bool:
        """Whether it has more than it may, which it did not ask for before."""
        return self.most is not None and self._held[holder] > self.most // 2

    def give_back(self, holder: str, size: int) -> None:
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]

    def hold(self, holder: str, size: int, param: str | None = None, *, beside: int = 0) -> "Hold":
        """Counts these bytes until what is returned is dropped. Raises `HistoryTooLarge` if they can never be held beside others
        that belong to them, `MemoryLimit` if something else must end first."""
        if self.most is not None and size + beside > self.most // 2:
            told = f"the run and what it continues have {size + beside} bytes, and {self.most // 2} are allowed; compact the"
            raise HistoryTooLarge(f"{told} history with POST /v1/responses/compact, or continue an earlier response", param=param)
        held = Hold(self, holder)
        held.add(size, param)
        return held


class Hold:
    """Bytes that count as long as this lives."""

    __slots__ = ("_holder", "_quota", "size")

    def __init__(self, quota: MemoryQuota, holder: str) -> None:
        self._quota, self._holder, self.size = quota, holder, 0

    def add(self, size: int, param: str | None = None) -> None:
        """Raises `MemoryLimit`, and then counts nothing more."""
        if not self._quota.take(self._holder, size):
            told = "the requests and runs under way hold as many bytes as the server lets them, with the histories they continue"
            raise MemoryLimit(f"{told}; wait for some to end, or continue a shorter history", param=param)
        self.size += size

    def add_copy(self, size: int) -> None:
        """Counts what is made of it for readers. No more than half of what the holder may have counts, so that something large
        can be read at all. Raises as `add` does."""
        self.add(size if self._quota.most is None else min(size, self._quota.most // 4), "response_id")

    def release(self) -> None:
        size, self.size = self.size, 0
        self._quota.give_back(self._holder, size)

    def __del__(self) -> None:
        self.release()
