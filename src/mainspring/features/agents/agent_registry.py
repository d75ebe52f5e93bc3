"""The agents of the folders that the settings name, each a file of YAML or JSON.

A definition that is broken is reported and left out, and so is one whose name is taken, that needs an agent which is not there,
or a skill. Whenever agents are asked for, files that have changed are read again; a new version that is broken does not replace
the old one, which stays until the file is mended or gone.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from logging import getLogger
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.definitions.parsed_file import hint
from mainspring.definitions.reader import SUFFIXES
from mainspring.features.agents.agent_definition import AgentDefinition, read_definition

log = getLogger(__name__)

KEPT: Final = "; the last version that was right stays in use"

Stamp = tuple[int, int, int, int]


class AgentRegistry:
    """All agents by name, and what is wrong with the others. `skills` says which skills there are."""

    def __init__(self, folders: Iterable[Path] = (), *, skills: Callable[[], Collection[str]] = tuple) -> None:
        self.folders = tuple(dict.fromkeys([folder.resolve() for folder in folders]))
        self._skills = skills
        self._seen: object = None
        self._known: dict[str, _Read] = {}
        self._agents: Mapping[str, AgentDefinition] = {}
        self._problems: tuple[str, ...] = ()

    @property
    def agents(self) -> Mapping[str, AgentDefinition]:
        """The agents as their files are now, by name."""
        self.refresh()
        return self._agents

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the files as they are now."""
        self.refresh()
        return self._problems

    def get(self, name: str) -> AgentDefinition:
        """Raises `NotFound`."""
        if (found := self.agents.get(name)) is not None:
            return found
        broken = "; some definitions cannot be used: `mainspring agents list` says why" if self._problems else ""
        raise NotFound(f"there is no agent `{name[:80]}`; {hint(name, tuple(self._agents))}{broken}", param="name")

    def refresh(self) -> None:
        """Looks at every file's times and size, and reads those that have changed. What is wrong with one is logged, once."""
        problems: list[str] = []
        stamps = {file: stamp for folder in self.folders for file, stamp in _files(folder, problems)}
        seen = (stamps, tuple(problems), tuple(sorted(self._skills())))
        if seen == self._seen:
            return
        self._seen = seen
        self._known = {file: self._read(file, stamp) for file, stamp in stamps.items()}
        problems += [read.problem for read in self._known.values() if read.problem]
        agents = self._complete(self._named(problems), problems)
        for problem in problems:
            if problem not in self._problems:
                log.warning("an agent is not as its file says: %s", problem)
        self._agents, self._problems = MappingProxyType(agents), tuple(problems)

    def _read(self, file: str, stamp: Stamp) -> "_Read":
        known = self._known.get(file)
        if known is not None and known.stamp == stamp:
            return known
        try:
            return _Read(stamp, read_definition(Path(file)))
        except InvalidRequest as error:
            before = known.definition if known is not None else None
            return _Read(stamp, before, error.message if before is None else f"{error.message}{KEPT}")

    def _named(self, problems: list[str]) -> dict[str, "_Found"]:
        found: dict[str, _Found] = {}
        for file, read in self._known.items():
            if read.definition is None:
                continue
            first = found.setdefault(read.definition.name, _Found(file, read.definition))
            if first.file != file:
                problems.append(f"{file}:1: there is an agent `{read.definition.name}` already, in {first.file}; rename one")
        return found

    def _complete(self, found: "dict[str, _Found]", problems: list[str]) -> dict[str, AgentDefinition]:
        """Those that have all they need. Leaving one out may leave another without what it needs."""
        left, skills = dict(found), frozenset(self._skills())
        while lacking := {name: why for name, each in left.items() if (why := _lack(each.definition, left, skills))}:
            problems += [f"{left[name].file}:1: agent `{name}` {why}" for name, why in lacking.items()]
            left = {name: each for name, each in left.items() if name not in lacking}
        return {name: left[name].definition for name in sorted(left)}


class _Read(Struct, frozen=True):
    """What reading a file gave, and what it looked like before."""

    stamp: Stamp
    definition: AgentDefinition | None = None
    problem: str = ""


class _Found(Struct, frozen=True):
    file: str
    definition: AgentDefinition


def _lack(definition: AgentDefinition, agents: Collection[str], skills: Collection[str]) -> str | None:
    needed = [each.agent for each in definition.dependencies if not each.optional]
    if (missing := next((name for name in needed if name not in agents), None)) is not None:
        return f"needs the agent `{missing}`, which is not there; define it, or say `optional: true`"
    if (missing := next((name for name in definition.skills if name not in skills), None)) is not None:
        return f"needs the skill `{missing}`, which is not there; add it to a folder of skills, or take it out"
    return None


def _files(folder: Path, problems: list[str]) -> list[tuple[str, Stamp]]:
    """The definitions in a folder. What cannot be looked at is a problem of its own, and of no other file."""
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if entry.name.endswith(SUFFIXES) and not entry.name.startswith(".")]
    except OSError as error:
        problems.append(f"{folder}: there are no agents to be read: {error.strerror}; name a folder that holds agents")
        return []
    found: list[tuple[str, Stamp]] = []
    for path in sorted(paths):
        try:
            stat = os.stat(path)
        except OSError as error:
            if os.path.lexists(path):  # else it is gone by now
                problems.append(f"{path}: it cannot be read: {error.strerror}; mend the link, or take it away")
            continue
        if S_ISREG(stat.st_mode):
            found.append((path, (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)))
        else:
            problems.append(f"{path}: it is no file; take it out of this folder, or rename it")
    return found
