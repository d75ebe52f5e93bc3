"""What a run finds in a conversation, whatever was added to it and removed from it, and what it leaves there."""

from mainspring.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Unknown,
    assistant,
    user,
)  # fmt: skip
from mainspring.loop.conversation import joined, with_id

ASKED, ANSWERED = user("Where?", id="msg_1"), assistant("Here.", id="msg_2")
CALL, OTHER = FunctionCall("call_1", "look", id="fc_1"), FunctionCall("call_2", "look", id="fc_2")
OUTPUT = FunctionCallOutput("call_1", "there", id="fco_1")


def seen(*items: Item) -> list[Item]:
    return [entry.item for entry in joined(items).entries]


def test_a_whole_conversation_is_history_as_it_is() -> None:
    assert seen(ASKED, CALL, OUTPUT, ANSWERED) == [ASKED, CALL, OUTPUT, ANSWERED]
    assert joined([ASKED, CALL, OUTPUT, ANSWERED]).waiting == ()


def test_an_output_that_came_late_stands_behind_its_call() -> None:
    assert seen(CALL, ASKED, ANSWERED, OUTPUT) == [CALL, OUTPUT, ASKED, ANSWERED]


def test_a_call_that_waits_stands_last_so_that_its_output_can_follow() -> None:
    history = joined([CALL, OTHER, ASKED, ANSWERED, OUTPUT])
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
    history = joined([ASKED, OTHER], (CALL,))
    assert [entry.item for entry in history.entries] == [ASKED, CALL]
    assert history.waiting == (CALL,)


def test_any_item_can_be_given_an_id() -> None:
    assert with_id(Unknown({"type": "x"}), "item_1") == Unknown({"type": "x", "id": "item_1"})
    assert with_id(user("Hi."), "msg_9") == user("Hi.", id="msg_9")
