"""The steps of a workflow on the screen: as a graph, and while they are carried out."""

import shlex
from collections.abc import Iterator

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.output import clean, say, write_lines
from mainspring.core.items import to_json
from mainspring.core.text import shorten_line
from mainspring.features.workflows.graph import find_predecessors, group_levels
from mainspring.features.workflows.view import render_event
from mainspring.features.workflows.workflow_definition import (
    Conditional,
    GroupChat,
    Handoff,
    HttpRequest,
    InvokeAgent,
    Route,
    RunCommand,
    Step,
    SubWorkflow,
    Workflow,
    list_groups,
)
from mainspring.features.workflows.workflow_run import (
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepSkipped,
    StepStarted,
    StepWaiting,
    WorkflowCancelled,
    WorkflowRecord,
    WorkflowResumed,
    WorkflowRun,
    WorkflowStarted,
)  # fmt: skip
from mainspring.storage.location import Location


def draw_steps(workflow: Workflow) -> Iterator[str]:
    """The workflow as lines of text: its steps by the earliest moment at which each can begin."""
    yield f"{workflow.name} {workflow.version}  {workflow.description}".rstrip()
    for name, parameter in workflow.inputs.items():
        needed = "required" if parameter.required else f"default {parameter.default!r}"
        yield f"  > {name}  {parameter.type}, {needed}  {parameter.description}".rstrip()
    after = find_predecessors(workflow.steps, workflow.execution.mode)
    steps = {step.id: step for step in workflow.steps}
    for number, ids in enumerate(group_levels(after), start=1):
        for place, id in enumerate(ids):
            mark = f"{number:>3}" if place == 0 else "   "
            branch = "───" if len(ids) == 1 else "┬──" if place == 0 else "└──" if place == len(ids) - 1 else "├──"
            behind = f"  after {', '.join(sorted(after[id]))}" if after[id] else ""
            yield f"{mark} {branch} {_describe_step(steps[id])}{behind}"
            yield from _draw_inner_steps(steps[id], "    │     " if place < len(ids) - 1 else "          ")
    for name in workflow.outputs:
        yield f"  < {name}"


def _draw_inner_steps(step: Step, indent: str) -> Iterator[str]:
    for key, group in list_groups(step):
        for place, each in enumerate(group):
            label = f"{key}: " if place == 0 else "      "
            yield f"{indent}{label if isinstance(step, Conditional) else ''}{_describe_step(each)}"
            yield from _draw_inner_steps(each, indent + "    ")


def _describe_step(step: Step) -> str:
    action = str(type(step).__struct_config__.tag)
    match step:
        case InvokeAgent() | Handoff():
            action += f" {step.agent}"
        case Route() | GroupChat():
            action += f" {', '.join(step.agents)}"
        case RunCommand():
            action += f" `{' '.join(step.command.split())[:60]}`"
        case HttpRequest():
            action += f" {step.method} {step.url[:60]}"
        case SubWorkflow():
            action += f" {step.workflow}"
        case _:
            pass
    return f"{step.id}  {action}" + (f"  if {step.condition}" if step.condition is not None else "")


class StepScreen:
    """Shows a run live. Raises `BrokenPipeError` when the reader is gone."""

    def __init__(self, run_id: str, database: Location, *, as_json: bool) -> None:
        self._run_id = run_id
        self._database = database
        self._writer = None if as_json else ConsoleWriter()

    def draw(self, record: WorkflowRecord) -> None:
        if self._writer is None:
            write_lines([render_event(record)])
            return
        match record.event:
            case WorkflowStarted(workflow):
                self._line(f"» {workflow}  {self._run_id}", "bold")
            case WorkflowResumed():
                self._line("» taken up again", "bold")
            case StepStarted(step, action, attempt):
                self._line(f"→ {step}  {action}" + (f"  attempt {attempt}" if attempt > 1 else ""), "dim")
            case StepWaiting(step, approvals) if approvals:
                self._line(f"? {step}  waits for a person", "yellow")
                for id in approvals:
                    self._line(f"    mainspring approvals approve {id} --database {shlex.quote(str(self._database))}", "yellow")
            case StepCompleted(step, output, _, seconds):
                self._line(f"✓ {step}  {seconds:.1f} s  {_shorten(output)}", "green")
            case StepFailed(step, error):
                self._line(f"✗ {step}  {error}", "red")
            case StepRetrying(step, attempt, error, delay):
                self._line(f"· {step}  {error}; attempt {attempt} in {delay:g} s", "yellow")
            case StepSkipped(step, reason):
                self._line(f"· {step}  skipped: {reason}", "dim")
            case WorkflowCancelled():
                self._line("✗ cancelled", "red")
            case _:
                pass

    def end(self, run: WorkflowRun) -> None:
        """Prints the outputs to standard output, and the status to standard error."""
        if self._writer is None:
            return
        if run.outputs:
            self._line(to_json(run.outputs), "")
        say(f"{run.order.workflow}: {run.status}" + (f": {run.error}" if run.error else ""))

    def _line(self, text: str, style: str) -> None:
        assert self._writer is not None
        with self._writer:
            self._writer.line(clean(text), style)


def _shorten(value: object) -> str:
    return shorten_line(value if isinstance(value, str) else to_json(value), 80, mark="…")
