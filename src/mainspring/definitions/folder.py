"""Folders of definitions, one registry for agents, workflows, skills and what is said of tools.

Whenever definitions are asked for, files that have changed are read again. A definition that is broken is reported and left out,
and so is one whose name is taken, or that needs something which is not there. A new version that is broken does not replace the
old one, which stays in use until the file is mended or removed. What is wrong is logged once.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from os.path import dirname, islink, realpath
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from msgspec import Struct

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.redact import redact_text
from mainspring.definitions.parsed_file import hint
from mainspring.definitions.reader import SUFFIXES

log = getLogger(__name__)

KEPT: Final = "; the last version that was right stays in use"
# A file may hold a name of a megabyte, and what is wrong with it is told with it.
PROBLEM_CHARS: Final = 8_000

Stamp = tuple[int, int, int, int]
"""What tells a file from what it was: its times, size and inode."""

T = TypeVar("T")


class Defined(Struct, Generic[T], frozen=True):
    """A definition, and the line of its file where it begins."""

    name: str
    value: T
    line: int = 1


class DefinitionSource(Struct, frozen=True):
    """What somebody has written: the name of the file, and its text without secrets. Several definitions may be in one file."""

    file: str
    text: str
    object: str = "definition.source"


class DefinitionFolders(Generic[T]):
    """The definitions of one kind by name, and what is wrong with the others.

    `read` gives the definitions of a file, and raises `InvalidRequest`. `find_files` names the files of a folder, and may append
    problems. `find_flaw` says why a definition cannot be used among those that are there, None if it can. `context` gives what
    else that depends on. Where the maker `refuses_at_first`, it tells the first problems itself, and they are not logged.
    """

    def __init__(
        self,
        kind: str,
        folders: Iterable[Path],
        read: "Callable[[Path], Sequence[Defined[T]]]",
        *,
        find_files: Callable[[Path, list[str]], list[str]] | None = None,
        find_flaw: Callable[[str, Mapping[str, T]], str | None] = lambda name, known: None,
        context: Callable[[], object] = lambda: None,
        refuses_at_first: bool = False,
    ) -> None:
        self.folders = tuple(dict.fromkeys([folder.resolve() for folder in folders]))
        self._kind = kind
        self._read = read
        self._find_files = find_files or find_definition_files
        self._find_flaw = find_flaw
        self._context = context
        self._logs = not refuses_at_first
        # Replaced as a whole, since threads ask, too.
        self._state: _State[T] = _State()

    @property
    def definitions(self) -> Mapping[str, T]:
        """The definitions as their files are now, by name. The mapping stays the same while nothing changes."""
        return self._refresh().definitions

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the files as they are now."""
        return self._refresh().problems

    def get(self, name: str) -> T:
        """Raises `NotFound`."""
        state = self._refresh()
        if name in state.definitions:
            return state.definitions[name]
        broken = f"; some definitions cannot be used: `mainspring {self._kind}s list` says why" if state.problems else ""
        raise NotFound(f"there is no {self._kind} `{name[:80]}`; {hint(name, tuple(state.definitions))}{broken}", param="name")

    def read_source(self, name: str) -> DefinitionSource:
        """The file of a definition. Raises `NotFound`, also for a file that cannot be read any more."""
        self.get(name)
        versions = self._state.versions.items()
        file = next(Path(file) for file, version in versions if any(each.name == name for each in version.defined))
        try:
            return DefinitionSource(file.name, redact_text(file.read_text("utf-8-sig")))
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(f"the file of the {self._kind} `{name[:80]}` cannot be read now", param="name") from error

    def _refresh(self) -> "_State[T]":
        if not self.folders:
            return self._state
        before, problems = self._state, list[str]()
        files: list[str] = []
        unreadable: list[Path] = []
        for folder in self.folders:
            known = len(problems)
            files += (found := self._find_files(folder, problems))
            unreadable += [folder] if len(problems) > known and not found else []
        roots = tuple([f"{folder}{os.sep}" for folder in self.folders])
        stamps = {file: stamp for file in files if (stamp := _stamp(file, roots, problems)) is not None}
        seen = (stamps, tuple(problems), self._context())
        if seen == before.seen:
            return before
        versions = {file: self._read_version(file, stamp, before.versions.get(file)) for file, stamp in stamps.items()}
        # What cannot be read keeps what it was; only what was taken away is gone.
        for file, version in before.versions.items():
            if file not in versions and (file in files or any(folder in Path(file).parents for folder in unreadable)):
                versions[file] = version
        problems += [version.problem for version in versions.values() if version.problem]
        definitions = self._select(versions, problems)
        problems = [problem if len(problem) <= PROBLEM_CHARS else f"{problem[:PROBLEM_CHARS]}..." for problem in problems]
        for problem in problems if self._logs else ():
            if problem not in before.problems:
                log.warning("%s: %s", self._kind, problem)
        self._state = _State(seen, versions, MappingProxyType(definitions), tuple(problems))
        self._logs = True
        return self._state

    def _read_version(self, file: str, stamp: Stamp, before: "_Version[T] | None") -> "_Version[T]":
        if before is not None and before.stamp == stamp:
            return before
        kept = before.defined if before is not None else ()
        try:
            defined = tuple(self._read(Path(file)))
            if kept and not defined:
                return _Version(stamp, kept, f"{file}: it defines nothing any more; remove it to have it forgotten{KEPT}")
            return _Version(stamp, defined)
        except InvalidRequest as error:
            return _Version(stamp, kept, f"{error.message}{KEPT}" if kept else error.message)

    def _select(self, versions: "Mapping[str, _Version[T]]", problems: list[str]) -> dict[str, T]:
        """The first definition of each name, without those that have a flaw; leaving one out may be the flaw of another."""
        found: dict[str, T] = {}
        places: dict[str, str] = {}
        for file, version in versions.items():
            for each in version.defined:
                place = f"{file}:{each.line}"
                if each.name in found:
                    problems.append(f"{place}: the {self._kind} `{each.name}` is defined at {places[each.name]}; rename one")
                else:
                    found[each.name], places[each.name] = each.value, place
        while flaws := {name: flaw for name in found if (flaw := self._find_flaw(name, found)) is not None}:
            problems += [f"{places[name]}: {self._kind} `{name}` {flaw}" for name, flaw in flaws.items()]
            found = {name: value for name, value in found.items() if name not in flaws}
        return {name: found[name] for name in sorted(found)}


class _Version(Struct, Generic[T], frozen=True):
    """What a file held when it was read last, and what was wrong with it."""

    stamp: Stamp
    defined: tuple[Defined[T], ...]
    problem: str = ""


class _State(Struct, Generic[T], frozen=True):
    seen: object = None
    versions: Mapping[str, _Version[T]] = {}
    definitions: Mapping[str, T] = {}
    problems: tuple[str, ...] = ()


def find_definition_files(folder: Path, problems: list[str], suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    """The files of a folder that may be definitions, by name; hidden ones are none."""
    try:
        with os.scandir(folder) as entries:
            return sorted([entry.path for entry in entries if entry.name.endswith(suffixes) and not entry.name.startswith(".")])
    except OSError as error:
        problems.append(f"{folder}: the folder cannot be read: {error.strerror}; check its name")
        return []


def _stamp(file: str, roots: tuple[str, ...], problems: list[str]) -> Stamp | None:
    try:
        found = os.stat(file)
        if (islink(file) or islink(dirname(file))) and not realpath(file).startswith(roots):
            # Whoever may put a link here need not be one who may read what it leads to.
            problems.append(f"{file}: it is a link that leads out of its folder; copy the file, or name its folder as well")
            return None
    except OSError as error:
        if os.path.lexists(file):  # else it is gone by now
            problems.append(f"{file}: it cannot be read: {error.strerror}; mend the link, or take it away")
        return None
    if not S_ISREG(found.st_mode):
        problems.append(f"{file}: it is no file; take it out of this folder, or rename it")
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
