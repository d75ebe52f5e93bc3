"""Every sentence that a person reads and no model wrote."""

from collections.abc import Sequence
from typing import Final

UNAVAILABLE: Final = "I can't reach the model right now, so I haven't done anything. Please try again in a moment."
BUSY: Final = "The model is taking no more requests for now, so I haven't done anything. Please try again{when}."
TOO_LONG: Final = "That took more steps than I may take at once. Please split it into smaller requests."
NO_BUDGET: Final = "What I may use is used up for now, so I haven't done anything. Please try again later, or ask your operator."
BROKEN: Final = "Something went wrong on my side. Please look at your list before you try again."
SILENT: Final = "I don't know what to say to that. Could you put it another way?"
CUT_OFF: Final = " [cut off]"
CUT_SHORT: Final = "My answer was cut off before it said anything, and nothing was done. Please ask for less at once."
NOTHING_DONE: Final = "I haven't changed anything on your list."
CONFUSED: Final = "I couldn't work out how to do that, and nothing was done. Could you put it another way?"
OFF_TOPIC: Final = "I can't help with that. I look after your list of tasks: adding, showing, changing, completing, deleting."
KEPT: Final = 'All right, I\'ve kept "{task}".'
EXPIRED: Final = 'That confirmation has expired, so "{task}" is still on your list. Ask me again if you want it deleted.'
NOTHING_PENDING: Final = "Nothing is waiting for your confirmation. What would you like me to do?"
CONFIRM: Final = 'Shall I delete "{task}" for good? Please answer yes or no.'
DELETED: Final = 'I\'ve deleted "{task}".'
NOT_DELETED: Final = 'I couldn\'t delete "{task}": {why}.'
UNCERTAIN: Final = "I was interrupted, so it may have been done all the same"
UNSURE: Final = 'I wasn\'t sure that you meant yes, so "{task}" is still on your list. Ask me again if you want it deleted.'
UNDO_HINT: Final = 'Say "undo" to take it back.'
NOTHING_TO_UNDO: Final = "There is nothing in this conversation that I could undo."
NOT_UNDONE: Final = 'I couldn\'t undo what I did to "{task}": {why}.'
INTERRUPTED: Final = "I was interrupted after that, so please check your list."

_DONE: Final = {
    "add_task": 'added "{task}"',
    "update_task": 'changed it to "{task}"',
    "complete_task": 'completed "{task}"',
    "delete_task": 'deleted "{task}"',
}
_NOT_DONE: Final = {
    "add_task": 'add "{task}"',
    "update_task": 'change "{task}"',
    "complete_task": 'complete "{task}"',
    "delete_task": 'delete "{task}"',
    "list_tasks": "look at your list",
}
_REFUSED: Final = {
    "valid_arguments": "I got the details wrong",
    "named_task": "I can't tell which task you mean",
    "one_task": "you didn't name it, so I've left it for you to say",
    "one_deletion": "I delete one task at a time",
    "own_words": "those were not your words",
    "small_talk": "you didn't ask for it",
}


_PROGRESS: Final = {
    "add_task": "adding to your list",
    "list_tasks": "looking at your tasks",
    "update_task": "changing a task",
    "complete_task": "completing a task",
    "delete_task": "looking at what to delete",
}


def describe_progress(tool: str) -> str:
    return f"{_PROGRESS.get(tool, 'thinking')} ..."


def say_busy(seconds: float | None) -> str:
    return BUSY.format(when=" in a moment" if seconds is None else f" in {max(round(seconds), 1)} s")


def explain_refusal(policy: str) -> str:
    """Why a call was not made, for the person, who did not make it."""
    return _REFUSED.get(policy, "it is not something I may do")


def say_account(done: Sequence[tuple[str, str]], failed: Sequence[tuple[str, str, str]]) -> str:
    """What was carried out, tool and task, and what was not, and why."""
    told = [f"I have {', '.join([_DONE[tool].format(task=task) for tool, task in done])}."] if done else []
    told += [f"I couldn't {_NOT_DONE[tool].format(task=task)}: {why.rstrip('.')}." for tool, task, why in failed]
    return " ".join(told)
