"""Whatever a vendor says, in whatever order: the events of a turn are ones the engine accepts, and nothing said is lost."""

from typing import get_args

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.providers.backend import folded

from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish, ItemDone, ModelEvent, TurnEnded
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, Message, OutputText, Reasoning, ReasoningText
from mainspring.providers.turn import TurnBuilder

words = st.sampled_from(["", " ", "\n\n", "tick", "tock", "{", '{"a": 1}', "}"])
names = st.sampled_from(["", "", "look", "ring"])
ids = st.sampled_from(["", "", "a", "b", "call_3"])
indexes = st.sampled_from([None, 0, 1, "x"])
pieces = st.one_of(
    st.tuples(st.just("text"), words),
    st.tuples(st.just("reasoning"), words),
    st.tuples(st.just("refusal"), words),
    st.tuples(st.just("annotation"), words),
    st.tuples(st.just("call"), indexes, ids, names, words),
)
finishes = st.sampled_from([finish for finish in get_args(Finish) if finish != "error"])


def played(said: list[tuple[str, ...]], finish: Finish) -> list[ModelEvent]:
    turn = TurnBuilder(counting(), taken=["b"])
    events: list[ModelEvent] = []
    for piece in said:
        match piece:
            case ("text", delta):
                turn.text(delta)
            case ("reasoning", delta):
                turn.reasoning(delta)
            case ("refusal", delta):
                turn.refusal(delta)
            case ("annotation", delta):
                turn.annotation({"note": delta})
            case ("call", index, id, name, arguments):
                turn.call(index=index, id=id, name=name, arguments=arguments)
        events += turn.take()
    turn.end(finish, None)
    return events + turn.take()


@given(st.lists(pieces, max_size=30), finishes)
def test_whatever_is_said_the_engine_accepts_it(said: list[tuple[str, ...]], finish: Finish) -> None:
    try:
        events = played(said, finish)
    except BadOutput:
        assume(False)
    run = folded(events)
    assert not run.in_turn
    assert events[-1] == TurnEnded(finish)
    items = [event.item for event in events if isinstance(event, ItemDone)]
    assert [type(item) for item in items if not isinstance(item, Message | Reasoning | FunctionCall)] == []
    calls = [item.call_id for item in items if isinstance(item, FunctionCall)]
    assert len(set(calls)) == len(calls)
    assert not {"", "b"} & set(calls)


@given(st.lists(st.tuples(st.sampled_from(["text", "reasoning"]), words), max_size=30))
def test_text_and_reasoning_are_kept_word_for_word(said: list[tuple[str, ...]]) -> None:
    items = [event.item for event in played(said, "stop") if isinstance(event, ItemDone)]
    text = "".join([item.text for item in items if isinstance(item, Message)])
    thought = "".join([part.text for item in items if isinstance(item, Reasoning) for part in item.content or ()])
    assert text == "".join([delta for kind, delta in said if kind == "text"])
    assert thought == "".join([delta for kind, delta in said if kind == "reasoning"])


def test_text_after_more_reasoning_belongs_to_the_same_message() -> None:
    events = played([("reasoning", "Hm."), ("text", "It is"), ("reasoning", "Hm!"), ("text", " noon")], "stop")
    assert [event.item for event in events if isinstance(event, ItemDone)] == [
        Reasoning(id="rs_1", content=(ReasoningText("Hm."),)),
        Reasoning(id="rs_3", content=(ReasoningText("Hm!"),)),
        Message("assistant", (OutputText("It is noon"),), id="msg_2"),
    ]


def test_an_answer_of_white_space_is_still_an_answer() -> None:
    events = played([("text", "\n"), ("text", " ")], "stop")
    assert [event.item for event in events if isinstance(event, ItemDone)] == [
        Message("assistant", (OutputText("\n "),), id="msg_1")
    ]
