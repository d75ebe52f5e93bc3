"""An allowance: what a turn may use is set aside before it begins, so that a run never uses more than it was given."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.loop.world import Made, Said, Story, Turn, calls, fails, is_cut, order, says, used

from mainspring.core.allowance import estimate_input, room, sum_used
from mainspring.core.compaction import Summary, compaction_item, payload_of
from mainspring.core.events import Compacted, ErrorInfo, Nudged, Reason, TurnStarted
from mainspring.core.history import Entry, history_of
from mainspring.core.items import Json, Usage, decode, encode, user
from mainspring.core.model_request import request_for
from mainspring.core.run import add_prompt
from mainspring.core.spec import Allowance, Price, RunSpec

DONE = ("completed", Reason.FINAL_ANSWER)
PRICE = Price(input=2, output=10)


def holding(tokens: int | None = None, cost: float | None = None, price: Price = PRICE, **changes: Any) -> Story:
    return Story(order(allowance=Allowance(tokens, cost, price), tools=(), **changes))


def asked(story: Story) -> int:
    return estimate_input(story.run, request_for(story.run).items)


def test_output_is_bounded_by_what_the_input_leaves() -> None:
    story = holding(tokens=100)
    assert asked(story) == 5
    assert request_for(story.run).max_output_tokens == 95


def test_the_strictest_bound_holds() -> None:
    story = holding(tokens=100, max_turn_tokens=30)
    assert request_for(story.run).max_output_tokens == 30
    assert request_for(holding(tokens=20, max_turn_tokens=30).run).max_output_tokens == 15


def test_without_a_purse_nothing_is_bounded() -> None:
    story = Story(order())
    assert room(story.run, ()) is None
    assert request_for(story.run).max_output_tokens is None


@pytest.mark.parametrize(("tokens", "end"), [(5, ("failed", Reason.BUDGET)), (6, DONE)])
def test_a_turn_begins_only_with_room_for_a_word(tokens: int, end: tuple[str, Reason]) -> None:
    story = holding(tokens=tokens)
    story.play(*([says("y", usage=used(5, 1))] if tokens == 6 else []))
    assert story.end == end
    told = "the request has about 5 tokens, which is more than the budget of this run leaves; send less, or raise the budget"
    assert story.run.error == (ErrorInfo("budget_exceeded", told) if tokens == 5 else None)


@pytest.mark.parametrize(
    ("cost", "price", "bound"),
    [
        (0.001, PRICE, 99),
        (0.00001, PRICE, 0),
        (0.000005, PRICE, 0),
        (0.001, Price(input=2, output=10, cache_write=100), 50),
        (0.001, Price(input=100, output=10, cached=2), 50),
        (0.001, Price(input=2, output=0), None),
        (0.00001, Price(input=2, output=0), None),
        (0.000001, Price(input=2, output=0), 0),
    ],
)
def test_money_bounds_the_output_by_its_price_beside_the_dearest_input(cost: float, price: Price, bound: int | None) -> None:
    story = holding(cost=cost, price=price)
    assert room(story.run, request_for(story.run).items) == bound


def test_money_that_was_used_is_not_left_for_the_output() -> None:
    story = holding(cost=0.001, retry_model_errors=True)
    story.play(fails(retryable=True, usage=used(50, 10)))
    assert request_for(story.run).max_output_tokens == 79


def test_the_stricter_of_tokens_and_money_bounds() -> None:
    assert request_for(holding(tokens=50, cost=0.001).run).max_output_tokens == 45
    assert request_for(holding(tokens=5000, cost=0.001).run).max_output_tokens == 99


def test_a_run_that_has_no_room_for_another_turn_ends_without_an_error() -> None:
    story = Story(order(allowance=Allowance(600)))
    story.play(calls("look", usage=used(300, 5)))
    assert [story.end, story.run.error] == [("incomplete", Reason.BUDGET), None]


def test_instructions_count_as_input() -> None:
    assert asked(holding(tokens=100, instructions="Be brief.")) == 5 + 7


def test_a_request_that_says_nothing_has_no_tokens() -> None:
    assert estimate_input(holding(tokens=100).run, ()) == 0


def test_a_first_turn_is_estimated_by_what_the_model_is_shown() -> None:
    history = history_of([Entry(user("word " * 200), "input")])
    story = Story(order(allowance=Allowance(1000), tools=(), max_messages=0), history)
    assert asked(story) == 5


def test_a_turn_without_a_count_leaves_none_behind() -> None:
    story = Story(order(allowance=Allowance(10_000)))
    story.play(calls("look", usage=used(4000, 30)), calls("look"))
    assert story.run.context == 0
    assert asked(story) < 300


def test_what_the_last_turn_had_counts_by_its_own_count() -> None:
    story = Story(order(allowance=Allowance(10_000)))
    before = asked(story)
    story.play(calls("look", usage=used(4000, 30)))
    assert before < 300
    assert asked(story) == 4030 + 5, "and the output of the call"
    assert request_for(story.run).max_output_tokens == 10_000 - 4030 - 4035


def test_a_count_below_the_estimate_is_not_believed() -> None:
    story = Story(order(allowance=Allowance(10_000)))
    before = asked(story)
    story.play(calls("look", usage=used(1, 1)))
    assert asked(story) > before


def test_a_count_from_before_a_compaction_says_nothing() -> None:
    story = Story(order(allowance=Allowance(10_000)))
    story.play(calls("look", usage=used(4000, 30)))
    item = compaction_item("cmp_1", f"{payload_of(Summary('All is well.', 0))}.seal")
    story.apply(Compacted(item, used(100, 10)))
    assert story.run.context == 0
    assert asked(story) < 300
    assert sum_used(story.run) == used(4100, 40)


def test_a_turn_that_was_cut_off_has_used_what_it_was_told_and_said() -> None:
    story = holding(tokens=100, retry_model_errors=True)
    story.play(is_cut(Said("half a sentence", is_half=True)))
    assert story.run.usage == Usage()
    assert sum_used(story.run) == Usage(5, 9, is_estimated=True)
    assert request_for(story.run).max_output_tokens == 100 - 14 - 5


def test_a_turn_that_was_cut_off_was_told_its_instructions_and_tools() -> None:
    story = Story(order(instructions="Be brief.", allowance=Allowance(10_000)))
    before = asked(story)
    story.play(is_cut())
    assert sum_used(story.run) == Usage(before, 0, is_estimated=True)


def test_a_turn_that_failed_has_used_what_it_says_or_what_it_was_told() -> None:
    story = holding(tokens=100, retry_model_errors=True)
    story.play(fails(retryable=True), fails(retryable=True, usage=used(7, 3)))
    assert sum_used(story.run) == Usage(12, 3, is_estimated=True)


def test_a_compaction_that_failed_has_used_what_it_was_told() -> None:
    story = holding(tokens=100, retry_model_errors=True)
    story.apply(Compacted(error=fails(retryable=True).error))
    assert sum_used(story.run) == Usage(5, 0, is_estimated=True)


def test_an_answer_is_not_asked_about_without_room_for_the_question() -> None:
    story = Story(order("iterative", allowance=Allowance(1000)))
    story.play(says("done", usage=used(460, 10)))
    assert [story.nudges, story.end] == [[], DONE]
    story = Story(order("iterative", allowance=Allowance(1040)))
    story.play(says("done", usage=used(460, 10)), says("yes", usage=used(530, 5)))
    assert story.nudges == ["confirm"]


@pytest.mark.parametrize("turn", [says("done"), fails(retryable=True)])
def test_a_prompt_added_to_see_if_it_fits_changes_a_run_as_the_nudge_would(turn: Turn) -> None:
    story = Story(order("iterative"))
    story.apply(TurnStarted())
    story.speak(turn)
    added = add_prompt(story.run, "Sure?")
    nudged = story.apply(Nudged("confirm", "Sure?"))
    assert replace(added, is_confirming=True, was_asked=True, seq=nudged.seq) == nudged


def test_a_closing_turn_without_room_is_not_begun() -> None:
    story = Story(order(max_turns=1, allowance=Allowance(600), close="word " * 200))
    story.play(calls("look", usage=used(200, 5)))
    assert [story.nudges, story.end] == [["close"], ("incomplete", Reason.MAX_TURNS)]


@st.composite
def turns(draw: st.DrawFn) -> tuple[str, int, int]:
    """How a turn ends, the share of the estimate that its input has, and of the bound that its output has, in percent."""
    return draw(st.sampled_from(["says", "calls", "fails", "cut"])), draw(st.integers(0, 100)), draw(st.integers(0, 100))


@given(st.lists(turns(), max_size=12), st.integers(1, 3000), st.none() | st.floats(0.0001, 0.02))
def test_what_is_used_never_exceeds_the_purse(script: list[tuple[str, int, int]], tokens: int, cost: float | None) -> None:
    """Of a model that keeps to its bound and whose input is not underrated, whatever fails, is cut off or begins again."""
    limits: Json = {"max_turns": None, "max_errors_in_row": None, "retry_model_errors": True}
    story = Story(order(allowance=Allowance(tokens, cost, PRICE), **limits))
    for kind, of_input, of_output in script:
        if story.run.has_ended:
            break
        bound = request_for(story.run).max_output_tokens
        assert bound is not None
        usage = used(asked(story) * of_input // 100, max(bound, 0) * of_output // 100)
        story.play(*([_turn(kind, usage)] if bound > 0 else []))
        assert sum_used(story.run).total_tokens <= tokens
        assert cost is None or PRICE.of(sum_used(story.run)) <= cost + 1e-12


def _turn(kind: str, usage: Usage) -> Turn:
    match kind:
        case "says":
            return says("", usage=usage)
        case "calls":
            return calls(Made("look"), usage=usage)
        case "fails":
            return fails(retryable=True, usage=usage)
        case _:
            return is_cut()


def test_an_allowance_is_stored_under_its_first_name() -> None:
    spec = order(allowance=Allowance(10))
    stored = encode(spec)
    assert b'"purse":{' in stored
    assert decode(stored, RunSpec) == spec
