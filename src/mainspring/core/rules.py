"""The rules of a turn: which limits end a run, which calls exceed one, and when the engine speaks up.

Each rule is a small function of the run. `first_stop` puts them in order; the order is the precedence.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.actions import Finish, Nudge, Reuse, Withhold
from mainspring.core.effects import is_harmless_again
from mainspring.core.events import ErrorInfo, Reason
from mainspring.core.items import Message, Refusal
from mainspring.core.repetition import find_due_cycle, find_repeated_calls
from mainspring.core.run import OVERFLOW, Call, Run
from mainspring.core.spec import CLOSE_CYCLE

SHOWN_CALLS: Final = 3
SHOWN_CHARS: Final = 200


def first_stop(run: Run) -> Finish | Nudge | None:
    """What ends the run now, or the one last thing said before a limit does; None while it may go on."""
    return (
        _after_closing_turn(run)
        or _after_failed_turn(run)
        or _after_cut_answer(run)
        or _out_of_time(run)
        or (None if run.open_calls else _between_turns(run))
    )


def _after_closing_turn(run: Run) -> Finish | None:
    if run.closing is not None and (run.failure is not None or not run.unanswered):
        return Finish("incomplete", run.closing)
    return None


def _after_failed_turn(run: Run) -> Finish | None:
    if (failure := run.failure) is None or (failure.retryable and _retries(run)):
        return None
    if failure.code == OVERFLOW and run.spec.window.truncation == "auto" and run.overflows_in_row == 1:
        return None  # it is asked once more, with less
    return Finish("failed", Reason.RATE_LIMITED if failure.code == "rate_limit_exceeded" else Reason.PROVIDER_ERROR, failure)


def _retries(run: Run) -> bool:
    completion, failed = run.spec.completion, run.turns - run.answered
    return completion.retry_model_errors and (completion.max_retries is None or failed <= completion.max_retries)


def _after_cut_answer(run: Run) -> Finish | None:
    match run.finish:
        case "length":
            return Finish("incomplete", Reason.OUTPUT_TRUNCATED)
        case "content_filter":
            return Finish("incomplete", Reason.CONTENT_FILTER)
        case _:
            return None


def _out_of_time(run: Run) -> Finish | None:
    limit = run.spec.limits.max_seconds
    if limit is None or run.elapsed < limit or not (run.unanswered or run.open_calls):
        return None
    return Finish("incomplete", Reason.DEADLINE)


def _between_turns(run: Run) -> Finish | Nudge | None:
    """No call is open. A run that has its answer is never stopped by a limit it only just reached."""
    limits = run.spec.limits
    if limits.max_errors_in_row is not None and run.errors_in_row >= limits.max_errors_in_row:
        told = ErrorInfo("consecutive_errors", f"{run.errors_in_row} turns in a row failed and nothing in them succeeded")
        return Finish("failed", Reason.ERRORS_IN_ROW, run.failure or told)
    if not run.unanswered or run.closing is not None:
        return None
    usage, turns = run.usage + run.delegated.usage, run.turns + run.delegated.turns
    if limits.max_tokens is not None and usage.total_tokens >= limits.max_tokens:
        return Finish("incomplete", Reason.BUDGET)
    if limits.max_output_tokens is not None and usage.output_tokens >= limits.max_output_tokens:
        return Finish("incomplete", Reason.OUTPUT_TRUNCATED)
    # Only with tokens left can a limit grant a closing turn, so these come second.
    if run.stop is not None:
        return _limit(run, run.stop)
    if limits.max_turns is not None and turns >= limits.max_turns:
        return _limit(run, Reason.MAX_TURNS)
    if limits.budget_turns is not None and turns >= limits.budget_turns:
        return _limit(run, Reason.BUDGET)
    if limits.max_repeats is not None and not run.repetition.is_warned and (cycle := find_due_cycle(run.repetition, limits)):
        return Nudge("repeat", _name_repetition(run, cycle) + run.spec.completion.repeat)
    return None


def _limit(run: Run, reason: Reason) -> Finish | Nudge:
    """A limit ends the run, after one closing turn without tools if the spec grants it."""
    close = run.spec.completion.close
    if close is None and reason is Reason.REPEATED_CALL and run.spec.limits.max_cycle is not None:
        close = CLOSE_CYCLE
    return Finish("incomplete", reason) if close is None else Nudge("close", close, reason)


class Excess(Struct, frozen=True):
    """A call beyond a limit: which one, what the model is told, and the reason if the run ends by it."""

    limit: str
    message: str
    stop: Reason | None = None


def excess(run: Run, call: Call) -> Excess | None:
    """The limit that this call, judged now, would exceed. Calls for the client do not count as tool calls of the run."""
    limits = run.spec.limits
    cap, most = limits.max_tool_calls_per_turn, limits.max_tool_calls
    if run.repetition.rung == "close":
        told = "Not executed: this run goes round in circles, and ends."
        return Excess("max_repeats", told, Reason.REPEATED_CALL)
    if call.item.name in run.withheld:
        told = f"Not executed: the tool `{call.item.name}` is withheld for the rest of this run. Go on without it, or answer."
        return Excess("max_repeats", told)
    if cap is not None and call.position >= cap:
        told = f"Not executed: at most {cap} tool calls are allowed in one turn. Call again in the next."
        return Excess("max_tool_calls_per_turn", told)
    tool = run.spec.tool(call.item.name)
    made = run.calls_allowed + run.delegated.calls
    if most is not None and made >= most and not (tool is not None and tool.kind == "function"):
        told = f"Not executed: the limit of {most} tool calls for this run is reached."
        return Excess("max_tool_calls", told, Reason.MAX_TOOL_CALLS)
    return None


def pick_at_once(run: Run, ready: Sequence[Call]) -> Sequence[Call]:
    """The first of these calls, and those behind it that are executed with it: other agents work side by side, tools only as far
    as `concurrency` lets them."""
    limits = run.spec.limits
    if not run.spec.parallel_tool_calls:
        return ready[:1]
    if limits.agent_concurrency is None:
        return ready[: limits.concurrency]
    delegates = run.spec.delegates(ready[0].item.name)
    alike = list(takewhile(lambda call: run.spec.delegates(call.item.name) is delegates, ready))
    return alike[: limits.agent_concurrency if delegates else limits.concurrency]


def answer_repetition(run: Run, calls: list[Call]) -> Reuse | Withhold | None:
    """What is done about a repeated call among these before any is judged: its result is given back, or its tool withheld."""
    rung = run.repetition.rung
    if rung not in ("reuse", "withhold"):
        return None
    repeated = find_repeated_calls(run.repetition)
    # A tool that is called for something else as well is not withheld: that may be progress.
    busy = {call.name for call in run.repetition.calls if call.call_id not in repeated}
    for item in [call.item for call in calls if call.item.call_id in repeated]:
        tool, known = run.spec.tool(item.name), repeated[item.call_id]
        if tool is None or tool.kind == "function" or tool.name in run.withheld:
            continue
        is_free, is_known = (
            tool.name not in busy,
            known is not None and known.is_reusable and is_harmless_again(tool, item.arguments),
        )
        if known is not None and is_known and (rung == "reuse" or not is_free):
            return Reuse(item.call_id, known.output, known.is_error)
        if is_free and (rung == "withhold" or known is not None):
            return Withhold(tool.name, f"This call was made again and again: {_show_call(tool.name, item.arguments)}")
    return None


def _name_repetition(run: Run, cycle: int) -> str:
    """The repetition in words. Runs of older versions were told nothing of it."""
    if run.spec.limits.max_cycle is None:
        return ""
    past, streak = run.repetition.past, run.repetition.streaks[cycle - 1]
    calls = list(dict.fromkeys([_show_call(call.name, call.arguments) for turn in past[-cycle:] for call in turn]))
    shown = ", ".join(calls[:SHOWN_CALLS]) + (" and others" if len(calls) > SHOWN_CALLS else "")
    if cycle == 1:
        return f"You have made the same calls in {streak.turns + 1} turns in a row: {shown}. "
    return f"Your last {streak.turns + cycle} turns repeat the same {cycle} turns: {shown}. "


def _show_call(name: str, arguments: str) -> str:
    return f"`{name}` with {arguments[:SHOWN_CHARS]}{'...' if len(arguments) > SHOWN_CHARS else ''}"


def tools_off(run: Run) -> bool:
    """Whether the model has been told not to call tools in this turn."""
    return run.spec.tool_choice.mode == "none" or run.closing is not None


def review(run: Run) -> Nudge | None:
    """Double confirmation: a first text answer of a run with tools is asked about, once or again after more work."""
    completion = run.spec.completion
    is_asked = run.was_asked if completion.confirm_once else run.is_confirming
    if completion.confirm is None or is_asked or run.closing is not None or not run.spec.tools or has_refused(run):
        return None
    going_on = replace(run, unanswered=True)
    if _out_of_time(going_on) or _between_turns(going_on):
        return None  # no turn is left to answer in, and the answer it has must count
    return Nudge("confirm", completion.confirm)


def has_refused(run: Run) -> bool:
    """Whether the model's last words are a refusal."""
    last = run.transcript[-1] if len(run.transcript) > run.base else None
    if last is None or last.hidden or not isinstance(last.item, Message):
        return False
    return any(isinstance(part, Refusal) for part in last.item.content)
