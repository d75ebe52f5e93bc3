"""Tool calls of a model that can only be held to a schema: what it is asked, and what its JSON becomes."""

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, begun, chunk, events_of, sse, usage_chunk

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.events import (
    ArgumentsDelta,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
)
from mainspring.core.ids import counting
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    ToolDefinition,
    Usage,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.request import build_body
from mainspring.providers.constrained.grammar_schema import find_flaw, tidy_schema
from mainspring.providers.constrained.provider import Constrained
from mainspring.providers.constrained.reply import ConstrainedReply, JsonString
from mainspring.providers.constrained.request import constrain, find_choices, strip_tools
from mainspring.providers.turn import TurnBuilder

CLOCK = {"type": "object", "properties": {"at": {"type": "string", "title": "At"}}, "required": ["at"]}
LOOK = ToolDefinition("look", "Looks at a clock.", CLOCK)
RING = ToolDefinition("ring", "Rings.")
TOOLS = replace(QUESTION, tools=(LOOK, RING))
CALLED = FunctionCall("call_1", "look", '{"at":"tower"}')
TOLD = FunctionCallOutput("call_1", "noon")
LOOK_DEFINITION = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
RING_DEFINITION = {"type": "object", "properties": {}, "additionalProperties": False}
WORDS = """You can use these tools:
- look: Looks at a clock. Arguments: {"at":{"type":"string"}}
- ring: Rings. Arguments: {}
To use a tool, write {"tool": NAME, "arguments": {...}}. You are then told its result. \
To answer, write {"reply": ...}. Answer as soon as you know enough, and always when a tool result answers the question."""


def alternative(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


LOOKING = alternative(tool={"const": "look"}, arguments={"$ref": "#/$defs/tool_1_look"})
RINGING = alternative(tool={"const": "ring"}, arguments={"$ref": "#/$defs/tool_2_ring"})
REPLYING = alternative(reply={"$ref": "#/$defs/reply"})
SCHEMA = {
    "anyOf": [LOOKING, RINGING, REPLYING],
    "$defs": {"tool_1_look": LOOK_DEFINITION, "tool_2_ring": RING_DEFINITION, "reply": {"type": "string"}},
}


def asked_with(*messages: Json, schema: Json = SCHEMA, words: str = WORDS) -> Json:
    return {
        **ASKED,
        "messages": [{"role": "system", "content": words}, *messages],
        "temperature": 0.0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    }


QUESTIONED = {"role": "user", "content": "What time is it?"}
HISTORY = (
    QUESTIONED,
    {"role": "assistant", "content": '{"tool":"look","arguments":{"at":"tower"}}'},
    {"role": "user", "content": "Tool result (look): noon"},
)


def saying(*pieces: str, finish: str = "stop") -> bytes:
    return sse(*[chunk({"content": piece}) for piece in pieces], chunk(finish=finish), usage_chunk(7, 3))


@pytest.fixture
async def model(backend: Backend) -> AsyncIterator[Constrained]:
    constrained = Constrained(Chat(backend.url, new_id=counting()), new_id=counting())
    yield constrained
    await constrained.close()


def schema_of(request: ModelRequest) -> Json:
    text = constrain(request, find_choices(request)).text
    assert text is not None
    schema: Json = text["format"]["schema"]
    return schema


def read(*pieces: str, finish: str = "stop", is_text: bool = True) -> list[ModelEvent]:
    answer = ConstrainedReply(TurnBuilder(counting()), (LOOK, RING), is_text=is_text)
    events: list[ModelEvent] = [TextDelta("m", piece) for piece in pieces]
    return [told for event in (*events, TurnEnded("length" if finish == "length" else "stop")) for told in answer.take(event)]


async def test_a_reply_is_streamed_as_its_json_arrives(backend: Backend, model: Constrained) -> None:
    backend.replies(saying('{"re', 'ply": "It is', " no\\", "non\\u00", "e9", '"', "}"), DONE, expect=asked_with(QUESTIONED))
    assert await events_of(model, TOOLS) == [
        ItemStarted(begun("msg_1")),
        TextDelta("msg_1", "It is"),
        TextDelta("msg_1", " no"),
        TextDelta("msg_1", "\non"),
        TextDelta("msg_1", "é"),
        ItemDone(Message("assistant", (OutputText("It is no\noné"),), id="msg_1")),
        TurnEnded("stop", Usage(7, 3)),
    ]


async def test_a_call_appears_once_it_is_whole_with_compact_arguments(backend: Backend, model: Constrained) -> None:
    backend.replies(saying('{ "tool": "lo', 'ok", "arguments": {\n "at": "to', 'wer" } }'), DONE, expect=asked_with(QUESTIONED))
    assert await events_of(model, TOOLS) == [
        ItemStarted(FunctionCall("call_2", "look", id="fc_1", status="in_progress")),
        ArgumentsDelta("fc_1", '{"at":"tower"}'),
        ItemDone(FunctionCall("call_2", "look", '{"at":"tower"}', id="fc_1")),
        TurnEnded("stop", Usage(7, 3)),
    ]


async def test_calls_and_outputs_of_the_past_are_plain_messages(backend: Backend, model: Constrained) -> None:
    backend.replies(saying('{"reply": "Noon."}'), DONE, expect=asked_with(*HISTORY))
    events = await events_of(model, replace(TOOLS, items=(*QUESTION.items, CALLED, TOLD)))
    assert ItemDone(Message("assistant", (OutputText("Noon."),), id="msg_1")) in events


async def test_the_same_call_right_after_its_result_becomes_an_answer_in_words(backend: Backend, model: Constrained) -> None:
    backend.replies(saying('{"tool": "look", "arguments": {"at": "tower"}}'), DONE, expect=asked_with(*HISTORY))
    mentioned = {"role": "assistant", "content": "I use the tool look."}
    backend.replies(saying("Noon."), DONE, expect=ASKED | {"messages": [QUESTIONED, mentioned, HISTORY[2]]})
    assert await events_of(model, replace(TOOLS, items=(*QUESTION.items, CALLED, TOLD))) == [
        ItemStarted(begun("msg_2")),
        TextDelta("msg_2", "Noon."),
        ItemDone(Message("assistant", (OutputText("Noon."),), id="msg_2")),
        TurnEnded("stop", Usage(14, 6)),
    ]


@pytest.mark.parametrize(
    ("items", "choice"),
    [
        ((CALLED, TOLD, user("Look again.")), ToolChoice()),
        ((CALLED, TOLD), ToolChoice("required")),
        ((FunctionCall("call_1", "look", '{"at":"wall"}'), TOLD), ToolChoice()),
        ((FunctionCall("call_1", "look", "{broken"), TOLD), ToolChoice()),
    ],
)
async def test_the_same_call_is_made_when_it_was_asked_for_again_or_is_another(
    backend: Backend, model: Constrained, items: tuple[Item, ...], choice: ToolChoice
) -> None:
    request = replace(TOOLS, items=(*QUESTION.items, *items), tool_choice=choice)
    backend.replies(
        saying('{"tool": "look", "arguments": {"at": "tower"}}'),
        DONE,
        expect=build_body(constrain(request, find_choices(request)), ""),
    )
    assert FunctionCall("call_2", "look", '{"at":"tower"}', id="fc_1") in [
        event.item for event in await events_of(model, request) if isinstance(event, ItemDone)
    ]


SEVENS = ToolDefinition("count", "Counts.", {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7}}})
COUNTING = replace(QUESTION, tools=(SEVENS,), tool_choice=ToolChoice("required"))


def corrected(written: str, flaw: str, tool: str = "count") -> Json:
    """What the model is asked after a call that does not fit."""
    body = build_body(constrain(COUNTING, find_choices(COUNTING)), "")
    note = f"This call of {tool} cannot be made: {flaw}. Write it again with arguments that fit."
    shown = [{"role": "assistant", "content": written}, {"role": "user", "content": note}]
    return {**body, "messages": [*body["messages"], *shown], "temperature": 0.4}


async def test_a_call_that_does_not_fit_its_tool_is_made_again_and_never_heard_of(backend: Backend, model: Constrained) -> None:
    wrong, right = '{"tool": "count", "arguments": {"n": 3}}', '{"tool": "count", "arguments": {"n": 14}}'
    backend.replies(
        sse(chunk({"reasoning_content": "Three."})),
        saying(wrong),
        DONE,
        expect=build_body(constrain(COUNTING, find_choices(COUNTING)), ""),
    )
    backend.replies(saying('{"tool": "sing"}'), DONE, expect=corrected(wrong, "n: 3 is not a multiple of 7"))
    backend.replies(saying(right), DONE, expect=corrected('{"tool": "sing"}', "there is no tool `sing`", "sing"))
    assert await events_of(model, COUNTING) == [
        ItemStarted(FunctionCall("call_3", "count", id="fc_2", status="in_progress")),
        ArgumentsDelta("fc_2", '{"n":14}'),
        ItemDone(FunctionCall("call_3", "count", '{"n":14}', id="fc_2")),
        TurnEnded("stop", Usage(21, 9)),
    ]


async def test_a_model_that_finds_no_call_that_fits_has_failed(backend: Backend, model: Constrained) -> None:
    wrong = '{"tool": "count", "arguments": {"n": 3}}'
    backend.replies(saying(wrong), DONE, expect=build_body(constrain(COUNTING, find_choices(COUNTING)), ""))
    for _ in range(2):
        backend.replies(saying(wrong), DONE, expect=corrected(wrong, "n: 3 is not a multiple of 7"))
    heard: list[ModelEvent] = []

    async def listen() -> None:
        async for event in model.stream(COUNTING):
            heard.append(event)

    with pytest.raises(BadOutput, match=r"called `count` 3 times .* because of n: 3 is not a multiple of 7; ask again, simplify"):
        await listen()
    assert heard == []


@pytest.mark.parametrize(
    ("parameters", "arguments", "flaw"),
    [
        (None, '{"a": 1}', None),
        ({"$schema": "draft-07", "type": "object"}, "{}", None),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"not": {"const": 1}}}}, '{"a": 2}', None),
        ({}, "[]", "the arguments must be a JSON object"),
        (
            {"properties": {"a": {"items": {"exclusiveMinimum": 0}}}},
            '{"a": [1, 0]}',
            "a.1: 0 is less than or equal to the minimum of 0",
        ),
    ],
)
def test_arguments_are_held_against_the_tools_own_schema(parameters: Json | None, arguments: str, flaw: str | None) -> None:
    found = find_flaw(ToolDefinition("t", "", parameters), arguments)
    assert found == flaw or (flaw is not None and found is not None and found.startswith(flaw))


def test_a_tool_whose_schema_is_none_is_refused() -> None:
    with pytest.raises(Refused, match=r"tool `t`: its parameters are not a JSON Schema: .*; correct the tool"):
        find_flaw(ToolDefinition("t", "", {"type": "file"}), "{}")


@pytest.mark.parametrize("tools", [(), (LOOK, RING)])
async def test_without_tools_to_call_the_model_just_chats(
    backend: Backend, model: Constrained, tools: tuple[ToolDefinition, ...]
) -> None:
    backend.replies(saying("Noon."), DONE)
    events = await events_of(model, replace(QUESTION, tools=tools, tool_choice=ToolChoice("none")))
    assert TextDelta("msg_1", "Noon.") in events


async def test_structured_output_is_the_backends_business(backend: Backend, model: Constrained) -> None:
    form = {"type": "json_schema", "name": "time", "schema": {"$schema": "x", "type": "object", "properties": {"h": True}}}
    sent = {"name": "time", "schema": {"type": "object", "properties": {"h": {}}}}
    backend.replies(saying('{"h": 12}'), DONE, expect=ASKED | {"response_format": {"type": "json_schema", "json_schema": sent}})
    events = await events_of(model, replace(QUESTION, text={"format": form}))
    assert TextDelta("msg_1", '{"h": 12}') in events


def test_a_required_call_leaves_no_reply() -> None:
    schema = schema_of(replace(TOOLS, tool_choice=ToolChoice("required")))
    assert schema == {"anyOf": [LOOKING, RINGING], "$defs": {"tool_1_look": LOOK_DEFINITION, "tool_2_ring": RING_DEFINITION}}


def test_a_forced_tool_is_the_only_one_described_and_possible() -> None:
    request = constrain(forced := replace(TOOLS, tool_choice=ToolChoice(name="look")), find_choices(forced))
    assert schema_of(forced) == {"anyOf": [LOOKING], "$defs": {"tool_1_look": LOOK_DEFINITION}}
    assert request.instructions is not None
    assert "Rings." not in request.instructions
    assert '"reply"' not in request.instructions


def test_only_allowed_tools_can_be_called() -> None:
    schema = schema_of(replace(TOOLS, tool_choice=ToolChoice(allowed=("look",))))
    assert schema["anyOf"] == [LOOKING, REPLYING]


def test_a_forced_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="`sing` must be called but is not among the tools; known: `look`, `ring`"):
        find_choices(replace(TOOLS, tool_choice=ToolChoice(name="sing")))


def test_with_tools_and_structured_output_a_reply_has_the_wanted_form() -> None:
    form = {"type": "object", "properties": {"h": {"type": "integer"}}}
    schema = schema_of(replace(TOOLS, text={"format": {"type": "json_schema", "name": "t", "schema": form}}))
    assert schema["$defs"]["reply"] == form
    assert schema_of(replace(TOOLS, text={"format": {"type": "json_object"}}))["$defs"]["reply"] == {"type": "object"}
    assert read('{"reply": {"h": ', "12}}", is_text=False)[1:2] == [TextDelta("msg_1", '{"h":12}')]


def test_instructions_come_before_the_tools_and_a_temperature_is_kept() -> None:
    request = replace(TOOLS, instructions="Be brief.", temperature=0.7)
    told = constrain(request, find_choices(request))
    assert told.instructions == f"Be brief.\n\n{WORDS}"
    assert told.temperature == 0.7
    assert told.tools == ()


def test_outputs_in_a_row_are_one_message_with_what_they_show() -> None:
    image = InputImage("data:image/png;base64,AA==")
    second = FunctionCallOutput("call_2", (InputText("bells"), image), is_error=True)
    request = replace(QUESTION, items=(CALLED, FunctionCall("call_2", "ring"), TOLD, second, assistant("So.")))
    assert strip_tools(request).items == (
        assistant("I use the tool look."),
        assistant("I use the tool ring."),
        Message("user", (InputText("Tool result (look): noon"), InputText("Tool error (ring): bells"), image)),
        assistant("So."),
    )


def test_a_call_cut_off_is_no_call_and_a_cut_reply_is_incomplete() -> None:
    assert read('{"tool": "look", "argum', finish="length") == [TurnEnded("length")]
    assert read('{"reply": "It is no', finish="length")[-2:] == [
        ItemDone(Message("assistant", (OutputText("It is no"),), id="msg_1", status="incomplete")),
        TurnEnded("length"),
    ]


@pytest.mark.parametrize(
    "said", ["Hello!", '{"reply": "unfinished', '{"neither": 1}', '{"tool": 3}', '{"tool": "a"', "[" * 10_000]
)
def test_a_backend_that_ignores_the_schema_is_found_out(said: str) -> None:
    with pytest.raises(BadOutput, match="does its backend honour `response_format`"):
        read(said)


def test_an_empty_answer_is_an_empty_turn() -> None:
    assert read() == [TurnEnded("stop")]


def test_of_a_repeated_call_nothing_is_told_not_even_its_thoughts() -> None:
    answer = ConstrainedReply(TurnBuilder(counting()), (LOOK, RING), repeats=CALLED)
    said: list[ModelEvent] = [
        ReasoningDelta("r", "Hm."),
        TextDelta("m", '{"tool":"look","arguments":{"at":"tower"}}'),
        TurnEnded("stop", Usage(1, 1)),
    ]
    assert [event for piece in said for event in answer.take(piece)] == []
    assert answer.is_repeated
    assert answer.usage == Usage(1, 1)


def test_thoughts_and_refusals_pass() -> None:
    answer = ConstrainedReply(TurnBuilder(counting()), (LOOK, RING))
    said: list[ModelEvent] = [ReasoningDelta("r", "Hm."), RefusalDelta("m", "No."), TurnEnded("stop")]
    told = [event for piece in said for event in answer.take(piece)]
    assert [event.delta for event in told if isinstance(event, ReasoningDelta | RefusalDelta)] == ["Hm.", "No."]


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *[cut % (len(text) + 1) for cut in cuts]})
    return [text[start:end] for start, end in pairwise(places)]


@given(st.text(st.characters(codec=None, exclude_categories=())), st.lists(st.integers(0, 1000)))
@example("\ud83d\ud83d\ude00", [7, 9, 13])
@example('\ud83d"', [3])
@example("\ud83d\\", [6, 7])
@example("\ud83dx\ud83d\n", [6, 7, 8])
@example("\ude00\ud83d", [6])
def test_a_json_string_is_decoded_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    reader = JsonString()
    told = [reader.feed(piece) for piece in pieces_of(json.dumps(text)[1:] + "}", cuts)]
    # Half a pair cannot be written in UTF-8, so it is replaced, as it is here.
    assert "".join(told) == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert reader.is_over


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_deltas_of_a_reply_add_up_to_its_text(text: str, cuts: list[int]) -> None:
    events = read(*pieces_of(msgspec.json.encode({"reply": text}).decode(), cuts))
    assert "".join([event.delta for event in events if isinstance(event, TextDelta)]) == text


def test_references_are_moved_to_where_the_schema_stands() -> None:
    schema = {
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#"}},
    }
    moved = tidy_schema(schema, "tool `t`", "#/$defs/t")
    assert moved["properties"] == {"a": {"$ref": "#/$defs/t/$defs/n"}, "b": {"$ref": "#/$defs/t"}}


@pytest.mark.parametrize("target", ["https://example.com/s.json", "other.json", "#anchor", 7])
def test_a_reference_out_of_the_schema_is_refused_by_name(target: object) -> None:
    with pytest.raises(Refused, match=f"tool `t`: its schema refers to `{target}`, outside itself"):
        tidy_schema({"properties": {"a": {"$ref": target}}}, "tool `t`", "#/$defs/t")


def test_a_schema_that_is_itself_the_whole_is_refused_where_that_cannot_be_said() -> None:
    with pytest.raises(Refused, match="refers to itself as a whole"):
        tidy_schema({"properties": {"a": {"$ref": "#"}}}, "`text.format`")


A: Json = {"type": "integer"}
B: Json = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$schema": "s", "title": "T", "type": "string", "default": "x", "examples": ["y"]}, {"type": "string"}),
        ({"properties": {"title": {"type": "string"}}}, {"properties": {"title": {"type": "string"}}}),
        ({"enum": [{"title": 1}]}, {"enum": [{"title": 1}]}),
        ({"type": "object", "properties": {"a": True, "b": False}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": "array", "prefixItems": [True], "items": False}, {"type": "array", "prefixItems": [{}]}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ({"allOf": [{"$ref": "#/$defs/n"}], "description": "d"}, {"$ref": "#/$defs/n"}),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, {"type": "integer", "minimum": 3}),
        ({"type": "object", "allOf": [{"type": "object"}]}, {"type": "object"}),
        ({"type": "integer", "allOf": [{"type": "number"}]}, {"type": "integer", "allOf": [{"type": "number"}]}),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": A}, "required": ["a"]},
                    {"properties": {"b": B}, "required": ["b", "a"]},
                ]
            },
            {"type": "object", "properties": {"a": A, "b": B}, "required": ["a", "b"]},
        ),
        (
            {"$defs": {"n": A}, "properties": {"a": A}, "allOf": [{"$ref": "#/$defs/n"}, {"properties": {"a": B}}]},
            {"$defs": {"n": A}, "allOf": [{"properties": {"a": A}}, {"$ref": "#/$defs/n"}, {"properties": {"a": B}}]},
        ),
        ({"type": "object", "required": ["z"]}, {"type": "object", "required": ["z"], "properties": {"z": {}}}),
        ({"properties": {"a": A}, "allOf": [{"properties": {"a": {"minimum": 3}}}]}, {"properties": {"a": A | {"minimum": 3}}}),
        ({"properties": {}, "anyOf": [{"required": ["a"]}]}, {"anyOf": [{"properties": {"a": {}}, "required": ["a"]}]}),
        (
            {"$defs": {"n": A}, "properties": {"a": A, "b": B}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {
                "$defs": {"n": A},
                "anyOf": [
                    {"properties": {"a": A}, "required": ["a"]},
                    {"properties": {"b": B}, "required": ["b"]},
                ],
            },
        ),
        ({"properties": {"a": A}, "anyOf": [{"properties": {"a": B}}]}, {"properties": {"a": A}}),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, {"type": "string", "pattern": "^[a-z]{2}$"}),
        ({"type": "string", "pattern": "^[^/]+$"}, {"type": "string"}),
        ({"type": "string", "pattern": r"^\d{3}[\w-]+$"}, {"type": "string", "pattern": "^[0-9]{3}[A-Za-z0-9_-]+$"}),
        ({"type": "string", "pattern": r"^\S+$"}, {"type": "string"}),
        ({"type": "string", "pattern": "loose"}, {"type": "string"}),
    ],
)  # fmt: skip
def test_schemas_are_put_in_terms_that_converters_take(schema: Json, expected: Json) -> None:
    assert tidy_schema(schema, "it") == expected


words = st.sampled_from(["type", "properties", "required", "allOf", "anyOf", "oneOf", "items", "$defs", "pattern", "object", "a"])
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(words, nonsense, max_size=4))
def test_a_schema_that_is_none_is_passed_on_for_its_converter_to_judge(schema: Json) -> None:
    assert isinstance(tidy_schema(schema, "it"), dict)


async def test_models_are_the_backends(backend: Backend, model: Constrained) -> None:
    backend.replies(b'{"data": [{"id": "clockwork"}]}', expect=None, mime="application/json")
    assert [info.id for info in await model.models()] == ["clockwork"]
