"""Notices a backend that reads or writes only as much as fits its context, and does not say so. Only its usage tells."""

import sys
from typing import Final, NamedTuple

from mainspring.core.items import FunctionCallOutput, InputText, Item, Message, OutputText, Refusal, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate


class FullWindow(NamedTuple):
    """A context that was full, how many tokens it has, and what came of it."""

    size: int
    told: str


def find_cut_prompt(request: ModelRequest, usage: Usage | None, window: int | None = None) -> FullWindow | None:
    """The context that the backend has filled with a prompt of which it was sent far more.

    A count that fills no context proves nothing: some backends count only what they had not cached, or count wrongly. Where the
    `window` is known, less is enough.
    """
    read = 0 if usage is None else usage.input_tokens
    size = _find_filled(read, window)
    if size is None or not all(map(_is_text, request.items)):
        return None
    sent = estimate(request.items, request.instructions, request.tools)
    if sent <= (_MORE if size == window else _FAR_MORE) * read:
        return None
    return FullWindow(size, f"was sent about {sent:,} tokens and read {read:,}: it leaves out what does not fit its context")


def find_cut_answer(request: ModelRequest, usage: Usage | None, window: int | None = None) -> FullWindow | None:
    """The context that a prompt and its answer fill, where the answer stopped for its length before any limit that was asked."""
    if usage is None or (request.max_output_tokens or sys.maxsize) <= usage.output_tokens:
        return None
    size = _find_filled(usage.total_tokens, window)
    # A round number is a limit of the server's.
    if size is None or not usage.output_tokens % _ROUND or not usage.output_tokens % 100:
        return None
    return FullWindow(size, f"stopped after {usage.output_tokens:,} tokens: they fill its context together with the prompt")


def _find_filled(tokens: int, window: int | None) -> int | None:
    sizes = _CONTEXTS if window is None else (window, *_CONTEXTS)
    return next((size for size in sizes if _FILL * size <= tokens <= size), None)


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
_MORE: Final = 1.5
_ROUND: Final = 64
ENLARGE: Final = (
    "give it a larger one (`num_ctx` or `OLLAMA_CONTEXT_LENGTH` of Ollama, `-c` of llama.cpp, `--max-model-len` of vLLM, the "
    "context length of others), or shorten the conversation"
)
