"""Answers become fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.features.agents.agent_result import parse_output


@pytest.mark.requirement("C6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('  {"a": 1}\n', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ('Result: ```json\n{"a": 1}\n```', {"a": 1}),
        ('Here it is:\n```json\n{"a": 1}```', {"a": 1}),
        ('It is ```{"a": 1}``` then.', {"a": 1}),
        ('I ran:\n```sh\nls\n```\nand so:\n```json\n{"a": 1}\n```', {"a": 1}),
        ("[1, 2]", {"result": [1, 2]}),
        ("Just words.", {"result": "Just words."}),
        ("42", {"result": "42"}),
        ("", {"result": ""}),
        ('{"a": ', {"result": '{"a": '}),
        ("```python\nprint(1)\n```", {"result": "print(1)"}),
        ('```json\n{"a": 1}\n```\nor\n```json\n{"a": 2}\n```', {"result": '```json\n{"a": 1}\n```\nor\n```json\n{"a": 2}\n```'}),
        ("[" * 100_000, {"result": "[" * 100_000}),
    ],
)
def test_c6_an_answer_is_parsed_or_wrapped(text: str, expected: object) -> None:
    assert parse_output(text) == expected


@pytest.mark.requirement("C6")
def test_c6_what_is_no_object_goes_under_the_first_output() -> None:
    assert parse_output("words", ("summary", "other")) == {"summary": "words"}
    assert parse_output("[1]", ("summary",)) == {"summary": [1]}
    assert parse_output('{"other": 1}', ("summary",)) == {"other": 1}


@given(st.one_of(st.text(), st.lists(st.sampled_from(["```", "```json", "~~~", '{"a": 1}', "[", "x", "\n"])).map("\n".join)))
def test_whatever_is_answered_becomes_fields(text: str) -> None:
    fields = parse_output(text, ("answer",))
    assert isinstance(fields, dict)
    assert fields == parse_output(text, ("answer",))
