"""What happens in a workflow run. Every event is durable before anything else is done, and before anybody is shown it."""

from typing import Any, Literal

from msgspec import Struct

from mainspring.core.items import Json

Status = Literal["success", "failed", "partial", "skipped", "cancelled"]


class WorkflowStarted(Struct, frozen=True, tag_field="type", tag="workflow_started"):
    """The run begins. `driver` is the process that carries it out."""

    workflow: str
    inputs: Json = {}
    dry_run: bool = False
    driver: str = ""


class WorkflowResumed(Struct, frozen=True, tag_field="type", tag="workflow_resumed"):
    """Another process has taken the run up; the time since the last event does not count."""

    driver: str = ""


class StepStarted(Struct, frozen=True, tag_field="type", tag="step_started"):
    """`run_id` is the run of the engine that does the work, if the step needs one; another attempt is another run."""

    step: str
    action: str
    attempt: int = 1
    run_id: str = ""


class StepWaiting(Struct, frozen=True, tag_field="type", tag="step_waiting"):
    """The step waits for a person, who has to answer these approvals; none says that it goes on."""

    step: str
    approvals: tuple[str, ...] = ()


class StepCompleted(Struct, frozen=True, tag_field="type", tag="step_completed"):
    step: str
    output: Any = None
    outputs: Json = {}
    seconds: float = 0.0


class StepFailed(Struct, frozen=True, tag_field="type", tag="step_failed"):
    step: str
    error: str
    attempt: int = 1


class StepSkipped(Struct, frozen=True, tag_field="type", tag="step_skipped"):
    step: str
    reason: str


class StepRetrying(Struct, frozen=True, tag_field="type", tag="step_retrying"):
    """The step has failed and is tried again after `delay` seconds; `attempt` is the number of the next attempt."""

    step: str
    attempt: int
    error: str
    delay: float


class WorkflowCompleted(Struct, frozen=True, tag_field="type", tag="workflow_completed"):
    status: Status
    outputs: Json = {}


class WorkflowFailed(Struct, frozen=True, tag_field="type", tag="workflow_failed"):
    error: str


class WorkflowCancelled(Struct, frozen=True, tag_field="type", tag="workflow_cancelled"):
    pass


WorkflowLogEvent = (
    WorkflowStarted | WorkflowResumed | StepStarted | StepWaiting | StepCompleted | StepFailed | StepSkipped | StepRetrying
    | WorkflowCompleted | WorkflowFailed | WorkflowCancelled
)  # fmt: skip


class WorkflowRecord(Struct, frozen=True):
    """An event with its place in the log, counted from 0, and the moment it was recorded (seconds since 1970)."""

    seq: int
    at: float
    event: WorkflowLogEvent
