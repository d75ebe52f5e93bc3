"""Regular expressions of the readers match alike in every Python that the product names."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _parser

import mainspring.providers

# What Python gets wrong within a possessive group before 3.11.5.
_LOST = {"ASSERT", "ASSERT_NOT", "SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT"}


def list_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for module in pkgutil.walk_packages(mainspring.providers.__path__, "mainspring.providers."):
        for name, value in vars(importlib.import_module(module.name)).items():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                    yield f"{module.name}.{name}", each


def list_parts(parsed: object) -> Iterator[tuple[str, object]]:
    """The operators of a parsed pattern, however deep, each with its operand."""
    if isinstance(parsed, _parser.SubPattern | list | tuple):
        if isinstance(parsed, tuple) and len(parsed) == 2 and hasattr(parsed[0], "name"):
            yield parsed[0].name, parsed[1]
        for part in parsed:
            yield from list_parts(part)


def is_odd(pattern: re.Pattern[str]) -> bool:
    parts = list_parts(_parser.parse(pattern.pattern, pattern.flags))
    groups = [operand for name, operand in parts if name in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP")]
    return any(name in _LOST for group in groups for name, _ in list_parts(group))


def test_no_possessive_group_looks_around_or_goes_back() -> None:
    patterns = dict(list_patterns())
    assert len(patterns) > 100
    assert [place for place, pattern in patterns.items() if is_odd(pattern)] == []


def test_such_a_group_is_noticed() -> None:
    assert is_odd(re.compile(r"a((?:(?!b).)*+)b"))
    assert not is_odd(re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'))
