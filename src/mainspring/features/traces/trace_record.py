"""A trace: one per run, a step per turn of the model, an action per call. Times are seconds since 1970, from the log."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from mainspring.core.events import Judgement, Reason, Status
from mainspring.core.items import Adaptation, Json, ToolKind, Usage
from mainspring.features.traces.failures import Category, Code, Resolution, Severity, TraceStatus

ActionStatus = Literal["running", "success", "failure", "timeout", "skipped"]
StepStatus = Literal["running", "completed", "failed", "aborted"]


class TraceAction(Struct, frozen=True, kw_only=True):
    """A call. One that was not performed here is `skipped`: denied, handed to the client, waiting for a person, or answered with
    the result of the same call before it.

    `verdict`, `policy` and `reason` are those of the gate, at `judged_at`; `started_at` is null for a call that was never
    started. `progress` is the last line that it told while it worked, if it told any.
    """

    action_id: str
    tool: str
    kind: ToolKind | None = None
    input: str = ""
    output: str = ""
    status: ActionStatus = "running"
    verdict: Judgement | None = None
    policy: str = ""
    reason: str = ""
    judged_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: float | None = None
    progress: str | UnsetType = UNSET


class TraceStep(Struct, frozen=True, kw_only=True):
    """A turn of the model and the calls it made, a summary (`compaction`) that the model was asked for between turns, the
    `opening` of a run that takes over calls from the one before it, or a step of a workflow, for which no model is asked.

    `model_at` is when the model was done; the calls come after that. `nudge` is what the engine had said before the turn,
    `withheld` are tools that it withheld after it, because the model repeats itself. `adaptations` is what was done so that the
    backend could be asked and understood.
    """

    step_id: str
    kind: Literal["turn", "compaction", "opening", "step"] = "turn"
    status: StepStatus = "running"
    started_at: float
    first_token_at: float | None = None
    model_at: float | None = None
    completed_at: float | None = None
    duration_ms: float | None = None
    finish: str = ""
    error: str = ""
    usage: Usage | None = None
    nudge: str = ""
    withheld: tuple[str, ...] = ()
    adaptations: tuple[Adaptation, ...] = ()
    actions: tuple[TraceAction, ...] = ()


class FailureRecord(Struct, frozen=True, kw_only=True):
    """A failure, by the taxonomy. `action_id` is the call it happened to, if any."""

    code: Code
    name: str
    category: Category
    severity: Severity
    message: str
    at: float
    step_id: str = ""
    action_id: str = ""
    resolution: Resolution


class TraceContext(Struct, frozen=True, kw_only=True):
    """The agent, its role, the preset and the model of the run. A run of no defined agent has its preset for a role."""

    agent_id: str = ""
    role: str = ""
    model: str = ""
    preset: str = ""


class TraceInput(Struct, frozen=True, kw_only=True):
    prompt: str = ""
    parameters: Json = {}


class TraceOutput(Struct, frozen=True, kw_only=True):
    result: str = ""


class TraceOutcome(Struct, frozen=True, kw_only=True):
    """The end of the run. `run_status` and `reason` are those of the run itself. Only a failed run has a failure."""

    status: TraceStatus = "running"
    run_status: Status = "in_progress"
    reason: Reason | None = None
    failure_code: Code | None = None
    failure_category: Category | None = None
    failure_message: str | None = None


class TraceMetadata(Struct, frozen=True, kw_only=True):
    """What was attached to the run. `parent` is the run that called this one as a tool, `children` those that it called;
    `continues` is the run whose conversation it goes on with; `traceparent` is the span of others that it belongs to."""

    tags: dict[str, str] = {}
    parent: str | None = None
    children: tuple[str, ...] = ()
    continues: str | None = None
    traceparent: str = ""
    resumed: int = 0


class TraceRecord(Struct, frozen=True, kw_only=True):
    """A run in one view. `usage` is the sum of the tokens of its steps."""

    trace_id: str
    run_id: str
    session_id: str = ""
    task_id: str = ""
    tenant_id: str = ""
    started_at: float
    completed_at: float | None = None
    duration_ms: float | None = None
    context: TraceContext = TraceContext()
    input: TraceInput = TraceInput()
    execution: tuple[TraceStep, ...] = ()
    output: TraceOutput = TraceOutput()
    outcome: TraceOutcome = TraceOutcome()
    failures: tuple[FailureRecord, ...] = ()
    usage: Usage = Usage()
    metadata: TraceMetadata = TraceMetadata()

    @property
    def turns(self) -> tuple[TraceStep, ...]:
        """The turns of the model that were not aborted."""
        return tuple([step for step in self.execution if step.kind == "turn" and step.status != "aborted"])

    @property
    def calls(self) -> tuple[TraceAction, ...]:
        """The calls that were allowed and performed here."""
        return tuple([action for action in self.actions if action.verdict == "allow"])

    @property
    def actions(self) -> tuple[TraceAction, ...]:
        return tuple([action for step in self.execution for action in step.actions])


# A call of a tool that the run does not have; whatever name the model made up for it.
UNKNOWN: Final = "_unknown"


def make_trace_id(run_id: str, started_at: float) -> str:
    """`TRC-date-time-XXXX`, always the same for the same run."""
    moment = datetime.fromtimestamp(started_at, UTC).strftime("%Y%m%d-%H%M%S")
    return f"TRC-{moment}-{sha256(run_id.encode()).hexdigest()[:4].upper()}"


def to_milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)
