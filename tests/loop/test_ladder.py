"""A run that goes round in circles: a nudge, then known results, then tools withheld, then a last answer."""

from typing import Any

import pytest
from tests.loop.world import LOOK, PING, SAVE, Failed, Made, Story, Turn, calls, fails, order, says, told

from mainspring.core.actions import Nudge, Withhold
from mainspring.core.events import CallJudged, Reason, ToolEnded, ToolWithheld
from mainspring.core.items import ToolDefinition, Unknown
from mainspring.core.run import replay
from mainspring.core.spec import CLOSE_CYCLE, REPEAT_ADVICE, PresetName, ToolChoice

READ = ToolDefinition("read", kind="builtin", effects=("read",))
FETCH = ToolDefinition("fetch", kind="builtin", effects=("read", "network"))
POST = ToolDefinition("post", kind="builtin", effects=("network",))
FILES = ToolDefinition("files", kind="builtin", operations={"read": ("read",), "write": ("write",)})
WAIT = ToolDefinition("wait", kind="builtin", polls=True)
CHOOSE = ToolDefinition("choose", kind="function")
TOOLS = (LOOK, SAVE, PING, READ, FETCH, POST, FILES, WAIT, CHOOSE)

DONE = ("completed", Reason.FINAL_ANSWER)
CIRCLE = ("incomplete", Reason.REPEATED_CALL)


def story(preset: PresetName = "responses", tools: Any = None, **changes: Any) -> Story:
    return Story(order(preset, **{"tools": TOOLS, "max_turns": None, "max_errors_in_row": None, **changes}), tools=tools)


def of(story: Story, kind: type) -> list[Any]:
    return [record.event for record in story.log if isinstance(record.event, kind)]


def reused(story: Story) -> list[str]:
    return [event.call_id for event in of(story, ToolEnded) if event.outcome == "reused"]


def withheld(story: Story) -> list[str]:
    return [event.name for event in of(story, ToolWithheld)]


class Changing(Story):
    """Its results are never the same twice."""

    def result(self, call_id: str) -> ToolEnded:
        return ToolEnded(call_id, f"result of {call_id}")


PINGS = calls(Made("ping", '{"a":1}'))


def test_every_rung_in_order_for_a_tool_that_may_be_repeated() -> None:
    told_of = story()
    run = told_of.play(*[PINGS] * 6, says("All I know."))
    assert told_of.nudges == ["repeat", "close"]
    assert told_of.executed == ["call_1", "call_2", "call_3"]
    assert reused(told_of) == ["call_4"]
    assert withheld(told_of) == ["ping"]
    assert told_of.verdicts[3:] == [("call_5", "deny", "max_repeats"), ("call_6", "deny", "max_repeats")]
    assert told_of.end == CIRCLE
    assert (run.text, run.turns) == ("All I know.", 7)


def test_nudge_names_the_calls_and_how_often_they_were_made() -> None:
    told_of = story()
    told_of.play(*[PINGS] * 3, says("done"))
    said = 'You have made the same calls in 3 turns in a row: `ping` with {"a":1}. ' + REPEAT_ADVICE
    assert told(told_of.requests[3].items)[-1] == f"user: {said}"
    assert Nudge("repeat", said) in told_of.actions


def test_nudge_names_a_cycle_by_its_length() -> None:
    told_of = story(repeat="Stop it.")
    told_of.play(calls("read"), calls("look"), calls("save"), calls("look"), calls("save"), says("done"))
    said = "Your last 4 turns repeat the same 2 turns: `look` with {}, `save` with {}. Stop it."
    assert told(told_of.requests[5].items)[-1] == f"user: {said}"


def test_nudge_shows_three_calls_and_the_beginning_of_long_arguments() -> None:
    names = [Made("look", f'{{"n":"{letter * 300}"}}') for letter in "abcd"]
    told_of = story(max_repeats=2)
    told_of.play(calls(*names), calls(*names), says("done"))
    said = told(told_of.requests[2].items)[-1]
    assert said.count("`look` with ") == 3
    assert f'{{"n":"{"a" * 194}..., ' in said
    assert "... and others. Repeating" in said
    exact = Made("look", '{"n":"' + "b" * 192 + '"}')
    short = story(max_repeats=2)
    short.play(calls(exact, "save", "ping"), calls(exact, "save", "ping"), says("done"))
    assert 'bb"}, `save` with {}, `ping` with {}. Repeating' in told(short.requests[2].items)[-1]


def test_earlier_result_is_given_back_as_it_was() -> None:
    told_of = story(tools={"read": "the file"})
    told_of.play(*[calls("read")] * 4, says("done"))
    assert told(told_of.run.output)[-2] == "call_4 -> the file"
    assert told_of.verdicts[-1][0] == "call_3", "nothing is run, so nothing is judged"
    assert told_of.run.calls_allowed == 3
    assert told_of.end == DONE


def test_earlier_error_is_given_back_as_an_error() -> None:
    told_of = story(tools={"read": Failed("no such file")})
    told_of.play(*[calls("read")] * 4, says("done"))
    assert told(told_of.run.output)[-2] == "call_4 !> no such file"


@pytest.mark.parametrize(
    ("call", "is_given_back"),
    [
        (Made("ping"), True),
        (Made("read"), True),
        (Made("fetch"), True),
        (Made("post"), False),
        (Made("files", '{"operation":"read"}'), True),
        (Made("files", '{"operation":"write"}'), False),
        (Made("files", '{"operation":'), False),
        (Made("save"), False),
    ],
    ids=["repeatable", "read-only", "reads the network", "uses the network", "reading", "writing", "no JSON", "undeclared"],
)
def test_only_what_is_declared_harmless_is_given_back(call: Made, is_given_back: bool) -> None:
    told_of = story()
    told_of.play(*[calls(call)] * 4, says("done"))
    assert len(told_of.executed) == 3
    assert (reused(told_of), withheld(told_of)) == ((["call_4"], []) if is_given_back else ([], [call.name]))
    assert told_of.end == DONE


def test_a_call_that_was_denied_before_is_judged_and_then_withheld() -> None:
    told_of = story(max_repeats=2)
    told_of.gate = {"ping": "deny"}
    told_of.play(*[calls("ping")] * 3, says("done"))
    assert (reused(told_of), withheld(told_of)) == ([], ["ping"])


def test_a_withheld_tool_is_denied_whatever_it_is_called_for_and_others_go_on() -> None:
    told_of = story()
    run = told_of.play(*[calls("save")] * 4, calls(Made("save", '{"a":2}'), "look"), says("done"))
    assert told_of.executed == ["call_1", "call_2", "call_3", "call_6"]
    said = "Not executed: the tool `save` is withheld for the rest of this run. Go on without it, or answer."
    assert f"call_5 !> {said}" in told(run.output)
    assert told_of.end == DONE


def test_withholding_says_which_call_it_is_about() -> None:
    told_of = story()
    told_of.play(*[calls(Made("save", '{"a": 1}'))] * 4, says("done"))
    assert Withhold("save", 'This call was made again and again: `save` with {"a": 1}') in told_of.actions


def test_the_model_is_told_which_tools_are_left() -> None:
    told_of = story(tools=None, tool_choice=ToolChoice("required"))
    told_of.play(*[calls("save")] * 4, says("done"))
    assert told_of.requests[3].tool_choice == ToolChoice("auto")
    left = tuple([tool.name for tool in TOOLS if tool is not SAVE])
    assert told_of.requests[4].tool_choice == ToolChoice("auto", allowed=left)
    assert told_of.requests[4].tools == TOOLS


def test_a_choice_is_narrowed_and_without_any_tool_left_there_is_none() -> None:
    narrow = story(tool_choice=ToolChoice(allowed=("save", "look")))
    narrow.play(*[calls("save")] * 4, says("done"))
    assert narrow.requests[4].tool_choice == ToolChoice(allowed=("look",))
    none = Story(order(tools=(SAVE,)))
    none.play(*[calls("save")] * 4, says("done"))
    assert none.requests[4].tool_choice == ToolChoice("none")


def test_tools_that_have_no_names_here_cannot_be_named_as_those_that_are_left() -> None:
    tools = (*TOOLS, Unknown({"type": "web_search"}))
    told_of = Story(order(tools=tools))
    told_of.play(*[calls("save")] * 4, says("done"))
    assert told_of.requests[4].tool_choice == ToolChoice("auto")
    narrow = Story(order(tools=tools, tool_choice=ToolChoice(allowed=("save", "look"))))
    narrow.play(*[calls("save")] * 4, says("done"))
    assert narrow.requests[4].tool_choice == ToolChoice(allowed=("look",))


def test_the_last_answer_is_asked_for_without_tools() -> None:
    told_of = story()
    told_of.play(*[PINGS] * 6, says("done"))
    assert Nudge("close", CLOSE_CYCLE, Reason.REPEATED_CALL) in told_of.actions
    assert told(told_of.requests[6].items)[-1] == f"user: {CLOSE_CYCLE}"
    assert told_of.requests[6].tool_choice == ToolChoice("none")
    assert told(told_of.run.output)[-2] == "call_6 !> Not executed: this run goes round in circles, and ends."


def test_the_words_of_the_last_question_come_from_the_order() -> None:
    told_of = story(close="Wrap up.")
    told_of.play(*[PINGS] * 6, says("done"))
    assert Nudge("close", "Wrap up.", Reason.REPEATED_CALL) in told_of.actions


def test_another_limit_still_ends_the_run_without_a_last_question() -> None:
    told_of = story(max_turns=1)
    told_of.play(calls("look"))
    assert (told_of.nudges, told_of.end) == ([], ("incomplete", Reason.MAX_TURNS))


@pytest.mark.parametrize("preset", ["responses", "iterative", "decision"])
def test_every_preset_has_room_for_the_whole_ladder(preset: PresetName) -> None:
    told_of = Story(order(preset, tools=TOOLS, confirm=None))
    repeats = told_of.run.spec.limits.max_repeats
    assert repeats is not None
    told_of.play(*[PINGS] * (repeats + 3), says("done"))
    assert (told_of.nudges, len(reused(told_of)), withheld(told_of)) == (["repeat", "close"], 1, ["ping"])
    assert told_of.end == CIRCLE


@pytest.mark.parametrize("length", [2, 3, 6])
def test_a_cycle_of_several_turns_climbs_a_rung_each_time_round(length: int) -> None:
    around = [calls(Made("ping", f'{{"n":{n}}}')) for n in range(length)]
    told_of = story()
    told_of.play(*around * 4, around[0], says("done"))
    assert len(told_of.executed) == 2 * length
    assert len(reused(told_of)) == length
    assert withheld(told_of) == ["ping"]
    assert (told_of.nudges, told_of.end) == (["repeat", "close"], CIRCLE)
    assert len(told_of.requests) == 4 * length + 2


def test_a_longer_cycle_is_not_seen() -> None:
    around = [calls(Made("ping", f'{{"n":{n}}}')) for n in range(7)]
    told_of = story()
    told_of.play(*around * 4, says("done"))
    assert (told_of.nudges, told_of.end) == ([], DONE)
    shorter = story(max_cycle=1)
    shorter.play(*[calls("look"), calls("save")] * 5, says("done"))
    assert shorter.nudges == []


def test_more_repeats_are_had_patience_with_if_the_order_says_so() -> None:
    told_of = story(max_repeats=6)
    told_of.play(*[calls("look"), calls("save")] * 3, says("done"))
    assert told_of.nudges == []
    told_of = story(max_repeats=6)
    told_of.play(*[calls("look"), calls("save")] * 3, calls("look"), says("done"))
    assert told_of.nudges == ["repeat"]


def test_the_shortest_of_several_cycles_counts() -> None:
    told_of = story()
    told_of.play(*[PINGS] * 3, says("done"))
    assert "in 3 turns in a row" in told(told_of.requests[3].items)[-1]


def test_of_two_cycles_that_lead_to_the_same_rung_the_shorter_counts() -> None:
    told_of = story(max_repeats=2, tools={f"call_{n}": "red" if n % 2 else "blue" for n in range(1, 7)})
    told_of.play(*[PINGS] * 6, says("done"))
    assert reused(told_of) == ["call_5"], "as two turns before"
    assert "call_6" in told_of.executed, "its result was another one the turn before"


class Elsewhere(Story):
    """Something else refuses its calls before the ladder does."""

    def verdict(self, call_id: str) -> CallJudged:
        return CallJudged(call_id, "deny", "other", "no")


def test_a_call_that_others_refuse_may_come_again_after_the_last_rung() -> None:
    told_of = Elsewhere(order(tools=TOOLS, max_turns=None))
    told_of.play(*[calls("save")] * 9, says("done"))
    assert (told_of.nudges, told_of.end) == (["repeat"], DONE)


def test_a_run_that_breaks_out_is_let_alone_and_nudged_again_later() -> None:
    told_of = story()
    told_of.play(*[PINGS] * 3, calls("look"), *[PINGS] * 3, says("done"))
    assert (told_of.nudges, reused(told_of)) == (["repeat", "repeat"], [])
    assert len(told_of.executed) == 7


def test_one_nudge_is_enough_while_the_cycle_goes_on() -> None:
    told_of = story()
    told_of.play(*[calls("ping"), calls("look")] * 3, says("done"))
    assert told_of.nudges == ["repeat"]


def test_text_and_failed_turns_in_between_neither_count_nor_help() -> None:
    told_of = story(confirm="sure?", retry_model_errors=True)
    told_of.play(PINGS, says("done?"), PINGS, fails(retryable=True), PINGS, says("yes"))
    assert told_of.nudges == ["confirm", "repeat"]


def test_a_model_that_never_takes_its_answer_for_the_last_comes_to_an_end() -> None:
    told_of = story(confirm="sure?", confirm_once=False)
    told_of.play(*[PINGS, says("done")] * 5, PINGS, says("done"))
    assert told_of.end == CIRCLE


# Turns of several calls


def several(*names: str, other: int | None = None) -> Turn:
    return calls(*names, *([] if other is None else [Made("look", f'{{"n":{other}}}')]))


def test_order_of_calls_within_a_turn_does_not_matter() -> None:
    told_of = story()
    told_of.play(calls("look", "save"), calls("save", "look"), calls("look", "save"), says("done"))
    assert told_of.nudges == ["repeat"]


def test_most_calls_of_a_turn_must_be_the_same() -> None:
    half = story()
    half.play(*[several("ping", other=n) for n in range(9)], says("done"))
    assert half.nudges == []
    more = story()
    more.play(*[several("ping", "save", other=n) for n in range(5)], says("done"))
    assert more.nudges == ["repeat"]
    fewer = story()
    fewer.play(*[several("ping", "save", other=n) for n in range(4)], says("done"))
    assert fewer.nudges == []


def test_a_turn_with_fewer_calls_than_the_one_before_is_held_against_the_longer() -> None:
    told_of = story()
    told_of.play(*[calls("ping", "save", "look", "read"), calls("ping", "save")] * 2, says("done"))
    assert "repeat the same 2 turns" in told(told_of.requests[4].items)[-1]
    told_of = story(max_cycle=1)
    told_of.play(*[calls("ping", "save", "look", "read"), calls("ping", "save")] * 4, says("done"))
    assert told_of.nudges == []


def test_the_same_call_twice_in_a_turn_counts_twice() -> None:
    told_of = story(max_cycle=1)
    told_of.play(*[calls("ping", "ping", "ping"), calls("ping")] * 4, says("done"))
    assert told_of.nudges == []
    told_of = story()
    told_of.play(*[calls("ping", "ping")] * 3, says("done"))
    assert told_of.nudges == ["repeat"]


def test_the_call_that_differs_is_run_while_the_others_are_answered() -> None:
    told_of = story()
    told_of.play(*[several("ping", "read", other=n) for n in range(7)], says("done"))
    assert reused(told_of) == ["call_16", "call_17", "call_19", "call_20"]
    assert {"call_18", "call_21"} <= set(told_of.executed)
    assert told_of.end == DONE


def test_a_turn_in_which_a_call_differs_comes_to_an_end_as_well() -> None:
    told_of = story()
    told_of.play(*[several("ping", "read", other=n) for n in range(10)], says("done"))
    assert withheld(told_of) == ["ping", "read"]
    assert told_of.end == CIRCLE


def test_a_tool_that_is_called_for_something_else_as_well_is_not_withheld() -> None:
    told_of = story(max_repeats=2)
    turns = [calls("ping", "read", Made("ping", f'{{"n":{n}}}')) for n in range(8)]
    told_of.play(*turns, says("done"))
    assert withheld(told_of) == ["read"]
    assert [call for call in reused(told_of) if call == "call_19"] == ["call_19"], "it is given back instead"
    assert told_of.end == CIRCLE


def test_a_call_that_came_only_now_and_before_is_not_known_well_enough() -> None:
    told_of = story(max_repeats=2)
    first, then = calls("ping", "read", "look"), calls("ping", "read", "fetch")
    told_of.play(first, first, then, then, says("done"))
    assert "call_12" in told_of.executed


# Results


def test_changed_results_are_a_weaker_sign() -> None:
    for turns, nudges in ((8, []), (9, ["repeat"])):
        told_of = Changing(order(tools=TOOLS, max_turns=None))
        told_of.play(*[PINGS] * turns, says("done"))
        assert told_of.nudges == nudges


def test_a_changing_result_is_never_given_back_but_comes_to_an_end() -> None:
    told_of = Changing(order(tools=TOOLS, max_turns=None))
    told_of.play(*[PINGS] * 15, says("done"))
    assert (len(told_of.executed), reused(told_of), withheld(told_of)) == (13, [], ["ping"])
    assert told_of.end == CIRCLE


def test_a_changing_result_of_an_undeclared_tool_is_looked_for_again_after_the_nudge() -> None:
    told_of = Changing(order(tools=TOOLS, max_turns=None))
    told_of.play(*[calls("save")] * 12, says("done"))
    assert (len(told_of.executed), withheld(told_of)) == (12, [])


def test_an_error_instead_of_the_same_words_is_a_change() -> None:
    told_of = story(tools={"call_1": "no", "call_2": Failed("no"), "call_3": "no"})
    told_of.play(*[PINGS] * 3, says("done"))
    assert told_of.nudges == []


def test_most_results_the_same_counts_half() -> None:
    for turns, nudges in ((4, []), (5, ["repeat"])):
        results = {f"call_{3 * n}": f"new {n}" for n in range(1, 9)}
        told_of = story(tools=results)
        told_of.play(*[calls("ping", "read", "look")] * turns, says("done"))
        assert told_of.nudges == nudges


def test_half_of_the_results_the_same_is_not_most() -> None:
    for turns, nudges in ((8, []), (9, ["repeat"])):
        told_of = story(tools={f"call_{2 * n}": f"new {n}" for n in range(1, 10)})
        told_of.play(*[calls("ping", "read")] * turns, says("done"))
        assert told_of.nudges == nudges


def test_a_result_that_changed_in_the_last_round_is_looked_for_again() -> None:
    told_of = story(tools={f"call_{n}": f"news {n}" for n in (3, 4, 5, 6)})
    told_of.play(*[PINGS] * 7, says("done"))
    assert (told_of.nudges, reused(told_of), len(told_of.executed)) == (["repeat"], [], 7)


# Polling


def test_polling_is_no_repetition() -> None:
    told_of = story()
    told_of.play(*[calls("wait")] * 40, says("done"))
    assert (told_of.nudges, len(told_of.executed), told_of.end) == ([], 40, DONE)


def test_polling_beside_other_calls_is_left_out_of_account() -> None:
    told_of = story()
    told_of.play(*[calls("wait", Made("look", f'{{"n":{n}}}')) for n in range(9)], says("done"))
    assert told_of.nudges == []
    told_of = story()
    told_of.play(PINGS, calls("wait"), PINGS, calls("wait", Made("ping", '{"a":1}')), PINGS, calls("wait"), says("done"))
    assert (told_of.nudges, reused(told_of)) == (["repeat"], ["call_6"])
    assert "call_7" in told_of.executed, "a turn that polls is not judged by the turns before it"


# Errors, limits and crashes


def test_a_withheld_tool_is_no_failure_of_the_run() -> None:
    told_of = story(max_errors_in_row=1)
    told_of.play(*[PINGS] * 5, says("done"))
    assert (withheld(told_of), told_of.end) == (["ping"], DONE)
    beside = story(max_errors_in_row=1, tools={"look": Failed("broken")})
    beside.play(*[PINGS] * 5, calls("ping", "look"))
    assert beside.end == ("failed", Reason.ERRORS_IN_ROW)


def test_nothing_is_kept_of_a_run_without_the_limit() -> None:
    told_of = story(max_repeats=None)
    told_of.play(*[PINGS] * 20, says("done"))
    assert (told_of.nudges, told_of.run.repetition.past, told_of.end) == ([], (), DONE)


def test_what_is_kept_does_not_grow() -> None:
    told_of = story()
    told_of.play(*[calls(Made("look", f'{{"n":{n}}}')) for n in range(40)], says("done"))
    assert [len(told_of.run.repetition.past), len(told_of.run.repetition.streaks)] == [12, 6]


def test_the_clients_calls_and_unknown_tools_are_nobodys_to_withhold() -> None:
    told_of = story()
    told_of.play(*[calls("nonsense")] * 6, says("done"))
    assert (withheld(told_of), told_of.end) == ([], CIRCLE)
    told_of = story()
    told_of.gate = {"choose": "deny"}
    told_of.play(*[calls("choose")] * 4, says("done"))
    assert (withheld(told_of), told_of.end) == ([], DONE)


@pytest.mark.parametrize("turns", range(3, 7))
def test_a_crash_at_any_event_leads_to_the_same_decision(turns: int) -> None:
    whole = story()
    whole.play(*[PINGS] * turns, says("done"))
    for events in range(1, len(whole.log)):
        again = story()
        again.run, again.log = replay(whole.log[:events], again.history), whole.log[:events]
        again.crash()
        left = turns + 1 - again.run.answered
        numbers = iter(range(100, 200))
        again.number = lambda kind: next(numbers)  # noqa: B023
        again.play(*[PINGS] * (left - 1), *([says("done")] if left > 0 else []))
        assert (again.nudges, withheld(again), again.end) == (whole.nudges, withheld(whole), whole.end)
        assert len(reused(again)) == len(reused(whole))


def test_a_recorded_run_that_asks_for_chance_again_and_again_is_let_alone() -> None:
    """As recorded with a real model: one of two topics at random, until three are there."""
    topics = ("cars", "penguins", "cars", "penguins", "cars", "penguins")
    told_of = story(tools={f"call_{n}": topic for n, topic in enumerate(topics, 1)})
    told_of.play(calls("save", "save", "save"), *[calls("save")] * 3, says("Three jokes."))
    assert (told_of.nudges, len(told_of.executed)) == ([], 6)
