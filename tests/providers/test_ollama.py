"""What is special to Ollama: models that lack tools or thinking, calls without ids, wishes in words, and JSON lines."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.providers.backend import QUESTION, Backend, events_of
from tests.providers.dialects import Failure, Spoken, SpokenCall
from tests.providers.dialects.ollama import DIALECT, line
from tests.providers.dialects.server import Fake, answer, calls, ended, items, serving, text

from mainspring.core.errors import BadOutput, ContextOverflow, ProviderError, Refused, Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.ids import counting
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
from mainspring.ports import ModelInfo
from mainspring.providers.ollama.provider import Ollama
from mainspring.providers.reply import LineSplitter

NOON = Spoken(text=("It is noon.",))
PLACE: Json = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = ToolDefinition("look", "Looks at a clock.", PLACE)
PNG = "iVBORw0KGgo="
FORM = {"format": {"type": "json_schema", "name": "place", "schema": PLACE}}
NO_TOOLS = Failure(400, b'{"error":"registry.ollama.ai/library/clockwork:latest does not support tools"}')
NO_THINKING = Failure(400, b'{"error":"\\"clockwork\\" does not support thinking"}')
DONE = line({"content": ""}, done=True, done_reason="stop", prompt_eval_count=3, eval_count=2)


def said(*given: Item, **changes: Any) -> ModelRequest:
    return replace(QUESTION, items=given or (user("Look."),), **changes)


def sent(fake: Fake) -> list[Json]:
    return [msgspec.json.decode(body) for body in fake.bodies]


async def body(request: ModelRequest) -> Json:
    """The body that Ollama is sent, judged by its rules."""
    async with serving(DIALECT) as fake:
        fake.says(NOON)
        await answer(DIALECT, fake, request)
        return sent(fake)[0]


async def read(*lines: bytes) -> list[ModelEvent]:
    async with serving(DIALECT) as fake:
        fake.replies(*lines)
        return await answer(DIALECT, fake)


# Tools and thinking, where there are any.


@pytest.mark.requirement("C42", "C-T28", "D73")
async def test_tools_are_sent_and_calls_are_read() -> None:
    async with serving(DIALECT) as fake:
        fake.says(Spoken(calls=(SpokenCall("look", ('{"at": "wall"}',)), SpokenCall("look", ('{"at": "sun"}',)))))
        events = await answer(DIALECT, fake, said(tools=(LOOK,)))
        [asked] = sent(fake)
    assert asked["tools"] == [
        {"type": "function", "function": {"name": "look", "description": "Looks at a clock.", "parameters": PLACE}}
    ]
    assert calls(events) == [("look", {"at": "wall"}), ("look", {"at": "sun"})]
    assert len({item.call_id for item in items(events) if isinstance(item, FunctionCall)} - {""}) == 2


@pytest.mark.requirement("C-T23", "D73")
async def test_calls_are_told_with_objects_and_outputs_with_the_name_of_their_tool() -> None:
    history = (
        user("Look."),
        Reasoning("rs_1", content=(ReasoningText("Where?"),)),
        assistant("I look."),
        FunctionCall("call_1", "look", '{"at": "wall"}', id="fc_1"),
        FunctionCall("call_2", "look", "", id="fc_2"),
        FunctionCallOutput("call_2", "no clock", is_error=True),
        FunctionCallOutput("call_1", "12:00"),
    )
    assert (await body(said(*history, tools=(LOOK,))))["messages"] == [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": "I look.",
            "thinking": "Where?",
            "tool_calls": [
                {"function": {"name": "look", "arguments": {"at": "wall"}}},
                {"function": {"name": "look", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_name": "look", "content": "12:00"},
        {"role": "tool", "tool_name": "look", "content": "Error: no clock"},
    ]


@pytest.mark.requirement("C62", "C72")
async def test_a_model_without_tools_gives_one_answer_and_is_never_sent_tools_again() -> None:
    async with serving(DIALECT) as fake:
        fake.fails(NO_TOOLS)
        for _ in range(3):
            fake.says(NOON)
        ollama = DIALECT.provider(fake.url)
        for model in ("clockwork", "clockwork", "cuckoo"):
            assert text(await events_of(ollama, said(tools=(LOOK,), model=model))) == "It is noon."
        await ollama.close()
        assert ["tools" in asked for asked in sent(fake)] == [True, False, False, True]


async def test_a_model_that_cannot_think_is_asked_again_without() -> None:
    async with serving(DIALECT) as fake:
        fake.fails(NO_THINKING)
        fake.says(NOON)
        fake.says(NOON)
        ollama = DIALECT.provider(fake.url)
        for _ in range(2):
            assert text(await events_of(ollama, said(reasoning={"effort": "high"}))) == "It is noon."
        await ollama.close()
        assert ["think" in asked for asked in sent(fake)] == [True, False, False]


async def test_a_model_may_lack_both() -> None:
    async with serving(DIALECT) as fake:
        fake.fails(NO_TOOLS)
        fake.fails(NO_THINKING)
        fake.says(NOON)
        await answer(DIALECT, fake, said(tools=(LOOK,), reasoning={"effort": "high"}, extra={"keep_alive": "1h"}))
        assert [sorted(asked.keys() & {"tools", "think", "keep_alive"}) for asked in sent(fake)] == [
            ["keep_alive", "think", "tools"],
            ["keep_alive", "think"],
            ["keep_alive"],
        ]


@pytest.mark.parametrize("failure", [NO_TOOLS, NO_THINKING, DIALECT.failure("bad_request")])
async def test_a_refusal_that_nothing_can_be_done_about_is_raised(failure: Failure) -> None:
    async with serving(DIALECT) as fake:
        fake.fails(failure)
        with pytest.raises(Refused):
            await answer(DIALECT, fake)


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("qwen3:8b", None, None),
        ("qwen3:8b", "none", False),
        ("qwen3:8b", "low", True),
        ("qwen3:8b", "high", True),
        ("gpt-oss:20b", "none", "low"),
        ("gpt-oss:20b", "medium", "medium"),
        ("gpt-oss:20b", "xhigh", "high"),
    ],
)
async def test_effort_is_a_switch_or_a_level(model: str, effort: str | None, expected: object) -> None:
    assert (await body(said(model=model, reasoning={"effort": effort}))).get("think") == expected


async def test_thoughts_that_another_vendor_has_sealed_are_left_out() -> None:
    sealed = Reasoning("rs_1", content=(ReasoningText("Hm."),), encrypted_content="mainspring.anthropic.c2VjcmV0")
    messages = (await body(said(user("Hi."), sealed, assistant("Hello."), user("Time?"))))["messages"]
    assert messages[1] == {"role": "assistant", "content": "Hello."}


async def test_ids_of_a_newer_ollama_are_kept() -> None:
    call = {"id": "call_x1", "function": {"index": 0, "name": "look", "arguments": {}}}
    [item] = items(await read(line({"content": "", "tool_calls": [call]}), DONE))
    assert isinstance(item, FunctionCall)
    assert item.call_id == "call_x1"


# What it is asked.


async def test_options_are_ours_and_the_callers() -> None:
    async with serving(DIALECT) as fake:
        fake.says(NOON)
        ollama = Ollama(fake.url, api_key="sk-clockwork-key", new_id=counting(), num_ctx=8192)
        extra = {"options": {"seed": 7, "num_ctx": 4096}, "keep_alive": -1}
        await events_of(ollama, said(max_output_tokens=50, temperature=0.0, top_p=0.9, extra=extra))
        await ollama.close()
        [asked] = sent(fake)
    assert asked["options"] == {"num_ctx": 4096, "num_predict": 50, "temperature": 0.0, "top_p": 0.9, "seed": 7}
    assert asked["keep_alive"] == -1


@pytest.mark.parametrize(("form", "expected"), [(FORM, PLACE), ({"format": {"type": "json_object"}}, "json"), (None, None)])
async def test_a_format_is_a_schema_or_json(form: Json | None, expected: object) -> None:
    assert (await body(said(text=form))).get("format") == expected


async def test_with_tools_a_format_and_a_call_are_asked_for_in_words() -> None:
    asked = await body(said(text=FORM, tools=(LOOK,), tool_choice=ToolChoice(name="look"), instructions="Be brief."))
    assert "format" not in asked
    assert asked["messages"][0]["content"].startswith(
        "Be brief.\n\nAnswer by calling the tool `look`.\n\nAnswer with JSON only, by"
    )
    assert '"required":["at"]' in asked["messages"][0]["content"]


async def test_without_tools_nothing_is_said_about_them() -> None:
    asked = await body(said(tools=(LOOK,), tool_choice=ToolChoice("none")))
    assert asked == {"model": "clockwork", "messages": [{"role": "user", "content": "Look."}], "stream": True}


async def test_properties_that_are_only_true_become_objects() -> None:
    tool = ToolDefinition("look", parameters={"properties": {"at": True, "deep": {"type": "object"}}})
    [sent_tool] = (await body(said(tools=(tool,))))["tools"]
    assert sent_tool["function"]["parameters"] == {"type": "object", "properties": {"at": {}, "deep": {"type": "object"}}}


async def test_images_are_bare_base64_and_text_files_are_read_out() -> None:
    parts = (
        InputText("What is this?"),
        InputImage(f"data:image/png;base64,{PNG}"),
        InputFile(filename="a.md", file_data="data:text/markdown;base64,IyBIaQ=="),
    )
    [message] = (await body(said(Message("user", parts))))["messages"]
    assert message == {"role": "user", "content": "What is this?\na.md:\n# Hi", "images": [PNG]}


async def test_images_of_an_output_are_shown_by_the_user() -> None:
    shown = FunctionCallOutput("c1", (InputText("see"), InputImage(f"data:image/png;base64,{PNG}")))
    messages = (await body(said(user("Look."), FunctionCall("c1", "look", "{}", id="fc_1"), shown)))["messages"]
    assert messages[2:] == [
        {"role": "tool", "tool_name": "look", "content": "see"},
        {"role": "user", "content": "Attached by the output of `look`:", "images": [PNG]},
    ]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (InputImage("https://clocks.example/noon.png"), "`https://clocks.example/noon.png` cannot be sent to Ollama"),
        (InputImage(file_id="file_1"), "`file_1` cannot be sent to Ollama"),
        (InputFile(filename="a.pdf", file_data="data:application/pdf;base64,JVBERi0="), "`a.pdf` cannot be sent to Ollama"),
        (InputFile(filename="a.bin", file_data="data:application/x;base64,/////w=="), "`a.bin` cannot be sent to Ollama"),
        (InputFile(file_url="https://clocks.example/a.txt"), "`file` cannot be sent to Ollama"),
    ],
)
async def test_what_ollama_does_not_take_is_refused_in_words(part: InputImage | InputFile, words: str) -> None:
    with pytest.raises(Refused, match=words):
        await Ollama("http://127.0.0.1:9").stream(said(Message("user", (part,)))).__anext__()


# What it says.


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("length", "length"), (None, "stop"), ("new", "stop")])
async def test_the_last_line_says_why_it_is_the_last(reason: str | None, finish: str) -> None:
    last = line({"content": ""}, done=True, done_reason=reason, eval_count=2)
    end = ended(await read(line({"content": "It is"}), last))
    assert (end.finish, end.usage) == (finish, Usage(0, 2))


@pytest.mark.parametrize("reason", ["load", "unload"])
async def test_a_model_that_was_only_loaded_has_not_answered(reason: str) -> None:
    with pytest.raises(Unavailable, match=f"{reason}ed the model"):
        await read(line({"content": ""}, done=True, done_reason=reason))


async def test_usage_that_nobody_counted_is_unknown() -> None:
    assert ended(await read(line({"content": "Noon."}, done=True))).usage is None


@pytest.mark.parametrize(
    ("message", "kind"),
    [("unexpected EOF", Unavailable), ("input length exceeds maximum context length", ContextOverflow)],
)
async def test_an_error_line_breaks_the_answer_off(message: str, kind: type[ProviderError]) -> None:
    with pytest.raises(kind, match=message):
        await read(line({"content": "It is"}), msgspec.json.encode({"error": message}) + b"\n")


async def test_what_follows_the_end_is_not_read() -> None:
    assert text(await read(line({"content": "Noon."}), DONE + line({"content": "No."}))) == "Noon."


async def test_the_last_line_needs_no_line_break() -> None:
    assert text(await read(line({"content": "Noon."}), DONE.rstrip())) == "Noon."


@given(st.lists(st.binary(max_size=6)))
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    lines = LineSplitter()
    cut = [found for piece in pieces for found in lines.feed(piece)] + list(lines.end())
    assert cut == [(b"", whole.strip()) for whole in b"".join(pieces).split(b"\n") if whole.strip()]


def test_a_line_without_end_is_bad_output() -> None:
    lines = LineSplitter(limit=10)
    assert list(lines.feed(b"123456\n" * 5)) == [(b"", b"123456")] * 5
    assert list(lines.feed(b"1234567890")) == []
    with pytest.raises(BadOutput, match="more than 10 bytes"):
        list(lines.feed(b"1"))


# What else it can be asked.


async def test_models_are_those_on_the_machine(backend: Backend) -> None:
    listed = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "size": 1, "details": {"family": "qwen3"}}]}
    backend.replies(msgspec.json.encode(listed), expect=None, mime="application/json")
    backend.replies(b'{"models": null}', expect=None, mime="application/json")
    backend.replies(b"Ollama is running", expect=None, mime="text/plain")
    ollama = Ollama(backend.url)
    assert await ollama.models() == (ModelInfo("qwen3:8b", "library"),)
    assert await ollama.models() == ()
    with pytest.raises(BadOutput, match="check the base URL"):
        await ollama.models()
    await ollama.close()
    assert {request.target for request in backend.received} == {"/v1/api/tags"}
