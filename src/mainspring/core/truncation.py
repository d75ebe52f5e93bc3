"""Which items may be left out so that the rest fits: the oldest first, and never half of what belongs together."""

from collections.abc import Iterator, Sequence

from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from mainspring.core.tokens import tokens_of


def drop_oldest(items: Sequence[Item], room: int) -> tuple[Item, ...]:
    """The items without as many of the oldest groups as it takes to fit.

    System and developer messages, the last thing the user said and the last group of all stay, even if they are too long.
    """
    parts = list(groups(items))
    asked = max([place for place, part in enumerate(parts) if _is_said(part, "user")], default=-1)
    excess = tokens_of(items) - room
    kept: list[Item] = []
    for place, part in enumerate(parts):
        stays = place in (asked, len(parts) - 1) or _is_said(part, "system", "developer")
        if excess > 0 and not stays:
            excess -= tokens_of(part)
        else:
            kept += part
    return tuple(kept)


def groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in groups that stay or go as one: calls made together, their outputs, and the reasoning that led to them."""
    start, unanswered = 0, 0
    for place, item in enumerate(items):
        match item:
            case Message(role="user" | "system" | "developer") if start < place and unanswered <= 0:
                # Reasoning behind an answer has led to nothing that others say.
                yield items[start:place]
                start = place
            case FunctionCall():
                unanswered += 1
            case FunctionCallOutput():
                unanswered -= 1
            case _:
                pass
        if unanswered <= 0 and not isinstance(item, Reasoning):
            yield items[start : place + 1]
            start, unanswered = place + 1, 0
    if start < len(items):
        yield items[start:]


def _is_said(part: Sequence[Item], *roles: str) -> bool:
    """Whether a group is a message in one of these roles."""
    return len(part) == 1 and isinstance(part[0], Message) and part[0].role in roles
