"""Work that one process on a store does at a time, such as asking an embedding model for what all of them wait for."""

from typing import Final

from msgspec import Struct

from mainspring.core.ids import random_id
from mainspring.core.items import decode, encode
from mainspring.ports import Document, DocumentStore

KIND: Final = "work_turn"
# Longer than one request to an embedding model may take, or what is asked for would be asked for twice.
TURN_SECONDS: Final = 45.0


class _Turn(Struct, frozen=True):
    """Whose turn it is, and until when by the store's clock."""

    holder: str = ""
    until: float = 0.0


class WorkTurn:
    """A lease on a piece of work, by its name. One that is not given back is over after `TURN_SECONDS`, so the work must bear
    being done twice."""

    def __init__(self, store: DocumentStore, name: str) -> None:
        self._store, self._name, self._holder = store, name, random_id("turn")

    async def take(self) -> bool:
        """Whether it is this process's turn, for `TURN_SECONDS` from now on. Raises `StoreError`."""
        found, now = await self._store.get(KIND, self._name), await self._store.read_clock()
        taken = Document(KIND, self._name, encode(_Turn(self._holder, now + TURN_SECONDS)))
        if found is None:
            return await self._store.put([taken], if_absent=True)
        turn = decode(found.body, _Turn)
        return (turn.holder == self._holder or turn.until <= now) and await self._store.swap(taken, found.body)

    async def give_back(self) -> None:
        """Lets another one have it, if it is ours. Raises `StoreError`."""
        found = await self._store.get(KIND, self._name)
        if found is not None and decode(found.body, _Turn).holder == self._holder:
            await self._store.swap(Document(KIND, self._name, encode(_Turn())), found.body)
