"""What is special to Gemini: signatures that find their parts again, its stops, its schemas, and what its models differ in."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.providers.backend import QUESTION, Backend
from tests.providers.dialects import Failure, Spoken, SpokenCall
from tests.providers.dialects.gemini import DIALECT, chunk
from tests.providers.dialects.server import answer, calls, ended, items, serving, text

from mainspring.app.engine import Engine
from mainspring.core.errors import BadOutput, ProviderError, RateLimited, Refused, Unauthorized, Unavailable
from mainspring.core.events import ModelEvent
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
    ToolDefinition,
    Usage,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.ports import ModelInfo, TokenCounter
from mainspring.providers.gemini.provider import Gemini
from mainspring.providers.gemini.request import clean_schema

NOON = Spoken(text=("It is noon.",))
PLACE: Json = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = ToolDefinition("look", "Looks at a clock.", PLACE)
RING = ToolDefinition("ring", strict=True)
PNG = "iVBORw0KGgo="
FORM = {"format": {"type": "json_schema", "name": "place", "schema": PLACE}}
SKIP = "skip_thought_signature_validator"


def said(*given: Item, **changes: Any) -> ModelRequest:
    return replace(QUESTION, items=given or (user("Look."),), **changes)


async def body(request: ModelRequest) -> Json:
    """The body that Gemini is sent, judged by its rules."""
    async with serving(DIALECT) as fake:
        fake.says(NOON)
        await answer(DIALECT, fake, request)
        sent: Json = msgspec.json.decode(fake.bodies[0])
        return sent


async def read(*chunks: bytes) -> list[ModelEvent]:
    async with serving(DIALECT) as fake:
        fake.replies(*chunks)
        return await answer(DIALECT, fake)


def part(part: Json, **fields: object) -> bytes:
    return chunk({"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0, **fields}]})


def stop(reason: str, **fields: object) -> bytes:
    return chunk({"candidates": [{"finishReason": reason, "index": 0, **fields}]})


async def returned(*chunks: bytes) -> list[Json]:
    """The model's own turn as Gemini gets it back, with what the user says next behind it."""
    turn = items(await read(*chunks))
    outputs = [FunctionCallOutput(item.call_id, "12:00") for item in turn if isinstance(item, FunctionCall)]
    sent = await body(said(user("Look."), *turn, *outputs, user("And?"), tools=(LOOK,)))
    parts: list[Json] = sent["contents"][1]["parts"]
    return parts


# Signatures.


async def test_the_signature_of_parallel_calls_returns_on_the_first_of_them() -> None:
    first = {"functionCall": {"id": "a1", "name": "look", "args": {"at": "wall"}}, "thoughtSignature": "c2lnbg=="}
    second = {"functionCall": {"id": "a2", "name": "look", "args": {"at": "sun"}}}
    both = chunk({"candidates": [{"content": {"parts": [first, second]}, "finishReason": "STOP"}]})
    assert await returned(both) == [first, second]


async def test_every_call_that_has_a_signature_gets_its_own_back() -> None:
    made = [
        {"functionCall": {"id": f"a{number}", "name": "look", "args": {}}, "thoughtSignature": f"c2lnb{number}=="}
        for number in range(3)
    ]
    assert await returned(*map(part, made), stop("STOP")) == made


async def test_a_thought_returns_before_the_call_that_it_led_to() -> None:
    thought = {"text": "Where is it?", "thought": True}
    call = {"functionCall": {"id": "a1", "name": "look", "args": {}}, "thoughtSignature": "c2lnbg=="}
    assert await returned(part(thought), part(call, finishReason="STOP")) == [thought, call]


async def test_a_signature_on_a_text_returns_on_the_text() -> None:
    parts = await returned(part({"text": "It is "}), part({"text": "noon.", "thoughtSignature": "c2lnbg=="}, finishReason="STOP"))
    assert parts == [{"text": "It is noon.", "thoughtSignature": "c2lnbg=="}]


async def test_a_signature_on_an_empty_text_returns_on_an_empty_text() -> None:
    blank = {"text": "", "thoughtSignature": "c2lnbg=="}
    assert await returned(part({"text": "Noon."}), part(blank, finishReason="STOP")) == [{"text": "Noon."}, blank]


async def test_a_signature_on_a_thought_returns_on_the_thought() -> None:
    thought = {"text": "The sun is high.", "thought": True, "thoughtSignature": "c2lnbg=="}
    assert await returned(part(thought), part({"text": "Noon."}, finishReason="STOP")) == [thought, {"text": "Noon."}]


async def test_a_signature_behind_the_last_words_leaves_them_cut_off() -> None:
    events = await read(part({"text": "It is no"}), part({"text": "", "thoughtSignature": "c2lnbg=="}, finishReason="MAX_TOKENS"))
    [message] = [item for item in items(events) if isinstance(item, Message)]
    assert (message.status, ended(events).finish) == ("incomplete", "length")


FOREIGN = (
    user("Look."),
    Reasoning("rs_1", content=(ReasoningText("Hm."),), encrypted_content="mainspring.anthropic.c2VjcmV0"),
    FunctionCall("toolu_1", "look", '{"at":"wall"}', id="fc_1"),
    FunctionCall("toolu_2", "look", "{}", id="fc_2"),
    FunctionCallOutput("toolu_1", "12:00"),
    FunctionCallOutput("toolu_2", "no clock", is_error=True),
)


async def test_calls_of_another_vendors_model_get_the_documented_signature() -> None:
    contents = (await body(said(*FOREIGN, tools=(LOOK,))))["contents"]
    assert contents[1:] == [
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "toolu_1", "name": "look", "args": {"at": "wall"}}, "thoughtSignature": SKIP},
                {"functionCall": {"id": "toolu_2", "name": "look", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "toolu_1", "name": "look", "response": {"output": "12:00"}}},
                {"functionResponse": {"id": "toolu_2", "name": "look", "response": {"error": "no clock"}}},
            ],
        },
    ]


async def test_models_that_ask_for_no_signature_get_none_made_up() -> None:
    contents = (await body(said(*FOREIGN, tools=(LOOK,), model="gemini-2.5-flash")))["contents"]
    assert "thoughtSignature" not in contents[1]["parts"][0]


# What it says.


async def test_calls_without_ids_get_ids() -> None:
    same = SpokenCall("look", ('{"at": "wall"}',), id="")
    async with serving(DIALECT) as fake:
        fake.says(Spoken(calls=(same, same)))
        events = await answer(DIALECT, fake)
    assert calls(events) == [("look", {"at": "wall"})] * 2
    assert len({item.call_id for item in items(events) if isinstance(item, FunctionCall)} - {""}) == 2


async def test_a_call_may_lack_arguments() -> None:
    assert calls(await read(part({"functionCall": {"name": "ring"}}, finishReason="STOP"))) == [("ring", {})]


@pytest.mark.parametrize(
    "reason",
    ["SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "LANGUAGE", "IMAGE_SAFETY", "MODEL_ARMOR"],
)
async def test_filters_keep_what_was_said(reason: str) -> None:
    events = await read(part({"text": "It is"}), stop(reason))
    assert (text(events), ended(events).finish) == ("It is", "content_filter")


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "CONTINUATION"])
async def test_limits_cut_the_answer(reason: str) -> None:
    assert ended(await read(part({"text": "It is"}), stop(reason))).finish == "length"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("MALFORMED_FUNCTION_CALL", BadOutput),
        ("UNEXPECTED_TOOL_CALL", BadOutput),
        ("TOO_MANY_TOOL_CALLS", BadOutput),
        ("MALFORMED_RESPONSE", BadOutput),
        ("OTHER", Unavailable),
        ("FROM_THE_FUTURE", Unavailable),
    ],
)
async def test_an_answer_that_gemini_gave_up_on_can_be_asked_for_again(reason: str, kind: type[ProviderError]) -> None:
    with pytest.raises(kind, match=f"`{reason}`.*look at this") as caught:
        await read(part({"text": "It is"}), stop(reason, finishMessage="look at this"))
    assert caught.value.retryable


async def test_an_answer_that_gemini_gave_up_on_has_cost_what_it_counts() -> None:
    counts = {"promptTokenCount": 40, "candidatesTokenCount": 6, "totalTokenCount": 46}
    async with serving(DIALECT, judges=False) as fake:
        fake.replies(chunk({"candidates": [{"finishReason": "UNEXPECTED_TOOL_CALL", "index": 0}]}, counts))
        provider = DIALECT.provider(fake.url)
        async with Engine(provider, owns_provider=True) as engine:
            run = await engine.run("What time is it?", model="gemini-2.5-flash")
    assert (run.status, run.error and run.error.code) == ("failed", "provider_bad_output")
    assert run.usage == Usage(40, 6)


@pytest.mark.parametrize(
    ("output", "response"),
    [
        ('{"hour": 12, "zone": "UTC"}', {"hour": 12, "zone": "UTC"}),
        ("{}", {}),
        ("[12]", {"output": "[12]"}),
        ("12:00", {"output": "12:00"}),
    ],
)
async def test_what_a_tool_returns_as_an_object_is_told_as_one(output: str, response: Json) -> None:
    told = await body(said(FunctionCall("c1", "look", "{}"), FunctionCallOutput("c1", output), tools=(LOOK,)))
    assert told["contents"][-1]["parts"][0]["functionResponse"]["response"] == response


async def test_a_blocked_question_is_filtered() -> None:
    counts = {"promptTokenCount": 4, "totalTokenCount": 4}
    events = await read(chunk({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, counts))
    assert (items(events), ended(events).finish, ended(events).usage) == ([], "content_filter", Usage(4))


@pytest.mark.parametrize("payload", [{}, {"candidates": []}, {"candidates": [{"index": 0}]}, {"candidates": None}])
async def test_no_candidate_is_no_answer(payload: Json) -> None:
    with pytest.raises(Unavailable, match="before the answer was complete"):
        await read(chunk(payload))


async def test_other_candidates_and_parts_of_other_kinds_are_passed_over() -> None:
    other = chunk({"candidates": [{"content": {"parts": [{"text": "Midnight."}]}, "index": 1}]})
    code = part({"executableCode": {"language": "PYTHON", "code": "1"}})
    assert text(await read(other, code, part({"text": "Noon."}, finishReason="STOP"))) == "Noon."


async def test_thoughts_and_tool_prompts_are_counted_in() -> None:
    counts = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 20,
        "totalTokenCount": 38,
    }
    events = await read(part({"text": "Noon."}), chunk({"candidates": [{"finishReason": "STOP"}]}, counts))
    assert ended(events).usage == Usage(15, 23, cached_tokens=4, reasoning_tokens=20)


async def test_a_chunk_behind_the_stop_still_counts() -> None:
    late = chunk({}, {"promptTokenCount": 1, "candidatesTokenCount": 2})
    assert ended(await read(part({"text": "Noon."}, finishReason="STOP"), late)).usage == Usage(1, 2)


# What it is asked.


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (ToolChoice(), (LOOK,), None),
        (ToolChoice("none"), (LOOK,), {"mode": "NONE"}),
        (ToolChoice("required"), (LOOK,), {"mode": "ANY"}),
        (ToolChoice(name="look"), (LOOK, RING), {"mode": "ANY", "allowedFunctionNames": ["look"]}),
        (ToolChoice("required", allowed=("ring", "gone")), (LOOK, RING), {"mode": "ANY", "allowedFunctionNames": ["ring"]}),
        (ToolChoice(allowed=("look",)), (LOOK, RING), {"mode": "VALIDATED", "allowedFunctionNames": ["look"]}),
        (ToolChoice(allowed=("gone",)), (LOOK,), {"mode": "NONE"}),
        (ToolChoice(), (LOOK, RING), {"mode": "VALIDATED"}),
    ],
)
async def test_tool_choice_is_a_mode_and_names(
    choice: ToolChoice, tools: tuple[ToolDefinition, ...], expected: Json | None
) -> None:
    sent = await body(said(tools=tools, tool_choice=choice))
    assert sent.get("toolConfig", {}).get("functionCallingConfig") == expected


async def test_tools_are_declared_with_their_schema_as_json_schema() -> None:
    [tools] = (await body(said(tools=(LOOK, RING))))["tools"]
    assert tools == {
        "functionDeclarations": [
            {"name": "look", "description": "Looks at a clock.", "parametersJsonSchema": PLACE},
            {"name": "ring"},
        ]
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$schema": "x", "title": "T", "default": 1, "pattern": "a", "type": "string"}, {"type": "string"}),
        ({"const": "a"}, {"enum": ["a"], "type": "string"}),
        ({"const": 3, "type": "integer"}, {"enum": [3], "type": "integer"}),
        ({"enum": ["a", None]}, {}),
        ({"const": True}, {}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"$ref": "#/definitions/A", "description": "gone"}, {"$ref": "#/$defs/A"}),
        ({"definitions": {"A": {"title": "A"}}, "$ref": "#/definitions/A"}, {"$defs": {"A": {}}, "$ref": "#/$defs/A"}),
        ({"allOf": [{"$ref": "#/$defs/A"}], "description": "gone"}, {"$ref": "#/$defs/A"}),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, {}),
        ({"items": True, "additionalProperties": False}, {"items": {}, "additionalProperties": False}),
        ({"additionalProperties": {"type": "string", "title": "x"}}, {"additionalProperties": {"type": "string"}}),
        ({"anyOf": [{"type": "null"}, {"const": 1}]}, {"anyOf": [{"type": "null"}, {"enum": [1]}]}),
        ({"properties": {"title": {"type": "string", "title": "Title"}}}, {"properties": {"title": {"type": "string"}}}),
        ({"prefixItems": [{"title": "x"}], "minItems": 1}, {"prefixItems": [{}], "minItems": 1}),
    ],
)
def test_schemas_lose_what_gemini_does_not_know(schema: Json, expected: Json) -> None:
    assert clean_schema(schema) == expected


@pytest.mark.parametrize(
    ("model", "reasoning", "expected"),
    [
        ("gemini-3.5-flash", None, None),
        ("gemini-3.5-flash", {"summary": "auto"}, {"includeThoughts": True}),
        ("gemini-3.5-flash", {"effort": "medium"}, {"includeThoughts": True, "thinkingLevel": "MEDIUM"}),
        ("gemini-3.5-flash", {"effort": "xhigh"}, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ("gemini-3-flash-preview", {"effort": "none"}, {"includeThoughts": False, "thinkingLevel": "MINIMAL"}),
        ("gemini-3.1-pro-preview", {"effort": "minimal"}, {"includeThoughts": True, "thinkingLevel": "LOW"}),
        ("gemini-4-argon", {"effort": "none"}, {"includeThoughts": False, "thinkingLevel": "LOW"}),
        ("gemini-2.5-flash", {"effort": "none"}, {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-2.5-pro", {"effort": "none"}, {"includeThoughts": False, "thinkingBudget": 128}),
        ("gemini-2.5-pro", {"effort": "low"}, {"includeThoughts": True, "thinkingBudget": 2048}),
        ("gemini-2.0-flash", {"effort": "high"}, None),
        ("gemma-3-27b-it", {"effort": "high"}, None),
    ],
)
async def test_effort_is_said_as_each_model_takes_it(model: str, reasoning: Json | None, expected: Json | None) -> None:
    sent = await body(said(model=model, reasoning=reasoning))
    assert sent.get("generationConfig", {}).get("thinkingConfig") == expected


async def test_a_format_is_a_mime_type_and_a_schema() -> None:
    config = (await body(said(text=FORM, tools=(LOOK,))))["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": PLACE}
    assert (await body(said(text={"format": {"type": "json_object"}})))["generationConfig"] == {
        "responseMimeType": "application/json"
    }


async def test_an_older_model_with_tools_is_asked_for_the_format_in_words() -> None:
    sent = await body(said(text=FORM, tools=(LOOK,), model="gemini-2.5-flash"))
    assert "generationConfig" not in sent
    assert '"required":["at"]' in sent["systemInstruction"]["parts"][0]["text"]


async def test_the_callers_own_fields_join_ours() -> None:
    extra = {"generationConfig": {"seed": 7, "temperature": 0.1}}
    assert (await body(said(temperature=0.9, top_p=0.5, extra=extra)))["generationConfig"] == {
        "temperature": 0.1,
        "topP": 0.5,
        "seed": 7,
    }


async def test_the_system_speaks_first_by_itself_and_later_as_the_user() -> None:
    late = Message("developer", (InputText("Now in French."),))
    early = Message("system", (InputText("Be brief."),))
    sent = await body(said(early, user("Hi."), assistant("Hello."), late, instructions="You are a clock."))
    assert sent["systemInstruction"] == {"parts": [{"text": "You are a clock."}, {"text": "Be brief."}]}
    assert sent["contents"][2] == {"role": "user", "parts": [{"text": "Now in French."}]}


async def test_media_are_data_or_addresses_and_text_is_text() -> None:
    parts = (
        InputImage(f"data:image/png;base64,{PNG}"),
        InputImage("https://clocks.example/noon.webp?size=1"),
        InputFile(filename="a.pdf", file_data=PNG),
        InputFile(file_url="https://clocks.example/a.pdf"),
        InputFile(filename="a.json", file_data="data:application/json;charset=utf-8;base64,e30="),
    )
    assert (await body(said(Message("user", parts))))["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://clocks.example/noon.webp?size=1"}},
        {"inlineData": {"mimeType": "application/pdf", "data": PNG}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://clocks.example/a.pdf"}},
        {"text": "a.json:\n{}"},
    ]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (InputImage(file_id="file_1"), "by its id"),
        (InputFile(file_id="file_1"), "by its id"),
        (InputImage("data:x"), "cannot be read"),
    ],
)
async def test_what_gemini_cannot_fetch_is_refused_in_words(part: InputImage | InputFile, words: str) -> None:
    with pytest.raises(Refused, match=words):
        await Gemini("http://127.0.0.1:9", api_key="k").stream(said(Message("user", (part,)))).__anext__()


async def test_what_an_output_cannot_hold_follows_it() -> None:
    shown = (InputText("see"), InputImage(f"data:image/png;base64,{PNG}"), InputImage("https://clocks.example/noon.png"))
    history = (user("Look."), FunctionCall("c1", "look", "{}", id="fc_1"), FunctionCallOutput("c1", shown))
    inline = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    address = {"fileData": {"mimeType": "image/png", "fileUri": "https://clocks.example/noon.png"}}
    note = {"text": "Attached by the output of `look` (c1):"}
    response = {"id": "c1", "name": "look", "response": {"output": "see"}}
    new = (await body(said(*history, tools=(LOOK,))))["contents"][2]["parts"]
    assert new == [{"functionResponse": {**response, "parts": [inline]}}, note, address]
    old = (await body(said(*history, tools=(LOOK,), model="gemini-2.5-pro")))["contents"][2]["parts"]
    assert old == [{"functionResponse": response}, note, inline, address]


@pytest.mark.parametrize("model", ["../files", "models/../x", "a/b", "x?alt=json", "", "models/"])
async def test_a_model_name_leads_nowhere_else(model: str) -> None:
    with pytest.raises(Refused, match="is no name of a Gemini model"):
        await Gemini("http://127.0.0.1:9").stream(said(model=model)).__anext__()


# Errors, and what else it can be asked.


async def failing(failure: Failure) -> ProviderError:
    async with serving(DIALECT) as fake:
        fake.fails(failure)
        with pytest.raises(ProviderError) as caught:
            await answer(DIALECT, fake)
    return caught.value


async def test_the_delay_of_a_quota_error_is_how_long_to_wait() -> None:
    error = await failing(DIALECT.failure("rate_limited"))
    assert isinstance(error, RateLimited)
    assert error.retry_after == 3.5


async def test_a_wrong_key_is_told_as_such_and_never_shown() -> None:
    error = await failing(DIALECT.failure("unauthorized"))
    assert isinstance(error, Unauthorized)
    echoed = await failing(Failure(400, b'{"error": {"code": 400, "message": "bad header sk-clockwork-key"}}'))
    assert "bad header ***" in echoed.message


async def test_a_quota_error_within_the_stream_says_how_long_to_wait() -> None:
    with pytest.raises(RateLimited) as caught:
        await read(part({"text": "It is"}), b"data: " + b"".join(DIALECT.failure("rate_limited").body.splitlines()) + b"\r\n\r\n")
    assert caught.value.retry_after == 3.5


async def test_models_that_answer_are_listed_from_all_pages(backend: Backend) -> None:
    answering, embedding = ["generateContent", "countTokens"], ["embedContent"]
    first = {"name": "models/gemini-4-argon", "supportedGenerationMethods": answering}
    second = {"name": "models/embedder", "supportedGenerationMethods": embedding}
    backend.replies(msgspec.json.encode({"models": [first], "nextPageToken": "p 2"}), expect=None, mime="application/json")
    backend.replies(msgspec.json.encode({"models": [second, {"name": "models/x"}]}), expect=None, mime="application/json")
    gemini = Gemini(backend.url, api_key="key-of-a-clock")
    assert await gemini.models() == (ModelInfo("gemini-4-argon", "google"), ModelInfo("x", "google"))
    await gemini.close()
    assert [request.target for request in backend.received] == [
        "/v1/v1beta/models?pageSize=1000",
        "/v1/v1beta/models?pageSize=1000&pageToken=p+2",
    ]
    assert backend.received[0].headers["x-goog-api-key"] == "key-of-a-clock"


async def test_tokens_are_counted_by_gemini(backend: Backend) -> None:
    contents = [{"role": "user", "parts": [{"text": "Look."}]}]
    expected = {"generateContentRequest": {"model": "models/clockwork", "contents": contents}}
    backend.replies(b'{"totalTokens": 3, "promptTokensDetails": []}', expect=expected, mime="application/json")
    gemini = Gemini(backend.url)
    assert isinstance(gemini, TokenCounter)
    assert await gemini.count_tokens(said()) == 3
    await gemini.close()
    assert backend.received[0].target == "/v1/v1beta/models/clockwork:countTokens"


async def test_a_list_that_is_none_is_bad_output(backend: Backend) -> None:
    backend.replies(b"<html>", expect=None, mime="text/html")
    gemini = Gemini(backend.url)
    with pytest.raises(BadOutput, match="check the base URL"):
        await gemini.models()
    await gemini.close()
