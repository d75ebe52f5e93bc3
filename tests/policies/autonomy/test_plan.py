"""Which budget a run works under: the operator's, narrowed and never widened by its order, alone or shared with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import convert
from msgspec.structs import replace
from tests.policies.autonomy.test_ledger import within
from tests.policies.autonomy.world import BUDGET, with_limits

from mainspring import Engine, tool
from mainspring.core.autonomy import Autonomy
from mainspring.core.errors import InvalidRequest, PreviousNotFound
from mainspring.core.events import Reason
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Json
from mainspring.core.run import Call as Judged
from mainspring.core.run import Run
from mainspring.core.spec import Caller, Conversation, Price
from mainspring.features.approvals.pending import Approvals
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget, AutonomyLimits, EscalationTrigger, FileScope, Network
from mainspring.features.budgets.budget_policy import read_budget
from mainspring.features.budgets.ledger import Ledger, StatementLine, make_statement
from mainspring.features.budgets.plan import LEVEL, Plan, build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.ports import Allow, Ask, Document, Verdict
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.scope import AllowedCommand

done: list[str] = []


@tool(effects=("read",))
def look(n: int = 0) -> str:
    done.append("look")
    return "seen"


@tool(effects=("write",), purposes={"path": "path"})
def write(path: str) -> str:
    done.append(path)
    return "written"


@asynccontextmanager
async def engine(budget: AutonomyBudget | Plan | None, *turns: Turn | Call, **options: Any) -> AsyncIterator[Engine]:
    done.clear()
    script = Scripted(*turns, *[say("Done.")] * 9, chunk=0)
    async with Engine(script, tools=[look, write], budget=budget, store=options.pop("store", MemoryStore()), **options) as made:
        yield made


def layers(run: Run) -> list[str]:
    budget = read_budget(run.spec)
    return [] if budget is None else [layer.budget_id for layer in budget.layers]


async def test_every_run_is_under_the_engines_budget() -> None:
    async with engine(LEVELS[0], call("write", path="a"), call("look")) as at:
        run = await at.run("Go.")
    assert (done, layers(run)) == (["look"], ["level-0"])
    assert "0 files modified" in str(run.output[1])


async def test_without_a_budget_nothing_is_bounded() -> None:
    async with engine(None, call("write", path="a")) as at:
        run = await at.run("Go.")
    assert (done, layers(run), run.spec.allowance) == (["a"], [], None)


@pytest.mark.parametrize(("budget", "level"), [(LEVELS[2], "0"), (LEVELS[0], "3"), (None, "0"), (None, "read-only")])
async def test_a_request_narrows_and_never_widens(budget: AutonomyBudget | None, level: str) -> None:
    async with engine(budget, call("write", path="a"), call("look")) as at:
        run = await at.run("Go.", metadata={LEVEL: level})
    assert done == ["look"]
    assert layers(run) == [*([] if budget is None else [budget.budget_id]), f"level-{int(Autonomy.parse(level))}"]
    assert run.spec.limits.budget_turns == 5


@pytest.mark.parametrize("level", ["4", "-1", "", "Full", "0 ", "٣"])
async def test_a_level_that_is_none_is_refused(level: str) -> None:
    async with engine(None) as at:
        with pytest.raises(InvalidRequest, match=r"metadata.mainspring_autonomy_level must be") as refused:
            await at.run("Go.", metadata={LEVEL: level})
    assert refused.value.param == "metadata"


async def test_a_budget_that_the_order_brings_holds_beside_the_engines() -> None:
    own = replace(LEVELS[3], budget_id="agent", limits=AutonomyLimits(max_tool_calls=1))
    async with engine(LEVELS[1], calls(Call("look"), Call("look", {"n": 1})), call("write", path="a")) as at:
        run = await at.run("Go.", budget=msgspec.to_builtins(own))
    assert (done, layers(run)) == (["look"], ["level-1", "agent"])
    assert run.reason == Reason.MAX_TOOL_CALLS


@pytest.mark.parametrize(
    ("budget", "point"),
    [
        (replace(BUDGET, state="suspended"), "PF-02"),
        (replace(BUDGET, expires_at=datetime(2020, 1, 1, tzinfo=UTC)), "PF-03"),
        (replace(BUDGET, in_scope=()), "PF-04"),
        (with_limits(max_cost=1.0), "PF-08"),
    ],
)
@pytest.mark.parametrize("per", ["run", "tenant"])
async def test_a_run_does_not_begin_unless_preflight_clears_it(budget: AutonomyBudget, point: str, per: Any) -> None:
    async with engine(Plan(budget, per)) as at:
        with pytest.raises(InvalidRequest, match=point) as caught:
            await at.run("Go.")
    assert (caught.value.status, caught.value.param) == (400, "budget")
    assert not (await at.store.list()).runs


async def test_a_run_that_goes_on_after_an_approval_has_what_is_left() -> None:
    asked = (EscalationTrigger("EF-02"),)
    budget = replace(LEVELS[1], limits=AutonomyLimits(5, 10, 3), files=FileScope(), escalation_triggers=asked)
    turns = [call("look"), call("look", n=1), call("write", path="a"), call("look", n=2), call("look", n=3)]
    async with engine(budget, *turns) as at:
        paused = await at.run("Go.")
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        run = await at.run([ApprovalResponse(request.id, approve=True)], previous=paused.spec.id)
    assert done == ["look", "look", "a"]
    assert run.spec.limits.budget_turns == 2
    assert run.reason == Reason.MAX_TOOL_CALLS


async def test_whoever_continues_a_run_cannot_leave_its_budget_out() -> None:
    """The approval is answered by an order that does not name the level that the paused one named."""
    async with engine(None, call("write", path="a"), policies=[AsksFirst()]) as at:
        paused = await at.run("Go.", metadata={LEVEL: "1"})
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        run = await at.run([ApprovalResponse(request.id, approve=True)], previous=paused.spec.id)
    assert (done, layers(run)) == (["a"], ["level-1"])


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Judged, run: Run) -> Verdict:
        return Ask("May I?")


def shared(per: Any = "tenant", **limits: Any) -> Plan:
    return Plan(replace(BUDGET, limits=replace(BUDGET.limits, **limits)), per, share=0.5)


async def test_runs_of_a_tenant_share_an_account_and_other_tenants_have_their_own() -> None:
    async with engine(shared(max_tool_calls=4), *[call("look", n=n) for n in range(8)]) as at:
        for tenant in ("a", "a", "b"):
            await at.run("Go.", tenant=tenant, max_turns=3)
        one, other = [await at.admission.ledger.settle_ended("b1", tenant=tenant) for tenant in ("a", "b")]
    assert (one.spent.calls, other.spent.calls) == (4, 2)
    assert (one.held, other.held) == ({}, {})


async def test_keys_have_accounts_of_their_own() -> None:
    async with engine(shared("key"), call("look")) as at:
        for subject in ("key:1", "key:2", ""):
            await at.run("Go.", caller=Caller(subject))
        accounts = await at.admission.ledger.list_accounts()
    assert [account.budget.budget_id for account in accounts] == ["b1.key:1", "b1.key:2", "b1"]


async def test_a_tenant_may_have_a_budget_of_its_own() -> None:
    plan = Plan(LEVELS[1], tenants={"acme": replace(LEVELS[0], budget_id="acme")})
    async with engine(plan, call("write", path="a")) as at:
        assert layers(await at.run("Go.")) == ["level-1"]
        assert layers(await at.run("Go.", tenant="acme")) == ["acme"]


async def test_what_parallel_runs_use_and_hold_never_exceeds_the_account() -> None:
    """Twenty runs at once, each of which would use all: some are refused, some end early, and the limits hold throughout."""
    turns = [calls(*[Call("look", {"n": n}) for n in range(4)]) for _ in range(9)]
    ends: list[str] = []
    async with engine(shared(max_tool_calls=24, max_iterations=20), *turns) as at:

        async def one(number: int) -> None:
            try:
                ends.append(str((await at.run("Go.", max_turns=3)).status))
            except InvalidRequest as error:
                ends.append(error.code)
            assert within(await at.admission.ledger.find_account("b1"))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
        account = await at.admission.ledger.settle_ended("b1")
    assert len(done) == account.spent.calls <= 24
    assert within(account)
    assert len(ends) == 20
    assert "budget_exceeded" in ends
    assert set(ends) <= {"budget_exceeded", "completed", "incomplete"}


async def test_a_run_that_does_not_begin_gives_its_share_back() -> None:
    async with engine(shared()) as at:
        with pytest.raises(PreviousNotFound):
            await at.run("Go.", previous="resp_unheard_of")
        account = await at.admission.ledger.find_account("b1")
    assert (account.held, account.entries) == ({}, 3)


async def test_new_limits_hold_for_an_account_that_is_there_and_what_was_used_stays_used() -> None:
    store = MemoryStore()
    async with engine(shared(max_tool_calls=9), call("look"), store=store) as at:
        await at.run("Go.")
        await at.admission.ledger.move("b1", "suspended")
    async with engine(shared(max_tool_calls=2), store=store) as at:
        with pytest.raises(InvalidRequest, match="PF-02: the budget `b1` is suspended"):
            await at.run("Go.")
        await at.admission.ledger.move("b1", "active", by="ada")
        account = await at.admission.ledger.find_account("b1")
    assert (account.left.calls, account.spent.calls, account.budget.approved_by) == (1, 1, "ada")
    assert (await at.admission.ledger.keep(account.budget)).entries == account.entries, "nothing has changed, nothing is added"


async def test_a_budget_that_is_suspended_stops_its_runs() -> None:
    store = MemoryStore()

    class Suspends:
        name = "suspends"

        async def judge(self, call: Judged, run: Run) -> Verdict:
            if call.item.arguments == '{"n":1}':
                await Ledger(store).move("b1", "suspended")
            return Allow()

    async with engine(shared(), call("look"), call("look", n=1), call("look", n=2), store=store, policies=[Suspends()]) as at:
        run = await at.run("Go.")
    assert (done, run.reason) == (["look"], Reason.BUDGET)


async def test_a_statement_says_what_is_used_held_and_left() -> None:
    async with engine(shared(max_tool_calls=10), call("look")) as at:
        await at.run("Go.")
        ledger = at.admission.ledger
        await ledger.settle_ended("b1")
        await ledger.admit(replace(at.order("Go.", max_tool_calls=3), id="resp_held"), "b1")
        told = make_statement(await ledger.find_account("b1"))
    assert (told.id, told.state, told.runs) == ("b1", "active", ("resp_held",))
    assert [line for line in told.lines if line.measure == "calls"] == [StatementLine("calls", 1, 3, 6, 10)]


def table(**changes: Any) -> BudgetSettings:
    return convert({"level": 1, **changes}, BudgetSettings)


def test_the_table_begins_with_a_level_and_changes_what_it_names() -> None:
    plan = build_plan(
        table(per="key", share=0.1, limits={"max_tokens": 9, "max_iterations": "unlimited"}, network={"enabled": True})
    )
    assert plan is not None
    limits = replace(LEVELS[1].limits, max_tokens=9, max_iterations=None)
    wanted = replace(LEVELS[1], budget_id="default", limits=limits, network=Network(enabled=True))
    assert plan == Plan(wanted, "key", 0.1)


def test_no_table_is_no_plan_and_a_table_without_a_level_bounds_only_what_it_names() -> None:
    assert build_plan(BudgetSettings()) is None
    plan = build_plan(convert({"limits": {"max_cost": 2.5}, "prices": {"*": {"input": 1, "output": 5}}}, BudgetSettings))
    assert plan is not None
    assert plan.budget.limits == replace(LEVELS[3].limits, max_cost=2.5)
    assert plan.budget.price("any") == Price(1, 5)


def test_a_tenants_table_is_the_common_one_with_changes() -> None:
    plan = build_plan(table(limits={"max_tokens": 9}, tenants={"acme": {"level": 0, "limits": {"max_tokens": 90}}}))
    assert plan is not None
    assert plan.tenants["acme"].limits == replace(LEVELS[0].limits, max_tokens=90)
    assert plan.budget.limits.max_tokens == 9


def test_a_tenants_table_keeps_of_every_table_what_it_does_not_say_itself() -> None:
    common = {"limits": {"max_cost": 20, "max_tokens": 1000}, "files": {"deny": [".env", "*.pem"]}, "network": {"enabled": False}}
    own = {"limits": {"max_tool_calls": 5}, "files": {"write": ["out/**"]}, "prices": {"small*": {"input": 1, "output": 1}}}
    plan = build_plan(table(level=3, **common, prices={"*": {"input": 3, "output": 15}}, tenants={"acme": own}))
    assert plan is not None
    acme = plan.tenants["acme"]
    assert acme.limits == replace(LEVELS[3].limits, max_cost=20, max_tokens=1000, max_tool_calls=5)
    assert acme.files == replace(LEVELS[3].files, deny=(".env", "*.pem"), write=("out/**",))
    assert acme.network == replace(LEVELS[3].network, enabled=False)
    assert (acme.price("small-1"), acme.price("large")) == (Price(1, 1), Price(3, 15))


@pytest.mark.parametrize(
    "changes",
    [
        {"level": 4},
        {"level": True},
        {"level": "2"},
        {"tenants": {"bad": 3}},
        {"tenants": {"bad": {"per": "key"}}},
        {"per": "hour"},
        {"limits": {"max_token": 1}},
        {"limits": {"max_tokens": -1}},
        {"limits": {"max_tokens": "many"}},
        {"limits": 5},
        {"tenants": ["acme"]},
        {"share": 2.0},
        {"limts": {}},
        {"allowed_commands": [{"command": "ls", "args_pattern": "("}]},
    ],
)
def test_a_mistake_in_the_table_is_refused(changes: Json) -> None:
    with pytest.raises(msgspec.ValidationError):
        table(**changes)


@pytest.mark.parametrize("changes", [{"per": "run"}, {"share": 0.2}, {"limits": {}}, {"tenants": {}}])
def test_a_table_that_says_only_what_holds_anyway_is_a_plan(changes: Json) -> None:
    plan = build_plan(convert(changes, BudgetSettings))
    assert plan == Plan(replace(LEVELS[3], budget_id="default"))


async def test_a_budget_that_is_called_like_the_operators_is_not_taken_for_it() -> None:
    own = replace(LEVELS[0], budget_id="b1")
    async with engine(replace(LEVELS[3], budget_id="b1"), call("write", path="a"), call("look")) as at:
        run = await at.run("Go.", budget=msgspec.to_builtins(own))
    assert (done, layers(run)) == (["look"], ["b1", "b1"])


async def test_whoever_deletes_the_paused_run_does_not_get_rid_of_its_budget() -> None:
    """In a conversation the call outlives the response that asked about it, and cannot be approved any more."""
    store = MemoryStore()
    async with engine(None, call("write", path="a"), store=store, policies=[AsksFirst()]) as at:
        await store.put([Document("conversation", "conv_1", b"{}")])
        conversation = Conversation("conv_1")
        paused = await at.run("Go.", conversation=conversation, metadata={LEVEL: "1"})
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        await at.forget(paused.spec.id)
        with pytest.raises(InvalidRequest, match="No approval request"):
            await at.run([ApprovalResponse(request.id, approve=True)], conversation=conversation)
    assert done == []


async def test_a_run_that_goes_on_is_paid_from_the_account_it_was_paid_from() -> None:
    plan = Plan(replace(LEVELS[3], budget_id="b1"), "key")
    async with engine(plan, call("look"), call("write", path="a"), policies=[AsksFirst()]) as at:
        paused = await at.run("Go.", caller=Caller("key:1"))
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        approvals = Approvals(at.core)
        answered = await approvals.answer(request.id, approve=True, by="key:2")
        assert answered.handle is not None
        run = await answered.handle.wait()
        ids = [account.budget.budget_id for account in await at.admission.ledger.list_accounts()]
    assert run.spec.caller.subject == "key:2"
    assert (ids, layers(run)) == (["b1.key:1"], ["b1.key:1"])


async def test_an_approval_does_not_widen_what_was_denied_since() -> None:
    """The operator lowers the level between the question and the answer: the approved call is judged by the new one."""
    store = MemoryStore()
    async with engine(LEVELS[3], call("write", path="a"), store=store, policies=[AsksFirst()]) as at:
        paused = await at.run("Go.")
    [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
    async with engine(LEVELS[0], store=store, policies=[AsksFirst()]) as at:
        run = await at.run([ApprovalResponse(request.id, approve=True)], previous=paused.spec.id)
    assert (done, layers(run)) == ([], ["level-0", "level-3"])


async def test_one_answer_sent_many_times_at_once_is_used_and_paid_once() -> None:
    plan = replace(shared(max_tool_calls=20), share=0.05)
    async with engine(plan, call("write", path="src/a"), policies=[AsksFirst()]) as at:
        paused = await at.run("Go.")
        [request] = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        ends: list[str] = []

        async def one() -> None:
            try:
                run = await at.run([ApprovalResponse(request.id, approve=True)], previous=paused.spec.id)
                ends.append(str(run.status))
            except InvalidRequest as error:
                ends.append(error.code)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)
        account = await at.admission.ledger.settle_ended("b1")
    assert (done, ends.count("completed"), ends.count("approval_already_given")) == (["src/a"], 1, 7)
    assert (account.spent.calls, account.held) == (1, {}), "those who were refused have given their shares back"


@pytest.mark.parametrize("per", ["run", "tenant"])
async def test_overlays_of_the_operators_own_budget_hold_too(per: Any) -> None:
    budget = replace(LEVELS[3], budget_id="b1", overlays=(LEVELS[0],))
    async with engine(Plan(budget, per), call("write", path="a"), call("look")) as at:
        run = await at.run("Go.", metadata={LEVEL: "2"})
    assert (done, layers(run)) == (["look"], ["b1", "level-0", "level-2"])


def test_a_command_may_be_written_as_a_word() -> None:
    plan = build_plan(table(allowed_commands=["ls", {"command": "git", "args_pattern": "log", "max_calls": "unlimited"}]))
    assert plan is not None
    assert plan.budget.allowed_commands == (AllowedCommand("ls"), AllowedCommand("git", "log"))
