"""The sandbox on this machine: one supervisor, one backend, a pool, and the leases lent out.

Theory of operation. Everything on disk is in one folder, which the supervisor removes in the end, even if the engine was killed.
A lease is a slot, taken from the pool or made on demand. Leaving a lease kills what runs in it at once; a background task removes
the rest, so that no answer waits for it.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from logging import getLogger
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import TracebackType
from typing import Literal, Self

from msgspec.structs import replace

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import DEFAULT_SPEC, SandboxHealth, SandboxSpec
from mainspring.tools.sandbox import leftovers
from mainspring.tools.sandbox import slot as slots
from mainspring.tools.sandbox.backend import Backend, Unsafe, find_languages
from mainspring.tools.sandbox.bwrap import Bwrap
from mainspring.tools.sandbox.cgroup import Groups, find_groups
from mainspring.tools.sandbox.landlock import Landlock
from mainspring.tools.sandbox.lease import LocalLease
from mainspring.tools.sandbox.places import FolderViews, PythonInstall, find_python, list_prefixes
from mainspring.tools.sandbox.slot import Slot
from mainspring.tools.sandbox.supervisor_client import SupervisorClient
from mainspring.tools.sandbox.workspace_files import Owner, remove_tree

log = getLogger(__name__)

NESTED = "it has CVE-2026-87766, so a folder inside of a writable one is not granted; bubblewrap 0.12 is fixed"

Kind = Literal["bwrap", "landlock", "unsafe"]

NOBODY = 65534


class LocalSandbox:
    """See `ports.Sandbox`. Whether the backend holds is not asked here; `probe` does."""

    def __init__(
        self,
        kind: Kind,
        *,
        bwrap: Path | None = None,
        folder: Path | None = None,
        uid: int | None = None,
        warm: int = 2,
        groups: Groups | None = None,
        refused: tuple[str, ...] = (),
        packages: Path | None = None,
    ) -> None:
        """`uid` is who sandboxed programs run as if we are root; with none, each lease has a user of its own where nothing else
        keeps them apart. `warm` is how many workers wait ahead."""
        if uid == 0:
            raise SandboxError("programs in a sandbox must not run as root, which no namespace holds; choose another `uid`")
        self._kind = kind
        self._bwrap = bwrap
        self._parent = folder
        self._owner = Owner(uid or NOBODY, uid or NOBODY) if os.getuid() == 0 else Owner()
        self._has_own_users = uid is None
        self._finds_groups, self.groups = groups is None, groups or Groups()
        self._refused = refused
        self._packages = packages
        self.processes = SupervisorClient()
        self._pool = _Pool(warm, self._warm_slot)
        self._leases: set[Slot] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._reviving = asyncio.Lock()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        """Starts the supervisor. Raises `SandboxError` with what to do."""
        await asyncio.to_thread(leftovers.clear_leftovers, Path(gettempdir()) if self._parent is None else self._parent)
        if self._finds_groups:
            self.groups = await asyncio.to_thread(find_groups)
        self._make_folders()
        try:
            self._views = views = self._plan_views()
            views.settle(await self.processes.open(self._folder, views.pairs, self._lock))
            self.backend = await asyncio.to_thread(self._make_backend, views)
        except BaseException:
            await self._close()
            raise
        self._pool.fill()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends every lease; returns when nothing is left."""
        self._is_closing = True
        await self._pool.close()
        for slot in list(self._leases):
            self._begin_removal(slot)
        if self._removals:
            await asyncio.wait(self._removals)
        await self._close()

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec = DEFAULT_SPEC) -> AsyncIterator[LocalLease]:
        slot = await self._take_slot(spec)
        self._leases.add(slot)
        try:
            yield LocalLease(slot, self._remove)
        finally:
            self._begin_removal(slot)

    async def revive(self) -> None:
        """Restarts the supervisor if it was killed from outside. Raises `SandboxError` if that fails."""
        async with self._reviving:
            if not self.processes.is_open and not self._is_closing:
                log.warning("the supervisor process of the sandbox was ended; another one is started")
                await self.processes.open(self._folder, self._views.pairs, self._lock)

    async def wait_until_warm(self) -> None:
        """Waits until the pool is full, or cannot be filled."""
        self._pool.fill()
        await self._pool.wait_until_full()

    async def health(self) -> SandboxHealth:
        return SandboxHealth(
            backend=self.backend.name,
            version=self.backend.version,
            totals=self.groups.name,
            isolates=self.backend.isolates,
            languages={str(name): path for name, path in find_languages(self.backend.python).items()},
            uid=os.getuid() if self._owner.uid is None else self._owner.uid,
            is_ok=self.processes.is_open,
            warm=self._pool.size,
            leases=len(self._leases),
            refused=self._refused,
            warnings=(NESTED,) if isinstance(self.backend, Bwrap) and self.backend.follows_links else (),
        )

    async def _take_slot(self, spec: SandboxSpec) -> Slot:
        await self.revive()
        taken = None if spec.network else self._pool.take()
        if taken is None:
            return await self._make_slot(spec)
        taken.confine_to(spec.limits)
        return taken

    async def _make_slot(self, spec: SandboxSpec) -> Slot:
        """A new slot. On cancel, it is removed once it is made."""
        making = asyncio.to_thread(slots.make_slot, self.backend, self.processes, self.groups, self.data, spec)
        task = asyncio.get_running_loop().create_task(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._own(self._discard(task))
            raise

    async def _discard(self, making: "asyncio.Task[Slot]") -> None:
        await (await making).remove()

    async def _warm_slot(self) -> Slot:
        slot = await self._make_slot(DEFAULT_SPEC)
        try:
            slot.warm = slot.start()
            await slot.warm.wait_ready()
        except BaseException:
            self._begin_removal(slot)
            raise
        return slot

    async def _remove(self, slot: Slot) -> None:
        await asyncio.shield(self._begin_removal(slot))

    def _begin_removal(self, slot: Slot) -> "asyncio.Task[None]":
        self._leases.discard(slot)
        if slot.removal is None:
            slot.end()
            slot.removal = self._own(slot.remove())
        return slot.removal

    def _own(self, removal: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(removal)
        self._removals.add(task)
        task.add_done_callback(self._forget_removal)
        return task

    def _forget_removal(self, task: "asyncio.Task[None]") -> None:
        self._removals.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a sandbox could not be removed: %s", task.exception())

    async def _close(self) -> None:
        await self.processes.close()
        if self._folder.exists():  # The supervisor was killed before it removed it.
            await asyncio.to_thread(remove_tree, self._folder)
        os.close(self._lock)

    def _make_folders(self) -> None:
        self._folder = Path(mkdtemp(prefix=leftovers.PREFIX, dir=self._parent))
        self._lock = leftovers.lock_folder(self._folder)
        self.data = self._folder / "data"
        self._folder.chmod(0o711)
        self.data.mkdir(mode=0o711)
        (self._folder / "views").mkdir()

    def _plan_views(self) -> FolderViews:
        views = FolderViews(self._folder / "views", self._owner)
        if self._bwrap is not None:
            for wanted in (*list_prefixes(), self._bwrap.parents[2], *([] if self._packages is None else [self._packages])):
                views.want(wanted)
        return views

    def _make_backend(self, views: FolderViews) -> Backend:
        python = find_python(views)
        if python is None:
            raise SandboxError("no Python can be reached by the sandbox's user; install python3 in /usr/bin")
        if self._packages is not None:
            python = self._add_packages(python, self._packages, views)
        if self._kind == "landlock":
            return Landlock(python, self._owner, own_users=self._has_own_users)
        if self._kind == "unsafe":
            return Unsafe(python, self._owner)
        return Bwrap(self._find_bwrap(views), python, self._owner, self._write_accounts())

    def _add_packages(self, python: PythonInstall, packages: Path, views: FolderViews) -> PythonInstall:
        source = views.find_path(packages)
        if source is None or python.executable != sys.executable:
            what = f"the packages in {packages}, or the Python that they are for, cannot be reached by the sandbox's user"
            raise SandboxError(f"{what}; set XDG_CACHE_HOME to a folder that everybody may enter, or install bubblewrap")
        name = packages if self._kind == "bwrap" else source
        return replace(python, parts=(*python.parts, (str(name), str(source))), packages=str(name))

    def _find_bwrap(self, views: FolderViews) -> Path:
        reached = views.find_path(self._bwrap) if self._bwrap is not None else None
        if reached is None:
            raise SandboxError("bubblewrap is not there, or not where the sandbox's user can reach it; install `bubblewrap`")
        return reached

    def _write_accounts(self) -> Path:
        folder = self.data / "etc"
        folder.mkdir(mode=0o755)
        uid, gid = (os.getuid(), os.getgid()) if self._owner.uid is None else (self._owner.uid, self._owner.gid)
        (folder / "passwd").write_text(f"sandbox:x:{uid}:{gid}::/home:/bin/sh\n")
        (folder / "group").write_text(f"sandbox:x:{gid}:\n")
        return folder


class _Pool:
    """Keeps `count` slots with a started worker, from `fill` to `close`. Each serves one lease; what is taken is replaced."""

    def __init__(self, count: int, make: Callable[[], Awaitable[Slot]]) -> None:
        self._count = count
        self._make = make
        self._ready: deque[Slot] = deque()
        self._filling: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        return len(self._ready)

    def fill(self) -> None:
        """Begins to replace what is missing. If that fails, it is tried again with the next lease."""
        if self._count and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def wait_until_full(self) -> None:
        """Returns when nothing is missing any more, or could not be made."""
        if self._filling is not None:
            await asyncio.wait([self._filling])

    def take(self) -> Slot | None:
        """A slot with a waiting worker; None if there is none at the moment."""
        taken = self._ready.popleft() if self._ready else None
        self.fill()
        return taken

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        while self._ready:
            await self._ready.popleft().remove()

    async def _fill(self) -> None:
        while len(self._ready) < self._count:
            try:
                self._ready.append(await self._make())
            except SandboxError as error:
                log.warning("no worker could be started ahead: %s", error.message)
                return
