"""A dry run: what a workflow would do, as far as that is known before anything runs. Pure.

Values that read only inputs are evaluated, so that mistakes in them are found; values that read results of steps stay as
written.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.prompts.prompts import PREFIX as PROMPT_PREFIX
from mainspring.features.workflows.expressions import find_expression_reads, find_reads, is_true, resolve_values_now
from mainspring.features.workflows.graph import EXPRESSIONS, list_expressions
from mainspring.features.workflows.workflow_definition import (
    Conditional,
    ExecuteCode,
    GroupChat,
    Handoff,
    HttpRequest,
    InvokeAgent,
    Route,
    RunCommand,
    Step,
    SubWorkflow,
    Workflow,
    complete_inputs,
    list_groups,
    list_steps,
)  # fmt: skip
from mainspring.features.workflows.workflow_run import StepFailed, StepSkipped, WorkflowLogEvent, WorkflowScope


def plan_dry_run(
    scope: WorkflowScope, run_id: str, definitions: Mapping[str, Workflow], agents: Collection[str]
) -> list[WorkflowLogEvent]:
    """An event for every step, sub-workflows included: what it would do, or why it would fail."""
    known: Json = {"inputs": scope.inputs, "workflow": {"name": scope.workflow.name, "run_id": run_id}}
    return list(_DryRun(run_id, definitions, agents).steps(scope.workflow.steps, scope.prefix, known))


def find_unknown_agent(name: str, known: Collection[str]) -> str | None:
    """Why there is no such agent; None if there is."""
    if name in known:
        return None
    return f"there is no agent `{name}`; known: {', '.join([f'`{each}`' for each in sorted(known)]) or 'none'}"


class _DryRun:
    def __init__(self, run_id: str, definitions: Mapping[str, Workflow], agents: Collection[str]) -> None:
        self._run_id = run_id
        self._definitions = definitions
        self._agents = agents

    def steps(self, steps: tuple[Step, ...], prefix: str, known: Json) -> Iterator[WorkflowLogEvent]:
        """`known` are the names that have values already."""
        for step in steps:
            key = f"{prefix}{step.id}"
            try:
                values = _evaluate(step, known)
                if values.get("condition") is False:
                    yield from _skip_all((step,), prefix, "its condition does not hold")
                    continue
                within = self._within(step, values)
                yield StepSkipped(key, f"dry run: {self._describe(step, values)}")
            except InvalidRequest as error:
                yield StepFailed(key, f"dry run: {error.message}")
                yield from _skip_all(
                    tuple([each for _, group in list_groups(step) for each in group]), prefix, f"`{step.id}` fails"
                )
                continue
            yield from self._inside(step, values, prefix, known)
            if within is not None:
                yield from self.steps(self._definitions[step.workflow].steps, f"{key}/", within)  # type: ignore[union-attr]

    def _inside(self, step: Step, values: Json, prefix: str, known: Json) -> Iterator[WorkflowLogEvent]:
        for name, group in list_groups(step):
            if isinstance(step, Conditional) and values.get("if") is (name == "else"):
                yield from _skip_all(group, prefix, f"the branch `{name}` is not taken")
            else:
                yield from self.steps(group, prefix, known)

    def _within(self, step: Step, values: Json) -> Json | None:
        """The known names inside of the sub-workflow of a step; None for other steps."""
        if not isinstance(step, SubWorkflow):
            return None
        workflow = self._definitions[step.workflow]
        names: Json = {"workflow": {"name": workflow.name, "run_id": self._run_id}}
        return names | ({"inputs": complete_inputs(workflow, values["inputs"])} if "inputs" in values else {})

    def _check_agents(self, names: Iterable[str]) -> None:
        """Raises `InvalidRequest` for an agent that is not there."""
        for name in names:
            if (why := find_unknown_agent(name, self._agents)) is not None:
                raise InvalidRequest(why)

    def _describe(self, step: Step, values: Json) -> str:
        match step:
            case InvokeAgent():
                # Whose prompts there are is known to the run alone.
                named = [values["agent"]] if "agent" in values else []
                self._check_agents([name for name in named if not name.startswith(PROMPT_PREFIX)])
                return f"would invoke agent `{values.get('agent', step.agent)}`"
            case Handoff():
                self._check_agents([values["agent"]] if "agent" in values else [])
                return f"would hand over to agent `{values.get('agent', step.agent)}`"
            case Route() | GroupChat():
                self._check_agents(values.get("agents", ()))
                does = "choose among" if isinstance(step, Route) else "have a talk of"
                return f"would {does} {', '.join([f'`{name}`' for name in step.agents])}"
            case ExecuteCode():
                return "would run Python code"
            case RunCommand():
                return f"would run `{step.command}`"
            case HttpRequest():
                return f"would send {step.method} {values.get('url', step.url)}"
            case SubWorkflow():
                return f"would carry out workflow `{step.workflow}`"
            case _:
                return f"would carry out the {type(step).__struct_config__.tag}"


def _evaluate(step: Step, known: Json) -> dict[str, Any]:
    """The values of a step that are known before it runs, by key. Raises `InvalidRequest`."""
    found: dict[str, Any] = {"inputs": {}} if isinstance(step, SubWorkflow) else {}
    for key, value in (list_expressions(step) | ({"condition": step.condition} if step.condition is False else {})).items():
        is_test = key in EXPRESSIONS and isinstance(value, str)
        reading = find_expression_reads(value) if is_test else find_reads(value)
        if reading.names <= {*known, "range"}:
            found[key] = is_true(value, known) if key in EXPRESSIONS else resolve_values_now(value, known)
        else:
            found.pop(key, None)
    if isinstance(step, Conditional) and isinstance(step.test, bool):
        found["if"] = step.test
    return found


def _skip_all(steps: tuple[Step, ...], prefix: str, why: str) -> Iterator[WorkflowLogEvent]:
    for each in list_steps(steps):
        yield StepSkipped(f"{prefix}{each.id}", f"dry run: {why}")
