"""Files inside a skill's folder, and nothing outside it.

A path is opened folder by folder, each one beneath the last and over no link, so that neither `..` nor a link that somebody puts
there at the right moment leads out. Nothing but regular files is read: opening a pipe would wait for ever.
"""

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from mainspring.core.errors import InvalidRequest, NotFound

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
LISTED = 200


def read(folder: Path, path: str, most: int) -> bytes:
    """A file's content. Raises `NotFound` or `InvalidRequest`, which say why in words a model can use."""
    descriptor = _open(folder, path)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(f"`{path}` is not a regular file; name one that the skill lists")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise InvalidRequest(f"`{path}` has {found.st_size} bytes, more than the {most} that a file of a skill may have")
    return data


def listing(folder: Path, most: int = LISTED) -> tuple[str, ...]:
    """The paths of the regular files, at most so many. Links, special files and hidden names are left out."""
    paths: list[str] = []
    for place, folders, names, descriptor in os.fwalk(folder):
        folders[:] = sorted([name for name in folders if not name.startswith(".")])
        for name in sorted(names):
            if len(paths) == most:
                return tuple(paths)
            if not name.startswith(".") and _is_regular(name, descriptor):
                paths.append(os.path.relpath(os.path.join(place, name), folder))
    return tuple(paths)


def _open(folder: Path, path: str) -> int:
    *above, name = _parts(path)
    try:
        here = os.open(folder, FOLDER)
        try:
            for part in above:
                below = os.open(part, FOLDER, dir_fd=here)
                os.close(here)
                here = below
            return os.open(name, FILE, dir_fd=here)
        finally:
            os.close(here)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path!a} cannot be a path; name a file that the skill lists") from None
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise NotFound(f"there is no file `{path}` in the skill's folder; `load_skill` lists those there are") from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise InvalidRequest(f"`{path}` leads over a link; only files that lie in the skill's folder are read") from error
        raise InvalidRequest(f"`{path[:200]}` cannot be read: {error.strerror}; name a file that the skill lists") from error


def _parts(path: str) -> tuple[str, ...]:
    parts = PurePosixPath(path).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path:
        raise InvalidRequest(f"`{path[:200]}` is no path within the skill's folder; give one relative to it, without `..`")
    return parts


def _is_regular(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
