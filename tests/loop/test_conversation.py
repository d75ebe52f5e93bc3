"""What a run finds in a conversation, whatever was added to it and removed from it, and what it leaves there."""

import pytest
from tests.loop.world import Said, Story, calls, fails, order, says

from mainspring.core.conversation_items import build_history, list_new_items, with_id
from mainspring.core.drafts import item_id
from mainspring.core.history import Entry, History, history_of
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Reasoning,
    Unknown,
    assistant,
    user,
)  # fmt: skip

ASKED, ANSWERED = user("Where?", id="msg_1"), assistant("Here.", id="msg_2")
CALL, OTHER = FunctionCall("call_1", "look", id="fc_1"), FunctionCall("call_2", "look", id="fc_2")
OUTPUT = FunctionCallOutput("call_1", "there", id="fco_1")


def seen(*items: Item) -> list[Item]:
    return [entry.item for entry in build_history(items).entries]


def test_a_whole_conversation_is_history_as_it_is() -> None:
    assert seen(ASKED, CALL, OUTPUT, ANSWERED) == [ASKED, CALL, OUTPUT, ANSWERED]
    assert build_history([ASKED, CALL, OUTPUT, ANSWERED]).waiting == ()


def test_an_output_that_came_late_stands_behind_its_call() -> None:
    assert seen(CALL, ASKED, ANSWERED, OUTPUT) == [CALL, OUTPUT, ASKED, ANSWERED]


def test_a_call_that_waits_stands_last_so_that_its_output_can_follow() -> None:
    history = build_history([CALL, OTHER, ASKED, ANSWERED, OUTPUT])
    assert [entry.item for entry in history.entries] == [CALL, OUTPUT, ASKED, ANSWERED, OTHER]
    assert history.waiting == (OTHER,)


def test_an_output_without_its_call_is_left_out() -> None:
    assert seen(ASKED, OUTPUT, ANSWERED) == [ASKED, ANSWERED]


def test_a_second_output_for_a_call_is_left_out() -> None:
    assert seen(ASKED, CALL, OUTPUT, with_id(OUTPUT, "fco_2"), ANSWERED) == [ASKED, CALL, OUTPUT, ANSWERED]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    assert seen(ASKED, FunctionCall("call_3", "look", id="fc_3", status="incomplete")) == [ASKED]


def test_an_approval_stands_between_a_call_and_its_output() -> None:
    approval = (ApprovalRequest("mcpr_1", "look", ""), ApprovalResponse("mcpr_1", True, id="item_1"))
    assert seen(ASKED, CALL, *approval, OUTPUT) == [ASKED, CALL, *approval, OUTPUT]


def test_a_run_that_began_earlier_finds_the_calls_that_waited_then() -> None:
    history = build_history([ASKED, OTHER], (CALL,))
    assert [entry.item for entry in history.entries] == [ASKED, CALL]
    assert history.waiting == (CALL,)


def test_a_conversation_is_as_large_as_what_was_read_of_it() -> None:
    assert build_history([ASKED], size=12).size == 12
    assert build_history([]) == History()


def test_any_item_can_be_given_an_id() -> None:
    assert with_id(Unknown({"type": "x"}), "item_1") == Unknown({"type": "x", "id": "item_1"})
    assert with_id(user("Hi."), "msg_9") == user("Hi.", id="msg_9")


@pytest.mark.parametrize(
    "item", [ASKED, CALL, OUTPUT, Reasoning("rs_1"), ApprovalRequest("mcpr_1", "look", ""), ApprovalResponse("mcpr_1", True)]
)
def test_every_kind_of_item_keeps_all_but_its_id(item: Item) -> None:
    found = with_id(item, "item_1")
    assert (item_id(found), type(found)) == ("item_1", type(item))
    assert with_id(found, item_id(item)) == with_id(item, item_id(item))


def test_a_thing_that_can_have_no_id_stays_as_it_is() -> None:
    bare = Item()
    assert with_id(bare, "item_1") is bare


def test_entries_of_a_conversation_came_from_outside() -> None:
    assert list(build_history([ASKED, CALL]).entries) == [Entry(ASKED, "input"), Entry(CALL, "input")]


def test_calls_are_told_apart_by_place_though_they_look_alike() -> None:
    again = FunctionCall("call_1", "look", id="fc_1")
    assert seen(CALL, OUTPUT, again) == [CALL, OUTPUT, again]
    assert build_history([CALL, OUTPUT, again]).waiting == (again,)


def test_a_run_leaves_its_input_and_its_answer() -> None:
    history = history_of([Entry(ASKED, "input"), Entry(ANSWERED, "model", 1)])
    run = Story(order(input=(user("Go.", id="msg_7"),)), history).play(calls("look"), says("Done."))
    assert list_new_items(run) == (
        user("Go.", id="msg_7"),
        FunctionCall("call_1", "look", "{}", id="fc_1"),
        FunctionCallOutput("call_1", "ok", id="fco_1"),
        assistant("Done.", id="msg_1"),
    )


def test_what_the_engine_said_and_what_the_model_never_sees_is_not_left_behind() -> None:
    story = Story(order(confirm="Sure?", retry_model_errors=True, input=(ASKED,)))
    run = story.play(fails(Said("Hm."), retryable=True), says("Done."), says("Yes."))
    assert list_new_items(run) == (ASKED, assistant("Done.", id="msg_2"), assistant("Yes.", id="msg_3"))


def test_an_item_without_an_id_or_with_one_that_is_taken_gets_one_by_its_place() -> None:
    odd = Unknown({"type": "x"})
    run = Story(order(input=(user("a"), user("b", id="msg_1"), odd, user("c", id="msg_1")))).play(says("d"))
    assert list_new_items(run) == (
        user("a", id="item_1_0"),
        user("b", id="msg_1"),
        Unknown({"type": "x", "id": "item_1_2"}),
        user("c", id="item_1_3"),
        assistant("d", id="item_1_4"),
    )
