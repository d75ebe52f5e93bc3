"""Which step comes after which: by what it says, and by what it reads."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.workflows.expressions import find_expression_reads, find_reads
from mainspring.features.workflows.workflow_definition import (
    Conditional,
    ExecuteCode,
    GroupChat,
    Handoff,
    HttpRequest,
    InvokeAgent,
    Mode,
    Route,
    RunCommand,
    Step,
    SubWorkflow,
    Transform,
    Validate,
    Wait,
    list_steps,
)  # fmt: skip

After = Mapping[str, frozenset[str]]

EXPRESSIONS: Final = ("condition", "if", "until", "expression")
"""The keys whose values are expressions with or without `{{ }}`."""


def list_expressions(step: Step) -> Json:
    """Everything in a step that may be an expression, by its key. Steps inside of it have their own."""
    found: dict[str, Any] = {"outputs": step.outputs, "condition": step.condition}
    match step:
        case InvokeAgent():
            found |= {"agent": step.agent, "inputs": step.inputs, "model": step.model}
        case RunCommand():
            found |= {"inputs": step.inputs, "working_dir": step.working_dir}
        case SubWorkflow() | ExecuteCode():
            found |= {"inputs": step.inputs}
        case Route() | GroupChat():
            found |= {"task": step.task, "agents": step.agents, "model": step.model}
        case Handoff():
            found |= {
                "agent": step.agent, "objective": step.objective, "source": step.source, "context": step.context,
                "data": step.data, "model": step.model,
            }  # fmt: skip
        case Validate():
            found |= {"value": step.value, "expression": step.expression}
        case Transform():
            found |= {"value": step.value}
        case Conditional():
            found |= {"if": step.test}
        case Wait():
            found |= {"until": step.until}
        case HttpRequest():
            found |= {"url": step.url, "headers": step.headers, "body": step.body}
        case _:
            pass
    return {key: value for key, value in found.items() if value not in (None, True, False)}


def find_needed(step: Step) -> frozenset[str]:
    """The steps whose results this one, or one inside of it, waits for or reads. What a `wait` looks at again and again, until it
    is as wanted, it does not need."""
    found: set[str] = set()
    for each in list_steps((step,)):
        found |= set(each.depends_on)
        for key, value in list_expressions(each).items():
            if key == "until":
                continue
            found |= (find_expression_reads(str(value)) if key in EXPRESSIONS else find_reads(value)).steps
    return frozenset(found)


def find_handled(step: Step) -> frozenset[str]:
    """The steps whose failure this one deals with: its condition reads their `status` or `error`."""
    tests = [step.condition, step.test if isinstance(step, Conditional) else None]
    return frozenset[str]().union(*[find_expression_reads(test).outcomes for test in tests if isinstance(test, str)])


def order_steps(steps: tuple[Step, ...], wanted: Callable[[Step], frozenset[str]] = find_needed) -> After:
    """For each step of a group, the others of the group that come before it. A step inside of another stands for that one."""
    owner = {each.id: step.id for step in steps for each in list_steps((step,))}
    return {step.id: frozenset({owner[id] for id in wanted(step) if id in owner} - {step.id}) for step in steps}


def sort_steps(steps: tuple[Step, ...]) -> list[Step]:
    """The steps, none of them before one that it needs."""
    known = {step.id: step for step in steps}
    return [known[id] for level in group_levels(order_steps(steps)) for id in level]


class Losses:
    """What a failed step takes with it: those that need it, and those that need them; without `goes_on` all that has not begun.

    A step that handles a failure is not lost to it.
    """

    def __init__(self, steps: tuple[Step, ...], status: Callable[[str], str | None], *, goes_on: bool) -> None:
        self._needed, self._handled = order_steps(steps), order_steps(steps, find_handled)
        self._goes_on = goes_on
        self._lost: dict[str, str] = {}
        for step in sort_steps(steps):
            match status(step.id):
                case "failed":
                    self._lost[step.id] = step.id
                case "skipped" if (cause := self.cause(step.id)) is not None:
                    self._lost[step.id] = cause

    def __bool__(self) -> bool:
        return bool(self._lost)

    def __contains__(self, step: str) -> bool:
        return step in self._lost

    @property
    def first(self) -> str:
        """The step that failed first."""
        return next(iter(self._lost.values()))

    def add(self, step: str, cause: str) -> None:
        self._lost.setdefault(step, cause)

    def handles_some(self, step: str) -> bool:
        return not self._handled[step].isdisjoint(self._lost)

    def cause(self, step: str) -> str | None:
        """The failed step that keeps this one from being begun; None if nothing does."""
        for id in sorted(self._needed[step] - self._handled[step]):
            if id in self._lost:
                return self._lost[id]
        return None if self._goes_on or not self._lost or self.handles_some(step) else self.first


def find_predecessors(steps: tuple[Step, ...], mode: Mode) -> After:
    """What each step waits for in this mode."""
    match mode:
        case "dependency-aware":
            return order_steps(steps)
        case "parallel":
            return {step.id: frozenset() for step in steps}
        case "sequential":
            ids = [step.id for step in steps]
            return {id: frozenset(ids[index - 1 : index] if index else ()) for index, id in enumerate(ids)}


def group_levels(after: After) -> list[list[str]]:
    """The steps in groups, each of which can begin when those before it are done. Raises `InvalidRequest` for a cycle."""
    left, done, found = dict(after), set[str](), list[list[str]]()
    while left:
        ready = [id for id, needed in left.items() if needed <= done]
        if not ready:
            cycle = find_cycle(left) or ()
            raise InvalidRequest(f"these steps wait for each other: {' -> '.join([*cycle, *cycle[:1]])}")
        found.append(ready)
        done |= set(ready)
        left = {id: needed for id, needed in left.items() if id not in done}
    return found


def find_cycle(after: After) -> tuple[str, ...] | None:
    """Steps that wait for each other in a ring, None if there are none."""
    done: set[str] = set()
    for start in after:
        path: list[str] = []
        todo = [(start, False)]
        while todo:
            id, is_left = todo.pop()
            if is_left:
                path.pop()
                done.add(id)
            elif id in path:
                return tuple(path[path.index(id) :])
            elif id not in done:
                path.append(id)
                todo.append((id, True))
                todo.extend([(needed, False) for needed in sorted(after.get(id, ())) if needed in after])
    return None
