"""JSON that was asked for: told as it comes, word for word, mended if it slips and that takes no guess, never told wrongly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.providers.json_answer import JsonAnswer, mend_answer, parse_strictly
from mainspring.providers.json_text import MOST_ODD

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


def tell(text: str, size: int) -> str:
    answer = JsonAnswer()
    return "".join([answer.feed(text[at : at + size]) for at in range(0, len(text), size)]) + answer.end()


@given(value=OBJECTS, size=st.integers(1, 9), indent=st.none() | st.just(1), is_ascii=st.booleans())
def test_json_arrives_word_for_word(value: object, size: int, indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert tell(text, size) == text


@given(
    value=OBJECTS,
    size=st.integers(1, 9),
    place=st.integers(0, 60),
    sign=st.sampled_from([",", "'", "x", "}", "", "\\", "\n", "True"]),
)
def test_what_slips_is_told_as_json_or_as_it_came(value: object, size: int, place: int, sign: str) -> None:
    text = json.dumps(value)
    text = text[:1] + text[1:place] + sign + text[max(1, place) + 1 :]
    told = tell(text, size)
    assert told == text or parse_strictly(told)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"hour": 12, "is_day": true,}', '{"hour": 12, "is_day": true}'),
        ('{"hours": [11, 12, ], "is_day": true}', '{"hours": [11, 12 ], "is_day": true}'),
        ("{'hour': 12, 'is_day': True}", '{"hour": 12, "is_day": true}'),
        ('{"hour": 12, "is_day": True, "night": None}', '{"hour": 12, "is_day": true, "night": null}'),
        ('{"hour": 12, // noon\n "is_day": true}', '{"hour": 12, \n "is_day": true}'),
        ('{"words": "It\\\'s\nnoon"}', '{"words": "It\'s\\nnoon"}'),
        ("{hour: 12}", '{"hour": 12}'),
        (r"{'path': 'C:\dir', 'more': True}", r'{"path": "C:\\dir", "more": true}'),
        ("{'a': '\"x\" \"y\"', 'b': (1, 2)}", r'{"a": "\"x\" \"y\"", "b": [1, 2]}'),
        ('{"a": "x" /* c */, "b": 1,}', '{"a": "x"  , "b": 1}'),
        ('{"words": [{"is": "noon"}', '{"words": [{"is": "noon"}]}'),
        ('{"hour": 12}}', '{"hour": 12}'),
        ('{"hour": 12}\n```', '{"hour": 12}'),
        ('{"hour": 12}<|im_end|>', '{"hour": 12}'),
        ('{"hour": 12}\n\nLet me know.', '{"hour": 12}'),
    ],
)
def test_slips_are_mended_behind_what_was_told(written: str, meant: str) -> None:
    assert {tell(written, size) for size in (1, 3, len(written))} == {meant}


@pytest.mark.parametrize(
    "text",
    [
        '{"hour": 12',
        '{"words": "no',
        '{"hour": 12,',
        '{"hour":',
        '{"a": 1}\n{"a": 2}',
        "{hello world}",
        '{"a": 1, ...}',
        '{"a": NaN}',
        '{"a": 5 // 2}',
        '{"a": 1/* c */2}',
        r"{'a': 'C:\new\dir'}",
        r"{'a': '\bword\d'}",
        "['red' 'green']",
        "{'a': 'red'\n 'green'}",
    ],
)
def test_what_takes_a_guess_is_told_as_it_came(text: str) -> None:
    assert {tell(text, size) for size in (1, 3, len(text))} == {text}
    assert mend_answer(text) is None


def test_clean_json_is_told_at_once() -> None:
    answer = JsonAnswer()
    pieces = ['{"wor', 'ds": ', '"It is', " noon.", '", "ho', 'ur": ', "12", "}"]
    assert [answer.feed(piece) for piece in pieces] == ['{"wor', 'ds":', ' "It is', " noon.", '", "ho', 'ur":', "", " 12}"]


def test_what_slips_at_length_is_held_no_longer_than_it_can_be_mended() -> None:
    answer = JsonAnswer()
    told = [len(answer.feed(piece)) for piece in ("{oops", *["word " * 100] * (MOST_ODD // 500 + 2))]
    assert sum(told) == 5 + 500 * (MOST_ODD // 500 + 2)
