"""Calls in text, however the text is cut: found where they are calls, and held back no longer than they may be."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.providers.backend import folded
from tests.zoo.leaks import CALL, FORMS, HERMES, TWINS

from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish, ModelEvent, TextDelta
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, Message, Reasoning, ToolDefinition, parse_arguments
from mainspring.providers.control_tokens import ANSWER_TAGS, STOPS
from mainspring.providers.leak_reader import _MARKS, _MAY_BEGIN, MOST_HELD, LeakReader
from mainspring.providers.leaked_calls import parse_calls
from mainspring.providers.turn import TurnBuilder

ZONE = {"type": "object", "properties": {"zone": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}}}
CLOCK = ToolDefinition("get_time", "Tells the time.", ZONE)


def play(pieces: list[str], finish: Finish = "stop", *, is_json: bool = False) -> list[ModelEvent]:
    leaks = LeakReader([CLOCK], is_json=is_json)
    turn = TurnBuilder(counting(), thinks=True, tools=[CLOCK], leaks=leaks, is_json=is_json, is_asked=lambda tag: False)
    for piece in pieces:
        turn.text(piece)
    turn.end(finish, None)
    return turn.take()


def text_of(told: list[ModelEvent]) -> str:
    return "".join([event.delta for event in told if isinstance(event, TextDelta)])


def calls_of(told: list[ModelEvent]) -> list[FunctionCall]:
    return [item for item in folded(told).output if isinstance(item, FunctionCall)]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@example(cuts=set(range(400)))
@example(cuts=set())
@given(cuts=st.sets(st.integers(0, 200)))
def test_a_call_is_found_however_its_text_is_cut(form: str, cuts: set[int]) -> None:
    (call,) = calls_of(play(cut(FORMS[form], cuts)))
    assert (call.name, parse_arguments(call.arguments)) == ("get_time", {"zone": "UTC"})


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=20)
@example(cuts=set(range(400)))
@example(cuts=set())
@given(cuts=st.sets(st.integers(0, 200)))
def test_what_is_no_call_is_text_however_it_is_cut(twin: str, cuts: set[int]) -> None:
    told = play(cut(TWINS[twin], cuts))
    assert (text_of(told), calls_of(told)) == (TWINS[twin], [])


THOUGHT = "<|channel|>analysis<|message|>I must look.<|end|>"
JSON = '{"zone": "UTC"}'
CHANNELS = {
    "as trained": f"{THOUGHT}<|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"
    f"{JSON}<|call|>",
    "recipient first": f"{THOUGHT}<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{JSON}<|call|>",
    "a start": f"<|start|>assistant{THOUGHT}<|start|>assistant<|channel|>commentary to=get_time<|message|>{JSON}",
    "words before": f"{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.get_time<|message|>{JSON}<|call|>",
}


@pytest.mark.parametrize("form", CHANNELS)
@given(cuts=st.sets(st.integers(0, 200)))
def test_channels_are_told_apart_however_the_text_is_cut(form: str, cuts: set[int]) -> None:
    told = play(cut(CHANNELS[form], cuts))
    (call,) = calls_of(told)
    assert parse_arguments(call.arguments) == {"zone": "UTC"}
    assert [item.content[0].text for item in folded(told).output if isinstance(item, Reasoning) and item.content] == [
        "I must look."
    ]
    assert text_of(told).strip() == ("Let me look." if form == "words before" else "")


@given(cuts=st.sets(st.integers(0, 200)))
def test_the_final_channel_is_text(cuts: set[int]) -> None:
    told = play(cut(f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is noon, a < b.<|return|>", cuts))
    assert (text_of(told), calls_of(told)) == ("It is noon, a < b.", [])


def test_several_calls_are_all_made() -> None:
    told = play([f"Two at once.\n{HERMES}\n", HERMES.replace("UTC", "CET")])
    assert [parse_arguments(call.arguments) for call in calls_of(told)] == [{"zone": "UTC"}, {"zone": "CET"}]
    assert text_of(told).strip() == "Two at once."


def test_words_in_tags_get_the_types_of_the_schema() -> None:
    parameters = {"zone": "12", "count": "12", "deep": '{"a": [true]}'}
    written = "".join([f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items()])
    (call,) = calls_of(play([f"<tool_call>\n<function=get_time>\n{written}</function>\n</tool_call>"]))
    assert parse_arguments(call.arguments) == {"zone": "12", "count": 12, "deep": {"a": [True]}}


QUOTED = [
    "Use it so:\n<tool_call>\n{}\n</tool_call>\nand wait.\n",
    "<think>a</think><|im_end|> b",
    "</function> and </tool_call> close it.",
    '<|tool_call_end|> ends "it".',
]


@pytest.mark.parametrize("words", QUOTED)
@example(cuts=set(range(400)))
@given(cuts=st.sets(st.integers(0, 200)))
def test_tags_within_an_argument_are_part_of_it_however_they_are_cut(words: str, cuts: set[int]) -> None:
    written = json.dumps({"name": "get_time", "arguments": {"zone": words}})
    (call,) = calls_of(play(cut(f"<tool_call>\n{written}\n</tool_call>", cuts)))
    assert parse_arguments(call.arguments) == {"zone": words}


def test_words_behind_a_call_that_has_such_tags_make_it_text() -> None:
    text = HERMES.replace("UTC", "</tool_call> and so on") + "\nis how it looks."
    told = play(cut(text, set(range(400))))
    assert (text_of(told), calls_of(told)) == (text, [])


def test_line_breaks_at_the_end_of_a_value_stay() -> None:
    written = json.dumps({"name": "get_time", "arguments": {"zone": "\nUTC\n"}})
    (call,) = calls_of(play([f"<tool_call>{written}</tool_call>"]))
    assert parse_arguments(call.arguments) == {"zone": "\nUTC\n"}
    (told,) = calls_of(play(["<function=get_time>\n<parameter=zone>\n\nUTC\n\n</parameter>\n</function>"]))
    assert parse_arguments(told.arguments) == {"zone": "\nUTC\n"}


def test_a_call_that_was_cut_off_is_no_call() -> None:
    told = play(["<tool_call>", CALL], "length")
    assert (text_of(told), calls_of(told)) == (f"<tool_call>{CALL}", [])


def test_a_call_in_text_beside_a_real_one_stays_text() -> None:
    turn = TurnBuilder(counting(), tools=[CLOCK], leaks=LeakReader([CLOCK]))
    turn.text(HERMES)
    turn.call(index=0, id="a", name="get_time", arguments="{}")
    turn.end("stop", None)
    told = turn.take()
    assert (text_of(told), len(calls_of(told))) == (HERMES, 1)


def test_json_that_was_asked_for_is_an_answer() -> None:
    told = play([CALL], is_json=True)
    assert (text_of(told), calls_of(told)) == (CALL, [])


def test_text_is_held_only_while_it_may_be_a_call() -> None:
    reader = LeakReader([CLOCK])
    said = [
        reader.feed(piece)
        for piece in ("Look: ", "a < b. ", "<", "tool", "box> ", "<tool_call>", "{}", "</tool_call>", " so", ".")
    ]
    assert said == ["Look: ", "a < b. ", "", "", "<toolbox> ", "", "", "", "<tool_call>{}</tool_call> so", "."]
    reader = LeakReader([CLOCK])
    assert [reader.feed(piece) for piece in ('{"na', 'me": "A', 'da"', "}")] == ["", "", '{"name": "Ada"', "}"]


def test_what_is_held_is_bounded() -> None:
    reader = LeakReader([CLOCK])
    pieces = ["<tool_call>", *["x" * 1_000] * (MOST_HELD // 1_000 + 1)]
    held = 0
    for piece in pieces:
        held += len(piece) - len(reader.feed(piece))
        assert held <= MOST_HELD
    assert held == 0


def test_what_is_no_call_is_found_out_in_time() -> None:
    # Quadratic in any of these, it would take minutes.
    with pytest.raises(BadOutput):
        play(["<function=get_time>" + "<parameter=a " * 19_000])
    for mean in (
        "<tool_call>" * 23_000,
        "<tool_call>get_time" + "\n" * 250_000 + "x",
        "<tool_call>get_time" + "\n" * 200_000 + "x>",
        "Noon." + ("</s>" + " " * 50) * 2_000 + "x]",
        "```get_time\n" + " " * 100_000 + "x",
        "Look.\n" + "Action: call\n" * 20_000,
        "<scratchpad>" + "</b> " * 50_000,
        "<|a|>" * 50_000 + "x",
        "<analysis>" + " " * 16_000 + "</b>",
        "Thought: none." + "\n" * 16_000 + "No Final Answer: yet.",
        "get_time(zone=x), " * 2_000 + "and so on",
        "It is noon.\n\nUser: why?\n" + "Human: " * 20_000,
        "```get_time\n" + "``" * 20_000,
        "[thinking]" + "[/" * 8_000,
        "<tool_call><get_time>" + "<a>" * 80_000 + "</get_time></tool_call>",
    ):
        assert text_of(play([mean])) == mean


def test_thoughts_without_a_recipient_are_read_in_time() -> None:
    turn = TurnBuilder(counting(), tools=[CLOCK], leaks=LeakReader([CLOCK]))
    turn.reasoning("<|channel|>" * 20_000)
    turn.end("stop", None)


@pytest.mark.parametrize("tags", ["<think></think>", "<s>", "<think>a</think>\n"])
def test_tags_without_end_are_read_in_time(tags: str) -> None:
    # A step of recursion for each would be too many.
    for size in (7, 60_000):
        text = tags * (60_000 // len(tags))
        told = play([text[at : at + size] for at in range(0, len(text), size)])
        assert "<think>" in text_of(told) or text_of(told) == ""


def test_a_block_that_follows_an_announcement_is_heard_as_it_comes() -> None:
    reader = LeakReader([CLOCK])
    for piece in ("Let me put it as JSON.\n\n", "```json\n", '{"hour": ', "12, "):
        reader.feed(piece)
    assert not reader.is_holding


@pytest.mark.parametrize("head", ["<" + "a" * 200, "<code>" + " " * 200, "```" + " " * 200])
def test_a_beginning_that_cannot_be_told_is_held_no_longer_than_a_head(head: str) -> None:
    reader = LeakReader([CLOCK])
    reader.feed(head)
    assert not reader.is_holding


def test_text_stays_text_where_it_is_one_of_several_types() -> None:
    texts = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    tool = ToolDefinition(
        "find", "", {"properties": {"code": texts, "id": {"type": ["string", "null"]}, "most": {"type": "integer"}}}
    )
    made = parse_calls(
        '<tool_call>{"name": "find", "arguments": {"code": "10115", "id": "7", "most": "3"}}</tool_call>', {"find": tool}
    )
    assert [parse_arguments(call.arguments) for call in made] == [{"code": "10115", "id": "7", "most": 3}]


def test_a_message_of_blanks_and_a_call_is_a_call_alone() -> None:
    assert not [item for item in folded(play(["\n\n", HERMES, "\n"])).output if isinstance(item, Message)]


def cut(text: str, cuts: set[int]) -> list[str]:
    places = sorted({0, *[place for place in cuts if place <= len(text)], len(text)})
    return [text[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("mark", [*_MARKS, *STOPS, *ANSWER_TAGS.values()])
def test_no_mark_is_passed_over_wherever_it_is_cut(mark: str) -> None:
    for size in range(1, len(mark) + 1):
        assert _MAY_BEGIN.search(f"Look:\n{mark[:size]}")


@given(cuts=st.sets(st.integers(0, 40)))
@example(cuts=set(range(40)))
def test_tokens_around_an_answer_are_left_out_however_it_is_cut(cuts: set[int]) -> None:
    for text in ("<s> It is noon.</s>", "<s>It is noon.", "assistant\n\nIt is noon.", "<|im_start|>assistant\nIt is noon."):
        said = [event.delta for event in play(cut(text, cuts)) if isinstance(event, TextDelta)]
        assert "".join(said) == "It is noon.", text
