"""Reads files that a model names, below a root; the errors say what the model can do."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.tools.safe_open import FILE, open_descriptor, open_folder


def read_beneath(root: Path, path: str, most: int, place: str) -> bytes:
    """A regular file's content. `place` names the root. Raises `NotFound` or `InvalidRequest`."""
    name = clean_path(path, place)
    with explain_errors(path, place), open_folder(root) as folder, open_descriptor(folder, name, FILE) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(f"`{path}` is not a regular file; name one that is listed")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise InvalidRequest(f"`{path}` has {found.st_size} bytes, more than the {most} that can be read; split it")
    return data


def clean_path(path: str, place: str) -> str:
    """Normalizes a relative path. Raises `InvalidRequest` for one that is not relative, or has `..` in it."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path or not _is_encodable(path):
        shown = path.encode(errors="replace").decode()
        raise InvalidRequest(f"`{shown:.200}` is no path within {place}; give one relative to it, without `..`")
    return "/".join(parts)


@contextmanager
def explain_errors(path: str, place: str) -> Iterator[None]:
    """Raises `NotFound` or `InvalidRequest` for an `OSError`."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOENT:
                raise NotFound(f"there is no file `{path:.200}` in {place}; name one that is listed") from error
            case errno.ELOOP | errno.EXDEV:
                raise InvalidRequest(f"`{path:.200}` leads over a link; only files that lie in {place} are touched") from error
            case _:
                raise InvalidRequest(f"`{path:.200}` in {place} cannot be used: {error.strerror}") from error


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
