"""What Claude answers: rows of blocks, signed thoughts, reasons to stop and errors; and what else its vendor can be asked."""

import itertools
import json
from collections.abc import Sequence

import anyio
import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import QUESTION, Backend, folded
from tests.providers.dialects import Failure, Spoken
from tests.providers.dialects.anthropic import DIALECT, KEY, SIGNATURE, block, error, frame, started, stopped
from tests.providers.dialects.server import answer, calls, ended, items, reading, serving, text

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import ModelEvent
from mainspring.core.items import (
    FunctionCall,
    Item,
    Json,
    Message,
    Reasoning,
    ReasoningText,
    Refusal,
    Usage,
)
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo, TokenCounter
from mainspring.providers.anthropic.provider import Anthropic
from mainspring.providers.anthropic.reply import MOST_PAUSES
from mainspring.providers.anthropic.request import Thinking, seal_thought

MARK = {"cache_control": {"type": "ephemeral"}}


def said(*given: Item, **changes: object) -> ModelRequest:
    return replace(QUESTION, items=given or QUESTION.items, **changes)


def read(*events: Json | Sequence[Json]) -> list[ModelEvent]:
    """What the reader makes of these events."""
    flat = [event for given in events for event in ([given] if isinstance(given, dict) else given)]
    reader = DIALECT.reader()
    found = [event for one in flat for event in reader.feed(frame(one))]
    found += reader.end()
    folded(found)
    return found


# The answer.


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("tool_use", "stop"),
        ("stop_sequence", "stop"),
        ("something_new", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_why_the_model_stopped_is_understood(reason: str, finish: str) -> None:
    events = read(started(), block(0, {"type": "text", "text": "Noon."}), stopped(reason))
    assert (text(events), ended(events).finish) == ("Noon.", finish)


def test_the_text_that_has_ended_the_answer_is_told() -> None:
    events = read(started(), block(0, {"type": "text", "text": "Noon."}), stopped("stop_sequence", sequence="END"))
    assert (ended(events).finish, ended(events).stop_sequence) == ("stop", "END")


SEARCH: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Json = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "u"}],
}


async def test_a_paused_turn_is_sent_again_with_what_was_said_and_goes_on() -> None:
    query = {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"query": "noon"}'},
    }
    paused = [
        started({"input_tokens": 10, "output_tokens": 1}),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Well."},
               {"type": "signature_delta", "signature": SIGNATURE}),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me look."}),
        {"type": "content_block_start", "index": 2, "content_block": SEARCH}, query, {"type": "content_block_stop", "index": 2},
        *block(3, FOUND),
        *stopped("pause_turn", {"output_tokens": 5}),
    ]  # fmt: skip
    rest = [
        started({"input_tokens": 30, "output_tokens": 1}),
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": " It is noon."}),
        *stopped("end_turn", {"output_tokens": 7}),
    ]
    async with serving(DIALECT, judges=False) as fake:
        fake.replies(*map(frame, paused))
        fake.replies(*map(frame, rest))
        events = await answer(DIALECT, fake)
    assert (text(events), ended(events).finish, ended(events).usage) == ("Let me look. It is noon.", "stop", Usage(40, 12))
    first, second = map(json.loads, fake.bodies)
    thought = {"type": "thinking", "thinking": "Well.", "signature": SIGNATURE}
    said = [thought, {"type": "text", "text": "Let me look."}, {**SEARCH, "input": {"query": "noon"}}, FOUND]
    assert second == {**first, "messages": [*first["messages"], {"role": "assistant", "content": said}]}


async def test_a_turn_that_is_paused_again_and_again_is_cut() -> None:
    said = [started(), *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "."}), *stopped("pause_turn")]
    async with serving(DIALECT, judges=False) as fake:
        for _ in range(MOST_PAUSES + 1):
            fake.replies(*map(frame, said))
        events = await answer(DIALECT, fake)
    assert (text(events), ended(events).finish) == ("." * (MOST_PAUSES + 1), "length")
    assert [len(json.loads(body)["messages"][-1]["content"]) for body in fake.bodies] == [1, *range(1, MOST_PAUSES + 1)]


def test_a_refusal_is_explained() -> None:
    details = {"type": "refusal", "category": "general_harms", "explanation": "Not this."}
    events = read(started(), stopped("refusal", details=details))
    [message] = items(events)
    assert isinstance(message, Message)
    assert message.content == (Refusal("Not this."),)
    assert ended(events).finish == "content_filter"


@pytest.mark.parametrize(
    ("first", "last", "counted"),
    [
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1},
            {"output_tokens": 50},
            Usage(123, 50, cached_tokens=100, cache_write_tokens=20),
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 1},
            {
                "input_tokens": 9,
                "cache_read_input_tokens": None,
                "output_tokens": 8,
                "output_tokens_details": {"thinking_tokens": 5},
            },
            Usage(109, 8, cached_tokens=100, reasoning_tokens=5),
        ),
        ({"input_tokens": "many"}, {"output_tokens": [1]}, None),
        ({"input_tokens": -4}, {"output_tokens": 2.0}, Usage(0, 2)),
    ],
)
def test_usage_is_the_sum_of_what_was_read_and_the_last_word_on_each(first: Json, last: Json, counted: Usage | None) -> None:
    assert ended(read(started(first), stopped("end_turn", last))).usage == counted


def test_what_nobody_asked_for_does_no_harm() -> None:
    events = read(
        {"type": "ping"},
        started(),
        {"type": "fanfare", "index": "first", "delta": 7},
        block(
            0,
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"query": "noon"}'},
        ),
        block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [], "data": {"a": 1}, "text": []}),
        block(
            2,
            {"type": "text", "text": "", "citations": None},
            {"type": "text_delta", "text": "Noon."},
            {"type": "citations_delta", "citation": {"type": "char_location"}},
            {"type": "sound_delta", "text": {"pitch": 440}},
        ),
        {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "message_delta", "delta": None, "usage": None},
        stopped("end_turn"),
    )
    assert (text(events), calls(events), len(items(events))) == ("Noon.", [], 1)


@pytest.mark.parametrize(
    ("begun", "pieces", "arguments"),
    [
        ({"at": "wall"}, (), '{"at":"wall"}'),
        ({"at": "wall"}, ('{"at"', ': "sun"}'), '{"at": "sun"}'),
        ({}, (), ""),
        (None, (), ""),
    ],
)
def test_arguments_may_come_at_once(begun: Json | None, pieces: tuple[str, ...], arguments: str) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    begin = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": begun}
    [call] = items(read(started(), block(0, begin, *deltas), stopped("tool_use")))
    assert isinstance(call, FunctionCall)
    assert (call.call_id, call.arguments) == ("toolu_1", arguments)


async def test_an_answer_in_one_piece_is_an_answer() -> None:
    whole = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "High sun.", "signature": SIGNATURE},
            {"type": "text", "text": "Noon."},
            {"type": "tool_use", "id": "toolu_1", "name": "ring", "input": {"times": 12}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    async with serving(DIALECT) as fake:
        fake.replies(msgspec.json.encode(whole))
        events = await answer(DIALECT, fake)
    assert [type(item) for item in items(events)] == [Reasoning, Message, FunctionCall]
    assert (reading(events).thoughts, text(events), calls(events)) == ("High sun.", "Noon.", [("ring", {"times": 12})])
    assert ended(events).usage == Usage(3, 4)


def test_an_answer_is_whole_once_the_model_has_said_why_it_stopped() -> None:
    events = [started(), *block(0, {"type": "text", "text": "Noon."}), *stopped("end_turn")]
    assert read(*events[:-1]) == read(*events)
    with pytest.raises(Unavailable):
        read(*events[:-2])


def test_a_thought_without_words_still_has_its_signature() -> None:
    [thought, _] = items(
        read(
            started(),
            block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "signature_delta", "signature": SIGNATURE}),
            block(1, {"type": "text", "text": "Noon."}),
            stopped("end_turn"),
        )
    )
    assert isinstance(thought, Reasoning)
    assert isinstance(thought.encrypted_content, str)
    assert SIGNATURE in thought.encrypted_content
    assert not thought.content


def test_a_signature_is_for_its_own_thought_only() -> None:
    unsigned = block(0, {"type": "thinking", "thinking": "Hm. "})
    begun, *deltas = _thought("The sun is high.")
    [thought] = items(read(started(), unsigned, block(1, begun, *deltas), stopped("end_turn")))
    assert isinstance(thought, Reasoning)
    assert thought.content == (ReasoningText("Hm. The sun is high."),)
    assert thought.encrypted_content == seal_thought(Thinking("The sun is high.", SIGNATURE))


async def test_a_line_that_breaks_behind_a_whole_answer_costs_nothing() -> None:
    frames = DIALECT.frames(Spoken(text=("Noon.",)))
    assert b"message_stop" in frames[-1]
    async with serving(DIALECT) as fake:
        fake.replies(*frames[:-1], ending="abort")
        assert reading(await answer(DIALECT, fake)).text == "Noon."


# Errors.


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("overloaded_error", "Overloaded", Unavailable),
        ("api_error", "Internal server error", Unavailable),
        ("timeout_error", "Took too long", Unavailable),
        ("rate_limit_error", "Slow down", RateLimited),
        ("authentication_error", "invalid x-api-key", Unauthorized),
        ("permission_error", "Not for you", Unauthorized),
        ("invalid_request_error", "No", Refused),
        ("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2", ContextOverflow),
    ],
)
def test_an_error_within_the_stream_is_the_right_one(kind: str, message: str, expected: type[ProviderError]) -> None:
    for name in (b"event: error\n", b""):
        reader = DIALECT.reader()
        list(reader.feed(frame(started())))
        with pytest.raises(expected, match="broke off") as caught:
            list(reader.feed(name + b"data: " + error(kind, message) + b"\n\n"))
        assert type(caught.value) is expected


def test_an_error_without_a_type_is_one_too() -> None:
    with pytest.raises(Unavailable, match="gateway"):
        list(DIALECT.reader().feed(b'data: {"error": {"message": "gateway down"}}\n\n'))


async def test_an_overloaded_vendor_may_say_for_how_long_and_the_key_is_not_told() -> None:
    async with serving(DIALECT) as fake:
        fake.fails(Failure(529, error("overloaded_error", f"Overloaded for {KEY}"), {"Retry-After": "7"}))
        with pytest.raises(Unavailable, match=r"Overloaded for \*\*\*") as caught:
            await answer(DIALECT, fake)
    assert caught.value.retry_after == 7


# Beside the stream.


async def test_tokens_are_counted_by_the_vendor(backend: Backend) -> None:
    asked: Json = {
        "model": "clockwork",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What time is it?", **MARK}]}],
        "system": [{"type": "text", "text": "Be brief.", **MARK}],
    }
    backend.replies(b'{"input_tokens": 671}', expect=asked, mime="application/json")
    backend.replies(b'{"tokens": 671}', expect=asked, mime="application/json")
    backend.replies(error("not_found_error", "model: clockwork"), expect=asked, status=404, mime="application/json")
    provider = Anthropic(backend.url, api_key=KEY)
    assert isinstance(provider, TokenCounter)
    request = said(instructions="Be brief.", temperature=0.5)
    assert await provider.count_tokens(request) == 671
    with pytest.raises(BadOutput, match="no number of tokens"):
        await provider.count_tokens(request)
    with pytest.raises(Refused, match="model: clockwork"):
        await provider.count_tokens(request)
    await provider.close()
    assert {(received.method, received.target) for received in backend.received} == {("POST", "/v1/messages/count_tokens")}


async def test_models_are_listed(backend: Backend) -> None:
    listed = {
        "data": [
            {"type": "model", "id": "claude-opus-5", "display_name": "Claude Opus 5", "created_at": "2026-07-01T00:00:00Z"},
            {"id": "copied"},
        ],
        "has_more": False,
    }
    backend.replies(msgspec.json.encode(listed), expect=None, mime="application/json")
    backend.replies(b'"no list"', expect=None, mime="application/json")
    provider = Anthropic(backend.url, api_key=KEY, headers={"Anthropic-Version": "2026-10-21"})
    models = await provider.models()
    assert models == (ModelInfo("claude-opus-5", "anthropic", 1_782_864_000), ModelInfo("copied", "anthropic"))
    with pytest.raises(BadOutput, match="no list of models"):
        await provider.models()
    await provider.close()
    sent = {name.lower(): value for name, value in backend.received[0].headers.items()}
    assert (backend.received[0].target, sent["anthropic-version"]) == ("/v1/models?limit=1000", "2026-10-21")


async def test_a_web_page_is_no_answer(backend: Backend) -> None:
    backend.replies(
        b"<html>", expect={"model": "clockwork", "max_tokens": 8192, "messages": _question(), "stream": True}, mime="text/html"
    )
    provider = Anthropic(backend.url)
    with pytest.raises(BadOutput, match="check the base URL"):
        await anext(provider.stream(QUESTION))
    await provider.close()


# The vendor's own client.


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
async def test_the_vendors_own_client_reads_any_row_of_blocks_the_same(data: st.DataObject) -> None:
    blocks = data.draw(st.lists(_any_block(), max_size=6))
    counts = st.integers(0, 10**6)
    first = {"input_tokens": data.draw(counts), "output_tokens": 1, "cache_read_input_tokens": data.draw(counts | st.none())}
    last = {"output_tokens": data.draw(counts), "cache_creation_input_tokens": data.draw(counts | st.none())}
    reason = data.draw(st.sampled_from(["end_turn", "tool_use", "stop_sequence", "max_tokens", "refusal"]))
    # An answer with nothing of ours in it is none.
    assume(reason in ("max_tokens", "refusal") or any(begun["type"] in ("text", "tool_use") for begun, *_ in blocks))
    events = [started(first), *[one for place, (begun, *deltas) in enumerate(blocks) for one in block(place, begun, *deltas)]]
    frames = [frame(event) for event in [*events, *stopped(reason, last)]]
    async with serving(DIALECT, judges=False) as fake:
        fake.replies(*frames)
        ours = reading(await answer(DIALECT, fake))
        fake.replies(*frames)
        with anyio.fail_after(PATIENCE):
            assert ours == await DIALECT.sdk(fake.url, QUESTION)


def _any_block() -> st.SearchStrategy[list[Json]]:
    """A block as it begins and its deltas. Its words never begin blank: blanks before a call are no message to us."""
    pieces = st.lists(st.text(max_size=8), max_size=3).map(lambda pieces: ["x", *pieces])
    called = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.none(), max_size=2).map(json.dumps)
    return st.one_of(
        pieces.map(lambda words: [{"type": "text", "text": ""}, *[{"type": "text_delta", "text": piece} for piece in words]]),
        pieces.map(lambda words: _thought(*words)),
        st.just([{"type": "redacted_thinking", "data": "b3BhcXVl"}]),
        st.tuples(st.sampled_from(["tool_use", "server_tool_use"]), called, st.integers(0, 9)).map(lambda made: _made(*made)),
    )


def _thought(*words: str) -> list[Json]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in words]
    sign = {"type": "signature_delta", "signature": SIGNATURE}
    return [{"type": "thinking", "thinking": "", "signature": ""}, *deltas, sign]


_NUMBERS = itertools.count(1)


def _made(kind: str, arguments: str, cut: int) -> list[Json]:
    """A call with an id of its own: one that comes again under its id is made once."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", arguments[:cut], arguments[cut:])]
    return [{"type": kind, "id": f"toolu_{next(_NUMBERS)}", "name": "look", "input": {}}, *deltas]


def _question() -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": "What time is it?", **MARK}]}]
