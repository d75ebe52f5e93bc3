"""The budget as data: its defaults, its life, its levels and its prices."""

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import ValidationError, convert

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import FunctionCall, Json, ToolDefinition, Usage
from mainspring.core.spec import Price
from mainspring.features.budgets.amounts import Amounts
from mainspring.features.budgets.budget import HARMFUL, LEVELS, TRANSITIONS, AutonomyBudget, AutonomyLimits, State, move_budget
from mainspring.features.budgets.budget_scope import find_objections, read_call
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.tools.scope import AllowedCommand, find_rule


@pytest.mark.requirement("C28")
def test_defaults_are_those_of_the_documents() -> None:
    limits = AutonomyLimits()
    assert (limits.max_iterations, limits.max_duration_minutes, limits.max_tool_calls) == (100, 60, 200)
    assert (limits.max_files_modified, limits.max_lines_changed) == (50, 5000)
    assert AutonomyBudget("b").amounts == Amounts(100, 3600, 200, 50, 5000)


def test_a_budget_that_says_nothing_writes_nothing_runs_nothing_and_stays_off_the_network() -> None:
    budget = AutonomyBudget("b")
    assert (budget.state, budget.files.write, budget.allowed_commands, budget.network.enabled) == ("draft", (), (), False)


def test_a_budget_is_the_same_after_json() -> None:
    budget = AutonomyBudget(
        "b1",
        expires_at=datetime(2026, 1, 1, tzinfo=UTC),
        allowed_commands=(AllowedCommand("git", "status.*", 3),),
        limits=AutonomyLimits(max_cost=2.5),
        prices={"gpt-*": Price(1, 4)},
    )
    assert msgspec.json.decode(msgspec.json.encode(budget), type=AutonomyBudget) == budget


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"limits": {"max_iterations": -1}}, "limits.max_iterations"),
        ({"limits": {"max_turns": 3}}, "max_turns"),
        ({"allowed_commands": [{"command": "ls", "args_pattern": "("}]}, r"allowed_commands\[0\]"),
        ({"stop_conditions": [{"id": "SC-05", "action": "explode"}]}, r"stop_conditions\[0\].action"),
        ({"stop_conditions": [{"id": "SC-05", "at": 2}]}, r"stop_conditions\[0\].at"),
        ({"expires_at": "2026-01-01T00:00:00"}, "expires_at"),
        ({"budget_id": ""}, "budget_id"),
    ],
)
def test_a_wrong_field_of_the_settings_is_named(table: Json, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        convert(table, BudgetSettings)


@pytest.mark.parametrize("start", TRANSITIONS)
@pytest.mark.parametrize("end", TRANSITIONS)
def test_a_budget_goes_only_where_its_life_leads(start: State, end: State) -> None:
    ways = {
        "draft": ["pending_approval", "active"],
        "pending_approval": ["active", "rejected"],
        "active": ["suspended", "expired", "completed"],
        "suspended": ["active", "expired"],
        "rejected": ["draft"],
    }
    budget = AutonomyBudget("b", state=start, approved_by="ada")
    if end in ways.get(start, []):
        assert move_budget(budget, end) == AutonomyBudget("b", state=end, approved_by="ada")
        assert move_budget(budget, end, by="bo").approved_by == "bo"
    else:
        with pytest.raises(InvalidRequest, match=f"from `{start}` to `{end}`"):
            move_budget(budget, end)


def test_levels_widen_from_reading_to_everything() -> None:
    assert [level.amounts for level in LEVELS] == [
        Amounts(5, 600, 10, 0, 0),
        Amounts(20, 1800, 50, 10, 1000),
        Amounts(50, 3600, 200, 30, 3000),
        Amounts(100, 7200, 500, 50, 5000),
    ]
    assert len(HARMFUL) == 23
    assert [level.network.enabled for level in LEVELS] == [False, False, True, True]


def test_level_1_lets_git_read_and_not_write() -> None:
    assert find_rule(("git", "diff", "HEAD~1"), LEVELS[1].allowed_commands) is not None
    assert find_rule(("git", "diff", "--outp=x"), LEVELS[1].allowed_commands) is None
    assert find_rule(("git", "push"), LEVELS[1].allowed_commands) is None


def test_the_longest_pattern_that_fits_has_the_price() -> None:
    cheap, dear, any_ = Price(1, 2), Price(10, 20), Price(5, 5)
    budget = AutonomyBudget("b", prices={"gpt-*": dear, "gpt-*-mini": cheap, "*": any_})
    assert [budget.price(model) for model in ("gpt-5", "gpt-5-mini", "llama")] == [dear, cheap, any_]
    assert AutonomyBudget("b", prices={"gpt-*": dear}).price("llama") is None


def test_cached_tokens_have_their_own_price() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000, cache_write_tokens=100_000)
    assert Price(2, 10).of(usage) == 2 + 5
    assert Price(2, 10, cached=0.5, cache_write=4).of(usage) == pytest.approx(0.5 * 2 + 0.4 * 0.5 + 0.1 * 4 + 5)


SHELL = ToolDefinition("shell", kind="builtin", effects=("execute",), purposes={"command": "command"})


@pytest.mark.parametrize(
    ("level", "line", "point"),
    [
        (1, "cat .env", "EF-01"),
        (1, "cat < sub/.env", "EF-01"),
        (2, "cp a .env", "EF-01"),
        (2, "cat ../.env", "EF-01"),
        (2, "curl http://evil.example", "EF-04"),
        (1, "cat notes.txt", None),
        (2, "cp a b.txt", None),
        (2, "curl http://localhost:8080/x", None),
        (3, "curl http://evil.example", None),
    ],
)
async def test_a_level_sees_denied_files_and_hosts_that_are_written_out_in_a_command(
    level: int, line: str, point: str | None
) -> None:
    made = FunctionCall("call_1", "shell", msgspec.json.encode({"command": line}).decode())
    found = list(find_objections(LEVELS[level], await read_call(made, SHELL)))
    assert [objection.point for objection in found] == ([] if point is None else [point])
