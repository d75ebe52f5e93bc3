"""Compaction items: a summary that stands for what came before it, in a form that clients carry and nobody has to understand.

Theory of operation. The `encrypted_content` of a compaction item is `ms1.PAYLOAD.SEAL`: the version, then a `Summary` as JSON in
base64, then a keyed hash of the two. It hides nothing from a client, which said or saw all of it; the seal keeps what was damaged
or made up from being taken for a summary. Checking the seal needs the key and is the engine's business, once, when an item comes
in. Reading it needs none, so the loop stays pure, and a log can be read again without the key.

Items are stored and returned as they came. Only `apply_compaction`, the model's view, puts a message in their place.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mainspring.core.history import pair_outputs
from mainspring.core.items import Item, Message, Unknown, user

VERSION = "ms1"
SUMMARIZE = (
    "Write a summary of the conversation so far, so that it can be continued without it. Say what was asked and why, what was "
    "decided, what was done and found out (keep names, numbers, paths and identifiers exactly), and what is still to be done. "
    "Answer with the summary alone. Call no tools, and do not go on with the task itself."
)
HEADING = "Summary of the earlier conversation:"


class Summary(Struct, frozen=True, omit_defaults=True):
    """What a compaction item says. With `keeps`, the model sees of what came before only that many items, directly before it,
    and what `apply_compaction` never drops; without, it sees all of that. One that `keeps_user` leaves all that the user said."""

    text: str
    keeps: int | None = None
    keeps_user: bool = False


def is_compaction(item: Item) -> bool:
    return isinstance(item, Unknown) and item.data.get("type") == "compaction"


def compaction_item(id: str, content: str) -> Item:
    return Unknown({"type": "compaction", "id": id, "encrypted_content": content})


def payload_of(summary: Summary) -> str:
    """All of an item's content but the seal."""
    return f"{VERSION}.{msgspec.to_builtins(msgspec.json.encode(summary))}"


def summary_of(item: Item) -> Summary | None:
    """What a compaction item says, whoever sealed it; None for other items and for content of another make."""
    content = item.data.get("encrypted_content") if isinstance(item, Unknown) and is_compaction(item) else None
    match content.split(".") if isinstance(content, str) else ():
        case [version, payload, _] if version == VERSION:
            try:
                return msgspec.json.decode(msgspec.convert(payload, bytes), type=Summary)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
        case _:
            return None


def apply_compaction(items: Sequence[Item]) -> tuple[Item, ...]:
    """The items as the model sees them: summaries as messages, and what the last of them replaces left out.

    System and developer messages are never left out, nor is the last thing the user said. Outputs whose calls are gone go too.
    """
    if not any(map(is_compaction, items)):
        return tuple(items)
    for place in reversed(range(len(items))):
        summary = summary_of(items[place])
        if summary is not None and summary.keeps is not None:
            items = pair_outputs(_shortened(items, place, summary.keeps, keeps_user=summary.keeps_user)).items
            break
    return tuple([_message(item) for item in items])


def _shortened(items: Sequence[Item], place: int, keeps: int, *, keeps_user: bool) -> list[Item]:
    start = max(place - keeps, 0)
    older, kept = items[:start], items[start:place]
    lasting = [
        item for item in older if isinstance(item, Message) and item.role != "assistant" and (keeps_user or not _is_asked(item))
    ]
    asked = [] if keeps_user or any(map(_is_asked, kept)) else [item for item in older if _is_asked(item)][-1:]
    return [*lasting, items[place], *asked, *kept, *items[place + 1 :]]


def _is_asked(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _message(item: Item) -> Item:
    summary = summary_of(item)
    return item if summary is None else user(f"{HEADING}\n\n{summary.text}")
