"""What can go wrong in a run, in one taxonomy: eight codes, ten categories, and what is to be done about each."""

from typing import Final, Literal

from msgspec import Struct

from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.run import OVERFLOW

Code = Literal["TL01", "TL02", "TL03", "TL04", "TL05", "TL06", "TL07", "TL08"]
Category = Literal["F-ENV", "F-INP", "F-EXE", "F-TMO", "F-RES", "F-SEC", "F-DEP", "F-VAL", "F-REV", "F-UNK"]
Severity = Literal["low", "medium", "high", "critical"]
TraceStatus = Literal["running", "completed", "failed", "timeout", "cancelled", "escalated"]


class Kind(Struct, frozen=True):
    """A code of the taxonomy, in words."""

    name: str
    category: Category
    severity: Severity


KINDS: Final[dict[Code, Kind]] = {
    "TL01": Kind("tool_argument_error", "F-EXE", "medium"),
    "TL02": Kind("tool_execution_error", "F-EXE", "medium"),
    "TL03": Kind("governance_denied", "F-SEC", "high"),
    "TL04": Kind("max_iterations", "F-RES", "medium"),
    "TL05": Kind("context_exhausted", "F-RES", "high"),
    "TL06": Kind("budget_exceeded", "F-RES", "medium"),
    "TL07": Kind("leakage_detected", "F-VAL", "low"),
    "TL08": Kind("error", "F-EXE", "high"),
}

# After how many repetitions somebody should look; categories that are not here are not worth repeating at all.
RETRIES: Final[dict[Category, int]] = {"F-ENV": 2, "F-EXE": 1, "F-TMO": 1, "F-RES": 1, "F-DEP": 3}

_STATUSES: Final[dict[Reason, TraceStatus]] = {
    Reason.FINAL_ANSWER: "completed",
    Reason.REFUSAL: "completed",
    Reason.CLIENT_ACTION: "escalated",
    Reason.APPROVAL_NEEDED: "escalated",
    Reason.MAX_TURNS: "timeout",
    Reason.DEADLINE: "timeout",
    Reason.BUDGET: "cancelled",
    Reason.MAX_TOOL_CALLS: "cancelled",
    Reason.CANCELLED: "cancelled",
}
_CODES: Final[dict[Reason, Code]] = {
    Reason.MAX_TURNS: "TL04",
    Reason.MAX_TOOL_CALLS: "TL06",
    Reason.OUTPUT_TRUNCATED: "TL06",
    Reason.DEADLINE: "TL06",
    Reason.BUDGET: "TL06",
    Reason.CONTENT_FILTER: "TL08",
    Reason.PROVIDER_ERROR: "TL08",
    Reason.RATE_LIMITED: "TL08",
    Reason.ERRORS_IN_ROW: "TL08",
    Reason.REPEATED_CALL: "TL08",
    Reason.INTERNAL_ERROR: "TL08",
}
# Denials that say what the model got wrong or used up, not what it is not trusted with.
_DENIALS: Final[dict[str, Code]] = {"known_tool": "TL01", "valid_arguments": "TL01", "limits": "TL06", "budget": "TL06"}


class Resolution(Struct, frozen=True):
    """What is to be done. `pending` failures stood between the run and its answer; the run got over those that are `resolved`."""

    retryable: bool
    retry_count: int
    escalation_required: bool
    status: Literal["pending", "resolved", "wontfix"]


def resolution(category: Category, repetitions: int, status: TraceStatus) -> Resolution:
    """What is to be done about a failure that came after so many of its like, in a run that ended so."""
    if status == "completed":
        return Resolution(category in RETRIES, repetitions, False, "resolved")
    most = RETRIES.get(category)
    return Resolution(most is not None, repetitions, most is None or repetitions >= most, "pending")


def status_of(reason: Reason | None) -> TraceStatus:
    """How a run that ended for this reason is told in a trace; None is a run under way."""
    return "running" if reason is None else _STATUSES.get(reason, "failed")


def code_of_end(reason: Reason, error: ErrorInfo | None) -> Code | None:
    """The failure that ended a run; None for an end that is none: an answer, a pause, a cancel."""
    return "TL05" if error is not None and error.code == OVERFLOW else _CODES.get(reason)


def code_of_denial(policy: str) -> Code:
    return _DENIALS.get(policy, "TL03")
