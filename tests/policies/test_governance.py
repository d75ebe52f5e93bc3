"""All policies together: their order, that they are the same however a run is read, and that a refusal is not the end."""

import sys
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace
from tests.kit.engine import RecordingExecutor
from tests.policies.world import every_policy, every_slot, folder, order, tried

from mainspring import tool
from mainspring.app.engine import Engine as MainspringEngine
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Json
from mainspring.core.spec import Caller, Charter
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import PolicySlots, order_policies
from mainspring.features.agents.charter import CharterPolicy
from mainspring.features.budgets.budget_policy import BudgetPolicy
from mainspring.features.budgets.plan import build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.addresses import AddressGuard


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return folder(tmp_path)


@pytest.mark.requirement("C18")
def test_questions_are_asked_in_this_order(root: Path) -> None:
    budget: PolicySlots = {"budget": (BudgetPolicy(),), "charter": (CharterPolicy(),)}
    assert [policy.name for policy in order_policies(budget, every_slot(root), fill_standard_slots([]))] == [
        "limits", "known_tool", "allowed_tools", "valid_arguments", "caller_scopes", "tool_status", "skill_scope", "agent",
        "tool_rules", "rate", "autonomy_level", "commands", "paths", "domains", "budget", "approval", "hand_off",
    ]  # fmt: skip


def test_a_slot_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no policy slot `roles`"):
        order_policies({"roles": ()})  # type: ignore[dict-item]


def test_what_is_not_configured_is_not_asked() -> None:
    assert build_policies(GovernanceSettings(), AddressGuard()) == {}
    assert list(build_policies(GovernanceSettings(per_minute=60), AddressGuard())) == ["rate"]


@pytest.mark.requirement("C-T8", "D66")
async def test_denied_call_is_answered_with_its_rule_and_earlier_results_stay(root: Path) -> None:
    hands = RecordingExecutor()
    outside = call("file_ops", operation="read", path="/etc/passwd")
    with Scripted(call("notes"), outside, call("notes", again=True), say("All.", expect="rule `paths`")) as script:
        policies = order_policies(fill_standard_slots([hands]), {"custom": every_policy(root)})
        async with Engine(script, MemoryStore(), executors=[hands], policies=policies) as engine:
            run = await (await engine.start(order(4))).wait()
    assert (run.status, run.text) == ("completed", "All.")
    assert [name for name, _ in hands.done] == ["notes", "notes"]


@pytest.mark.requirement("D67")
@pytest.mark.parametrize("approve", [True, False])
async def test_command_that_needs_approval_runs_only_after_a_yes(root: Path, approve: bool) -> None:
    hands = RecordingExecutor()
    with Scripted(call("shell", command="make install"), say("Done.", expect="done" if approve else "refused")) as script:
        policies = order_policies(fill_standard_slots([hands]), {"custom": every_policy(root)})
        async with Engine(script, MemoryStore(), executors=[hands], policies=policies) as engine:
            paused = await (await engine.start(order(1))).wait()
            assert (paused.status, paused.reason, hands.done) == ("requires_action", "approval_needed", [])
            [waits] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
            answer = replace(order(1, parent="resp_1"), id="resp_2", input=(ApprovalResponse(waits.id, approve),))
            with pytest.raises(InvalidRequest, match="lacks the scope `approvals`"):
                await engine.start(answer)
            answer = replace(answer, caller=Caller("boss", ("approvals", "tools:execute")))
            run = await (await engine.start(answer)).wait()
    assert (run.text, len(hands.done)) == ("Done.", approve)


@pytest.mark.requirement("D62")
@pytest.mark.parametrize("background", [True, False])
async def test_level_holds_whether_a_run_is_streamed_or_in_the_background(root: Path, background: bool) -> None:
    hands = RecordingExecutor()
    policies = order_policies(fill_standard_slots([hands]), {"custom": every_policy(root, "read-only")})
    script = Scripted(call("file_ops", operation="write", path="notes.txt"), say("Well.", expect="level `read-only`"))
    async with Engine(script, MemoryStore(), executors=[hands], policies=policies) as engine:
        handle = await engine.start(order(1, background=background))
        if not background:
            assert [record async for record in handle.events()]
        assert (await handle.wait()).text == "Well."
    assert hands.done == []


@pytest.mark.requirement("S12", "D65")
@pytest.mark.parametrize("arguments", ["[]", '["rm"]', "{", "3", '"rm"', "null"])
async def test_arguments_are_parsed_before_they_are_judged(root: Path, arguments: str) -> None:
    outcome = await tried(every_policy(root), ("shell", arguments))
    assert (outcome.only.policy, outcome.only.verdict, outcome.run.text) == ("valid_arguments", "deny", "Well.")


@pytest.mark.requirement("D65")
async def test_no_arguments_at_all_are_an_empty_object(root: Path) -> None:
    outcome = await tried(every_policy(root), ("notes", ""))
    assert (outcome.only.verdict, outcome.done) == ("allow", [("notes", {})])


@tool(effects=("execute",), purposes={"line": "command"})
def terminal(line: str) -> str:
    """Runs a line, it says."""
    return "ran it"


async def test_a_line_is_parsed_once_for_all_policies(root: Path) -> None:
    """Counts what the interpreter itself reports of processes that are started."""
    started: list[str] = []
    is_counting = True

    def count(event: str, arguments: object) -> None:
        if is_counting and event == "subprocess.Popen":
            started.append(str(arguments))

    sys.addaudithook(count)
    lists = {"commands": {"allowed": ["ls", "wc"]}, "paths": {"allowed": [str(root)], "denied": [".env"]}, "domains": {}}
    table = {"level": "supervised", "rules": {"terminal": "allow"}, **lists}
    policies = build_policies(convert(table, GovernanceSettings), AddressGuard())
    charter = Charter("clerk", "supervised", commands=("ls", "wc"), files=("src",), root=str(root))
    options: Json = {"policies": policies, "budget": build_plan(BudgetSettings(per="tenant", level=2))}
    try:
        async with MainspringEngine(
            Scripted(call("terminal", line="ls src/main.py | wc -w"), say("Done.")), tools=[terminal], **options
        ) as e:
            run = await e.run("Count.", charters=(charter,))
    finally:
        is_counting = False
    assert [item.name for item in run.allowed] == ["terminal"]
    assert len(started) == 1, started


async def test_what_would_be_denied_is_denied_before_a_person_is_asked(root: Path) -> None:
    """A rule that asks comes before the paths in the order; a path outside is denied all the same, and nobody is asked."""
    hands = RecordingExecutor()
    governance = convert({"rules": {"file_ops": "ask"}, "paths": {"allowed": [str(root)]}}, GovernanceSettings)
    policies = order_policies(fill_standard_slots([hands]), build_policies(governance, AddressGuard()))
    outside = call("file_ops", operation="read", path="/etc/passwd")
    with Scripted(outside, say("Denied.", expect="paths")) as script:
        async with Engine(script, MemoryStore(), executors=[hands], policies=policies) as engine:
            run = await (await engine.start(order(1))).wait()
    assert (run.status, run.text) == ("completed", "Denied.")


async def test_a_question_costs_no_rate_and_the_approved_call_runs(root: Path) -> None:
    hands, store = RecordingExecutor(), MemoryStore()
    governance = convert({"rules": {"notes": "ask"}, "per_minute": 1, "burst": 1}, GovernanceSettings)
    policies = order_policies(fill_standard_slots([hands]), build_policies(governance, AddressGuard()))
    with Scripted(call("notes"), say("Noted.")) as script:
        async with Engine(script, store, executors=[hands], policies=policies) as engine:
            free = order(1, caller=Caller("ada"))
            asked = await (await engine.start(free)).wait()
            (question,) = [item for item in asked.output if isinstance(item, ApprovalRequest)]
            given = ApprovalResponse(question.id, approve=True)
            run = await (await engine.start(replace(free, id="resp_2", parent="resp_1", input=(given,)))).wait()
    assert (run.status, run.text, len(hands.done)) == ("completed", "Noted.", 1)
