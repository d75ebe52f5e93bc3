"""Documents that several processes on one store work on, one at a time.

Theory of operation. A document has facts, which stay, and versions below it, which are numbered. Only one process can put version
n + 1, and does so when version n is in nobody's hands, or in those of a process that is gone: then the document is its, until it
puts its version back without its name, or dies. It writes to its own version alone. So one that was taken for dead and wakes up
disturbs nobody, and it learns of it: after every write it looks for a later version, and the one who puts that reads the version
before once more. Whatever the order, one of the two sees the other.

An index without tenant names all documents, for whoever sweeps.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic, time
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import anyio
from msgspec import Raw, Struct

from mainspring.core.errors import NotFound, SandboxBusy, Superseded
from mainspring.core.items import decode, encode
from mainspring.ports import Document, DocumentStore, Drivers

# How often a process looks whether a document that it waits for is free.
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
# So many versions of one document are there before those that nobody needs are removed.
MOST_VERSIONS: Final = 4
HERE: Final = "here"

Facts = TypeVar("Facts", bound=Struct)
State = TypeVar("State", bound=Struct)
Key = tuple[str, str]


class Version(Struct, frozen=True):
    number: int
    holder: str
    state: Raw


class LeasedDocument(Struct, Generic[Facts, State], frozen=True):
    facts: Facts
    state: State
    number: int
    holder: str


class LeasedDocuments(Generic[Facts, State]):
    """All documents of a kind. `what` names one in messages."""

    def __init__(
        self, store: DocumentStore, drivers: Drivers, kind: str, what: str, facts: type[Facts], state: type[State]
    ) -> None:
        self._store, self._drivers = store, drivers
        self._kind, self._what, self._facts, self._state = kind, what, facts, state
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    @property
    def me(self) -> str:
        """This process, as versions name it."""
        return self._drivers.id or HERE

    async def create(self, key: Key, facts: Facts, state: State) -> bool:
        """Says whether it was not there before."""
        tenant, id = key
        index = Document(f"{self._kind}_index", f"{tenant}/{id}", b"{}")
        made = [
            Document(self._kind, id, encode(facts), tenant),
            self._write_version(key, Version(1, "", Raw(encode(state)))),
            index,
        ]
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
        versions = await self._read_versions(key)
        if document is None or not versions:
            raise NotFound(f"there is no {self._what} `{id}`; it was never made, or is gone with its files after lying idle")
        latest = max(versions, key=lambda version: version.number)
        facts, state = decode(document.body, self._facts), decode(bytes(latest.state), self._state)
        return LeasedDocument(facts, state, latest.number, latest.holder)

    async def list_keys(self, tenant: str) -> Sequence[Key]:
        """Those of a tenant, in the order in which they were made."""
        return [(tenant, document.id) for document in await self._store.documents(self._kind, tenant=tenant)]

    async def list_all_keys(self) -> Sequence[Key]:
        """Those of all tenants. Some may be gone but for their names here; `remove` them."""
        found = [document.id.rpartition("/") for document in await self._store.documents(f"{self._kind}_index")]
        return [(tenant, id) for tenant, _, id in found]

    async def remove(self, key: Key) -> None:
        """Removes it with all its versions: whoever has it in hands learns of that."""
        tenant, id = key
        await self._store.remove(self._kind, id, tenant=tenant)
        await self._store.remove(f"{self._kind}_index", f"{tenant}/{id}")

    async def claim(self, key: Key, seconds: float) -> "Claim[Facts, State]":
        """The document in our hands alone, until it is released. Whoever else wants it here waits as well.

        Waits for `seconds` at most. Raises `SandboxBusy` then, and `NotFound`.
        """
        turn = self._turns.setdefault(key, asyncio.Lock())
        with anyio.move_on_after(seconds) as waiting:
            await turn.acquire()
        if waiting.cancelled_caught:
            raise self._tell_busy(key)
        try:
            return Claim(self, key, await self._take(key, seconds), turn)
        except BaseException:
            turn.release()
            raise

    async def is_sweeper(self, seconds: float) -> bool:
        """Whether it is for this process to sweep now: one does in each so many seconds."""
        kind, turn = f"{self._kind}_sweep", str(int(time() / seconds))
        if not await self._store.put([Document(kind, turn, b"{}")], if_absent=True):
            return False
        for document in await self._store.documents(kind):
            if document.id != turn:
                await self._store.remove(kind, document.id)
        return True

    async def claim_idle(
        self, is_idle: Callable[[Facts, State], bool]
    ) -> AsyncGenerator[tuple[Key, "Claim[Facts, State]"], None]:
        """Those of all tenants that lie idle, each in our hands, to be removed."""
        for key in await self.list_all_keys():
            try:
                found = await self.read(key)
                if not is_idle(found.facts, found.state):
                    continue
                claim = await self.claim(key, 0)
            except NotFound:
                await self.remove(key)
                continue
            except SandboxBusy:
                continue
            if is_idle(claim.facts, claim.state):
                yield key, claim
            else:
                await claim.end(claim.state)

    async def _take(self, key: Key, seconds: float) -> LeasedDocument[Facts, State]:
        await self._drivers.show()
        deadline, pause = monotonic() + seconds, FIRST_PAUSE
        while True:
            found = await self.read(key)
            if found.holder in ("", self.me) or not await self._drivers.is_driven(found.holder):
                mine = Version(found.number + 1, self.me, Raw(encode(found.state)))
                if await self._store.put([self._write_version(key, mine)], if_absent=True):
                    return await self._read_again(key, found)
            elif monotonic() >= deadline:
                raise self._tell_busy(key)
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _read_again(self, key: Key, found: LeasedDocument[Facts, State]) -> LeasedDocument[Facts, State]:
        """The document as its holder before us has left it."""
        versions = await self._read_versions(key)
        left = [decode(bytes(version.state), self._state) for version in versions if version.number == found.number]
        if len(versions) > MOST_VERSIONS:
            for version in versions:
                if version.number < found.number:
                    await self._store.remove(self._version_kind, str(version.number), tenant=key[0], parent=key[1])
        return LeasedDocument(found.facts, left[0] if left else found.state, found.number + 1, self.me)

    async def write(self, key: Key, number: int, holder: str, state: State) -> None:
        """Writes a version that is ours. Raises `Superseded` if another process has taken the document, or it was removed."""
        await self._drivers.show()
        is_there = await self._store.put([self._write_version(key, Version(number, holder, Raw(encode(state))))])
        if not is_there or max([version.number for version in await self._read_versions(key)], default=0) != number:
            raise Superseded(
                f"the {self._what} `{key[1]}` was removed, or another process has taken it over, because this one did not answer "
                "for a while; what was done here since is not in it"
            )

    async def _read_versions(self, key: Key) -> list[Version]:
        found = await self._store.documents(self._version_kind, tenant=key[0], parent=key[1])
        return [decode(document.body, Version) for document in found]

    def _write_version(self, key: Key, version: Version) -> Document:
        return Document(self._version_kind, str(version.number), encode(version), key[0], key[1])

    @property
    def _version_kind(self) -> str:
        return f"{self._kind}_version"

    def _tell_busy(self, key: Key) -> SandboxBusy:
        return SandboxBusy(f"another process works in the {self._what} `{key[1]}`; try again when it is done")


class Claim(Generic[Facts, State]):
    """A document in our hands, with what it is to hold next."""

    def __init__(
        self, documents: LeasedDocuments[Facts, State], key: Key, found: LeasedDocument[Facts, State], turn: asyncio.Lock
    ) -> None:
        self._documents, self._key, self._turn = documents, key, turn
        self._is_over = False
        self.facts, self.state, self.number = found.facts, found.state, found.number

    async def save(self, state: State) -> None:
        """Writes it, and keeps the document. Raises `Superseded`."""
        await self._documents.write(self._key, self.number, self._documents.me, state)
        self.state = state

    async def remove(self) -> None:
        """Removes the document, and lets it go."""
        try:
            await self._documents.remove(self._key)
        finally:
            self.drop()

    async def release(self, state: State) -> None:
        """Gives it back with this state. Raises `Superseded`, `StoreError`: then it is still to be dropped, or released again."""
        await self._documents.write(self._key, self.number, "", state)
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
