"""What the model is asked."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.loop.world import LOOK, Story, calls, order, says, told, used

from mainspring.core.chain import Chain
from mainspring.core.errors import InvalidRequest
from mainspring.core.history import Entry, history_of
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Refusal,
    ToolDefinition,
    Unknown,
    assistant,
    user,
)  # fmt: skip
from mainspring.core.model_request import Items, ModelRequest, request_for
from mainspring.core.run import history_after
from mainspring.core.spec import Sampling, StepCall, ToolChoice, Window, check, spec_for


def test_request_carries_everything_the_spec_says() -> None:
    odd = Unknown({"type": "web_search"})
    spec = order(
        instructions="Be brief.", tools=(LOOK, odd), tool_choice=ToolChoice("required"), parallel_tool_calls=False,
        temperature=0.3, top_p=0.8, max_turn_tokens=99, text={"verbosity": "low"}, reasoning={"effort": "low"}, extra={"seed": 7},
        top_logprobs=3, turn_bytes=65_536, presence_penalty=0.5, frequency_penalty=-0.5, stop=("END",), seed=7, cache_ttl="1h",
    )  # fmt: skip
    assert request_for(Story(spec).run) == ModelRequest(
        run_id="run_1",
        model="m",
        items=(user("go"),),
        turn=1,
        instructions="Be brief.",
        tools=(LOOK, odd),
        tool_choice=ToolChoice("required"),
        parallel_tool_calls=False,
        max_output_tokens=99,
        temperature=0.3,
        top_p=0.8,
        text={"verbosity": "low"},
        reasoning={"effort": "low"},
        extra={"seed": 7},
        top_logprobs=3,
        max_bytes=65_536,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        stop=("END",),
        seed=7,
        cache_ttl="1h",
    )


def test_request_keeps_a_deferred_tool_from_the_model_and_says_that_there_is_one() -> None:
    deferred = ToolDefinition("save", deferred=True)
    request = request_for(Story(order(tools=(LOOK, deferred))).run)
    assert (request.tools, request.declared, request.all_tools) == ((LOOK,), (LOOK, deferred), (LOOK, deferred))


def test_request_leaves_to_the_backend_what_the_spec_does_not_say() -> None:
    request = request_for(Story(order(tools=())).run)
    assert request == ModelRequest(run_id="run_1", model="m", items=(user("go"),))


def test_request_says_whose_run_it_is() -> None:
    assert request_for(Story(order(tenant="acme")).run).tenant == "acme"
    assert request_for(Story(order()).run).tenant == ""


def test_request_carries_the_call_of_a_workflow_step() -> None:
    call = StepCall("look", {"n": 1})
    assert request_for(Story(order(dictated=call)).run).step_call == call


def test_request_holds_the_conversation_in_order() -> None:
    story = Story(order())
    story.play(calls("look", "save", text="let me see"), says("done"))
    later = story.then(user("thanks"))
    later.play(says("welcome"))
    assert told(later.requests[0].items) == [
        "user: go",
        "assistant: let me see",
        "call_1: look {}",
        "call_2: save {}",
        "call_1 -> ok",
        "call_2 -> ok",
        "assistant: done",
        "user: thanks",
    ]


def test_request_stays_as_it_was_while_the_run_goes_on() -> None:
    story = Story(order())
    first = request_for(story.run)
    story.play(calls("look"), says("done"))
    assert told(first.items) == ["user: go"]


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({}, None),
        ({"max_turn_tokens": 50}, 50),
        ({"max_output_tokens": 100}, 70),
        ({"max_tokens": 100}, 60),
        ({"max_output_tokens": 100, "max_turn_tokens": 50}, 50),
        ({"max_output_tokens": 100, "max_turn_tokens": 80}, 70),
        ({"max_output_tokens": 100, "max_tokens": 500, "max_turn_tokens": 80}, 70),
        ({"max_output_tokens": 500, "max_tokens": 100, "max_turn_tokens": 80}, 60),
    ],
)
def test_output_of_a_turn_is_bounded_by_what_is_left(limits: dict[str, Any], tokens: int | None) -> None:
    story = Story(order(**limits))
    story.play(calls("look", usage=used(10, 30)))
    assert request_for(story.run).max_output_tokens == tokens


def conversation(*items: Item) -> Story:
    """A run with `items` as history and `now` as input."""
    return Story(order(input=(user("now"),)), history_of([Entry(item, "input") for item in items]))


def windowed(story: Story, window: Window) -> list[str]:
    spec = order(input=story.run.spec.input, window=window)
    return told(request_for(Story(spec, story.history).run).items)


HISTORY = (user("a"), assistant("b"), user("c"), assistant("d"))


@pytest.mark.requirement("B19", "S11")
@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        (None, ["user: a", "assistant: b", "user: c", "assistant: d", "user: now"]),
        (9, ["user: a", "assistant: b", "user: c", "assistant: d", "user: now"]),
        (4, ["user: a", "assistant: b", "user: c", "assistant: d", "user: now"]),
        (3, ["assistant: b", "user: c", "assistant: d", "user: now"]),
        (1, ["assistant: d", "user: now"]),
        (0, ["user: now"]),
    ],
)
def test_window_shows_the_last_messages_of_the_history_and_all_of_the_run(messages: int | None, seen: list[str]) -> None:
    assert windowed(conversation(*HISTORY), Window(max_messages=messages, max_chars=9)) == seen


def test_window_counts_only_what_came_before_the_run() -> None:
    story = Story(order(window=Window(max_messages=1)), history_of([Entry(item, "input") for item in HISTORY]))
    story.play(calls("look"), calls("save"), says("done"))
    assert told(story.requests[2].items) == [
        "assistant: d", "user: go", "call_1: look {}", "call_1 -> ok", "call_2: save {}", "call_2 -> ok",
    ]  # fmt: skip


PAIR = (FunctionCall("c", "look", "{}"), FunctionCallOutput("c", "ok"))


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        (4, ["user: a", "c: look {}", "c -> ok", "assistant: b", "user: now"]),
        (3, ["c: look {}", "c -> ok", "assistant: b", "user: now"]),
        (2, ["assistant: b", "user: now"]),
        (1, ["assistant: b", "user: now"]),
    ],
)
def test_window_keeps_a_call_and_its_output_together(messages: int, seen: list[str]) -> None:
    assert windowed(conversation(user("a"), *PAIR, assistant("b")), Window(max_messages=messages)) == seen


@pytest.mark.parametrize("messages", [0, 1, 2, 3])
def test_window_never_hides_what_the_client_has_just_answered(messages: int) -> None:
    story = Story(order())
    story.play(calls("choose", "choose"))
    later = story.then(
        FunctionCallOutput("call_2", "blue"), FunctionCallOutput("call_1", "red"), window=Window(max_messages=messages)
    )
    seen = told(request_for(later.run).items)
    assert seen[-4:] == ["call_1: choose {}", "call_2: choose {}", "call_1 -> red", "call_2 -> blue"]


@pytest.mark.parametrize("messages", [0, 1, 2, 3])
def test_window_never_hides_a_call_that_a_person_has_just_approved(messages: int) -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save", "look"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True), window=Window(max_messages=messages))
    later.play(says("done"))
    assert told(later.requests[0].items)[-4:] == ["call_1: save {}", "call_2: look {}", "call_1 -> ok", "call_2 -> ok"]


@pytest.mark.requirement("B18")
def test_window_shortens_every_text_to_max_chars() -> None:
    long = Message("user", (InputText("abcd"), InputText("abc"), InputImage("u"), InputText("abcde")))
    said = Message("assistant", (OutputText("wxyz", annotations=({"a": 1},)), OutputText("xyz"), Refusal("never")))
    story = Story(order(input=(long,), window=Window(max_chars=3)), history_of([Entry(said, "model", 1)]))
    assert list(request_for(story.run).items) == [
        Message("assistant", (OutputText("wxy", annotations=({"a": 1},)), OutputText("xyz"), Refusal("never"))),
        Message("user", (InputText("abc"), InputText("abc"), InputImage("u"), InputText("abc"))),
    ]


def test_window_does_not_shorten_without_max_chars() -> None:
    assert windowed(conversation(user("abcdef")), Window(max_messages=5)) == ["user: abcdef", "user: now"]


def test_window_leaves_calls_and_outputs_whole() -> None:
    story = conversation(FunctionCall("c", "look", '{"a":1}'), FunctionCallOutput("c", "a long story"))
    assert windowed(story, Window(max_chars=2)) == ['c: look {"a":1}', "c -> a long story", "user: no"]


def test_windowed_request_holds_the_same_kind_of_items_as_any_other() -> None:
    story = conversation(ApprovalRequest("mcpr_1", "look", "{}"), *HISTORY)
    assert windowed(story, Window(max_chars=99)) == told(request_for(story.run).items)


def test_items_are_not_read_before_they_are_needed() -> None:
    assert isinstance(request_for(Story(order()).run).items, Items)


def test_items_are_a_sequence_without_what_the_model_may_not_see() -> None:
    entries = Chain(
        [
            Entry(user("a"), "input"),
            Entry(assistant("hidden"), "model", 1, hidden=True),
            Entry(ApprovalRequest("mcpr_1", "look", "{}"), "tool", 1),
            Entry(ApprovalResponse("mcpr_1", True), "input"),
            Entry(assistant("b"), "model", 1),
        ]
    )
    items = Items(entries)
    assert list(items) == [user("a"), assistant("b")]
    assert (len(items), items[0], items[-1], list(items[1:])) == (2, user("a"), assistant("b"), [assistant("b")])
    assert items == [user("a"), assistant("b")]
    assert items == Items(entries)
    assert items != [user("a")]
    assert items != 3
    assert hash(items) == hash(Items(entries))
    assert hash(items) != hash(Items(Chain()))
    assert repr(items).startswith("Items(")
    assert "hidden" not in repr(items)


@pytest.mark.requirement("B7", "B16", "B17")
def test_sampling_of_a_preset_reaches_the_request() -> None:
    request = request_for(Story(order("decision")).run)
    assert (request.temperature, request.max_output_tokens) == (0.0, 1024)


def test_history_of_a_run_and_of_its_stored_entries_make_the_same_request() -> None:
    story = Story(order())
    story.play(calls("look"), says("done"))
    spec = order(input=(user("next"),), sampling=Sampling())
    live, stored = history_after(story.run), history_of(list(story.run.own_entries))
    assert request_for(Story(spec, live).run) == request_for(Story(spec, stored).run)


def test_a_tool_is_looked_at_once_and_one_that_is_wrong_each_time() -> None:
    fine, wrong = ToolDefinition("look", parameters={"type": "object"}), ToolDefinition("look", description=7)  # type: ignore[arg-type]
    order, right = spec_for("responses", id="resp_1", model="m", input=(user("Go."),), tools=(fine,)), dict[int, ToolDefinition]()
    check(order, right)
    assert right == {id(fine): fine}
    check(order, right)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="wrong value"):
            check(replace(order, tools=(wrong,)), right)
    assert right == {id(fine): fine}
