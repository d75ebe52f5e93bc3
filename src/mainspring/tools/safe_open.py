"""Opens files and folders below a root so that no symbolic link leads out, not even one swapped in meanwhile.

Where the kernel has `openat2`, a path is opened in one step, beneath the root and following no link; elsewhere folder by folder,
none of them a link. Files are opened non-blocking, since opening a pipe would wait for ever; the reader checks that it is a
regular file. Imports only the standard library: bare interpreters use it.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import NamedTuple

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEEPEST = 32
# Folders that are listed, but not walked unless they are named.
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"})

OPENAT2 = 437
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS


class FoundEntry(NamedTuple):
    """Something in a folder: `path` is relative to where the walk began, `folder` open until the walk goes on."""

    folder: int
    name: str
    path: str
    about: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.about.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.about.st_mode)


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Opens a path below the folder `root`. Raises `OSError`: EXDEV if it leads out, ELOOP if it has a link in it."""
    opened = _openat2()
    return open_stepwise(root, path, flags, mode) if opened is None else opened(root, path, flags, mode)


def open_stepwise(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Does what `open_beneath` does, from folder to folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            below = _open_unlinked(part, FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return _open_unlinked(parts[-1] if parts else ".", flags, mode, dir_fd=here)
    finally:
        os.close(here)


@contextmanager
def open_descriptor(root: int, path: str, flags: int, mode: int = 0) -> Iterator[int]:
    """A descriptor as `open_beneath` gives it, closed in the end."""
    descriptor = open_beneath(root, path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(root: "str | os.PathLike[str]", parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder; with `make`, missing ones are made. Raises `OSError`: ELOOP for a link."""
    top = _open_unlinked(root, FOLDER)
    try:
        for count, part in enumerate(parts if make else ()):
            with open_descriptor(top, "/".join(parts[:count]), FOLDER) as above, suppress(FileExistsError):
                os.mkdir(part, dir_fd=above)
        with open_descriptor(top, "/".join(parts), FOLDER) as descriptor:
            yield descriptor
    finally:
        os.close(top)


def walk(folder: int, deepest: int = DEEPEST, prefix: str = "") -> Iterator[FoundEntry]:
    """Walks a folder in order of names, each folder before its contents. Follows no links; skips what vanishes or is not
    readable."""
    for name in sorted(os.listdir(folder)):
        try:
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        found = FoundEntry(folder, name, prefix + name, about)
        yield found
        if not found.is_folder or deepest <= 1 or name in SKIPPED:
            continue
        try:
            inner = os.open(name, FOLDER, dir_fd=folder)
        except OSError:
            continue
        try:
            yield from walk(inner, deepest - 1, f"{found.path}/")
        finally:
            os.close(inner)


def _open_unlinked(path: "str | os.PathLike[str]", flags: int, mode: int = 0, dir_fd: int | None = None) -> int:
    """Opens what is no link. Raises `OSError`: ELOOP for one, also where a folder is wanted."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path)) from None
        raise


@lru_cache(maxsize=1)
def _openat2() -> Callable[[int, str, int, int], int] | None:
    """The system call; None where there is none, or a filter forbids it."""
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(root: int, path: str, flags: int, mode: int) -> int:
        # It follows no link anyway; with that flag, one in the place of a folder would merely be no folder.
        how = struct.pack("=QQQ", (flags | os.O_CLOEXEC) & ~os.O_NOFOLLOW, mode, BENEATH)
        descriptor: int = libc.syscall(OPENAT2, root, os.fsencode(path or "."), how, len(how))
        if descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return descriptor

    root = os.open("/", FOLDER)
    try:
        os.close(call(root, ".", FOLDER, 0))
        return call
    except OSError:
        return None
    finally:
        os.close(root)
