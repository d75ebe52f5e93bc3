"""Workflows, their runs and events as the API and the command line show them."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.items import Json
from mainspring.features.workflows.graph import find_predecessors
from mainspring.features.workflows.workflow_definition import Workflow
from mainspring.features.workflows.workflow_run import Status, WorkflowRecord, WorkflowResumed, WorkflowRun, WorkflowStarted


class ShownWorkflow(Struct, frozen=True):
    """A workflow as it is defined, with every default. `after` has what each of its steps waits for."""

    name: str
    version: str
    description: str
    inputs: dict[str, Json]
    outputs: Json
    execution: Json
    steps: tuple[Json, ...]
    after: dict[str, tuple[str, ...]]
    object: str = "workflow"


class ShownStep(Struct, frozen=True):
    """A step of a run. `run_id` is the response that did the work, if there is one; `error` is also why a step was skipped.
    `approvals` are what it waits for: see `/v1/approvals`."""

    id: str
    action: str
    status: str
    attempt: int
    output: Any
    outputs: Json
    error: str | None
    run_id: str | None
    started_at: float | None
    ended_at: float | None
    approvals: tuple[str, ...]


class ShownRun(Struct, frozen=True):
    """A run of a workflow so far; `steps` are those that have started or were skipped."""

    id: str
    workflow: str
    status: Status | str
    inputs: Json
    outputs: Json
    error: str | None
    dry_run: bool
    created_at: float
    ended_at: float | None
    last_event: int
    steps: tuple[ShownStep, ...]
    object: str = "workflow.run"


def render_workflow(workflow: Workflow) -> ShownWorkflow:
    after = find_predecessors(workflow.steps, workflow.execution.mode)
    shown = {**msgspec.to_builtins(workflow), "after": {id: sorted(before) for id, before in after.items()}}
    return msgspec.convert(shown, ShownWorkflow)


def render_run(run: WorkflowRun) -> ShownRun:
    order = run.order
    return ShownRun(
        id=run.id,
        workflow=order.workflow,
        status=run.status,
        inputs=order.inputs,
        outputs=run.outputs,
        error=run.error,
        dry_run=order.dry_run,
        created_at=order.created_at,
        ended_at=run.clock if run.has_ended else None,
        last_event=run.seq - 1,
        steps=tuple([ShownStep(id=key, **{**asdict(state), "run_id": state.run_id or None}) for key, state in run.steps.items()]),
    )


def render_event(record: WorkflowRecord) -> Json:
    """An event as a flat object, with its number. The process that drives the run is left out."""
    event: Json = msgspec.to_builtins(record.event)
    if isinstance(record.event, WorkflowStarted | WorkflowResumed):
        del event["driver"]
    return {"type": event.pop("type"), "sequence_number": record.seq, "at": record.at, **event}
