"""The limits of a run, exact at their boundaries."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.loop.world import CHOOSE, LOOK, Failed, Made, Story, Turn, calls, fails, is_cut, order, says, told, used

from mainspring.core.events import CallJudged, Reason, ToolEnded, Used
from mainspring.core.items import Message, OutputText

DONE = ("completed", Reason.FINAL_ANSWER)


@pytest.mark.requirement("A7", "A30", "S1")
def test_calls_of_the_last_turn_are_run_and_then_the_run_is_incomplete() -> None:
    story = Story(order(max_turns=2))
    run = story.play(calls("look"), calls("save"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert story.executed == ["call_1", "call_2"]
    assert told(run.output)[-1] == "call_2 -> ok"


def test_answer_in_the_last_turn_is_completed() -> None:
    story = Story(order(max_turns=2))
    story.play(calls("look"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_turn_that_was_cut_off_costs_no_turn() -> None:
    story = Story(order(max_turns=1))
    run = story.play(is_cut(), is_cut(), says("done"))
    assert story.end == DONE
    assert run.turns == 1


@pytest.mark.requirement("A10")
def test_ten_turns_are_the_default() -> None:
    story = Story(order())
    story.play(*[calls(Made("look", f'{{"n": {n}}}')) for n in range(10)])
    assert story.end == ("incomplete", Reason.MAX_TURNS)
    assert story.run.turns == 10


def test_turns_that_the_budget_leaves_end_the_run_for_its_budget() -> None:
    story = Story(order(max_turns=None, budget_turns=2))
    story.play(calls("look"), calls("save"))
    assert story.end == ("incomplete", Reason.BUDGET)
    assert story.executed == ["call_1", "call_2"]


def test_answer_in_the_last_turn_of_the_budget_is_completed() -> None:
    story = Story(order(max_turns=None, budget_turns=2))
    story.play(calls("look"), says("done"))
    assert story.end == DONE


def test_a_run_that_is_too_long_by_itself_and_by_its_budget_is_too_long() -> None:
    story = Story(order(max_turns=1, budget_turns=1))
    story.play(calls("look"))
    assert story.end == ("incomplete", Reason.MAX_TURNS)


def test_run_without_a_turn_limit_goes_on() -> None:
    story = Story(order(max_turns=None, max_repeats=None))
    story.play(*[calls("look")] * 30, says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)


def test_one_of_two_parallel_calls_is_run_if_one_call_is_allowed() -> None:
    story = Story(order(max_tool_calls=1))
    run = story.play(calls("look", "save"))
    assert story.end == ("incomplete", Reason.MAX_TOOL_CALLS)
    assert story.executed == ["call_1"]
    assert told(run.output)[2:] == [
        "call_1 -> ok",
        "call_2 !> Not executed: the limit of 1 tool calls for this run is reached.",
    ]


def test_all_calls_that_max_tool_calls_allows_and_then_text_are_completed() -> None:
    story = Story(order(max_tool_calls=2))
    story.play(calls("look", "save"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.executed == ["call_1", "call_2"]


def test_call_beyond_max_tool_calls_in_a_later_turn_is_denied_and_ends_the_run() -> None:
    story = Story(order(max_tool_calls=2))
    story.play(calls("look"), calls("look"), calls("look"))
    assert story.end == ("incomplete", Reason.MAX_TOOL_CALLS)
    assert story.verdicts[-1] == ("call_3", "deny", "max_tool_calls")


def test_denied_calls_do_not_count_as_tool_calls() -> None:
    story = Story(order(max_tool_calls=1), gate={"save": "deny"})
    story.play(calls("save", "look"), says("done"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.executed == ["call_2"]


def test_calls_for_the_client_do_not_count_as_tool_calls() -> None:
    story = Story(order(max_tool_calls=1))
    story.play(calls("look", "choose", "choose"))
    assert story.end == ("requires_action", Reason.CLIENT_ACTION)


def test_unknown_tool_beyond_max_tool_calls_ends_the_run_too() -> None:
    story = Story(order(max_tool_calls=1, tools=(LOOK, CHOOSE)))
    story.play(calls("look"), calls("nothing"))
    assert story.end == ("incomplete", Reason.MAX_TOOL_CALLS)


@pytest.mark.requirement("S18", "C44")
def test_surplus_calls_of_a_turn_are_answered_with_the_cap_and_the_run_goes_on() -> None:
    story = Story(order(max_tool_calls_per_turn=2))
    run = story.play(calls("look", "look", "look", "save"), says("done"))
    told_cap = "Not executed: at most 2 tool calls are allowed in one turn. Call again in the next."
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert story.executed == ["call_1", "call_2"]
    assert told(run.output)[4:8] == ["call_1 -> ok", "call_2 -> ok", f"call_3 !> {told_cap}", f"call_4 !> {told_cap}"]


def test_cap_per_turn_counts_from_the_start_in_each_turn() -> None:
    story = Story(order(max_tool_calls_per_turn=1))
    story.play(calls("look"), calls("look"), says("done"))
    assert [verdict for _, verdict, _ in story.verdicts] == ["allow", "allow"]


def test_surplus_call_beyond_both_caps_only_counts_for_the_turn() -> None:
    story = Story(order(max_tool_calls_per_turn=1, max_tool_calls=1))
    story.play(calls("look", "look"), says("done"))
    assert story.verdicts[1] == ("call_2", "deny", "max_tool_calls_per_turn")
    assert story.end == ("completed", Reason.FINAL_ANSWER)


@pytest.mark.parametrize(("spent", "end"), [(9, ("completed", Reason.FINAL_ANSWER)), (10, ("incomplete", Reason.BUDGET))])
def test_no_turn_is_begun_once_max_tokens_are_used(spent: int, end: tuple[str, Reason]) -> None:
    story = Story(order(max_tokens=10))
    last = [says("done", usage=used(50, 50))] if spent < 10 else []
    story.play(calls("look", usage=used(spent - 4, 4)), *last)
    assert story.end == end
    assert story.executed == ["call_1"]


@pytest.mark.parametrize(
    ("spent", "end"), [(9, ("completed", Reason.FINAL_ANSWER)), (10, ("incomplete", Reason.OUTPUT_TRUNCATED))]
)
def test_no_turn_is_begun_once_max_output_tokens_are_used(spent: int, end: tuple[str, Reason]) -> None:
    story = Story(order(max_output_tokens=10))
    last = [says("done", usage=used(50, 50))] if spent < 10 else []
    story.play(calls("look", usage=used(100, spent)), *last)
    assert story.end == end


def test_failed_turns_use_tokens_too() -> None:
    story = Story(order(max_tokens=10, retry_model_errors=True))
    story.play(fails(retryable=True, usage=used(5, 0)), fails(retryable=True, usage=used(5, 0)))
    assert story.end == ("incomplete", Reason.BUDGET)
    assert story.run.usage == used(10, 0)


@pytest.mark.requirement("S17")
@pytest.mark.parametrize(
    ("seconds", "end"), [(59.9, ("completed", Reason.FINAL_ANSWER)), (60.0, ("incomplete", Reason.DEADLINE))]
)
def test_calls_are_not_run_once_the_time_is_up(seconds: float, end: tuple[str, Reason]) -> None:
    story = Story(order(max_seconds=60.0))
    story.play(calls("look", seconds=seconds), *([says("done")] if seconds < 60 else []))
    assert story.end == end
    assert story.executed == (["call_1"] if seconds < 60 else [])
    if seconds >= 60:
        assert told(story.run.output)[-1] == "call_1 !> Not executed: the time limit of this run is reached."


def test_answer_that_comes_late_still_counts() -> None:
    story = Story(order(max_seconds=60.0))
    story.play(says("done", seconds=60.0))
    assert story.end == DONE


def test_no_turn_is_begun_once_the_time_is_up() -> None:
    story = Story(order(max_seconds=60.0))
    story.play(calls("look"))
    story.now += 60.0
    story.play(is_cut())
    assert story.end == ("incomplete", Reason.DEADLINE)


def test_idle_time_before_a_resume_does_not_count() -> None:
    story = Story(order(max_seconds=60.0))
    story.play(calls("look", seconds=30.0))
    story.crash(seconds=1000.0)
    story.play(calls("look", seconds=29.0))
    story.crash(seconds=1000.0)
    assert story.run.elapsed == 59.0
    story.play(calls("look", seconds=1.0))
    assert story.end == ("incomplete", Reason.DEADLINE)


def test_used_up_tokens_come_before_every_other_limit() -> None:
    story = Story(order(max_turns=1, max_tokens=10, max_output_tokens=10, max_tool_calls=1))
    story.play(calls("look", "look", usage=used(0, 10)))
    assert story.end == ("incomplete", Reason.BUDGET)


def test_stop_of_a_policy_comes_before_max_turns() -> None:
    story = Story(order(max_turns=1), gate={"look": CallJudged("", "deny", "budget", "too dear", Reason.BUDGET)})
    run = story.play(calls("look", "save"))
    assert story.end == ("incomplete", Reason.BUDGET)
    assert told(run.output)[2:] == ["call_1 !> too dear", "call_2 -> ok"]


def test_first_stop_of_a_turn_is_the_reason() -> None:
    stops = {
        "look": CallJudged("", "deny", "a", "no", Reason.BUDGET),
        "save": CallJudged("", "deny", "b", "no", Reason.DEADLINE),
    }
    story = Story(order(), gate=stops)
    story.play(calls("look", "save"))
    assert story.end == ("incomplete", Reason.BUDGET)


def test_stop_waits_for_the_client_calls_of_its_turn() -> None:
    story = Story(order(), gate={"look": CallJudged("", "deny", "budget", "too dear", Reason.BUDGET)})
    story.play(calls("look", "choose"))
    assert story.end == ("requires_action", Reason.CLIENT_ACTION)


def test_errors_in_a_row_come_before_a_stop() -> None:
    story = Story(order(max_tool_calls=1, max_errors_in_row=2), tools={"look": Failed("broken")})
    story.play(calls("look"), calls("look"))
    assert story.end == ("failed", Reason.ERRORS_IN_ROW)


def test_usage_is_the_sum_over_all_turns() -> None:
    story = Story(order())
    run = story.play(
        calls("look", usage=used(1, 2)),
        calls("look"),
        Turn((Message("assistant", (OutputText("x"),), id="m"),), usage=used(10, 20)),
    )
    assert run.usage == used(11, 22)


class Delegating(Story):
    """A run whose calls of `look` have other runs work: each of them takes 2 turns, 3 calls, and 70 tokens in and 30 out."""

    def result(self, call_id: str) -> ToolEnded:
        ended = super().result(call_id)
        return replace(ended, used=Used(2, 3, used(70, 30))) if self.run.call(call_id).item.name == "look" else ended


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turns": 3}, Reason.MAX_TURNS),
        ({"max_turns": None, "budget_turns": 3}, Reason.BUDGET),
        ({"max_tokens": 112}, Reason.BUDGET),
        ({"max_output_tokens": 32}, Reason.OUTPUT_TRUNCATED),
    ],
)
def test_what_others_have_used_for_a_call_counts_against_the_limits(limits: dict[str, Any], reason: Reason) -> None:
    story = Delegating(order(**limits))
    story.play(calls("look", usage=used(10, 2)))
    assert story.end == ("incomplete", reason)
    one_more: dict[str, Any] = {name: limit and limit + 1 for name, limit in limits.items()}
    story = Delegating(order(**one_more))
    story.play(calls("look", usage=used(10, 2)), says("done"))
    assert story.end == DONE
    assert story.run.delegated == Used(2, 3, used(70, 30))


def test_calls_that_others_have_made_for_a_call_count_as_calls() -> None:
    story = Delegating(order(max_tool_calls=5))
    story.play(calls("look"), calls("save"), calls("save"))
    assert story.end == ("incomplete", Reason.MAX_TOOL_CALLS)
    assert story.executed == ["call_1", "call_2"]
