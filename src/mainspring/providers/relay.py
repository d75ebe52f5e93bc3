"""Hands the events of a reply on in the moment they arrive, past all that is between the connection and their reader."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

from mainspring.core.events import ModelEvent
from mainspring.core.model_stream import TakeEvent
from mainspring.providers.http_client import HttpReply
from mainspring.providers.reply import ReplyReader

PIECE_BYTES: Final = 16_384
"""How much of an answer is read at once, if more has come."""


class Relay:
    """`left` is how many bytes may still come, `rest` what is to be yielded because it was not taken."""

    __slots__ = ("_reader", "_take", "left", "rest")

    def __init__(self, reader: ReplyReader[Any], take: TakeEvent, left: int) -> None:
        self._reader, self._take, self.left = reader, take, left
        self.rest: Iterable[ModelEvent] = ()

    async def run(self, reply: HttpReply) -> bool:
        """Returns whether anything came before there was something to read."""
        before = self.left
        if not self._reader.is_complete:
            await reply.push(self._feed, PIECE_BYTES)
        return self.left < before

    def _feed(self, data: bytes) -> bool:
        reader, take = self._reader, self._take
        self.left -= len(data)
        if self.left < 0:
            reader.cut()
            return False
        events = iter(reader.feed(data))
        for event in events:
            if not take(event):
                self.rest = chain((event,), events)
                return False
        return not (reader.is_over or reader.is_complete)
