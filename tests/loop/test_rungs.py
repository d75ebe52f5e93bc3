"""What a Response says of a run that went round in circles: what was done about it, each once."""

from tests.loop.world import LOOK, PING, SAVE, Made, Story, calls, order, says

from mainspring.core.events import CallOutcome, ToolEnded
from mainspring.core.repetition import CallResult, PastCall
from mainspring.core.response import response

PINGS = calls(Made("ping", '{"a":1}'))
SPEC = order(tools=(LOOK, SAVE, PING), max_turns=None, max_errors_in_row=None)


def story() -> Story:
    return Story(SPEC)


def test_response_says_what_was_done_before_the_run_was_ended() -> None:
    told_of = story()
    run = told_of.play(*[PINGS] * 6, says("All I know."))
    assert response(run).incomplete_details == {"reason": "loop_detected", "rungs": ["nudged", "reused", "withheld"]}


def test_each_is_said_once_however_many_calls_it_was_done_to() -> None:
    told_of = story()
    run = told_of.play(*[calls("look", "save")] * 6, says("All I know."))
    assert (run.rungs, run.withheld) == (("nudged", "withheld"), ("look", "save"))


def test_calls_of_one_turn_may_be_answered_in_different_ways() -> None:
    told_of = story()
    run = told_of.play(*[calls("ping", "look")] * 4, says("done"))
    assert (run.rungs, run.withheld) == (("nudged", "reused", "withheld"), ("look",))


def test_nothing_is_said_of_a_run_that_makes_progress() -> None:
    told_of = story()
    assert told_of.play(PINGS, calls("look"), says("done")).rungs == ()


class Failing(Story):
    """Its calls all end in an error of this kind."""

    outcome: CallOutcome = "error"

    def result(self, call_id: str) -> ToolEnded:
        return ToolEnded(call_id, "late", is_error=True, recorded=self.outcome)


def test_an_error_that_the_tool_gave_is_given_back() -> None:
    told_of = Failing(SPEC)
    told_of.play(*[PINGS] * 4)
    assert told_of.run.rungs == ("nudged", "reused")


def test_a_result_that_no_tool_gave_is_not_given_back() -> None:
    told_of = Failing(SPEC)
    told_of.outcome = "timeout"
    told_of.play(*[PINGS] * 4)
    assert told_of.run.rungs == ("nudged", "withheld")


def test_what_a_denied_call_was_told_is_remembered_as_no_result_of_its_tool() -> None:
    told_of = Story(order(), gate={"look": "deny"})
    run = told_of.play(calls("look"))
    denied = CallResult("no look", is_error=True, is_reusable=False)
    assert run.repetition.past == ((PastCall("call_1", "look", "{}", denied),),)
