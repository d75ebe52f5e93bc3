"""What becomes of appends that are written together, whichever store writes them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
from tests.store.logs import answer, begin, end, say

from mainspring.core.errors import StoreError, Superseded
from mainspring.ports import Store


async def check_a_group(store: Store, hold_up: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Appends good and bad ones while the writers are held up: only those fail that must."""
    await store.append("old", begin("old"))
    with hold_up():
        first = store.append("first", begin("first"))
        fine = store.append("fine", [*begin("fine"), *end(1)], answer("fine", "hi"))
        late = store.append("old", say(7, "too late"))
        unwritable = store.append("old", say(1, "half a \ud83d character"))
        behind = store.append("old", say(2, "after what was not written"))
        last = store.append("last", begin("last"))
    await asyncio.gather(first, fine, last)
    with pytest.raises(Superseded, match="goes on with event 1, not 7"):
        await late
    with pytest.raises(StoreError, match="UnicodeEncodeError"):
        await unwritable
    with pytest.raises(Superseded, match="goes on with event 1, not 2"):
        await behind
    assert await store.events("old") == begin("old")
    assert (await store.load("fine")).response == answer("fine", "hi").response
