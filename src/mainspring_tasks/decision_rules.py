"""What a decision run may do with tasks, beyond what every call must pass.

The rules read the run alone: the person's words are its last input, what they have before their eyes is in its metadata, and the
tasks that they have are in the lists of its transcript. So a verdict can be checked against the log at any time.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from mainspring.core.items import FunctionCall, FunctionCallOutput, Message, parse_arguments, text_of
from mainspring.core.run import Call, Run
from mainspring.engine.policy_order import PolicySlots
from mainspring.ports import Allow, Ask, CallPolicy, Deny, Verdict
from mainspring_tasks import words
from mainspring_tasks.task_references import (
    ListedTask,
    Seen,
    find_conflict,
    find_counted,
    is_everything,
    is_forbidden,
    is_look,
    is_question,
    is_quoted,
    is_said,
    is_small_talk,
    name_task,
)
from mainspring_tasks.task_tools import parse_list

REFERS: Final = frozenset({"update_task", "complete_task", "delete_task"})
CHANGES: Final = REFERS | {"add_task"}
WRITES: Final = frozenset({"add_task", "update_task"})
SEEN: Final = "decision_seen"
# What a run knows besides its words: whether the person was asked a question before, which this may answer.
ASKED: Final = "decision_asked"
# A run with this takes a change of an earlier run back; no model is asked.
UNDOES: Final = "decision_undoes"
_MOST_SAID: Final = 3


class TaskRule(CallPolicy):
    """A rule as a policy. It reads only the run, and never waits."""

    never_waits = True

    def __init__(self, name: str, rule: Callable[[Call, Run], Verdict]) -> None:
        self.name, self._rule = name, rule

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Allow() if UNDOES in run.spec.metadata else self._rule(call, run)


def require_known_task(call: Call, run: Run) -> Verdict:
    """A task is changed only if it is in a list of this run, and the user's words do not name another one instead."""
    if call.item.name not in REFERS or run.approval(call.item) is not None:
        return Allow()
    tasks, message = find_listed_tasks(run), find_message(run)
    wanted = find_subject(call.item, run)
    if wanted is None:
        return Deny("This id is in no list of this conversation turn. Call list_tasks, and use an id from its result.")
    if (other := find_conflict(wanted.id, message, tasks, read_seen(run))) is not None:
        fits = f'fit "{other.description}" no less than "{wanted.description}"'
        return Deny(f"The user's words {fits}. Do not guess: if they are not clear, ask which one they mean.")
    is_speech = call.item.name == "complete_task" and is_quoted(message, wanted.description)
    if is_speech or is_forbidden(message, wanted.description):
        return Deny(f'The user does not ask for a change of "{wanted.description}", or quotes somebody who does.')
    return Allow()


def require_name_for_more(call: Call, run: Run) -> Verdict:
    """One task may be changed that the user's words do not name, since a model knows more than words; several if they speak of
    all of them."""
    if call.item.name not in REFERS or run.approval(call.item) is not None:
        return Allow()
    task = find_subject(call.item, run)
    if task is None or is_everything(find_message(run)) or is_named(task, run):
        return Allow()
    if not any(other.name in CHANGES for other in run.allowed):
        return Allow()
    return Deny("The user did not name this task, and another change was made. Say what was done, and ask them about the rest.")


def deny_unasked(call: Call, run: Run) -> Verdict:
    """A greeting, a thank you, a question or a look at the list changes nothing, unless it answers a question."""
    message, is_change = find_message(run), call.item.name in CHANGES
    is_idle = ASKED not in run.spec.metadata and (is_small_talk(message) or (is_change and is_look(message)))
    if run.approvals or not (is_idle or (is_change and is_question(message))):
        return Allow()
    return Deny("The user asks for no change. Answer them without one.")


def require_own_words(call: Call, run: Run) -> Verdict:
    """A new description must contain something that the user has said, or that the task said before."""
    text = parse_arguments(call.item.arguments).get("description")
    before = find_subject(call.item, run)
    said = "\n".join([*_find_words(run), "" if before is None else before.description])
    if call.item.name not in WRITES or not isinstance(text, str) or is_said(text, said):
        return Allow()
    return Deny("The user has said nothing of the kind. Use their words for a task, or ask them what it should say.")


def deny_second_deletion(call: Call, run: Run) -> Verdict:
    """A confirmation covers one deletion."""
    if call.item.name != "delete_task" or run.approval(call.item) is not None:
        return Allow()
    if run.approvals or any(other.verdict == "ask" for other in run.calls):
        return Deny("One task is deleted at a time, and only if the user confirms it. Tell them so.")
    return Allow()


def ask_before_deletion(call: Call, run: Run) -> Verdict:
    """Nothing is deleted before the user has confirmed it."""
    return Ask(words.CONFIRM.format(task=describe_subject(call.item, run))) if call.item.name == "delete_task" else Allow()


RULES: Final[PolicySlots] = {
    "custom": (
        TaskRule("small_talk", deny_unasked),
        TaskRule("own_words", require_own_words),
        TaskRule("named_task", require_known_task),
        TaskRule("one_task", require_name_for_more),
        TaskRule("one_deletion", deny_second_deletion),
    ),
    "approval": (TaskRule("confirmed_deletion", ask_before_deletion),),
}


def find_message(run: Run) -> str:
    """The user's last message; in a run that goes on after a confirmation, the one that it began with."""
    said = [item.text for item in _find_talk(run) if item.role == "user"]
    return said[-1] if said else ""


def is_named(task: ListedTask, run: Run) -> bool:
    """Whether the user's words, or the question that they answer, name a task."""
    said = (find_message(run), *_find_question(run))
    is_counted = task in find_counted(said[0], find_listed_tasks(run), read_seen(run))
    return is_counted or any(name_task(text, task.description).places for text in said)


def _find_words(run: Run) -> list[str]:
    """What the user may mean: their last messages, and the question that they answer."""
    return [item.text for item in _find_talk(run) if item.role == "user"][-_MOST_SAID:] + _find_question(run)


def _find_question(run: Run) -> list[str]:
    return [item.text for item in _find_talk(run)[-2:] if item.role == "assistant"] if ASKED in run.spec.metadata else []


def _find_talk(run: Run) -> list[Message]:
    given = [item for item in run.spec.input if isinstance(item, Message)]
    return given or [entry.item for entry in run.transcript[: run.inherited] if isinstance(entry.item, Message)]


def read_seen(run: Run) -> Seen:
    return msgspec.json.decode(run.spec.metadata.get(SEEN, "{}"), type=Seen)


def find_listed_tasks(run: Run) -> tuple[ListedTask, ...]:
    """The tasks in the lists of this run and of the run it continues, each as last listed, numbered by the last list."""
    tasks: dict[str, ListedTask] = {}
    for output in _find_lists(run):
        tasks = {id: replace(task, number=0) for id, task in tasks.items()} | {task.id: task for task in parse_list(output)}
    return tuple(tasks.values())


def find_last_list(run: Run) -> tuple[ListedTask, ...]:
    *_, latest = ["", *_find_lists(run)]
    return parse_list(latest)


def find_subject(call: FunctionCall, run: Run) -> ListedTask | None:
    """The task that a call is about, if it was listed."""
    task_id = parse_arguments(call.arguments).get("task_id")
    return next((task for task in find_listed_tasks(run) if task.id == task_id), None)


def describe_subject(call: FunctionCall, run: Run) -> str:
    """The description of the task that a call is about, as far as it is known."""
    task = find_subject(call, run)
    return "this task" if task is None else task.description


def _find_lists(run: Run) -> Iterator[str]:
    names = {entry.item.call_id: entry.item.name for entry in run.transcript if isinstance(entry.item, FunctionCall)}
    for entry in run.transcript:
        item = entry.item
        if isinstance(item, FunctionCallOutput) and names.get(item.call_id) == "list_tasks" and item.is_error is not True:
            yield text_of(item.output)
