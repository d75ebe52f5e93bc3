"""Containers that every process of a deployment can use, and that outlive each of them.

Theory of operation. A container is a leased document, and files in the storage of files. A call claims the document, works in a
sandbox of its own process, saves what it has changed, and gives the document back. The sandbox stays: if the next call comes to
the same process, it finds interpreter and files as they were, with what others have put in meanwhile. If it comes to another
process, the files are restored there. What runs and the variables of Python stay behind.

Files are put in, read and removed without a sandbox, unless a call is under way here: then its own is what they go to.

While the storage fails, a container with unsaved files stays in the hands of its process, and saving is tried again. So nobody
goes on with older files; they are lost only if the process dies before the storage is back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from logging import getLogger
from time import monotonic
from types import TracebackType
from typing import Final, Self

import anyio
from msgspec.structs import replace

from mainspring.core.errors import (
    FilesUnavailable,
    NotFound,
    OurError,
    SandboxBusy,
    SandboxError,
    SandboxFull,
    StoreError,
)
from mainspring.core.ids import random_id
from mainspring.core.sandbox import DEFAULT_SPEC, SandboxSpec, WorkspaceFile, WorkspaceListing
from mainspring.ports import Document, DocumentStore, Drivers, FileStorage, Sandbox
from mainspring.tools.builtin.containers import IDLE_SECONDS, MOST, MOST_EACH, Container, ContainerInfo, Containers, Key, Place
from mainspring.tools.builtin.leased_documents import LeasedDocuments
from mainspring.tools.builtin.saved_files import (
    FileList,
    SavedFile,
    SavedFiles,
    Transfers,
    add_file,
    list_dropped,
    list_entries,
    list_given,
)
from mainspring.tools.builtin.shared_place import ContainerFacts, ContainerState, Containment, SharedPlace, tell_lost
from mainspring.tools.safe_read import clean_path
from mainspring.tools.sandbox.workspace_files import PLACE

log = getLogger(__name__)

KIND: Final = "container"
# How long a call, and a request for a file, waits for a container that another process works in.
CALL_SECONDS: Final = 600.0
REQUEST_SECONDS: Final = 30.0
# How often saving is tried again.
SAVE_SECONDS: Final = 5.0
FOLDER: Final = "containers"


class SharedContainers(Containers):
    """See `Containers`. `keep_in` says which store, before `async with`. `most` bounds the sandboxes of this process."""

    def __init__(
        self,
        sandbox: Sandbox,
        storage: FileStorage,
        *,
        spec: SandboxSpec = DEFAULT_SPEC,
        most: int = MOST,
        most_each: int = MOST_EACH,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(sandbox, spec=spec, most=most, most_each=most_each, idle_seconds=idle_seconds, clock=clock)
        self._transfers = Transfers(storage)
        self._store: DocumentStore | None = None
        self._records: LeasedDocuments[ContainerFacts, ContainerState] | None = None
        self._folder = ""

    def keep_in(self, store: DocumentStore, drivers: Drivers) -> None:
        """Has the documents kept there."""
        self._store = store
        self._records = LeasedDocuments(store, drivers, KIND, KIND, ContainerFacts, ContainerState, SandboxBusy)

    async def __aenter__(self) -> Self:
        """Raises `FilesUnavailable` with what to do, `StoreError`."""
        if self._store is None:
            raise SandboxError("containers with files in a storage need a store; use them by an engine")
        await self._transfers.storage.open()
        # Several deployments may share a storage, and none is to remove the files of another.
        await self._store.put([Document("file_space", FOLDER, random_id("space").encode())], if_absent=True)
        space = await self._store.get("file_space", FOLDER)
        assert space is not None
        self._folder = f"{FOLDER}/{space.body.decode()}"
        return await super().__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, place in self._shared_places():
            if place.claim is not None:
                with suppress(OurError):
                    await place.save()
        await super().__aexit__(kind, error, trace)

    @property
    def records(self) -> LeasedDocuments[ContainerFacts, ContainerState]:
        assert self._records is not None
        return self._records

    @asynccontextmanager
    async def use(self, tenant: str, id: str) -> AsyncIterator[Container]:
        """See `Containers.use`. Raises `FilesUnavailable` if its files cannot be restored, `Superseded` if another process has
        taken it meanwhile, because this one did not answer for a while."""
        key = (tenant, id)
        async with self._wait_turn(key) as place:
            assert isinstance(place, SharedPlace)
            container = await self._take(key, place)
            try:
                yield container
            except SandboxError:
                await place.close()
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await self._give_back(key, place)

    async def create(self, tenant: str, id: str, name: str = "", idle_seconds: float | None = None) -> ContainerInfo:
        await self._make_record((tenant, id), name, idle_seconds)
        return await self.describe(tenant, id)

    async def describe(self, tenant: str, id: str) -> ContainerInfo:
        found = await self.records.read((tenant, id))
        return ContainerInfo(id, found.facts.name, found.facts.created_at, found.state.used_at, found.facts.idle_seconds)

    async def list_all(self, tenant: str) -> tuple[ContainerInfo, ...]:
        found: list[ContainerInfo] = []
        for _, id in await self.records.list_keys(tenant):
            with suppress(NotFound):  # It was removed meanwhile.
                found.append(await self.describe(tenant, id))
        return tuple(sorted(found, key=lambda about: about.created_at))

    async def put(self, tenant: str, id: str, path: str, data: bytes) -> WorkspaceFile:
        key = (tenant, id)
        if (place := self._find_place(key)) is not None and place.container is not None:
            entry = await place.container.lease.put(path, data)
            place.container.given[entry.path] = sha256(data).hexdigest()
            place.container.unseen[entry.path] = entry
            await place.save()
            return entry
        async with self._edit(key) as files:
            entry = add_file(files, path, len(data), self.spec.limits)
            kept = await self._files_of(key).write(entry, data)
            files[entry.path] = replace(kept, is_given=True, given_digest=kept.digest, is_unseen=True)
        return entry

    async def get(self, tenant: str, id: str, path: str) -> bytes:
        key = (tenant, id)
        if (place := self._find_place(key)) is not None and place.container is not None:
            return await place.container.lease.get(path)
        return await self._files_of(key).read(_find_file(await self._read_files(key), path))

    async def remove_file(self, tenant: str, id: str, path: str) -> None:
        key = (tenant, id)
        if (place := self._find_place(key)) is not None and place.container is not None:
            await place.container.lease.remove(path)
            place.container.unseen.pop(path, None)
            await place.save()
            return
        async with self._edit(key) as files:
            del files[_find_file(files, path).describe().path]

    async def list(self, tenant: str, id: str) -> WorkspaceListing:
        key = (tenant, id)
        if (place := self._find_place(key)) is not None and place.container is not None:
            return await place.container.lease.list()
        return list_entries((await self._read_files(key)).values())

    async def list_given(self, tenant: str, id: str) -> Mapping[str, str]:
        key = (tenant, id)
        if (place := self._find_place(key)) is not None and place.container is not None:
            return dict(place.container.given)
        return list_given(await self._read_files(key))

    async def remove(self, tenant: str, id: str) -> None:
        key = (tenant, id)
        if key not in self._places:
            await self._remove(key, await self.records.claim(key, REQUEST_SECONDS))
            return
        async with self._wait_turn(key) as place:
            assert isinstance(place, SharedPlace)
            claim = place.claim or await self.records.claim(key, REQUEST_SECONDS)
            place.forget_claim()
            await place.close()
            await self._remove(key, claim)

    async def expire(self) -> None:
        """Closes sandboxes that nobody needs here, and, once for the deployment, removes idle containers and orphaned files."""
        try:
            await self._close_sandboxes()
            if await self.records.is_sweeper(self._idle_seconds / 4):
                async for key, claim in self.records.claim_idle(_is_idle):
                    await self._remove(key, claim)
                await self._remove_orphans()
        except OurError as error:
            log.warning("idle containers are not removed now: %s", error)

    def _new_place(self, key: Key) -> Place:
        return SharedPlace(key[1], self._files_of(key), self.records.me, self.records.read_clock)

    def _files_of(self, key: Key) -> SavedFiles:
        return SavedFiles(self._transfers, f"{self._folder}/{_name_folder(key)}")

    def _shared_places(self) -> Sequence[tuple[Key, SharedPlace]]:
        return [(key, place) for key, place in self._places.items() if isinstance(place, SharedPlace)]

    def _find_place(self, key: Key) -> SharedPlace | None:
        """Where a call works in the container now, or has left unsaved files; None if there is nothing of the kind here."""
        place = self._places.get(key)
        return place if isinstance(place, SharedPlace) and place.claim is not None else None

    async def _read_files(self, key: Key) -> FileList:
        """The files as they were saved last. Raises `NotFound`."""
        while True:
            name = (await self.records.read(key)).state.files
            try:
                return await self._files_of(key).read_list(name)
            except NotFound:
                # Another list may have taken its place meanwhile.
                if (await self.records.read(key)).state.files == name:
                    raise FilesUnavailable(tell_lost(key[1])) from None

    async def _make_record(self, key: Key, name: str = "", idle_seconds: float | None = None) -> None:
        tenant, _ = key
        keys = await self.records.list_keys(tenant)
        if key not in keys and len(keys) >= self._most_each:
            await self._evict(keys)
        now = await self.records.read_clock()
        await self.records.create(key, ContainerFacts(name, now, idle_seconds or self._idle_seconds), ContainerState(now))

    async def _evict(self, keys: Sequence[Key]) -> None:
        """Removes the container that was used longest ago and that nobody works in. Raises `SandboxFull`."""
        tenant = keys[0][0]
        for about in sorted(await self.list_all(tenant), key=lambda about: about.used_at):
            key = (tenant, about.id)
            with suppress(NotFound, SandboxBusy):
                await self._remove(key, await self.records.claim(key, 0))
                return
        raise SandboxFull(f"your {len(keys)} containers are in use; try again when some of the work there is done, or delete one")

    async def _remove(self, key: Key, claim: Containment) -> None:
        saved = self._files_of(key)
        try:
            # As soon as the document is gone, another container of this id may have files in the same folder.
            names = await saved.list_names()
        except BaseException:
            await claim.end(claim.state)
            raise
        await claim.remove()
        await saved.remove(names)

    async def _claim(self, key: Key) -> Containment:
        """The container for a call, made if it is missing."""
        while True:
            try:
                return await self.records.claim(key, CALL_SECONDS)
            except NotFound:
                await self._make_record(key)

    async def _take(self, key: Key, place: SharedPlace) -> Container:
        """The container with the files that it was left with, ours."""
        if place.claim is not None and place.container is not None:
            place.forget_unsaved()
            return place.container
        claim = place.claim or await self._claim(key)
        try:
            name = f"{key[0]}/{key[1]}/{claim.number}"
            return await place.enter(claim, lambda is_new: self._make(place, name, is_new=is_new))
        except BaseException:
            place.forget_claim()
            await claim.end(claim.state)
            raise

    async def _give_back(self, key: Key, place: SharedPlace) -> None:
        """Saves what has changed, and lets others have the container. While that fails, it stays ours."""
        claim = place.claim
        if claim is None:
            return
        try:
            await claim.release(await place.save())
        except (FilesUnavailable, StoreError) as error:
            if not place.is_unsaved:
                log.warning("the files of container %s are not saved yet, so no other process can use it: %s", key[1], error)
            place.mark_unsaved()
            return
        except BaseException:
            claim.drop()
            place.forget_claim()
            await place.close()
            raise
        place.forget_claim()

    @asynccontextmanager
    async def _edit(self, key: Key) -> AsyncIterator[dict[str, SavedFile]]:
        """The files of a container that no call works in here, to be changed."""
        claim = await self.records.claim(key, REQUEST_SECONDS)
        state = claim.state
        try:
            saved = self._files_of(key)
            try:
                before = await saved.read_list(state.files)
            except NotFound:
                raise FilesUnavailable(tell_lost(key[1])) from None
            files = dict(before)
            yield files
            after = dict(sorted(files.items()))
            dropped = [state.files, *list_dropped(before, after)]
            state = replace(state, used_at=await self.records.read_clock(), files=await saved.write_list(after))
            await claim.save(state)
            await saved.remove(dropped)
        finally:
            await claim.end(state)

    async def _sweep(self) -> None:
        looked = self._clock()
        while True:
            await asyncio.sleep(min(SAVE_SECONDS, self._idle_seconds / 4))
            for key, place in self._shared_places():
                if place.is_unsaved and not place.lock.locked():
                    async with place.lock:
                        with suppress(OurError):
                            await self._give_back(key, place)
            if self._clock() - looked >= self._idle_seconds / 4:
                looked = self._clock()
                await self.expire()

    async def _close_sandboxes(self) -> None:
        """Ends those that were idle for long, and those whose container goes on elsewhere, or not at all."""
        now = self._clock()
        for key, place in self._shared_places():
            if place.users:
                continue
            try:
                is_current = (await self.records.read(key)).state.home == self.records.me
            except NotFound:
                is_current = False
            if not place.users and (not is_current or place.last_use <= now - self._idle_seconds):
                await self._places.pop(key).close()

    async def _remove_orphans(self) -> None:
        """Removes the files of containers that are gone. A container is there before its files are."""
        folders = set(await self._transfers.storage.list_folders(self._folder))
        orphans = [SavedFiles(self._transfers, f"{self._folder}/{folder}") for folder in folders - await self._list_folders()]
        found = [(saved, await saved.list_names()) for saved in orphans]
        # A container of the same id may have been made meanwhile.
        known = await self._list_folders() if found else ()
        for saved, names in found:
            if saved.folder.rpartition("/")[2] not in known:
                await saved.remove(names)

    async def _list_folders(self) -> frozenset[str]:
        """Those of all containers that there are."""
        return frozenset([_name_folder(key) for key in await self.records.list_all_keys()])


def _name_folder(key: Key) -> str:
    return sha256("/".join(key).encode()).hexdigest()[:32]


def _find_file(files: FileList, path: str) -> SavedFile:
    if (found := files.get(clean_path(path, PLACE))) is None or not found.name:
        raise NotFound(f"there is no file `{path:.200}` in {PLACE}; name one that is listed")
    return found


def _is_idle(facts: ContainerFacts, state: ContainerState, now: float) -> bool:
    return state.used_at + facts.idle_seconds <= now
