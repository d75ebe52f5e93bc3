"""The files of containers in the storage of files.

A list says which files a container has, and under which name each is kept; both are written under new names and never changed, so
whoever has the name of a list has all of its files as they were then. What no list needs any more is removed.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from time import time_ns
from typing import Final

import anyio
from anyio import CapacityLimiter
from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.core.errors import CallerError, FilesUnavailable, InvalidRequest, MainspringError, NotFound
from mainspring.core.items import decode, encode
from mainspring.core.sandbox import SandboxLimits, WorkspaceFile, WorkspaceListing
from mainspring.ports import FileStorage, SandboxLease
from mainspring.tools.safe_read import clean_path
from mainspring.tools.sandbox.workspace_files import DEEPEST, PLACE

# Files that are on their way at once, and how many bytes make one that goes alone.
AT_ONCE: Final = 8
LARGE: Final = 4 << 20
LONGEST_NAME: Final = 255
# How much is read before it is written into a workspace.
BATCH_BYTES: Final = 16 << 20
BATCH_FILES: Final = 500


class SavedFile(Struct, frozen=True, omit_defaults=True):
    """A file as a list has it, or a link with what it points to, or an empty folder: these two have no `name` in the storage.
    `path` is bytes, because a file name need not be text."""

    path: bytes
    size: int = 0
    modified: int = 0
    name: str = ""
    digest: str = ""
    is_executable: bool = False
    link: bytes = b""
    is_given: bool = False
    """It was put in from outside."""
    given_digest: str = ""
    """What `digest` was when it was put in."""
    is_unseen: bool = False
    """No call was told of it."""

    def describe(self) -> WorkspaceFile:
        return WorkspaceFile(os.fsdecode(self.path), self.size, self.modified, self.is_executable)

    def is_same(self, other: "SavedFile") -> bool:
        """Whether both look alike in a workspace."""
        return (self.name, self.is_executable, self.link) == (other.name, other.is_executable, other.link)


FileList = Mapping[str, SavedFile]
"""The files of a container by path."""


class Transfers(Struct, frozen=True):
    """The storage, and how much may be on its way there at once."""

    storage: FileStorage
    small: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(AT_ONCE))
    large: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))


class SavedFiles(Struct, frozen=True):
    """The files of one container, below a folder of the storage."""

    transfers: Transfers
    folder: str

    @property
    def storage(self) -> FileStorage:
        return self.transfers.storage

    async def read_list(self, name: str) -> FileList:
        """Raises `NotFound` if it was removed."""
        files = decode(await self.storage.get(self._key(name)), tuple[SavedFile, ...]) if name else ()
        return {os.fsdecode(file.path): file for file in files}

    async def write_list(self, files: FileList) -> str:
        """Its name."""
        if not files:
            return ""
        name = token_hex(16)
        await self.storage.put(self._key(name), encode(tuple(files.values())))
        return name

    async def read(self, file: SavedFile) -> bytes:
        try:
            return await self.storage.get(self._key(file.name))
        except NotFound:
            told = "was removed from the storage of files by somebody else; delete the container and begin a new one"
            raise FilesUnavailable(f"`{file.describe().path:.200}` {told}") from None

    async def write(self, entry: WorkspaceFile, data: bytes, known: SavedFile | None = None) -> SavedFile:
        """Keeps a file. One that is known, and has not changed, is kept already."""
        digest = sha256(data).hexdigest()
        if known is not None and known.digest == digest:
            return replace(known, modified=entry.modified, is_executable=entry.is_executable)
        name = token_hex(16)
        await self.storage.put(self._key(name), data)
        return SavedFile(os.fsencode(entry.path), len(data), entry.modified, name, digest, entry.is_executable)

    async def remove(self, names: Iterable[str]) -> None:
        await self.storage.remove([self._key(name) for name in names if name])

    async def list_names(self) -> Sequence[str]:
        """Whatever is kept, needed or not."""
        return [key.rpartition("/")[2] for key in await self.storage.list_keys(self.folder)]

    async def save(
        self, lease: SandboxLease, listing: WorkspaceListing, known: FileList, seen: Collection[WorkspaceFile]
    ) -> FileList:
        """What a workspace holds, kept. `known` are those kept before, and `seen` is how the workspace had them."""
        kept = {path: SavedFile(os.fsencode(path)) for path in listing.folders}
        kept |= {path: SavedFile(os.fsencode(path), link=os.fsencode(target)) for path, target in listing.links}
        faults: list[MainspringError] = []

        async def keep(entry: WorkspaceFile) -> None:
            async with self.transfers.small if entry.size < LARGE else self.transfers.large:
                try:
                    data = await lease.get(entry.path)
                    kept[entry.path] = await self.write(entry, data, known.get(entry.path))
                except CallerError:
                    return  # It has vanished, or is not to be read.
                except MainspringError as error:
                    faults.append(error)

        async with anyio.create_task_group() as group:
            for entry in listing.entries:
                if entry in seen and entry.path in known:
                    kept[entry.path] = known[entry.path]
                else:
                    group.start_soon(keep, entry)
        if faults:
            raise faults[0]
        return {path: kept[path] for path in sorted(kept)}

    async def restore(self, lease: SandboxLease, files: FileList, present: FileList) -> None:
        """Makes a workspace that has the files `present` have these."""
        changed = [file for path, file in files.items() if path not in present or not present[path].is_same(file)]
        for path in (present.keys() - files.keys()) | {os.fsdecode(file.path) for file in changed} & present.keys():
            # A folder that was empty may hold something now.
            with suppress(NotFound, InvalidRequest):
                await lease.remove(path)
        for batch in _cut_batches(changed):
            await lease.put_all(await self._read_all([file for file in batch if file.name]), list_entries(batch))

    async def _read_all(self, files: Iterable[SavedFile]) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        faults: list[MainspringError] = []

        async def fetch(file: SavedFile) -> None:
            async with self.transfers.small:
                try:
                    contents[os.fsdecode(file.path)] = await self.read(file)
                except MainspringError as error:
                    faults.append(error)

        async with anyio.create_task_group() as group:
            for file in files:
                group.start_soon(fetch, file)
        if faults:
            raise faults[0]
        return contents

    def _key(self, name: str) -> str:
        return f"{self.folder}/{name}"


def list_entries(files: Iterable[SavedFile]) -> WorkspaceListing:
    """What a workspace with these would list."""
    entries = [file.describe() for file in files if file.name]
    folders = [os.fsdecode(file.path) for file in files if not file.name and not file.link]
    links = [(os.fsdecode(file.path), os.fsdecode(file.link)) for file in files if file.link]
    return WorkspaceListing(tuple(entries), True, tuple(folders), tuple(links))


def list_given(files: FileList) -> dict[str, str]:
    """See `Containers.list_given`."""
    return {path: file.given_digest for path, file in files.items() if file.is_given}


def _cut_batches(files: Sequence[SavedFile]) -> Iterator[Sequence[SavedFile]]:
    """The files, in parts of which each fits into memory."""
    batch: list[SavedFile] = []
    size = 0
    for file in files:
        if batch and (size + file.size > BATCH_BYTES or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def add_file(files: FileList, path: str, size: int, limits: SandboxLimits) -> WorkspaceFile:
    """What a file put in from outside is called, if there is room for it. Raises `InvalidRequest` as a workspace would."""
    if size > limits.file:
        raise InvalidRequest(f"`{path}` has {size} bytes, more than the {limits.file} a file may have")
    name = clean_path(path, PLACE)
    parts = name.split("/")
    if path.endswith("/") or len(parts) > DEEPEST + 1 or any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
        raise InvalidRequest(f"`{path:.200}` cannot be written: name a file, in at most {DEEPEST} folders")
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    others = {other: file for other, file in files.items() if other not in (name, *above) or file.name or file.link}
    if any(other in above or other.startswith(f"{name}/") for other in others):
        raise InvalidRequest(f"`{path:.200}` cannot be written: a file is in the place of a folder; choose another name")
    if name in files and not files[name].name:
        raise InvalidRequest(f"`{path:.200}` is not a regular file; choose another name")
    used = sum([file.size for other, file in others.items() if other != name])
    if used + size > limits.disk or len(others.keys() - {name}) + len(parts) > limits.entries:
        raise InvalidRequest(f"`{path:.200}` does not fit: {len(others)} files with {used} bytes are there; remove some first")
    return WorkspaceFile(name, size, time_ns())


def list_dropped(before: FileList, after: FileList) -> Sequence[str]:
    """The names that no file has any more."""
    kept = {file.name for file in after.values()}
    return [file.name for file in before.values() if file.name not in kept]
