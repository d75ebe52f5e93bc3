"""Documents that several processes on one store work on, one at a time.

Theory of operation. A document has facts, which stay, a state, and the name of the process that has it in hands. Each write
replaces it only if it is still what the writer has read or written last, and each claim counts it up. So one of two who want it
gets it, and one that was taken for dead and wakes up writes nothing: it learns that the document is another's now. A document in
nobody's hands, or in those of a process that is gone, is free.

An index without tenant names all documents, for whoever sweeps.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import anyio
from msgspec import Raw, Struct
from msgspec.structs import replace

from mainspring.core.errors import DocumentBusy, MainspringError, NotFound, Superseded
from mainspring.core.items import decode, encode
from mainspring.ports import Document, DocumentStore, Drivers

# How often a process looks whether a document that it waits for is free.
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
HERE: Final = "here"

Facts = TypeVar("Facts", bound=Struct)
State = TypeVar("State", bound=Struct)
Key = tuple[str, str]


class LeasedBody(Struct, frozen=True):
    """A document as it is stored. `number` counts its claims; `holder` has it in hands, if it is not empty."""

    number: int
    holder: str
    facts: Raw
    state: Raw


class LeasedDocument(Struct, Generic[Facts, State], frozen=True):
    """A document as it was read or written last; `stored` are its bytes."""

    facts: Facts
    state: State
    body: LeasedBody
    stored: bytes


class LeasedDocuments(Generic[Facts, State]):
    """All documents of a kind. `what` names one in messages, `busy` is the error for one that another process has in hands."""

    def __init__(
        self,
        store: DocumentStore,
        drivers: Drivers,
        kind: str,
        what: str,
        facts: type[Facts],
        state: type[State],
        busy: type[MainspringError] = DocumentBusy,
    ) -> None:
        self._store, self._drivers, self._busy = store, drivers, busy
        self._kind, self._what, self._facts, self._state = kind, what, facts, state
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    @property
    def me(self) -> str:
        """This process, as documents name it."""
        return self._drivers.id or HERE

    async def read_clock(self) -> float:
        """The time by a clock that all processes share."""
        return await self._store.read_clock()

    async def create(self, key: Key, facts: Facts, state: State) -> bool:
        """Says whether it was not there before."""
        tenant, id = key
        body = LeasedBody(0, "", Raw(encode(facts)), Raw(encode(state)))
        index = Document(f"{self._kind}_index", f"{tenant}/{id}", b"{}")
        made = [Document(self._kind, id, encode(body), tenant), index]
        if await self._store.put(made, if_absent=True):
            return True
        # A crash may have left the index of one that was removed.
        left = await self._store.get(index.kind, index.id)
        if left is None or await self._store.get(self._kind, id, tenant=tenant) is not None:
            return False
        await self._store.remove(index.kind, index.id, number=left.number)
        return await self._store.put(made, if_absent=True)

    async def read(self, key: Key) -> LeasedDocument[Facts, State]:
        """Raises `NotFound`."""
        tenant, id = key
        document = await self._store.get(self._kind, id, tenant=tenant)
        if document is None:
            raise NotFound(f"there is no {self._what} `{id}`; it was never made, or is gone with its files after lying idle")
        body = decode(document.body, LeasedBody)
        return LeasedDocument(decode(bytes(body.facts), self._facts), decode(bytes(body.state), self._state), body, document.body)

    async def list_keys(self, tenant: str) -> Sequence[Key]:
        """Those of a tenant, in the order in which they were made."""
        return [(tenant, document.id) for document in await self._store.documents(self._kind, tenant=tenant)]

    async def list_all_keys(self) -> Sequence[Key]:
        """Those of all tenants. Some may be gone but for their names here; `remove` them."""
        found = [document.id.rpartition("/") for document in await self._store.documents(f"{self._kind}_index")]
        return [(tenant, id) for tenant, _, id in found]

    async def remove(self, key: Key) -> None:
        """Removes it: whoever has it in hands learns of that."""
        tenant, id = key
        await self._store.remove(self._kind, id, tenant=tenant)
        await self._store.remove(f"{self._kind}_index", f"{tenant}/{id}")

    async def claim(self, key: Key, seconds: float) -> "HeldDocument[Facts, State]":
        """The document in our hands alone, until it is released. Whoever else wants it here waits as well.

        Waits for `seconds` at most. Raises `busy` then, and `NotFound`.
        """
        turn = self._turns.setdefault(key, asyncio.Lock())
        with anyio.move_on_after(seconds) as waiting:
            await turn.acquire()
        if waiting.cancelled_caught:
            raise self._tell_busy(key)
        try:
            return HeldDocument(self, key, await self._take(key, seconds), turn)
        except BaseException:
            turn.release()
            raise

    async def is_sweeper(self, seconds: float) -> bool:
        """Whether it is for this process to sweep now: one does in each so many seconds."""
        kind, turn = f"{self._kind}_sweep", str(int(await self.read_clock() / seconds))
        if not await self._store.put([Document(kind, turn, b"{}")], if_absent=True):
            return False
        for document in await self._store.documents(kind):
            if document.id != turn:
                await self._store.remove(kind, document.id)
        return True

    async def claim_idle(
        self, is_idle: Callable[[Facts, State, float], bool]
    ) -> AsyncGenerator[tuple[Key, "HeldDocument[Facts, State]"], None]:
        """Those of all tenants that lie idle by now, each in our hands, to be removed."""
        now = await self.read_clock()
        for key in await self.list_all_keys():
            try:
                found = await self.read(key)
                if not is_idle(found.facts, found.state, now):
                    continue
                claim = await self.claim(key, 0)
            except NotFound:
                await self.remove(key)
                continue
            except self._busy:
                continue
            if is_idle(claim.facts, claim.state, now):
                yield key, claim
            else:
                await claim.end(claim.state)

    async def _take(self, key: Key, seconds: float) -> LeasedDocument[Facts, State]:
        await self._drivers.show()
        deadline, pause = monotonic() + seconds, FIRST_PAUSE
        while True:
            found = await self.read(key)
            if found.body.holder in ("", self.me) or not await self._drivers.is_driven(found.body.holder):
                mine = replace(found.body, number=found.body.number + 1, holder=self.me)
                if await self._swap(key, mine, found.stored):
                    return replace(found, body=mine, stored=encode(mine))
            elif monotonic() >= deadline:
                raise self._tell_busy(key)
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def write(
        self, key: Key, known: LeasedDocument[Facts, State], holder: str, state: State
    ) -> LeasedDocument[Facts, State]:
        """Replaces what is known to be ours. Raises `Superseded` if another process has taken the document, or it was removed."""
        await self._drivers.show()
        body = replace(known.body, holder=holder, state=Raw(encode(state)))
        if await self._swap(key, body, known.stored):
            return replace(known, state=state, body=body, stored=encode(body))
        raise Superseded(
            f"the {self._what} `{key[1]}` was removed, or another process has taken it over, because this one did not answer for "
            "a while; what was done here since is not in it"
        )

    async def _swap(self, key: Key, body: LeasedBody, known: bytes) -> bool:
        return await self._store.swap(Document(self._kind, key[1], encode(body), key[0]), known)

    def _tell_busy(self, key: Key) -> MainspringError:
        return self._busy(f"another process works in the {self._what} `{key[1]}`; try again when it is done")


class HeldDocument(Generic[Facts, State]):
    """A document in our hands. `number` is another for each claim of it."""

    def __init__(
        self, documents: LeasedDocuments[Facts, State], key: Key, found: LeasedDocument[Facts, State], turn: asyncio.Lock
    ) -> None:
        self._documents, self._key, self._found, self._turn = documents, key, found, turn
        self._is_over = False

    @property
    def facts(self) -> Facts:
        return self._found.facts

    @property
    def state(self) -> State:
        return self._found.state

    @property
    def number(self) -> int:
        return self._found.body.number

    async def save(self, state: State) -> None:
        """Writes it, and keeps the document. Raises `Superseded`."""
        self._found = await self._documents.write(self._key, self._found, self._documents.me, state)

    async def remove(self) -> None:
        """Removes the document, and lets it go."""
        try:
            await self._documents.remove(self._key)
        finally:
            self.drop()

    async def release(self, state: State) -> None:
        """Gives it back with this state. Raises `Superseded`, `StoreError`: then it is still to be dropped, or released again."""
        await self._documents.write(self._key, self._found, "", state)
        self.drop()

    async def end(self, state: State) -> None:
        """Gives it back whatever happens, and be it without this state. Raises as `release` does."""
        try:
            with anyio.CancelScope(shield=True):
                await self.release(state)
        finally:
            self.drop()

    def drop(self) -> None:
        """Lets others here have it, without a word to the store; as often as wanted."""
        if not self._is_over:
            self._is_over = True
            self._turn.release()
