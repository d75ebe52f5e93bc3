"""Why a run ended the way it did, in words, and what to do next."""

from typing import assert_never

from mainspring.cli.options import name_database
from mainspring.core.end_reasons import describe_end
from mainspring.core.events import Reason
from mainspring.core.history import approval_id
from mainspring.core.run import Run
from mainspring.storage.location import Location

_ADVICE = {
    "provider_unavailable": "start the backend, or correct --base-url or `base_url` in the settings, then run it again",
    "provider_misconfigured": "correct --base-url or `base_url` in the settings, then run it again",
    "provider_unauthorized": "correct the credentials (--backend-key, the vendor's variables, or `key_env` in the settings)",
    "context_length_exceeded": "shorten the prompt, or use a model with a larger context",
}


def explain_end(run: Run, database: Location | None) -> str | None:
    """Why and what next, for a run that ended other than `completed`. `database` is where it is stored."""
    why = describe_end(run)
    if run.reason is None or why is None or run.status == "completed":
        return None
    what_next = _advise(run, run.reason, database)
    return f"{run.status}: {why}{'' if why.endswith(('.', '?', '!')) else '.'} {what_next[0].upper()}{what_next[1:]}"


def _advise(run: Run, reason: Reason, database: Location | None) -> str:
    """What to do next."""
    go_on, go_on_in_python = _advise_to_continue(run, database), f"go on in Python: engine.run([...], previous={run.spec.id!r})"
    match reason:
        case Reason.FINAL_ANSWER | Reason.REFUSAL | Reason.CONTENT_FILTER:
            return "put the request differently"
        case Reason.CLIENT_ACTION:
            return go_on_in_python
        case Reason.APPROVAL_NEEDED:
            return go_on_in_python if database is None else _advise_to_answer(run, database)
        case Reason.MAX_TURNS:
            return f"allow more with --max-turns, or {go_on}"
        case Reason.MAX_TOOL_CALLS | Reason.OUTPUT_TRUNCATED | Reason.CANCELLED:
            return go_on
        case Reason.DEADLINE:
            return f"allow more with --max-seconds, or {go_on}"
        case Reason.BUDGET:
            return f"allow more with [budget] in the settings, or {go_on}"
        case Reason.REPEATED_CALL:
            return "say in the prompt what to do instead, or try another model"
        case Reason.ERRORS_IN_ROW:
            return "correct what the errors above say, then run it again"
        case Reason.PROVIDER_ERROR:
            return _advise_correction(run)
        case Reason.RATE_LIMITED:
            return f"wait a little, then {go_on}"
        case Reason.INTERNAL_ERROR:
            return "set MAINSPRING_DEBUG=1 to see where"
        case _:
            assert_never(reason)


def _advise_to_answer(run: Run, database: Location) -> str:
    waiting = [call.item for call in run.calls if call.verdict == "ask"]
    where = name_database(database)
    if len(waiting) != 1:
        return f"answer them: mainspring approvals list{where}"
    return f"answer it: mainspring approvals approve {approval_id(waiting[0])}{where}; or deny instead of approve"


def _advise_correction(run: Run) -> str:
    if run.spec.model.startswith("scripted"):
        return "correct the script, or what it is asked"
    return _ADVICE.get(run.error.code if run.error else "", "check --model and --base-url, then run it again")


def _advise_to_continue(run: Run, database: Location | None) -> str:
    if database is None:
        return "run it again without --no-store to be able to go on from where it stopped"
    return f'go on from here: mainspring run "go on"{name_database(database)} --previous {run.spec.id}'
