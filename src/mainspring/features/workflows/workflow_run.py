"""A workflow run: the events of its log, and the state that they fold into. Pure: the same log always makes the same run.

Every event is durable before anything else is done, and before any reader sees it.
"""

from typing import Any, Final, Literal, assert_never, get_args

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import Malformed
from mainspring.core.items import Json
from mainspring.core.spec import Caller
from mainspring.features.workflows.workflow_definition import Group, Workflow

Status = Literal["success", "failed", "partial", "skipped", "cancelled"]


class WorkflowStarted(Struct, frozen=True, tag_field="type", tag="workflow_started"):
    """The run starts. `driver` is the process that drives it."""

    workflow: str
    inputs: Json = {}
    dry_run: bool = False
    driver: str = ""


class WorkflowResumed(Struct, frozen=True, tag_field="type", tag="workflow_resumed"):
    """Another process has taken over the run; the time since the last event does not count."""

    driver: str = ""


class StepStarted(Struct, frozen=True, tag_field="type", tag="step_started"):
    """`run_id` is the run of the engine that does the work, if the step needs one; each attempt has its own."""

    step: str
    action: str
    attempt: int = 1
    run_id: str = ""


class StepWaiting(Struct, frozen=True, tag_field="type", tag="step_waiting"):
    """The step waits for a person to answer these approvals; an empty tuple says that it goes on."""

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
    """The step has failed and is retried after `delay` seconds; `attempt` is the number of the next attempt."""

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
    """An event with its number in the log, counted from 0, and its time in seconds since 1970."""

    seq: int
    at: float
    event: WorkflowLogEvent


StepStatus = Literal["running", "retrying", "success", "failed", "skipped"]

GROUPS: Final = tuple([str(kind.__struct_config__.tag) for kind in get_args(Group)])


class WorkflowOrder(Struct, frozen=True):
    """A complete order: the definition and those of all sub-workflows, as they were when the run started."""

    id: str
    workflow: str
    definitions: dict[str, Workflow]
    inputs: Json
    created_at: float
    dry_run: bool = False
    tenant: str = ""
    caller: Caller = Caller()
    traceparent: str = ""

    @property
    def definition(self) -> Workflow:
        return self.definitions[self.workflow]


class WorkflowScope(Struct, frozen=True):
    """A workflow in progress: the whole, or a sub-workflow. `prefix` stands before the ids of its steps."""

    workflow: Workflow
    inputs: Json
    prefix: str = ""

    def key(self, id: str) -> str:
        return f"{self.prefix}{id}"


class StepState(Struct, frozen=True):
    """The state of a step. `attempt` is the current one, the next one, or the last one; `approvals` are what it waits for."""

    status: StepStatus
    action: str = ""
    attempt: int = 1
    run_id: str = ""
    output: Any = None
    outputs: Json = {}
    error: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    approvals: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.status not in ("running", "retrying")


class WorkflowRun(Struct, frozen=True):
    """The state of a run after `seq` events. `steps` are by key: the id, after those of the sub-workflows around it. `idle` is
    the time that no process drove it."""

    order: WorkflowOrder
    seq: int = 0
    driver: str = ""
    status: Status | Literal["running"] = "running"
    steps: dict[str, StepState] = {}
    outputs: Json = {}
    error: str | None = None
    clock: float = 0.0
    idle: float = 0.0

    @property
    def id(self) -> str:
        return self.order.id

    @property
    def has_ended(self) -> bool:
        return self.status != "running"

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for a person, and nothing else is in progress."""
        under_way = [state for state in self.steps.values() if not state.has_ended and state.action not in GROUPS]
        return bool(under_way) and all(state.approvals for state in under_way)

    @property
    def elapsed(self) -> float:
        """Seconds that a process has driven it, up to the last event."""
        return self.clock - self.order.created_at - self.idle


def fold_workflow(run: WorkflowRun, record: WorkflowRecord) -> WorkflowRun:
    """The run after one more event. Raises `Malformed` if that event cannot follow."""
    if record.seq != run.seq or run.has_ended:
        raise Malformed(f"workflow run {run.id} expects event {run.seq}, not {record.seq}")
    before, run = run.clock, replace(run, seq=run.seq + 1, clock=record.at)
    match record.event:
        case WorkflowStarted(driver=driver):
            return replace(run, driver=driver)
        case WorkflowResumed(driver):
            return replace(run, driver=driver, idle=run.idle + record.at - before)
        case StepStarted() | StepWaiting() | StepCompleted() | StepFailed() | StepSkipped() | StepRetrying() as event:
            return replace(run, steps={**run.steps, event.step: _step(run.steps.get(event.step), event, record.at)})
        case WorkflowCompleted(status, outputs):
            return replace(run, status=status, outputs=outputs)
        case WorkflowFailed(error):
            return replace(run, status="failed", error=error)
        case WorkflowCancelled():
            return replace(run, status="cancelled")
        case _:
            assert_never(record.event)


def _step(
    known: StepState | None, event: StepStarted | StepWaiting | StepCompleted | StepFailed | StepSkipped | StepRetrying, at: float
) -> StepState:
    known = None if known is None else replace(known, approvals=())
    match event:
        case StepStarted():
            began = at if known is None else known.started_at
            return StepState("running", event.action, event.attempt, event.run_id, started_at=began)
        case StepWaiting():
            return replace(known or StepState("running"), approvals=event.approvals)
        case StepCompleted():
            return replace(
                known or StepState("success"), status="success", output=event.output, outputs=event.outputs, ended_at=at
            )
        case StepFailed():
            return replace(known or StepState("failed"), status="failed", error=event.error, ended_at=at)
        case StepSkipped():
            return StepState("skipped", error=event.reason, ended_at=at)
        case StepRetrying():
            return replace(known or StepState("retrying"), status="retrying", attempt=event.attempt, error=event.error)
