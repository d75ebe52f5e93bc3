"""What a wrapped program may access on this machine: what it was granted, and what it needs to start.

By default a program gets its own installation and, if it is an interpreter, the project of its script, read-only. Never a home, a
shared folder, or one with our own settings or database: of those it gets only the script.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.places import PARTS, is_system
from mainspring.tools.sandbox.workspace_files import Owner

_INTERPRETER = re.compile(r"(?:python|pypy|node|nodejs|bun|deno|ruby|perl|php|bash|sh)[\d.]*")
_PROJECTS = ("pyproject.toml", "package.json", "node_modules")
_SHARED = frozenset(map(Path, ("/", "/etc", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/tmp")))
# The default names of our settings file and database; `app.settings` has the same.
_OURS = ("mainspring.toml", "mainspring.db")


class Program(Struct, frozen=True, kw_only=True):
    """A program to be started, by its whole path. `env` are the variables that are its own. `cwd` is readable to it."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str | None = None
    network: bool = False
    folders: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


Wrap = Callable[[Program], AbstractAsyncContextManager[Sequence[str]]]
"""Gives the command line that runs a program in the sandbox; see `wrap_program`."""


class Mount(Struct, frozen=True, order=True):
    """A file or folder, in the order in which they are to be mounted: what lies in another comes behind it."""

    depth: int
    is_writable: bool
    path: str


def list_mounts(program: Program, owner: Owner, *, weak_version: str = "") -> tuple[Mount, ...]:
    """Everything but the system that the program may touch. Raises `SandboxError` for what is not there or may not be touched.

    `weak_version` names a bubblewrap that follows links inside of writable folders. Then nothing is mounted there: what the
    program needs of its own is reached through the folder, and what is granted by name is refused.
    """
    needed = [*([] if program.cwd in (None, "/") else [program.cwd]), *map(str, _list_needed(program))]
    if weak_version:
        needed = [path for path in needed if _find_outer(path, program.folders) is None]
        _refuse_nested(program, weak_version)
    needed = [path for path in needed if not (os.path.islink(path) and _find_outer(path, program.folders))]
    reads = [*program.reads, *needed]
    wanted = {path: False for path in reads if not is_system(Path(path))} | dict.fromkeys(program.folders, True)
    for path, is_writable in wanted.items():
        _check(path, is_writable, owner)
    return _order_mounts(wanted)


def _order_mounts(wanted: Mapping[str, bool]) -> tuple[Mount, ...]:
    """The mounts, without those that change nothing: what lies in a mounted folder is there already, with its links. Where
    the program cannot write, a link is mounted where it leads to; bubblewrap mounts nothing on one."""
    mounts: list[Mount] = []
    for depth, is_writable, path in sorted([(len(Path(path).parts), writes, path) for path, writes in wanted.items()]):
        if _holds_as_is(path, mounts):
            path = os.path.realpath(path)
            if not is_writable and (is_system(Path(path)) or _holds_as_is(path, mounts)):
                continue
            depth = len(Path(path).parts)
        mounts.append(Mount(depth, is_writable, path))
    return tuple(sorted(set(mounts)))


def _holds_as_is(path: str, mounts: Sequence[Mount]) -> bool:
    """Whether these mounts show the path read-only."""
    outer = [mount for mount in mounts if path != mount.path and Path(path).is_relative_to(mount.path)]
    return bool(outer) and not any(mount.is_writable for mount in outer)


def _find_outer(path: str, folders: Sequence[str]) -> str | None:
    """The writable folder that a path lies inside of."""
    return next((outer for outer in folders if path != outer and Path(path).is_relative_to(outer)), None)


def _refuse_nested(program: Program, version: str) -> None:
    for path in (*program.reads, *program.folders):
        if (outer := _find_outer(path, program.folders)) is not None:
            raise SandboxError(
                f"`{path}` lies inside of `{outer}`, which the program may write, and {version} would follow a link that it puts "
                "there (CVE-2026-87766); grant only one of them, or install bubblewrap 0.12"
            )


def _check(path: str, is_writable: bool, owner: Owner) -> None:
    try:
        about = os.stat(path)
    except OSError as error:
        raise SandboxError(f"`{path}` cannot be granted: {error.strerror}") from error
    if owner.uid is None:
        return
    wanted = (7 if is_writable else 5) if stat.S_ISDIR(about.st_mode) else (6 if is_writable else 4)
    shift = 6 if about.st_uid == owner.uid else 3 if about.st_gid == owner.gid else 0
    if (about.st_mode >> shift) & wanted != wanted:
        what, how = ("write", f"chown -R {owner.uid} {path}") if is_writable else ("read", f"chmod -R o+rX {path}")
        raise SandboxError(f"the sandbox's user, {owner.uid}, may not {what} `{path}`; allow it: {how}")


def _list_needed(program: Program) -> Iterator[Path]:
    """What the program itself consists of, under the name it was given and under the one that links lead to."""
    started = Path(program.argv[0])
    for path in dict.fromkeys((started, started.resolve())):
        yield from _list_installation(path)
    if (place := _find_script(program)) is not None:
        script = _locate(program, place)
        for path in dict.fromkeys((script, script.resolve())):
            yield _find_project(path)


def name_script(program: Program) -> Program:
    """The program with its script by the whole path, since it starts in a folder of its own if it is given none."""
    place = _find_script(program)
    if place is None or program.cwd is not None:
        return program
    return replace(program, argv=(*program.argv[:place], str(_locate(program, place)), *program.argv[place + 1 :]))


def _find_script(program: Program) -> int | None:
    """Which word of its command is the script, if it is an interpreter that has one."""
    if not _INTERPRETER.fullmatch(Path(program.argv[0]).name):
        return None
    for place, word in enumerate(program.argv[1:], 1):
        if word in ("-c", "-m", "-e", "--eval"):
            return None
        if not word.startswith("-"):
            return place if _locate(program, place).is_file() else None
    return None


def _locate(program: Program, place: int) -> Path:
    return Path(program.cwd or os.getcwd(), program.argv[place])


def _list_installation(path: Path) -> Iterator[Path]:
    if path.parent.name == "bin" and not is_system(path):
        yield from (part for part in (path.parent.parent / name for name in PARTS) if part.exists())
    else:
        yield _find_project(path)


def _find_project(path: Path) -> Path:
    """The folder of everything that the file comes with, or the file itself if that would show too much."""
    if "node_modules" in path.parts:
        return Path(*path.parts[: path.parts.index("node_modules") + 1])
    narrow = []
    for folder in path.parents:
        if _is_broad(folder):
            break
        narrow.append(folder)
        if any((folder / name).exists() for name in _PROJECTS):
            return folder
    return narrow[0] if narrow else path


def _is_broad(folder: Path) -> bool:
    home = Path.home()
    return folder in _SHARED or home.is_relative_to(folder) or any((folder / name).exists() for name in _OURS)
