"""How many tokens things count for, to the character."""

import pytest
from msgspec.structs import replace

from mainspring.core.items import (
    ApprovalRequest,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    ToolDefinition,
    Unknown,
    Usage,
    encode,
    user,
)  # fmt: skip
from mainspring.core.tokens import estimate, is_plausible, tokens_of, tokens_of_text, tokens_of_tool

ODD = Unknown({"type": "x"})  # 12 characters as JSON, so 4 tokens
TOOL = ToolDefinition("look", "Looks.")


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (3, 1), (4, 2), (7, 2), (8, 3), (10, 3), (11, 4), (35, 10)])
def test_text_counts_one_for_every_three_and_a_half_characters_rounded_up(length: int, tokens: int) -> None:
    assert tokens_of_text("x" * length) == tokens


@pytest.mark.parametrize(
    ("item", "tokens"),
    [
        (Message("user"), 4),
        (user("x" * 7), 6),
        (Message("assistant", (OutputText("x" * 7), OutputText("x"))), 7),
        (Message("assistant", (Refusal("x" * 7),)), 6),
        (Message("user", (InputText("x"), InputImage("data:" + "x" * 9000))), 4 + 1 + 765),
        (Message("user", (ODD,)), 8),
        (FunctionCall("call_1", "x" * 7, "y" * 8), 4 + 2 + 3),
        (FunctionCallOutput("call_1", "x" * 8), 7),
        (FunctionCallOutput("call_1", ""), 4),
        (FunctionCallOutput("call_1", (InputText("x" * 7), InputText("x"), ODD)), 4 + 2 + 1 + 4),
        (Reasoning("rs_1"), 4),
        (Reasoning("rs_1", (SummaryText("x" * 3),), (ReasoningText("x" * 4),)), 6),
        (ODD, 8),
    ],
)
def test_an_item_counts_what_it_says_and_four_for_what_wraps_it(item: Item, tokens: int) -> None:
    assert tokens_of([item]) == tokens


@pytest.mark.parametrize("part", [InputFile(filename="a.txt", file_data="x" * 100), ODD])
def test_a_part_of_any_other_kind_counts_as_its_json(part: Part) -> None:
    assert tokens_of([Message("user", (part,))]) == 4 + tokens_of_text(encode(part).decode())


def test_an_item_of_any_other_kind_counts_as_its_json() -> None:
    item = ApprovalRequest("mcpr_1", "look", "{}")
    assert tokens_of([item]) == 4 + tokens_of_text(encode(item).decode())


def test_items_add_up() -> None:
    assert tokens_of([]) == 0
    assert tokens_of([user("x"), ODD, user("")]) == 5 + 8 + 4


def test_a_tool_counts_as_its_json() -> None:
    assert tokens_of_tool(ODD) == 4
    assert tokens_of_tool(TOOL) == tokens_of_text(encode(TOOL).decode())


def test_a_request_counts_its_items_its_tools_and_its_instructions() -> None:
    assert estimate([]) == 0
    assert estimate([user("x"), user("x")]) == 10
    assert estimate([user("x")], "x" * 8) == 5 + 4 + 3
    assert estimate([user("x")], "x" * 8, [ODD, ODD]) == 5 + 7 + 8


@pytest.mark.parametrize("instructions", [None, ""])
def test_no_instructions_count_nothing(instructions: str | None) -> None:
    assert estimate([user("x")], instructions, [ODD]) == 5 + 4


@pytest.mark.parametrize("field", Usage.__struct_fields__[:5])
def test_a_count_that_no_turn_can_have_is_not_believed(field: str) -> None:
    counts = (-1, 0, 1_000_000_000, 1_000_000_001)
    assert [is_plausible(replace(Usage(), **{field: count})) for count in counts] == [False, True, True, False]
