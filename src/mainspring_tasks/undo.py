"""Taking changes back: what a run has changed, as its transcript tells, and what a person is told when it is as before again.

A thread keeps the changes of the last message that made any. An undo is a run of its own for each of them, without a model: the
same policies judge it, and the same log records it. Its id follows from the run that made the change, so the store lets it begin
once. What has changed since is left alone.
"""

import re
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import FunctionCall, FunctionCallOutput, parse_arguments, text_of
from mainspring.core.run import Run
from mainspring.core.spec import StepCall
from mainspring_tasks.decision_rules import CHANGES
from mainspring_tasks.task_references import ListedTask, is_look, is_question, is_small_talk
from mainspring_tasks.task_tools import Change, parse_list

_UNDO: Final = frozenset({"undo", "/undo", "undo it", "undo that", "undo please"})
_KEEPS: Final = re.compile(r"\b(?:don['\u2019]?t|do not|never)\s+undo\b", re.IGNORECASE)


def is_undo(message: str) -> bool:
    """Whether it is the English word alone, for which no model is asked. Any other way to say so is the model's to understand."""
    return " ".join(message.casefold().replace(",", "").split()).rstrip(".! ") in _UNDO


def may_undo(message: str) -> bool:
    """Whether a model may have read an undo in it: not in English that asks for no change, or says not to."""
    is_idle = is_small_talk(message) or is_look(message) or is_question(message)
    return not is_idle and _KEEPS.search(message) is None


def find_changes(run: Run) -> tuple[Change, ...]:
    """What the run itself has changed, in order. What did not change anything, or cannot be known, is left out."""
    calls = {entry.item.call_id: entry.item for entry in run.transcript if isinstance(entry.item, FunctionCall)}
    known: dict[str, ListedTask] = {}
    found: list[Change] = []
    for place, entry in enumerate(run.transcript):
        item = entry.item
        if not isinstance(item, FunctionCallOutput) or (call := calls.get(item.call_id)) is None or item.is_error is True:
            continue
        if call.name == "list_tasks":
            known |= {task.id: replace(task, number=0) for task in parse_list(text_of(item.output))}
        elif call.name in CHANGES and (change := _read_change(call, text_of(item.output), known)) is not None:
            known = {id: task for id, task in known.items() if id != change.task.id}
            known |= {} if change.after is None else {change.after.id: change.after}
            found += [change] if place >= run.inherited else []
    return tuple(found)


def _read_change(call: FunctionCall, output: str, known: dict[str, ListedTask]) -> Change | None:
    try:
        after = msgspec.json.decode(output, type=_Reply).data
        before = known.get(str(parse_arguments(call.arguments).get("task_id")))
    except ValueError:
        return None
    if before == after or (before is None and call.name != "add_task"):
        return None
    return Change(before, after)


class _Reply(Struct, frozen=True):
    data: ListedTask | None


def make_undo_call(change: Change) -> StepCall:
    """The call that takes a change back, by the tool that comes closest; `TaskTools` restores more than that tool could."""
    if change.before is None:
        return StepCall("delete_task", {"task_id": change.task.id})
    return StepCall("update_task", {"task_id": change.before.id, "description": change.before.description})


def describe_undone(change: Change) -> str:
    match change.before, change.after:
        case None, _:
            return f'"{change.task.description}" is off your list again'
        case _, None:
            return f'"{change.task.description}" is back on your list'
        case before, after if before.description != after.description:
            return f'"{after.description}" says "{before.description}" again'
        case _:
            return f'"{change.task.description}" is open again'
