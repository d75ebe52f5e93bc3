"""What Claude is asked: each family of models as it wants to be, and never anything that the vendor refuses."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.providers.backend import QUESTION
from tests.providers.dialects import Spoken
from tests.providers.dialects.anthropic import DIALECT, KEY, SIGNATURE, block, frame, started, stopped
from tests.providers.dialects.server import answer, items, serving

from mainspring.core.errors import (
    Refused,
)
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    Reasoning,
    ReasoningText,
    Refusal,
    ToolDefinition,
    Unknown,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.anthropic.provider import VERSION
from mainspring.providers.anthropic.request import Redacted, Thinking, build_body, seal_thought
from mainspring.providers.transcript import UNANSWERED

MARK = {"cache_control": {"type": "ephemeral"}}
LOOK = ToolDefinition("look", "Looks at a clock.", {"type": "object", "properties": {"at": {"type": "string"}}})
CALLED = (FunctionCall("toolu_1", "look", '{"at":"wall"}', id="fc_1"), FunctionCallOutput("toolu_1", "12:00"))
MODELS = ("claude-haiku-4-5", "claude-opus-4-5", "claude-sonnet-4-6", "claude-opus-5", "claude-opus-5-5", "claude-sonnet-5-5")


def said(*given: Item, **changes: object) -> ModelRequest:
    return replace(QUESTION, items=given or QUESTION.items, **changes)


async def body_for(request: ModelRequest) -> Json:
    """The body of the request, which the vendor's rules allow."""
    async with serving(DIALECT) as fake:
        fake.says(Spoken(text=("Noon.",)))
        await answer(DIALECT, fake, request)
        body: Json = msgspec.json.decode(fake.bodies[0])
        return body


# The request.


async def test_the_request_is_laid_out_so_that_its_beginning_can_be_cached() -> None:
    late = Message("developer", (InputText("Now in French."),))
    request = said(
        Message("system", (InputText("You are a clock."),)),
        user("Look."),
        *CALLED,
        late,
        user("And?"),
        instructions="Be brief.",
        tools=(LOOK, ToolDefinition("ring")),
        max_output_tokens=300,
    )
    assert await body_for(request) == {
        "model": "clockwork",
        "max_tokens": 300,
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "You are a clock.", **MARK}],
        "tools": [
            {"name": "look", "description": "Looks at a clock.", "input_schema": LOOK.parameters},
            {"name": "ring", "input_schema": {"type": "object", "properties": {}}, **MARK},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "wall"}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12:00"}]},
                    {"type": "text", "text": "<system>\nNow in French.\n</system>"},
                    {"type": "text", "text": "And?", **MARK},
                ],
            },
        ],
        "stream": True,
    }


async def test_what_the_caller_adds_has_the_last_word() -> None:
    assert (await body_for(said(extra={"max_tokens": 5, "metadata": {"user_id": "u1"}})))["metadata"] == {"user_id": "u1"}


@pytest.mark.parametrize(
    ("model", "wanted", "sent"),
    [
        ("claude-opus-4-6", None, 128_000),
        ("claude-haiku-4-5-20251001", None, 64_000),
        ("anthropic/claude-sonnet-4.5", None, 64_000),
        ("claude-sonnet-4-20250514", None, 16_384),
        ("claude-3-5-haiku-latest", None, 8_192),
        ("claude-of-tomorrow-9", None, 128_000),
        ("clockwork", None, 8_192),
        ("claude-haiku-4-5", 1_000_000, 64_000),
        ("clockwork", 1_000_000, 1_000_000),
        ("claude-opus-5", 7, 7),
    ],
)
async def test_the_length_of_the_answer_is_always_said_and_one_that_the_model_can_do(
    model: str, wanted: int | None, sent: int
) -> None:
    assert (await body_for(said(model=model, max_output_tokens=wanted)))["max_tokens"] == sent


@pytest.mark.parametrize(
    ("model", "reasoning", "thinking", "effort"),
    [
        ("claude-haiku-4-5", {"effort": "low"}, {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-haiku-4-5", {"effort": "high"}, {"type": "enabled", "budget_tokens": 16_384}, None),
        ("claude-haiku-4-5", {"effort": "none"}, None, None),
        ("claude-opus-4-5", {"effort": "xhigh"}, {"type": "enabled", "budget_tokens": 32_000}, "high"),
        ("claude-sonnet-4-6", {"effort": "xhigh"}, {"type": "adaptive"}, "high"),
        ("claude-opus-4-8", {"effort": "xhigh"}, {"type": "adaptive"}, "xhigh"),
        ("claude-opus-5", {"effort": "minimal"}, {"type": "adaptive"}, "low"),
        ("claude-opus-5", {"effort": "medium", "summary": "auto"}, {"type": "adaptive", "display": "summarized"}, "medium"),
        ("claude-opus-5", {"effort": "none"}, {"type": "disabled"}, None),
        ("claude-sonnet-5-5", {"effort": "none"}, {"type": "between_tools"}, None),
        ("claude-opus-5-5", {"effort": "none"}, None, "low"),
        ("claude-opus-5", {}, None, None),
        ("claude-3-5-haiku-latest", {"effort": "high"}, None, None),
        ("clockwork", {"summary": "auto"}, {"type": "enabled", "budget_tokens": 4096}, None),
    ],
)
async def test_reasoning_effort_is_told_as_each_family_understands_it(
    model: str, reasoning: Json, thinking: Json | None, effort: str | None
) -> None:
    body = await body_for(said(model=model, reasoning=reasoning))
    assert body.get("thinking") == thinking
    assert body.get("output_config") == (None if effort is None else {"effort": effort})


@pytest.mark.parametrize(("limit", "budget"), [(1024, None), (1025, 1024), (3000, 1500), (40_000, 16_384)])
async def test_thoughts_leave_room_for_the_answer(limit: int, budget: int | None) -> None:
    body = await body_for(said(model="claude-haiku-4-5", reasoning={"effort": "high"}, max_output_tokens=limit))
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice(name="look")])
async def test_a_forced_call_is_made_without_thinking(model: str, choice: ToolChoice) -> None:
    body = await body_for(said(model=model, tools=(LOOK,), tool_choice=choice, reasoning={"effort": "high"}))
    if model in ("claude-opus-5-5", "claude-sonnet-5-5"):
        # These cannot be forced, so they may as well think.
        assert "tool_choice" not in body
        assert body["thinking"] == {"type": "adaptive"}
    else:
        assert body["tool_choice"] == ({"type": "any"} if choice.name is None else {"type": "tool", "name": "look"})
        assert "thinking" not in body


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (ToolChoice(), {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice("required"), {"type": "any", "disable_parallel_tool_use": True}),
        (ToolChoice(name="look"), {"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
        (ToolChoice("none"), {"type": "none"}),
    ],
)
async def test_parallel_calls_are_forbidden_within_the_choice(choice: ToolChoice, told: Json) -> None:
    assert (await body_for(said(tools=(LOOK,), tool_choice=choice, parallel_tool_calls=False)))["tool_choice"] == told


async def test_without_tools_there_is_no_choice() -> None:
    assert "tool_choice" not in await body_for(said(tool_choice=ToolChoice("none"), parallel_tool_calls=False))


@pytest.mark.parametrize(
    ("model", "asked", "told"),
    [
        ("claude-haiku-4-5", {"temperature": 0.3, "top_p": 0.5}, {"temperature": 0.3}),
        ("claude-haiku-4-5", {"temperature": 1.7}, {"temperature": 1.0}),
        ("claude-haiku-4-5", {"temperature": 0.0}, {"temperature": 0.0}),
        ("claude-haiku-4-5", {"top_p": 0.5}, {"top_p": 0.5}),
        ("claude-haiku-4-5", {"temperature": 0.3, "reasoning": {"effort": "low"}}, {}),
        ("claude-sonnet-4-6", {"temperature": 0.3, "reasoning": {"effort": "none"}}, {"temperature": 0.3}),
        ("claude-opus-4-7", {"temperature": 0.3, "top_p": 0.5}, {}),
        ("clockwork", {"temperature": 0.3}, {"temperature": 0.3}),
    ],
)
async def test_a_temperature_is_told_to_those_who_take_one(model: str, asked: Json, told: Json) -> None:
    body = await body_for(said(model=model, **asked))
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == told


# Thoughts.


async def test_thoughts_go_back_as_they_came_before_the_calls_they_led_to() -> None:
    thought = {"type": "thinking", "thinking": "The sun\nis high.", "signature": SIGNATURE}
    hidden = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    events = [
        started(),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "The sun\n"},
            {"type": "thinking_delta", "thinking": "is high."},
            {"type": "signature_delta", "signature": SIGNATURE},
        ),
        *block(1, hidden),
        *block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
        *block(3, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}),
        *stopped("tool_use"),
    ]
    request = said(user("Look."), tools=(LOOK,), model="claude-sonnet-4-5", reasoning={"effort": "low"})
    async with serving(DIALECT) as fake:
        fake.replies(*map(frame, events))
        first = items(await answer(DIALECT, fake, request))
        fake.says(Spoken(text=("Noon.",)))
        await answer(DIALECT, fake, replace(request, items=(*request.items, *first, FunctionCallOutput("toolu_1", "12:00"))))
        bodies = [msgspec.json.decode(body) for body in fake.bodies]
    assert [type(item) for item in first] == [Reasoning, Reasoning, Message, FunctionCall]
    assert bodies[1]["messages"][1]["content"] == [
        thought,
        hidden,
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    ]
    assert bodies[0]["thinking"] == bodies[1]["thinking"] == {"type": "enabled", "budget_tokens": 2048}


@pytest.mark.parametrize(
    "secret",
    [
        None,
        "gAAAAopaque",
        "mainspring.gemini.c2VhbA==",
        "mainspring.anthropic.",
        "mainspring.anthropic.[]",
        'mainspring.anthropic.{"type":"thinking","thinking":"x","signature":""}',
        'mainspring.anthropic.{"type":"text","text":"x"}',
    ],
)
async def test_thoughts_that_are_not_this_vendors_are_left_out(secret: str | None) -> None:
    foreign = Reasoning("rs_1", content=(ReasoningText("Hm."),), encrypted_content=secret)
    [_, made, _] = (await body_for(said(user("Look."), foreign, *CALLED, tools=(LOOK,))))["messages"]
    assert [part["type"] for part in made["content"]] == ["tool_use"]


async def test_a_thought_that_led_to_nothing_does_not_end_a_message() -> None:
    thought = [Reasoning("rs_1", encrypted_content=seal_thought(Thinking("Hm.", SIGNATURE)))]
    bodies = [
        await body_for(said(user("Look."), *thought, user("And?"))),
        await body_for(said(user("Look."), assistant("I"), *thought, user("And?"))),
    ]
    told = [[part["type"] for message in body["messages"] for part in message["content"]] for body in bodies]
    assert told == [["text", "text"], ["text", "text", "text"]]


async def test_a_model_that_does_not_think_is_not_shown_thoughts() -> None:
    thought = Reasoning("rs_1", encrypted_content=seal_thought(Thinking("Hm.", SIGNATURE)))
    for model, kinds in (("claude-3-5-haiku-latest", ["text"]), ("claude-opus-5", ["thinking", "text"])):
        messages = (await body_for(said(user("Look."), thought, assistant("Noon."), user("And?"), model=model)))["messages"]
        assert [part["type"] for part in messages[1]["content"]] == kinds


@pytest.mark.parametrize(("model", "thinks"), [("claude-haiku-4-5", False), ("claude-sonnet-4-6", True)])
async def test_a_turn_that_another_model_began_is_ended_without_a_budget_for_thoughts(model: str, thinks: bool) -> None:
    body = await body_for(said(user("Look."), *CALLED, tools=(LOOK,), model=model, reasoning={"effort": "low"}))
    assert ("thinking" in body) is thinks
    again = await body_for(said(user("Look."), *CALLED, user("And?"), assistant("Well."), user("?"), model=model))
    assert "thinking" not in again


# What is said and shown.


async def test_ids_are_such_as_the_vendor_takes_and_no_two_calls_share_one() -> None:
    odd = FunctionCall("functions.look:0", "look.at", "{}", id="fc_1")
    output = FunctionCallOutput("functions.look:0", "12:00")
    messages = (await body_for(said(user("Look."), odd, output, odd, output, FunctionCall("", "look"), user("And?"))))["messages"]
    made = [part for message in messages for part in message["content"] if part["type"] == "tool_use"]
    assert [part["id"] for part in made] == ["functions_look_0", "functions_look_0_2", "call"]
    assert made[0]["name"] == "look_at"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (FunctionCallOutput("c", "no clock", is_error=True), {"content": "no clock", "is_error": True}),
        (FunctionCallOutput("c", " ", is_error=True), {"content": "The call failed and did not say why.", "is_error": True}),
        (FunctionCallOutput("c", "\n"), {}),
        (None, {"content": UNANSWERED, "is_error": True}),
    ],
)
async def test_a_result_says_what_it_must(output: FunctionCallOutput | None, told: Json) -> None:
    given = (user("Look."), FunctionCall("c", "look", "{}"), *([output] if output else []))
    [result] = (await body_for(said(*given, tools=(LOOK,))))["messages"][-1]["content"]
    content = [part["text"] for part in result.get("content", ())]
    is_error = {"is_error": True} if "is_error" in result else {}
    assert ({"content": content[0]} if content else {}) | is_error == told


async def test_files_are_documents() -> None:
    plain = "data:text/plain;base64,Tm9vbi4="
    parts = (
        InputFile(filename="a.txt", file_data=plain),
        InputFile(file_data="JVBERi0xLjQ="),
        InputFile(file_url="https://clocks.example/a.pdf"),
        InputFile(file_id="file_1"),
        InputImage("data:image/jpg;base64,/9j/"),
        InputImage(file_id="file_2"),
    )
    [message] = (await body_for(said(Message("user", parts))))["messages"]
    assert [part["source"] for part in message["content"]] == [
        {"type": "text", "media_type": "text/plain", "data": "Noon."},
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQ="},
        {"type": "url", "url": "https://clocks.example/a.pdf"},
        {"type": "file", "file_id": "file_1"},
        {"type": "base64", "media_type": "image/jpeg", "data": "/9j/"},
        {"type": "file", "file_id": "file_2"},
    ]
    assert message["content"][0]["title"] == "a.txt"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (InputImage("data:image/bmp;base64,Qk0="), "image/bmp"),
        (InputImage(), "image_url"),
        (InputFile(filename="a.zip", file_data="data:application/zip;base64,/wD/"), "application/zip"),
        (InputFile(filename="a.pdf"), "file_data"),
    ],
)
async def test_what_claude_cannot_see_is_refused_before_it_is_sent(part: InputImage | InputFile, words: str) -> None:
    async with serving(DIALECT) as fake:
        with pytest.raises(Refused, match=words):
            await answer(DIALECT, fake, said(Message("user", (part,))))
        assert not fake.bodies


# Schemas.


async def test_a_schema_is_narrowed_to_what_the_vendor_knows_and_the_rest_is_told_in_words() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "hour": {"type": "integer", "minimum": 0, "maximum": 23, "description": "Of the day."},
            "zone": {"type": ["string", "null"], "format": "uuid"},
            "kind": {"oneOf": [{"const": "sun"}, {"$ref": "#/$defs/hand"}]},
            "marks": {"type": "array", "items": {"enum": [1, None]}, "minItems": 3},
        },
        "required": ["hour"],
        "$defs": {"hand": {"type": "object", "properties": {}}},
    }
    form = {"format": {"type": "json_schema", "name": "time", "schema": schema, "strict": True}}
    body = await body_for(said(text=form, model="claude-haiku-4-5"))
    assert body["output_config"]["format"]["schema"] == {
        "type": "object",
        "properties": {
            "hour": {"type": "integer", "description": 'Of the day.\n\nMust fit {"minimum":0,"maximum":23}'},
            "zone": {
                "anyOf": [{"type": "string", "format": "uuid"}, {"type": "null", "description": 'Must fit {"format":"uuid"}'}]
            },
            "kind": {"anyOf": [{"const": "sun"}, {"$ref": "#/$defs/hand"}]},
            "marks": {"type": "array", "items": {"enum": [1, None]}, "description": 'Must fit {"minItems":3}'},
        },
        "required": ["hour"],
        "additionalProperties": False,
        "$defs": {"hand": {"type": "object", "properties": {}, "additionalProperties": False}},
    }


@pytest.mark.parametrize(
    ("model", "form", "words"),
    [
        ("claude-haiku-4-5", {"type": "json_object"}, "Answer with one JSON object, and with nothing else."),
        ("claude-3-7-sonnet-latest", {"type": "json_schema", "schema": {"type": "object"}}, '{"type":"object"}'),
        ("claude-haiku-4-5", {"type": "json_schema", "schema": {"type": "object", "additionalProperties": {}}}, "schema"),
        ("claude-haiku-4-5", {"type": "json_schema", "schema": {"type": "array", "items": True}}, "schema"),
    ],
)
async def test_a_form_that_has_no_setting_is_asked_for_in_words(model: str, form: Json, words: str) -> None:
    body = await body_for(said(model=model, text={"format": form}, instructions="Be brief."))
    assert "output_config" not in body
    assert body["system"][0]["text"] == "Be brief."
    assert words in body["system"][-1]["text"]


async def test_strict_tools_are_closed_and_not_too_many() -> None:
    tools = tuple([replace(LOOK, name=f"look_{number}", strict=True) for number in range(21)])
    open_tool = ToolDefinition("any", parameters={"type": "object", "additionalProperties": {}}, strict=True)
    sent = (await body_for(said(tools=(open_tool, *tools), model="claude-haiku-4-5")))["tools"]
    assert [tool.get("strict") for tool in sent] == [None, *[True] * 20, None]
    assert sent[1]["input_schema"] == {**(LOOK.parameters or {}), "additionalProperties": False}
    assert sent[21]["input_schema"] == LOOK.parameters
    assert "strict" not in (await body_for(said(tools=tools[:1], model="claude-3-5-haiku-latest")))["tools"][0]


async def test_alternatives_at_the_top_of_a_tools_schema_are_told_in_words() -> None:
    either = ToolDefinition("either", parameters={"anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    [tool] = (await body_for(said(tools=(either,))))["tools"]
    assert tool["input_schema"] == {
        "type": "object",
        "properties": {},
        "description": 'Must fit {"anyOf":[{"required":["a"]},{"required":["b"]}]}',
    }


# Anything.

CALL_IDS = st.sampled_from(["toolu_1", "call:2", "", "x" * 90])
TEXTS = st.sampled_from(["", " \n", "Noon.", "{}", '{"at": 1}', "[1]", "\u2603"])
SEALS = st.sampled_from([None, "gAAAA", seal_thought(Thinking("Hm.", "c2VhbA==")), seal_thought(Redacted("b3BhcXVl"))])
ITEMS = st.one_of(
    st.builds(lambda role, text: Message(role, (InputText(text),)), st.sampled_from(["user", "system", "developer"]), TEXTS),
    TEXTS.map(assistant),
    TEXTS.map(lambda text: Message("assistant", (Refusal(text), InputImage("https://clocks.example/a.png")))),
    st.just(Message("user", (InputText(""), InputImage("https://clocks.example/a.png")))),
    SEALS.map(lambda seal: Reasoning("rs_1", content=(ReasoningText("Hm."),), encrypted_content=seal)),
    st.builds(FunctionCall, CALL_IDS, st.sampled_from(["look", "look.at", ""]), TEXTS),
    st.builds(lambda id, text, failed: FunctionCallOutput(id, text, is_error=failed), CALL_IDS, TEXTS, st.booleans()),
    st.just(Unknown({"type": "elsewhere:mood"})),
)


@given(data=st.data())
def test_no_conversation_makes_a_request_that_the_vendor_refuses(data: st.DataObject) -> None:
    request = said(
        *data.draw(st.lists(ITEMS, min_size=1, max_size=12)),
        model=data.draw(st.sampled_from((*MODELS, "claude-3-5-haiku-latest", "claude-sonnet-4-0", "clockwork"))),
        instructions=data.draw(st.none() | TEXTS),
        tools=data.draw(st.sampled_from([(), (LOOK,), (LOOK, ToolDefinition("ring", strict=True))])),
        tool_choice=data.draw(
            st.sampled_from([ToolChoice(), ToolChoice("none"), ToolChoice("required"), ToolChoice(name="look")])
        ),
        parallel_tool_calls=data.draw(st.booleans()),
        max_output_tokens=data.draw(st.none() | st.integers(-1, 5000)),
        temperature=data.draw(st.none() | st.floats(0, 2)),
        top_p=data.draw(st.none() | st.floats(0, 1)),
        reasoning=data.draw(st.sampled_from([None, {"effort": "none"}, {"effort": "high"}, {"summary": "auto"}])),
    )
    body = msgspec.json.decode(msgspec.json.encode(build_body(request)))
    headers = {"x-api-key": KEY, "content-type": "application/json", "anthropic-version": VERSION}
    assert DIALECT.asked("POST", "/v1/messages", headers, body).model == request.model
