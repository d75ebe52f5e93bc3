"""Containers: workspaces that persist between calls, each a lease on the sandbox.

Theory of operation. A container belongs to a tenant and has an id; other tenants cannot see it. The first call that needs it
creates it, or a request does by name. It serves one call at a time, and is removed when it is idle for too long or evicted. None
outlives the engine: a later call gets a new one, and is told so. `SharedContainers` are those that do.

Their number is limited in total and per tenant. A tenant that needs room loses an unused one of its own first, else the tenant
with most containers does; a container in use is never evicted.
"""

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import sha256
from time import monotonic, time
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import NotFound, SandboxError, SandboxFull
from mainspring.core.ids import derive_id
from mainspring.core.sandbox import DEFAULT_SPEC, ProgramResult, SandboxSpec, WorkspaceFile, WorkspaceListing
from mainspring.ports import DocumentStore, Drivers, PythonSession, Sandbox, SandboxLease
from mainspring.tools.contract import ToolContext

MOST = 32
MOST_EACH = 24
IDLE_SECONDS = 20 * 60.0
MOST_NAMED = 50

NEW = "[new container: it has no files or variables of earlier calls]"

Key = tuple[str, str]


def describe_files(files: Sequence[WorkspaceFile]) -> str:
    """The files with their sizes, cut after `MOST_NAMED`."""
    # A file name need not be valid UTF-8.
    names = [f"{os.fsencode(file.path).decode('utf-8', 'replace')} ({file.size:,} bytes)" for file in files[:MOST_NAMED]]
    more = [f"{len(files) - MOST_NAMED} more"] if len(files) > MOST_NAMED else []
    return ", ".join([*names, *more])


def find_container_id(context: ToolContext) -> str:
    """The id of the container of a call: one per conversation, or per run without one."""
    return derive_id("cntr", context.scope or context.run_id)


def choose_evicted(
    keys: Collection[Key], unused: Sequence[Key], tenant: str, *, most: int, most_each: int, what: str, advice: str
) -> Key | None:
    """The least recently used entry to remove for one more of the tenant's; None if there is room. Both lists are in LRU order.

    An unused one of the tenant's own goes first, else one of the tenant that has most. Raises `SandboxFull` if all are in use.
    """
    held = Counter([whose for whose, _ in keys])
    is_at_own_limit = held[tenant] >= most_each
    if len(keys) < most and not is_at_own_limit:
        return None
    if evictable := [key for key in unused if key[0] == tenant or not is_at_own_limit]:
        return min(evictable, key=lambda key: (key[0] != tenant, -held[key[0]]))
    whose = f"your {held[tenant]}" if is_at_own_limit else f"all {len(keys)}"
    raise SandboxFull(f"{whose} {what} are in use; try again when some of the work there is done, or {advice}")


class ContainerInfo(Struct, frozen=True):
    """A container as the API shows it. Times are seconds since 1970."""

    id: str
    name: str
    created_at: float
    used_at: float
    idle_seconds: float


class Container:
    """A workspace with a Python interpreter, used by one call at a time."""

    def __init__(self, lease: SandboxLease, session: PythonSession, *, is_new: bool = True) -> None:
        """One that is not new holds the files of an earlier one, and nothing else of it."""
        self.lease = lease
        self.given: dict[str, str] = {}
        """The files that were put in from outside, with the SHA-256 that each had then."""
        self.unseen: dict[str, WorkspaceFile] = {}
        """Those that no call has been told of."""
        self.is_state_lost = not is_new
        """The interpreter of earlier cells has ended, so the next cell begins with nothing."""
        self._session = session
        self._is_new = is_new

    def take_news(self) -> str:
        """What the next call tells its model: that the container is new, and which files were added. Clears both."""
        is_new, self._is_new = self._is_new, False
        files, self.unseen = list(self.unseen.values()), {}
        given = [f"[files put in by the user: {describe_files(files)}]"] if files else []
        return "\n".join([*([NEW] if is_new and not self.given else []), *given])

    async def run_cell(self, code: str, seconds: float) -> ProgramResult:
        self.is_state_lost = True  # It stays so on cancel.
        result = await self._session.run_cell(code, timeout=seconds)
        self.is_state_lost = result.is_state_lost
        return result


class Containers:
    """All containers of an engine, from `async with` on: `most` of them, and `most_each` of one tenant."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        spec: SandboxSpec = DEFAULT_SPEC,
        most: int = MOST,
        most_each: int = MOST_EACH,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.spec = spec
        self._sandbox = sandbox
        self._most = most
        self._most_each = most_each
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._places: OrderedDict[Key, Place] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    def keep_in(self, store: DocumentStore, drivers: Drivers) -> None:
        """Where several processes would share them. Those of one process need no store."""

    async def __aenter__(self) -> Self:
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        while self._places:
            await self._places.popitem()[1].close()

    @asynccontextmanager
    async def use(self, tenant: str, id: str) -> AsyncIterator[Container]:
        """The container for one call, created if it is missing; other calls wait.

        Raises `SandboxError` if none can be created. One in which nothing starts any more is removed.
        """
        async with self._wait_turn((tenant, id)) as place:
            try:
                yield place.container or await self._make(place, f"{tenant}/{id}")
            except SandboxError:
                await place.close()
                raise

    async def create(self, tenant: str, id: str, name: str = "", idle_seconds: float | None = None) -> ContainerInfo:
        """Makes a container. Raises as `use` does."""
        async with self.use(tenant, id):
            place = self._places[tenant, id]
            place.name, place.idle_seconds = name, idle_seconds
        return await self.describe(tenant, id)

    async def describe(self, tenant: str, id: str) -> ContainerInfo:
        """Raises `NotFound` if there is no such container."""
        with self._find(tenant, id, is_use=False):
            return self._describe(id, self._places[tenant, id])

    async def list_all(self, tenant: str) -> tuple[ContainerInfo, ...]:
        """Those of a tenant, in the order in which they were made."""
        found = [self._describe(id, place) for (whose, id), place in self._places.items() if whose == tenant and place.container]
        return tuple(sorted(found, key=lambda about: about.created_at))

    def _describe(self, id: str, place: "Place") -> ContainerInfo:
        return ContainerInfo(id, place.name, place.created_at, place.used_at, place.idle_seconds or self._idle_seconds)

    async def put(self, tenant: str, id: str, path: str, data: bytes) -> WorkspaceFile:
        """Writes a file, whatever runs in the container. Raises as `Lease.put` does, and `NotFound` if there is none."""
        with self._find(tenant, id) as container:
            entry = await container.lease.put(path, data)
            container.given[entry.path] = sha256(data).hexdigest()
            container.unseen[entry.path] = entry
            return entry

    async def get(self, tenant: str, id: str, path: str) -> bytes:
        """Raises as `Lease.get` does, and `NotFound` if there is no such container."""
        with self._find(tenant, id) as container:
            return await container.lease.get(path)

    async def remove_file(self, tenant: str, id: str, path: str) -> None:
        """Raises as `Lease.remove` does, and `NotFound` if there is no such container."""
        with self._find(tenant, id) as container:
            await container.lease.remove(path)
            container.unseen.pop(path, None)

    async def list(self, tenant: str, id: str) -> WorkspaceListing:
        """Raises `NotFound` if there is no such container."""
        with self._find(tenant, id) as container:
            return await container.lease.list()

    async def list_given(self, tenant: str, id: str) -> Mapping[str, str]:
        """The paths of the files that were put in from outside, with the SHA-256 that each had then.
        Raises `NotFound` if there is no such container."""
        with self._find(tenant, id, is_use=False) as container:
            return dict(container.given)

    async def remove(self, tenant: str, id: str) -> None:
        """Ends the container once no call is in it. Raises `NotFound`."""
        with self._find(tenant, id):
            async with self._wait_turn((tenant, id)) as place:
                await place.close()

    async def expire(self) -> None:
        """Removes idle containers; also called periodically."""
        now = self._clock()
        for key, place in list(self._places.items()):
            if not place.users and place.last_use <= now - (place.idle_seconds or self._idle_seconds):
                await self._places.pop(key).close()

    @asynccontextmanager
    async def _wait_turn(self, key: Key) -> AsyncIterator["Place"]:
        place = self._places.get(key)
        unused = None
        if place is None:
            unused = self._make_room(key[0])
            place = self._places[key] = self._new_place(key)
        with self._hold(key, place):
            if unused is not None:
                await unused.close()
            async with place.lock:
                yield place

    @contextmanager
    def _hold(self, key: Key, place: "Place") -> Iterator[None]:
        """Marks a container as in use."""
        place.users += 1
        try:
            yield
        finally:
            place.users -= 1
            place.last_use, place.used_at = self._clock(), time()
            if self._places.get(key) is place:
                self._places.move_to_end(key)
                if place.container is None and not place.users:
                    del self._places[key]

    @contextmanager
    def _find(self, tenant: str, id: str, *, is_use: bool = True) -> Iterator[Container]:
        place = self._places.get((tenant, id))
        if place is None or place.container is None:
            raise NotFound(f"there is no container `{id}`; it was never made, or is gone with its files after lying idle")
        if not is_use:
            yield place.container
            return
        with self._hold((tenant, id), place):
            yield place.container

    def _make_room(self, tenant: str) -> "Place | None":
        """Evicts a container if there is no room for another; the caller closes it."""
        unused = [key for key, place in self._places.items() if not place.users]
        limits = {"most": self._most, "most_each": self._most_each}
        key = choose_evicted(self._places.keys(), unused, tenant, **limits, what="containers", advice="delete one")
        return None if key is None else self._places.pop(key)

    def _new_place(self, key: Key) -> "Place":
        return Place()

    async def _make(self, place: "Place", name: str, *, is_new: bool = True) -> Container:
        if self._is_closed:
            raise SandboxError("the engine is shutting down, so no container is made; try again when it is back")
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self._sandbox.acquire(replace(self.spec, name=name)))
            session = await stack.enter_async_context(lease.session())
            place.stack = stack.pop_all()
        place.container = Container(lease, session, is_new=is_new)
        return place.container

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / 4)
            await self.expire()


class Place:
    """The slot of a container, also while it is being created. `users` counts the calls in it and those that wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.last_use = 0.0
        self.name = ""
        self.idle_seconds: float | None = None
        self.created_at = self.used_at = time()
        self.container: Container | None = None
        self.stack = AsyncExitStack()

    async def close(self) -> None:
        self.container = None
        await self.stack.aclose()
