"""Conversations that several runs share: what a run finds in one, and what it leaves there.

A conversation is a list of items that grows. A run sees what was in it when the run began, and adds its input and its answer when
it ends, all at once; of two runs at the same time neither sees the other, and both are kept, one behind the other. Items may
also be added and removed by hand, so what a run finds is put in order first.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.chain import Chain
from mainspring.core.drafts import item_id
from mainspring.core.history import Entry, History, pair_outputs
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Unknown,
)  # fmt: skip
from mainspring.core.run import Run

# The kinds of the documents that a conversation is stored as: one for itself, and one per item, whose parent it is.
CONVERSATION = "conversation"
ITEM = "conversation_item"


class Conversation(Struct, frozen=True):
    """A conversation as clients see it, and as its document holds it."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"


def build_history(items: Iterable[Item], waiting: tuple[FunctionCall, ...] | None = None, size: int = 0) -> History:
    """The history that a conversation is for a run: every output behind its calls, and the calls that wait at the end.

    `waiting` are the calls that waited when the run began, if it did so earlier. Any other call without an output, an output
    without a call and a call that was cut off are left out.
    """
    found = pair_outputs(items)
    left = {id(call) for call in found.unanswered}
    settled = [
        item
        for item in found.items
        if not isinstance(item, FunctionCall) or (item.status == "completed" and id(item) not in left)
    ]
    still = found.unanswered if waiting is None else waiting
    return History(Chain([Entry(item, "input") for item in (*settled, *still)]), still, size)


def list_new_items(run: Run) -> tuple[Item, ...]:
    """What a run leaves in its conversation: what it was told, what the model said and what tools returned, each with an id."""
    items: dict[str, Item] = {}
    for entry in run.own_entries:
        if entry.origin != "engine":
            id = item_id(entry.item)
            if not id or id in items:
                id = f"{derive_id('item', run.spec.id)}_{len(items)}"
            items[id] = with_id(entry.item, id)
    return tuple(items.values())


def with_id(item: Item, id: str) -> Item:
    match item:
        case Unknown(data):
            return Unknown({**data, "id": id})
        case Message() | FunctionCall() | FunctionCallOutput() | Reasoning() | ApprovalRequest() | ApprovalResponse():
            return replace(item, id=id)
        case _:
            return item
