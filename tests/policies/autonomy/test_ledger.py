"""One budget for many runs: reserved before it is used, settled after, and never exceeded, whoever dies when."""

import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.engine import RecordingExecutor
from tests.kit.processes import DEVNULL, start
from tests.policies.autonomy.world import BUDGET, engine_of, only, order, with_limits

from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.core.events import Reason
from mainspring.core.items import ApprovalRequest, ApprovalResponse
from mainspring.features.budgets.amounts import Amounts, Spent
from mainspring.features.budgets.budget import AutonomyLimits
from mainspring.features.budgets.budget_policy import BudgetPolicy
from mainspring.features.budgets.enforce import MEASURES
from mainspring.features.budgets.ledger import BudgetAccount, Ledger
from mainspring.ports import Store
from mainspring.providers.script import Call
from mainspring.providers.scripted import calls
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store


def within(account: BudgetAccount) -> bool:
    """Spent plus reserved is within every limit."""
    most, shares = account.budget.amounts, [reserved.share for reserved in account.held.values()]
    held = {measure.name: sum(getattr(share, measure.name) or 0 for share in shares) for measure in MEASURES}
    limits = [
        (getattr(most, measure.name), getattr(account.spent.amounts, measure.name) + held[measure.name]) for measure in MEASURES
    ]
    for command, limit in most.commands.items():
        limits.append((limit, account.spent.commands.get(command, 0) + sum(share.commands.get(command, 0) for share in shares)))
    return all(limit is None or used <= limit for limit, used in limits)


async def test_a_run_reserves_its_share_works_within_it_and_gives_back_the_rest(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    spec = await ledger.admit(order(max_turns=10, max_tool_calls=4), "b1", at_most=Amounts(files=2, tokens=5000))
    held = (await ledger.find_account("b1")).held["resp_1"].share
    assert held == Amounts(10, 3600, 4, 2, 5000, 3, 5000, None, {"git (status|log)( .*)?": 2})
    made = calls(
        Call("files", {"operation": "write", "path": "src/a", "content": "1\n2"}),
        Call("shell", {"command": "git log"}),
        Call("fetch", {"url": "https://docs.example/"}),
    )
    async with engine_of(made, store=store, sinks=[ledger]) as engine:
        run = await (await engine.start(spec)).wait()
    account = await ledger.find_account("b1")
    assert account.held == {}
    assert account.spent == Spent(
        2, run.elapsed, 3, ("src/a",), 2, 1, run.usage.total_tokens, commands={"git (status|log)( .*)?": 1}
    )
    assert (account.left.iterations, account.left.calls, account.left.files, account.left.requests) == (98, 197, 49, 2)
    assert account.left.commands == {"git (status|log)( .*)?": 1}


async def test_of_two_who_begin_a_run_the_one_that_gives_up_leaves_its_share_to_the_other(store: Store) -> None:
    ledger, other = Ledger(store), Ledger(store)
    await ledger.open(BUDGET)
    spec = await ledger.admit(order(max_turns=10), "b1")
    assert await other.admit(order(max_turns=10), "b1") == spec
    await other.withdraw("resp_1", "b1")
    assert list((await ledger.find_account("b1")).held) == ["resp_1"]
    async with engine_of(store=store, sinks=[ledger]) as engine:
        await other.admit(order(max_turns=10), "b1")
        handle = await engine.start(spec)
        await handle.wait()
        await other.withdraw("resp_1", "b1")
    assert (await ledger.settle_ended("b1")).spent.iterations == 1
    await ledger.admit(order(id="two"), "b1")
    await ledger.withdraw("two", "b1")
    assert (await ledger.find_account("b1")).held == {}


async def test_what_one_run_holds_another_cannot_have(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(with_limits(max_iterations=10))
    await ledger.admit(order(id="one", max_turns=7, max_seconds=60), "b1")
    second = await ledger.admit(order(id="two", max_turns=7, max_seconds=60), "b1")
    assert second.limits.budget_turns == 3
    with pytest.raises(InvalidRequest, match=r"nothing left of iterations.*held by runs: `one`, `two`") as caught:
        await ledger.admit(order(id="three"), "b1")
    assert caught.value.code == "budget_exceeded"
    await ledger.release("two", "b1")
    third = await ledger.admit(order(id="three"), "b1")
    assert third.limits.budget_turns == 3


async def test_a_closing_turn_is_reserved_with_the_turns_before_it(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    spec = await ledger.admit(order(max_turns=2, close="Last words."), "b1")
    turns = [calls(Call("look", {"n": n})) for n in range(4)]
    async with engine_of(*turns, store=store) as engine:
        run = await (await engine.start(spec)).wait()
    assert (run.turns, run.reason) == (3, Reason.MAX_TURNS)
    assert (await ledger.find_account("b1")).held["resp_1"].share.iterations == 3


async def test_a_run_that_is_admitted_again_keeps_its_share(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    spec = order(max_turns=5)
    assert await ledger.admit(spec, "b1") == await Ledger(store).admit(spec, "b1")
    assert len((await ledger.find_account("b1")).held) == 1


async def test_the_budget_is_used_across_the_runs_of_a_task(store: Store) -> None:
    """A call is approved in one run and performed in the next: both are paid from one account."""
    ledger, hands = Ledger(store), RecordingExecutor()
    await ledger.open(with_limits(max_tool_calls=2))
    turns = [calls(Call("look"), Call("shell", {"command": "python3 x.py"})), calls(Call("look", {"n": 1}))]
    async with engine_of(*turns, store=store, hands=hands, policy=BudgetPolicy(ledger.find_state), sinks=[ledger]) as engine:
        asked = await (await engine.start(await ledger.admit(order(), "b1"))).wait()
        [request] = [item for item in asked.output if isinstance(item, ApprovalRequest)]
        again = order(id="resp_2", parent="resp_1", input=(ApprovalResponse(request.id, approve=True),))
        run = await (await engine.start(await ledger.admit(again, "b1"))).wait()
    assert [name for name, _ in hands.done] == ["look", "shell"]
    assert run.reason == Reason.MAX_TOOL_CALLS
    account = await Ledger(store).settle_ended("b1")
    assert (account.spent.calls, account.held) == (2, {})


async def test_an_ended_run_that_nobody_settled_is_settled_from_its_log(store: Store) -> None:
    """Also one that continues another: what was approved before it is counted with it."""
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    turns = [Call("shell", {"command": "python3 x.py > src/out"})]
    async with engine_of(*turns, store=store) as engine:
        asked = await (await engine.start(await ledger.admit(order(), "b1", at_most=Amounts(50, 60, 50, 25, 10, 1)))).wait()
        [request] = [item for item in asked.output if isinstance(item, ApprovalRequest)]
        again = order(id="resp_2", parent="resp_1", input=(ApprovalResponse(request.id, approve=True),))
        await (await engine.start(await ledger.admit(again, "b1"))).wait()
    assert list((await ledger.find_account("b1")).held) == ["resp_2"]
    account = await ledger.settle_ended("b1")
    assert (account.held, account.spent.calls, account.spent.files, account.spent.iterations) == ({}, 1, ("src/out",), 2)


async def test_a_run_that_was_prevented_from_beginning_has_used_nothing_of_its_share(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    spec = await ledger.admit(order(), "b1")
    async with engine_of(store=store) as engine:
        await engine.prevent(order())
        with pytest.raises(MainspringError):
            await (await engine.start(spec)).wait()
    account = await ledger.settle_ended("b1")
    assert (account.held, account.spent) == ({}, Spent())


async def test_a_run_under_way_and_one_that_left_no_log_keep_their_shares(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(with_limits(max_iterations=10))
    spec = await ledger.admit(order(max_turns=4, store=False), "b1")
    async with engine_of(store=store) as engine:
        await (await engine.start(spec)).wait()
    assert (await ledger.settle_ended("b1")).left.iterations == 6


async def test_a_run_that_was_not_stored_is_settled_as_it_ends(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(with_limits(max_iterations=10))
    spec = await ledger.admit(order(max_turns=4, store=False), "b1")
    async with engine_of(store=store, sinks=[ledger]) as engine:
        await (await engine.start(spec)).wait()
    assert (await ledger.find_account("b1")).left.iterations == 9


async def test_a_share_is_not_given_back_once_its_run_has_begun(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    async with engine_of(store=store) as engine:
        await (await engine.start(await ledger.admit(order(), "b1"))).wait()
        with pytest.raises(InvalidRequest, match="has begun"):
            await ledger.release("resp_1", "b1")


async def test_settling_twice_counts_once(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET)
    async with engine_of(store=store) as engine:
        run = await (await engine.start(await ledger.admit(order(), "b1"))).wait()
    assert await ledger.settle(run, "b1") == await Ledger(store).settle(run, "b1")


async def test_a_budget_lives_in_the_store_and_only_an_active_one_admits(store: Store) -> None:
    ledger, other = Ledger(store), Ledger(store)
    await ledger.open(replace(BUDGET, state="draft"))
    with pytest.raises(InvalidRequest, match="PF-02"):
        await ledger.admit(order(), "b1")
    await ledger.move("b1", "pending_approval")
    account = await other.move("b1", "active", by="ada")
    assert (account.budget.state, account.budget.approved_by) == ("active", "ada")
    await ledger.admit(order(max_turns=1), "b1")
    await ledger.move("b1", "suspended")
    assert await other.find_state("", "b1") == "suspended"
    with pytest.raises(InvalidRequest, match="from `suspended` to `completed`"):
        await other.move("b1", "completed")
    with pytest.raises(InvalidRequest, match="PF-02"):
        await other.admit(order(id="two"), "b1")


async def test_budgets_have_ids_of_their_own_within_a_tenant(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.open(BUDGET, tenant="ada")
    with pytest.raises(InvalidRequest, match="there already"):
        await ledger.open(BUDGET, tenant="ada")
    await ledger.open(with_limits(max_iterations=1), tenant="bo")
    assert (await ledger.find_account("b1", tenant="ada")).budget == BUDGET
    with pytest.raises(NotFound, match="there is no budget `b1`"):
        await ledger.find_account("b1")
    assert await ledger.find_state("", "b1") is None


async def test_suspending_a_budget_stops_the_runs_that_work_under_it() -> None:
    store = MemoryStore()
    ledger, hands = Ledger(store), RecordingExecutor()
    await ledger.open(BUDGET)

    class Suspends(RecordingExecutor):
        async def execute(self, *given: object) -> object:  # type: ignore[override]
            await ledger.move("b1", "suspended")
            return await super().execute(*given)  # type: ignore[arg-type]

    hands = Suspends()
    turns = [Call("look", {"n": n}) for n in range(3)]
    async with engine_of(*turns, store=store, hands=hands, policy=BudgetPolicy(ledger.find_state)) as engine:
        run = await (await engine.start(await ledger.admit(order(), "b1"))).wait()
    assert (run.reason, len(hands.done)) == (Reason.BUDGET, 1)


async def test_many_at_once_in_two_processes_worth_of_ledgers_share_what_there_is(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "b.db") as one, SqliteStore(tmp_path / "b.db") as two:
        ledgers = [Ledger(one), Ledger(two)]
        await ledgers[0].open(with_limits(max_iterations=30))
        refused: list[str] = []

        async def admitted(number: int) -> None:
            try:
                await ledgers[number % 2].admit(order(id=f"run_{number}", max_turns=4, max_seconds=60), "b1")
            except InvalidRequest as error:
                refused.append(error.message)

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(admitted, number)
        account = await ledgers[1].find_account("b1")
    shares = [reserved.share.iterations for reserved in account.held.values()]
    assert sorted(shares, key=str) == [2, *[4] * 7]
    assert len(refused) == 4
    assert within(account)


_number = st.none() | st.integers(0, 12)
_limits = st.builds(
    lambda turns, made, files, lines, tokens: only(
        max_iterations=turns, max_tool_calls=made, max_files_modified=files, max_lines_changed=lines, max_tokens=tokens
    ),
    _number, _number, _number, _number, _number,
)  # fmt: skip
_at_most = st.builds(Amounts, _number, st.none(), _number, _number, _number, _number, _number)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 4), _at_most),
        st.tuples(st.just("run"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 4), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    max_size=14,
)


@given(_limits, _steps)
@settings(max_examples=60)
async def test_spent_plus_reserved_never_exceeds_a_limit(
    limits: AutonomyLimits, steps: list[tuple[str, int | None, object]]
) -> None:
    """Admissions, runs that are settled or not, releases and restarts in any order."""
    store = MemoryStore()
    ledger = Ledger(store)
    # Tokens are known only after they were used, so the law is about what can be counted before.
    await ledger.open(replace(BUDGET, limits=replace(limits, max_tokens=None)))
    specs = {}
    for step, number, detail in steps:
        match step:
            case "admit" if isinstance(detail, Amounts):
                with suppress(InvalidRequest):
                    specs[number] = await ledger.admit(
                        order(id=f"run_{number}", max_turns=3, max_seconds=60), "b1", at_most=detail
                    )
            case "run" if number in specs:
                turn = calls(*[Call("files", {"operation": "write", "path": f"src/{n}", "content": "1\n2"}) for n in range(4)])
                async with engine_of(turn, turn, turn, store=store, sinks=[ledger] if detail else []) as engine:
                    await (await engine.start(specs.pop(number))).wait()
            case "release":
                with suppress(InvalidRequest):
                    await ledger.release(f"run_{number}", "b1")
                    specs.pop(number, None)
            case "settle":
                await ledger.settle_ended("b1")
            case "restart":
                ledger = Ledger(store)
        assert within(await ledger.find_account("b1"))
        assert await ledger.find_account("b1") == await Ledger(store).find_account("b1")


def killed_after(lines: int, database: str, tally: Path) -> list[str]:
    """Starts the worker and kills it once it has said so many lines; returns all that it has said."""
    with start([sys.executable, str(WORKER), database, str(tally)], stderr=DEVNULL) as worker:
        assert worker.stdout is not None
        said = [line.strip() for line in islice(worker.stdout, lines)]
        worker.kill()
        return said + worker.stdout.read().split()


@pytest.mark.slow
async def test_a_process_killed_again_and_again_never_exceeds_the_budget_that_it_shares(
    location: Location, tmp_path: Path
) -> None:
    database, tally = location.given, tmp_path / "tally"
    for lines in (1, 2, 4, 6, 9, 11):
        said = killed_after(lines, database, tally)
        assert "used_up" not in said, "it was killed at work"
        async with open_store(location) as store:
            assert within(await Ledger(store).find_account("shared"))
    assert killed_after(1000, database, tally)[-1] == "used_up"
    made = tally.read_text().splitlines()
    assert len(made) == len(set(made)), "no call ran twice"
    async with open_store(location) as store:
        account = await Ledger(store).settle_ended("shared")
    assert within(account)
    assert len(made) <= account.spent.calls, "every call that ran was paid for"
    assert account.left.calls == 0, "and all was used"
