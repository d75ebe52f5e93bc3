"""What is special to a Responses backend: items that pass as they are, ids, and the many ways to leave events out."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from tests.kit.waiting import GROWING
from tests.providers.backend import QUESTION, folded
from tests.providers.dialects import Failure, Spoken, SpokenCall
from tests.providers.dialects.published import check
from tests.providers.dialects.responses import DIALECT, frames_of, response
from tests.providers.dialects.server import Fake, answer, ended, items, serving, text
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import BadOutput, ContextOverflow, ProviderError, RateLimited, Refused, Unavailable
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
)
from mainspring.core.ids import counting
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    ToolDefinition,
    Unknown,
    Usage,
    assistant,
    user,
)
from mainspring.core.spec import ToolChoice
from mainspring.core.tokens import estimate
from mainspring.ports import ModelInfo, TokenCounter
from mainspring.providers.responses.provider import Responses
from mainspring.providers.responses.request import build_body
from mainspring.providers.scripted import Scripted, call, turn

COMPLETED: Json = {"type": "response.completed", "response": response(status="completed")}
NOON: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Noon."}],
}
LOOK: Json = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"at":1}',
}

CALLED = SpokenCall("look", ('{"at"', ":1}"), id="call_1")


def added(item: Json, index: int = 0) -> Json:
    return {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress", "content": []}}


def done(item: Json, index: int = 0) -> Json:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, piece: str, item_id: str = "msg_1", index: int = 0, **place: int) -> Json:
    return {"type": f"response.{kind}.delta", "item_id": item_id, "output_index": index, "delta": piece, **place}


def read(*events: Json, raw: bytes = b"") -> list[ModelEvent]:
    """Our events for these of a backend; the engine's own fold must accept them."""
    reader = DIALECT.reader()
    told = [event for frame in frames_of(list(events)) for event in reader.feed(frame)]
    told += reader.feed(raw)
    told += reader.end()
    folded(told)
    return told


def said(*pieces: str, id: str = "msg_1") -> list[ModelEvent]:
    return [
        ItemStarted(Message("assistant", id=id, status="in_progress")),
        *[TextDelta(id, piece) for piece in pieces],
        ItemDone(Message("assistant", (OutputText("".join(pieces)),), id=id)),
    ]


# What is left out, repeated or changed.


def test_an_upstream_that_sends_only_whole_items_streams_all_the_same() -> None:
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Sun."}],
        "encrypted_content": "gAAA",
    }
    assert read(done(thought), done(NOON, 1), done(LOOK, 2), COMPLETED) == [
        ItemStarted(Reasoning("rs_1", status="in_progress")),
        ReasoningDelta("rs_1", "Sun.", summary=True),
        ItemDone(Reasoning("rs_1", (SummaryText("Sun."),), encrypted_content="gAAA")),
        *said("Noon."),
        ItemStarted(FunctionCall("call_1", "look", id="fc_1", status="in_progress")),
        ArgumentsDelta("fc_1", '{"at":1}'),
        ItemDone(FunctionCall("call_1", "look", '{"at":1}', id="fc_1")),
        TurnEnded("stop"),
    ]


def test_an_upstream_that_sends_only_the_end_streams_all_the_same() -> None:
    final = {"type": "response.completed", "response": response(status="completed", output=[NOON])}
    assert read(final) == [*said("Noon."), TurnEnded("stop")]


def test_what_the_end_repeats_is_not_said_again() -> None:
    final = {"type": "response.completed", "response": response(status="completed", output=[NOON, LOOK])}
    events = read(added(NOON), delta("output_text", "Noon."), done(NOON), done(LOOK, 1), final)
    assert [type(item) for item in items(events)] == [Message, FunctionCall]
    assert text(events) == "Noon."


def test_an_item_that_never_ends_ends_with_the_answer() -> None:
    assert read(added(NOON), delta("output_text", "Noon."), COMPLETED) == [*said("Noon."), TurnEnded("stop")]


def test_a_delta_without_its_item_begins_one() -> None:
    assert read(delta("output_text", "Noon."), done(NOON), COMPLETED) == [*said("Noon."), TurnEnded("stop")]


def test_deltas_that_stop_short_are_completed_by_the_whole() -> None:
    assert read(added(NOON), delta("output_text", "No"), done(NOON), COMPLETED) == [*said("No", "on."), TurnEnded("stop")]


def test_where_whole_and_deltas_differ_what_was_streamed_counts() -> None:
    events = read(added(NOON), delta("output_text", " Noon.\n"), done(NOON), COMPLETED)
    assert events == [*said(" Noon.\n"), TurnEnded("stop")]


def test_a_call_that_gets_its_name_at_the_end_is_one_call() -> None:
    begun = {**LOOK, "name": "", "arguments": ""}
    events = read(added(begun), delta("function_call_arguments", '{"at":1}', "fc_1"), done(LOOK), COMPLETED)
    assert items(events) == [FunctionCall("call_1", "look", '{"at":1}', id="fc_1")]


def test_a_call_that_never_gets_a_name_is_bad_output() -> None:
    with pytest.raises(BadOutput, match="without naming it"):
        read(done({**LOOK, "name": ""}), COMPLETED)


def test_gateways_that_change_ids_are_followed_by_index() -> None:
    events = read(
        added(NOON),
        delta("output_text", "No", "other"),
        delta("output_text", "on.", "another"),
        done({**NOON, "id": "x"}),
        COMPLETED,
    )
    assert events == [*said("No", "on."), TurnEnded("stop")]


def test_gateways_that_number_all_items_0_are_followed_by_id() -> None:
    other = {**LOOK, "id": "fc_2", "call_id": "call_2", "arguments": "{}"}
    pieces = [delta("function_call_arguments", '{"at":1}', "fc_1"), delta("function_call_arguments", "{}", "fc_2")]
    events = read(added(LOOK), added(other), *pieces, done(LOOK), done(other), COMPLETED)
    assert [(item.call_id, item.arguments) for item in items(events) if isinstance(item, FunctionCall)] == [
        ("call_1", '{"at":1}'),
        ("call_2", "{}"),
    ]


def test_missing_and_repeated_ids_are_replaced() -> None:
    nameless = {key: value for key, value in NOON.items() if key != "id"}
    events = read(
        done(nameless, 0),
        done(NOON, 1),
        done({**LOOK, "id": "msg_1"}, 2),
        done({**LOOK, "id": None, "arguments": "{}"}, 3),
        COMPLETED,
    )
    ids = [item.id for item in items(events) if isinstance(item, Message | FunctionCall)]
    assert len(set(ids)) == 4
    assert "" not in ids
    assert len({item.call_id for item in items(events) if isinstance(item, FunctionCall)}) == 2


async def test_ids_that_the_conversation_has_used_are_replaced() -> None:
    async with serving(DIALECT) as fake:
        fake.replies(*frames_of([done(NOON), done(LOOK, 1), COMPLETED]))
        earlier = [
            user("Hi."),
            assistant("Hello.", id="msg_1"),
            FunctionCall("call_1", "look", id="fc_9"),
            FunctionCallOutput("call_1", "1"),
        ]
        message, made = items(await answer(DIALECT, fake, replace(QUESTION, items=earlier)))
    assert isinstance(message, Message)
    assert isinstance(made, FunctionCall)
    assert message.id not in ("", "msg_1")
    assert made.id == "fc_1"
    assert made.call_id not in ("", "call_1")


def test_a_whole_item_that_comes_twice_is_one_item() -> None:
    assert read(added(NOON), done(NOON), done(NOON), COMPLETED) == [*said("Noon."), TurnEnded("stop")]


@given(st.data())
def test_whatever_is_left_out_repeated_or_misplaced_the_engine_can_follow(data: st.DataObject) -> None:
    spoken = Spoken(
        ("Hm", "m."), text=("No", "on."), refusal="No.", calls=(CALLED, replace(CALLED, id="call_2")), interleaved=True
    )
    frames = DIALECT.frames(replace(spoken, seal="gAAA"))
    order = data.draw(
        st.lists(st.integers(0, len(frames) - 2), max_size=2 * len(frames)) | st.permutations(range(len(frames) - 1))
    )
    reader = DIALECT.reader()
    told = [event for place in order for event in reader.feed(frames[place])]
    told += reader.feed(frames[-1])
    told += reader.end()
    assert folded(told).finish == "stop"
    assert {type(item) for item in items(told)} == {Reasoning, Message, FunctionCall}


@pytest.mark.parametrize("usage", [{"input_tokens": "many"}, {"input_tokens": {}}, [], {"input_tokens": None}])
def test_usage_that_cannot_be_read_costs_no_answer(usage: object) -> None:
    final = {"type": "response.completed", "response": response(status="completed", output=[NOON], usage=usage)}
    assert read(final) == [*said("Noon."), TurnEnded("stop")]


def test_nulls_say_nothing() -> None:
    hollow: Json = {"id": None, "type": "message", "role": None, "status": None, "content": None, "phase": None}
    thought: Json = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": None,
        "content": None,
        "encrypted_content": None,
        "status": None,
    }
    final = {"type": "response.completed", "response": {"status": "completed", "output": None, "usage": {"input_tokens": None}}}
    assert [type(item) for item in items(read(done(thought), done(hollow, 1), final))] == [Reasoning, Message]
    assert read(final) == [TurnEnded("stop")]


def test_a_whole_response_in_place_of_a_stream_is_read() -> None:
    reader = DIALECT.reader()
    usage = {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 5}, "output_tokens_details": None}
    body = msgspec.json.encode(response(status="completed", output=[NOON], usage=usage))
    assert [*reader.read_whole(body), *reader.end()] == [*said("Noon."), TurnEnded("stop", Usage(9, 4, cached_tokens=5))]


async def test_a_backend_that_answers_json_or_a_web_page_is_told_apart() -> None:
    async with serving(DIALECT) as fake:
        fake.fails(Failure(200, msgspec.json.encode(response(status="completed", output=[NOON]))))
        assert text(await answer(DIALECT, fake)) == "Noon."
        fake.fails(Failure(200, b"<html>", {"Content-Type": "text/html"}))
        with pytest.raises(BadOutput, match="web page"):
            await answer(DIALECT, fake)
        fake.fails(Failure(200, b"{}"))
        with pytest.raises(BadOutput, match="no Response"):
            await answer(DIALECT, fake)


# What passes through.


@pytest.mark.parametrize("kind", ["reasoning_text", "reasoning"])
def test_raw_reasoning_is_read_under_both_its_names(kind: str) -> None:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Sun."}]}
    events = read(added(thought), delta(kind, "Sun.", "rs_1", content_index=0), done(thought), COMPLETED)
    assert events == [
        ItemStarted(Reasoning("rs_1", status="in_progress")),
        ReasoningDelta("rs_1", "Sun."),
        ItemDone(Reasoning("rs_1", content=(ReasoningText("Sun."),))),
        TurnEnded("stop"),
    ]


def test_several_summaries_keep_their_places() -> None:
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": words} for words in ("One.", "Two.")],
    }
    pieces = [delta("reasoning_summary_text", words, "rs_1", summary_index=at) for at, words in enumerate(["One.", "Two."])]
    [item] = items(read(added(thought), *pieces, done(thought), COMPLETED))
    assert item == Reasoning("rs_1", (SummaryText("One."), SummaryText("Two.")))


def test_annotations_are_told_when_they_come_and_kept() -> None:
    note = {"type": "url_citation", "url": "https://clocks.example", "title": "Clocks", "start_index": 0, "end_index": 4}
    event = {
        "type": "response.output_text.annotation.added",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "annotation": note,
    }
    noted = {**NOON, "content": [{"type": "output_text", "text": "Noon.", "annotations": [note], "logprobs": []}]}
    for final in (noted, NOON):
        events = read(added(NOON), delta("output_text", "Noon."), event, done(final), COMPLETED)
        assert Annotated("msg_1", note) in events
        assert items(events) == [Message("assistant", (OutputText("Noon.", (note,)),), id="msg_1")]


def test_a_message_may_speak_and_refuse_in_parts() -> None:
    both = {**NOON, "phase": "final_answer", "content": [*NOON["content"], {"type": "refusal", "refusal": "No more."}]}
    pieces = [delta("output_text", "Noon.", content_index=0), delta("refusal", "No more.", content_index=1)]
    [message] = items(read(added(both), *pieces, done(both), COMPLETED))
    assert message == Message("assistant", (OutputText("Noon."), Refusal("No more.")), id="msg_1", phase="final_answer")


CUSTOM: Json = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_7",
    "name": "sed",
    "input": "s/a/b/",
    "status": "completed",
}
SEARCH: Json = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "noon"}}


async def test_items_of_unknown_kinds_are_kept_and_given_back_as_they_were() -> None:
    async with serving(DIALECT, judges=False) as fake:
        searching = {"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0}
        typing = delta("custom_tool_call_input", "s/a/b/", "ctc_1", 1)
        fake.replies(*frames_of([added(SEARCH), searching, done(SEARCH), added(CUSTOM, 1), typing, done(CUSTOM, 1), COMPLETED]))
        first = items(await answer(DIALECT, fake))
        assert first == [Unknown(SEARCH), Unknown(CUSTOM)]
        output = Unknown({"type": "custom_tool_call_output", "call_id": "call_7", "output": "b"})
        fake.replies(*frames_of([done(NOON), COMPLETED]))
        await answer(DIALECT, fake, replace(QUESTION, items=(user("Hi."), *first, output)))
        assert msgspec.json.decode(fake.bodies[1])["input"][1:] == [SEARCH, CUSTOM, output.data]
        fake.replies(*frames_of([done(NOON), COMPLETED]))
        await answer(DIALECT, fake, replace(QUESTION, items=(user("Hi."), *first)))
        assert msgspec.json.decode(fake.bodies[2])["input"][1:] == [SEARCH]


async def test_a_sealed_thought_goes_back_whole() -> None:
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Sun."}],
        "encrypted_content": "gAAA",
    }
    async with serving(DIALECT) as fake:
        fake.replies(*frames_of([done(thought), done(LOOK, 1), COMPLETED]))
        first = items(await answer(DIALECT, fake))
        fake.replies(*frames_of([done(NOON), COMPLETED]))
        again = (*QUESTION.items, *first, FunctionCallOutput("call_1", "12:00"))
        await answer(DIALECT, fake, replace(QUESTION, items=again))
        told = msgspec.json.decode(fake.bodies[1])["input"]
    made = {key: value for key, value in LOOK.items() if key != "status"}
    assert told[1:] == [thought, made, {"type": "function_call_output", "call_id": "call_1", "output": "12:00"}]


def test_outputs_of_an_upstream_that_answers_calls_itself_are_left_to_the_engine() -> None:
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "12:00", "status": "completed"}
    final = {"type": "response.completed", "response": response(status="completed", output=[LOOK, output])}
    events = read(added(LOOK), done(LOOK), added(output, 1), done(output, 1), final)
    assert items(events) == [FunctionCall("call_1", "look", '{"at":1}', id="fc_1")]


# How answers end.


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("max_tool_calls", "length"), (None, "length")],
)
def test_an_incomplete_response_says_why(reason: str | None, finish: str) -> None:
    final = response(status="incomplete", incomplete_details=reason and {"reason": reason})
    events = read(added(NOON), delta("output_text", "No"), {"type": "response.incomplete", "response": final})
    assert ended(events).finish == finish
    assert items(events) == [Message("assistant", (OutputText("No"),), id="msg_1", status="incomplete")]


ERRORS: list[tuple[Json, type[ProviderError]]] = [
    ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None}, RateLimited),
    ({"type": "error", "error": {"type": "too_many_requests", "code": None, "message": "Slow down."}}, RateLimited),
    (
        {"type": "error", "error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "Long."}},
        ContextOverflow,
    ),
    ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "Slow down."}}}, RateLimited),
    ({"type": "response.failed", "response": {"error": {"code": "invalid_prompt", "message": "Not this."}}}, Refused),
    ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Broken."}}}, Unavailable),
    ({"type": "response.failed", "response": {"status": "failed", "error": None}}, Unavailable),
    ({"type": "response.failed", "response": {"status": "cancelled", "error": None}}, Unavailable),
    ({"type": "", "error": {"message": "Broken."}}, Unavailable),
]


@pytest.mark.parametrize(("event", "expected"), ERRORS)
def test_an_error_event_is_the_error_it_names(event: Json, expected: type[ProviderError]) -> None:
    with pytest.raises(ProviderError) as caught:
        read(added(NOON), delta("output_text", "No"), event)
    assert type(caught.value) is expected


async def test_a_backend_that_falls_silent_is_unavailable() -> None:
    async with serving(DIALECT, judges=False) as fake:
        for seconds in GROWING:
            fake.replies(*frames_of([added(NOON), delta("output_text", "No")]), ending="silence")
            provider = Responses(f"{fake.url}/v1", timeout=seconds)
            with pytest.raises(Unavailable) as caught:
                [event async for event in provider.stream(QUESTION)]
            await provider.close()
            if "silent" in caught.value.message:
                break
        assert "silent" in caught.value.message
        await fake.gone.wait()


def test_an_end_mark_without_an_end_is_one_behind_items_that_are_whole() -> None:
    assert read(done(NOON), raw=b"data: [DONE]\n\n") == [*said("Noon."), TurnEnded("stop")]
    with pytest.raises(Unavailable):
        read(added(NOON), raw=b"data: [DONE]\n\n")


def test_events_of_tools_that_fail_and_events_nobody_knows_are_no_errors() -> None:
    failed = {"type": "response.mcp_call.failed", "item_id": "mcp_1", "output_index": 0, "error": {"message": "no"}}
    assert read(failed, {"type": "acme:mood", "mood": "calm"}, done(NOON), COMPLETED) == [*said("Noon."), TurnEnded("stop")]


# What is asked.


def input_of(*given: Item, host: str = "api.openai.com") -> list[Json]:
    told: list[Json] = build_body(replace(QUESTION, items=given), host)["input"]
    return told


def test_a_request_stores_nothing_whatever_the_caller_adds() -> None:
    extra = {"store": True, "stream": False, "include": ["message.output_text.logprobs"], "service_tier": "flex"}
    body = build_body(replace(QUESTION, extra=extra), "api.openai.com")
    assert (body["store"], body["stream"], body["service_tier"]) == (False, True, "flex")
    assert body["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]


def test_thoughts_without_a_seal_are_for_backends_that_take_them() -> None:
    thought = Reasoning("rs_1", content=(ReasoningText("Sun."),))
    assert [item["type"] for item in input_of(user("Hi."), thought, assistant("Noon."))] == ["message", "message"]
    told = input_of(user("Hi."), thought, assistant("Noon."), host="localhost")
    assert told[1] == {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Sun."}]}


def test_thoughts_that_lead_nowhere_are_left_out() -> None:
    thought = Reasoning("rs_1", encrypted_content="gAAA")
    assert [item["type"] for item in input_of(user("Hi."), thought, user("And?"), thought)] == ["message", "message"]


def test_notes_that_lack_what_the_vendor_wants_are_left_out() -> None:
    whole = {"type": "file_path", "file_id": "file_1", "index": 3}
    part = OutputText("Noon.", (whole, {"type": "url_citation", "url": "https://clocks.example"}, {"type": "mood"}))
    [_, told] = input_of(user("Hi."), Message("assistant", (part,)))
    assert told["content"] == [{"type": "output_text", "text": "Noon.", "annotations": [whole]}]


def test_an_error_with_parts_says_that_it_is_one() -> None:
    output = FunctionCallOutput("call_1", (InputText("no clock"),), is_error=True)
    [_, told] = input_of(FunctionCall("call_1", "look"), output)
    assert [part["text"] for part in told["output"]] == ["Error:", "no clock"]


def test_tools_we_do_not_know_are_offered_as_they_are() -> None:
    tools = (ToolDefinition("look", "Looks."), Unknown({"type": "web_search"}))
    body = build_body(replace(QUESTION, tools=tools, parallel_tool_calls=False), "api.openai.com")
    look = {
        "type": "function",
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    assert body["tools"] == [look, {"type": "web_search"}]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (ToolChoice(allowed=("look",)), ("auto", ["look"])),
        (ToolChoice("required", allowed=("look", "ring")), ("required", ["look", "ring"])),
    ],
)
async def test_the_allowed_subset_goes_to_the_backend(choice: ToolChoice, told: tuple[str, list[str]]) -> None:
    tools = (ToolDefinition("look"), ToolDefinition("ring"))
    async with serving(DIALECT, judges=False) as fake:
        fake.replies(*frames_of([done(NOON), COMPLETED]))
        await answer(DIALECT, fake, replace(QUESTION, tools=tools, tool_choice=choice))
        body = msgspec.json.decode(fake.bodies[0])
    check(ResponseCreateParamsStreaming, body)
    mode, names = told
    allowed = [{"type": "function", "name": name} for name in names]
    assert body["tool_choice"] == {"type": "allowed_tools", "mode": mode, "tools": allowed}
    assert [tool["name"] for tool in body["tools"]] == ["look", "ring"]


@pytest.mark.parametrize("choice", [ToolChoice("none", allowed=("look",)), ToolChoice("none")])
def test_no_tools_are_none_even_if_some_are_allowed(choice: ToolChoice) -> None:
    body = build_body(replace(QUESTION, tools=(ToolDefinition("look"),), tool_choice=choice), "localhost")
    assert body["tool_choice"] == "none"


# Models and tokens.


@asynccontextmanager
async def asking(fake: Fake) -> AsyncIterator[Responses]:
    provider = Responses(f"{fake.url}/v1", new_id=counting())
    try:
        yield provider
    finally:
        await provider.close()


async def test_models_are_listed() -> None:
    async with serving(DIALECT, judges=False) as fake, asking(fake) as provider:
        fake.fails(Failure(200, b'{"object":"list","data":[{"id":"clockwork","object":"model","created":5,"owned_by":"us"}]}'))
        assert list(await provider.models()) == [ModelInfo("clockwork", "us", 5)]


async def test_tokens_are_counted_by_the_backend() -> None:
    request = replace(QUESTION, instructions="Be brief.", temperature=0.1, max_output_tokens=50)
    async with serving(DIALECT, judges=False) as fake, asking(fake) as provider:
        assert isinstance(provider, TokenCounter)
        fake.fails(Failure(200, b'{"object":"response.input_tokens","input_tokens":41}'))
        assert await provider.count_tokens(request) == 41
        content = [{"type": "input_text", "text": "What time is it?"}]
        assert msgspec.json.decode(fake.bodies[0]) == {
            "model": "clockwork",
            "input": [{"type": "message", "role": "user", "content": content}],
            "instructions": "Be brief.",
        }


@pytest.mark.parametrize("reply", [Failure(404, b'{"error":{"message":"Not Found"}}'), Failure(405, b""), Failure(200, b"{}")])
async def test_tokens_are_estimated_where_the_backend_does_not_count(reply: Failure) -> None:
    async with serving(DIALECT, judges=False) as fake, asking(fake) as provider:
        fake.fails(reply)
        assert await provider.count_tokens(QUESTION) == estimate(QUESTION.items)


# Our own server as the backend.

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    think=st.none() | WORDS,
    say=st.none() | WORDS,
    made=st.lists(st.builds(call, st.sampled_from(["look", "ring"]), WORDS), max_size=2),
    cut=st.booleans(),
    used=st.builds(Usage, *[st.integers(0, 99)] * 5),
)
async def test_an_answer_through_two_hops_is_the_answer_through_one(
    think: str | None, say: str | None, made: list[object], cut: bool, used: Usage
) -> None:
    assume(say or made or cut)  # an answer with nothing in it is none
    script = turn(think=think, say=say, calls=made, usage=used, finish="length" if cut else "stop")  # type: ignore[arg-type]
    async with hosted(server(Engine(Scripted(script, repeat=True, chunk=3)))) as near:
        upstream = Responses(near)
        try:
            async with hosted(server(Engine(upstream))) as far:
                one, two = await posted(near), await posted(far)
        finally:
            await upstream.close()
    assert masked(one) == masked(two)
    assert one["output"] or not (think or say or made)


async def posted(url: str) -> Json:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "ring")]
    body = {"model": "m", "input": "What time is it?", "tools": tools, "store": False}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/responses", json=body) as reply:
        answered: Json = await reply.json()
        assert reply.status == 200, answered
        return answered


def masked(answered: Json) -> Json:
    """Without what is new each time: ids and times."""
    told = {key: value for key, value in answered.items() if not key.endswith("_at")}
    plain: Json = msgspec.json.decode(re.sub(rb'"(resp|msg|rs|fc|fco|call)_\w+"', b'"id"', msgspec.json.encode(told)))
    return plain
