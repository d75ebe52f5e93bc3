"""Every sentence that a person reads and no model wrote."""

from collections.abc import Sequence
from typing import Final

UNAVAILABLE: Final = "I can't reach the model right now, so I haven't done anything. Please try again in a moment."
BUSY: Final = "The model is taking no more requests for now, so I haven't done anything. Please try again{when}."
TOO_LONG: Final = "That took more steps than I may take at once. Please split it into smaller requests."
BROKEN: Final = "Something went wrong on my side. Please look at your list before you try again."
SILENT: Final = "I don't know what to say to that. Could you put it another way?"
CUT_OFF: Final = " [cut off]"
OFF_TOPIC: Final = "I can't help with that. I look after your list of tasks: adding, showing, changing, completing, deleting."
TOOLS_DOWN: Final = "I couldn't reach your task list. Please try again in a moment."
KEPT: Final = 'All right, I\'ve kept "{task}".'
EXPIRED: Final = 'That confirmation has expired, so "{task}" is still on your list. Ask me again if you want it deleted.'
NOTHING_PENDING: Final = "Nothing is waiting for your confirmation. What would you like me to do?"
CONFIRM: Final = 'Shall I delete "{task}" for good? Please answer yes or no.'
DELETED: Final = 'I\'ve deleted "{task}".'
NOT_DELETED: Final = 'I couldn\'t delete "{task}": {why}.'
INTERRUPTED: Final = "I was interrupted after that, so please check your list."

_DONE: Final = {
    "add_task": 'added "{task}"',
    "update_task": 'changed it to "{task}"',
    "complete_task": 'completed "{task}"',
    "delete_task": 'deleted "{task}"',
}


def busy(seconds: float | None) -> str:
    return BUSY.format(when=" in a moment" if seconds is None else f" in {max(round(seconds), 1)} s")


def done(acts: Sequence[tuple[str, str]]) -> str:
    """What was carried out, where the model could not say so itself."""
    told = ", ".join([_DONE[tool].format(task=task) for tool, task in acts])
    return f"I have {told}. {INTERRUPTED}"
