"""The same calls again and again, as in runs of older versions: a word of warning, then the end. What holds for new runs is in
`test_ladder.py`."""

from typing import Any

import pytest
from tests.loop.world import Made, Story, calls, fails, order, says, told

from mainspring.core.events import Reason, TurnStarted
from mainspring.core.run import canonical
from mainspring.core.spec import REPEAT, RunSpec

SAME = calls(Made("look", '{"a":1,"b":2}'))
OTHER = calls(Made("look", '{"a":2,"b":2}'))


def old(*, max_repeats: int | None = None, repeat: str = REPEAT, **changes: Any) -> RunSpec:
    """An order as older versions made it: it says nothing about cycles."""
    return order(max_repeats=max_repeats, max_cycle=None, repeat=repeat, **changes)


def test_third_turn_with_the_same_call_earns_a_nudge_and_is_run() -> None:
    story = Story(old(max_repeats=3))
    story.play(SAME, SAME, SAME, says("done"))
    assert story.executed == ["call_1", "call_2", "call_3"]
    assert [story.nudges, told(story.requests[3].items)[-1]] == [["repeat"], f"user: {REPEAT}"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_two_turns_with_the_same_call_earn_no_nudge() -> None:
    story = Story(old(max_repeats=3))
    story.play(SAME, SAME, says("done"))
    assert story.nudges == []


def test_one_more_than_the_nudge_is_not_run_and_ends_the_run() -> None:
    story = Story(old(max_repeats=3))
    run = story.play(SAME, SAME, SAME, SAME)
    assert story.end == ("incomplete", Reason.REPEATED_CALL)
    assert story.executed == ["call_1", "call_2", "call_3"]
    assert story.verdicts[-1] == ("call_4", "deny", "max_repeats")
    assert told(run.output)[-1] == "call_4 !> Not executed: this run goes round in circles, and ends."


def test_key_order_and_spaces_of_arguments_do_not_matter() -> None:
    story = Story(old(max_repeats=2))
    story.play(SAME, calls(Made("look", ' {"b": 2, "a": 1}')), says("done"))
    assert story.nudges == ["repeat"]


def test_all_calls_of_a_turn_must_be_the_same() -> None:
    story = Story(old(max_repeats=2))
    story.play(calls("look", "save"), calls("look", "ping"), calls("look"), calls("save", "look"), says("done"))
    assert story.nudges == []


def test_all_calls_of_a_repeated_turn_are_denied() -> None:
    story = Story(old(max_repeats=1))
    story.play(calls("look", "save"), calls("look", "save"))
    assert story.executed == ["call_1", "call_2"]
    assert [policy for _, _, policy in story.verdicts[2:]] == ["max_repeats", "max_repeats"]


def test_another_call_in_between_starts_the_count_again() -> None:
    story = Story(old(max_repeats=2))
    story.play(SAME, OTHER, SAME, OTHER, says("done"))
    assert story.nudges == []


def test_nudge_may_come_again_after_another_call() -> None:
    story = Story(old(max_repeats=2))
    story.play(SAME, SAME, OTHER, OTHER, says("done"))
    assert story.nudges == ["repeat", "repeat"]


def test_every_new_call_is_warned_about_if_none_may_come_again() -> None:
    story = Story(old(max_repeats=1))
    story.play(SAME, OTHER)
    assert story.nudges == ["repeat", "repeat"]
    story.apply(TurnStarted())
    story.speak(SAME)
    assert story.run.repetition.is_warned is False


def test_text_is_no_repeated_call() -> None:
    story = Story(old(max_repeats=1, confirm="sure?"))
    story.play(says("done"), says("yes"))
    assert story.nudges == ["confirm"]


def test_text_starts_the_count_again_and_the_nudge_may_come_again() -> None:
    story = Story(old(max_repeats=2, confirm="sure?", confirm_once=False))
    story.play(SAME, SAME, says("done"), SAME, SAME, says("done"), says("yes"))
    assert story.nudges == ["repeat", "confirm", "repeat", "confirm"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_failed_turn_in_between_does_not_start_the_count_again() -> None:
    story = Story(old(max_repeats=2, retry_model_errors=True))
    story.play(SAME, fails(retryable=True), SAME, says("done"))
    assert story.nudges == ["repeat"]


def test_repeats_do_not_matter_without_a_limit() -> None:
    story = Story(old())
    story.play(*[SAME] * 9, says("done"))
    assert story.nudges == []
    assert len(story.executed) == 9


def test_wording_of_the_nudge_comes_from_the_spec() -> None:
    story = Story(old(max_repeats=1, repeat="Stop it."))
    story.play(SAME, says("done"))
    assert told(story.requests[1].items)[-1] == "user: Stop it."


def test_nudge_is_not_given_when_no_turn_is_left() -> None:
    story = Story(old(max_repeats=1, max_turns=1))
    story.play(SAME)
    assert story.nudges == []
    assert story.end == ("incomplete", Reason.MAX_TURNS)


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ("", "{}"),
        ("{}", "{}"),
        ('{"b":[2, 1],"a":null}', '{"a":null,"b":[2,1]}'),
        ('{"a"', '{"a"'),
        ("not JSON", "not JSON"),
    ],
)
def test_canonical_arguments_are_equal_for_equal_meaning(arguments: str, form: str) -> None:
    assert canonical(arguments) == form


def test_absurdly_nested_arguments_do_not_break_the_run() -> None:
    assert canonical("[" * 100_000) == "[" * 100_000
    story = Story(old())
    story.play(calls(Made("look", "[" * 100_000)), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
