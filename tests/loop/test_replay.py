"""A log that is read at once, its deltas as few pieces, makes the run that it makes event by event."""

import pytest
from msgspec.structs import replace
from tests.loop.world import Made, Said, Story, calls, is_cut, order, says

from mainspring.core.errors import Malformed
from mainspring.core.events import ArgumentsDelta, Event, ItemStarted, Recorded, TextDelta, TurnStarted
from mainspring.core.history import History
from mainspring.core.items import Message, user
from mainspring.core.run import Run, fold_deltas, history_after, replay, replay_quickly


class Slow(Story):
    """Each of its events has a moment of its own."""

    def apply(self, *events: Event) -> Run:
        for event in events:
            self.now += 0.25
            super().apply(event)
        return self.run


def half_said() -> Slow:
    """A story that continues another, and stops while the model says two things at a time."""
    before = Slow(order())
    before.play(says("hello"))
    story = Slow(order(id="run_2", input=(user("more"),)), history_after(before.run), number=before.number)
    story.play(calls("look", Made("save", '{"a":1}'), text="A longer text"), is_cut(Said("half", is_half=True)))
    story.apply(TurnStarted())
    story.apply(*story.spoken(Said("in all", is_half=True)))
    story.apply(*[TextDelta("msg_4", text) for text in (", this", " is ", "it")])
    story.apply(*story.spoken(Made("look", '{"b":', is_half=True)))
    story.apply(*[ArgumentsDelta("fc_3", text) for text in ("1,", '"c"')])
    story.apply(TextDelta("msg_4", "."), TextDelta("msg_4", ".", index=1), TextDelta("msg_4", "!", index=1))
    return story


def without_pieces(run: Run) -> Run:
    return replace(run, drafts=())


def test_every_beginning_of_a_log_makes_the_same_run_read_at_once() -> None:
    story = half_said()
    for length in range(1, len(story.log) + 1):
        run, expected = replay_quickly(story.log[:length], story.history), replay(story.log[:length], story.history)
        assert run.output == expected.output
        assert without_pieces(run) == without_pieces(expected)
    assert run.output == story.run.output


def test_what_is_half_said_is_few_pieces_however_many_deltas_said_it() -> None:
    story = Slow(order())
    story.apply(TurnStarted(), ItemStarted(Message("assistant", (), id="msg_1", status="in_progress")))
    story.apply(*[TextDelta("msg_1", f"{number} ") for number in range(100)])
    run = replay_quickly(story.log, story.history)
    assert run.output == story.run.output
    assert len(run.drafts[0].pieces) == 2


def test_deltas_that_stand_alone_are_pieces_as_they_are() -> None:
    story = Slow(order())
    story.apply(TurnStarted(), ItemStarted(Message("assistant", (), id="msg_1", status="in_progress")))
    story.apply(*[TextDelta("msg_1", f"{index}", index=index % 2) for index in range(6)])
    assert replay_quickly(story.log, story.history) == story.run


def test_time_nobody_drove_the_run_is_counted_from_the_last_delta() -> None:
    story = Slow(order())
    story.apply(TurnStarted(), *story.spoken(Said("in all", is_half=True)))
    story.crash(seconds=30.0)
    assert replay_quickly(story.log, story.history) == story.run
    assert story.run.idle == 30.25


def test_a_log_without_some_of_its_deltas_is_not_read() -> None:
    story = Slow(order())
    story.apply(TurnStarted(), *story.spoken(Said("in all", is_half=True)), TextDelta("msg_1", "."), TextDelta("msg_1", "!"))
    for gone in range(1, len(story.log) - 1):
        with pytest.raises(Malformed, match=f"expects event {gone}, not {gone + 1}"):
            replay_quickly([*story.log[:gone], *story.log[gone + 1 :]], story.history)


def test_a_log_read_at_once_begins_as_every_log_does() -> None:
    with pytest.raises(Malformed):
        replay_quickly([Recorded(0, 1.0, TurnStarted())], History())


def test_several_deltas_are_as_many_events_and_the_moment_of_the_last() -> None:
    story = Slow(order())
    story.apply(TurnStarted(), *story.spoken(Said("in all", is_half=True)))
    run = fold_deltas(story.run, TextDelta("msg_1", ", this is it"), 3, 2000.0)
    story.apply(TextDelta("msg_1", ", this"), TextDelta("msg_1", " is"))
    story.now = 2000.0 - 0.25
    story.apply(TextDelta("msg_1", " it"))
    assert (run.output, run.seq, run.clock) == (story.run.output, story.run.seq, 2000.0)
    assert without_pieces(run) == without_pieces(story.run)
