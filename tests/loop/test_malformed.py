"""Every event that cannot follow: `fold` says no, in words, and the run stays as it was."""

import pytest
from tests.loop.world import Story, calls, order, says

from mainspring.core.errors import Malformed
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    CallJudged,
    ErrorInfo,
    Event,
    ItemDone,
    ItemStarted,
    Reason,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import History
from mainspring.core.items import FunctionCall, Message, OutputText, Reasoning, ReasoningText, Unknown
from mainspring.core.run import fold, open_run

MESSAGE = Message("assistant", id="msg_1", status="in_progress")
CALL = FunctionCall("call_1", "look", id="fc_1", status="in_progress")


def refused(events: list[Event], last: Event, message: str) -> None:
    story = Story(order())
    story.apply(*events)
    before = story.run
    with pytest.raises(Malformed) as caught:
        story.apply(last)
    assert caught.value.message == message
    assert story.run == before


def called(*events: Event) -> list[Event]:
    """A run whose model has made `call_1` and `call_2`."""
    second = FunctionCall("call_2", "save", id="fc_2")
    items: list[Event] = [
        ItemStarted(CALL),
        ItemDone(FunctionCall("call_1", "look", id="fc_1")),
        ItemStarted(second),
        ItemDone(second),
    ]
    return [TurnStarted(), *items, TurnEnded(), *events]


ALLOWED = CallJudged("call_1", "allow", "p")


@pytest.mark.parametrize("record", [Recorded(0, 0.0, TurnStarted()), Recorded(1, 0.0, RunStarted(order()))])
def test_log_begins_with_run_started_as_event_0(record: Recorded) -> None:
    with pytest.raises(Malformed) as caught:
        open_run(record, History())
    assert caught.value.message == f"a log begins with run_started as event 0, not with {record.event!r:.80}"


@pytest.mark.parametrize("seq", [0, 2])
def test_events_are_numbered_without_gaps(seq: int) -> None:
    with pytest.raises(Malformed, match=f"^run run_1 expects event 1, not {seq}$"):
        fold(Story(order()).run, Recorded(seq, 0.0, TurnStarted()))


def test_run_starts_once() -> None:
    refused([], RunStarted(order()), "run run_1 has started already")


def test_turn_does_not_begin_within_a_turn() -> None:
    refused([TurnStarted()], TurnStarted(), "a turn cannot begin before the last one and its calls are answered")


def test_turn_does_not_begin_before_the_calls_of_the_last_are_answered() -> None:
    refused(called(), TurnStarted(), "a turn cannot begin before the last one and its calls are answered")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (TurnEnded(), "a turn ended that never began"),
        (TurnEnded(error=ErrorInfo("a", "b")), "a turn was cut off that never began"),
        (TurnAborted(), "a turn was cut off that never began"),
    ],
)
def test_turn_that_never_began_does_not_end(end: Event, message: str) -> None:
    refused([], end, message)


def test_turn_that_ended_in_an_error_says_which() -> None:
    refused([TurnStarted()], TurnEnded("error"), "a turn that ended in an error must say which")


def test_item_begins_within_a_turn() -> None:
    refused([], ItemStarted(MESSAGE), "item `msg_1` begins outside a turn")


@pytest.mark.parametrize("item", [Message("assistant"), Unknown({"type": "x"}), Unknown({"type": "x", "id": 7})])
def test_item_has_an_id(item: Message | Unknown) -> None:
    refused([TurnStarted()], ItemStarted(item), "item id `` is empty or used twice in a turn")


def test_item_ids_of_a_turn_are_unique() -> None:
    refused(
        [TurnStarted(), ItemStarted(MESSAGE)],
        ItemStarted(FunctionCall("c", "look", id="msg_1")),
        "item id `msg_1` is empty or used twice in a turn",
    )


def test_id_of_a_finished_item_is_not_used_again_in_its_turn() -> None:
    refused(
        [TurnStarted(), ItemStarted(MESSAGE), ItemDone(MESSAGE)],
        ItemStarted(MESSAGE),
        "item id `msg_1` is empty or used twice in a turn",
    )


def test_call_ids_of_a_turn_are_unique() -> None:
    refused(
        [TurnStarted(), ItemStarted(CALL)],
        ItemStarted(FunctionCall("call_1", "look", id="fc_2")),
        "call id `call_1` is used twice in a turn",
    )


def test_ids_may_come_again_in_another_turn() -> None:
    story = Story(order())
    for _ in range(2):
        story.apply(TurnStarted(), ItemStarted(CALL), ItemDone(FunctionCall("call_1", "look", id="fc_1")), TurnEnded())
        story.apply(ToolEnded("call_1", "ok"))
    assert len(story.run.output) == 4


@pytest.mark.parametrize("piece", [TextDelta("msg_2", "a"), RefusalDelta("msg_2", "a"), Annotated("msg_2", {"a": 1})])
def test_delta_belongs_to_an_item(piece: Event) -> None:
    refused([TurnStarted(), ItemStarted(MESSAGE)], piece, "no item `msg_2` is being said")


def test_delta_does_not_come_outside_a_turn() -> None:
    refused([], TextDelta("msg_1", "a"), "no item `msg_1` is being said")


def test_delta_does_not_follow_the_end_of_its_item() -> None:
    refused([TurnStarted(), ItemStarted(MESSAGE), ItemDone(MESSAGE)], TextDelta("msg_1", "a"), "no item `msg_1` is being said")


def test_item_is_done_once() -> None:
    refused([TurnStarted(), ItemStarted(MESSAGE), ItemDone(MESSAGE)], ItemDone(MESSAGE), "no item `msg_1` is being said")


def test_item_ends_as_the_kind_it_began_as() -> None:
    refused(
        [TurnStarted(), ItemStarted(MESSAGE)],
        ItemDone(FunctionCall("c", "look", id="msg_1")),
        "item `msg_1` began as Message and ended as FunctionCall",
    )


def test_call_keeps_its_call_id() -> None:
    refused(
        [TurnStarted(), ItemStarted(CALL)],
        ItemDone(FunctionCall("call_9", "look", id="fc_1")),
        "item `fc_1` ended as another call, `call_9`",
    )


def test_message_says_what_its_deltas_said() -> None:
    whole = Message("assistant", (OutputText("abd"),), id="msg_1")
    events: list[Event] = [TurnStarted(), ItemStarted(MESSAGE), TextDelta("msg_1", "ab"), TextDelta("msg_1", "c")]
    refused(events, ItemDone(whole), "item `msg_1` does not say what its deltas said")


def test_call_says_what_its_deltas_said() -> None:
    events: list[Event] = [TurnStarted(), ItemStarted(CALL), ArgumentsDelta("fc_1", "{")]
    refused(events, ItemDone(FunctionCall("call_1", "look", "{}", id="fc_1")), "item `fc_1` does not say what its deltas said")


def test_what_was_streamed_in_parts_is_compared_as_a_whole() -> None:
    story = Story(order())
    odd = Unknown({"type": "hologram"})
    whole = Message("assistant", (OutputText("ab"), odd, OutputText("c")), id="msg_1")
    story.apply(TurnStarted(), ItemStarted(MESSAGE), TextDelta("msg_1", "ab"), TextDelta("msg_1", "c", index=2))
    assert story.apply(ItemDone(whole), TurnEnded()).output == (whole,)


def test_empty_delta_is_no_word() -> None:
    story = Story(order())
    story.apply(TurnStarted(), ItemStarted(MESSAGE), TextDelta("msg_1", ""), ItemDone(Message("assistant", (), id="msg_1")))
    assert story.apply(TurnEnded()).output == (Message("assistant", (), id="msg_1"),)


def test_item_without_deltas_may_say_anything() -> None:
    story = Story(order())
    whole = Reasoning("rs_1", content=(ReasoningText("hm"),))
    story.apply(TurnStarted(), ItemStarted(Reasoning("rs_1")), ItemDone(whole), TurnEnded())
    assert story.run.output == (whole,)


def test_annotations_are_no_words() -> None:
    story = Story(order())
    whole = Message("assistant", (OutputText("abc"),), id="msg_1")
    story.apply(TurnStarted(), ItemStarted(MESSAGE), Annotated("msg_1", {"a": 1}), ItemDone(whole), TurnEnded())
    assert story.run.output == (whole,)


@pytest.mark.parametrize(
    "event", [CallJudged("call_9", "allow", "p"), ToolStarted("call_9"), ToolProgress("call_9", ""), ToolEnded("call_9", "")]
)
def test_only_open_calls_are_judged_started_or_answered(event: Event) -> None:
    refused(called(), event, "run run_1 has no open call `call_9`")


def test_call_is_judged_once() -> None:
    refused(called(ALLOWED), CallJudged("call_1", "deny", "q"), "call `call_1` has been judged already")


@pytest.mark.parametrize("verdict", ["allow", "deny"])
def test_call_under_way_may_only_be_handed_to_the_client_or_ask_a_person(verdict: str) -> None:
    again = CallJudged("call_1", verdict, "q")  # type: ignore[arg-type]
    refused(called(ALLOWED, ToolStarted("call_1")), again, "call `call_1` has been judged already")


def test_call_that_has_not_started_is_not_handed_to_the_client() -> None:
    refused(called(ALLOWED), CallJudged("call_1", "client", "q"), "call `call_1` has been judged already")


def test_answered_call_is_not_judged() -> None:
    events = called(ToolEnded("call_2", "early"))
    refused(events, CallJudged("call_2", "allow", "p"), "call `call_2` has been judged already")


def test_answered_call_is_not_handed_to_the_client() -> None:
    events = called(CallJudged("call_2", "allow", "p"), ToolStarted("call_2"), ToolEnded("call_2", "ok"))
    refused(events, CallJudged("call_2", "client", "p"), "call `call_2` has been judged already")


@pytest.mark.parametrize(
    ("verdict", "state"),
    [(None, "not judged"), ("ask", "ask"), ("client", "client")],
)
def test_only_allowed_calls_start(verdict: str | None, state: str) -> None:
    judged = [CallJudged("call_1", verdict, "p")] if verdict else []  # type: ignore[arg-type]
    refused(called(*judged), ToolStarted("call_1"), f"call `call_1` may not start: it is {state}")


def test_denied_call_does_not_start() -> None:
    events = called(CallJudged("call_2", "deny", "p"))
    refused(events, ToolStarted("call_2"), "call `call_2` may not start: it is deny")


def test_call_starts_once() -> None:
    refused(called(ALLOWED, ToolStarted("call_1")), ToolStarted("call_1"), "call `call_1` may not start: it is allow")


def test_answered_call_does_not_start() -> None:
    events = called(CallJudged("call_2", "allow", "p"), ToolEnded("call_2", "early"))
    refused(events, ToolStarted("call_2"), "call `call_2` may not start: it is allow")


def test_call_is_answered_once() -> None:
    refused(called(ToolEnded("call_2", "ok")), ToolEnded("call_2", "ok"), "call `call_2` has been answered already")


def test_run_does_not_end_within_a_turn() -> None:
    refused([TurnStarted()], RunEnded("cancelled", Reason.CANCELLED), "a run cannot end within a turn")


def test_run_does_not_end_with_open_calls_unless_it_pauses() -> None:
    refused(called(), RunEnded("completed", Reason.FINAL_ANSWER), "a run cannot end completed with unanswered calls")


@pytest.mark.requirement("A9")
def test_ended_run_takes_no_event() -> None:
    story = Story(order())
    story.play(says("done"))
    with pytest.raises(Malformed, match=r"^run run_1 has ended; TurnStarted cannot follow$"):
        story.apply(TurnStarted())


def test_run_that_fold_refuses_is_unchanged_and_goes_on() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    with pytest.raises(Malformed):
        story.apply(TurnStarted())
    story.speak(calls("look"))
    story.play(says("done"))
    assert story.run.status == "completed"
