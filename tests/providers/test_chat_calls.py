"""How pieces of tool calls are put together: by index, by id, or by neither."""

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct
from tests.providers.backend import ASKED, DONE, Backend, ask, begun, call_piece, chunk, sse, usage_chunk

from mainspring.core.events import ArgumentsDelta, ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, FunctionCallOutput, Json, Message, OutputText, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.http_client import Http
from mainspring.providers.turn import TurnBuilder

ONE = '{"at": 1}'
TWO = '{"at": 2}'


def calls_in(events: list[ModelEvent]) -> list[FunctionCall]:
    return [event.item for event in events if isinstance(event, ItemDone) and isinstance(event.item, FunctionCall)]


def made(*calls: tuple[str, str, str]) -> list[FunctionCall]:
    """Finished calls by (call id, name, arguments). An empty call id stands for a generated one."""
    new_id = counting()
    finished = []
    for call_id, name, arguments in calls:
        item_id = new_id("fc")
        finished.append(FunctionCall(call_id or new_id("call"), name, arguments, id=item_id))
    return finished


@pytest.mark.requirement("C43", "C-T26")
async def test_a_split_call_is_put_together(backend: Backend) -> None:
    backend.replies(
        sse(chunk({"role": "assistant", "content": None} | call_piece(0, id="call_a", name="look", arguments=""))),
        sse(chunk(call_piece(0, arguments='{"at'))),
        sse(chunk(call_piece(0, arguments='": "clock"}'))),
        sse(chunk(finish="tool_calls"), usage_chunk(9, 4)),
        DONE,
    )
    assert await ask(backend) == [
        ItemStarted(FunctionCall("call_a", "look", id="fc_1", status="in_progress")),
        ArgumentsDelta("fc_1", '{"at'),
        ArgumentsDelta("fc_1", '": "clock"}'),
        ItemDone(FunctionCall("call_a", "look", '{"at": "clock"}', id="fc_1")),
        TurnEnded("stop", Usage(9, 4)),
    ]


async def test_interleaved_calls_keep_their_pieces_and_their_order(backend: Backend) -> None:
    pieces = [
        call_piece(0, id="a", name="look"), call_piece(1, id="b", name="ring"),
        call_piece(1, arguments='{"bell"'), call_piece(0, arguments='{"at"'),
        call_piece(1, arguments=":1}"), call_piece(0, arguments=":2}"),
    ]  # fmt: skip
    backend.replies(sse(*[chunk(piece) for piece in pieces], chunk(finish="tool_calls")), DONE)
    assert await ask(backend) == [
        ItemStarted(FunctionCall("a", "look", id="fc_1", status="in_progress")),
        ItemStarted(FunctionCall("b", "ring", id="fc_2", status="in_progress")),
        ArgumentsDelta("fc_2", '{"bell"'),
        ArgumentsDelta("fc_1", '{"at"'),
        ArgumentsDelta("fc_2", ":1}"),
        ArgumentsDelta("fc_1", ":2}"),
        ItemDone(FunctionCall("a", "look", '{"at":2}', id="fc_1")),
        ItemDone(FunctionCall("b", "ring", '{"bell":1}', id="fc_2")),
        TurnEnded("stop"),
    ]


APART: dict[str, tuple[list[Json], list[FunctionCall]]] = {
    "without an index, by id": (
        [
            call_piece(None, id="a", name="look", arguments='{"at"'),
            call_piece(None, id="a", arguments=": 1}"),
            call_piece(None, id="b", name="look", arguments=TWO),
        ],
        made(("a", "look", ONE), ("b", "look", TWO)),
    ),
    "with neither index nor id, the latest until a tool is named": (
        [
            call_piece(None, name="look", arguments='{"at"'),
            call_piece(None, arguments=": 1}"),
            call_piece(None, name="look", arguments=TWO),
            call_piece(None, name="ring", arguments=""),
        ],
        made(("", "look", ONE), ("", "look", TWO), ("", "ring", "")),
    ),
    "same index, another id": (
        [
            call_piece(0, id="a", name="look", arguments=ONE),
            call_piece(0, id="b", name="look", arguments='{"at"'),
            call_piece(0, arguments=": 2}"),
        ],
        made(("a", "look", ONE), ("b", "look", TWO)),
    ),
    "same index, interleaved by id": (
        [
            call_piece(0, id="a", name="look", arguments='{"at"'),
            call_piece(0, id="b", name="ring", arguments='{"at"'),
            call_piece(0, id="a", arguments=": 1}"),
            call_piece(0, id="b", arguments=": 2}"),
        ],
        made(("a", "look", ONE), ("b", "ring", TWO)),
    ),
    "same index, empty ids, whole calls": (
        [call_piece(0, id="", name="look", arguments=ONE), call_piece(0, id="", name="look", arguments=ONE)],
        made(("", "look", ONE), ("", "look", ONE)),
    ),
    "same index, no ids, begun by a name alone": (
        [
            call_piece(0, name="look", arguments=""),
            call_piece(0, arguments=ONE),
            call_piece(0, name="look", arguments=""),
            call_piece(0, arguments=TWO),
            call_piece(0, name="ring", arguments=""),
            call_piece(0, arguments=ONE),
        ],
        made(("", "look", ONE), ("", "look", TWO), ("", "ring", ONE)),
    ),
    "with neither index nor id, begun by a name alone": (
        [
            call_piece(None, name="look", arguments=""),
            call_piece(None, arguments=ONE),
            call_piece(None, name="look", arguments=""),
            call_piece(None, arguments=TWO),
        ],
        made(("", "look", ONE), ("", "look", TWO)),
    ),
    "with neither index nor id, without arguments, in one chunk": (
        [{"tool_calls": [{"function": {"name": "look", "arguments": ""}}, {"function": {"name": "look", "arguments": None}}]}],
        made(("", "look", ""), ("", "look", "")),
    ),
    "same index, no ids, without arguments, in one chunk": (
        [{"tool_calls": [{"index": 0, "function": {"name": "look"}}, {"index": 0, "function": {"name": "look"}}]}],
        made(("", "look", ""), ("", "look", "")),
    ),
    "one id for two calls": (
        [call_piece(0, id="a", name="look", arguments=ONE), call_piece(1, id="a", name="ring", arguments=TWO)],
        made(("a", "look", ONE), ("", "ring", TWO)),
    ),
    "id and name in every piece": (
        [
            call_piece(0, id="a", name="look", arguments='{"at"'),
            call_piece(0, id="a", name="look", arguments=": 1}"),
            call_piece(0, id="a", name="look", arguments=""),
        ],
        made(("a", "look", ONE)),
    ),
    "a whole call said twice": (
        [call_piece(0, id="a", name="look", arguments=ONE), call_piece(0, id="a", name="look", arguments=ONE)],
        made(("a", "look", ONE)),
    ),
    "a name in two pieces": (
        [call_piece(0, id="a", name="lo"), call_piece(0, name="ok"), call_piece(0, arguments=ONE)],
        made(("a", "look", ONE)),
    ),
    "arguments before the name": (
        [call_piece(0, arguments='{"at"'), call_piece(0, id="a", name="look", arguments=": 1}")],
        made(("a", "look", ONE)),
    ),
    "an index only later": (
        [call_piece(None, id="a", name="look"), call_piece(0, arguments=ONE)],
        made(("a", "look", ONE)),
    ),
    "an id only later": (
        [call_piece(0, name="look"), call_piece(0, id="a", arguments=ONE), call_piece(0, id="b", name="ring", arguments=TWO)],
        made(("", "look", ONE), ("b", "ring", TWO)),
    ),
    "no arguments": (
        [call_piece(0, id="a", name="look", arguments=""), call_piece(1, id="b", name="look")],
        made(("a", "look", ""), ("b", "look", "")),
    ),
    "arguments as an object": (
        [call_piece(0, id="a", name="look", arguments={"at": 1}), call_piece(1, id="b", name="ring", arguments={})],
        made(("a", "look", '{"at":1}'), ("b", "ring", "{}")),
    ),
    "the old function call": (
        [{"function_call": {"name": "look", "arguments": ""}}, {"function_call": {"arguments": ONE}}],
        made(("", "look", ONE)),
    ),
    "whole calls in one chunk, with numbers for ids": (
        [{"tool_calls": [{"id": 7, "function": {"name": "look", "arguments": ONE}}, {"id": 8, "function": {"name": "ring"}}]}],
        made(("7", "look", ONE), ("8", "ring", "")),
    ),
}


@pytest.mark.requirement("C43")
@pytest.mark.parametrize("case", APART)
async def test_calls_are_told_apart(backend: Backend, case: str) -> None:
    pieces, expected = APART[case]
    backend.replies(sse(*[chunk(piece) for piece in pieces], chunk(finish="tool_calls")), DONE)
    assert calls_in(await ask(backend)) == expected


class Shape(Struct, frozen=True):
    """How a backend spells calls. `number` and `id` are where they stand; only what is told apart by them may alternate."""

    number: Literal["none", "zero", "own"]
    id: Literal["none", "first", "all"]
    names_all: bool
    begins_bare: bool
    repeats_at_end: bool
    alternates: bool
    in_one_chunk: bool

    @property
    def tells_apart(self) -> bool:
        return self.number == "own" or self.id != "none"

    @property
    def may_alternate(self) -> bool:
        return self.alternates and (self.number == "own" or self.id == "all")

    def deltas(self, calls: list[tuple[str, list[str]]]) -> list[Json]:
        """The calls as deltas. Those that nothing tells apart need arguments, or come at once."""
        spelled = [list(self._entries(place, name, pieces)) for place, (name, pieces) in enumerate(calls)]
        if self.in_one_chunk:
            return [{"tool_calls": list(chain(*spelled))}]
        woven = chain(*zip_longest(*spelled)) if self.may_alternate else chain(*spelled)
        return [{"tool_calls": [entry]} for entry in woven if entry is not None]

    def _entries(self, place: int, name: str, pieces: list[str]) -> Iterator[Json]:
        said = ["", *pieces] if self.begins_bare or not pieces else pieces
        said = ["".join(pieces)] if self.in_one_chunk else said
        for part, arguments in enumerate([*said, *([""] if self.repeats_at_end and self.id == "all" else [])]):
            entry: Json = {"function": {"arguments": arguments}}
            if self.number != "none":
                entry["index"] = place if self.number == "own" else 0
            if self.id == "all" or (self.id == "first" and part == 0):
                entry["id"] = f"call_{place}"
            if part == 0 or self.names_all or (self.repeats_at_end and part == len(said)):
                entry["function"]["name"] = name
            yield entry


shapes = st.builds(
    Shape,
    st.sampled_from(["none", "zero", "own"]),
    st.sampled_from(["none", "first", "all"]),
    *[st.booleans()] * 5,
)
objects = st.sampled_from([["{}"], ["{", "}"], ['{"a"', ":1}"], ['{"a":{"b":', "1}", "}"], ['{"a":"}', '{"}'], ["{} "]])
spoken = st.lists(st.tuples(st.sampled_from(["look", "ring"]), st.just([]) | objects), min_size=1, max_size=4)


@pytest.mark.requirement("C43")
@given(shapes, spoken)
@example(Shape("zero", "none", False, True, False, False, False), [("look", ['{"a":1}']), ("look", ['{"a":2}'])])
@example(Shape("none", "none", False, False, False, False, True), [("look", []), ("look", [])])
def test_calls_are_told_apart_however_they_are_spelled(shape: Shape, calls: list[tuple[str, list[str]]]) -> None:
    if not shape.tells_apart and not shape.in_one_chunk:
        calls = [(name, pieces or ["{}"]) for name, pieces in calls]
    answer = ChatCompletionReply(TurnBuilder(counting()), Http("http://127.0.0.1", api_key=None, headers=None, timeout=1.0))
    raw = sse(*[chunk(delta) for delta in shape.deltas(calls)], chunk(finish="tool_calls"))
    told = calls_in([*answer.feed(raw), *answer.end()])
    assert [(call.name, call.arguments) for call in told] == [(name, "".join(pieces)) for name, pieces in calls]
    assert len({call.call_id for call in told}) == len(calls)


async def test_a_call_id_of_an_earlier_turn_is_not_used_again(backend: Backend) -> None:
    earlier = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = [
        {"role": "assistant", "content": None, "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "call_0", "name": "look", "content": "dark"},
    ]
    again = chunk(call_piece(0, id="call_0", name="look", arguments="{}"))
    backend.replies(sse(again, chunk(finish="tool_calls")), DONE, expect=ASKED | {"messages": asked})
    items = (FunctionCall("call_0", "look", "{}"), FunctionCallOutput("call_0", "dark"))
    events = await ask(backend, ModelRequest("resp_1", "clockwork", items))
    assert calls_in(events) == [FunctionCall("call_2", "look", "{}", id="fc_1")]


async def test_text_beside_calls_is_a_message_before_them(backend: Backend) -> None:
    backend.replies(
        sse(chunk({"content": "I look."}), chunk({"content": "\n"}), chunk(call_piece(0, id="a", name="look", arguments="{}"))),
        sse(chunk({"content": "\n\n"}), chunk(call_piece(1, id="b", name="ring", arguments="{}")), chunk(finish="tool_calls")),
        DONE,
    )
    assert await ask(backend) == [
        ItemStarted(begun("msg_1")),
        TextDelta("msg_1", "I look."),
        TextDelta("msg_1", "\n"),
        ItemDone(Message("assistant", (OutputText("I look.\n"),), id="msg_1")),
        ItemStarted(FunctionCall("a", "look", id="fc_2", status="in_progress")),
        ArgumentsDelta("fc_2", "{}"),
        ItemStarted(FunctionCall("b", "ring", id="fc_3", status="in_progress")),
        ArgumentsDelta("fc_3", "{}"),
        ItemDone(FunctionCall("a", "look", "{}", id="fc_2")),
        ItemDone(FunctionCall("b", "ring", "{}", id="fc_3")),
        TurnEnded("stop"),
    ]


async def test_a_call_cut_off_at_the_limit_is_incomplete_and_the_whole_one_before_it_is_not(backend: Backend) -> None:
    whole, half = call_piece(0, id="a", name="look", arguments=ONE), call_piece(1, id="b", name="ring", arguments='{"bel')
    backend.replies(sse(chunk(whole), chunk(half), chunk(finish="length")), DONE)
    events = await ask(backend)
    assert calls_in(events) == [
        FunctionCall("a", "look", ONE, id="fc_1"),
        FunctionCall("b", "ring", '{"bel', id="fc_2", status="incomplete"),
    ]


async def test_a_call_cut_off_before_its_name_is_left_out(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "I will"}), chunk(call_piece(0, id="a")), chunk(finish="length")), DONE)
    assert await ask(backend) == [
        ItemStarted(begun("msg_1")),
        TextDelta("msg_1", "I will"),
        ItemDone(Message("assistant", (OutputText("I will"),), id="msg_1")),
        TurnEnded("length"),
    ]
