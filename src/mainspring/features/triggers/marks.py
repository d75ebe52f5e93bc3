"""Tells all processes on a store which triggers there are, and which have changed.

A mark is a document without a tenant that names a trigger. A change puts a new mark and removes the one before, so a process that
reads the marks behind the last one that it knows learns of all changes. A document may get its number before one with a lower
number is there; so what is read again goes back some seconds.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

from mainspring.core.items import decode, encode
from mainspring.ports import Document, DocumentStore

MARK: Final = "trigger_mark"
# How long a document with a lower number may take to be there.
LATE_SECONDS: Final = 10.0


class Mark(Struct, frozen=True):
    kind: Literal["schedule", "endpoint"]
    tenant: str
    id: str


Heed = Callable[[Sequence[Mark]], Awaitable[None]]


class Marks:
    """Reads the marks of all tenants; each is heeded once."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._floor: int | None = None
        self._seen: set[int] = set()
        self._since = time.monotonic()

    async def heed_new(self, heed: Heed) -> None:
        """Has those heeded that were not yet; if that fails, they are new the next time. Raises `StoreError`."""
        found = await self._store.documents(MARK, after=self._floor)
        if new := [document for document in found if document.number not in self._seen]:
            await heed([decode(document.body, Mark) for document in new])
        self._seen.update([document.number for document in new])
        if self._seen and time.monotonic() > self._since + LATE_SECONDS:
            self._floor, self._since = max(self._seen), time.monotonic()
            self._seen.clear()


async def put_mark(store: DocumentStore, mark: Mark, version: int) -> None:
    """Says that a trigger is there in this version, and no more in the one before."""
    await store.put([make_mark(mark, version)])
    await remove_mark(store, mark, version - 1)


def make_mark(mark: Mark, version: int) -> Document:
    return Document(MARK, _name(mark, version), encode(mark))


async def remove_mark(store: DocumentStore, mark: Mark, version: int) -> None:
    await store.remove(MARK, _name(mark, version))


def _name(mark: Mark, version: int) -> str:
    return f"{mark.kind}/{mark.tenant}/{mark.id}/{version}"
