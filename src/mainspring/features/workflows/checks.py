"""What a definition must be beyond its form: ids that are unique, expressions that can be read, an order without cycles."""

import re
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from typing import Final

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parameters import find_flaw
from mainspring.definitions.parsed_file import ParsedFile, Place, hint
from mainspring.features.workflows.expressions import find_expression_reads, find_reads
from mainspring.features.workflows.graph import EXPRESSIONS, find_cycle, find_needed, list_expressions, order_steps
from mainspring.features.workflows.workflow_definition import (
    NAMES,
    Conditional,
    ExecuteCode,
    Group,
    GroupChat,
    HttpRequest,
    Route,
    RunCommand,
    Step,
    Validate,
    Wait,
    Workflow,
    list_groups,
    list_steps,
)  # fmt: skip
from mainspring.tools.schema import compile_schema

STEP_FIELDS: Final = ("output", "outputs", "status", "error")
_VARIABLE: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")


def check_workflow(workflow: Workflow, parsed: ParsedFile) -> None:
    """Finds what is wrong with a definition that has the right form; `parsed` is told."""
    _Check(workflow, parsed).run()


class _Check:
    def __init__(self, workflow: Workflow, parsed: ParsedFile) -> None:
        self._workflow = workflow
        self._parsed = parsed
        self._ids = [step.id for step in list_steps(workflow.steps)]

    def run(self) -> None:
        if not self._workflow.steps:
            self._parsed.add_problem(("steps",), "a workflow needs at least one step")
        for name, parameter in self._workflow.inputs.items():
            if parameter.default is not None and (why := find_flaw(parameter, parameter.default)) is not None:
                self._parsed.add_problem(("inputs", name, "default"), f"the default of `{name}` {why}")
        for name, value in self._workflow.outputs.items():
            self._reading(("outputs", name), value, NAMES[:2])
        seen: set[str] = set()
        for step, place in _walk_steps(self._workflow.steps, ("steps",)):
            if step.id in seen:
                self._parsed.add_problem((*place, "id"), f"there is a step `{step.id}` already; give each its own id")
            seen.add(step.id)
            self._step(step, place)
        if not self._parsed.problems:
            self._order(self._workflow.steps, ("steps",), self._workflow.execution.mode)

    def _step(self, step: Step, place: Place) -> None:
        for key, value in list_expressions(step).items():
            names = NAMES if key == "outputs" else (*NAMES[:2], NAMES[3])
            self._reading((*place, key), value, names, is_bare=key in EXPRESSIONS)
        for needed in step.depends_on:
            if needed not in self._ids:
                self._parsed.add_problem((*place, "depends_on"), f"there is no step `{needed}`; {hint(needed, self._ids)}")
        if isinstance(step, Group) and step.retry.max_attempts > 1:
            self._parsed.add_problem((*place, "retry"), "a group of steps is not tried again as a whole; let its steps retry")
        self._kind(step, place)

    def _kind(self, step: Step, place: Place) -> None:
        match step:
            case RunCommand():
                if "{{" in step.command:
                    told = 'a command is not put together from values; pass them as `inputs` and write "$name" in the command'
                    self._parsed.add_problem((*place, "command"), told)
                for name in step.inputs:
                    if not _VARIABLE.fullmatch(name):
                        told = f"the input `{name}` becomes a variable of the shell; use small letters, digits and `_`"
                        self._parsed.add_problem((*place, "inputs", name), told)
            case ExecuteCode():
                for name in step.inputs:
                    if not name.isidentifier() or iskeyword(name):
                        told = f"the input `{name}` becomes a variable of the code; use letters, digits and `_`"
                        self._parsed.add_problem((*place, "inputs", name), told)
            case Route() | GroupChat() if len(set(step.agents)) < len(step.agents):
                self._parsed.add_problem((*place, "agents"), "an agent is named twice; name each once")
            case Validate():
                self._validate(step, place)
            case Wait() if (step.seconds is None) == (step.until is None):
                self._parsed.add_problem(place, "`wait` takes either `seconds` or `until`")
            case Conditional() if not step.then and not step.otherwise:
                self._parsed.add_problem(place, "`conditional` needs steps under `then` or `else`")
            case HttpRequest(method="GET" | "HEAD", body=body) if body is not None:
                self._parsed.add_problem((*place, "body"), f"a {step.method} request has no body; use POST, or leave it out")
            case _:
                pass

    def _validate(self, step: Validate, place: Place) -> None:
        if step.schema is None and step.expression is None:
            self._parsed.add_problem(place, "`validate` needs a `schema` or an `expression`")
        if step.schema is not None:
            try:
                compile_schema(step.schema)
            except ValueError as error:
                self._parsed.add_problem((*place, "schema"), f"this is no JSON Schema: {error}")

    def _reading(self, place: Place, value: object, names: Sequence[str], *, is_bare: bool = False) -> None:
        try:
            reading = find_expression_reads(str(value)) if is_bare else find_reads(value)
        except InvalidRequest as error:
            self._parsed.add_problem(place, error.message)
            return
        for name in sorted(reading.names - {*names, "range"}):
            self._parsed.add_problem(place, f"`{name}` is not known here; {hint(name, names)}")
        for id in sorted(reading.steps - set(self._ids)):
            # `steps.my-step` is a subtraction.
            cut = next((each for each in self._ids if each.startswith(f"{id}-")), None)
            meant = hint(id, self._ids) if cut is None else f"for one with a hyphen write `steps['{cut}']`"
            self._parsed.add_problem(place, f"there is no step `{id}`; {meant}")
        for id, field in sorted(reading.fields):
            if id in self._ids and field not in (*STEP_FIELDS, *dir(dict)):
                told = f"`steps.{id}.{field}` is not there: a step has {', '.join([f'`{name}`' for name in STEP_FIELDS])}"
                self._parsed.add_problem(place, f"{told}; for what it gave write `steps.{id}.output.{field}`")

    def _order(self, steps: tuple[Step, ...], place: Place, mode: str, around: tuple[str, ...] = ()) -> None:
        """The order in which steps of one group can be carried out; `around` are those that they are inside of."""
        after = order_steps(steps)
        for index, step in enumerate(steps):
            for id in sorted(find_needed(step).intersection(around)):
                self._parsed.add_problem((*place, index), f"`{step.id}` is inside of `{id}` and cannot wait for it")
        if (cycle := find_cycle(after)) is not None:
            first = next(index for index, step in enumerate(steps) if step.id == cycle[0])
            self._parsed.add_problem((*place, first), f"these steps wait for each other: {' -> '.join([*cycle, cycle[0]])}")
        elif mode != "dependency-aware":
            self._keeps_to(steps, place, mode)
        for index, step in enumerate(steps):
            for key, group in list_groups(step):
                self._order(
                    group, (*place, index, key), "sequential" if isinstance(step, Conditional) else "parallel", (*around, step.id)
                )

    def _keeps_to(self, steps: tuple[Step, ...], place: Place, mode: str) -> None:
        after, seen = order_steps(steps), set[str]()
        for index, step in enumerate(steps):
            for needed in sorted(after[step.id]):
                if mode == "parallel":
                    told = f"`{step.id}` needs `{needed}`, but all steps here run at once; use the mode dependency-aware"
                    self._parsed.add_problem((*place, index), told)
                elif needed not in seen:
                    self._parsed.add_problem((*place, index), f"`{step.id}` needs `{needed}`, which comes later; move it up")
            seen.add(step.id)


def _walk_steps(steps: tuple[Step, ...], place: Place) -> Iterator[tuple[Step, Place]]:
    for index, step in enumerate(steps):
        yield step, (*place, index)
        for key, group in list_groups(step):
            yield from _walk_steps(group, (*place, index, key))
