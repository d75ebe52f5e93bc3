"""Items that are still being said: what the deltas add up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loop.world import Story, order

from mainspring.core.chain import Chain
from mainspring.core.drafts import Draft, item_id, partial, words
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    Delta,
    ItemDone,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import (
    ApprovalRequest,
    FunctionCall,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    Unknown,
)  # fmt: skip

MESSAGE = Message("assistant", id="m", status="in_progress")


def drafted(item: Item, *pieces: Delta | Annotated) -> Item:
    return partial(Draft(item, item_id(item), Chain(pieces)))


def test_message_is_the_text_so_far_marked_incomplete() -> None:
    assert drafted(MESSAGE) == Message("assistant", (), id="m", status="incomplete")
    assert drafted(MESSAGE, TextDelta("m", "a"), TextDelta("m", "b")) == Message(
        "assistant", (OutputText("ab"),), id="m", status="incomplete"
    )


def test_parts_of_a_message_are_in_index_order_each_with_its_notes() -> None:
    note = {"type": "url_citation", "url": "u"}
    item = drafted(
        MESSAGE,
        TextDelta("m", "c", index=1),
        RefusalDelta("m", "no", index=2),
        TextDelta("m", "a"),
        Annotated("m", note, index=1),
        TextDelta("m", "b"),
        RefusalDelta("m", "pe", index=2),
        Annotated("m", {"type": "x"}, index=3),
    )
    assert item == Message(
        "assistant",
        (OutputText("ab"), OutputText("c", annotations=(note,)), Refusal("nope"), OutputText("", annotations=({"type": "x"},))),
        id="m",
        status="incomplete",
    )


def test_notes_of_one_part_add_up() -> None:
    item = drafted(MESSAGE, Annotated("m", {"a": 1}), TextDelta("m", "x"), Annotated("m", {"b": 2}))
    assert item == Message("assistant", (OutputText("x", annotations=({"a": 1}, {"b": 2})),), id="m", status="incomplete")


def test_parts_keep_the_log_probabilities_of_their_own_words() -> None:
    item = drafted(
        MESSAGE,
        TextDelta("m", "a", logprobs=({"token": "a"},)),
        TextDelta("m", "b", index=1, logprobs=({"token": "b"},)),
        TextDelta("m", "c", logprobs=({"token": "c"},)),
    )
    parts = (OutputText("ac", logprobs=({"token": "a"}, {"token": "c"})), OutputText("b", logprobs=({"token": "b"},)))
    assert item == Message("assistant", parts, id="m", status="incomplete")


def test_call_is_the_arguments_so_far() -> None:
    call = FunctionCall("c", "look", '{"a', id="f", status="in_progress")
    item = drafted(call, ArgumentsDelta("f", '":'), TextDelta("f", "ignored"), ArgumentsDelta("f", "1"))
    assert item == FunctionCall("c", "look", '{"a":1', id="f", status="incomplete")


def test_reasoning_is_raw_text_and_summary_apart() -> None:
    item = drafted(
        Reasoning("r", status="in_progress"),
        ReasoningDelta("r", "raw ", index=1),
        ReasoningDelta("r", "short", index=1, summary=True),
        ReasoningDelta("r", "zero"),
        ReasoningDelta("r", "text", index=1),
        ReasoningDelta("r", "first", summary=True),
    )
    assert item == Reasoning(
        "r",
        summary=(SummaryText("first"), SummaryText("short")),
        content=(ReasoningText("zero"), ReasoningText("raw text")),
        status="incomplete",
    )


def test_reasoning_without_deltas_keeps_what_it_began_with() -> None:
    start = Reasoning("r", summary=(SummaryText("s"),), content=(ReasoningText("c"),), status="in_progress")
    assert drafted(start) == Reasoning("r", summary=start.summary, content=start.content, status="incomplete")
    assert drafted(Reasoning("r", status="in_progress")) == Reasoning("r", status="incomplete")


def test_item_without_deltas_of_its_own_is_as_it_began() -> None:
    odd = Unknown({"type": "x", "id": "u"})
    assert drafted(odd, TextDelta("u", "a")) is odd


def test_finished_item_is_itself() -> None:
    whole = Message("assistant", (OutputText("ab"),), id="m")
    assert partial(Draft(whole, "m", Chain([TextDelta("m", "zz")]), is_done=True)) is whole


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (Message("assistant", (OutputText("a"), Refusal("b"), InputText("c"), Unknown({"type": "x"}))), ["a", "b", "", ""]),
        (FunctionCall("c", "look", "{}"), ["{}"]),
        (Reasoning("r", (SummaryText("s"),), (ReasoningText("t"), ReasoningText("u"))), ["t", "u", "s"]),
        (Reasoning("r", (SummaryText("s"),)), ["s"]),
        (Reasoning("r", content=None), []),
        (Unknown({"type": "x"}), []),
    ],
)
def test_words_are_everything_an_item_says(item: Item, said: list[str]) -> None:
    assert words(item) == said


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (Message("user", id="m"), "m"),
        (Message("user"), ""),
        (Unknown({"type": "x", "id": "u"}), "u"),
        (Unknown({"type": "x"}), ""),
        (Unknown({"type": "x", "id": 3}), ""),
        (ApprovalRequest("mcpr_1", "look", "{}"), "mcpr_1"),
        (Reasoning("r"), "r"),
    ],
)
def test_every_kind_of_item_has_an_id(item: Item, found: str) -> None:
    assert item_id(item) == found


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3))))
def test_deltas_concatenate_to_the_done_text(pieces: list[tuple[int, str]]) -> None:
    """However the deltas of three interleaved messages fall, each says its own words, before and after it is done."""
    ids = ["a", "b", "c"]
    story = Story(order())
    story.apply(TurnStarted(), *[ItemStarted(Message("assistant", id=name)) for name in ids])
    story.apply(*[TextDelta(ids[which], delta) for which, delta in pieces])
    texts = ["".join(delta for at, delta in pieces if at == which) for which in range(3)]
    assert [item.text for item in story.run.output if isinstance(item, Message)] == texts
    spoken = [any(at == which for at, _ in pieces) for which in range(3)]
    whole = [
        Message("assistant", (OutputText(text),) if said else (), id=name)
        for name, text, said in zip(ids, texts, spoken, strict=True)
    ]
    story.apply(*[ItemDone(item) for item in whole], TurnEnded())
    assert story.run.output == tuple(whole)


def test_turn_under_way_is_in_the_output_as_far_as_it_got() -> None:
    story = Story(order())
    story.apply(TurnStarted(), ItemStarted(MESSAGE), TextDelta("m", "a"), ItemStarted(FunctionCall("c", "look", id="f")))
    story.apply(ArgumentsDelta("f", "{"), TextDelta("m", "b"))
    assert story.run.output == (
        Message("assistant", (OutputText("ab"),), id="m", status="incomplete"),
        FunctionCall("c", "look", "{", id="f", status="incomplete"),
    )
