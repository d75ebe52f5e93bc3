"""Folders below a root, opened step by step, so that no link leads out: not even one that is swapped in on the way.

Imports the standard library alone; see `apart`.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting, since opening a pipe would wait for ever.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DEEPEST = 32
# Folders that are shown, but not looked into unless they are named.
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"})


class Found(NamedTuple):
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


@contextmanager
def folder_at(root: str, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder; with `make`, missing ones are made. Raises `OSError`: ENOTDIR or ELOOP for a link."""
    descriptor = os.open(root, FOLDER)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = os.open(part, FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def file_at(folder: int, name: str) -> Iterator[int]:
    """A descriptor of what may be a file; the caller looks. Raises `OSError`: ELOOP for a link."""
    descriptor = os.open(name, FILE, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(folder: int, deepest: int = DEEPEST, prefix: str = "") -> Iterator[Found]:
    """All that is in a folder, by name, each folder before what it holds. Links are not followed; what vanishes or is locked is
    passed over."""
    for name in sorted(os.listdir(folder)):
        try:
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        found = Found(folder, name, prefix + name, about)
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
