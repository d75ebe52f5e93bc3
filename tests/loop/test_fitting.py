"""What belongs together, and which of it goes first when not all of it fits."""

import pytest
from tests.loop.world import told

from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, Unknown, assistant, user
from mainspring.core.tokens import tokens_of
from mainspring.core.truncation import drop_oldest, groups

ODD = Unknown({"type": "x"})
THOUGHT = Reasoning("rs_1")


def call(number: int) -> FunctionCall:
    return FunctionCall(f"call_{number}", "look", "{}")


def output(number: int) -> FunctionCallOutput:
    return FunctionCallOutput(f"call_{number}", "ok")


def grouped(*items: Item) -> list[list[Item]]:
    return [list(part) for part in groups(items)]


def test_nothing_has_no_groups() -> None:
    assert grouped() == []


def test_messages_and_unknown_items_stand_alone() -> None:
    assert grouped(user("a"), ODD, assistant("b"), user("c")) == [[user("a")], [ODD], [assistant("b")], [user("c")]]


def test_calls_made_together_go_with_all_their_outputs() -> None:
    together = [call(1), call(2), output(1), output(2)]
    assert grouped(user("a"), *together, user("b")) == [[user("a")], together, [user("b")]]


def test_calls_made_one_after_the_other_are_groups_of_their_own() -> None:
    assert grouped(call(1), output(1), call(2), output(2)) == [[call(1), output(1)], [call(2), output(2)]]


def test_reasoning_goes_with_what_it_led_to() -> None:
    assert grouped(THOUGHT, THOUGHT, call(1), output(1)) == [[THOUGHT, THOUGHT, call(1), output(1)]]
    assert grouped(THOUGHT, assistant("a"), user("b")) == [[THOUGHT, assistant("a")], [user("b")]]


def test_reasoning_behind_an_answer_does_not_go_with_what_the_user_says_next() -> None:
    assert grouped(assistant("a"), THOUGHT, THOUGHT, user("b"), THOUGHT, assistant("c")) == [
        [assistant("a")], [THOUGHT, THOUGHT], [user("b")], [THOUGHT, assistant("c")],
    ]  # fmt: skip
    assert grouped(call(1), THOUGHT, user("b"), output(1)) == [[call(1), THOUGHT, user("b"), output(1)]]


def test_what_stands_between_a_call_and_its_output_goes_with_them() -> None:
    assert grouped(call(1), THOUGHT, assistant("a"), output(1), user("b")) == [
        [call(1), THOUGHT, assistant("a"), output(1)],
        [user("b")],
    ]


def test_an_output_without_its_call_stands_alone_and_opens_nothing() -> None:
    assert grouped(output(1), output(2), user("a"), call(3), output(3), user("b")) == [
        [output(1)], [output(2)], [user("a")], [call(3), output(3)], [user("b")],
    ]  # fmt: skip


def test_what_is_left_open_at_the_end_is_a_group() -> None:
    assert grouped(user("a"), call(1), call(2), output(1)) == [[user("a")], [call(1), call(2), output(1)]]
    assert grouped(user("a"), THOUGHT) == [[user("a")], [THOUGHT]]


# Every letter below counts 5 tokens.
TALK = tuple([assistant(letter) for letter in "abcd"])


@pytest.mark.parametrize(
    ("room", "left"), [(21, "abcd"), (20, "abcd"), (19, "bcd"), (15, "bcd"), (14, "cd"), (10, "cd"), (9, "d"), (5, "d"), (0, "d")]
)
def test_the_oldest_go_until_the_rest_fits_and_the_last_stays_in_any_case(room: int, left: str) -> None:
    assert [item.text for item in drop_oldest(TALK, room) if isinstance(item, Message)] == list(left)


def test_nothing_fits_anywhere() -> None:
    assert drop_oldest((), 0) == ()


def test_a_group_goes_as_one_and_counts_as_one() -> None:
    items = (THOUGHT, call(1), output(1), assistant("a"), assistant("b"))
    assert drop_oldest(items, tokens_of(items) - 1) == items[3:]
    assert drop_oldest(items, 10) == items[3:]
    assert drop_oldest(items, 9) == items[4:]


def test_a_group_at_the_end_stays_whole() -> None:
    items = (assistant("a"), call(1), call(2), output(1), output(2))
    assert drop_oldest(items, 0) == items[1:]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_the_operator_said_stays(role: str) -> None:
    ruled = Message(role, user("r").content)  # type: ignore[arg-type]
    assert drop_oldest((assistant("a"), ruled, assistant("b"), ruled, assistant("c")), 0) == (ruled, ruled, assistant("c"))


def test_of_what_the_user_said_the_last_stays() -> None:
    items = (user("a"), user("b"), assistant("c"), user("d"), assistant("e"), ODD, assistant("f"))
    assert told(drop_oldest(items, 0)) == ["user: d", "assistant: f"]


def test_no_more_goes_than_it_takes_though_something_stays_in_between() -> None:
    items = (assistant("a"), user("b"), assistant("c"), assistant("d"), assistant("e"))
    assert told(drop_oldest(items, 15)) == ["user: b", "assistant: d", "assistant: e"]
    assert told(drop_oldest(items, 20)) == ["user: b", "assistant: c", "assistant: d", "assistant: e"]


def test_without_a_word_of_the_user_nothing_stays_in_its_place() -> None:
    assert drop_oldest((ODD, ODD, ODD), 0) == (ODD,)


def test_the_order_is_kept() -> None:
    items = (Message("system", user("s").content), assistant("a"), user("b"), assistant("c"))
    assert told(drop_oldest(items, 16)) == ["system: s", "user: b", "assistant: c"]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_reasoning_that_led_to_nothing_does_not_join_what_is_said_behind_it(role: str) -> None:
    heard = Message(role, user("h").content)  # type: ignore[arg-type]
    thought = Reasoning(id="rs_1")
    assert [list(group) for group in groups((assistant("a"), thought, heard))] == [[assistant("a")], [thought], [heard]]
