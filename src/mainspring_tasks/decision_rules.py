"""What a decision run may do with tasks, beyond what every call must pass.

The rules read the run alone: the person's words are its last input, what they have before their eyes is in its metadata, and the
tasks that they have are in the lists of its transcript. So a verdict can be checked against the log at any time.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from mainspring.core.items import FunctionCall, FunctionCallOutput, Message, parse_arguments, text_of
from mainspring.core.run import Call, Run
from mainspring.engine.policy_order import PolicySlots
from mainspring.ports import Allow, Ask, CallPolicy, Deny, Verdict
from mainspring_tasks import words
from mainspring_tasks.task_references import ListedTask, Seen, find_mismatch, is_said, is_small_talk
from mainspring_tasks.task_tools import parse_list

REFERS: Final = frozenset({"update_task", "complete_task", "delete_task"})
CHANGES: Final = REFERS | {"add_task"}
WRITES: Final = frozenset({"add_task", "update_task"})
SEEN: Final = "decision_seen"
# What a run knows besides its words: whether the person was asked a question before, which this may answer.
ASKED: Final = "decision_asked"
_POINTS: Final = re.compile(r"\b(?:it|that|this|them|these|those|same|again|yes|yeah|yep|ok|okay|sure)\b", re.IGNORECASE)


class TaskRule(CallPolicy):
    """A rule as a policy. It reads only the run, and never waits."""

    never_waits = True

    def __init__(self, name: str, rule: Callable[[Call, Run], Verdict]) -> None:
        self.name, self._rule = name, rule

    async def judge(self, call: Call, run: Run) -> Verdict:
        return self._rule(call, run)


def deny_more_than_confirmed(call: Call, run: Run) -> Verdict:
    """After a confirmed deletion nothing else is done: the user has agreed to that alone."""
    if not run.approvals or run.approval(call.item) is not None:
        return Allow()
    return Deny("Only what the user has confirmed is done now. Tell them the result; they can ask for more.")


def require_named_task(call: Call, run: Run) -> Verdict:
    """A task is changed only if it is in a list of this run, and the user's own words name it."""
    if call.item.name not in REFERS or run.approval(call.item) is not None:
        return Allow()
    tasks = find_listed_tasks(run)
    wanted = str(parse_arguments(call.item.arguments).get("task_id"))
    if all(task.id != wanted for task in tasks):
        return Deny("This id is in no list of this conversation turn. Call list_tasks, and use an id from its result.")
    problem = find_mismatch(wanted, find_message(run), tasks, read_seen(run))
    if problem is None or problem.tasks:
        return Allow()
    return Deny("The user's words name no task of theirs. Do not guess: ask them which task they mean.")


def require_one_task(call: Call, run: Run) -> Verdict:
    """The user's words must not match other tasks as well."""
    if call.item.name not in REFERS or run.approval(call.item) is not None:
        return Allow()
    wanted = str(parse_arguments(call.item.arguments).get("task_id"))
    problem = find_mismatch(wanted, find_message(run), find_listed_tasks(run), read_seen(run))
    if problem is None:
        return Allow()
    several = ", ".join([f'"{task.description}"' for task in problem.tasks])
    return Deny(f"The user's words fit several tasks: {several}. Do not guess: ask them which one they mean.")


def deny_small_talk(call: Call, run: Run) -> Verdict:
    """A greeting or a thank you is no reason to touch the list, unless it answers a question."""
    if run.approvals or ASKED in run.spec.metadata or not is_small_talk(find_message(run)):
        return Allow()
    return Deny("The user only greets or thanks you. Answer them without any tool.")


def require_own_words(call: Call, run: Run) -> Verdict:
    """A new description must contain a word that the user has said."""
    text = parse_arguments(call.item.arguments).get("description")
    if call.item.name not in WRITES or not isinstance(text, str) or is_said(text, _find_relevant_words(run)):
        return Allow()
    return Deny("The user has said nothing of the kind. Use their words for a task, or ask them what it should say.")


def deny_second_change(call: Call, run: Run) -> Verdict:
    """A run either changes tasks or asks to delete one: a confirmation covers one deletion and nothing else."""
    if call.item.name not in CHANGES or run.approval(call.item) is not None:
        return Allow()
    if any(other.verdict == "ask" for other in run.calls):
        return Deny("A deletion waits for the user's answer. Nothing else can be changed until then.")
    if call.item.name == "delete_task" and any(other.name in CHANGES for other in run.allowed):
        return Deny("Something was changed already. Tell the user so, and to ask for the deletion in a message of its own.")
    return Allow()


def ask_before_deletion(call: Call, run: Run) -> Verdict:
    """Nothing is deleted before the user has confirmed it."""
    return Ask(words.CONFIRM.format(task=describe_subject(call.item, run))) if call.item.name == "delete_task" else Allow()


RULES: Final[PolicySlots] = {
    "custom": (
        TaskRule("nothing_more", deny_more_than_confirmed),
        TaskRule("small_talk", deny_small_talk),
        TaskRule("own_words", require_own_words),
        TaskRule("named_task", require_named_task),
        TaskRule("one_task", require_one_task),
        TaskRule("one_deletion", deny_second_change),
    ),
    "approval": (TaskRule("confirmed_deletion", ask_before_deletion),),
}


def find_message(run: Run) -> str:
    """The user's last message."""
    said = [item.text for item in run.spec.input if isinstance(item, Message) and item.role == "user"]
    return said[-1] if said else ""


def _find_relevant_words(run: Run) -> str:
    """What the user may mean: their message, and the ones before it if it answers a question or refers to something."""
    said = [item.text for item in run.spec.input if isinstance(item, Message)]
    is_alone = ASKED not in run.spec.metadata and _POINTS.search(find_message(run)) is None
    return "\n".join(said[-1:] if is_alone else said[-3:])


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


def describe_subject(call: FunctionCall, run: Run) -> str:
    """The description of the task that a call is about, as far as it is known."""
    task_id = parse_arguments(call.arguments).get("task_id")
    return next((task.description for task in find_listed_tasks(run) if task.id == task_id), "this task")


def _find_lists(run: Run) -> Iterator[str]:
    names = {entry.item.call_id: entry.item.name for entry in run.transcript if isinstance(entry.item, FunctionCall)}
    for entry in run.transcript:
        item = entry.item
        if isinstance(item, FunctionCallOutput) and names.get(item.call_id) == "list_tasks" and item.is_error is not True:
            yield text_of(item.output)
