"""What the model's answer means when it is not plain text or whole calls."""

import pytest
from tests.loop.world import Made, Said, Story, Turn, calls, order, refuses, says, told

from mainspring.core.events import Reason
from mainspring.core.items import Message, OutputText, Reasoning, Refusal, Unknown


def test_empty_answer_counts_as_answered() -> None:
    story = Story(order())
    run = story.play(Turn())
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert (run.output, run.text) == ((), "")


def test_empty_answer_after_calls_counts_as_answered() -> None:
    story = Story(order())
    run = story.play(calls("look"), Turn())
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert run.text == ""


def test_answer_of_only_reasoning_counts_as_answered() -> None:
    story = Story(order())
    story.play(Turn((Reasoning("rs_1"),)))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_order_that_only_keeps_its_input_asks_no_model() -> None:
    story = Story(order(goal="nothing"))
    run = story.play()
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert (run.output, told(entry.item for entry in run.own_entries)) == ((), ["user: go"])


def test_item_of_an_unknown_kind_is_part_of_the_answer_and_of_the_conversation() -> None:
    odd = Unknown({"type": "hologram", "id": "h_1"})
    story = Story(order())
    run = story.play(Turn((odd, Made("look"))), says("done"))
    assert run.output[0] == odd
    assert story.requests[1].items[1] == odd


@pytest.mark.requirement("A7", "S8")
def test_text_cut_off_at_the_output_limit_is_kept_and_incomplete() -> None:
    story = Story(order())
    run = story.play(Turn((Said("once upon a", is_half=True),), finish="length"))
    assert story.end == ("incomplete", Reason.OUTPUT_TRUNCATED)
    assert told(run.output) == ["assistant (incomplete): once upon a"]
    assert run.text == "once upon a"


@pytest.mark.requirement("S8")
def test_half_call_is_kept_in_the_output_and_never_run() -> None:
    story = Story(order())
    run = story.play(Turn((Said("well"), Made("look", '{"pa', is_half=True)), finish="length"))
    assert story.end == ("incomplete", Reason.OUTPUT_TRUNCATED)
    assert told(run.output) == ["assistant: well", 'call_1 (incomplete): look {"pa']
    assert (story.executed, story.verdicts) == ([], [])


@pytest.mark.requirement("S8")
def test_whole_calls_of_a_truncated_answer_are_answered_but_not_run() -> None:
    story = Story(order())
    run = story.play(Turn((Made("look"), Made("save", "{", is_half=True)), finish="length"))
    assert story.end == ("incomplete", Reason.OUTPUT_TRUNCATED)
    assert told(run.output) == [
        "call_1: look {}",
        "call_2 (incomplete): save {",
        "call_1 !> Not executed: the model's answer was cut off at the output limit.",
    ]
    assert (story.executed, story.verdicts) == ([], [])


def test_half_call_is_hidden_from_the_runs_that_follow() -> None:
    story = Story(order())
    story.play(Turn((Made("look", "{", is_half=True),), finish="length"))
    later = story.then(*order().input)
    later.play(says("done"))
    assert told(later.requests[0].items) == ["user: go", "user: go"]


def test_answer_stopped_by_a_content_filter_is_incomplete_and_its_calls_are_not_run() -> None:
    story = Story(order())
    run = story.play(calls("look", finish="content_filter"))
    assert story.end == ("incomplete", Reason.CONTENT_FILTER)
    assert told(run.output)[-1] == "call_1 !> Not executed: the model's answer was stopped by a content filter."
    assert story.executed == []


def test_cut_answer_comes_before_the_deadline() -> None:
    story = Story(order(max_seconds=1.0))
    story.play(says("x", finish="length", seconds=2.0))
    assert story.end == ("incomplete", Reason.OUTPUT_TRUNCATED)


def test_refusal_completes_the_run_with_a_reason_of_its_own() -> None:
    story = Story(order())
    run = story.play(refuses("I will not"))
    assert story.end == ("completed", Reason.REFUSAL)
    assert told(run.output) == ["assistant: I will not"]
    assert run.text == ""


def test_refusal_next_to_text_is_a_refusal() -> None:
    mixed = Message("assistant", (OutputText("sorry, "), Refusal("no")), id="m")
    story = Story(order())
    story.play(Turn((mixed,)))
    assert story.end == ("completed", Reason.REFUSAL)


def test_refusal_in_the_history_is_not_the_answer() -> None:
    story = Story(order())
    story.play(refuses("no"))
    later = story.then()
    later.play(Turn())
    assert later.end == ("completed", Reason.FINAL_ANSWER)


def test_refusal_is_not_the_answer_if_words_follow() -> None:
    story = Story(order())
    story.play(Turn((Said("no", is_refusal=True), Said("but here is a poem"))))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_text_of_a_run_is_its_last_message() -> None:
    story = Story(order())
    run = story.play(calls("look", text="looking"), says("seen"))
    assert run.text == "seen"


def test_message_of_the_history_is_not_the_text_of_the_run() -> None:
    story = Story(order())
    story.play(says("earlier"))
    assert story.then(*order().input).run.text == ""
