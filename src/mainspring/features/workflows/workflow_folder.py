"""The workflows of the folders that the settings name, one in each file."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from mainspring.definitions.folder import Defined, DefinitionFolders
from mainspring.definitions.parsed_file import hint
from mainspring.definitions.reader import read_text
from mainspring.features.workflows.workflow_definition import (
    MOST_NESTING,
    MOST_STEPS,
    SubWorkflow,
    Workflow,
    list_steps,
    parse_workflow,
)


class WorkflowFolders(DefinitionFolders[Workflow]):
    """All workflows by name; one that needs a workflow that is not there, or contains itself, is left out."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        super().__init__("workflow", folders, _read, find_flaw=_find_flaw)

    def closure(self, name: str) -> dict[str, Workflow]:
        """The workflow and all that are carried out inside of it, by name. Raises `NotFound`."""
        found: dict[str, Workflow] = {}
        left = [name]
        while left:
            if (next_name := left.pop()) not in found:
                found[next_name] = self.get(next_name)
                left.extend(_inside(found[next_name]))
        return found


def _read(file: Path) -> tuple[Defined[Workflow]]:
    workflow = parse_workflow(file, read_text(file))
    return (Defined(workflow.name, workflow),)


def _find_flaw(name: str, known: Mapping[str, Workflow]) -> str | None:
    # First, because there may be as many paths as there are steps.
    if (steps := _count_steps(name, known)) > MOST_STEPS:
        return f"has {steps:,} steps with those of the workflows inside of it; at most {MOST_STEPS:,} are allowed"
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


def _count_steps(name: str, known: Mapping[str, Workflow]) -> int:
    """The steps of a workflow and of all inside of it, as deep as they may nest."""
    total, level = 0, Counter({name: 1})
    for _ in range(MOST_NESTING):
        inner: Counter[str] = Counter()
        for each, times in level.items():
            steps = list_steps(known[each].steps)
            total += times * len(steps)
            for step in steps:
                if isinstance(step, SubWorkflow) and step.workflow in known:
                    inner[step.workflow] += times
        level = inner
    return total


def _inside(workflow: Workflow) -> list[str]:
    return list(dict.fromkeys([step.workflow for step in list_steps(workflow.steps) if isinstance(step, SubWorkflow)]))
