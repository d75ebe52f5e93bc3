"""Where an answer is to end before one of some texts.

Backends that take such texts are told them. Not all do, and some take them and go on all the same, so every answer is looked
through here as well. What may be the beginning of one of the texts is held back until more has come, never more than that.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.events import ModelEvent, TextDelta
from mainspring.core.items import Json
from mainspring.core.model_stream import ModelStream


class StopSequences:
    """Reads the events of one turn. `found` is the text that the answer is to end before, once it has come."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._held: TextDelta | None = None
        self.found: str | None = None

    async def watch(self, events: ModelStream) -> ModelStream:
        """The events until one of the texts is found; then the backend is let go, and the turn has no end of its own."""
        async with aclosing(events):
            async for event in events:
                for told in self._read(event):
                    yield told
                if self.found is not None:
                    return

    def _read(self, event: ModelEvent) -> Iterator[ModelEvent]:
        held, self._held = self._held, None
        if type(event) is not TextDelta or not event.delta:
            if held is not None:
                yield held
            yield event
            return
        if held is not None and (held.item_id, held.index) != (event.item_id, event.index):
            yield held
            held = None
        said = event if held is None else _join(held, event)
        places = [(place, -len(text), text) for text in self._texts if (place := said.delta.find(text)) >= 0]
        if places:
            place, _, self.found = min(places)
            if place:
                yield _take(said, place)
            return
        told = len(said.delta) - self._count_held(said.delta)
        if told:
            yield _take(said, told)
        if told < len(said.delta):
            self._held = _drop(said, told)

    def _count_held(self, text: str) -> int:
        """How many characters at the end may be the beginning of one of the texts."""
        longest = min(max(map(len, self._texts)) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if self._may_begin(text[-size:])), 0)

    def _may_begin(self, end: str) -> bool:
        return any(len(text) > len(end) and text.startswith(end) for text in self._texts)


def _join(held: TextDelta, more: TextDelta) -> TextDelta:
    return replace(held, delta=held.delta + more.delta, logprobs=(*_list(held), *_list(more)) or UNSET)


def _take(said: TextDelta, size: int) -> TextDelta:
    """The first so many characters, with the tokens that lie in them."""
    if size == len(said.delta):
        return said
    return replace(
        said, delta=said.delta[:size], logprobs=tuple([each for each, end in _place(_list(said)) if end <= size]) or UNSET
    )


def _drop(said: TextDelta, size: int) -> TextDelta:
    kept = tuple([each for each, end in _place(_list(said)) if end > size])
    return replace(said, delta=said.delta[size:], logprobs=kept or UNSET)


def _place(tokens: Iterable[Json]) -> Iterator[tuple[Json, int]]:
    end = 0
    for each in tokens:
        end += len(str(each.get("token", "")))
        yield each, end


def _list(said: TextDelta) -> tuple[Json, ...]:
    return said.logprobs or ()
