"""Ends an answer that goes round in circles. Small models do, until they are cut off, and all others wait meanwhile."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import Message, OutputText
from mainspring.core.model_request import ModelRequest
from mainspring.providers.wrapper import ProviderWrapper

REPEATED_CHARS: Final = 400
LONGEST_PERIOD: Final = 100
EVERY_CHARS: Final = 80


class RepetitionStop(ProviderWrapper):
    """Ends a text whose last 400 characters are one piece again and again, as if its bound was reached."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        message, said, due = Message("assistant"), "", REPEATED_CHARS
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                yield event
                match event:
                    case ItemStarted(Message() as message):
                        said, due = "", REPEATED_CHARS
                    case TextDelta(delta=delta):
                        said += delta
                        if len(said) >= due:
                            due = len(said) + EVERY_CHARS
                            if is_repeating(said):
                                break
            else:
                return
        yield ItemDone(replace(message, content=(OutputText(said),), status="incomplete"))
        yield TurnEnded("length")


def is_repeating(text: str) -> bool:
    tail = text[-REPEATED_CHARS:]
    return any(tail[period:] == tail[:-period] for period in range(1, LONGEST_PERIOD + 1))
