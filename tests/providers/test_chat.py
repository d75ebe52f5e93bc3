"""What a Chat Completions answer becomes, however a backend cuts, orders, repeats or leaves out its parts."""

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, ask, begun, call_piece, chunk, events_of, sse, usage_chunk

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.events import (
    Annotated,
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
    Json,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    Usage,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.chat.provider import Chat

ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
LOOK = '{"at": "clock"}'


def said(*pieces: str, usage: Usage | None = None) -> list[ModelEvent]:
    """The events of an answer that is text and nothing else."""
    return [
        ItemStarted(begun("msg_1")),
        *[TextDelta("msg_1", piece) for piece in pieces],
        ItemDone(Message("assistant", (OutputText("".join(pieces)),), id="msg_1")),
        TurnEnded("stop", usage),
    ]


def thinking(events: list[ModelEvent]) -> list[str]:
    return [event.delta for event in events if isinstance(event, ReasoningDelta)]


def test_chat_is_a_provider() -> None:
    provider: Provider = Chat("http://localhost:8000/v1", name="mine")
    assert provider.name == "mine"


@pytest.mark.requirement("C40")
async def test_text_is_streamed_and_usage_behind_the_finish_is_counted(backend: Backend) -> None:
    backend.replies(
        sse(ROLE), sse(chunk({"content": "It is "})), sse(chunk({"content": "noon."}), STOP), sse(usage_chunk(9, 4)), DONE
    )
    assert await ask(backend) == said("It is ", "noon.", usage=Usage(9, 4))


async def test_usage_within_the_finish_chunk_is_counted(backend: Backend) -> None:
    counts = {
        "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": None}, "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    backend.replies(sse(chunk({"content": "noon"})), sse(chunk(finish="stop", usage=counts)), DONE)
    assert await ask(backend) == said("noon", usage=Usage(9, 4, cached_tokens=5, reasoning_tokens=3))


async def test_the_last_of_many_usages_counts(backend: Backend) -> None:
    usages = [{"prompt_tokens": 9, "completion_tokens": count} for count in (0, 1, 2)]
    chunks = [chunk({"content": word}, usage=usage) for word, usage in zip("xyz", usages, strict=True)]
    backend.replies(sse(*chunks, chunk(finish="stop", usage=None), chunk(usage={})), DONE)
    assert await ask(backend) == said("x", "y", "z", usage=Usage(9, 2))


async def test_reasoning_that_only_the_total_counts_is_output(backend: Backend) -> None:
    usage = {"prompt_tokens": 35.0, "completion_tokens": 12, "total_tokens": 109, "prompt_tokens_details": None}
    backend.replies(sse(chunk({"content": "noon"}, finish="stop", usage=usage)), DONE)
    assert (await ask(backend))[-1] == TurnEnded("stop", Usage(35, 74))


async def test_no_usage_is_no_usage(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "noon"}), STOP), DONE)
    assert await ask(backend) == said("noon")


@pytest.mark.requirement("C-T27")
async def test_null_and_empty_fields_say_nothing(backend: Backend) -> None:
    nothing = {
        "role": "assistant",
        "content": None,
        "reasoning_content": None,
        "refusal": None,
        "tool_calls": None,
        "function_call": None,
    }
    empty = {"content": "", "reasoning": "", "refusal": "", "tool_calls": [], "reasoning_details": [], "annotations": []}
    bare: Json = {"choices": [{"index": 0, "delta": None, "finish_reason": ""}], "usage": None, "error": None}
    backend.replies(sse(chunk(nothing), chunk(empty), bare, {"choices": []}, {}, STOP), DONE)
    with pytest.raises(BadOutput, match="without a word"):
        await ask(backend)


async def test_list_content_is_thought_and_said_part_by_part(backend: Backend) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, {"type": "text", "text": "m."}]}]
    both = [
        {"type": "thinking", "thinking": "Noon."},
        {"type": "text", "text": "It is"},
        {"type": "reference", "reference_ids": [1]},
    ]
    backend.replies(sse(chunk({"content": parts}), chunk({"content": both}), chunk({"content": [" noon"]}), STOP), DONE)
    assert await ask(backend) == [
        ItemStarted(Reasoning(id="rs_1", status="in_progress")),
        ReasoningDelta("rs_1", "Hm"),
        ReasoningDelta("rs_1", "m."),
        ReasoningDelta("rs_1", "Noon."),
        ItemDone(Reasoning(id="rs_1", content=(ReasoningText("Hmm.Noon."),))),
        ItemStarted(begun("msg_2")),
        TextDelta("msg_2", "It is"),
        TextDelta("msg_2", " noon"),
        ItemDone(Message("assistant", (OutputText("It is noon"),), id="msg_2")),
        TurnEnded("stop"),
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_comes_before_the_message_and_ends_when_it_begins(backend: Backend, field: str) -> None:
    backend.replies(sse(chunk({field: "Sun is "}), chunk({field: "high."}), chunk({field: None, "content": "Noon."}), STOP), DONE)
    assert await ask(backend) == [
        ItemStarted(Reasoning(id="rs_1", status="in_progress")),
        ReasoningDelta("rs_1", "Sun is "),
        ReasoningDelta("rs_1", "high."),
        ItemDone(Reasoning(id="rs_1", content=(ReasoningText("Sun is high."),))),
        ItemStarted(begun("msg_2")),
        TextDelta("msg_2", "Noon."),
        ItemDone(Message("assistant", (OutputText("Noon."),), id="msg_2")),
        TurnEnded("stop"),
    ]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["I will not talk in class.\n"] * 10, "I will not talk in class.\n" * 10),
        (["I will not talk.\n", "I will not talk.\n", "Promise."], "I will not talk.\nI will not talk.\nPromise."),
        (["#" * 16, "#" * 16, "\n"], "#" * 32 + "\n"),
        (["=", "====", "========", "\n"], "=" * 13 + "\n"),
        (["It is noon in Oslo.", "It is noon in Oslo.", ""], "It is noon in Oslo."),
        (["It is", "It is noon", ""], "It is noon"),
        (["It is", "It is noon", "", "It is noon."], "It is noon."),
    ],
)
async def test_words_are_left_out_only_where_all_of_them_come_again(backend: Backend, pieces: list[str], said: str) -> None:
    backend.replies(sse(*[chunk({"content": piece}) for piece in pieces], STOP), DONE)
    assert "".join([event.delta for event in await ask(backend) if isinstance(event, TextDelta)]) == said


async def test_words_come_before_the_call_that_follows_them(backend: Backend) -> None:
    made = chunk(call_piece(0, id="a", name="get_time", arguments="{}"))
    backend.replies(sse(chunk({"content": "I"}), chunk({"content": "I look."}), made, chunk(finish="tool_calls")), DONE)
    done = [event.item for event in await ask(backend) if isinstance(event, ItemDone)]
    assert [type(item) for item in done] == [Message, FunctionCall]


async def test_reasoning_details_count_only_where_there_is_no_plain_reasoning(backend: Backend) -> None:
    details = [
        {"type": "reasoning.text", "text": "high"},
        {"type": "reasoning.summary", "summary": "!"},
        {"type": "reasoning.encrypted"},
    ]
    twice = {"reasoning": "Sun", "reasoning_content": "Sun", "reasoning_details": [{"type": "reasoning.text", "text": "Sun"}]}
    backend.replies(sse(chunk(twice), chunk({"reasoning_details": details}), chunk({"content": "Noon"}), STOP), DONE)
    assert thinking(await ask(backend)) == ["Sun", "high", "!"]


async def test_refusal_is_a_part_of_its_own(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "Well. "}), chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP), DONE)
    assert await ask(backend) == [
        ItemStarted(begun("msg_1")),
        TextDelta("msg_1", "Well. "),
        RefusalDelta("msg_1", "I can", 1),
        RefusalDelta("msg_1", "not.", 1),
        ItemDone(Message("assistant", (OutputText("Well. "), Refusal("I cannot.")), id="msg_1")),
        TurnEnded("stop"),
    ]


async def test_citations_are_annotations_of_the_text(backend: Backend) -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "http://clock", "start_index": 0, "end_index": 4}}
    flat = {"type": "url_citation", "url": "http://clock", "start_index": 0, "end_index": 4}
    backend.replies(sse(chunk({"content": "noon"}), chunk({"annotations": [cited]}), STOP), DONE)
    assert await ask(backend) == [
        ItemStarted(begun("msg_1")),
        TextDelta("msg_1", "noon"),
        Annotated("msg_1", flat),
        ItemDone(Message("assistant", (OutputText("noon", annotations=(flat,)),), id="msg_1")),
        TurnEnded("stop"),
    ]


@pytest.mark.requirement("C40")
@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"), ("tool_calls", "stop"), ("function_call", "stop"), ("eos_token", "stop"),
        ("length", "length"), ("model_length", "length"), ("content_filter", "content_filter"),
    ],
)  # fmt: skip
async def test_finish_reasons_are_translated(backend: Backend, reason: str, finish: str) -> None:
    backend.replies(sse(chunk({"content": "noon"}), chunk(finish=reason)), DONE)
    events = await ask(backend)
    item = Message("assistant", (OutputText("noon"),), id="msg_1", status="completed" if finish == "stop" else "incomplete")
    assert [(end.finish, end.usage) for end in events if isinstance(end, TurnEnded)] == [(finish, None)]
    assert events[-2] == ItemDone(item)


async def test_reasoning_cut_off_at_the_limit_is_incomplete(backend: Backend) -> None:
    backend.replies(sse(chunk({"reasoning": "Let me"}), chunk(finish="length")), DONE)
    cut = Reasoning(id="rs_1", content=(ReasoningText("Let me"),), status="incomplete")
    assert (await ask(backend))[-2:] == [ItemDone(cut), TurnEnded("length")]


async def test_what_follows_the_finish_is_still_heard(backend: Backend) -> None:
    backend.replies(
        sse(chunk({"content": "no"}, finish="stop"), chunk({"content": "on"}), chunk(finish="stop"), usage_chunk(1, 2))
    )
    assert await ask(backend) == said("no", "on", usage=Usage(1, 2))


async def test_other_choices_are_ignored(backend: Backend) -> None:
    second = {"index": 1, "delta": {"content": "midnight"}, "finish_reason": "length"}
    chunks = [chunk({"content": "noon"}), {"choices": [second]}, STOP, {"choices": [second]}]
    backend.replies(sse(*chunks), DONE)
    assert await ask(backend) == said("noon")


async def test_a_stream_may_end_without_the_done_marker_and_without_its_last_blank_line(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "noon"})), sse(STOP).rstrip(b"\n"))
    assert await ask(backend) == said("noon")


@pytest.mark.parametrize("size", [100_000, 5_000_000])
async def test_a_very_long_line_is_one_delta(backend: Backend, size: int) -> None:
    long = "tick tock " * (size // 10)
    backend.replies(sse(chunk({"content": long}), STOP), DONE)
    assert await ask(backend) == said(long)


async def test_a_long_request_is_sent(backend: Backend) -> None:
    long = "tick tock " * 300_000
    backend.replies(sse(chunk({"content": "noon"}), STOP), DONE, expect=ASKED | {"messages": [{"role": "user", "content": long}]})
    assert await ask(backend, ModelRequest("resp_1", "clockwork", (user(long),))) == said("noon")


@pytest.mark.parametrize("mime", ["application/json", "text/event-stream", "text/plain"])
async def test_an_answer_in_one_piece_becomes_the_same_events(backend: Backend, mime: str) -> None:
    function = {"name": "look", "arguments": LOOK}
    message = {"role": "assistant", "content": "I look.", "reasoning": "Dark.", "tool_calls": [{"id": "a", "function": function}]}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    backend.replies(msgspec.json.encode(whole | usage_chunk(9, 4) | {"choices": whole["choices"]}), mime=mime)
    assert await ask(backend) == [
        ItemStarted(Reasoning(id="rs_1", status="in_progress")),
        ReasoningDelta("rs_1", "Dark."),
        ItemDone(Reasoning(id="rs_1", content=(ReasoningText("Dark."),))),
        ItemStarted(begun("msg_2")),
        TextDelta("msg_2", "I look."),
        ItemDone(Message("assistant", (OutputText("I look."),), id="msg_2")),
        ItemStarted(FunctionCall("a", "look", id="fc_3", status="in_progress")),
        ArgumentsDelta("fc_3", LOOK),
        ItemDone(FunctionCall("a", "look", LOOK, id="fc_3")),
        TurnEnded("stop", Usage(9, 4)),
    ]


async def test_an_answer_in_one_piece_needs_no_finish_reason(backend: Backend) -> None:
    backend.replies(b'{\n "choices": [ {"message": {"content": "noon"}} ]\n}', mime="application/json; charset=utf-8")
    assert await ask(backend) == said("noon")


async def test_a_stream_that_calls_itself_json_is_still_a_stream(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "noon"}), STOP), DONE, mime="application/json")
    assert await ask(backend) == said("noon")


@pytest.mark.parametrize("odd", [b'"no\\ud83don"', b'"no\xf0\x9fon"'])
async def test_half_a_character_costs_a_character_and_not_the_turn(backend: Backend, odd: bytes) -> None:
    backend.replies(b'data: {"choices": [{"logprobs": NaN, "delta": {"content": ' + odd + b"}}]}\n\n", sse(STOP), DONE)
    events = await ask(backend)
    assert isinstance(events[1], TextDelta)
    assert (events[1].delta[:2], events[1].delta[-2:]) == ("no", "on")


async def test_chunks_that_differ_in_their_words_alone_are_read_as_others(backend: Backend) -> None:
    """The reader knows them by what stands around the words. What only looks so is read in full."""
    pieces = ["It", " is", ' "noon"', "", ', "content": "', "\\ \u00e9\U0001f642\n", "{}]}}", "words", "words", " by now"]
    streams = [
        [chunk({"content": piece}, id="c") for piece in pieces],
        [chunk({"content": piece}, id=str(number)) for number, piece in enumerate(pieces)],
    ]
    for chunks in streams:
        backend.replies(sse(*chunks), sse(STOP), DONE)
        assert await ask(backend) == said(*[piece for piece in pieces if piece])
    for late in ({"refusal": "no"}, {"content": " late", "reasoning": "Hm."}):
        backend.replies(sse(*streams[0], chunk(late, id="c"), STOP), DONE)
        more = [type(event) for event in await ask(backend)][len(said(*pieces)) - 3 :]
        assert RefusalDelta in more or ReasoningDelta in more


async def test_half_a_character_waits_for_its_other_half_in_a_chunk_like_others(backend: Backend) -> None:
    def piece(words: bytes) -> bytes:
        return b'data: {"choices": [{"delta": {"content": "' + words + b'"}}]}\n\n'

    backend.replies(*map(piece, [b"no", b"on", b" \\ud83d", b"\\ude42", b"!"]), sse(STOP), DONE)
    assert "".join([event.delta for event in await ask(backend) if isinstance(event, TextDelta)]) == "noon \U0001f642!"


async def test_stream_options_are_dropped_for_good_when_the_backend_does_not_know_them(backend: Backend) -> None:
    plain = {key: value for key, value in ASKED.items() if key != "stream_options"}
    complaint = b'{"detail": [{"loc": ["body", "stream_options"], "msg": "extra fields not permitted", "type": "value_error"}]}'
    backend.replies(complaint, status=422, mime="application/json")
    for _ in range(2):
        backend.replies(sse(chunk({"content": "noon"}), STOP), DONE, expect=plain)
    chat = Chat(backend.url)
    assert [len(await events_of(chat)) for _ in range(2)] == [4, 4]
    await chat.close()


async def test_a_refused_field_that_the_caller_has_added_is_not_left_out(backend: Backend) -> None:
    backend.replies(b'{"error": {"message": "unknown field `stream_options`"}}', status=400)
    chat = Chat(backend.url)
    with pytest.raises(Refused):
        await events_of(chat, replace(QUESTION, extra={"stream_options": {"include_usage": True}}))
    await chat.close()
    assert len(backend.received) == 1


async def test_events_arrive_while_the_backend_is_still_speaking(backend: Backend) -> None:
    backend.replies(sse(ROLE, chunk({"content": "It is"})), ending="silence")
    chat = Chat(backend.url, new_id=counting())
    stream = chat.stream(ModelRequest("resp_1", "clockwork", (user("What time is it?"),)))
    with anyio.fail_after(PATIENCE):
        assert [await anext(stream), await anext(stream)] == said("It is")[:2]
        await stream.aclose()
    await chat.close()


async def test_closing_the_stream_early_closes_the_connection(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="silence")
    chat = Chat(backend.url)
    stream = chat.stream(ModelRequest("resp_1", "clockwork", (user("What time is it?"),)))
    with anyio.fail_after(PATIENCE):
        await anext(stream)
        assert not backend.gone.is_set()
        await stream.aclose()
        await backend.gone.wait()
    await chat.close()


async def test_cancelling_the_reader_closes_the_connection(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="silence")
    chat = Chat(backend.url)
    seen: list[ModelEvent] = []
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                async for event in chat.stream(ModelRequest("resp_1", "clockwork", (user("What time is it?"),))):
                    seen.append(event)
                    if isinstance(event, TextDelta):
                        tasks.cancel_scope.cancel()

            tasks.start_soon(read)
        await backend.gone.wait()
    assert [type(event) for event in seen] == [ItemStarted, TextDelta]
    await chat.close()


async def test_turns_share_a_connection(backend: Backend) -> None:
    chat = Chat(backend.url)
    for _ in range(3):
        backend.replies(sse(chunk({"content": "noon"}), STOP), DONE)
        await events_of(chat)
    await chat.close()
    assert len({request.connection for request in backend.received}) == 1


async def test_a_closed_provider_opens_again_when_it_is_used(backend: Backend) -> None:
    chat = Chat(backend.url)
    await chat.close()
    for _ in range(2):
        backend.replies(sse(chunk({"content": "noon"}), STOP), DONE)
        await events_of(chat)
        await chat.close()
    await chat.close()


@pytest.mark.parametrize(
    "listed",
    [
        b'{"object": "list", "data": [{"id": "a", "owned_by": "me", "created": 5}, {"id": "b", "created": null}]}',
        b'[{"id": "a", "owned_by": "me", "created": 5.0}, {"id": "b"}]',
    ],
)
async def test_models_are_listed(backend: Backend, listed: bytes) -> None:
    backend.replies(listed, expect=None, mime="application/json")
    chat = Chat(backend.url, api_key="sk-secret")
    assert [(model.id, model.owned_by, model.created) for model in await chat.models()] == [("a", "me", 5), ("b", "", 0)]
    await chat.close()
    assert [(request.method, request.target) for request in backend.received] == [("GET", "/v1/models")]
    assert backend.received[0].headers["Authorization"] == "Bearer sk-secret"
