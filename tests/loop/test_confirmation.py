"""Double confirmation: a first text answer is asked about once."""

import pytest
from tests.loop.world import Made, Story, Turn, calls, fails, order, refuses, says, told, used

from mainspring.core.events import Reason
from mainspring.core.items import Unknown
from mainspring.core.spec import CONFIRM


@pytest.mark.requirement("C-T11", "C55")
def test_first_text_is_asked_about_in_the_history() -> None:
    story = Story(order("iterative"))
    story.play(says("done"))
    assert story.nudges == ["confirm"]
    assert told(entry.item for entry in story.run.transcript) == ["user: go", "assistant: done", f"user: {CONFIRM}"]


@pytest.mark.requirement("C-T12", "C55")
def test_working_again_after_the_question_goes_on_normally_and_is_not_asked_about_again() -> None:
    story = Story(order("iterative"))
    story.play(says("done"), calls("look"), says("done now"))
    assert story.nudges == ["confirm"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.run.text == "done now"


def test_answer_that_follows_more_work_is_asked_about_again_where_that_is_wanted() -> None:
    story = Story(order("iterative", confirm_once=False))
    story.play(says("done"), calls("look"), says("done now"), says("yes"))
    assert story.nudges == ["confirm", "confirm"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.run.text == "yes"


@pytest.mark.requirement("C-T13", "C55", "S15", "C82")
def test_second_text_in_a_row_ends_the_run_and_the_question_costs_a_turn() -> None:
    story = Story(order("iterative"))
    story.play(calls("look"), calls(Made("save")), says("done"), says("yes, done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.run.turns == 4
    assert told(story.run.output)[-2:] == ["assistant: done", "assistant: yes, done"]


@pytest.mark.requirement("C-T14", "C55", "S13")
def test_first_text_is_accepted_when_confirmation_is_off() -> None:
    story = Story(order("iterative", confirm=None))
    story.play(says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


@pytest.mark.requirement("S14")
def test_wording_of_the_question_comes_from_the_spec() -> None:
    story = Story(order("iterative", confirm="Really?"))
    story.play(says("done"), says("yes"))
    assert told(story.requests[1].items) == ["user: go", "assistant: done", "user: Really?"]


def test_question_is_not_part_of_the_output() -> None:
    story = Story(order("iterative"))
    story.play(says("done"), says("yes"))
    assert told(story.run.output) == ["assistant: done", "assistant: yes"]


@pytest.mark.requirement("C62")
def test_run_without_tools_is_not_asked() -> None:
    story = Story(order("iterative", tools=()))
    story.play(says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_tools_of_an_unknown_kind_are_tools() -> None:
    story = Story(order("iterative", tools=(Unknown({"type": "web_search"}),)))
    story.play(says("done"))
    assert story.nudges == ["confirm"]


def test_refusal_is_not_asked_about() -> None:
    story = Story(order("iterative"))
    story.play(refuses("no"))
    assert story.end == ("completed", Reason.REFUSAL)


def test_empty_answer_is_asked_about_too() -> None:
    story = Story(order("iterative"))
    story.play(Turn(), Turn())
    assert story.nudges == ["confirm"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_answer_in_the_last_turn_is_not_asked_about() -> None:
    story = Story(order("iterative", max_turns=2))
    story.play(calls("look"), says("done"))
    assert [story.nudges, story.end] == [[], ("completed", Reason.FINAL_ANSWER)]


def test_answer_in_the_last_but_one_turn_is_asked_about() -> None:
    story = Story(order("iterative", max_turns=3))
    story.play(calls("look"), says("done"), says("yes"))
    assert story.nudges == ["confirm"]


@pytest.mark.parametrize("limit", ["max_tokens", "max_output_tokens"])
def test_answer_that_used_up_the_tokens_is_not_asked_about(limit: str) -> None:
    story = Story(order("iterative", **{limit: 10}))
    story.play(says("done", usage=used(0, 10)))
    assert [story.nudges, story.end] == [[], ("completed", Reason.FINAL_ANSWER)]


def test_answer_that_comes_late_is_not_asked_about() -> None:
    story = Story(order("iterative", max_seconds=9.0))
    story.play(says("done", seconds=9.0))
    assert [story.nudges, story.end] == [[], ("completed", Reason.FINAL_ANSWER)]


def test_failure_after_the_question_does_not_ask_it_again() -> None:
    story = Story(order("iterative"))
    story.play(says("done"), fails(retryable=True), says("yes"))
    assert story.nudges == ["confirm"]
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_refusal_after_the_question_ends_as_a_refusal() -> None:
    story = Story(order("iterative"))
    story.play(says("done"), refuses("no"))
    assert story.end == ("completed", Reason.REFUSAL)
