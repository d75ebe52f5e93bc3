"""A taxonomy of failures in runs: eight codes, ten categories, and what to do about each."""

from typing import Final, Literal

from msgspec import Struct

from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.run import OVERFLOW

Code = Literal["TL01", "TL02", "TL03", "TL04", "TL05", "TL06", "TL07", "TL08"]
Category = Literal["F-ENV", "F-INP", "F-EXE", "F-TMO", "F-RES", "F-SEC", "F-DEP", "F-VAL", "F-REV", "F-UNK"]
Severity = Literal["low", "medium", "high", "critical"]
TraceStatus = Literal["running", "completed", "failed", "timeout", "cancelled", "escalated"]


class FailureKind(Struct, frozen=True):
    """A code of the taxonomy, and what it means."""

    name: str
    meaning: str
    category: Category
    severity: Severity


KINDS: Final[dict[Code, FailureKind]] = {
    "TL01": FailureKind("tool_argument_error", "a call of no known tool, or with wrong arguments", "F-EXE", "medium"),
    "TL02": FailureKind("tool_execution_error", "a tool that failed or took too long", "F-EXE", "medium"),
    "TL03": FailureKind("governance_denied", "a call that governance denied", "F-SEC", "high"),
    "TL04": FailureKind("max_iterations", "no turn left", "F-RES", "medium"),
    "TL05": FailureKind("context_exhausted", "a conversation too long for the model", "F-RES", "high"),
    "TL06": FailureKind("budget_exceeded", "no tokens, calls or time left", "F-RES", "medium"),
    "TL07": FailureKind("leakage_detected", "something came out that should have stayed inside", "F-VAL", "low"),
    "TL08": FailureKind("error", "anything else that ended a turn or the run", "F-EXE", "high"),
}

CATEGORIES: Final[dict[Category, str]] = {
    "F-ENV": "environment",
    "F-INP": "input",
    "F-EXE": "execution",
    "F-TMO": "time",
    "F-RES": "resources",
    "F-SEC": "security",
    "F-DEP": "dependency",
    "F-VAL": "validation",
    "F-REV": "review",
    "F-UNK": "unknown",
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
    """What to do about a failure. `pending` failures kept the run from its answer; the run recovered from `resolved` ones."""

    retryable: bool
    retry_count: int
    escalation_required: bool
    status: Literal["pending", "resolved", "wontfix"]


def choose_resolution(category: Category, repetitions: int, status: TraceStatus) -> Resolution:
    """What to do about a failure after so many repetitions, in a run with this status."""
    if status == "completed":
        return Resolution(category in RETRIES, repetitions, False, "resolved")
    most = RETRIES.get(category)
    return Resolution(most is not None, repetitions, most is None or repetitions >= most, "pending")


def classify_status(reason: Reason | None) -> TraceStatus:
    """The trace status of a run that ended for this reason; None is a run in progress."""
    return "running" if reason is None else _STATUSES.get(reason, "failed")


def classify_end(reason: Reason, error: ErrorInfo | None) -> Code | None:
    """The failure that ended a run; None if the end is no failure: an answer, a pause, a cancel."""
    return "TL05" if error is not None and error.code == OVERFLOW else _CODES.get(reason)


def classify_denial(policy: str, *, ends_run: bool) -> Code:
    # What a budget does not cover was never allowed; what it has run out of ends the run.
    return "TL03" if policy == "budget" and not ends_run else _DENIALS.get(policy, "TL03")
