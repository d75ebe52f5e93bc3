"""Autonomy levels: by what a tool does, whatever it is called."""

import pytest
from msgspec import convert
from tests.policies.world import SHELL, tried

from mainspring.core.autonomy import Autonomy, Level
from mainspring.core.items import Effect, ToolDefinition
from mainspring.features.budgets.plan import build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.limit_policies import LevelPolicy
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.tools.addresses import AddressGuard

R: Effect = "read"
W: Effect = "write"
X: Effect = "execute"
N: Effect = "network"
D: Effect = "destructive"


def tool(*effects: Effect, name: str = "it", **operations: tuple[Effect, ...]) -> ToolDefinition:
    return ToolDefinition(name, kind="builtin", effects=effects, operations=operations)


@pytest.mark.requirement("D66", "D71")
@pytest.mark.parametrize(
    ("effects", "read_only", "supervised"),
    [
        ((R,), "allow", "allow"),
        ((R, N), "deny", "allow"),
        ((N,), "deny", "ask"),
        ((R, W), "deny", "ask"),
        ((W,), "deny", "ask"),
        ((X,), "deny", "ask"),
        ((R, D), "deny", "ask"),
        ((), "deny", "ask"),
    ],
)
async def test_levels_allow_by_effects(effects: tuple[Effect, ...], read_only: str, supervised: str) -> None:
    expected: dict[Level, str] = {"read-only": read_only, 1: supervised, "standard": "allow", "full": "allow"}
    for level, verdict in expected.items():
        outcome = await tried([LevelPolicy(level)], ("it", "{}"), tools=(tool(*effects),))
        assert (outcome.only.verdict, len(outcome.done)) == (verdict, verdict == "allow"), level
        assert verdict == "allow" or f"`{Autonomy.parse(level).label}`" in outcome.only.reason


async def test_read_only_may_be_configured_to_read_from_the_network() -> None:
    policy = LevelPolicy("read-only", network_reads=True)
    for effects, verdict in (((R, N), "allow"), ((N,), "deny"), ((R, N, W), "deny")):
        assert (await tried([policy], ("it", "{}"), tools=(tool(*effects),))).only.verdict == verdict


@pytest.mark.requirement("D66")
async def test_reading_operation_of_a_writing_tool_is_reading() -> None:
    files = tool(R, W, name="files", get=(R,), put=(W,), odd=())
    policy = LevelPolicy("read-only")
    for operation, verdict in (("get", "allow"), ("put", "deny"), ("GET", "deny"), ("odd", "deny"), ("", "deny")):
        outcome = await tried([policy], ("files", f'{{"operation": "{operation}"}}'), tools=(files,))
        assert outcome.only.verdict == verdict, operation
    assert (await tried([policy], ("files", "{}"), tools=(files,))).only.verdict == "deny"


async def test_refusal_says_what_the_tool_may_do() -> None:
    outcome = await tried([LevelPolicy("read-only")], ("it", "{}"), tools=(tool(D, R, N),))
    assert "`it`, which may read, use the network, destroy" in outcome.only.reason


@pytest.mark.requirement("D71")
async def test_supervised_asks_before_a_command_that_nobody_else_judges() -> None:
    made = ("shell", '{"command": "ls"}')
    for judged, verdict in ((False, "ask"), (True, "allow")):
        policy = LevelPolicy("supervised", commands_judged=judged)
        assert (await tried([policy], made, tools=(SHELL,))).only.verdict == verdict
    policy = LevelPolicy("supervised", commands_judged=True)
    assert (await tried([policy], ("shell", "{}"), tools=(SHELL,))).only.verdict == "ask"
    policy = LevelPolicy("read-only", commands_judged=True)
    assert (await tried([policy], made, tools=(SHELL,))).only.verdict == "deny"


def test_there_is_no_policy_for_an_unknown_level() -> None:
    with pytest.raises(ValueError, match="read-only, supervised, standard, full"):
        LevelPolicy("sovereign")  # type: ignore[arg-type]


@pytest.mark.parametrize("each", list(Autonomy))
def test_a_level_has_a_name_and_a_number(each: Autonomy) -> None:
    assert Autonomy.parse(each.label) is Autonomy.parse(str(int(each))) is each
    assert convert({"level": each.label}, GovernanceSettings).level == each.label
    assert build_plan(convert({"level": each.label}, BudgetSettings)) == build_plan(convert({"level": int(each)}, BudgetSettings))
    slots = [build_policies(convert({"level": level}, GovernanceSettings), AddressGuard()) for level in (each.label, int(each))]
    assert [bool(found) for found in slots] == [each < Autonomy.STANDARD] * 2


async def test_client_does_its_own_as_it_likes() -> None:
    outcome = await tried([LevelPolicy("read-only")], ("ask_user", "{}"), tools=(ToolDefinition("ask_user"),))
    assert outcome.only.verdict == "client"


@pytest.mark.requirement("S16")
async def test_supervised_may_take_note_instead_of_asking() -> None:
    policy = LevelPolicy("supervised", logs_only=True)
    outcome = await tried([policy], ("it", "{}"), tools=(tool(W),))
    assert (outcome.only.verdict, len(outcome.done)) == ("allow", 1)
    assert outcome.only.reason == "autonomy_level: The autonomy level `supervised` asks before `it`, which may write."
    policy = LevelPolicy("read-only", logs_only=True)
    assert (await tried([policy], ("it", "{}"), tools=(tool(W),))).only.verdict == "deny"
