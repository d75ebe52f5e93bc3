"""The skills of the folders that the settings name. Each folder holds skills, one folder each."""

import os
from collections.abc import Iterable
from pathlib import Path

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.definitions.folder import Defined, DefinitionFolders
from mainspring.features.skills.skill_definition import FILE, Skill, read_skill


class SkillFolders(DefinitionFolders[Skill]):
    """All skills by name."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        super().__init__("skill", folders, _read, find_files=_find_files)


def _read(file: Path) -> tuple[Defined[Skill]]:
    try:
        skill = read_skill(file.parent)
    except CallerError as error:
        told = error.message
        raise InvalidRequest(told if told.startswith(str(file)) else f"{file}:1: {told}") from error
    return (Defined(skill.name, skill),)


def _find_files(folder: Path, problems: list[str]) -> list[str]:
    """The files of the folders in this one that mean to be skills."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        problems.append(f"{folder}: the folder cannot be read: {error.strerror}; name a folder that holds skills")
        return []
    if FILE in names:
        problems.append(f"{folder / FILE}:1: this folder is a skill itself; name the folder above it")
        return []
    places = [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return [os.path.join(place, FILE) for place in places if _is_skill(place, problems)]


def _is_skill(place: str, problems: list[str]) -> bool:
    if os.path.lexists(os.path.join(place, FILE)):
        return True
    try:
        found = [name for name in os.listdir(place) if name.lower() == FILE.lower()] if os.path.isdir(place) else []
    except OSError as error:
        problems.append(f"{place}: it cannot be read: {error.strerror}; make it readable")
        return False
    if found:
        problems.append(f"{os.path.join(place, found[0])}:1: the file of a skill is called {FILE}; rename it")
    return False
