"""The decision preset: few turns, cold, with a short memory."""

import pytest
from tests.loop.world import Made, Story, calls, fails, order, says, told

from mainspring.core.events import Reason
from mainspring.core.history import Entry, history_of
from mainspring.core.items import assistant, user
from mainspring.core.reasons import Verdict, decision


def look(number: int) -> Made:
    return Made("look", f'{{"n":{number}}}')


@pytest.mark.requirement("B13")
def test_answer_at_once_is_the_decision() -> None:
    story = Story(order("decision"))
    run = story.play(says("You have two tasks."))
    assert (run.text, decision(run)) == ("You have two tasks.", Verdict("RESPOND_ONLY", "SUCCESS:RESPONSE_GIVEN"))


@pytest.mark.requirement("B13")
def test_calls_are_run_one_by_one_and_the_model_is_asked_again() -> None:
    story = Story(order("decision"))
    run = story.play(calls("look", "save"), says("Done."))
    assert [type(action).__name__ for action in story.actions] == [
        "CallModel", "Judge", "Execute", "Execute", "CallModel", "Finish",
    ]  # fmt: skip
    assert decision(run) == Verdict("INVOKE_TOOL", "SUCCESS:TASK_COMPLETED")


@pytest.mark.requirement("B13", "B15")
def test_decision_is_given_up_after_five_turns() -> None:
    story = Story(order("decision"))
    run = story.play(*[calls(look(n)) for n in range(5)])
    assert (run.turns, story.end) == (5, ("incomplete", Reason.MAX_TURNS))
    assert decision(run) == Verdict("INVOKE_TOOL", "ERROR:RESPONSE_GENERATION")


@pytest.mark.requirement("B13")
def test_model_error_ends_the_decision() -> None:
    story = Story(order("decision"))
    run = story.play(fails(retryable=True))
    assert decision(run) == Verdict("RESPOND_ONLY", "ERROR:RESPONSE_GENERATION")


@pytest.mark.requirement("B7", "B16", "B17")
def test_decision_is_asked_for_cold_and_short() -> None:
    story = Story(order("decision"))
    story.play(says("ok"))
    assert (story.requests[0].temperature, story.requests[0].max_output_tokens) == (0.0, 1024)


@pytest.mark.requirement("B18", "B19", "S11")
def test_decision_sees_twenty_messages_of_four_thousand_characters() -> None:
    said = [user(f"{n}" + "x" * 5000) if n % 2 else assistant(f"{n}") for n in range(50)]
    story = Story(order("decision"), history_of([Entry(item, "input") for item in said]))
    story.play(says("ok"))
    seen = story.requests[0].items
    assert len(seen) == 21
    assert told(seen)[0] == "assistant: 30"
    assert [len(told([item])[0]) for item in seen[1:3]] == [len("user: ") + 4000, len("assistant: 32")]


def test_text_of_a_decision_is_not_asked_about() -> None:
    story = Story(order("decision"))
    story.play(calls("look"), says("Done."))
    assert story.nudges == []
