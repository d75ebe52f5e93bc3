"""The table `[governance]`: what it turns on, in which order, and what it says about mistakes; and built-in tools by name."""

from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import InvalidRequest
from mainspring.oversight import policies_of
from mainspring.tools.addresses import AddressGuard
from mainspring.workshop import Workshop


def named(table: dict[str, Any]) -> list[str]:
    return [policy.name for policy in policies_of(table, AddressGuard())]


def test_an_empty_table_asks_nothing() -> None:
    assert named({}) == []


def test_what_is_mentioned_is_asked_in_the_order_of_the_architecture(tmp_path: Path) -> None:
    table = {
        "domains": {"allowed": ["example.com"]},
        "paths": {"allowed": [str(tmp_path)]},
        "commands": {"denied": ["rm"]},
        "level": "supervised",
        "per_minute": 5,
        "rules": {"*": "ask"},
    }
    assert named(table) == ["tool_rules", "rate", "autonomy_level", "commands", "paths", "domains"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"levle": "full"}, "unknown field `levle`; it may hold rules, level"),
        ({"level": "godlike"}, "Invalid enum value 'godlike'"),
        ({"rules": {"shell": "maybe"}}, "Invalid enum value 'maybe'"),
        ({"paths": {"denied": [".env"]}}, "paths need at least one root"),
        ({"per_minute": 0}, "a rate must be above 0"),
    ],
)
def test_a_mistake_is_told_with_what_could_be_there(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        policies_of(table, AddressGuard())


def test_a_built_in_tool_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"there is no built-in tool `hammer`; known: shell"):
        Workshop(["hammer"])
