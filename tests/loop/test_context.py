"""What happens before a turn whose request is long: at which token, and what of it is kept."""

from typing import Any

import pytest
from tests.loop.world import LOOK, Said, Story, calls, fails, order

from mainspring.core.actions import CallModel, Compact, Finish
from mainspring.core.compaction import HEADING, SUMMARIZE, Summary, compaction_item, payload_of
from mainspring.core.context_window import before_turn, latest, summary_request
from mainspring.core.decide import next_action
from mainspring.core.events import Compacted, ErrorInfo, Reason
from mainspring.core.history import Entry, history_of
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, Unknown, assistant, user
from mainspring.core.model_request import ModelRequest, request_for
from mainspring.core.spec import ToolChoice
from mainspring.core.tokens import estimate, tokens_of, tokens_of_tool

CALL = FunctionCall("call_1", "look", "{}", id="fc_1")  # 7 tokens


def text(tokens: int) -> str:
    return "x" * int(tokens * 3.5)


def asks(tokens: int) -> Message:
    return user(text(tokens - 4))


def answers(tokens: int) -> Message:
    return assistant(text(tokens - 4))


def rules(role: str, tokens: int) -> Message:
    return Message(role, asks(tokens).content)  # type: ignore[arg-type]


def called(tokens: int) -> tuple[Item, Item]:
    """A call and its output that count so many tokens together."""
    return CALL, FunctionCallOutput("call_1", text(tokens - 7 - 4))


def story(*items: Item, **changes: Any) -> Story:
    return Story(order(**{"tools": (), "input": items, **changes}))


def summary(keeps: int, words: str = "So far.") -> Item:
    return compaction_item("cmp_1", f"{payload_of(Summary(words, keeps))}.seal")


def test_the_sizes_below_are_what_they_say() -> None:
    assert [tokens_of([asks(number)]) for number in (5, 6, 7, 80)] == [5, 6, 7, 80]
    assert tokens_of(called(50)) == 50


def test_nothing_happens_without_a_window() -> None:
    assert before_turn(story(asks(9000)).run) is None


@pytest.mark.parametrize(("first", "then"), [(61, Compact(1)), (60, None)])
def test_a_transcript_is_compacted_once_it_is_longer_than_the_threshold(first: int, then: Compact | None) -> None:
    run = story(asks(first), answers(20), asks(20), compact_threshold=100).run
    assert before_turn(run) == then
    assert next_action(run) == (then or CallModel())


def test_instructions_and_tools_count_towards_the_threshold() -> None:
    talk, tools = (answers(50), asks(20)), tokens_of_tool(LOOK)
    assert before_turn(story(*talk, instructions=text(26), compact_threshold=100).run) is None
    assert before_turn(story(*talk, instructions=text(27), compact_threshold=100).run) == Compact(1)
    assert before_turn(story(*talk, tools=(LOOK,), compact_threshold=70 + tools).run) is None
    assert before_turn(story(*talk, tools=(LOOK,), compact_threshold=69 + tools).run) == Compact(1)


@pytest.mark.parametrize(("older", "then"), [(26, Compact(1)), (25, None)])
def test_a_summary_must_replace_more_than_a_quarter_of_the_threshold(older: int, then: Compact | None) -> None:
    assert before_turn(story(answers(older), asks(80), compact_threshold=100).run) == then


@pytest.mark.parametrize("role", ["system", "developer"])
def test_rules_are_not_replaced_and_so_do_not_count(role: str) -> None:
    assert before_turn(story(rules(role, 60), answers(25), asks(40), compact_threshold=100).run) is None
    assert before_turn(story(rules(role, 60), answers(26), asks(40), compact_threshold=100).run) == Compact(1)


def test_what_the_user_said_and_tools_returned_is_replaced_and_counts() -> None:
    assert before_turn(story(asks(15), *called(11), answers(5), asks(90), compact_threshold=100).run) == Compact(1)


@pytest.mark.parametrize(("size", "keeps"), [(50, 2), (51, 0)])
def test_the_last_calls_are_kept_if_they_take_up_to_half_of_the_threshold(size: int, keeps: int) -> None:
    assert before_turn(story(asks(60), *called(size), compact_threshold=100).run) == Compact(keeps)


def test_a_request_of_instructions_alone_cannot_be_compacted() -> None:
    assert before_turn(story(instructions=text(200), compact_threshold=100).run) is None


def test_a_transcript_is_not_compacted_again_before_the_model_has_spoken() -> None:
    told = story(asks(200), *called(40), compact_threshold=100, retry_model_errors=True)
    assert next_action(told.run) == Compact(2)
    told.apply(Compacted(summary(2)))
    assert next_action(told.run) == CallModel()
    told.play(fails(Said("well"), retryable=True))
    assert told.run.transcript[-1].hidden
    assert next_action(told.run) == CallModel(), "what the model never sees does not count as spoken"
    turn = [calls("look")]
    for _ in ("asked", "judged", "executed"):
        told.perform(next_action(told.run), turn)
    assert next_action(told.run) == Compact(2)


def test_a_model_that_gave_no_summary_is_not_asked_for_one_again() -> None:
    told = story(asks(200), answers(80), asks(50), compact_threshold=100, truncation="auto")
    assert next_action(told.run) == Compact(1)
    told.apply(Compacted(error=ErrorInfo("provider_bad_output", "no summary", retryable=True)))
    assert next_action(told.run) == CallModel()


def test_a_run_that_is_for_a_compaction_makes_one_whatever_the_size_and_ends() -> None:
    told = Story(order(input=(asks(9),), goal="compaction"), history_of([Entry(summary(0), "tool", 1)]))
    assert next_action(told.run) == Compact(0)
    told.apply(Compacted(summary(0)))
    assert next_action(told.run) == Finish("completed", Reason.FINAL_ANSWER)


def test_a_transcript_that_begins_with_a_summary_is_compacted_again_when_it_has_grown() -> None:
    assert before_turn(story(summary(0), answers(80), asks(50), compact_threshold=100).run) == Compact(1)


TOO_LONG = (
    'the request has about 101 tokens and the model takes 100; shorten or compact the conversation, or send `truncation: "auto"`'
)


def test_a_request_that_the_model_cannot_take_fails_the_run_and_says_why() -> None:
    run = story(answers(61), asks(40), context_tokens=100).run
    assert before_turn(run) == Finish("failed", Reason.PROVIDER_ERROR, ErrorInfo("context_length_exceeded", TOO_LONG))
    assert next_action(run) == before_turn(run)


def test_a_request_that_just_fits_goes_out() -> None:
    assert before_turn(story(answers(60), asks(40), context_tokens=100).run) is None


def test_a_request_that_may_be_cut_goes_out_whatever_its_size() -> None:
    assert before_turn(story(answers(61), asks(140), context_tokens=100, truncation="auto").run) is None


def test_a_request_that_the_model_cannot_take_is_compacted_if_that_helps() -> None:
    assert before_turn(story(answers(61), asks(40), compact_threshold=100, context_tokens=100).run) == Compact(1)


def test_a_request_that_the_model_cannot_take_and_no_summary_helps_fails_the_run() -> None:
    run = story(answers(25), asks(76), compact_threshold=100, context_tokens=100).run
    assert before_turn(run) == Finish("failed", Reason.PROVIDER_ERROR, ErrorInfo("context_length_exceeded", TOO_LONG))


def test_a_request_below_the_threshold_can_still_be_more_than_the_model_takes() -> None:
    run = story(answers(61), asks(40), compact_threshold=101, context_tokens=100).run
    assert before_turn(run) == Finish("failed", Reason.PROVIDER_ERROR, ErrorInfo("context_length_exceeded", TOO_LONG))


def test_the_end_worth_keeping_is_what_was_said_to_the_model_last() -> None:
    said = [rules("developer", 9), asks(9), rules("system", 9)]
    assert latest([asks(9), answers(9), *said], 0) == said
    assert latest([*called(20), asks(9)], 99) == [asks(9)]


def test_the_end_worth_keeping_is_all_of_it_if_the_model_never_spoke() -> None:
    assert latest([asks(9), asks(10)], 0) == [asks(9), asks(10)]


def test_the_end_worth_keeping_is_the_last_calls_with_their_thought_if_they_fit() -> None:
    together = [Reasoning("rs_1"), *called(46)]
    assert latest([asks(9), *called(20), *together], 50) == together
    assert latest([asks(9), *called(20), *together], 49) == ()


def test_the_end_worth_keeping_may_be_what_the_model_or_nobody_said() -> None:
    assert latest([asks(9), answers(9)], 9) == [answers(9)]
    assert latest([asks(9), Unknown({"type": "x"})], 9) == [Unknown({"type": "x"})]
    assert latest([], 0) == ()


def test_the_model_is_asked_to_sum_up_all_that_it_would_see_and_to_call_nothing() -> None:
    told = story(
        asks(9), tools=(LOOK,), tool_choice=ToolChoice("required"), instructions="Be brief.", temperature=0.3,
        text={"format": {"type": "json_object"}}, top_logprobs=3, stop=("END",),
    )  # fmt: skip
    assert summary_request(told.run) == ModelRequest(
        run_id="run_1",
        model="m",
        items=(asks(9), user(SUMMARIZE)),
        instructions="Be brief.",
        tools=(LOOK,),
        tool_choice=ToolChoice("none"),
        temperature=0.3,
    )


# What may be left out of a request.


def sees(told: Story) -> list[Item]:
    return list(request_for(told.run).items)


TALK = (answers(10), answers(20), answers(40), asks(30))


@pytest.mark.parametrize(("room", "left"), [(None, 4), (100, 4), (99, 3), (90, 3), (89, 2), (70, 2), (69, 1), (1, 1)])
def test_the_oldest_are_left_out_until_the_model_can_take_the_rest(room: int | None, left: int) -> None:
    assert sees(story(*TALK, context_tokens=room, truncation="auto")) == list(TALK[4 - left :])


def test_nothing_is_left_out_unless_that_is_wanted() -> None:
    assert sees(story(*TALK, context_tokens=10)) == list(TALK)


def test_instructions_and_tools_take_up_room_too() -> None:
    extra: dict[str, Any] = {"instructions": "Be brief.", "tools": (LOOK,), "truncation": "auto"}
    taken = estimate((), "Be brief.", (LOOK,))
    assert sees(story(*TALK, context_tokens=100 + taken, **extra)) == list(TALK)
    assert sees(story(*TALK, context_tokens=99 + taken, **extra)) == list(TALK[1:])


FEW = (*[answers(5)] * 12, asks(20))  # 80 tokens


def overflown(times: int, **changes: Any) -> int:
    """How many items the model sees in a run that was told so often that its request is too long."""
    told = story(*FEW, truncation="auto", **changes)
    told.apply(*[Compacted(error=ErrorInfo("context_length_exceeded", "too long"))] * times)
    return len(sees(told))


def test_every_overflow_halves_the_room() -> None:
    assert [overflown(times) for times in (0, 1, 2, 3)] == [13, 5, 1, 1]


def test_overflows_leave_out_nothing_unless_that_is_wanted() -> None:
    told = story(*FEW)
    told.apply(Compacted(error=ErrorInfo("context_length_exceeded", "too long")))
    assert len(sees(told)) == 13


def test_of_two_bounds_the_narrower_counts() -> None:
    assert [overflown(1, context_tokens=room) for room in (1000, 40, 39, 34)] == [5, 5, 4, 3]


def test_a_window_and_a_summary_go_together() -> None:
    earlier = [asks(9), answers(9), summary(0), user("b")]
    later = Story(order(input=(user("c"),), max_messages=2), history_of([Entry(item, "input") for item in earlier]))
    assert sees(later) == [user(f"{HEADING}\n\nSo far."), user("b"), user("c")]
