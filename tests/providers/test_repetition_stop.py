"""A local model that talks in circles is stopped, and one that does not is left alone."""

import pytest
from msgspec.structs import replace
from tests.providers.backend import QUESTION, events_of

from mainspring.core.events import ItemDone, TextDelta, TurnEnded
from mainspring.core.items import Message
from mainspring.providers.local.repetition_stop import REPEATED_CHARS, RepetitionStop
from mainspring.providers.scripted import Scripted, say


@pytest.mark.parametrize("piece", ["ha", "I am a small model. ", "One.\nTwo.\nThree, and so on.\n"])
async def test_an_answer_in_circles_ends_as_if_its_bound_was_reached(piece: str) -> None:
    model = RepetitionStop(Scripted(say("Well: " + piece * 500), chunk=4))
    events = await events_of(model, replace(QUESTION, model="scripted"))
    said = "".join([event.delta for event in events if isinstance(event, TextDelta)])
    assert REPEATED_CHARS <= len(said) < 2 * REPEATED_CHARS
    done, ended = events[-2:]
    assert isinstance(done, ItemDone)
    assert isinstance(done.item, Message)
    assert (done.item.text, done.item.status) == (said, "incomplete")
    assert isinstance(ended, TurnEnded)
    assert ended.finish == "length"


async def test_an_answer_that_goes_on_is_left_alone() -> None:
    text = " ".join([f"Point {number} is that {number} is a number." for number in range(60)])
    events = await events_of(RepetitionStop(Scripted(say(text))), replace(QUESTION, model="scripted"))
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].finish == "stop"
