"""Why a run ended the way it did, in words, and what to do next."""

from typing import assert_never

from mainspring.cli.options import name_database
from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.run import Run
from mainspring.storage.location import Location

_ADVICE = {
    "provider_unavailable": "start the backend, or correct --base-url or `base_url` in the settings, then run it again",
    "provider_misconfigured": "correct --base-url or `base_url` in the settings, then run it again",
    "provider_unauthorized": "correct the credentials (--api-key, the vendor's variables, or `key_env` in the settings)",
    "context_length_exceeded": "shorten the prompt, or use a model with a larger context",
}


def explain_end(run: Run, database: Location | None) -> str | None:
    """Why and what next, for a run that ended other than `completed`. `database` is where it is stored."""
    if run.reason is None or run.status == "completed":
        return None
    why, what_next = _explain_reason(run, run.reason, database)
    if run.error is not None and run.reason is not Reason.ERRORS_IN_ROW:
        why = _first_line(run.error)
    return f"{run.status}: {why}{'' if why.endswith(('.', '?', '!')) else '.'} {what_next[0].upper()}{what_next[1:]}"


def _explain_reason(run: Run, reason: Reason, database: Location | None) -> tuple[str, str]:
    """Why it ended, and what to do next."""
    limits, go_on = run.spec.limits, _advise_to_continue(run, database)
    open_calls = ", ".join([f"`{call.item.name}`" for call in run.open_calls])
    go_on_in_python = f"go on in Python: engine.run([...], previous={run.spec.id!r})"
    match reason:
        case Reason.FINAL_ANSWER | Reason.REFUSAL:
            return "the model has answered", "put the request differently"
        case Reason.CLIENT_ACTION:
            return f"the model waits for the output of {open_calls}, which only its caller can give", go_on_in_python
        case Reason.APPROVAL_NEEDED:
            answer = go_on_in_python if database is None else f"answer it: mainspring approvals list{name_database(database)}"
            return f"a person must agree to {open_calls} first", answer
        case Reason.MAX_TURNS:
            return f"the model has used all of its {limits.max_turns} turns", f"allow more with --max-turns, or {go_on}"
        case Reason.MAX_TOOL_CALLS:
            return f"the model has used all of its {limits.max_tool_calls} tool calls", go_on
        case Reason.OUTPUT_TRUNCATED:
            return "the answer was cut off at the output limit", go_on
        case Reason.CONTENT_FILTER:
            return "the backend's content filter stopped the answer", "put the request differently"
        case Reason.DEADLINE:
            return f"the time limit of {limits.max_seconds or 0:g} s is reached", f"allow more with --max-seconds, or {go_on}"
        case Reason.BUDGET:
            return _describe_budget(run), f"allow more with [budget] in the settings, or {go_on}"
        case Reason.REPEATED_CALL:
            what_next = "say in the prompt what to do instead, or try another model"
            return "the model kept making the same tool call", what_next
        case Reason.CANCELLED:
            return "the run was stopped", go_on
        case Reason.ERRORS_IN_ROW:
            told = "" if run.error is None else f": {_first_line(run.error)}"
            return f"{run.errors_in_row} turns in a row failed{told}", "correct what the errors above say, then run it again"
        case Reason.PROVIDER_ERROR:
            return "the model failed", _advise_correction(run)
        case Reason.RATE_LIMITED:
            return "the model failed", f"wait a little, then {go_on}"
        case Reason.INTERNAL_ERROR:
            return "the model failed", "set MAINSPRING_DEBUG=1 to see where"
        case _:
            assert_never(reason)


def _advise_correction(run: Run) -> str:
    if run.spec.model.startswith("scripted"):
        return "correct the script, or what it is asked"
    return _ADVICE.get(run.error.code if run.error else "", "check --model and --base-url, then run it again")


def _describe_budget(run: Run) -> str:
    limits, used = run.spec.limits, run.usage + run.delegated.usage
    if limits.max_tokens is not None and used.total_tokens >= limits.max_tokens:
        return f"the budget of {limits.max_tokens} tokens is used up"
    if limits.budget_turns is not None and run.turns + run.delegated.turns >= limits.budget_turns:
        return f"the budget of {limits.budget_turns} turns is used up"
    return "a call would exceed the budget"


def _first_line(error: ErrorInfo) -> str:
    """The screen and the events have all of it."""
    return error.message.strip().partition("\n")[0].rstrip(" .:")


def _advise_to_continue(run: Run, database: Location | None) -> str:
    if database is None:
        return "run it again without --no-store to be able to go on from where it stopped"
    return f'go on from here: mainspring run "go on"{name_database(database)} --previous {run.spec.id}'
