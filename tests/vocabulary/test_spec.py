"""The order for a run: three presets, and what is refused before anything begins."""

from typing import Any

import msgspec
import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition, Unknown, decode, encode, user
from mainspring.core.spec import (
    CONFIRM,
    PRESETS,
    REPEAT_ADVICE,
    Caller,
    Completion,
    Limits,
    Preset,
    RunSpec,
    Sampling,
    ToolChoice,
    Window,
    check,
    spec_for,
)

LOOK, SAVE = ToolDefinition("look"), ToolDefinition("save")


def spec(**changes: Any) -> RunSpec:
    return spec_for(changes.pop("preset", "responses"), **{"id": "r", "model": "m", "input": (user("go"),), **changes})


@pytest.mark.requirement("A10")
def test_responses_preset_has_ten_turns_and_leaves_the_rest_to_the_request() -> None:
    assert PRESETS["responses"] == Preset(
        Limits(max_turns=10, max_errors_in_row=None, max_repeats=3, max_cycle=6),
        Completion(repeat=REPEAT_ADVICE, confirm_once=True),
        Sampling(),
        Window(),
    )


@pytest.mark.requirement("C44", "C64")
def test_iterative_preset_is_twenty_turns_five_calls_three_errors_sixty_seconds_and_a_question() -> None:
    preset = PRESETS["iterative"]
    assert preset == Preset(
        Limits(
            max_turns=20,
            max_tool_calls_per_turn=5,
            max_errors_in_row=3,
            max_repeats=3,
            max_cycle=6,
            tool_seconds=60.0,
            concurrency=1,
        ),
        Completion(confirm=CONFIRM, repeat=REPEAT_ADVICE, retry_model_errors=True, confirm_once=True),
        Sampling(temperature=0.7),
        Window(),
    )


@pytest.mark.requirement("B7", "B15", "B16", "B17", "B18", "B19", "S11")
def test_decision_preset_is_five_turns_cold_and_short() -> None:
    assert PRESETS["decision"] == Preset(
        Limits(max_turns=5, max_errors_in_row=3, max_repeats=2, max_cycle=6, turn_seconds=30.0, concurrency=1),
        Completion(repeat=REPEAT_ADVICE, confirm_once=True),
        Sampling(temperature=0.0, max_turn_tokens=1024),
        Window(max_messages=20, max_chars=4000),
    )


@pytest.mark.requirement("S14", "C55")
def test_question_asks_for_completeness_and_verification() -> None:
    for word in ("every part", "checked", "go on", "final answer"):
        assert word in CONFIRM


def test_no_limit_is_surprising() -> None:
    assert Limits() == Limits(
        max_turns=10,
        max_tool_calls=None,
        max_tool_calls_per_turn=None,
        max_tokens=None,
        max_output_tokens=None,
        max_seconds=None,
        max_errors_in_row=3,
        max_repeats=None,
        turn_seconds=3600.0,
        tool_seconds=None,
        tool_output_chars=15_000,
        concurrency=None,
    )


def test_preset_may_be_changed_field_by_field() -> None:
    made = spec(preset="iterative", max_turns=3, confirm=None, top_p=0.5, max_messages=7, instructions="Be brief.")
    base = PRESETS["iterative"]
    assert (made.limits.max_turns, made.limits.tool_seconds) == (3, 60.0)
    assert (made.completion.confirm, made.completion.retry_model_errors) == (None, base.completion.retry_model_errors)
    assert (made.sampling.top_p, made.sampling.temperature) == (0.5, 0.7)
    assert (made.window.max_messages, made.instructions, made.preset) == (7, "Be brief.", "iterative")


def test_part_may_be_given_whole_and_changed() -> None:
    made = spec(preset="iterative", limits=Limits(max_tokens=9), max_turns=3)
    assert made.limits == Limits(max_tokens=9, max_turns=3)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="max_turnz"):
        spec(max_turnz=3)


def test_tool_is_found_by_its_name() -> None:
    made = spec(tools=(Unknown({"type": "web_search", "name": "look"}), LOOK, SAVE))
    assert (made.tool("save"), made.tool("look"), made.tool("gone")) == (SAVE, LOOK, None)


def test_spec_survives_storage() -> None:
    made = spec(preset="decision", tools=(LOOK, Unknown({"type": "x", "y": [1]})), tool_choice=ToolChoice(allowed=("look",)))
    assert decode(encode(made), RunSpec) == made


@pytest.mark.parametrize("caller", [Caller(), Caller("ada", ()), Caller("ada", ("tools:execute", "responses"))])
def test_caller_survives_storage(caller: Caller) -> None:
    made = spec(caller=caller)
    assert decode(encode(made), RunSpec).caller == caller


def test_spec_without_a_caller_is_nobodys_and_unrestricted() -> None:
    stored = msgspec.json.decode(encode(spec()))
    del stored["caller"]
    assert decode(msgspec.json.encode(stored), RunSpec).caller == Caller("", None)


def test_what_a_tool_declares_for_governance_survives_storage() -> None:
    tool = ToolDefinition("files", operations={"get": ("read",), "put": ("write",)}, purposes={"path": "path", "run": "command"})
    assert decode(encode(spec(tools=(tool,))), RunSpec).tool("files") == tool


def test_good_spec_is_accepted() -> None:
    check(spec(tools=(LOOK, SAVE), tool_choice=ToolChoice("required", name="look"), max_turns=1, max_seconds=0.1))
    check(spec(tools=(LOOK,), tool_choice=ToolChoice("auto", allowed=("look",))))
    check(spec(tools=(Unknown({"type": "web_search"}),), tool_choice=ToolChoice("required")))
    check(spec(max_turns=None, max_errors_in_row=None, tool_output_chars=None))


@pytest.mark.requirement("A18", "A26")
@pytest.mark.parametrize(
    ("changes", "message", "param"),
    [
        ({"model": ""}, "no model is named; pass `model`", "model"),
        ({"tools": (LOOK, SAVE, LOOK)}, "tool `look` is declared twice; give each tool its own name", "tools"),
        (
            {"tools": (LOOK, SAVE), "tool_choice": ToolChoice("required", name="gone")},
            "tool_choice names `gone`, which is not among the tools; declared: `look`, `save`",
            "tool_choice",
        ),
        (
            {"tools": (LOOK,), "tool_choice": ToolChoice(allowed=("look", "gone"))},
            "tool_choice names `gone`, which is not among the tools; declared: `look`",
            "tool_choice",
        ),
        (
            {"tool_choice": ToolChoice(name="gone")},
            "tool_choice names `gone`, which is not among the tools; declared: none",
            "tool_choice",
        ),
        (
            {"tool_choice": ToolChoice("required")},
            "tool_choice requires a tool call but no tools are declared",
            "tool_choice",
        ),
        ({"max_turns": 0}, "max_turns must be above 0, not 0; leave it out for no limit", "max_turns"),
        ({"max_seconds": -1.5}, "max_seconds must be above 0, not -1.5; leave it out for no limit", "max_seconds"),
    ],
)
def test_order_that_cannot_be_honoured_is_refused_naming_the_field(changes: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(spec(**changes))
    assert (caught.value.message, caught.value.param) == (message, param)


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_every_limit_must_be_above_zero(limit: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{limit} must be above 0"):
        check(spec(**{limit: 0}))
