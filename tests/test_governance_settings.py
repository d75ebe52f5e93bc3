"""The table `[governance]`: what it turns on, in which order, and what it says about mistakes; and built-in tools by name."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import ValidationError, convert

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition
from mainspring.engine.policy_order import order_policies
from mainspring.features.budgets.plan import build_plan, find_plan_doubts
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies, digest_settings, find_rule_doubts
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools


def named(table: dict[str, Any]) -> list[str]:
    return [policy.name for policy in order_policies(build_policies(convert(table, GovernanceSettings), AddressGuard()))]


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
    "table",
    [
        {"levle": "full"},
        {"level": "godlike"},
        {"rules": {"shell": "maybe"}},
        {"paths": {"denied": [".env"]}},
        {"per_minute": 0},
        {"burst": 0},
        {"commands": {"allowed": ["ls", "  "]}},
        {"domains": {"denied": [""]}},
    ],
)
def test_a_mistake_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        convert(table, GovernanceSettings)


def test_either_half_of_a_rate_puts_it_in_force() -> None:
    assert named({"burst": 3}) == named({"per_minute": 3}) == ["rate"]


def test_what_may_be_a_slip_is_told(tmp_path: Path) -> None:
    table = {
        "rules": {"file-ops:write": "deny", "File_Ops": "deny", "file_*": "ask", "*": "ask"},
        "paths": {"allowed": [str(tmp_path), str(tmp_path / "gone")]},
    }
    budget = {"escalation_triggers": [{"id": "EF-4"}], "stop_conditions": [{"id": "SC-99"}], "tenants": {"acme": {"level": 0}}}
    tools = [ToolDefinition("file_ops", kind="builtin", effects=("write",))]
    governance, plan = convert(table, GovernanceSettings), build_plan(convert(budget, BudgetSettings))
    assert plan is not None
    assert [*find_rule_doubts(governance, tools), *find_plan_doubts(plan, tools, "m")] == [
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
    assert find_rule_doubts(governance, []) == [f"governance.paths.allowed: there is no folder `{tmp_path / 'gone'}`"]
    assert find_rule_doubts(GovernanceSettings(), tools) == []
    assert (standard := build_plan(BudgetSettings(level=2))) is not None
    assert find_plan_doubts(standard, tools, "m") == []


def test_the_digest_of_settings_is_the_one_that_stored_runs_have() -> None:
    governance: dict[str, Any] = {
        "level": "supervised",
        "per_minute": 30,
        "rules": {"*": "ask"},
        "paths": {"allowed": ["/srv/no"]},
    }
    budget: dict[str, Any] = {
        "per": "tenant",
        "limits": {"max_cost": 5, "max_duration_minutes": 2.5, "max_tokens": "unlimited"},
        "prices": {"*": {"input": 3, "output": 15.5}},
        "allowed_commands": ["ls", {"command": "git", "max_calls": "unlimited"}],
        "expires_at": datetime(2030, 1, 1, tzinfo=UTC),
        "stop_conditions": [{"id": "SC-05", "at": 0.8}],
        "tenants": {"acme": {"level": 0}},
    }
    told = digest_settings(convert(governance, GovernanceSettings), convert(budget, BudgetSettings), [], None)
    assert told == "c57f17f49e038cb5"
    assert digest_settings(GovernanceSettings(), BudgetSettings(), [], None) == ""


def test_a_built_in_tool_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"there is no built-in tool `hammer`; known: shell"):
        BuiltinTools(["hammer"])
