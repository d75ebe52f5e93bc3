"""What comes of a decision, with what stands behind it, and the reports of decisions that no model has made."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring_tasks import words
from mainspring_tasks.call_trace import TracedCall
from mainspring_tasks.decision_types import AgentDecision, DecisionType, Outcome, UserIntent
from mainspring_tasks.task_tools import CHANGED, Change
from mainspring_tasks.undo import describe_undone

Said = Literal["yes", "no", "undo"]


class DecisionReport(Struct, frozen=True):
    """A decision, the intent behind it, and its outcome.

    `approval` is the id of the confirmation request, if there is one. `shown` are the tasks that the user is shown or asked
    about, in order, None if that does not change; `recent` is the task that was changed last. `cause` tells an operator why the
    model or the list did not answer. `changes` are what can be undone from now on, None if that stays; `said` is what the model
    takes the message for, if that is more than a request.
    """

    decision: AgentDecision
    outcome: Outcome
    intent: UserIntent | None = None
    calls: tuple[TracedCall, ...] = ()
    approval: str | None = None
    shown: tuple[str, ...] | None = None
    recent: str | None = None
    cause: str | None = None
    changes: tuple[Change, ...] | None = None
    said: Said | None = None


def make_cancelled(text: str, outcome: Outcome, intent: UserIntent | None) -> DecisionReport:
    return DecisionReport(AgentDecision(DecisionType.CANCEL_PENDING, response_text=text), outcome, intent)


def make_refused(cause: str) -> DecisionReport:
    decision = AgentDecision(DecisionType.RESPOND_ONLY, response_text=words.NO_BUDGET)
    return DecisionReport(decision, Outcome.RATE_LIMITED, cause=cause)


def make_unable(cause: str) -> DecisionReport:
    """For a model that is known to be unable to decide, which is refused before it is asked."""
    return DecisionReport(
        AgentDecision(DecisionType.RESPOND_ONLY, response_text=words.BROKEN), Outcome.RESPONSE_GENERATION, cause=cause
    )


def make_broken() -> DecisionReport:
    return DecisionReport(AgentDecision(DecisionType.RESPOND_ONLY, response_text=words.BROKEN), Outcome.RESPONSE_GENERATION)


def report_undo(undone: Sequence[tuple[Change, DecisionReport]]) -> DecisionReport:
    """The report of an undo: one run for each change, none if there is nothing to undo."""
    if not undone:
        decision = AgentDecision(DecisionType.RESPOND_ONLY, response_text=words.NOTHING_TO_UNDO)
        return DecisionReport(decision, Outcome.MISSING_CONTEXT)
    calls = tuple([call for _, report in undone for call in report.calls])
    made = [call for _, report in undone for call in report.decision.tool_calls]
    back = [change for change, report in undone if any(call.result.success for call in report.calls)]
    failed = [(change, report) for change, report in undone if change not in back]
    # What has changed since stays as it is; what did not work for another reason may be tried again.
    left = [change for change, report in reversed(failed) if all(call.result.error_code != CHANGED for call in report.calls)]
    told = [f"I've undone that: {', '.join([describe_undone(change) for change in back])}."] if back else []
    told += [words.NOT_UNDONE.format(task=change.task.description, why=_find_cause(report)) for change, report in failed]
    kind = DecisionType.INVOKE_TOOL if made else DecisionType.RESPOND_ONLY
    numbered = tuple([replace(call, sequence=number) for number, call in enumerate(made, 1)])
    outcome = Outcome.TOOL_INVOCATION if failed else Outcome.TASK_COMPLETED
    return DecisionReport(AgentDecision(kind, numbered, response_text=" ".join(told)), outcome, None, calls, changes=tuple(left))


def _find_cause(report: DecisionReport) -> str:
    errors = [call.result.error for call in report.calls if call.result.error]
    return (errors[0] if errors else report.cause or "it was not carried out").rstrip(".")
