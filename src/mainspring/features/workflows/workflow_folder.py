"""The workflows of the folders that the settings name, one in each file.

A workflow that is broken is reported and left out, as are those that need it; the others are there. Files are looked at whenever
somebody asks, and read again when they have changed.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from logging import getLogger
from pathlib import Path

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.definitions.parsed_file import hint
from mainspring.definitions.reader import files_in, read_text
from mainspring.features.workflows.workflow_definition import MOST_NESTING, SubWorkflow, Workflow, every_step, parse

log = getLogger(__name__)

Stamp = tuple[tuple[Path, int, int], ...]


class WorkflowFolders:
    """All workflows by name, and what is wrong with the others. Both are as the files are now."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._folders = tuple(dict.fromkeys([folder.resolve() for folder in folders]))
        self._stamp: Stamp | None = None
        self._workflows: Mapping[str, Workflow] = {}
        self._problems: tuple[str, ...] = ()

    @property
    def workflows(self) -> Mapping[str, Workflow]:
        self._refresh()
        return self._workflows

    @property
    def problems(self) -> tuple[str, ...]:
        self._refresh()
        return self._problems

    def get(self, name: str) -> Workflow:
        """Raises `NotFound`."""
        known = self.workflows
        if name not in known:
            told = f"there is no workflow `{name[:80]}`; {hint(name, sorted(known))}"
            raise NotFound(f"{told}; left out: {'; '.join(self._problems)}" if self._problems else told, param="name")
        return known[name]

    def closure(self, name: str) -> dict[str, Workflow]:
        """The workflow and all that are carried out inside of it, by name. Raises `NotFound`."""
        found: dict[str, Workflow] = {}
        left = [name]
        while left:
            if (next_name := left.pop()) not in found:
                found[next_name] = self.get(next_name)
                left.extend(_inside(found[next_name]))
        return found

    def _refresh(self) -> None:
        files: list[Path] = []
        problems: list[str] = []
        for folder in self._folders:
            try:
                files += files_in(folder)
            except InvalidRequest as error:
                problems.append(error.message)
        stamp = _stamp(files)
        if stamp == self._stamp and not problems:
            return
        found = _read(files, problems)
        self._workflows = _complete(found, problems)
        for problem in problems:
            if problem not in self._problems:
                log.warning("a workflow is left out: %s", problem)
        self._problems, self._stamp = tuple(problems), stamp


def _stamp(files: Iterable[Path]) -> Stamp:
    """What tells files from what they were."""
    found = []
    for file in files:
        with suppress(OSError):  # it has gone since; reading it will say so
            stat = file.stat()
            found.append((file, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def _read(files: Iterable[Path], problems: list[str]) -> dict[str, tuple[Workflow, Path]]:
    found: dict[str, tuple[Workflow, Path]] = {}
    for file in files:
        try:
            workflow = parse(file, read_text(file))
        except InvalidRequest as error:
            problems.append(error.message)
            continue
        if workflow.name in found:
            problems.append(f"{file}:1: there is a workflow `{workflow.name}` already, in {found[workflow.name][1]}; rename one")
        else:
            found[workflow.name] = (workflow, file)
    return found


def _complete(found: Mapping[str, tuple[Workflow, Path]], problems: list[str]) -> dict[str, Workflow]:
    """Those whose sub-workflows are all there, and that do not contain themselves."""
    left = {name: workflow for name, (workflow, _) in found.items()}
    while True:
        broken = {name: why for name, workflow in left.items() if (why := _flaw(name, left)) is not None}
        if not broken:
            return left
        problems.extend([f"{found[name][1]}:1: workflow `{name}` {why}" for name, why in broken.items()])
        left = {name: workflow for name, workflow in left.items() if name not in broken}


def _flaw(name: str, known: Mapping[str, Workflow]) -> str | None:
    paths: list[tuple[str, ...]] = [(name,)]
    while paths:
        path = paths.pop()
        for inner in _inside(known[path[-1]]):
            if inner not in known:
                if len(path) > 1:
                    continue  # it is that one's flaw, and is told of it
                return f"needs the workflow `{inner}`, which is not there; {hint(inner, sorted(known))}"
            if inner in path:
                return f"contains itself: {' -> '.join((*path, inner))}"
            if len(path) >= MOST_NESTING:
                return f"nests more than {MOST_NESTING} workflows: {' -> '.join((*path, inner))}"
            paths.append((*path, inner))
    return None


def _inside(workflow: Workflow) -> list[str]:
    return list(dict.fromkeys([step.workflow for step in every_step(workflow.steps) if isinstance(step, SubWorkflow)]))
