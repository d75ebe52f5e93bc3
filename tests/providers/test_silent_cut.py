"""A prompt that a backend has cut without a word is noticed, and nothing else is taken for one."""

import pytest
from msgspec.structs import replace
from tests.providers.backend import QUESTION

from mainspring.core.errors import ContextOverflow
from mainspring.core.items import InputFile, Item, Message, Usage, user
from mainspring.providers.silent_cut import check_prompt

LONG = user("tick tock " * 12_000)
FILE = Message("user", (InputFile(file_data="data:application/pdf;base64," + "A" * 200_000),))


@pytest.mark.parametrize("read", [2_048, 4_096, 4_000, 8_190])
def test_a_count_that_fills_a_context_and_is_far_too_small_is_a_cut(read: int) -> None:
    with pytest.raises(ContextOverflow):
        check_prompt(replace(QUESTION, items=(LONG,)), Usage(read), "there")


@pytest.mark.parametrize(
    ("item", "usage"),
    [
        (LONG, None),
        (LONG, Usage(0)),
        (LONG, Usage(300)),  # what was not cached
        (LONG, Usage(3_000)),
        (LONG, Usage(24_000)),
        (LONG, Usage(16_384)),  # fewer tokens than we think
        (user("What time is it?"), Usage(4_096)),
        (FILE, Usage(4_096)),
    ],
)
def test_anything_else_is_none(item: Item, usage: Usage | None) -> None:
    check_prompt(replace(QUESTION, items=(item,)), usage, "there")
