"""How many tokens a request has, roughly: an estimate for deciding, never a measure for billing.

Text counts a token for every 3.5 characters, which is near enough for English and code, too little for most other scripts. Every
item costs 4 more for what wraps it, and a tool what its JSON would as text. An image counts as one of middling size whatever its
data; files count as the text of their data. What backends report in `usage` is their own count and is never touched.
"""

from collections.abc import Iterable

from mainspring.core.drafts import words
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
    Reasoning,
    Refusal,
    Tool,
    Usage,
    encode,
    split_media,
)  # fmt: skip

CHARS_PER_TOKEN = 3.5
PER_ITEM = 4
PER_IMAGE = 765
MOST_TOKENS = 1_000_000_000


def estimate(items: Iterable[Item], instructions: str | None = None, tools: Iterable[Tool] = ()) -> int:
    """The tokens of all that a request says."""
    told = PER_ITEM + tokens_of_text(instructions) if instructions else 0
    return told + sum(map(tokens_of_tool, tools)) + tokens_of(items)


def is_plausible(usage: Usage) -> bool:
    """Whether a turn can have used this: no count is negative, or beyond what any model takes or says."""
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens)
    return all(0 <= count <= MOST_TOKENS for count in counts)


def tokens_of(items: Iterable[Item]) -> int:
    return sum([PER_ITEM + _item(item) for item in items])


def tokens_of_text(text: str) -> int:
    """At least one for any text at all."""
    return _tokens_of_length(len(text))


def _tokens_of_length(chars: int) -> int:
    return -int(-chars // CHARS_PER_TOKEN)


def tokens_of_tool(tool: Tool) -> int:
    return tokens_of_text(encode(tool).decode())


def _item(item: Item) -> int:
    match item:
        case Message():
            return sum(map(_part, item.content))
        case FunctionCall():
            return tokens_of_text(item.name) + tokens_of_text(item.arguments)
        case FunctionCallOutput(output=str(text)):
            return tokens_of_text(text)
        case FunctionCallOutput():
            return sum([_part(part) for part in item.output if isinstance(part, Part)])
        case Reasoning():
            return tokens_of_text("".join(words(item)))
        case _:
            return tokens_of_text(encode(item).decode())


def _part(part: Part) -> int:
    match part:
        case InputText(text) | OutputText(text) | Refusal(text):
            return tokens_of_text(text)
        case InputImage():
            return PER_IMAGE
        case _:
            rest, media = split_media(part)
            return _tokens_of_length(len(encode(rest).decode()) + len(media))
