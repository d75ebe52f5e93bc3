"""Files of JSON are read as JSON, with the line of every mistake."""

import json
from pathlib import Path

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import plain
from mainspring.definitions.reader import MOST_DEPTH, parse_yaml

FILE = Path("a.json")


@pytest.mark.parametrize("value", ["😀", "\x7f", 1e5, "\t", ["<<", "~", "&a", "*a", "yes", "2001-01-01"], {}, None, True, -1.5])
@pytest.mark.parametrize("indent", [None, "\t"])
def test_what_json_writes_is_read_back(value: object, indent: str | None) -> None:
    text = json.dumps({"value": [value], "<<": value}, indent=indent)
    read = plain(parse_yaml(FILE, text).root)
    assert read == json.loads(text)
    assert type(read["<<"]) is type(value)


def test_mistakes_in_json_have_lines() -> None:
    parsed = parse_yaml(FILE, '{\n "a": [\n  "\\ud83d\\ude00",\n  {"b":\n   1}],\n "a": 2\n}')
    assert [(problem.line, problem.message) for problem in parsed.problems] == [(6, "`a` is there twice; keep one")]
    parsed = parse_yaml(FILE, '{\n "a": [\n  "x\\"]",\n  {"b":\n   1}]\n}')
    assert [parsed.find_line(place) for place in ((), ("a",), ("a", 0), ("a", 1), ("a", 1, "b"))] == [1, 2, 3, 4, 4]


def test_comments_and_trailing_commas_are_tolerated() -> None:
    assert plain(parse_yaml(FILE, '{"a": 1, # one\n\t"b": [2,],}').root) == {"a": 1, "b": [2]}


@pytest.mark.parametrize("text", ["{", '{"a": 1} {', "[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2), f"[{'1,' * 100_000}1]"])
def test_json_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^a\.json:[12]: "):
        parse_yaml(FILE, text)
