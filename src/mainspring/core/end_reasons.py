"""Why a run ended the way it did, in a sentence."""

from typing import assert_never

from mainspring.core.context_window import exceeds_allowance
from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.run import Run


def describe_end(run: Run) -> str | None:
    """Why the run ended; None while it goes on."""
    if run.reason is None:
        return None
    if run.error is not None and run.reason is not Reason.ERRORS_IN_ROW:
        return _first_line(run.error)
    return _describe_reason(run, run.reason)


def _describe_reason(run: Run, reason: Reason) -> str:
    limits = run.spec.limits
    open_calls = ", ".join([f"`{call.item.name}`" for call in run.open_calls])
    match reason:
        case Reason.FINAL_ANSWER:
            return "the model has answered"
        case Reason.REFUSAL:
            return "the model has refused to answer"
        case Reason.CLIENT_ACTION:
            return f"the model waits for the output of {open_calls}, which only its caller can give"
        case Reason.APPROVAL_NEEDED:
            return f"a person must agree to {open_calls} first"
        case Reason.MAX_TURNS:
            return f"the model has used all of its {limits.max_turns} turns"
        case Reason.MAX_TOOL_CALLS:
            return f"the model has used all of its {limits.max_tool_calls} tool calls"
        case Reason.OUTPUT_TRUNCATED:
            return "the answer was cut off at the output limit"
        case Reason.CONTENT_FILTER:
            return "the backend's content filter stopped the answer"
        case Reason.DEADLINE:
            return f"the time limit of {limits.max_seconds or 0:g} s is reached"
        case Reason.BUDGET:
            return _describe_budget(run)
        case Reason.REPEATED_CALL:
            return "the model kept making the same tool call"
        case Reason.CANCELLED:
            return "the run was stopped"
        case Reason.ERRORS_IN_ROW:
            told = "" if run.error is None else f": {_first_line(run.error)}"
            return f"{run.errors_in_row} turns in a row failed{told}"
        case Reason.PROVIDER_ERROR | Reason.RATE_LIMITED | Reason.INTERNAL_ERROR:
            return "the model failed"
        case _:
            assert_never(reason)


def _describe_budget(run: Run) -> str:
    limits, used = run.spec.limits, run.usage + run.delegated.usage
    if limits.max_tokens is not None and used.total_tokens >= limits.max_tokens:
        return f"the budget of {limits.max_tokens} tokens is used up"
    if limits.budget_turns is not None and run.turns + run.delegated.turns >= limits.budget_turns:
        return f"the budget of {limits.budget_turns} turns is used up"
    if exceeds_allowance(run):
        return "what is left of the budget is too little for another turn"
    return "a call would exceed the budget"


def _first_line(error: ErrorInfo) -> str:
    """The screen and the events have all of it."""
    return error.message.strip().partition("\n")[0].rstrip(" .:")
