"""Files in a workspace, accessed from outside while hostile code may run inside.

A program can put a link in place of a file, or swap a folder for one at the right moment, to make the engine follow it. So every
path is opened beneath the workspace without following links, and only regular files are read. Files that are unlinked, but still
open or mapped, take up space as well, and no walk finds them: `count_unlinked_bytes` looks for those in /proc.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path, PurePosixPath

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.sandbox import WorkspaceFile, WorkspaceListing
from mainspring.tools.safe_open import FOLDER, open_beneath, open_descriptor, open_folder
from mainspring.tools.safe_read import clean_path, explain_errors, read_beneath

DEEPEST = 64
"""How many folders a file may be in to be put in or taken out."""
# A path that the kernel takes has 4096 bytes at most, so below a longer one the walk begins anew from an open folder.
FAR = 3_000
MOST_BASES = 64
PLACE = "the workspace"

_DELETED = re.compile(r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) .* \(deleted\)$", re.MULTILINE)


class Owner(Struct, frozen=True):
    """To whom the workspace belongs; None is whoever we are."""

    uid: int | None = None
    gid: int | None = None

    def take(self, descriptor: int) -> None:
        if self.uid is not None and self.gid is not None:
            os.fchown(descriptor, self.uid, self.gid)


class DiskUsage(Struct, frozen=True):
    """`is_whole` is false if something could not be looked into."""

    size: int
    entries: int
    is_whole: bool = True


def read(workspace: Path, path: str, most: int) -> bytes:
    """A file's content. Raises `NotFound` or `InvalidRequest`, which say why in words a model can use."""
    return read_beneath(workspace, path, most, PLACE)


def write(workspace: Path, path: str, data: bytes, owner: Owner, most: int, *, is_executable: bool = False) -> WorkspaceFile:
    """Writes a file and makes the folders on the way to it. Raises `InvalidRequest`."""
    if len(data) > most:
        raise InvalidRequest(f"`{path}` has {len(data)} bytes, more than the {most} a file may have")
    name = clean_path(path, PLACE)
    if path.endswith("/") or name.count("/") > DEEPEST:
        raise InvalidRequest(f"`{path:.200}` cannot be written: name a file, in at most {DEEPEST} folders")
    with explain_errors(path, PLACE), open_folder(workspace) as root:
        _make_folders(root, PurePosixPath(name).parent, owner)
        # Not truncated on opening: first it must turn out to be a regular file.
        with open_descriptor(root, name, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"`{path}` is not a regular file; choose another name")
            owner.take(descriptor)
            os.ftruncate(descriptor, 0)
            if is_executable:
                os.fchmod(descriptor, 0o755)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            found = os.fstat(descriptor)
            return WorkspaceFile(name, len(data), found.st_mtime_ns, bool(found.st_mode & stat.S_IXUSR))


def remove(workspace: Path, path: str) -> None:
    """Removes a regular file, or a link to anything. Raises `NotFound` or `InvalidRequest`."""
    name = PurePosixPath(clean_path(path, PLACE))
    with (
        explain_errors(path, PLACE),
        open_folder(workspace) as root,
        open_descriptor(root, os.fspath(name.parent), FOLDER) as folder,
    ):
        os.unlink(name.name, dir_fd=folder)


def list_files(workspace: Path, most: int) -> WorkspaceListing:
    """What is there, at most so many, by path. Special files and what lies too deep are left out."""
    entries: list[WorkspaceFile] = []
    hidden: list[str] = []
    folders: set[str] = set()
    links: list[tuple[str, str]] = []
    with open_folder(workspace) as root:
        for count, (path, found) in enumerate(_walk(root, hidden)):
            folders.discard(path.rpartition("/")[0])
            if count >= most or path.count("/") > DEEPEST:
                hidden.append(path)
            elif stat.S_ISREG(found.st_mode):
                entries.append(WorkspaceFile(path, found.st_size, found.st_mtime_ns, bool(found.st_mode & stat.S_IXUSR)))
            elif stat.S_ISDIR(found.st_mode):
                folders.add(path)
            elif stat.S_ISLNK(found.st_mode):
                links += _read_link(root, path)
            if count >= most:
                break
    return WorkspaceListing(
        tuple(sorted(entries, key=attrgetter("path"))), not hidden, tuple(sorted(folders)), tuple(sorted(links))
    )


def make_entries(workspace: Path, folders: Iterable[str], links: Iterable[tuple[str, str]], owner: Owner) -> None:
    """Makes folders and links, as far as nothing is in their place. Where a link leads is for the sandbox to follow alone.
    Raises `InvalidRequest`."""
    with explain_errors("", PLACE), open_folder(workspace) as root:
        for path in folders:
            _make_folders(root, PurePosixPath(clean_path(path, PLACE)), owner)
        for path, target in links:
            name = PurePosixPath(clean_path(path, PLACE))
            _make_folders(root, name.parent, owner)
            with open_descriptor(root, os.fspath(name.parent), FOLDER) as folder, suppress(FileExistsError):
                os.symlink(target, name.name, dir_fd=folder)
                if owner.uid is not None and owner.gid is not None:
                    os.chown(name.name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)


def _read_link(root: int, path: str) -> list[tuple[str, str]]:
    name = PurePosixPath(path)
    try:
        with open_descriptor(root, os.fspath(name.parent), FOLDER) as folder:
            return [(path, os.readlink(name.name, dir_fd=folder))]
    except OSError:
        return []  # It has vanished.


def measure_usage(folder: Path, most: int) -> DiskUsage:
    """What is in use below the folder; counting ends beyond `most` entries. Sparse files count as what they occupy."""
    size = entries = 0
    hidden: list[str] = []
    with open_folder(folder) as root:
        for _, found in _walk(root, hidden):
            size += found.st_blocks * 512
            entries += 1
            if entries > most:
                break
    return DiskUsage(size, entries, not hidden)


def remove_tree(folder: Path) -> None:
    """Removes a folder that hostile code has filled, once that code has ended.

    Folders can be nested deeper than paths are long or Python recurses. So each one found is moved to the top and emptied there.
    """
    with open_folder(folder) as root:
        pending = _empty(root, root, 0)
        while pending:
            name = pending.pop()
            with open_descriptor(root, name, FOLDER) as descriptor:
                pending += _empty(descriptor, root, len(pending))
            os.rmdir(name, dir_fd=root)
    folder.rmdir()


def _empty(folder: int, top: int, taken: int) -> list[str]:
    """Unlinks what is in the folder and moves the folders in it to `top`; returns their new names."""
    moved: list[str] = []
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
            continue
        # Without this neither the move nor the look inside may be permitted.
        os.chmod(entry.name, 0o700, dir_fd=folder)
        name = f".{os.urandom(8).hex()}.{taken + len(moved)}"
        os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
        moved.append(name)
    return moved


def _walk(root: int, hidden: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below, links not followed. What vanishes is passed over; what cannot be looked into joins `hidden`."""
    bases: list[int] = []
    pending = [(root, "", "")]
    try:
        while pending:
            base, near, folder = pending.pop()
            try:
                descriptor = _enter(base, near or ".")
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    hidden.append(folder)
                continue
            is_base = len(os.fsencode(near)) > FAR
            if is_base:
                bases.append(descriptor)
                base, near = descriptor, ""
            try:
                if len(bases) > MOST_BASES:
                    hidden.append(folder)
                    continue
                for name, about in _list_entries(descriptor):
                    yield f"{folder}{name}", about
                    if stat.S_ISDIR(about.st_mode):
                        pending.append((base, f"{near}{name}/", f"{folder}{name}/"))
            finally:
                if not is_base:
                    os.close(descriptor)
    finally:
        for descriptor in bases:
            os.close(descriptor)


def _list_entries(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):  # It has vanished.
                yield entry.name, os.stat(entry.name, dir_fd=folder, follow_symlinks=False)


def _enter(base: int, folder: str) -> int:
    """The folder, opened; one that its owner has locked is unlocked, if we are the owner."""
    try:
        return open_beneath(base, folder, FOLDER)
    except PermissionError:
        with open_descriptor(base, folder, os.O_PATH | os.O_DIRECTORY) as found:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        return open_beneath(base, folder, FOLDER)


def _make_folders(root: int, folder: PurePosixPath, owner: Owner) -> None:
    made = PurePosixPath()
    for part in folder.parts:
        parent = os.fspath(made)
        made /= part
        with open_descriptor(root, parent, FOLDER) as descriptor:
            try:
                os.mkdir(part, 0o755, dir_fd=descriptor)
            except FileExistsError:
                continue
        with open_descriptor(root, os.fspath(made), FOLDER) as descriptor:
            owner.take(descriptor)


def count_unlinked_bytes(pid: int, device: int) -> int:
    """The size of the unlinked files on this device that the process, or a descendant, has open or mapped."""
    found: dict[int, int] = {}
    for each in _list_tree(pid):
        for about in (*_stat_open_files(each), *_stat_mapped_files(each)):
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 0 and about.st_dev == device:
                found[about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _list_tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with suppress(OSError), open(f"/proc/{each}/task/{thread}/children") as children:
                    found += [int(child) for child in children.read().split()]
    return found


def _stat_open_files(pid: int) -> Iterator[os.stat_result]:
    with suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.stat(f"/proc/{pid}/fd/{file}")


def _stat_mapped_files(pid: int) -> Iterator[os.stat_result]:
    """Nothing unless we are root: the kernel tells nobody else."""
    with suppress(OSError):
        with open(f"/proc/{pid}/maps") as file:
            ranges = [f"{int(found['start'], 16):x}-{int(found['end'], 16):x}" for found in _DELETED.finditer(file.read())]
        for name in ranges:
            with suppress(OSError):
                yield os.stat(f"/proc/{pid}/map_files/{name}")
