"""The loop itself: `next_action` says what must happen next, `closing` how a run ends, `recovery` how it is taken up again.

There is no phase variable. Where a run stands is read off the `Run` that its log makes.
"""

from mainspring.core.actions import Action, CallModel, Execute, Finish, Judge
from mainspring.core.context_window import before_turn, exceeds_allowance
from mainspring.core.events import INTERRUPTED, Event, Reason, RunEnded, RunResumed, ToolEnded, TurnAborted
from mainspring.core.rules import answer_repetition, first_stop, has_refused, pick_at_once, review, tools_off
from mainspring.core.run import Call, Run, add_prompt

_WHY_NOT_RUN: dict[Reason, str] = {
    Reason.FINAL_ANSWER: "tools are switched off for this request",
    Reason.OUTPUT_TRUNCATED: "the model's answer was cut off at the output limit",
    Reason.CONTENT_FILTER: "the model's answer was stopped by a content filter",
    Reason.DEADLINE: "the time limit of this run is reached",
    Reason.CANCELLED: "the run was cancelled",
}


def next_action(run: Run) -> Action:
    """What must happen next. Pure: the same run always gives the same answer."""
    if stop := first_stop(run):
        return stop
    if calls := run.open_calls:
        if run.turns and tools_off(run):
            return Finish("completed", Reason.FINAL_ANSWER)
        if fresh := [call for call in calls if call.verdict is None]:
            if answer := answer_repetition(run, fresh):
                return answer
            return Judge(tuple([call.item.call_id for call in fresh]))
        if ready := [call for call in calls if call.verdict == "allow"]:
            return Execute(tuple([call.item.call_id for call in pick_at_once(run, ready)]))
        asked = any(call.verdict == "ask" for call in calls)
        return Finish("requires_action", Reason.APPROVAL_NEEDED if asked else Reason.CLIENT_ACTION)
    if run.unanswered and run.spec.goal != "nothing":
        return before_turn(run) or CallModel()
    if (nudge := review(run)) and not exceeds_allowance(add_prompt(run, nudge.text)):
        return nudge
    return Finish("completed", Reason.REFUSAL if has_refused(run) else Reason.FINAL_ANSWER)


def closing(run: Run, finish: Finish) -> list[Event]:
    """The events that end a run as `finish` says: the turn under way is cut off, and every call still gets its one answer."""
    events: list[Event] = [TurnAborted()] if run.in_turn else []
    status = "failed" if run.status == "queued" and finish.status == "incomplete" else finish.status
    if status != "requires_action":
        why = _WHY_NOT_RUN.get(finish.reason, f"the run ended: {finish.reason.value}")
        for call in run.open_calls:
            events.append(_interrupted(call) if call.is_started else _not_run(call, f"Not executed: {why}."))
    return [*events, RunEnded(status, finish.reason, finish.error)]


def recovery(run: Run) -> list[Event]:
    """The events that put a run in order whose driver is gone: a half turn is dropped, and a call that began and never ended
    is answered, not repeated, unless its tool is declared repeatable, or it has kept what it needs to go on where it was."""
    events: list[Event] = [RunResumed()]
    if run.in_turn:
        events.append(TurnAborted())
    for call in run.open_calls:
        tool = run.spec.tool(call.item.name)
        if call.is_started and call.kept is None and not (tool is not None and tool.repeatable):
            events.append(_interrupted(call))
    return events


def _interrupted(call: Call) -> ToolEnded:
    return ToolEnded(call.item.call_id, INTERRUPTED, is_error=True, recorded="interrupted")


def _not_run(call: Call, why: str) -> ToolEnded:
    return ToolEnded(call.item.call_id, why, is_error=True, recorded="not_run")
