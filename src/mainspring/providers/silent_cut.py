"""Notices a backend that reads only as much of a prompt as fits its context, and does not say so. Only its usage tells."""

from typing import Final

from mainspring.core.errors import ContextOverflow
from mainspring.core.items import FunctionCallOutput, InputText, Item, Message, OutputText, Refusal, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate


def check_prompt(request: ModelRequest, usage: Usage | None, url: str) -> None:
    """Raises `ContextOverflow` if the backend has read as much as fills a usual context, and was sent far more.

    A count that fills no context proves nothing: some backends count only what they had not cached, or count wrongly.
    """
    read = 0 if usage is None else usage.input_tokens
    if not any(_FILL * size <= read <= size for size in _CONTEXTS) or not all(map(_is_text, request.items)):
        return
    sent = estimate(request.items, request.instructions, request.tools)
    if sent > _FAR_MORE * read:
        told = (
            f"{url} was sent about {sent:,} tokens and read {read:,}: it leaves out what does not fit its context, without a word"
        )
        advice = "give it a larger one (`num_ctx` or `OLLAMA_CONTEXT_LENGTH` of Ollama, the context length of others)"
        raise ContextOverflow(f"{told}; {advice}, or shorten the conversation")


def _is_text(item: Item) -> bool:
    """Nobody knows how many tokens a backend counts for images and files."""
    match item:
        case Message(content=parts) | FunctionCallOutput(output=tuple(parts)):
            return all(isinstance(part, InputText | OutputText | Refusal) for part in parts)
        case _:
            return True


_CONTEXTS: Final = (2_048, 4_096, 8_192, 16_384, 32_768)
_FILL: Final = 0.97
# The estimate is rough; no text has so few tokens.
_FAR_MORE: Final = 2.5
