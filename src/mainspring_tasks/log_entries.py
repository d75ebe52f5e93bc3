"""What the decision log holds, as data. What is not of the closed sets cannot be made, and so not be written."""

from datetime import UTC, datetime
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Json
from mainspring_tasks.call_trace import ErrorCode, TracedCall
from mainspring_tasks.decision_types import MAX_MESSAGE_LENGTH, DecisionType, IntentType, parse_outcome
from mainspring_tasks.reports import DecisionReport

DRIFT_LIMIT: Final = 0.10
MIN_SAMPLE: Final = 10
_CODES: Final = get_args(ErrorCode)


class DecisionLog(Struct, frozen=True, kw_only=True):
    """A decision. Its outcome is null until it is made, and stays null if the process died first.

    `run_id` is the run behind it, empty if none was needed.
    """

    decision_id: str
    conversation_id: str
    user_id: str
    message: str
    created_at: datetime
    tenant: str = ""
    run_id: str = ""
    intent_type: str | None = None
    confidence: float | None = None
    extracted_params: Json | None = None
    decision_type: str | None = None
    outcome_category: str | None = None
    response_text: str | None = None
    duration_ms: float | None = None
    id: int = 0

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_LENGTH:
            raise ValueError(f"DecisionLog.message must have at most {MAX_MESSAGE_LENGTH} characters, not {len(self.message)}")
        if self.outcome_category is not None:
            parse_outcome(self.outcome_category)
        if self.intent_type is not None:
            IntentType(self.intent_type)
        if self.decision_type is not None:
            DecisionType(self.decision_type)
        if (self.outcome_category is None) is not (self.decision_type is None):
            raise ValueError("DecisionLog.decision_type and outcome_category must be set together")


class ToolInvocationLog(Struct, frozen=True, kw_only=True):
    """A call of a tool, performed or refused; `sequence` counts the calls of a decision from 1."""

    decision_id: str
    tool_name: str
    parameters: Json
    sequence: int
    invoked_at: datetime
    success: bool
    result: object = None
    error_code: str | None = None
    error_message: str | None = None
    duration_ms: float = 0.0
    id: int = 0

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ValueError(f"ToolInvocationLog.sequence must be at least 1, not {self.sequence}")
        if self.success is not (self.error_code is None):
            raise ValueError("ToolInvocationLog.error_code is required if success is false, and not allowed otherwise")
        if self.error_code is not None and self.error_code not in _CODES:
            raise ValueError(f"ToolInvocationLog.error_code must be one of {', '.join(_CODES)}, not `{self.error_code:.80}`")


class Trace(Struct, frozen=True):
    """A decision and its calls, in order."""

    decision: DecisionLog
    tools: tuple[ToolInvocationLog, ...]


class Shares(Struct, frozen=True):
    """How often each intent, tool and outcome came in a period, as shares of all of them.

    `error_rate` is the share of decisions that ended in an error; decisions without an outcome do not count.
    """

    sample_size: int
    intents: dict[str, float]
    tools: dict[str, float]
    outcomes: dict[str, float]
    error_rate: float
    tool_success_rate: float | None
    average_ms: float | None


class BaselineSnapshot(Struct, frozen=True):
    """The shares of a period that later ones are compared with."""

    name: str
    description: str
    sample_start: datetime
    sample_end: datetime
    intent_distribution: dict[str, float]
    tool_frequency: dict[str, float]
    error_rate: float
    sample_size: int

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("BaselineSnapshot.name must not be empty")
        if self.sample_size < MIN_SAMPLE:
            raise ValueError(f"BaselineSnapshot.sample_size must be at least {MIN_SAMPLE}, not {self.sample_size}")
        total = sum(self.intent_distribution.values())
        if self.intent_distribution and abs(total - 1) > 0.01:
            raise ValueError(f"BaselineSnapshot.intent_distribution must sum to 1, not {total:.3f}")


class Drift(Struct, frozen=True):
    """The change of a share. It is flagged beyond `DRIFT_LIMIT`."""

    kind: str
    name: str
    baseline: float
    current: float

    @property
    def change(self) -> float:
        return self.current - self.baseline

    @property
    def is_flagged(self) -> bool:
        # What was measured in hundredths should not be flagged for what it is in binary.
        return round(abs(self.change), 9) > DRIFT_LIMIT


class DriftComparison(Struct, frozen=True):
    baseline: str
    sample_size: int
    drifts: tuple[Drift, ...]

    @property
    def drift_detected(self) -> bool:
        return any(drift.is_flagged for drift in self.drifts)


def compare_shares(baseline: BaselineSnapshot, shares: Shares) -> DriftComparison:
    """The change of the share of every intent and tool of either period, and of the error rate."""
    drifts = [Drift("errors", "error_rate", baseline.error_rate, shares.error_rate)]
    for kind, before, after in (
        ("intent", baseline.intent_distribution, shares.intents),
        ("tool", baseline.tool_frequency, shares.tools),
    ):
        for name in sorted({*before, *after}):
            drifts.append(Drift(kind, name, before.get(name, 0.0), after.get(name, 0.0)))
    return DriftComparison(baseline.name, shares.sample_size, tuple(drifts))


def complete_entry(row: DecisionLog, decided: DecisionReport, run_id: str, milliseconds: float | None) -> DecisionLog:
    """The row of a decision once it is made."""
    intent = decided.intent
    return replace(
        row,
        run_id=run_id,
        intent_type=None if intent is None else intent.intent_type.value,
        confidence=None if intent is None else intent.confidence,
        extracted_params=None if intent is None else intent.extracted_params,
        decision_type=decided.decision.decision_type.value,
        outcome_category=decided.outcome.value,
        response_text=decided.decision.response_text,
        duration_ms=milliseconds,
    )


def make_invocations(decision_id: str, calls: tuple[TracedCall, ...]) -> list[ToolInvocationLog]:
    """The rows of the calls of a decision."""
    return [
        ToolInvocationLog(
            decision_id=decision_id,
            tool_name=call.name,
            parameters=call.arguments,
            sequence=number,
            invoked_at=datetime.fromtimestamp(call.at, UTC),
            success=call.code is None,
            result=call.result.data,
            error_code=call.code,
            error_message=call.result.error,
            duration_ms=call.result.duration_ms,
        )
        for number, call in enumerate(calls, 1)
    ]
