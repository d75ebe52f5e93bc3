"""A prompt that a backend has cut without a word is noticed, and nothing else is taken for one."""

import pytest
from msgspec.structs import replace
from tests.providers.backend import QUESTION

from mainspring.core.items import InputFile, Item, Message, Usage, user
from mainspring.providers.silent_cut import find_cut_answer, find_cut_prompt

LONG = user("tick tock " * 12_000)
FILE = Message("user", (InputFile(file_data="data:application/pdf;base64," + "A" * 200_000),))


@pytest.mark.parametrize("read", [2_048, 4_096, 4_000, 8_190])
def test_a_count_that_fills_a_context_and_is_far_too_small_is_a_cut(read: int) -> None:
    full = find_cut_prompt(replace(QUESTION, items=(LONG,)), Usage(read))
    assert full is not None
    assert 0.97 * full.size <= read <= full.size


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
    assert find_cut_prompt(replace(QUESTION, items=(item,)), usage) is None


def test_where_the_window_is_known_less_is_enough() -> None:
    request = replace(QUESTION, items=(LONG,))
    assert find_cut_prompt(request, Usage(14_000)) is None
    assert find_cut_prompt(request, Usage(14_000), 14_100) is not None
    assert find_cut_prompt(replace(QUESTION, items=(user("tick tock " * 6_000),)), Usage(14_000), 14_100) is None


@pytest.mark.parametrize(
    ("limit", "usage", "size"),
    [
        (None, Usage(4_000, 90), 4_096),
        (1_000, Usage(8_000, 130), 8_192),
        (90, Usage(4_000, 90), None),  # as much as was allowed
        (None, Usage(2_040, 2_048), None),  # a limit of the server's
        (None, Usage(3_000, 1_000), None),
        (None, Usage(20, 4_090), None),
        (None, None, None),
    ],
)
def test_an_answer_that_fills_the_context_is_told_from_one_that_reaches_its_limit(
    limit: int | None, usage: Usage | None, size: int | None
) -> None:
    full = find_cut_answer(replace(QUESTION, max_output_tokens=limit), usage)
    assert (full and full.size) == size
