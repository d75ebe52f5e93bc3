"""Items that the model is still saying: a draft is its beginning and the deltas so far."""

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.chain import Chain
from mainspring.core.events import Annotated, ArgumentsDelta, Delta, ReasoningDelta, RefusalDelta, TextDelta
from mainspring.core.items import (
    FunctionCall,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    Unknown,
)  # fmt: skip


class Draft(Struct, frozen=True):
    """An item that the model is still saying."""

    item: Item
    id: str
    pieces: Chain[Delta | Annotated] = Chain()
    is_done: bool = False


def partial(draft: Draft) -> Item:
    """The item as far as it has been said: whole if it is done, else what the deltas add up to, marked incomplete."""
    item = draft.item
    if draft.is_done:
        return item
    match item:
        case Message():
            return replace(item, content=_content(draft), status="incomplete")
        case FunctionCall():
            said = "".join([piece.delta for piece in draft.pieces if isinstance(piece, ArgumentsDelta)])
            return replace(item, arguments=item.arguments + said, status="incomplete")
        case Reasoning():
            raw = _joined(draft, summary=False)
            return replace(
                item,
                content=tuple([ReasoningText(text) for text in raw]) or item.content,
                summary=tuple([SummaryText(text) for text in _joined(draft, summary=True)]) or item.summary,
                status="incomplete",
            )
        case _:
            return item


def _content(draft: Draft) -> tuple[Part, ...]:
    texts: dict[int, list[str]] = {}
    refusals: set[int] = set()
    notes: dict[int, list[Json]] = {}
    logprobs: dict[int, list[Json]] = {}
    for piece in draft.pieces:
        if type(piece) is TextDelta or type(piece) is RefusalDelta:
            texts.setdefault(piece.index, []).append(piece.delta)
            if isinstance(piece, RefusalDelta):
                refusals.add(piece.index)
            else:
                logprobs.setdefault(piece.index, []).extend(piece.logprobs or ())
        elif isinstance(piece, Annotated):
            texts.setdefault(piece.index, [])
            notes.setdefault(piece.index, []).append(piece.annotation)
    return tuple(
        [
            Refusal("".join(texts[index]))
            if index in refusals
            else OutputText("".join(texts[index]), tuple(notes.get(index, ())), tuple(logprobs.get(index, ())))
            for index in sorted(texts)
        ]
    )


def _joined(draft: Draft, *, summary: bool) -> list[str]:
    texts: dict[int, list[str]] = {}
    for piece in draft.pieces:
        if isinstance(piece, ReasoningDelta) and piece.summary is summary:
            texts.setdefault(piece.index, []).append(piece.delta)
    return ["".join(texts[index]) for index in sorted(texts)]


def words(item: Item) -> list[str]:
    """Everything an item says, piece by piece, for comparing an item with its deltas."""
    match item:
        case Message():
            return [_text_of(part) for part in item.content]
        case FunctionCall():
            return [item.arguments]
        case Reasoning():
            content = item.content if isinstance(item.content, tuple) else ()
            return [part.text for part in content] + [part.text for part in item.summary]
        case _:
            return []


def _text_of(part: Part) -> str:
    match part:
        case OutputText():
            return part.text
        case Refusal():
            return part.refusal
        case _:
            return ""


def item_id(item: Item) -> str:
    found = item.data.get("id") if isinstance(item, Unknown) else getattr(item, "id", None)
    return found if isinstance(found, str) else ""
