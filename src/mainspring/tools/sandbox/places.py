"""Finds interpreters and folders that the sandbox's unprivileged user can reach.

The interpreter may be installed below a home that only root can enter, while sandboxed code runs as nobody. The supervisor
bind-mounts such folders elsewhere (`FolderViews`), read-only and visible to sandboxes alone; where that is not permitted, the
system's own Python is used.
"""

import os
import shutil
import stat
import sys
from pathlib import Path

from msgspec import Struct

from mainspring.tools.sandbox.workspace_files import Owner

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
# Not the whole prefix: an environment may have been made in a folder that holds other things.
PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")


class FolderViews:
    """Other names for folders that the sandbox's user cannot reach."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder = folder
        self._owner = owner
        self._names: dict[Path, Path] = {}
        self._are_shown = True

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(str(source), str(name)) for source, name in self._names.items()]

    def want(self, folder: Path) -> None:
        if not is_reachable(folder, self._owner) and folder not in self._names:
            name = self._folder / str(len(self._names))
            name.mkdir(mode=0o755)
            self._names[folder] = name

    def settle(self, are_shown: bool) -> None:
        self._are_shown = are_shown

    def find_path(self, path: Path) -> Path | None:
        """The name under which the path can be reached; None if there is none."""
        if is_reachable(path, self._owner):
            return path
        for folder, name in self._names.items():
            if self._are_shown and path.is_relative_to(folder):
                return name / path.relative_to(folder)
        return None


class PythonInstall(Struct, frozen=True):
    """An interpreter, and where its parts are: what the sandbox calls them, and where they are found. `packages` is the folder of
    packages that are for code in the sandbox."""

    executable: str
    parts: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    packages: str = ""


def list_prefixes() -> tuple[Path, ...]:
    """The folders of this interpreter that are not the system's."""
    found = dict.fromkeys(Path(folder) for folder in (sys.prefix, sys.base_prefix))
    return tuple(folder for folder in found if not is_system(folder))


def find_python(views: FolderViews) -> PythonInstall | None:
    """This interpreter if it can be reached under its own name or another, else the system's, else none."""
    parts: list[tuple[str, str]] = []
    for prefix in list_prefixes():
        for part in (prefix / name for name in PARTS):
            source = views.find_path(part)
            if part.exists() and source is None:
                return find_system_python()
            if part.exists() and not part.is_symlink():
                parts.append((str(part), str(source)))
    path = tuple(str(prefix / "bin") for prefix in list_prefixes())
    return PythonInstall(str(Path(sys.executable)), tuple(parts), path)


def find_system_python() -> PythonInstall | None:
    found = shutil.which("python3", path=":".join(SYSTEM_PATH))
    return PythonInstall(found) if found else None


def is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM)


def is_reachable(path: Path, owner: Owner) -> bool:
    """Whether the sandbox's user may pass through every folder above the path."""
    if owner.uid is None:
        return os.access(path, os.F_OK)
    return all(_may_enter(folder.stat(), owner) for folder in path.absolute().parents if folder.exists())


def _may_enter(about: os.stat_result, owner: Owner) -> bool:
    if about.st_uid == owner.uid:
        return bool(about.st_mode & stat.S_IXUSR)
    if about.st_gid == owner.gid:
        return bool(about.st_mode & stat.S_IXGRP)
    return bool(about.st_mode & stat.S_IXOTH)
