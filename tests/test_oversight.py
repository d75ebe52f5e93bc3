"""The table `[governance]`: what it turns on, in which order, and what it says about mistakes; and built-in tools by name."""

from pathlib import Path
from typing import Any

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.governance_settings import build_policies, doubts, plan_of
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools


def named(table: dict[str, Any]) -> list[str]:
    return [policy.name for policy in order_policies(build_policies(table, AddressGuard()))]


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
        ({"burst": 0}, "a rate must be above 0"),
        ({"commands": {"allowed": ["ls", "  "]}}, "`commands.allowed` has an entry that is empty"),
        ({"domains": {"denied": [""]}}, "`domains.denied` has an entry that is empty"),
    ],
)
def test_a_mistake_is_told_with_what_could_be_there(table: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        build_policies(table, AddressGuard())


def test_either_half_of_a_rate_puts_it_in_force() -> None:
    assert named({"burst": 3}) == named({"per_minute": 3}) == ["rate"]


def test_what_may_be_a_slip_is_told(tmp_path: Path) -> None:
    table = {
        "rules": {"file-ops:write": "deny", "File_Ops": "deny", "file_*": "ask", "*": "ask"},
        "paths": {"allowed": [str(tmp_path), str(tmp_path / "gone")]},
    }
    budget = {"escalation_triggers": [{"id": "EF-4"}], "stop_conditions": [{"id": "SC-99"}], "tenants": {"acme": {"level": 0}}}
    tools = [ToolDefinition("file_ops", kind="builtin", effects=("write",))]
    assert doubts(table, plan_of(budget), tools, "m") == [
        "governance.rules: `file-ops:write` fits none of the tools",
        f"governance.paths.allowed: there is no folder `{tmp_path / 'gone'}`",
        *[
            f"{name}: {told}"
            for name, more in (
                ("budget", ()),
                ("budget.tenants.acme", ("PF-05: tools may write, and `files.write` allows no file",)),
            )
            for told in (
                *more,
                "PF-09: SC-99 hold only when somebody signals them",
                "PF-10: the triggers EF-4 name no point that can escalate; write EF-01 to EF-04",
            )
        ],
    ]
    assert doubts(table, None, [], "m") == [f"governance.paths.allowed: there is no folder `{tmp_path / 'gone'}`"]
    assert doubts({}, plan_of({"level": 2}), tools, "m") == []


def test_a_built_in_tool_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"there is no built-in tool `hammer`; known: shell"):
        BuiltinTools(["hammer"])
