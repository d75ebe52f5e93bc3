"""The scripted model: says what it is told, complains about what it is asked, and reads scripts from files."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from inline_snapshot import snapshot

from mainspring.core.errors import BadOutput, InvalidRequest, MainspringError, Malformed, ProviderError, RateLimited, Unavailable
from mainspring.core.events import (
    ArgumentsDelta,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunStarted,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from mainspring.core.history import History
from mainspring.core.ids import counting
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    Unknown,
    Usage,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run, fold, open_run
from mainspring.core.spec import RunSpec
from mainspring.ports import Provider
from mainspring.providers.script import Expectation
from mainspring.providers.scripted import (
    Call,
    Fault,
    Scripted,
    ScriptError,
    Turn,
    call,
    calls,
    cut,
    empty,
    fail,
    malformed,
    prompt,
    raw,
    refuse,
    say,
    stall,
    think,
    turn,
)

USED = Usage(3, 2)


def asks(*items: Item | str, turn: int = 1, run: str = "resp_1", instructions: str | None = None) -> ModelRequest:
    said = tuple([user(item) if isinstance(item, str) else item for item in items])
    return ModelRequest(run_id=run, model="scripted", items=said, turn=turn, instructions=instructions)


async def answer(script: Provider, request: ModelRequest) -> list[ModelEvent]:
    async with aclosing(script.stream(request)) as events:
        return [event async for event in events]


async def words_of(script: Provider, request: ModelRequest) -> str:
    return "".join([event.delta for event in await answer(script, request) if isinstance(event, TextDelta)])


def folded(events: list[ModelEvent]) -> Run:
    """The run that such a turn makes; raises `Malformed` if the turn is not sound."""
    spec = RunSpec("resp_1", "scripted", (user("hi"),))
    run = open_run(Recorded(0, 0.0, RunStarted(spec)), History())
    for event in (TurnStarted(), *events):
        run = fold(run, Recorded(run.seq, 0.0, event))
    return run


async def test_text_is_streamed_character_by_character() -> None:
    script = Scripted(say("Hey", usage=USED), new_id=counting())
    assert await answer(script, asks("hi")) == [
        ItemStarted(Message("assistant", id="msg_1", status="in_progress")),
        TextDelta("msg_1", "H"),
        TextDelta("msg_1", "e"),
        TextDelta("msg_1", "y"),
        ItemDone(Message("assistant", (OutputText("Hey"),), id="msg_1")),
        TurnEnded("stop", USED),
    ]


async def test_a_call_is_streamed_with_its_arguments_as_json() -> None:
    script = Scripted(calls(call("weather", city="Paris", days=2), usage=USED), new_id=counting(), chunk=0)
    started = FunctionCall("call_1", "weather", id="fc_2", status="in_progress")
    text = '{"city":"Paris","days":2}'
    assert await answer(script, asks("hi")) == [
        ItemStarted(started),
        ArgumentsDelta("fc_2", text),
        ItemDone(FunctionCall("call_1", "weather", text, id="fc_2")),
        TurnEnded("stop", USED),
    ]


async def test_a_turn_thinks_then_speaks_then_calls() -> None:
    script = Scripted(turn(think="Hm.", say="Wait.", calls=[call("a"), call("b", name="x")]), chunk=0, new_id=counting())
    run = folded(await answer(script, asks("hi")))
    assert run.output == (
        Reasoning("rs_1", content=(ReasoningText("Hm."),)),
        Message("assistant", (OutputText("Wait."),), id="msg_2"),
        FunctionCall("call_3", "a", "{}", id="fc_4"),
        FunctionCall("call_5", "b", '{"name":"x"}', id="fc_6"),
    )
    assert [open_call.item.name for open_call in run.open_calls] == ["a", "b"]


async def test_thinking_and_refusing_have_deltas_of_their_own() -> None:
    script = Scripted(turn(think="Hm", refuse="No"), chunk=1, new_id=counting())
    events = await answer(script, asks("hi"))
    assert [event for event in events if isinstance(event, ReasoningDelta | RefusalDelta)] == [
        ReasoningDelta("rs_1", "H"),
        ReasoningDelta("rs_1", "m"),
        RefusalDelta("msg_2", "N"),
        RefusalDelta("msg_2", "o"),
    ]
    assert folded(events).output[1] == Message("assistant", (Refusal("No"),), id="msg_2")


async def test_a_message_may_speak_and_then_refuse() -> None:
    events = await answer(Scripted(turn(say="Well.", refuse="No."), chunk=0), asks("hi"))
    assert [event.index for event in events if isinstance(event, TextDelta | RefusalDelta)] == [0, 1]
    (message,) = folded(events).output
    assert isinstance(message, Message)
    assert message.content == (OutputText("Well."), Refusal("No."))


@pytest.mark.parametrize(("chunk", "pieces"), [(1, list("Hello")), (2, ["He", "ll", "o"]), (0, ["Hello"]), (99, ["Hello"])])
async def test_chunk_is_the_number_of_characters_per_delta(chunk: int, pieces: list[str]) -> None:
    events = await answer(Scripted(say("Hello"), chunk=chunk), asks("hi"))
    assert [event.delta for event in events if isinstance(event, TextDelta)] == pieces


@pytest.mark.parametrize(
    "played",
    [
        say("Hi"), say(""), think("Hm."), refuse("No."), call("a", x=1), calls(call("a"), call("b")), empty(),
        turn(think="Hm.", say="x", calls=[call("a", "{not json")]), say("Hi", finish="length"), calls(call("a"), finish="length"),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("chunk", [0, 1, 3])
async def test_every_turn_is_sound_however_it_is_chunked(played: Turn | Call, chunk: int) -> None:
    assert not folded(await answer(Scripted(played, chunk=chunk), asks("hi"))).in_turn


async def test_an_empty_turn_has_only_an_end() -> None:
    assert await answer(Scripted(empty(usage=USED)), asks("hi")) == [TurnEnded("stop", USED)]


async def test_arguments_given_as_text_are_sent_as_they_are() -> None:
    (made,) = folded(await answer(Scripted(call("weather", '{"city": ')), asks("hi"))).output
    assert isinstance(made, FunctionCall)
    assert made.arguments == '{"city": '


async def test_what_is_cut_off_at_the_length_limit_is_incomplete() -> None:
    run = folded(await answer(Scripted(turn(say="It is", calls=[call("a")], finish="length")), asks("hi")))
    assert [getattr(item, "status", None) for item in run.output] == ["completed", "incomplete"]
    assert (run.finish, run.open_calls) == ("length", ())


async def test_usage_is_estimated_in_words_unless_given() -> None:
    script = Scripted(turn(think="let me see", say="two words", calls=[call("a")]), say("x", usage=USED), empty())
    prompt_words = len(["[instructions]", "Be", "kind.", "[user]", "how", "are", "you"])
    usages = [(await answer(script, asks("how are you", instructions="Be kind.")))[-1] for _ in range(3)]
    assert usages == [
        TurnEnded("stop", Usage(prompt_words, 7, reasoning_tokens=3)),
        TurnEnded("stop", USED),
        TurnEnded("stop", Usage(prompt_words, 1)),
    ]


async def test_turns_are_played_in_order_whichever_run_asks() -> None:
    with Scripted(say("one"), say("two"), say("three")) as script:
        assert await words_of(script, asks("a", run="resp_a")) == "one"
        assert await words_of(script, asks("b", run="resp_b")) == "two"
        assert await words_of(script, asks("a", run="resp_a", turn=2)) == "three"
    assert [request.run_id for request in script.requests] == ["resp_a", "resp_b", "resp_a"]


async def test_a_fresh_script_plays_on_where_a_resumed_run_is() -> None:
    with Scripted(call("a"), say("two"), say("three")) as script:
        assert await words_of(script, asks("hi", turn=2)) == "two"
        assert await words_of(script, asks("hi", turn=3)) == "three"


async def test_asking_beyond_the_script_names_its_length_and_the_question() -> None:
    script = Scripted(say("one"))
    await answer(script, asks("first"))
    with pytest.raises(ScriptError) as caught:
        await answer(script, asks("first", assistant("one"), "and now?", turn=2, run="resp_9"))
    assert str(caught.value) == snapshot(
        "the script has 1 turns; turn 2 was asked for, as turn 2 of run resp_9; last input: [user] and now?"
    )


async def test_a_repeating_script_starts_over() -> None:
    with Scripted(say("tick"), say("tock"), repeat=True) as script:
        assert [await words_of(script, asks("?")) for _ in range(5)] == ["tick", "tock", "tick", "tock", "tick"]


async def test_a_repeating_script_takes_a_run_up_in_any_round() -> None:
    script = Scripted(say("tick"), say("tock"), repeat=True)
    assert await words_of(script, asks("?", turn=6)) == "tock"


async def test_a_turn_with_when_answers_its_question_in_any_order_any_number_of_times() -> None:
    with Scripted(say("A joke.", when="joke"), say("plain"), say("A poem.", when="poem")) as script:
        said = [await words_of(script, asks(text)) for text in ("a poem please", "a joke!", "x", "a poem again")]
    assert said == ["A poem.", "A joke.", "plain", "A poem."]


async def test_when_looks_at_the_last_user_text_only() -> None:
    script = Scripted(say("A joke.", when="joke"), say("plain"))
    history = [user("a joke"), assistant("A joke."), user("thanks"), assistant("about that joke")]
    assert await words_of(script, asks(*history)) == "plain"


async def test_a_request_without_any_user_text_is_for_plain_turns() -> None:
    assert await words_of(Scripted(say("A joke.", when="joke"), say("plain")), asks(instructions="Tell a joke.")) == "plain"


async def test_turns_that_share_a_when_are_a_conversation_for_each_run() -> None:
    script = Scripted(calls(call("weather"), when="weather"), say("Sunny.", when="weather"))
    asked = user("the weather?")
    later = [asked, FunctionCall("call_1", "weather"), FunctionCallOutput("call_1", "sun")]
    with script:
        for run in ("resp_a", "resp_b"):
            assert any(isinstance(event, ArgumentsDelta) for event in await answer(script, asks(asked, run=run)))
        for run in ("resp_a", "resp_b", "resp_b"):
            assert await words_of(script, asks(*later, run=run, turn=2)) == "Sunny."


async def test_a_fresh_script_plays_a_conversation_on_where_a_resumed_run_is() -> None:
    with Scripted(calls(call("weather"), when="weather"), say("Sunny.", when="weather")) as script:
        assert await words_of(script, asks("the weather?", turn=2)) == "Sunny."


async def test_plain_turns_begin_with_the_first_after_a_conversation_began_the_run() -> None:
    script = Scripted(say("Sunny.", when="weather"), say("Yes, sure."))
    assert await words_of(script, asks("the weather?")) == "Sunny."
    assert await words_of(script, asks("are you sure?", turn=2)) == "Yes, sure."


async def test_a_script_of_whens_complains_about_what_none_of_them_fits() -> None:
    with pytest.raises(ScriptError, match=r"has 0 turns; .* no `when` fits either; last input: \[user\] hello"):
        await answer(Scripted(say("A joke.", when="joke")), asks("hello"))


def is_second_turn(request: ModelRequest) -> bool:
    return request.turn == 2


def has_a_poem(request: ModelRequest) -> None:
    assert request.items[9] == user("poem")


@pytest.mark.parametrize(
    "expect",
    [
        "blue",
        "[instructions] Be kind",
        "[output] red",
        re.compile(r"^\[call paint\] \{.*blue", re.MULTILINE),
        lambda request: request.turn == 1,
        lambda request: None,
    ],
)
async def test_a_turn_plays_when_the_prompt_is_what_it_expects(expect: Expectation) -> None:
    said = [user("paint"), FunctionCall("call_1", "paint", '{"color":"blue"}'), FunctionCallOutput("call_1", "red")]
    with Scripted(say("ok", expect=expect)) as script:
        assert await words_of(script, asks(*said, instructions="Be kind.")) == "ok"


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ("green", "turn 2 (say 'ok') expects 'green'; the prompt was:\n[user] paint it blue"),
        (re.compile("gr[ae]y"), "turn 2 (say 'ok') expects a match of 'gr[ae]y'; the prompt was:\n[user] paint it blue"),
        (is_second_turn, "turn 2 (say 'ok') expects `is_second_turn` to hold; the prompt was:\n[user] paint it blue"),
        (
            has_a_poem,
            "turn 2 (say 'ok') expects `has_a_poem` to hold, but it raised IndexError: tuple index out of range; "
            "the prompt was:\n[user] paint it blue",
        ),
    ],
)
async def test_an_unexpected_prompt_names_the_turn_what_it_expects_and_what_came(expect: Expectation, told: str) -> None:
    script = Scripted(say("first"), say("ok", expect=expect))
    await answer(script, asks("hi"))
    with pytest.raises(ScriptError) as caught:
        await answer(script, asks("paint it blue"))
    assert str(caught.value) == told


async def test_a_complaint_is_no_model_failure_and_is_raised_again_at_the_end() -> None:
    script = Scripted(say("ok", expect="green"))
    with pytest.raises(ScriptError) as first:
        await answer(script, asks("blue"))
    assert isinstance(first.value, AssertionError)
    assert not isinstance(first.value, MainspringError)
    with pytest.raises(ScriptError, match="expects 'green'"), script:
        pass


async def test_a_test_that_fails_by_itself_is_told_of_the_complaint() -> None:
    script = Scripted()
    with pytest.raises(ScriptError):
        await answer(script, asks("hi"))
    with pytest.raises(AssertionError, match="run failed") as caught, script:
        raise AssertionError("run failed")
    assert caught.value.__notes__ == [
        "the script had complained: the script has 0 turns; turn 1 was asked for, as turn 1 of run resp_1; last input: [user] hi"
    ]


async def test_a_script_that_is_not_done_names_the_turns_nobody_asked_for() -> None:
    script = Scripted(
        say("one"), call("weather"), fail(Unavailable("down")), stall(), think("hm"), empty(), raw([]), refuse("no", when="x")
    )
    await answer(script, asks("hi"))
    with pytest.raises(ScriptError) as caught:
        script.assert_done()
    assert str(caught.value) == snapshot(
        "the script is not done after 1 requests; never asked for: turn 2 (call weather), turn 3 (fail provider_unavailable), "
        "turn 4 (stall), turn 5 (think 'hm'), turn 6 (empty), turn 7 (raw events), turn 8 (say 'no')"
    )


async def test_a_failure_is_raised_each_time_as_an_error_of_its_own() -> None:
    given = RateLimited("slow down", retry_after=2.5)
    script = Scripted(fail(given), repeat=True)
    raised = []
    for _ in range(2):
        with pytest.raises(RateLimited, match="slow down") as caught:
            await answer(script, asks("hi"))
        assert caught.value.retry_after == 2.5
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert given.__traceback__ is None


async def test_a_failure_may_be_given_by_its_code() -> None:
    with pytest.raises(BadOutput, match="the script fails with provider_bad_output"):
        await answer(Scripted(fail("provider_bad_output")), asks("hi"))


def test_a_code_that_no_provider_uses_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no provider error has the code `rate_limit`; did you mean `rate_limit_exceeded`\?"):
        fail("rate_limit")


async def test_a_turn_may_fail_after_it_has_spoken() -> None:
    events: list[ModelEvent] = []
    with pytest.raises(Unavailable):
        await collect(Scripted(turn(say="Hi", fail=Unavailable("down"))), events)
    assert [type(event) for event in events] == [ItemStarted, TextDelta, TextDelta, ItemDone]


async def collect(script: Scripted, events: list[ModelEvent]) -> None:
    async with aclosing(script.stream(asks("hi"))) as stream:
        async for event in stream:
            events.append(event)


@pytest.mark.parametrize(("after", "said"), [(0, ""), (1, "H"), (4, "Hell"), (5, "Hello"), (50, "Hello")])
async def test_a_cut_turn_breaks_off_after_so_many_deltas(after: int, said: str) -> None:
    events: list[ModelEvent] = []
    with pytest.raises(Unavailable, match=f"after {len(said)} deltas"):
        await collect(Scripted(cut(say("Hello"), after=after)), events)
    assert "".join([event.delta for event in events if isinstance(event, TextDelta)]) == said
    assert (ItemStarted in [type(event) for event in events]) is (after > 0)
    assert TurnEnded not in [type(event) for event in events]


async def test_a_cut_turn_may_say_how_it_fails() -> None:
    with pytest.raises(BadOutput, match="garbled"):
        await answer(Scripted(cut(turn(say="Hello", fail=BadOutput("garbled")), after=2)), asks("hi"))


@pytest.mark.parametrize(("stalled", "heard"), [(stall(), 0), (cut(turn(say="Hello", stall=True), after=2), 3)])
async def test_a_stalled_turn_never_ends_until_it_is_cancelled(stalled: Turn, heard: int) -> None:
    events: list[ModelEvent] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect, Scripted(stalled), events)
        for _ in range(20):
            await checkpoint()
        assert len(events) == heard
        tasks.cancel_scope.cancel()


async def test_a_turn_lets_nobody_else_run_unless_it_pauses() -> None:
    assert await interleaved(Scripted(say("abc"), chunk=1)) == ["a", "b", "c"]
    assert await interleaved(Scripted(say("abc", pause=0), chunk=1)) == ["-", "a", "-", "b", "-", "c"]
    assert await interleaved(Scripted(say("abc"), chunk=1, pause=0)) == ["-", "a", "-", "b", "-", "c"]


async def interleaved(script: Scripted) -> list[str]:
    """The deltas of a turn among the steps of another task."""
    order: list[str] = []

    async def step() -> None:
        while True:
            order.append("-")
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(step)
        async with aclosing(script.stream(asks("hi"))) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    order.append(event.delta)
        tasks.cancel_scope.cancel()
        steps = len(order)
    return order[:steps]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("unknown_item", "no item `msg_unknown` is being said"),
        ("changed_text", "does not say what its deltas said"),
        ("changed_kind", "began as Message and ended as Reasoning"),
        ("same_id", "used twice in a turn"),
        ("two_ends", "a turn ended that never began"),
    ],
)
async def test_a_malformed_turn_cannot_be_folded(fault: Fault, told: str) -> None:
    events = await answer(Scripted(malformed(fault)), asks("hi"))
    with pytest.raises(Malformed, match=told):
        folded(events)


async def test_a_malformed_turn_may_lack_its_end_or_hold_what_is_no_event() -> None:
    script = Scripted(malformed("no_end"), malformed("not_an_event"))
    assert folded(await answer(script, asks("hi"))).in_turn
    assert not isinstance((await answer(script, asks("hi")))[-1], ModelEvent)


async def test_raw_events_are_sent_exactly_as_given() -> None:
    events = [TextDelta("msg_1", "x"), TurnEnded(), "what?"]
    assert await answer(Scripted(raw(events)), asks("hi")) == events


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: turn(fail=Unavailable("x"), stall=True), "fail or stall, not both"),
        (lambda: Turn(say="x", events=()), "can say nothing else"),
        (lambda: cut(say("x"), after=-1), "cannot be negative"),
        (lambda: say("x", pause=-1), "cannot be negative"),
        (lambda: Scripted(chunk=-1), "cannot be negative"),
    ],
)
def test_a_turn_that_contradicts_itself_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_the_prompt_has_a_line_for_each_item() -> None:
    request = asks(
        Message("user", (InputImage("http://x/y.png"),)),
        Reasoning("rs_1", content=(ReasoningText("Hm."),)),
        FunctionCall("call_1", "look", '{"at":1}'),
        FunctionCallOutput("call_1", "a cat"),
        assistant("A cat."),
        Unknown({"type": "novelty", "x": 1}),
        instructions="Be brief.",
    )
    assert prompt(request) == snapshot("""\
[instructions] Be brief.
[user] {"type":"input_image","image_url":"http://x/y.png","detail":"auto"}
[reasoning] Hm.
[call look] {"at":1}
[output] a cat
[assistant] A cat.
[other] {"type":"novelty","x":1}\
""")


async def test_it_lists_one_model_and_closes() -> None:
    script: Provider = Scripted()
    assert [(model.id, model.owned_by) for model in await script.models()] == [("scripted", "mainspring")]
    await script.close()


FULL = {
    "repeat": True,
    "chunk": 2,
    "pause": 0,
    "turns": [
        {
            "think": "Hm.",
            "say": "Well.",
            "calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": "{"}, {"name": "c"}],
        },
        {"refuse": "No.", "finish": "content_filter", "usage": {"input_tokens": 3, "output_tokens": 2}},
        {"say": "Hello", "cut": 3, "pause": 0.5},
        {"stall": True, "when": "wait"},
        {"say": "ok", "expect": "please"},
        {},
    ],
}


def written(path: Path, content: object) -> Path:
    file = path / "script.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


async def test_a_file_says_all_that_a_script_can_say(tmp_path: Path) -> None:
    script = Scripted.from_file(written(tmp_path, FULL), new_id=counting())
    assert script.turns == (
        turn(think="Hm.", say="Well.", calls=[call("a", x=1), call("b", "{"), call("c")]),
        refuse("No.", finish="content_filter", usage=USED),
        cut(say("Hello", pause=0.5), after=3),
        stall(when="wait"),
        say("ok", expect="please"),
        empty(),
    )
    events = await answer(script, asks("hi"))
    assert events[1:3] == [ReasoningDelta("rs_1", "Hm"), ReasoningDelta("rs_1", ".")]


async def test_a_file_may_expect_by_a_regular_expression(tmp_path: Path) -> None:
    script = Scripted.from_file(written(tmp_path, {"turns": [{"expect": {"regex": "gr[ae]y"}}], "repeat": True}))
    await answer(script, asks("grey"))
    with pytest.raises(ScriptError, match=re.escape("'gr[ae]y'")):
        await answer(script, asks("green"))


@pytest.mark.parametrize(
    ("spelt", "kind", "message"),
    [
        ({"code": "rate_limit_exceeded", "message": "slow", "retry_after": 2}, RateLimited, "slow"),
        ({"code": "provider_unavailable"}, Unavailable, "the script fails with provider_unavailable"),
        ({"code": "server_error", "message": "broken"}, ProviderError, "broken"),
    ],
)
async def test_a_file_may_fail_with_a_code(tmp_path: Path, spelt: object, kind: type[ProviderError], message: str) -> None:
    with pytest.raises(ProviderError, match=message) as caught:
        await answer(Scripted.from_file(written(tmp_path, {"turns": [{"fail": spelt}]})), asks("hi"))
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after", None) == (2 if kind is RateLimited else None)


async def test_a_file_may_break_the_protocol(tmp_path: Path) -> None:
    script = Scripted.from_file(written(tmp_path, {"turns": [{"malformed": "unknown_item"}]}))
    assert script.turns == (malformed("unknown_item"),)


def test_everything_wrong_in_a_file_is_told_at_once_with_turn_numbers(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "repat": True,
            "chunk": -1,
            "turns": [
                {"sai": "x"},
                {"calls": [{"name": "a"}, {"nme": "b", "zzz": 1}, 7], "usage": {"output_token": 1}},
                "hello",
                {"say": 3, "finish": "never", "calls": {"name": "a"}, "fail": {"message": "x"}, "expect": {"regexp": "x"}},
            ],
        },
    )
    with pytest.raises(InvalidRequest) as caught:
        Scripted.from_file(file)
    assert caught.value.message.replace(str(file), "FILE") == snapshot("""\
the script `FILE` cannot be played; correct:
- the file: there is no key `repat`; did you mean `repeat`?
- `chunk`: Expected `int` >= 0
- turn 1: there is no key `sai`; did you mean `say`?
- turn 2, call 2: there is no key `nme`; did you mean `name`?
- turn 2, call 2: there is no key `zzz`; known: `name`, `arguments`
- turn 2, call 2: `name` is missing
- turn 2, call 3: must be an object, not 7
- turn 2, `usage`: there is no key `output_token`; did you mean `output_tokens`?
- turn 3: must be an object, not "hello"
- turn 4, `say`: Expected `str | null`, got `int`
- turn 4, `finish`: Invalid enum value 'never'
- turn 4, `calls`: Expected `array`, got `object`
- turn 4, `fail`: `code` is missing
- turn 4, `expect`: there is no key `regexp`; did you mean `regex`?
- turn 4, `expect`: `regex` is missing\
""")


def test_turns_of_a_file_that_contradict_themselves_are_told_at_once(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "turns": [
                {"fail": {"code": "rate_limited"}},
                {"say": "fine"},
                {"fail": {"code": "provider_unavailable", "retry_after": 1}},
                {"stall": True, "fail": {"code": "provider_unavailable"}},
                {"malformed": "no_end", "say": "x"},
                {"expect": {"regex": "("}},
            ]
        },
    )
    with pytest.raises(InvalidRequest) as caught:
        Scripted.from_file(file)
    assert caught.value.message.splitlines()[1:] == snapshot(
        [
            "- turn 1: no provider error has the code `rate_limited`; did you mean `rate_limit_exceeded`?",
            "- turn 3: only `rate_limit_exceeded` has a `retry_after`, not `provider_unavailable`",
            "- turn 4: a turn can fail or stall, not both",
            "- turn 5: a turn of raw events can say nothing else",
            "- turn 6: `(` is not a regular expression: missing ), unterminated subpattern at position 0",
        ]
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"turns": [\n  {"say": "x",}\n]}', r"is not JSON: .* at line 2, column \d+; correct it there"),
        ("", "is not JSON"),
        ("[]", "the file: must be an object"),
        ("{}", "the file: `turns` is missing"),
        ('{"turns": []}', "`turns`: Expected `array` of length >= 1"),
    ],
)
def test_a_file_that_is_no_script_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"script\.json` .*(?s:.*){told}"):
        Scripted.from_file(written(tmp_path, content))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"cannot read the script `.*missing\.json`: No such file or directory; check the path"
    ):
        Scripted.from_file(tmp_path / "missing.json")
    with pytest.raises(InvalidRequest, match="Is a directory"):
        Scripted.from_file(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"turns": [{"say": "\xe9"}]}')
    with pytest.raises(InvalidRequest, match="is not UTF-8 text"):
        Scripted.from_file(tmp_path / "latin.json")


def test_importing_it_is_light() -> None:
    heavy = ("aiohttp", "rich", "typer", "pydantic", "jsonschema_rs")
    code = f"import sys, mainspring.providers.scripted; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
