"""The iterative preset: an agent that works until it is done. One test per case that its source names."""

import pytest
from tests.loop.world import Failed, Made, Story, Turn, calls, order, says, told, used

from mainspring.core.events import CallJudged, Reason
from mainspring.core.items import FunctionCall, FunctionCallOutput, Message, OutputText, user
from mainspring.core.model_request import request_for
from mainspring.core.reasons import termination


def look(number: int) -> Made:
    return Made("look", f'{{"n":{number}}}')


@pytest.mark.requirement("C-T1", "S13")
def test_text_only_first_reply_is_returned_after_one_turn() -> None:
    story = Story(order("iterative", confirm=None))
    run = story.play(says("done"))
    assert (run.turns, run.text, termination(run)) == (1, "done", "completed")


@pytest.mark.requirement("C-T2", "C46")
def test_calls_then_text_take_two_turns() -> None:
    story = Story(order("iterative", confirm=None))
    run = story.play(calls("look"), says("done"))
    assert (run.turns, run.text, termination(run)) == (2, "done", "completed")


@pytest.mark.requirement("C-T3", "C44")
def test_calls_forever_end_after_twenty_turns() -> None:
    story = Story(order("iterative"))
    run = story.play(*[calls(look(n)) for n in range(20)])
    assert (run.turns, termination(run)) == (20, "max_iterations")
    assert len(story.executed) == 20


@pytest.mark.requirement("C-T4", "C44", "D60")
def test_tool_that_fails_three_times_in_a_row_ends_the_run() -> None:
    story = Story(order("iterative"), tools={"look": Failed("bad")})
    run = story.play(*[calls(look(n)) for n in range(3)])
    assert (run.turns, termination(run)) == (3, "error")


@pytest.mark.requirement("C-T5", "S17")
def test_budget_that_blocks_a_call_ends_the_run() -> None:
    blocked = CallJudged("", "deny", "budget", "the budget is used up", Reason.BUDGET)
    story = Story(order("iterative"), gate={"save": blocked})
    run = story.play(calls("look"), calls("save"))
    assert (story.end, termination(run)) == (("incomplete", Reason.BUDGET), "budget_exceeded")


@pytest.mark.requirement("C-T6")
def test_result_of_a_call_is_appended_for_the_model() -> None:
    story = Story(order("iterative"), tools={"look": "blue"})
    story.play(calls(look(1)))
    assert list(request_for(story.run).items) == [
        user("go"),
        FunctionCall("call_1", "look", '{"n":1}', id="fc_1"),
        FunctionCallOutput("call_1", "blue", id="fco_1"),
    ]


@pytest.mark.requirement("C-T7")
def test_invalid_arguments_are_answered_and_the_run_goes_on() -> None:
    invalid = CallJudged("", "deny", "valid_arguments", "`n` must be a number")
    story = Story(order("iterative", confirm=None), gate={"look": invalid})
    run = story.play(calls(Made("look", '{"n":"one"}')), calls("save"), says("done"))
    assert told(run.output)[1] == "call_1 !> `n` must be a number"
    assert termination(run) == "completed"


@pytest.mark.requirement("C-T8")
def test_denied_call_is_skipped_with_a_message_and_the_run_goes_on() -> None:
    denied = CallJudged("", "deny", "autonomy", "this agent may only read")
    story = Story(order("iterative", confirm=None), gate={"save": denied})
    run = story.play(calls("save"), says("then not"))
    assert story.executed == []
    assert told(run.output)[1] == "call_1 !> this agent may only read"


@pytest.mark.requirement("C-T9", "C78")
def test_several_calls_are_run_in_sequence_and_all_results_appended() -> None:
    story = Story(order("iterative"))
    story.play(calls("look", "save", "ping"))
    assert [type(action).__name__ for action in story.actions] == ["CallModel", "Judge", "Execute", "Execute", "Execute"]
    assert told(story.run.output)[3:] == ["call_1 -> ok", "call_2 -> ok", "call_3 -> ok"]


@pytest.mark.requirement("C-T10")
def test_unknown_tool_is_answered_and_the_run_goes_on() -> None:
    story = Story(order("iterative", confirm=None))
    run = story.play(calls("levitate"), says("I cannot"))
    assert told(run.output)[1] == "call_1 !> there is no tool levitate"
    assert termination(run) == "completed"


@pytest.mark.requirement("C-T15")
def test_history_is_in_the_order_of_the_conversation() -> None:
    story = Story(order("iterative", confirm=None, instructions="You are an agent."))
    story.play(calls("look", "save", text="let me see"), says("done"))
    assert story.requests[1].instructions == "You are an agent."
    assert told(entry.item for entry in story.run.transcript) == [
        "user: go",
        "assistant: let me see",
        "call_1: look {}",
        "call_2: save {}",
        "call_1 -> ok",
        "call_2 -> ok",
        "assistant: done",
    ]


@pytest.mark.requirement("C-T16")
def test_tool_results_name_the_call_they_answer_and_the_call_names_the_tool() -> None:
    story = Story(order("iterative"))
    story.play(calls("look"))
    call, answer = story.run.output
    assert isinstance(call, FunctionCall)
    assert isinstance(answer, FunctionCallOutput)
    assert (answer.call_id, call.name) == (call.call_id, "look")


@pytest.mark.requirement("C-T20")
def test_reply_without_calls_is_text_only() -> None:
    story = Story(order("iterative", confirm=None))
    run = story.play(Turn((Message("assistant", (OutputText("done"),), id="m"),)))
    assert (run.text, run.calls, termination(run)) == ("done", (), "completed")


@pytest.mark.requirement("C-T21")
def test_malformed_arguments_are_no_crash() -> None:
    invalid = CallJudged("", "deny", "valid_arguments", "the arguments are not JSON")
    story = Story(order("iterative", confirm=None), gate={"call_1": invalid})
    run = story.play(calls(Made("look", '{"n":')), says("sorry"))
    assert told(run.output) == ['call_1: look {"n":', "call_1 !> the arguments are not JSON", "assistant: sorry"]


@pytest.mark.requirement("C-T22")
def test_calls_win_over_text_and_the_text_is_kept() -> None:
    story = Story(order("iterative", confirm=None))
    run = story.play(calls("look", text="I will look"), says("done"))
    assert story.executed == ["call_1"]
    assert told(run.output)[:2] == ["assistant: I will look", "call_1: look {}"]
    assert told(story.requests[1].items)[1] == "assistant: I will look"


@pytest.mark.requirement("C82", "S15", "D61")
def test_worked_example_ends_in_its_fourth_turn() -> None:
    story = Story(order("iterative"), tools={"look": "main.py", "ping": "print(1)"})
    run = story.play(calls("look"), calls("ping"), says("It prints 1."), says("Yes: it prints 1."))
    assert (run.turns, run.text, termination(run)) == (4, "Yes: it prints 1.", "completed")
    assert run.tools_used == ("look", "ping")


@pytest.mark.requirement("C44", "S18", "D63")
def test_sixth_call_of_a_turn_is_answered_with_the_cap() -> None:
    story = Story(order("iterative"))
    story.play(calls(*[look(n) for n in range(6)]))
    assert len(story.executed) == 5
    assert story.verdicts[5] == ("call_6", "deny", "max_tool_calls_per_turn")


@pytest.mark.requirement("C62", "C72")
def test_run_without_tools_is_a_single_shot() -> None:
    story = Story(order("iterative", tools=()))
    run = story.play(says("done"))
    assert (run.turns, termination(run), story.requests[0].tools) == (1, "completed", ())


@pytest.mark.requirement("C45", "S19")
def test_run_counts_what_its_result_will_tell() -> None:
    story = Story(order("iterative", confirm=None), tools={"save": Failed("disk full")})
    run = story.play(calls("look", usage=used(5, 1)), calls("look", "ping"), calls("save", usage=used(7, 2)), says("sorry"))
    assert (run.turns, run.usage.total_tokens, run.calls_allowed, run.tools_used) == (4, 15, 4, ("look", "ping", "save"))
    assert (len(run.transcript), run.errors_in_row, run.tool_failed, termination(run)) == (10, 0, True, "completed")
