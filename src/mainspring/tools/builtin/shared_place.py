"""The sandbox that a shared container has in this process, and how its workspace and the saved files are brought together."""

import asyncio
from collections.abc import Awaitable, Callable
from logging import getLogger

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import FilesUnavailable, NotFound, Superseded
from mainspring.core.sandbox import WorkspaceFile
from mainspring.tools.builtin.containers import Container, Place
from mainspring.tools.builtin.leased_documents import HeldDocument
from mainspring.tools.builtin.saved_files import FileList, SavedFile, SavedFiles, list_dropped, list_given

log = getLogger(__name__)


class ContainerFacts(Struct, frozen=True):
    """What a container is. `idle_seconds` is how long it may lie idle."""

    name: str
    created_at: float
    idle_seconds: float


class ContainerState(Struct, frozen=True, omit_defaults=True):
    """How a container was left. `home` is the process that has its interpreter, empty before the first call; `files` the name of
    the list of its files."""

    used_at: float
    home: str = ""
    files: str = ""


Containment = HeldDocument[ContainerFacts, ContainerState]


class SharedPlace(Place):
    """The sandbox of a container here; `me` is this process, `read_clock` tells the time that all of them share. While `claim` is
    there, the container is ours."""

    def __init__(self, id: str, saved: SavedFiles, me: str, read_clock: Callable[[], Awaitable[float]]) -> None:
        super().__init__()
        self.claim: Containment | None = None
        self.is_unsaved = False
        self._id, self._saved, self._me, self._read_clock = id, saved, me, read_clock
        self._saving = asyncio.Lock()
        # What the workspace has of the saved files, the name of their list, and how it had them when they were saved.
        self._files: FileList = {}
        self._list_name = ""
        self._seen: frozenset[WorkspaceFile] = frozenset()

    async def close(self) -> None:
        self._list_name, self._files, self._seen = "", {}, frozenset()
        await super().close()

    def mark_unsaved(self) -> None:
        """Keeps it from being evicted, until it is ours no more or a call works in it."""
        if not self.is_unsaved:
            self.is_unsaved = True
            self.users += 1

    def forget_unsaved(self) -> None:
        if self.is_unsaved:
            self.is_unsaved = False
            self.users -= 1

    def forget_claim(self) -> None:
        self.forget_unsaved()
        self.claim = None

    async def enter(self, claim: Containment, make: Callable[[bool], Awaitable[Container]]) -> Container:
        """The sandbox that the container had here, or a new one, with its files. `make` is told whether it is the first ever.
        Raises `FilesUnavailable`."""
        state = claim.state
        is_home = state.home == self._me
        if self.container is None or not is_home or self._list_name != state.files:
            await self._restore(state, is_home, make)
        container = self.container
        assert container is not None
        container.given = list_given(self._files)
        container.unseen = {path: file.describe() for path, file in self._files.items() if file.is_unseen}
        self.claim = claim
        return container

    async def _restore(self, state: ContainerState, is_home: bool, make: Callable[[bool], Awaitable[Container]]) -> None:
        try:
            files = await self._saved.read_list(state.files)
        except NotFound:
            raise FilesUnavailable(tell_lost(self._id)) from None
        try:
            if self.container is not None and not is_home:
                await self.close()
            container = self.container or await make(not state.home)
            await self._saved.restore(container.lease, files, self._files)
            self._seen = frozenset((await container.lease.list()).entries)
            self._list_name, self._files = state.files, files
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise

    async def save(self) -> ContainerState:
        """Writes what has changed in the workspace, under our claim. Raises `FilesUnavailable`, `Superseded`, `StoreError`."""
        async with self._saving:
            claim, container = self.claim, self.container
            if claim is None:
                raise Superseded(f"the container `{self._id}` is not in use here any more")
            state = replace(claim.state, used_at=await self._read_clock(), home=self._me)
            if container is None:
                return state
            listing = await container.lease.list()
            if not listing.is_complete:
                log.warning("container %s has more files than can be saved; some are lost when it moves", self._id)
            kept = await self._saved.save(container.lease, listing, self._files, self._seen)
            files = {path: _mark(file, container) for path, file in kept.items()}
            if files != self._files:
                dropped = [self._list_name, *list_dropped(self._files, files)]
                state = replace(state, files=await self._saved.write_list(files))
                await claim.save(state)
                await self._saved.remove(dropped)
            self._list_name, self._files, self._seen = state.files, files, frozenset(listing.entries)
            return state


def _mark(file: SavedFile, container: Container) -> SavedFile:
    path = file.describe().path
    return replace(
        file, is_given=path in container.given, given_digest=container.given.get(path, ""), is_unseen=path in container.unseen
    )


def tell_lost(id: str) -> str:
    return f"the files of container `{id}` were removed from their storage by somebody else; delete it and begin a new one"
