"""Verifies the audit once a day, so that a break is seen though nobody asks.

One process on a store does it for all, at most one page of records each `PAUSE_SECONDS`. It keeps the heads that it has seen, and
looks for them the next time: so an end that was cut off is missed, too.
"""

from collections.abc import Callable
from logging import getLogger
from typing import Final, Literal

from anyio import sleep
from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.core.items import decode, encode
from mainspring.ports import Document, Store
from mainspring.storage.audit_chain import verify

log = getLogger(__name__)

KIND: Final = "audit_check"
DAY: Final = 86_400.0
# How often a process looks whether it is due, and how soon another one takes over from one that has not finished.
LOOK_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 0.2

Outcome = Literal["whole", "broken"]


class AuditCheck(Struct, frozen=True):
    """When the audit is to be verified, by the store's clock, and the heads that it had the last time that it was whole."""

    next_at: float = 0.0
    heads: tuple[bytes, ...] = ()


class AuditWatch:
    def __init__(self, store: Store, count: Callable[[Outcome], None]) -> None:
        self._store, self._count = store, count

    async def run(self) -> None:
        """Verifies the audit when that is due, until it is cancelled."""
        while True:
            await sleep(LOOK_SECONDS)
            try:
                await self.look(PAUSE_SECONDS)
            except StoreError as error:
                log.warning("the audit could not be verified: %s", error)

    async def look(self, pause: float = 0.0) -> None:
        """Verifies the audit if that is due and no other process does. Raises `StoreError`."""
        found, now = await self._store.get(KIND, KIND), await self._store.read_clock()
        known = AuditCheck() if found is None else decode(found.body, AuditCheck)
        if now < known.next_at:
            return
        claimed = Document(KIND, KIND, encode(AuditCheck(now + LOOK_SECONDS, known.heads)))
        if not await (self._store.put([claimed], if_absent=True) if found is None else self._store.swap(claimed, found.body)):
            return
        seen = await verify(self._store, *known.heads, pause=pause)
        if seen.flaw is not None:
            log.error("the audit is broken: %s; see `mainspring audit verify`", seen.flaw)
        self._count("whole" if seen.flaw is None else "broken")
        heads = seen.heads if seen.flaw is None else known.heads
        await self._store.swap(Document(KIND, KIND, encode(AuditCheck(now + DAY, heads))), claimed.body)
