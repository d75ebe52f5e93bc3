"""The decision that a run is: a pure function of the run and its log. The same run is the same decision, whenever it is read."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from mainspring.core.events import Reason, Recorded
from mainspring.core.history import approval_id
from mainspring.core.items import Json, parse_arguments
from mainspring.core.reasons import decision as told
from mainspring.core.run import Run
from mainspring_tasks import words
from mainspring_tasks.answer_format import ModelAnswer, Why, parse_model_answer, read_partial_reply
from mainspring_tasks.call_trace import TracedCall, trace_calls
from mainspring_tasks.decision_rules import (
    ASKED,
    CHANGES,
    UNDOES,
    describe_subject,
    find_last_list,
    find_listed_tasks,
    find_message,
    is_named,
)
from mainspring_tasks.decision_types import (
    ALLOWED_TOOLS,
    PENDING_LIFETIME,
    AgentDecision,
    DecisionType,
    IntentType,
    Outcome,
    PendingAction,
    ToolCall,
    UserIntent,
    choose_outcome,
)
from mainspring_tasks.reports import DecisionReport, Said
from mainspring_tasks.task_references import find_mentioned
from mainspring_tasks.undo import find_changes

_INTENTS: Final = {
    "add_task": IntentType.CREATE_TASK,
    "list_tasks": IntentType.LIST_TASKS,
    "update_task": IntentType.UPDATE_TASK,
    "complete_task": IntentType.COMPLETE_TASK,
    "delete_task": IntentType.DELETE_TASK,
}
_AMBIGUITIES: Final[dict[Why, Outcome]] = {
    "several_tasks": Outcome.MULTIPLE_MATCHES,
    "no_such_task": Outcome.MISSING_CONTEXT,
    "missing_detail": Outcome.MISSING_CONTEXT,
}
_CHANGING: Final = frozenset({_INTENTS[name] for name in CHANGES})
TALK: Final = frozenset({IntentType.GENERAL_CHAT, IntentType.LIST_TASKS, IntentType.AMBIGUOUS})
# What a model says that has done something: "I've added it", "Deleted!".
CLAIM: Final = re.compile(
    r"(?:\bI(?:['\u2019]ve| have)?(?: just| now)? |^\W*)(?:added|deleted|removed|completed|marked|changed|renamed|updated)\b",
    re.IGNORECASE,
)
_TOO_LONG: Final = frozenset({Reason.MAX_TURNS, Reason.MAX_TOOL_CALLS, Reason.REPEATED_CALL, Reason.BUDGET, Reason.DEADLINE})
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
# A line of the instructions that long, word for word, is no coincidence.
_TELLING_CHARS: Final = 50
_LONGEST_TOLD: Final = 80
# How sure a model must be that a message is a yes.
_SURE: Final = 0.8


def project_decision(run: Run, log: Sequence[Recorded]) -> DecisionReport:
    """Derives the decision from an ended run. Raises `ValueError` if the run did what no decision may do."""
    calls = trace_calls(run, log)
    _check(run, calls)
    if run.reason is Reason.APPROVAL_NEEDED:
        return _project_question(run, calls)
    if run.approvals:
        return _project_deletion(run, calls)
    answer = _answer(run) if run.reason is Reason.FINAL_ANSWER else None
    decision = _decision(run, calls, answer)
    meaning = _meaning(answer, calls, run)
    found = _outcomes(run, calls, answer)
    if not meaning.is_sound:
        found.add(Outcome.INTENT_CLASSIFICATION)
    shown = _find_shown(decision.decision_type, run, calls)
    return DecisionReport(
        decision,
        choose_outcome(found),
        meaning.intent,
        calls,
        None,
        shown,
        _find_recent(calls),
        _cause(run, calls),
        find_changes(run) or None,
        None if answer is None or _find_changes(calls) else _read_said(answer),
    )


def _read_said(answer: ModelAnswer) -> Said | None:
    match answer:
        case ModelAnswer(decision="undo", confidence=float(sure)) if sure >= _SURE:
            return "undo"
        case ModelAnswer(intent=IntentType.CONFIRM_NO):
            return "no"
        case ModelAnswer(intent=IntentType.CONFIRM_YES, decision="respond", confidence=float(sure)) if sure >= _SURE:
            return "yes"
        case _:
            return None


def salvage_run(run: Run, log: Sequence[Recorded]) -> DecisionReport:
    """A report of a run that makes no valid decision, so that what it did is not lost."""
    calls = trace_calls(run, log)
    made = [tool_call for call in calls if call.was_performed and (tool_call := _tool_call(run, call)) is not None]
    text = f"{_account(run, calls)} {words.BROKEN}".strip()
    kind = DecisionType.INVOKE_TOOL if made else DecisionType.RESPOND_ONLY
    return DecisionReport(AgentDecision(kind, tuple(made), response_text=text), Outcome.RESPONSE_GENERATION, None, calls)


def _tool_call(run: Run, call: TracedCall) -> ToolCall | None:
    try:
        return _tool_calls(run, [call])[0]
    except ValueError:
        return None


def _cause(run: Run, calls: Sequence[TracedCall]) -> str | None:
    if run.error is not None:
        return run.error.message
    down = ("DATABASE_ERROR", "TIMEOUT_ERROR", "TOOL_EXECUTION_ERROR")
    return next((call.result.error for call in calls if call.was_performed and call.code in down), None)


def _check(run: Run, calls: Sequence[TracedCall]) -> None:
    """Checks after the fact what the gate has enforced."""
    for call in calls:
        if call.was_performed and call.name not in ALLOWED_TOOLS:
            raise ValueError(f"run {run.spec.id} called `{call.name}`, which is none of the task tools")
        is_agreed = UNDOES in run.spec.metadata or any(said.approve for said in run.approvals)
        if call.was_performed and call.name == "delete_task" and not is_agreed:
            raise ValueError(f"run {run.spec.id} deleted a task without having asked")


def _decision(run: Run, calls: Sequence[TracedCall], answer: ModelAnswer | None) -> AgentDecision:
    performed = [call for call in calls if call.was_performed]
    has_changed = any(call.name in CHANGES for call in performed)
    text = _reply(run, calls, answer)
    if answer is not None and answer.decision == "clarify" and not has_changed:
        return AgentDecision(DecisionType.ASK_CLARIFICATION, response_text=text, clarification_question=text)
    if performed and (has_changed or answer is None or answer.decision == "respond"):
        return AgentDecision(DecisionType.INVOKE_TOOL, _tool_calls(run, performed), response_text=text)
    return AgentDecision(DecisionType.RESPOND_ONLY, response_text=text)


def _project_question(run: Run, calls: tuple[TracedCall, ...]) -> DecisionReport:
    call = next(call.item for call in run.calls if call.verdict == "ask")
    task_id, task = str(parse_arguments(call.arguments)["task_id"]), describe_subject(call, run)
    seconds = run.spec.limits.approval_seconds
    asked_at = datetime.fromtimestamp(run.clock, UTC)
    until = asked_at + (PENDING_LIFETIME if seconds is None else timedelta(seconds=seconds))
    pending = PendingAction(task_id, task, asked_at, until)
    text = f"{_account(run, calls)} {words.CONFIRM.format(task=task)}".strip()
    decision = AgentDecision(DecisionType.REQUEST_CONFIRMATION, response_text=text, pending_action=pending)
    intent = UserIntent(IntentType.DELETE_TASK, None, {"task_reference": task})
    outcome, changes = Outcome(told(run).outcome), find_changes(run) or None
    return DecisionReport(decision, outcome, intent, calls, approval_id(call), None, task_id, changes=changes)


def _project_deletion(run: Run, calls: tuple[TracedCall, ...]) -> DecisionReport:
    """A confirmed deletion. The reply is ours: it says what happened, whatever the model says."""
    call = next((call for call in calls if call.name == "delete_task" and call.was_performed), None)
    task = _describe_task(call, run)
    if call is None or not call.result.success:
        why = "it was not carried out" if call is None else (call.result.error or "the list did not answer").rstrip(".")
        text = words.NOT_DELETED.format(task=task, why=hide_ids(why, run))
    else:
        text = words.DELETED.format(task=task)
    rest = [other for other in calls if other is not call and other.was_performed]
    text = f"{text} {_account(run, rest)}".strip()
    made = _tool_calls(run, [other for other in (call, *rest) if other is not None])
    decision = AgentDecision(DecisionType.EXECUTE_PENDING, made, response_text=text)
    found = {Outcome.TOOL_INVOCATION} if call is None else _find_failures(run, [call])
    intent = UserIntent(IntentType.CONFIRM_YES)
    outcome, changes = choose_outcome(found or {Outcome.TASK_COMPLETED}), find_changes(run) or None
    return DecisionReport(decision, outcome, intent, calls, cause=_cause(run, calls), changes=changes)


def _answer(run: Run) -> ModelAnswer:
    """The model's final answer. Reciting its instructions counts as a refusal."""
    answer = parse_model_answer(run.text)
    lines = [line.strip(" -*#") for line in (run.spec.instructions or "").splitlines()]
    if any(len(line) >= _TELLING_CHARS and line in answer.reply for line in lines):
        return ModelAnswer(
            words.OFF_TOPIC, IntentType.GENERAL_CHAT, confidence=answer.confidence, decision="refuse", why="off_topic"
        )
    return answer


def _reply(run: Run, calls: Sequence[TracedCall], answer: ModelAnswer | None) -> str:
    """What the user reads: the model's reply, or our own if that contradicts what was done."""
    if answer is not None and not _disagrees(run, calls, answer) and (text := hide_ids(answer.reply, run)):
        return f"{text} {_tell_unnamed(text, run, calls)}".strip()
    if told := _account(run, calls):
        return told if answer is not None else f"{told} {words.INTERRUPTED}"
    match run.reason:
        case Reason.OUTPUT_TRUNCATED:
            said = hide_ids(read_partial_reply(run.text) or "", run).rstrip()
            return said + words.CUT_OFF if said else words.CUT_SHORT
        case Reason.RATE_LIMITED:
            return words.say_busy(run.error.retry_after if run.error is not None else None)
        case Reason.REFUSAL | Reason.CONTENT_FILTER:
            return words.OFF_TOPIC
        case Reason.ERRORS_IN_ROW:
            return words.CONFUSED
        case Reason.FINAL_ANSWER:
            return words.NOTHING_DONE if answer is not None and answer.reply.strip() else words.SILENT
        case reason if reason in _TOO_LONG:
            return words.TOO_LONG
        case _:
            return words.UNAVAILABLE


def _tell_unnamed(text: str, run: Run, calls: Sequence[TracedCall]) -> str:
    """What was done to a task that the user did not name, unless the reply says which one it was."""
    listed = {task.id: task for task in find_listed_tasks(run)}
    unnamed = [
        (call.name, _describe_task(call, run))
        for call in _find_changes(calls)
        if (task := listed.get(str(call.arguments.get("task_id")))) is not None
        and task.description.casefold() not in text.casefold()
        and not is_named(task, run)
    ]
    return f"{words.say_account(unnamed, ())} {words.UNDO_HINT}" if unnamed else ""


def _disagrees(run: Run, calls: Sequence[TracedCall], answer: ModelAnswer) -> bool:
    """Whether the reply may contradict what was done: report a failure as a success, or a change that was not made."""
    done, failed = _find_changes(calls), _find_lacking(run, calls)
    match answer.decision:
        case "clarify":
            return False
        case "refuse":
            return bool(done)
        case "respond" | "undo":
            is_talk = answer.intent in TALK and not CLAIM.search(answer.reply)
            missed = [call for call in failed if call.was_performed or not is_talk]
            return bool(missed) or (not done and _claims(answer))


def _claims(answer: ModelAnswer) -> bool:
    """Whether the model claims a change. A reply with a reason why not is no claim."""
    means = answer.intent in _CHANGING and answer.why == "none"
    return means or CLAIM.search(answer.reply) is not None


def _account(run: Run, calls: Sequence[TracedCall]) -> str:
    """Lists what was done, and what failed."""
    done = [(call.name, _describe_task(call, run)) for call in _find_changes(calls)]
    failed = [(call.name, _describe_wanted(call, run), _why(call, run)) for call in _find_lacking(run, calls)]
    return words.say_account(done, failed)


def _find_changes(calls: Sequence[TracedCall]) -> list[TracedCall]:
    return [call for call in calls if call.name in CHANGES and call.result.success]


def _find_lacking(run: Run, calls: Sequence[TracedCall]) -> list[TracedCall]:
    """The failed calls that no later call of the same tool for the same task made up for."""
    known = {task.id for task in find_listed_tasks(run)}

    def is_made_good(call: TracedCall, later: Sequence[TracedCall]) -> bool:
        task = call.arguments.get("task_id")
        return any(
            other.name == call.name and other.result.success and (task not in known or other.arguments.get("task_id") == task)
            for other in later
        )

    failed = [(place, call) for place, call in enumerate(calls) if call.code is not None and call.name in ALLOWED_TOOLS]
    return [call for place, call in failed if not is_made_good(call, calls[place + 1 :])]


def _why(call: TracedCall, run: Run) -> str:
    if not call.was_performed:
        return words.explain_refusal(call.policy)
    if call.was_interrupted:
        return words.UNCERTAIN
    return hide_ids(call.result.error or "", run) or "your list did not answer"


def _describe_wanted(call: TracedCall, run: Run) -> str:
    """The task that a failed call was about, shortened."""
    text = str(call.arguments.get("description", "")) if call.name == "add_task" else _describe_before(call, run)
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}..."


def _outcomes(run: Run, calls: Sequence[TracedCall], answer: ModelAnswer | None) -> set[Outcome]:
    """Every outcome that applies."""
    found = _find_failures(run, calls)
    if answer is None:
        return found | {Outcome(told(run).outcome)}
    if not answer.reply.strip():
        found.add(Outcome.RESPONSE_GENERATION)
    done, worked = _find_changes(calls), any(call.result.success for call in calls)
    match answer.decision:
        case "refuse":
            if not done:
                found.add(Outcome.MISSING_PERMISSION if answer.why == "not_allowed" else Outcome.OUT_OF_SCOPE)
        case "clarify":
            found.add(_AMBIGUITIES.get(answer.why, Outcome.UNCLEAR_INTENT))
        case "respond" | "undo":
            if answer.why == "bad_input":
                found.add(Outcome.USER_INPUT)
            elif not done and not found and _claims(answer):
                found.add(Outcome.RESPONSE_GENERATION)
            if ASKED in run.spec.metadata and worked:
                found.add(Outcome.CLARIFICATION_ANSWERED)
    if worked:
        found.add(Outcome.TASK_COMPLETED)
    return found


def _find_failures(run: Run, calls: Sequence[TracedCall]) -> set[Outcome]:
    """The outcomes of the failed calls that nothing made up for."""
    strange = [call for call in calls if call.name not in ALLOWED_TOOLS and not any(other.result.success for other in calls)]
    return {_failure(run, call) for call in (*_find_lacking(run, calls), *strange)}


def _failure(run: Run, call: TracedCall) -> Outcome:
    if call.result.error_code == "ACCESS_DENIED":
        return Outcome.MISSING_PERMISSION
    if call.code == "INTENT_ERROR":
        return Outcome.INTENT_CLASSIFICATION
    # A text that cannot be used is the person's own if they said so, else the model's mistake.
    text = str(call.arguments.get("description", ""))
    is_theirs = call.code == "VALIDATION_ERROR" and bool(text) and text.casefold() in find_message(run).casefold()
    return Outcome.USER_INPUT if is_theirs else Outcome.TOOL_INVOCATION


class _Meaning(Struct, frozen=True):
    intent: UserIntent | None
    is_sound: bool = True


def _meaning(answer: ModelAnswer | None, calls: Sequence[TracedCall], run: Run) -> _Meaning:
    """The user's intent: the model's, if its calls agree with it, else as its calls suggest."""
    performed = [call for call in calls if call.was_performed]
    changes = [call for call in performed if call.name in CHANGES]
    acted = list(dict.fromkeys([_INTENTS[call.name] for call in changes or performed]))
    by_calls = acted[0] if len(acted) == 1 else IntentType.MULTI_INTENT if acted else None
    if answer is None or answer.intent is None:
        return _Meaning(None if by_calls is None else UserIntent(by_calls, None, _params(by_calls, changes, run)))
    said = answer.intent
    is_sound = said is IntentType.MULTI_INTENT or (
        said not in (IntentType.CONFIRM_YES, IntentType.CONFIRM_NO)
        and not (said is IntentType.GENERAL_CHAT and performed)
        and not (changes and said is not by_calls)
    )
    try:
        possible = {"possible_intents": list(answer.possible_intents)} if said is IntentType.AMBIGUOUS else None
        params = possible or _params(said, changes, run)
        return _Meaning(UserIntent(said, answer.confidence, params), is_sound)
    except ValueError:
        return _Meaning(None if by_calls is None else UserIntent(by_calls), is_sound=False)


def _params(intent: IntentType, changes: Sequence[TracedCall], run: Run) -> Json | None:
    call = next((call for call in changes if _INTENTS[call.name] is intent), None)
    match intent, call:
        case IntentType.CREATE_TASK, TracedCall(arguments=given):
            return {"description": given["description"]}
        case IntentType.UPDATE_TASK, TracedCall(arguments=given):
            return {"task_reference": _describe_before(call, run), "new_description": given["description"]}
        case IntentType.COMPLETE_TASK, TracedCall():
            return {"task_reference": _describe_before(call, run)}
        case _:
            return None


def _tool_calls(run: Run, performed: Sequence[TracedCall]) -> tuple[ToolCall, ...]:
    """The calls as they were made, with the user."""
    return tuple(
        [ToolCall(call.name, {"user_id": run.spec.scope, **call.arguments}, number) for number, call in enumerate(performed, 1)]
    )


def _find_shown(kind: DecisionType, run: Run, calls: Sequence[TracedCall]) -> tuple[str, ...] | None:
    """The tasks that the user sees: a list that they asked for, or those to choose from."""
    performed = {call.name for call in calls if call.was_performed}
    if kind is DecisionType.ASK_CLARIFICATION:
        tasks = find_listed_tasks(run)
        choices = find_mentioned(parse_model_answer(run.text).reply, tasks) or find_mentioned(find_message(run), tasks)
        return tuple([task.id for task in choices]) or None
    if kind is DecisionType.INVOKE_TOOL and performed == {"list_tasks"}:
        return tuple([task.id for task in find_last_list(run)])
    return None


def _find_recent(calls: Sequence[TracedCall]) -> str | None:
    """The task that was changed last."""
    for call in reversed(calls):
        if call.was_performed and call.result.success and call.name in CHANGES:
            data = call.result.data
            return str(data["id"]) if isinstance(data, dict) else str(call.arguments.get("task_id"))
    return None


def _describe_task(call: TracedCall | None, run: Run) -> str:
    """The task after a call, by its description."""
    if call is not None and isinstance(call.result.data, dict):
        return str(call.result.data.get("description"))
    return _describe_before(call, run)


def _describe_before(call: TracedCall | None, run: Run) -> str:
    """The task that a call was about, by its description before."""
    wanted = None if call is None else call.arguments.get("task_id")
    return next((task.description for task in find_listed_tasks(run) if task.id == wanted), "this task")


def hide_ids(text: str, run: Run) -> str:
    """The text with task ids replaced by descriptions, since ids mean nothing to a user."""
    names = {task.id: f'"{task.description}"' for task in find_listed_tasks(run)}
    return _UUID.sub(lambda found: names.get(found[0].lower(), "(id)"), text).strip()
