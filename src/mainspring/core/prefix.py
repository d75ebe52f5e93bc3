"""What the model sees of a transcript, worked out once: each turn adds what is new, however long the transcript is.

Theory of operation. Entries are only added, but what is added may change what the model sees of those before: a late output moves
behind its call, a compaction item replaces what it sums up. Where every call has its output and the last item ends a turn of the
conversation, only a compaction can still do so. Up to such a place the view is kept beside the entries (`Chain.notes`), with
what providers have written of it. At almost every request the whole transcript is such a prefix; where it is not, and after a
compaction, the view is made anew.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from mainspring.core.chain import Chain
from mainspring.core.compaction import apply_compaction, is_compaction
from mainspring.core.history import Entry, list_label, pair_outputs
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Part,
)
from mainspring.core.lru_cache import LRUCache

# In how many ways the items of one prefix are kept written: one for each wire format that a conversation goes to.
DIALECTS = 2


class PrefixText(Struct, frozen=True):
    """What a provider has written of the first `count` items of a prefix, in a few pieces."""

    count: int = 0
    pieces: tuple[bytes, ...] = ()

    def extend(self, piece: bytes, count: int) -> "PrefixText":
        """With what the items up to `count` are written as. Pieces that are about as long are joined, with a comma: so there are
        never many, and none is copied often."""
        pieces = [*self.pieces, piece] if piece else [*self.pieces]
        while len(pieces) > 1 and len(pieces[-2]) <= 2 * len(pieces[-1]):
            pieces[-2:] = [b",".join(pieces[-2:])]
        return PrefixText(count, tuple(pieces))


class Prefix:
    """The items that the model sees of the first `length` entries. It only grows, for whoever has a longer version of them."""

    __slots__ = ("call_ids", "file_ids", "items", "length", "texts")

    def __init__(self) -> None:
        self.length = 0
        self.items: list[Item] = []
        self.call_ids: set[str] = set()
        self.file_ids: tuple[str, ...] = ()
        self.texts: LRUCache[Hashable, PrefixText] = LRUCache(DIALECTS)

    def add(self, items: Collection[Item], length: int) -> None:
        self.items += items
        self.call_ids.update([item.call_id for item in items if isinstance(item, FunctionCall)])
        if found := list_file_ids(items):
            self.file_ids = tuple(dict.fromkeys([*self.file_ids, *found]))
        self.length = length


DATA: Final = "data:"
PDF: Final = "data:application/pdf"
# Backends take these as they are, or say that they do not.
_TAKEN: Final = ("data:image/", "data:audio/", "data:video/")


def list_file_ids(items: Collection[Item]) -> list[str]:
    """The files that these items name by id, and the documents that they bring, as data URLs; each once."""
    return list(dict.fromkeys(list_named_files(items)))


def list_named_files(items: Collection[Item]) -> list[str]:
    """The same, as often as they do."""
    return [id for part in list_file_parts(items) if (id := find_file_id(part))]


def list_file_parts(items: Collection[Item]) -> list[InputFile | InputImage]:
    groups: list[Sequence[Part]] = [item.content for item in items if isinstance(item, Message)]
    groups += [item.output for item in items if isinstance(item, FunctionCallOutput) and not isinstance(item.output, str)]
    return [part for group in groups for part in group if isinstance(part, InputFile | InputImage)]


def find_file_id(part: InputFile | InputImage) -> str | None:
    """The id of the file that a part names, or the document that it brings, as a data URL."""
    if isinstance(part.file_id, str):
        return part.file_id
    data = part.file_data if isinstance(part, InputFile) else None
    return data if isinstance(data, str) and data.startswith(DATA) and not data.startswith(_TAKEN) else None


def find_prefix(entries: Chain[Entry]) -> Prefix | None:
    """The prefix that all of these entries are; None if they are none, or less than what is kept."""
    known = entries.notes.get(Prefix)
    prefix = known if isinstance(known, Prefix) else Prefix()
    if prefix.length >= len(entries):
        return prefix if prefix.length == len(entries) else None
    found = pair_outputs(list_seen(entries[prefix.length :]))
    shown = found.items
    if any(map(is_compaction, shown)):
        found, prefix = pair_outputs(list_seen(entries)), Prefix()
        shown = apply_compaction(found.items)
    if found.unanswered or any(map(_is_cut, found.items)) or (shown and not _ends_turn(shown[-1])):
        return None
    prefix.add(shown, len(entries))
    entries.notes[Prefix] = prefix
    return prefix


def list_seen(entries: Iterable[Entry]) -> list[Item]:
    return [entry.item for entry in entries if not entry.hidden and not _is_unseen(entry.item)]


_APPROVALS: Final = (ApprovalRequest, ApprovalResponse)


def _is_unseen(item: Item) -> bool:
    """What is between us and the client: the model is told of tools by the tools, of approvals by what comes of them."""
    return type(item) in _APPROVALS or list_label(item) is not None


def _is_cut(item: Item) -> bool:
    """A call that an output may still complete."""
    return isinstance(item, FunctionCall) and item.status != "completed"


def _ends_turn(item: Item) -> bool:
    """Whether what the model says next does not belong to what it has said before."""
    return isinstance(item, FunctionCallOutput) or (isinstance(item, Message) and item.role != "assistant")
