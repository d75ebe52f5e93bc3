"""Arguments with slips, however they are cut: mended where they can mean one thing only, and else left to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.providers.backend import folded
from tests.providers.test_leaked_calls import cut

from mainspring.core.errors import BadOutput
from mainspring.core.events import ArgumentsDelta
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, Json, ToolDefinition, parse_arguments
from mainspring.providers.call_draft import MOST_HELD
from mainspring.providers.turn import TurnBuilder

SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}, "exact": {"type": "boolean"}, "notes": {"type": "array"}}}
CLOCK = ToolDefinition("get_time", "Tells the time.", SCHEMA, kind="builtin")
RUN = ToolDefinition("run", "Runs a program.", {"type": "object", "properties": {"name": {}, "arguments": {}}})
ANY = ToolDefinition("note", "Takes anything.", {"type": "object"}, kind="builtin")


def make(pieces: list[str], tool: ToolDefinition) -> FunctionCall:
    """The call that these pieces make. What was told of it adds up to what it is."""
    turn = TurnBuilder(counting(), tools=[tool])
    turn.call(index=0, id="a", name=tool.name)
    for piece in pieces:
        turn.call(index=0, arguments=piece)
    turn.end("stop", None)
    told = turn.take()
    (call,) = [item for item in folded(told).output if isinstance(item, FunctionCall)]
    assert "".join([event.delta for event in told if isinstance(event, ArgumentsDelta)]) == call.arguments
    return call


SLIPS = {
    "a comma": '{"zone": "UTC", }',
    "commas": '{"zone": "UTC", "notes": [1, 2,],}',
    "no brace": '{"zone": "UTC"',
    "a comma and no brace": '{"notes": [1,], "zone": "UTC"',
    "a brace": '{"zone": "UTC"}}',
    "Python's words": '{"exact": True, "zone": "UTC"}',
    "a list": '[{"zone": "UTC"}]',
    "within arguments": '{"arguments": {"zone": "UTC"}}',
    "within a call": '{"type": "function", "name": "get_time", "parameters": {"zone": "UTC"}}',
    "within its name": '{"get_time": {"zone": "UTC"}}',
    "nothing first": '{}{"zone": "UTC"}',
    "quotes of Gemma's": '{"zone": "<|\\"|>UTC<|\\"|>"}',
    "JavaScript's keys": "{zone: 'UTC', exact: true}",
    "a writer's quotes": "{\u201czone\u201d: \u201cUTC\u201d}",
    "a text in a list": '["{\\"zone\\": \\"UTC\\"}"]',
    "no braces": '"zone": "UTC", "exact": true',
    "no brace first": '"zone": "UTC"}',
    "names and values": 'zone="UTC", exact=True',
    "lines": "zone: UTC\nexact: true",
    "its one word": "UTC",
    "its one word in quotes": '"UTC"',
    "twice JSON, with a comma": '"{\\"zone\\": \\"UTC\\",}"',
}
# What is as it should be, and what could mean more than one thing.
TWINS = {
    "a comma in a text": (CLOCK, '{"zone": "[1, 2,] {a, } None True", "exact": true}'),
    "quotes of Gemma's in a text": (CLOCK, '{"zone": "Gemma writes <|\\"|>UTC<|\\"|> for it"}'),
    "code": (CLOCK, '{"zone": "if (a) { return [1,]; } }} </tool_call> <|im_end|>\\n"}'),
    "a word of several": (CLOCK, "UTC CET"),
    "half a word": (CLOCK, '"UT'),
    "a word for many": (replace(RUN, kind="builtin"), "ls"),
    "comments in a text": (CLOCK, '{"zone": "// UTC /* it */ a: b"}'),
    "its own arguments": (RUN, '{"name": "ls", "arguments": {"zone": "UTC"}}'),
    "anything": (ANY, '{"arguments": {"zone": "UTC"}}'),
    "others within": (CLOCK, '{"arguments": {"place": "UTC"}}'),
    "a number that may go on": (ANY, '{"count": 12'),
    "a text that may go on": (CLOCK, '{"zone": "UT'),
    "a list of several": (CLOCK, '[{"zone": "UTC"}, {"zone": "CET"}]'),
    "nested": (CLOCK, '{"notes": [{"a": {"b": {}}}], "zone": "UTC"}'),
    "the same within": (ANY, '{"q": {"q": {"q": 1}}}'),
    "nothing": (CLOCK, "{}"),
}


@pytest.mark.parametrize("slip", SLIPS)
@given(cuts=st.sets(st.integers(0, 80)))
def test_a_slip_is_mended_however_it_is_cut(slip: str, cuts: set[int]) -> None:
    meant = parse_arguments(make(cut(SLIPS[slip], cuts), CLOCK).arguments)
    assert meant.pop("zone") == "UTC"
    assert meant.items() <= {"exact": True, "notes": [1, 2]}.items() or meant == {"notes": [1]}


@pytest.mark.parametrize("twin", TWINS)
@given(cuts=st.sets(st.integers(0, 80)))
def test_what_is_no_slip_stays_to_the_letter(twin: str, cuts: set[int]) -> None:
    tool, arguments = TWINS[twin]
    assert make(cut(arguments, cuts), tool).arguments == arguments


def test_arguments_without_slips_are_told_as_they_come() -> None:
    turn = TurnBuilder(counting(), tools=[CLOCK])
    turn.call(index=0, id="a", name="get_time")
    turn.take()
    told = []
    for piece in ('{"zone"', ': "', "a, b", "] <b> 1,", "]", " <|im_end|>", ' {y} None", "exact": true'):
        turn.call(index=0, arguments=piece)
        told.append("".join([event.delta for event in turn.take() if isinstance(event, ArgumentsDelta)]))
    assert told == ['{"zone"', ': "', "a, b", "] <b> 1", ",]", " <|im_end|>", ' {y} None", "exact": true']


def test_no_client_is_left_with_half_a_call() -> None:
    with pytest.raises(BadOutput, match="no JSON"):
        make(['{"zone": "UT'], replace(CLOCK, kind="function"))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"place": "Oslo", "days": "3"}', '{"place": "Oslo", "days": 3}'),
        ('{"place": "Oslo", "days" : "3", "quiet": "True"}', '{"place": "Oslo", "days" : 3, "quiet": true}'),
        ('{"days": 3, "place": "01"}', '{"days": 3, "place": "01"}'),
        ('{"days": 3, "place": "Oslo"', '{"days": 3, "place": "Oslo"}'),
        ('{"place": "Os\nlo", "days": 3}', '{"place": "Os\\nlo", "days": 3}'),
        ('{"place": "a,\n", \n"days": 3}', '{"place": "a,\\n", \n"days": 3}'),
        ('{"place": "Oslo", "days": 3, "notes": "[\\"a\\"]"}', '{"place": "Oslo", "days": 3, "notes": ["a"]}'),
        ('{"place": "Oslo", "days": 3, "notes": "null"}', '{"place": "Oslo", "days": 3, "notes": null}'),
        ('{"kwargs": {"place": "Oslo", "days": 3}}', '{"place":"Oslo","days":3}'),
        ("<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>", '{"place":"Oslo","days":3}'),
        ('{"place": "Os\\\'lo", "days": 3}', '{"place": "Os\'lo", "days": 3}'),
        ('{"place": "\\\\\'", "days": 3}', '{"place": "\\\\\'", "days": 3}'),
        ('{"place": \'Oslo\', "days": 3}', '{"place": "Oslo", "days": 3}'),
        ('{"place": {"type": "string", "value": "Oslo"}, "days": {"value": 3}}', '{"place": "Oslo", "days": 3}'),
        ('{"place": ["Oslo"], "days": "3"}', '{"place": "Oslo", "days": 3}'),
        ('{"place": "Oslo", "days": 3, "unit": null}', '{"place": "Oslo", "days": 3, "unit": "C"}'),
        ('{"place": "Oslo", "days": 3, "rate": null}', '{"place": "Oslo", "days": 3, "rate": null}'),
        ('{"place": {"type": "string"}, "days": 3}', '{"place": {"type": "string"}, "days": 3}'),
        ('{"place": ["Oslo", "Rome"], "days": 3}', '{"place": ["Oslo", "Rome"], "days": 3}'),
        ('{"place": "Oslo", "days": 3.0, "notes": "[\'a\']"}', '{"place": "Oslo", "days": 3.0, "notes": ["a"]}'),
        ('{"place": 5, "days": 3}', '{"place": "5", "days": 3}'),
        ('{"place": "Oslo", "days": 3, ', '{"place": "Oslo", "days": 3}'),
        ('{"place": "Oslo", "days": "three"}', '{"place": "Oslo", "days": "three"}'),
        ('{"place": "\\"days\\": \\"3\\"", "days": "3"}', '{"place": "\\"days\\": \\"3\\"", "days": 3}'),
        ('{"more": {"days": "5"}, "place": "Oslo", "days": "3"}', '{"more": {"days": "5"}, "place": "Oslo", "days": 3}'),
        ('{"place": "Oslo", "days": 3, "rate": "NaN"}', '{"place": "Oslo", "days": 3, "rate": "NaN"}'),
    ],
)
@given(cuts=st.sets(st.integers(0, 60)))
def test_values_have_the_types_of_the_schema_however_they_are_cut(written: str, told: str, cuts: set[int]) -> None:
    types: Json = {"place": {"type": "string"}, "days": {"type": "integer"}, "quiet": {"type": "boolean"}}
    types |= {"more": {"type": "object"}, "rate": {"type": "number"}}
    types |= {"unit": {"type": "string", "default": "C"}}
    types |= {"notes": {"anyOf": [{"type": "array"}, {"type": "null"}]}}
    book = ToolDefinition("book", "", {"type": "object", "properties": types, "required": ["place", "days"]})
    assert make(cut(written, cuts), book).arguments == told


@pytest.mark.parametrize("written", ['{"place": "Oslo", "days": 1', '{"days": 1}{"days": 2}'])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_arguments_that_may_be_those_of_another_call_are_never_guessed(written: str, size: int) -> None:
    """More of the number may have been to come, or the second object is of a call whose name is lost."""
    assert make(cut(written, {*range(0, len(written), size)}), ANY).arguments == written


def test_what_is_held_of_arguments_is_bounded() -> None:
    assert len(make(["[" + "1" * MOST_HELD, "2" * 10, "3"], ANY).arguments) == MOST_HELD + 12


@pytest.mark.parametrize("name", ["GetTime", "get-time", "GET_TIME()", "functions.Get_Time:0", "get_time<|channel|>json"])
def test_a_tool_is_known_by_its_name_in_another_form_unless_two_are_meant(name: str) -> None:
    for others, expected in (([], "get_time"), ([ToolDefinition("get-Time", "")], name)):
        turn = TurnBuilder(counting(), tools=[CLOCK, *others])
        turn.call(index=0, id="a", name=name, arguments="{}")
        turn.end("stop", None)
        (call,) = [item for item in folded(turn.take()).output if isinstance(item, FunctionCall)]
        assert call.name == expected or name in ("get-time", "get_time<|channel|>json")


@pytest.mark.parametrize("count", [1, 2])
def test_calls_that_are_alike_are_all_made_where_the_backend_tells_them_apart(count: int) -> None:
    turn = TurnBuilder(counting(), tools=[CLOCK])
    for index in (0, 1):
        turn.call(index=index if count == 2 else 0, id=f"c{index}", name="get_time", arguments="{}")
        if count == 2:
            turn.take()
    turn.end("stop", None)
    # Those of one index came in one chunk.
    assert [call.vendor_id for call in turn._calls if call.original is None] == ["c0", "c1"]
