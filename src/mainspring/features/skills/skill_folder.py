"""The skills of the folders that the settings name. Each folder holds skills, one folder each.

A skill that is broken is reported and left out, and so is one whose name is taken; the others are there. Folders are read at the
start and whenever `refresh` is called; then only files that have changed are read again.
"""

import os
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from mainspring.core.errors import CallerError
from mainspring.features.skills.skill_definition import FILE, Skill, read_skill

log = getLogger(__name__)


class SkillFolders:
    """All skills by name, and what is wrong with the others. Both are replaced as a whole, never changed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(dict.fromkeys([folder.resolve() for folder in folders]))
        self._known: dict[Path, _Read] = {}
        self.skills: Mapping[str, Skill] = {}
        self.problems: tuple[str, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Looks for skills that are new, changed or gone. A skill that has become broken is gone until it is mended."""
        skills: dict[str, Skill] = {}
        problems: list[str] = []
        known: dict[Path, _Read] = {}
        for place in [place for folder in self._folders for place in _places(folder, problems)]:
            found = known[place] = self._read(place)
            if found.skill is None:
                problems.append(found.problem)
            elif (first := skills.setdefault(found.skill.name, found.skill)) is not found.skill:
                problems.append(f"{place / FILE}:1: there is a skill `{first.name}` already, in {first.path}; rename one of them")
        for problem in problems:
            if problem not in self.problems:
                log.warning("a skill is left out: %s", problem)
        self._known, self.skills, self.problems = known, MappingProxyType(skills), tuple(problems)

    def _read(self, place: Path) -> "_Read":
        stamp = _stamp(place / FILE)
        known = self._known.get(place)
        if known is not None and known.stamp == stamp:
            return known
        try:
            return _Read(stamp, read_skill(place))
        except CallerError as error:
            told = error.message
            return _Read(stamp, problem=told if told.startswith(str(place)) else f"{place / FILE}:1: {told}")


class _Read(Struct, frozen=True):
    """What reading a folder gave, and what its file looked like before."""

    stamp: tuple[int, ...]
    skill: Skill | None = None
    problem: str = ""


def _places(folder: Path, problems: list[str]) -> list[Path]:
    """The folders in this one that mean to be skills."""
    try:
        names = sorted(os.listdir(folder))
        if FILE in names:
            problems.append(f"{folder / FILE}:1: this folder is a skill itself; name the folder above it")
            return []
        return [folder / name for name in names if not name.startswith(".") and _is_skill(folder / name, problems)]
    except OSError as error:
        problems.append(f"{folder}: there are no skills to be read: {error.strerror}; name a folder that holds skills")
        return []


def _is_skill(place: Path, problems: list[str]) -> bool:
    try:
        found = [name for name in os.listdir(place) if name.lower() == FILE.lower()] if place.is_dir() else []
    except OSError as error:
        problems.append(f"{place}: it cannot be read: {error.strerror}; make it readable")
        return False
    if found and FILE not in found:
        problems.append(f"{place / found[0]}:1: the file of a skill is called {FILE}; rename it")
    return FILE in found


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.lstat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
