"""TOML with lines: every key and element is found where it is written."""

import tomllib
from pathlib import Path

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Place, plain
from mainspring.definitions.toml import parse_toml

FILE = Path("mainspring.toml")
TEXT = r'''# [not.a.table]
port = 1 # port = 2
"quoted key" = 'no "escape\'
long = """
[fake]
port = 3 \\ \" # no comment
""""
literal = QUOTES
x = [1
QUOTES
'a.b'.c."d\u0065" = 2024-01-01 10:00:00
list = [
    1, # one
    [2, "],"],

    { name = "three", more = { deep = 3 } },
]
empty = []
[governance.paths]
allowed = ["#"]
[governance]
level = "full"
[[steps]]
id = 1
[[steps.parts]]
id = 2
[[steps.parts]]
id = 3
[[steps]]
  id = 4
  [ steps . options ]
  a.b = { }
  a.c = 5
'''.replace("QUOTES", "'" * 3)
LINES: dict[Place, int] = {
    ("port",): 2,
    ("quoted key",): 3,
    ("long",): 4,
    ("literal",): 8,
    ("a.b", "c", "de"): 11,
    ("list",): 12,
    ("list", 0): 13,
    ("list", 1): 14,
    ("list", 1, 1): 14,
    ("list", 2): 16,
    ("list", 2, "more", "deep"): 16,
    ("empty",): 18,
    ("governance",): 19,
    ("governance", "paths"): 19,
    ("governance", "paths", "allowed", 0): 20,
    ("governance", "level"): 22,
    ("steps",): 23,
    ("steps", 0, "id"): 24,
    ("steps", 0, "parts", 0, "id"): 26,
    ("steps", 0, "parts", 1): 27,
    ("steps", 0, "parts", 1, "id"): 28,
    ("steps", 1): 29,
    ("steps", 1, "id"): 30,
    ("steps", 1, "options"): 31,
    ("steps", 1, "options", "a", "b"): 32,
    ("steps", 1, "options", "a", "c"): 33,
    ("steps", 1, "nothing"): 29,
}


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")], ids=["unix", "windows"])
def test_every_key_is_found_where_it_is_written(text: str) -> None:
    parsed = parse_toml(FILE, text)
    assert plain(parsed.root) == tomllib.loads(text)
    assert {place: parsed.find_line(place) for place in LINES} == LINES


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = \n", 2), ("a = 1\na = 2", 2), ("a = [\n1,\n", 3), ("\n\na = '''x\n", 4), ("[" * 5000, 1)]
)
def test_what_is_not_toml_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_toml(FILE, text)
    assert caught.value.message.startswith(f"mainspring.toml:{line}: ")


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_a_number_that_is_not_finite_is_a_problem(number: str) -> None:
    parsed = parse_toml(FILE, f"\n[budget.limits]\nmax_cost = {number}\n")
    assert [problem.line for problem in parsed.problems] == [3]
