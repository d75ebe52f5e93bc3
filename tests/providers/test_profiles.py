"""Facts about model families: which there are, and what the adapters make of them."""

import logging
from itertools import pairwise
from unittest.mock import ANY

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, ask, chunk, events_of, folded, sse

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.ids import counting
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    Json,
    Message,
    Reasoning,
    ReasoningText,
    ToolDefinition,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers.breaker import Breaker
from mainspring.providers.chat.adaptations import adapt
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.request import build_body
from mainspring.providers.ollama.request import build_body as ollama_build_body
from mainspring.providers.profiles import NEUTRAL, ModelProfile, find_profile
from mainspring.providers.thinking import TagSplitter
from mainspring.providers.turn import TurnBuilder

CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("model", "has"),
    [
        ("deepseek-reasoner", {"recall": "reasoning_content"}),
        ("deepseek/deepseek-r1:free", {}),
        ("Qwen/Qwen3-8B-AWQ", {}),
        ("qwen3:4b", {}),
        ("mistralai/Magistral-Small", {}),
        ("smollm2:135m", {"tools": False}),
        ("gemma:7b", {"tools": False}),
        ("gemma2", {"tools": False}),
        ("o3-mini", {"temperature": False, "top_p": False}),
        ("openai/gpt-5.4-mini", {"temperature": False, "top_p": False}),
        ("gpt-4o", {}),
        ("google/gemma-2-9b-it", {"tools": False}),
        ("gemma3:12b", {}),
        ("google/gemma-4-27b-it", {}),
        ("functiongemma:270m", {}),
        ("falcon3:7b", {}),
        ("llama3.1:8b", {}),
        ("qwen2.5-coder", {}),
        ("claude-sonnet-5", {}),
        ("pro3", {}),
    ],
)
def test_a_family_is_known_by_its_name(model: str, has: Json) -> None:
    assert find_profile(model) == replace(NEUTRAL, **has)


def split(pieces: list[str]) -> tuple[str, str]:
    tagged = TagSplitter()
    told = [part for piece in pieces for part in tagged.feed(piece)] + list(tagged.end())
    return "".join([text for is_thought, text in told if is_thought]), "".join(
        [text for is_thought, text in told if not is_thought]
    )


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>Hm.</think>\n\nIt is nine.", "Hm.", "It is nine."),
        ("\n<think>\nHm.\n</think>It is nine.", "Hm.\n", "It is nine."),
        ("It is <think>nine</think>.", "", "It is <think>nine</think>."),
        ("<thin ice", "", "<thin ice"),
        ("<think>never done </thin", "never done </thin", ""),
        ("<think></think>Nine.", "", "Nine."),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("<", "", "<"),
        ("", "", ""),
    ],
)
@given(cuts=st.sets(st.integers(0, 40)))
def test_reasoning_is_told_by_its_tags_however_the_text_is_cut(text: str, thought: str, said: str, cuts: set[int]) -> None:
    places = sorted({0, *[cut for cut in cuts if cut <= len(text)], len(text)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert split(pieces) == (thought, said)


def test_tagged_reasoning_becomes_an_item_of_its_own() -> None:
    turn = TurnBuilder(counting(), thinks=True)
    for piece in ("<th", "ink>Let me", " see.</thi", "nk>\n\nHalf past", " nine."):
        turn.text(piece)
    turn.end("stop", None)
    thought, said = folded(turn.take()).output
    assert isinstance(thought, Reasoning)
    assert thought.content == (ReasoningText("Let me see."),)
    assert isinstance(said, Message)
    assert said.text == "Half past nine."


async def test_a_thinking_model_behind_chat_completions_is_heard_apart(backend: Backend) -> None:
    request = replace(QUESTION, model="qwen3:4b")
    backend.replies(
        sse(chunk({"content": "<think>"}), chunk({"content": "Hm.</think>"}), chunk({"content": "Nine."}), chunk(finish="stop")),
        DONE,
        expect={**ASKED, "model": "qwen3:4b"},
    )
    thought, said = folded(await ask(backend, request)).output
    assert isinstance(thought, Reasoning)
    assert isinstance(said, Message)
    assert said.text == "Nine."


def test_a_model_that_cannot_call_is_never_sent_tools() -> None:
    request = ModelRequest("resp_1", "smollm2", (user("hi"),), tools=(CLOCK,), tool_choice=ToolChoice("required"))
    profile = find_profile("smollm2", "localhost")
    told = adapt(build_body(request, "localhost", profile), profile)
    for body in (told, ollama_build_body(request)):
        assert not {"tools", "tool_choice"} & set(body)
    assert CLOCK.name in told["messages"][0]["content"]


def test_a_model_that_does_not_sample_is_sent_no_temperature() -> None:
    request = ModelRequest("resp_1", "o3-mini", (user("hi"),), temperature=0.5, top_p=0.5)
    assert not {"temperature", "top_p"} & set(build_body(request, "api.openai.com"))
    assert {"temperature", "top_p"} <= set(build_body(replace(request, model="gpt-4o"), "api.openai.com"))


def test_a_model_that_recalls_gets_its_reasoning_back_with_its_calls() -> None:
    items = (
        user("What time is it?"),
        Reasoning(id="rs_1", content=(ReasoningText("I should look."),)),
        FunctionCall("call_1", "clock", "{}", id="fc_1"),
        FunctionCallOutput("call_1", "nine"),
        FunctionCall("call_2", "clock", "{}", id="fc_2"),
        FunctionCallOutput("call_2", "ten"),
        assistant("Ten."),
    )
    request = ModelRequest("resp_1", "deepseek-reasoner", items)
    said = [message for message in build_body(request, "x")["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in said] == ["I should look.", "", None]
    plain = build_body(replace(request, model="gpt-4o"), "x")["messages"]
    assert not [message for message in plain if "reasoning_content" in message]


@pytest.mark.parametrize(
    ("refusal", "options", "without"),
    [
        ("registry.ollama.ai/library/x does not support tools", {"tools": (CLOCK,)}, {"tools"}),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser', {"tools": (CLOCK,)}, {"tools"}),
        ("Unsupported value: 'temperature' does not support 0.5 with this model.", {"temperature": 0.5}, {"temperature"}),
        ("Unsupported parameter: 'top_p' is not supported with this model.", {"top_p": 0.5}, {"top_p"}),
        ("Unrecognized request argument supplied: reasoning_effort", {"reasoning": {"effort": "low"}}, {"reasoning_effort"}),
        ("parallel_tool_calls is not supported", {"tools": (CLOCK,), "parallel_tool_calls": False}, {"parallel_tool_calls"}),
    ],
)
async def test_what_a_backend_does_not_take_is_left_out_from_then_on(
    backend: Backend, caplog: pytest.LogCaptureFixture, refusal: str, options: Json, without: set[str]
) -> None:
    request = replace(QUESTION, **options)
    full = build_body(request, "localhost")
    less = {name: value for name, value in full.items() if name not in without}
    if "tools" in without:  # they are told in words
        less = adapt(full, ModelProfile(tools=False))
    answer = sse(chunk({"content": "Nine."}), chunk(finish="stop")) + DONE
    backend.replies(b'{"error": {"message": "%b"}}' % refusal.replace('"', '\\"').encode(), status=400, expect=full)
    backend.replies(answer, expect=less)
    backend.replies(answer, expect=less)
    chat = Chat(backend.url, new_id=counting())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert folded(await events_of(chat, request)).output
    await chat.close()
    assert len([record for record in caplog.records if "because the backend refused" in record.message]) == 1


async def test_a_value_that_is_not_liked_is_told_to_the_caller_and_not_remembered(backend: Backend) -> None:
    words = (
        "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are: 'low', 'high'."
    )
    refusal = msgspec.json.encode({"error": {"message": words}})
    minimal, high = (replace(QUESTION, reasoning={"effort": effort}) for effort in ("minimal", "high"))
    backend.replies(refusal, status=400, expect={**ASKED, "reasoning_effort": "minimal"})
    backend.replies(sse(chunk({"content": "Nine."}), chunk(finish="stop")) + DONE, expect={**ASKED, "reasoning_effort": "high"})
    chat = Chat(backend.url, new_id=counting())
    with pytest.raises(Refused, match="minimal"):
        await events_of(chat, minimal)
    assert folded(await events_of(chat, high)).output
    await chat.close()


async def test_a_change_that_has_not_helped_is_not_learned_however_the_refusals_differ(backend: Backend) -> None:
    tool = replace(CLOCK, parameters={"type": "object", "properties": {"at": {"type": "string", "pattern": "("}}})
    for number in range(2):
        words = f"Failed to read the schema of a tool (request id {number})"
        backend.replies(msgspec.json.encode({"error": {"message": words}}), status=400, expect=ANY)
    chat = Chat(backend.url, new_id=counting())
    with pytest.raises(Refused, match="request id 1"):
        await events_of(chat, replace(QUESTION, tools=(tool,)))
    (known,) = await chat.explain_profiles(QUESTION.model)
    assert known.facts == {}
    await chat.close()


@pytest.mark.parametrize("helps", [True, False])
async def test_a_change_because_of_a_refusal_within_the_answer_is_learned_if_it_helps(backend: Backend, helps: bool) -> None:
    request = replace(QUESTION, temperature=0.5, tools=(CLOCK,))
    refusal = sse({"error": {"message": "Unsupported parameter: 'temperature' is not supported", "code": 400}})
    call = {"index": 0, "id": "c1", "function": {"name": CLOCK.name, "arguments": "{}"}}
    full = build_body(request, "localhost")
    less = {name: value for name, value in full.items() if name != "temperature"}
    backend.replies(refusal, expect=full)
    backend.replies(sse(chunk({"tool_calls": [call]}), chunk(finish="tool_calls")) + DONE if helps else refusal, expect=less)
    chat = Chat(backend.url, new_id=counting())
    if helps:
        assert folded(await events_of(chat, request)).output
    else:
        with pytest.raises(Refused):
            await events_of(chat, request)
    (known,) = await chat.explain_profiles(QUESTION.model)
    assert list(known.facts) == (["temperature"] if helps else [])
    await chat.close()


async def test_a_model_that_once_wrote_the_tag_is_not_taken_to_think_for_good(backend: Backend) -> None:
    pieces = [chunk({"content": words}) for words in ("It is written so.\n", "</think>\n", "That is all.")]
    backend.replies(sse(*pieces, chunk(finish="stop")) + DONE)
    chat = Chat(backend.url, new_id=counting())
    first = folded(await events_of(chat, QUESTION)).output
    assert [item.text for item in first if isinstance(item, Message)] == ["It is written so.\n", "That is all."]
    answers = []
    for _ in range(4):
        backend.replies(sse(chunk({"content": "Noon."}), chunk(finish="stop")) + DONE)
        answers.append(folded(await events_of(chat, QUESTION)).output)
    await chat.close()
    assert [[type(item) for item in output] for output in answers] == [[Reasoning, Message]] * 3 + [[Message]]


async def test_empty_answers_do_not_close_a_backend_to_everybody(backend: Backend) -> None:
    chat = Breaker(Chat(backend.url, new_id=counting()), failures=2)
    for _ in range(3):
        backend.replies(sse(chunk({"content": ""}), chunk(finish="stop")) + DONE)
        with pytest.raises(BadOutput, match="without a word"):
            await events_of(chat, QUESTION)
    await chat.close()
