"""One termination reason, told in three vocabularies: the Responses API's, the decision runtime's and the iterative runtime's."""

from typing import Literal

from msgspec import Struct

from mainspring.core.events import Reason
from mainspring.core.run import Run

DecisionType = Literal["RESPOND_ONLY", "INVOKE_TOOL", "REQUEST_CONFIRMATION"]
Outcome = Literal[
    "SUCCESS:TASK_COMPLETED", "SUCCESS:RESPONSE_GIVEN", "ERROR:TOOL_INVOCATION", "ERROR:RESPONSE_GENERATION",
    "REFUSAL:OUT_OF_SCOPE", "REFUSAL:RATE_LIMITED", "AMBIGUITY:MISSING_CONTEXT",
]  # fmt: skip
Termination = Literal[
    "completed", "max_iterations", "error", "budget_exceeded", "duration_exceeded", "requires_action", "approval_required",
    "length", "loop_detected", "cancelled",
]  # fmt: skip

# Reasons that end a run `incomplete` and are told to the client as `incomplete_details.reason`.
INCOMPLETE = frozenset(
    {
        Reason.MAX_TURNS, Reason.MAX_TOOL_CALLS, Reason.OUTPUT_TRUNCATED, Reason.CONTENT_FILTER, Reason.DEADLINE, Reason.BUDGET,
        Reason.REPEATED_CALL,
    }
)  # fmt: skip

_TERMINATIONS: dict[Reason, Termination] = {
    Reason.FINAL_ANSWER: "completed",
    Reason.REFUSAL: "completed",
    Reason.CLIENT_ACTION: "requires_action",
    Reason.APPROVAL_NEEDED: "approval_required",
    Reason.MAX_TURNS: "max_iterations",
    Reason.MAX_TOOL_CALLS: "budget_exceeded",
    Reason.OUTPUT_TRUNCATED: "length",
    Reason.CONTENT_FILTER: "error",
    Reason.PROVIDER_ERROR: "error",
    Reason.RATE_LIMITED: "error",
    Reason.ERRORS_IN_ROW: "error",
    Reason.DEADLINE: "duration_exceeded",
    Reason.BUDGET: "budget_exceeded",
    Reason.REPEATED_CALL: "loop_detected",
    Reason.CANCELLED: "cancelled",
    Reason.INTERNAL_ERROR: "error",
}

_OUTCOMES: dict[Reason, Outcome] = {
    Reason.REFUSAL: "REFUSAL:OUT_OF_SCOPE",
    Reason.CONTENT_FILTER: "REFUSAL:OUT_OF_SCOPE",
    Reason.RATE_LIMITED: "REFUSAL:RATE_LIMITED",
    Reason.ERRORS_IN_ROW: "ERROR:TOOL_INVOCATION",
    Reason.APPROVAL_NEEDED: "AMBIGUITY:MISSING_CONTEXT",
    Reason.CLIENT_ACTION: "AMBIGUITY:MISSING_CONTEXT",
}


class Verdict(Struct, frozen=True):
    """How a decision ended: its type and its outcome category."""

    decision: DecisionType
    outcome: Outcome


def incomplete_reason(run: Run) -> str | None:
    """`incomplete_details.reason` of the Responses API."""
    return run.reason.value if run.reason in INCOMPLETE and run.status == "incomplete" else None


def termination(run: Run) -> Termination:
    """`termination_reason` of the iterative runtime. The run has ended."""
    assert run.reason is not None
    return _TERMINATIONS[run.reason]


def decision(run: Run) -> Verdict:
    """Decision type and outcome category of the decision runtime. The run has ended."""
    assert run.reason is not None
    if run.reason is Reason.APPROVAL_NEEDED:
        return Verdict("REQUEST_CONFIRMATION", _OUTCOMES[run.reason])
    acted: DecisionType = "INVOKE_TOOL" if run.tools_used else "RESPOND_ONLY"
    if run.reason is not Reason.FINAL_ANSWER:
        return Verdict(acted, _OUTCOMES.get(run.reason, "ERROR:RESPONSE_GENERATION"))
    if not run.tools_used:
        return Verdict(acted, "SUCCESS:RESPONSE_GIVEN")
    return Verdict(acted, "ERROR:TOOL_INVOCATION" if run.tool_failed else "SUCCESS:TASK_COMPLETED")
