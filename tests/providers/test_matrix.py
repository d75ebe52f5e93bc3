"""Every adapter against every nasty case: one suite over all wire formats, over real HTTP, by each vendor's own rules."""

import json
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise

import anyio
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import QUESTION
from tests.providers.dialects import Ability, Dialect, Line, Spoken, SpokenCall, Stop, Trouble, dialects
from tests.providers.dialects.server import Fake, answer, asked, calls, ended, items, reading, serving, text, told

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    ModelNotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import ArgumentsDelta, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    ToolDefinition,
    Unknown,
    Usage,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers import http_client as _http

NAMES = ("chat", "responses", "ollama", "gemini", "anthropic")
NOON = Spoken(text=("It is ", "noon."))
LOOK = SpokenCall("look", ('{"at": ', '"wall"', "}"), id="call_abc1")
RING = SpokenCall("ring", ("{", '"times": 2', "}"), id="call_abc2")
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = "data:application/pdf;base64,JVBERi0xLjQKJSVFT0YK"
PLACE: Json = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
TOOLS = (
    ToolDefinition("look", "Looks at a clock.", PLACE),
    ToolDefinition("ring", "Rings.", {"type": "object", "properties": {"times": {"type": "integer"}}}),
)


@pytest.fixture(scope="module", params=NAMES)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    # One by one: each brings its vendor's client along, and not every run of the tests needs them all.
    found: Dialect = import_module(f"tests.providers.dialects.{request.param}").DIALECT
    return found


def test_every_dialect_is_in_the_matrix() -> None:
    assert [dialect.name for dialect in dialects()] == list(NAMES)


def needs(dialect: Dialect, ability: Ability) -> None:
    if ability not in dialect.abilities:
        pytest.skip(f"{dialect.name} has no {ability}")


def said(*given: Item, **changes: object) -> ModelRequest:
    return replace(QUESTION, items=given, **changes)


def read(dialect: Dialect, pieces: Sequence[bytes]) -> list[ModelEvent]:
    """What the adapter's reader makes of a reply that arrives in these pieces."""
    reader = dialect.reader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return [*events, *reader.end()]


def cut(raw: bytes, places: Sequence[int]) -> list[bytes]:
    return [raw[a:b] for a, b in pairwise([0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)])]


# What a model says.


async def test_text_comes_in_its_pieces_and_is_counted(dialect: Dialect) -> None:
    events = await told(dialect, NOON)
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["It is ", "noon."]
    [message] = items(events)
    assert isinstance(message, Message)
    assert (message.text, message.role, message.status) == ("It is noon.", "assistant", "completed")
    assert ended(events) == TurnEnded("stop", Usage(12, 7))


async def test_an_answer_with_nothing_in_it_is_none(dialect: Dialect) -> None:
    with pytest.raises(BadOutput, match="without a word"):
        await told(dialect, Spoken())


async def test_a_call_has_its_name_an_id_and_its_arguments(dialect: Dialect) -> None:
    events = await told(dialect, Spoken(calls=(LOOK,)), said(user("Look."), tools=TOOLS))
    [call] = items(events)
    assert isinstance(call, FunctionCall)
    assert (call.name, json.loads(call.arguments), call.status) == ("look", {"at": "wall"}, "completed")
    assert call.call_id == LOOK.id if "call_ids" in dialect.abilities else call.call_id
    assert ended(events).finish == "stop"


async def test_arguments_stream_as_they_arrive(dialect: Dialect) -> None:
    needs(dialect, "argument_pieces")
    events = await told(dialect, Spoken(calls=(LOOK,)))
    assert [event.delta for event in events if isinstance(event, ArgumentsDelta)] == list(LOOK.arguments)


async def test_words_may_come_before_calls(dialect: Dialect) -> None:
    events = await told(dialect, Spoken(text=("I look.",), calls=(LOOK,)))
    assert [type(item) for item in items(events)] == [Message, FunctionCall]
    assert (text(events), calls(events)) == ("I look.", [("look", {"at": "wall"})])


async def test_two_parallel_calls_are_two_calls_with_ids_of_their_own(dialect: Dialect) -> None:
    events = await told(dialect, Spoken(calls=(LOOK, RING)))
    assert calls(events) == [("look", {"at": "wall"}), ("ring", {"times": 2})]
    assert len({item.call_id for item in items(events) if isinstance(item, FunctionCall)}) == 2


async def test_the_same_tool_may_be_called_twice_at_once(dialect: Dialect) -> None:
    again = SpokenCall("look", ('{"at": "tower"}',), id="call_abc2")
    events = await told(dialect, Spoken(calls=(LOOK, again)))
    assert calls(events) == [("look", {"at": "wall"}), ("look", {"at": "tower"})]


async def test_interleaved_pieces_of_parallel_calls_find_their_calls(dialect: Dialect) -> None:
    needs(dialect, "interleaved_calls")
    events = await told(dialect, Spoken(calls=(LOOK, RING), interleaved=True))
    assert calls(events) == [("look", {"at": "wall"}), ("ring", {"times": 2})]


@pytest.mark.parametrize("pieces", [(), ("",), ("{}",)])
async def test_empty_arguments_are_an_empty_object(dialect: Dialect, pieces: tuple[str, ...]) -> None:
    assert calls(await told(dialect, Spoken(calls=(SpokenCall("ring", pieces),)))) == [("ring", {})]


@pytest.mark.parametrize("written", ["[1, 2]", '"wall"', "7", '{"at": '])
async def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them(dialect: Dialect, written: str) -> None:
    needs(dialect, "argument_pieces")
    [call] = items(await told(dialect, Spoken(calls=(SpokenCall("look", (written,)),))))
    assert isinstance(call, FunctionCall)
    assert call.arguments == written


async def test_a_call_id_that_the_conversation_has_used_is_not_used_again(dialect: Dialect) -> None:
    earlier = (user("Look."), FunctionCall(LOOK.id, "look", '{"at":"sun"}', id="fc_0"), FunctionCallOutput(LOOK.id, "high"))
    [call] = items(await told(dialect, Spoken(calls=(LOOK,)), said(*earlier, tools=TOOLS)))
    assert isinstance(call, FunctionCall)
    assert call.call_id not in ("", LOOK.id)


async def test_thoughts_come_before_the_words(dialect: Dialect) -> None:
    needs(dialect, "thinking")
    events = await told(dialect, Spoken(think=("The sun ", "is high."), text=("Noon.",)))
    assert [type(item) for item in items(events)] == [Reasoning, Message]
    assert (reading(events).thoughts, text(events)) == ("The sun is high.", "Noon.")


async def test_a_refusal_is_no_ordinary_answer(dialect: Dialect) -> None:
    needs(dialect, "refusal")
    events = await told(dialect, Spoken(refusal="I will not."))
    refusals = [
        part.refusal for item in items(events) if isinstance(item, Message) for part in item.content if isinstance(part, Refusal)
    ]
    assert refusals == ["I will not."] or ended(events).finish == "content_filter"
    assert text(events) in ("", "I will not.")


async def test_a_safety_stop_keeps_what_was_said_and_says_so(dialect: Dialect) -> None:
    needs(dialect, "safety_stop")
    events = await told(dialect, Spoken(text=("It is ",), stop="safety"))
    assert (text(events), ended(events).finish) == ("It is ", "content_filter")


async def test_max_tokens_leave_the_last_item_incomplete(dialect: Dialect) -> None:
    events = await told(dialect, Spoken(text=("It is ", "no"), stop="length"))
    [message] = items(events)
    assert isinstance(message, Message)
    assert (message.text, message.status, ended(events).finish) == ("It is no", "incomplete", "length")


@pytest.mark.parametrize("usage", [Usage(100, 50, cached_tokens=64), Usage(100, 50, reasoning_tokens=20), Usage(1, 0), Usage()])
async def test_usage_is_counted_to_the_token(dialect: Dialect, usage: Usage) -> None:
    known = Usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=usage.cached_tokens if "cached_tokens" in dialect.abilities else 0,
        reasoning_tokens=usage.reasoning_tokens if "reasoning_tokens" in dialect.abilities else 0,
    )
    assert ended(await told(dialect, replace(NOON, usage=known))).usage in (known, None if known == Usage() else known)


# How bytes arrive.


async def test_surrogate_pairs_survive_as_characters_and_as_escapes(dialect: Dialect) -> None:
    words = "Zürich 🕛 \u2028 \x00 \\u0041 \U0010ffff"
    frames = dialect.frames(Spoken(text=(words,)))
    for pieces in (frames, [_escaped(frame) for frame in frames]):
        async with serving(dialect) as fake:
            fake.replies(*pieces)
            assert text(await answer(dialect, fake)) == words


async def test_half_a_surrogate_pair_costs_one_character_and_no_answer(dialect: Dialect) -> None:
    frames = dialect.frames(Spoken(text=("A\u2603B",)))
    async with serving(dialect) as fake:
        fake.replies(*[_escaped(frame).replace(b"\\u2603", b"\\ud83d") for frame in frames])
        assert re.fullmatch("A[?\ufffd]B", text(await answer(dialect, fake)))


async def test_split_utf8_is_put_together(dialect: Dialect) -> None:
    raw = b"".join(dialect.frames(Spoken(text=("Zürich 🕛",))))
    assert read(dialect, [bytes([byte]) for byte in raw]) == read(dialect, [raw])
    assert text(read(dialect, [raw])) == "Zürich 🕛"


async def test_an_answer_that_drips_byte_by_byte_is_read_to_its_end(dialect: Dialect) -> None:
    async with serving(dialect) as fake:
        fake.replies(*[bytes([byte]) for byte in b"".join(dialect.frames(NOON))])
        assert await answer(dialect, fake) == await told(dialect, NOON)


async def test_a_server_that_falls_silent_is_left_when_the_reader_leaves(dialect: Dialect) -> None:
    async with serving(dialect) as fake:
        fake.replies(*_up_to_words(dialect, "It is "), ending="silence")
        provider = dialect.provider(fake.url)
        stream = provider.stream(QUESTION)
        with anyio.fail_after(PATIENCE):
            while not isinstance(await anext(stream), TextDelta):
                pass
            await stream.aclose()
            await fake.gone.wait()
        await provider.close()


async def test_lines_of_a_hundred_kilobytes_are_lines(dialect: Dialect) -> None:
    words = "tick tock " * 10_000
    big = SpokenCall("look", (json.dumps({"at": words}),))
    events = await told(dialect, Spoken(text=(words,), calls=(big,)))
    assert text(events) == words
    assert calls(events) == [("look", {"at": words})]


@settings(max_examples=40)
@given(st.data())
def test_law_14_any_split_of_the_bytes_gives_the_same_events(dialect: Dialect, data: st.DataObject) -> None:
    raw = b"".join(dialect.frames(data.draw(_spoken(dialect))))
    places = data.draw(st.lists(st.integers(0, len(raw)), max_size=20))
    assert read(dialect, cut(raw, places)) == read(dialect, [raw])


@pytest.mark.parametrize("spoken", [NOON, Spoken(text=("I look.",), calls=(LOOK, RING))], ids=["text", "calls"])
def test_an_answer_cut_at_any_byte_is_unavailable_or_whole(dialect: Dialect, spoken: Spoken) -> None:
    raw = b"".join(dialect.frames(spoken))
    whole = read(dialect, [raw])
    outcomes = [type(_cut_off(dialect, raw[:length], whole)) for length in range(len(raw))]
    # Once the vendor has said that it was done it stays done.
    done = outcomes.index(type(None))
    assert outcomes == [Unavailable] * done + [type(None)] * (len(raw) - done)
    assert done > raw.index(spoken.text[-1].encode())


def _cut_off(dialect: Dialect, raw: bytes, whole: list[ModelEvent]) -> ProviderError | None:
    """How a reply ends that goes no further: what was told until then is the beginning of the whole."""
    reader, events, failed = dialect.reader(), list[ModelEvent](), None
    try:
        events += reader.feed(raw)
        events += reader.end()
    except ProviderError as error:
        failed = error
    if failed is None:
        assert events[:-1] == whole[:-1]
        assert ended(events).finish == ended(whole).finish
    else:
        assert events == whole[: len(events)]
    return failed


@pytest.mark.parametrize("rest", ["half a frame", "an error", "nonsense"])
async def test_nothing_that_follows_the_stop_reason_loses_the_answer(dialect: Dialect, rest: str) -> None:
    trail = {"half a frame": dialect.frames(NOON)[0][:20], "an error": dialect.failure_within(), "nonsense": b"data: {]\n\n{]\n"}
    async with serving(dialect) as fake:
        fake.replies(*_up_to_stop(dialect), trail[rest])
        events = await answer(dialect, fake)
    assert (text(events), ended(events).finish) == ("It is noon.", "stop")


async def test_signs_of_life_behind_the_stop_reason_do_not_hold_the_answer_up(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http, "LAST_SECONDS", 0.3)
    async with serving(dialect) as fake:
        fake.replies(*_up_to_stop(dialect), ending="pings")
        events = await answer(dialect, fake)
    assert (text(events), ended(events).finish) == ("It is noon.", "stop")


@pytest.mark.parametrize("count", [b"12.0", b'"12"', b"1.5e1", b"-3", b'"many"', b"null", b"[1]", b"true"])
async def test_usage_in_odd_numbers_costs_no_answer(dialect: Dialect, count: bytes) -> None:
    frames = dialect.frames(replace(NOON, usage=Usage(8765, 4321)))
    async with serving(dialect) as fake:
        fake.replies(*[frame.replace(b"8765", count).replace(b"4321", count) for frame in frames])
        events = await answer(dialect, fake)
    assert text(events) == "It is noon."
    if count in (b"12.0", b'"12"'):
        assert (ended(events).usage or Usage()).input_tokens == 12


async def test_a_line_that_breaks_between_or_within_frames_is_unavailable_or_was_over(dialect: Dialect) -> None:
    frames = dialect.frames(NOON)
    whole = await told(dialect, NOON)
    ends = [len(b"".join(frames[:count])) for count in range(len(frames))]
    raw = b"".join(frames)
    for length in sorted({*ends, *[end + 5 for end in ends], *[(a + b) // 2 for a, b in pairwise(ends)]}):
        async with serving(dialect) as fake:
            fake.replies(raw[:length], ending="abort")
            try:
                events = await answer(dialect, fake)
            except Unavailable:
                assert length < len(raw)
            else:
                assert events[:-1] == whole[:-1]


async def test_truncated_json_is_bad_output(dialect: Dialect) -> None:
    frames = dialect.frames(NOON)
    place = next(place for place, frame in enumerate(frames) if b"noon." in frame)
    head, brace, tail = frames[place].rpartition(b"}")
    assert brace
    async with serving(dialect) as fake:
        fake.replies(*frames[:place], head + tail, *frames[place + 1 :])
        with pytest.raises(BadOutput):
            await answer(dialect, fake)


# Errors.

ERRORS: dict[Trouble, type[ProviderError]] = {
    "rate_limited": RateLimited,
    "overloaded": Unavailable,
    "overflow": ContextOverflow,
    "unauthorized": Unauthorized,
    "not_found": ModelNotFound,
    "bad_request": Refused,
    "server_error": Unavailable,
}


@pytest.mark.parametrize("trouble", ERRORS)
async def test_an_error_before_the_stream_is_the_right_one(dialect: Dialect, trouble: Trouble) -> None:
    async with serving(dialect) as fake:
        fake.fails(dialect.failure(trouble))
        with pytest.raises(ProviderError) as caught:
            await answer(dialect, fake)
    assert type(caught.value) is ERRORS[trouble]
    assert "sk-" not in caught.value.message


async def test_retry_after_is_obeyed_and_not_made_up(dialect: Dialect) -> None:
    failure = dialect.failure("rate_limited")
    plain = {name: value for name, value in failure.headers.items() if name.lower() != "retry-after"}
    async with serving(dialect) as fake:
        fake.fails(replace(failure, headers={**plain, "Retry-After": "7"}))
        with pytest.raises(RateLimited) as caught:
            await answer(dialect, fake)
        assert caught.value.retry_after == 7.0
        fake.fails(replace(failure, headers=plain))
        with pytest.raises(RateLimited) as caught:
            await answer(dialect, fake)
        assert caught.value.retry_after is None or b"retryDelay" in failure.body


async def test_an_error_within_the_stream_comes_behind_what_was_said(dialect: Dialect) -> None:
    async with serving(dialect) as fake:
        fake.replies(*_up_to_words(dialect, "It is "), dialect.failure_within())
        said: list[str] = []
        with pytest.raises((Unavailable, RateLimited)):
            await _listen(dialect, fake.url, said)
    assert said == ["It is "]


async def _listen(dialect: Dialect, url: str, said: list[str]) -> None:
    provider = dialect.provider(url)
    try:
        with anyio.fail_after(PATIENCE):
            async for event in provider.stream(QUESTION):
                said += [event.delta] if isinstance(event, TextDelta) else []
    finally:
        await provider.close()


# What a vendor is asked.


async def test_a_plain_question_is_asked_plainly(dialect: Dialect) -> None:
    request = said(user("What time is it?"), instructions="Be brief.", max_output_tokens=99, temperature=0.5)
    question = await asked(dialect, request)
    assert question.lines == (Line("system", "Be brief."), Line("user", "What time is it?"))
    assert (question.model, question.max_output_tokens, question.temperature) == ("clockwork", 99, 0.5)


@pytest.mark.parametrize(
    "given", [(), (user(""),), (Message("user"),), (Reasoning(),)], ids=["nothing", "words", "parts", "thought"]
)
async def test_empty_input_is_asked_as_the_vendor_allows_or_not_at_all(dialect: Dialect, given: tuple[Item, ...]) -> None:
    async with serving(dialect) as fake:
        refused = await _refused(dialect, fake, said(*given))
        assert len(fake.bodies) == (1 if refused is None else 0)


async def test_a_conversation_is_told_in_its_order(dialect: Dialect) -> None:
    lines = (await asked(dialect, said(user("Hi."), assistant("Hello."), user("Time?"), assistant("Noon."), user("Sure?")))).lines
    spoken = [(line.kind, line.text) for line in lines]
    assert spoken == [("user", "Hi."), ("assistant", "Hello."), ("user", "Time?"), ("assistant", "Noon."), ("user", "Sure?")]


async def test_two_messages_of_one_speaker_both_arrive(dialect: Dialect) -> None:
    lines = (await asked(dialect, said(user("Hi."), user("Time?"), assistant("Well."), assistant("Noon."), user("Sure?")))).lines
    assert _told(lines, "user") == ["Hi.", "Time?", "Sure?"]
    assert "".join(_told(lines, "assistant")).replace("\n", "") == "Well.Noon."


async def test_a_conversation_may_begin_and_end_with_the_model(dialect: Dialect) -> None:
    lines = (await asked(dialect, said(assistant("Hello."), user("Time?"), assistant("It is")))).lines
    assert [line.text for line in lines if line.kind == "assistant"] == ["Hello.", "It is"]


async def test_what_the_system_says_in_the_middle_arrives(dialect: Dialect) -> None:
    late = Message("developer", (InputText("Now in French."),))
    lines = (await asked(dialect, said(user("Hi."), assistant("Hello."), late, user("Time?"), instructions="Be brief."))).lines
    everything = "\n".join([line.text for line in lines])
    assert "Be brief." in everything
    assert "Now in French." in everything


async def test_calls_and_their_outputs_are_told_in_pairs(dialect: Dialect) -> None:
    turns = _turn("Look.", ("call_1", "look", '{"at": "wall"}', "12:00"), ("call_2", "ring", '{"times":2}', "dong"))
    lines = (await asked(dialect, said(*turns, tools=TOOLS))).lines
    assert [(line.kind, line.name, line.text) for line in lines] == [
        ("user", "", "Look."),
        ("call", "look", '{"at":"wall"}'),
        ("call", "ring", '{"times":2}'),
        ("output", "look", "12:00"),
        ("output", "ring", "dong"),
    ]
    ids = [line.id for line in lines if line.kind == "call"]
    assert [line.id for line in lines if line.kind == "output"] == ids


async def test_a_call_without_result_is_answered_or_left_out(dialect: Dialect) -> None:
    pair = (FunctionCallOutput("call_1", "12:00"),)
    made = (FunctionCall("call_1", "look", '{"at":"wall"}', id="fc_1"), FunctionCall("call_2", "ring", "{}", id="fc_2"))
    lines = (await asked(dialect, said(user("Look."), *made, *pair, user("And?"), tools=TOOLS))).lines
    outputs = {line.name: line.text for line in lines if line.kind == "output"}
    assert outputs["look"] == "12:00"
    assert {line.name for line in lines if line.kind == "call"} == outputs.keys()
    assert lines[-1] == Line("user", "And?")


async def test_an_output_without_its_call_is_left_out(dialect: Dialect) -> None:
    lines = (await asked(dialect, said(user("Look."), FunctionCallOutput("call_9", "12:00"), user("And?"), tools=TOOLS))).lines
    assert [line.text for line in lines if line.kind == "user"] == ["Look.", "And?"]
    assert not [line for line in lines if line.kind == "output"]


@pytest.mark.parametrize("botched", ["", "not json", "[1]", '{"at": ', "null"])
async def test_botched_arguments_in_history_are_readable(dialect: Dialect, botched: str) -> None:
    lines = (await asked(dialect, said(*_turn("Look.", ("call_1", "look", botched, "what?")), tools=TOOLS))).lines
    [call] = [line for line in lines if line.kind == "call"]
    assert call.text == (json.dumps({"invalid_arguments": botched}, separators=(",", ":")) if botched else "{}")


async def test_an_error_result_says_so(dialect: Dialect) -> None:
    failed = FunctionCallOutput("call_1", "no clock here", is_error=True)
    request = said(user("Look."), FunctionCall("call_1", "look", "{}", id="fc_1"), failed, tools=TOOLS)
    [output] = [line for line in (await asked(dialect, request)).lines if line.kind == "output"]
    if "error_results" in dialect.abilities:
        assert output.is_error
    else:
        assert output.text == "Error: no clock here"


async def test_an_empty_result_is_a_result(dialect: Dialect) -> None:
    lines = (await asked(dialect, said(*_turn("Look.", ("call_1", "look", "{}", "")), tools=TOOLS))).lines
    assert [line.name for line in lines if line.kind == "output"] == ["look"]


@pytest.mark.parametrize("output", [(InputText("see"), InputImage(PIXEL)), (InputImage(PIXEL),)], ids=["words", "alone"])
async def test_an_image_in_a_tool_result_is_seen(dialect: Dialect, output: tuple[Part, ...]) -> None:
    shown = FunctionCallOutput("call_1", output)
    request = said(user("Look."), FunctionCall("call_1", "look", "{}", id="fc_1"), shown, tools=TOOLS)
    lines = (await asked(dialect, request)).lines
    kind = "output" if "result_images" in dialect.abilities else "user"
    assert [line.images for line in lines if line.kind == kind and line.images] == [(PIXEL,)]


async def test_images_and_files_are_sent_as_data(dialect: Dialect) -> None:
    parts = (InputText("What is this?"), InputImage(PIXEL), InputFile(filename="a.pdf", file_data=PDF))
    async with serving(dialect) as fake:
        refused = await _refused(dialect, fake, said(Message("user", parts)))
        if refused is None:
            assert [line.images for line in fake.asked[0].lines] == [(PIXEL,)]
            assert PDF.partition(",")[2].encode() in fake.bodies[0]
        else:
            assert "file" in refused


async def test_an_image_by_address_is_sent_or_refused_in_words(dialect: Dialect) -> None:
    address = "https://clocks.example/noon.png"
    async with serving(dialect) as fake:
        refused = await _refused(dialect, fake, said(Message("user", (InputText("And this?"), InputImage(address)))))
        if refused is None:
            assert [line.images for line in fake.asked[0].lines] == [(address,)]
        else:
            assert "image" in refused


async def _refused(dialect: Dialect, fake: Fake, request: ModelRequest) -> str | None:
    """Why the adapter does not send this at all, None if it does and has its answer."""
    try:
        fake.says(NOON)
        assert text(await answer(dialect, fake, request)) == "It is noon."
    except Refused as refusal:
        fake.withdraw()
        return refusal.message if not fake.bodies else None
    return None


FOREIGN = (
    user("Look.", id="0193-not-an-id-of-ours-and-much-longer-than-sixty-four-characters-would-ever-be"),
    Reasoning("rs_x", content=(ReasoningText("Where is it?"),), encrypted_content="mainspring.elsewhere.secret-seal"),
    Reasoning("thought-1", content=(ReasoningText("Unsealed."),)),
    Message("assistant", (OutputText("I look."), Refusal("But not long.")), id="chatcmpl-99"),
    FunctionCall("functions.look:0", "look", '{"at":"wall"}', id="chatcmpl-tool-1"),
    FunctionCall("toolu_01" + "x" * 80, "ring", "{}", id=""),
    FunctionCallOutput("functions.look:0", "12:00", id="out"),
    FunctionCallOutput("toolu_01" + "x" * 80, "dong"),
    FunctionCall("functions.look:0", "look", '{"at":"sun"}', id="chatcmpl-tool-1"),
    FunctionCallOutput("functions.look:0", "high"),
    Unknown({"type": "elsewhere:mood", "id": "mood_1", "mood": "calm"}),
    user("And?"),
)


async def test_history_handed_over_from_another_provider_is_told_without_its_secrets(dialect: Dialect) -> None:
    given = FOREIGN if dialect.name != "responses" else tuple([item for item in FOREIGN if not isinstance(item, Unknown)])
    async with serving(dialect) as fake:
        fake.says(NOON)
        await answer(dialect, fake, said(*given, tools=TOOLS))
        lines = [line for line in fake.asked[0].lines if line.kind != "thought"]
        assert b"secret-seal" not in fake.bodies[0]
    assert [(line.kind, line.name) for line in lines if line.kind in ("call", "output")] == [
        ("call", "look"),
        ("call", "ring"),
        ("output", "look"),
        ("output", "ring"),
        ("call", "look"),
        ("output", "look"),
    ]
    assert [line.text for line in lines if line.kind == "output"] == ["12:00", "dong", "high"]
    assert "I look." in "".join(_told(lines, "assistant"))
    assert _told(lines, "user") == ["Look.", "And?"]


async def test_thoughts_are_given_back_with_their_seal(dialect: Dialect) -> None:
    needs(dialect, "signatures")
    seal = "c2VhbGVkLXRob3VnaHQ="
    thinking = Spoken(think=("The sun is high.",), seal=seal, calls=(LOOK,))
    async with serving(dialect) as fake:
        fake.says(thinking)
        first = items(await answer(dialect, fake, said(user("Look."), tools=TOOLS)))
        [call] = [item for item in first if isinstance(item, FunctionCall)]
        fake.says(NOON)
        await answer(dialect, fake, said(user("Look."), *first, FunctionCallOutput(call.call_id, "12:00"), tools=TOOLS))
        assert seal.encode() in fake.bodies[1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice("required"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice(name="ring"), "ring"),
    ],
)
async def test_tool_choice_is_told(dialect: Dialect, choice: ToolChoice, expected: str) -> None:
    question = await asked(dialect, said(user("Look."), tools=TOOLS, tool_choice=choice))
    assert question.tool_choice == expected
    if expected != "none":
        assert question.tools == ("look", "ring")


async def test_without_parallel_calls_the_vendor_is_told_so(dialect: Dialect) -> None:
    needs(dialect, "parallel_switch")
    async with serving(dialect) as fake:
        for parallel in (True, False):
            fake.says(NOON)
            await answer(dialect, fake, said(user("Look."), tools=TOOLS, parallel_tool_calls=parallel))
        assert fake.bodies[0] != fake.bodies[1]
        assert b"parallel" in fake.bodies[1]


async def test_structured_output_is_asked_for_with_its_schema(dialect: Dialect) -> None:
    needs(dialect, "structured_output")
    form = {"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}}
    assert (await asked(dialect, said(user("Where?"), text=form))).schema == PLACE


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
async def test_reasoning_effort_is_asked_for_as_the_vendor_allows(dialect: Dialect, effort: str) -> None:
    async with serving(dialect) as fake:
        for reasoning in (None, {"effort": effort}):
            fake.says(NOON)
            await answer(dialect, fake, said(user("Think."), reasoning=reasoning))
        assert fake.asked[0].lines == fake.asked[1].lines == (Line("user", "Think."),)
        assert fake.bodies[0] != fake.bodies[1]


async def test_half_a_surrogate_pair_in_a_question_is_refused_before_it_is_sent(dialect: Dialect) -> None:
    async with serving(dialect) as fake:
        with pytest.raises(Refused):
            await answer(dialect, fake, said(user("A\ud83dB")))
        assert not fake.bodies


# The vendor's own client.


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
async def test_the_vendors_own_client_reads_the_same(dialect: Dialect, data: st.DataObject) -> None:
    spoken = data.draw(_spoken(dialect))
    assume(spoken.text or spoken.calls or spoken.stop != "stop")  # an answer with nothing in it is none
    async with serving(dialect, judges=False) as fake:
        fake.says(spoken)
        ours = reading(await answer(dialect, fake))
        fake.says(spoken)
        with anyio.fail_after(PATIENCE):
            theirs = await dialect.sdk(fake.url, QUESTION)
    assert ours == theirs
    assert ours.text == "".join(spoken.text)


def _spoken(dialect: Dialect) -> st.SearchStrategy[Spoken]:
    """Answers that this vendor can give."""
    words = st.lists(st.text(min_size=1, max_size=8), max_size=4).map(tuple)
    stops: list[Stop] = ["stop", "length", *(["safety"] if "safety_stop" in dialect.abilities else [])]  # type: ignore[list-item]
    counts = st.integers(0, 10_000)

    def usage(input: int, output: int, cached: int, thought: int) -> Usage:
        return Usage(
            input + 1,
            output + 1,
            cached_tokens=min(cached, input) if "cached_tokens" in dialect.abilities else 0,
            reasoning_tokens=min(thought, output) if "reasoning_tokens" in dialect.abilities else 0,
        )

    def spoken(
        think: tuple[str, ...], text: tuple[str, ...], made: list[SpokenCall], stop: Stop, used: Usage, woven: bool
    ) -> Spoken:
        return Spoken(
            think=think if "thinking" in dialect.abilities else (),
            # Blanks before a call are no message to us; a vendor's client does not mind.
            text=("x", *text) if text else (),
            calls=tuple([replace(call, id=f"call_{number}") for number, call in enumerate(made)]),
            interleaved=woven and "interleaved_calls" in dialect.abilities,
            stop="stop" if made else stop,
            usage=used,
        )

    used = st.builds(usage, counts, counts, counts, counts)
    return st.builds(spoken, words, words, st.lists(_calls(), max_size=3), st.sampled_from(stops), used, st.booleans())


def _calls() -> st.SearchStrategy[SpokenCall]:
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    arguments = st.dictionaries(st.text(max_size=4), values, max_size=3).map(json.dumps)
    pieces = st.tuples(arguments, st.lists(st.integers(0, 200), max_size=3)).map(lambda made: _pieces(*made))
    return st.builds(SpokenCall, st.sampled_from(["look", "ring", "look_up-2"]), pieces)


def _pieces(text: str, places: list[int]) -> tuple[str, ...]:
    return tuple(
        [text[a:b] for a, b in pairwise([0, *sorted([place % (len(text) + 1) for place in places]), len(text)]) if a < b]
    )


def _turn(question: str, *made: tuple[str, str, str, str]) -> Iterator[Item]:
    """A question, the calls it led to, and their outputs."""
    yield user(question)
    for id, name, arguments, _ in made:
        yield FunctionCall(id, name, arguments, id=f"fc_{id}")
    for id, _, _, output in made:
        yield FunctionCallOutput(id, output)


def _told(lines: Sequence[Line], kind: str) -> list[str]:
    """What somebody says, whether the vendor wants it in one message or in several."""
    return [words for line in lines if line.kind == kind for words in re.split("\n+|(?<=[.?])(?=[A-Z])", line.text)]


def _up_to_words(dialect: Dialect, words: str) -> list[bytes]:
    """The frames of `NOON` up to the one that says these words."""
    frames = dialect.frames(NOON)
    last = next(place for place, frame in enumerate(frames) if words.encode() in frame)
    return frames[: last + 1]


def _up_to_stop(dialect: Dialect) -> list[bytes]:
    """The frames of `NOON` up to the one by which the answer is complete."""
    frames = dialect.frames(NOON)
    whole = read(dialect, frames)
    for count in range(1, len(frames) + 1):
        if _cut_off(dialect, b"".join(frames[:count]), whole) is None:
            return frames[:count]
    raise AssertionError(f"{dialect.name} never ends")


def _escaped(frame: bytes) -> bytes:
    """The same JSON in ASCII: what is beyond it stands in strings only."""
    return "".join([char if char.isascii() else json.dumps(char)[1:-1] for char in frame.decode()]).encode()
