"""The budget of a run in the real engine: every decision has its consequence, whichever way the run is driven."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.engine import RecordingExecutor
from tests.kit.waiting import PATIENCE
from tests.policies.autonomy.world import BUDGET, engine_of, only, order, tried, verdicts, with_limits

from mainspring.core.errors import InvalidRequest, Unavailable
from mainspring.core.events import ItemDone, ItemStarted, Reason, Recorded, ToolStarted, TurnEnded
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCall, FunctionCallOutput, Usage
from mainspring.core.reasons import termination
from mainspring.core.run import Run
from mainspring.core.spec import Allowance, Price
from mainspring.core.spec import Limits as RunLimits
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget, FileScope, State, StopCondition
from mainspring.features.budgets.budget_policy import BudgetPolicy, apply_budget, measure_run, measure_use
from mainspring.ports import Store
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import calls, fail, turn
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore


def shell(command: str) -> Call:
    return Call("shell", {"command": command})


def write(path: str, content: str = "x") -> Call:
    return Call("files", {"operation": "write", "path": path, "content": content})


def read(path: str) -> Call:
    return Call("files", {"operation": "read", "path": path})


def fetch(url: str) -> Call:
    return Call("fetch", {"url": url})


@pytest.mark.requirement("C-T19", "C30", "D66")
async def test_each_kind_of_tool_meets_its_own_points_and_a_block_does_not_end_the_run() -> None:
    made = [
        (read("a.txt"), "allow"), (read(".env"), "deny"), (write("src/a"), "allow"), (write("b"), "deny"),
        (shell("ls"), "allow"), (shell("rm x"), "deny"), (fetch("https://docs.example/x"), "allow"),
        (fetch("https://evil.example/"), "deny"), (fetch("https://docs.example@evil.example/"), "deny"),
        (Call("look", {"q": "rm -rf /"}), "allow"), (Call("look", "[1]"), "deny"), (Call("shell", {"command": 5}), "deny"),
    ]  # fmt: skip
    outcome = await tried(BUDGET, *[call for call, _ in made])
    assert outcome.verdicts == [expected for _, expected in made]
    assert (outcome.run.status, outcome.run.text) == ("completed", "Done.")
    assert [name for name, _ in outcome.hands.done] == ["files", "files", "shell", "fetch", "look"]


@pytest.mark.requirement("D66")
async def test_reading_at_level_0_is_reading_and_writing_is_not() -> None:
    outcome = await tried(LEVELS[0], read("notes.txt"), write("notes.txt"), shell("ls"), Call("silent"), Call("look"))
    assert outcome.verdicts == ["allow", "deny", "deny", "ask"]
    assert [arguments["path"] for _, arguments in outcome.hands.done] == ["notes.txt"]


async def test_a_file_that_may_be_written_need_not_be_one_that_may_be_read() -> None:
    budget = replace(BUDGET, files=FileScope(read=("docs/**",), write=("src/**",)))
    both = Call("files", {"path": "src/a"})  # an operation that is not declared may do everything
    outcome = await tried(budget, write("src/a"), read("src/a"), both, read("docs/a"))
    assert outcome.verdicts == ["allow", "deny", "deny", "allow"]


@pytest.mark.requirement("C30", "C67")
async def test_without_a_budget_nothing_is_asked() -> None:
    async with engine_of(shell("rm -rf /")) as engine:
        run = await (await engine.start(order())).wait()
    assert run.calls_allowed == 1


async def test_a_client_performs_its_own_tools_whatever_the_budget() -> None:
    outcome = await tried(replace(BUDGET, state="suspended"), Call("ask_user", {"q": "?"}))
    assert outcome.run.reason == Reason.CLIENT_ACTION


async def test_a_budget_that_cannot_be_read_denies_every_call() -> None:
    async with engine_of(Call("look")) as engine:
        run = await (await engine.start(replace(order(), budget={"budget_id": 7}))).wait()
    assert run.calls_allowed == 0


@pytest.mark.requirement("D67")
async def test_an_escalation_waits_for_a_person_and_runs_once_they_agree() -> None:
    hands, store = RecordingExecutor(), MemoryStore()
    async with engine_of(shell("python3 x.py"), store=store, hands=hands) as engine:
        asked = await (await engine.start(apply_budget(order(), BUDGET))).wait()
        assert (asked.status, asked.reason, hands.done) == ("requires_action", Reason.APPROVAL_NEEDED, [])
        [request] = [item for item in asked.output if isinstance(item, ApprovalRequest)]
        [(_, policy, reason)] = verdicts(await store.events("resp_1"))
        assert policy == "budget"
        assert "`python3` needs approval" in reason
        assert "`orchestrator`" in reason
        agreed = order(id="resp_2", parent="resp_1", input=(ApprovalResponse(request.id, approve=True),))
        run = await (await engine.start(apply_budget(agreed, BUDGET))).wait()
    assert run.status == "completed"
    assert hands.done == [("shell", {"command": "python3 x.py"})]


async def test_a_person_cannot_lift_a_limit() -> None:
    hands = RecordingExecutor()
    async with engine_of(shell("python3 x.py"), hands=hands) as engine:
        asked = await (await engine.start(apply_budget(order(), BUDGET))).wait()
        [request] = [item for item in asked.output if isinstance(item, ApprovalRequest)]
        agreed = order(id="resp_2", parent="resp_1", input=(ApprovalResponse(request.id, approve=True),))
        run = await (await engine.start(apply_budget(agreed, with_limits(max_tool_calls=0)))).wait()
    assert (run.reason, hands.done) == (Reason.BUDGET, [])


async def test_a_warning_lets_the_call_run_and_is_in_the_log() -> None:
    budget = replace(BUDGET, stop_conditions=(StopCondition("SC-04", "nothing was verified", "warn"),))
    outcome = await tried(budget, Call("look"), policy=BudgetPolicy(signals=lambda run: {"SC-04"} if run.turns else set()))
    assert outcome.verdicts == ["allow"]
    assert outcome.reasons == ["budget: The stop condition SC-04 of the budget `b1` holds: nothing was verified."]
    assert outcome.hands.done == [("look", {})]


@pytest.mark.requirement("D60")
async def test_repeated_failures_meet_their_stop_condition() -> None:
    budget = replace(BUDGET, stop_conditions=(StopCondition("SC-09"),))
    made = [Call("look", {"n": n}) for n in range(6)]
    outcome = await tried(budget, *made, broken=("look",), max_errors_in_row=None)
    assert (outcome.run.reason, len(outcome.hands.done)) == (Reason.BUDGET, 3)


@pytest.mark.requirement("C-T5", "C57", "C73")
async def test_a_run_ends_for_its_budget_when_its_iterations_are_used_up() -> None:
    outcome = await tried(with_limits(max_iterations=3), *[Call("look", {"n": n}) for n in range(9)])
    assert (outcome.run.status, outcome.run.reason, outcome.run.turns) == ("incomplete", Reason.BUDGET, 3)
    assert termination(outcome.run) == "budget_exceeded"
    assert len(outcome.hands.done) == 3


async def test_the_closing_turn_is_within_the_iterations_too() -> None:
    made = [Call("look", {"n": n}) for n in range(9)]
    outcome = await tried(with_limits(max_iterations=3), *made, close="Last words.")
    assert outcome.run.turns == 3
    alone = await tried(with_limits(max_iterations=1), *made, close="Last words.")
    assert alone.run.turns == 1


async def test_calls_beyond_the_limit_are_not_run_and_earlier_results_are_kept() -> None:
    outcome = await tried(with_limits(max_tool_calls=2), calls(*[Call("look", {"n": n}) for n in range(5)]))
    assert termination(outcome.run) == "budget_exceeded"
    assert len(outcome.hands.done) == 2
    outputs = [item for item in outcome.run.output if isinstance(item, FunctionCallOutput)]
    assert [output.output == "done" for output in outputs] == [True, True, False, False, False]


async def test_files_and_lines_are_counted_from_what_was_written() -> None:
    budget = with_limits(max_files_modified=2, max_lines_changed=10)
    made = [("src/a", 3), ("src/b", 2), ("src/c", 1), ("src/a", 6), ("src/a", 5)]
    outcome = await tried(budget, *[write(path, "x\n" * lines) for path, lines in made])
    assert outcome.verdicts == ["allow", "allow", "deny", "deny", "allow"]
    spent = await measure_use(outcome.run)
    assert (spent.files, spent.lines, spent.calls, spent.iterations) == (("src/a", "src/b"), 10, 3, 6)


async def test_a_suspended_budget_stops_a_run_under_way() -> None:
    states: list[State] = ["active", "suspended"]

    async def state(tenant: str, budget_id: str) -> State | None:
        return states.pop(0)

    outcome = await tried(BUDGET, Call("look", {"n": 1}), Call("look", {"n": 2}), policy=BudgetPolicy(state))
    assert (outcome.run.reason, len(outcome.hands.done)) == (Reason.BUDGET, 1)


async def test_a_budget_whose_state_cannot_be_learned_denies() -> None:
    async def state(tenant: str, budget_id: str) -> State | None:
        raise OSError("the store is gone")

    outcome = await tried(BUDGET, Call("look"), policy=BudgetPolicy(state))
    assert outcome.hands.done == []


def test_an_order_is_narrowed_and_never_widened() -> None:
    wide = apply_budget(order(), with_limits(max_tokens=500))
    unlimited = RunLimits(max_turns=None, max_errors_in_row=None, max_repeats=3, max_cycle=6)
    assert wide.limits == replace(unlimited, budget_turns=100, max_seconds=3600, max_tool_calls=200)
    assert wide.allowance == Allowance(tokens=500)
    own = RunLimits(max_turns=5, max_seconds=10.0, max_tokens=7, max_tool_calls=3)
    assert apply_budget(replace(order(), limits=own), BUDGET).limits == replace(own, budget_turns=100)


@pytest.mark.parametrize("limit", ["max_iterations", "max_duration_minutes", "max_tokens", "max_cost"])
def test_a_run_without_anything_left_does_not_begin(limit: str) -> None:
    with pytest.raises(InvalidRequest, match="nothing left") as caught:
        apply_budget(order(), with_limits(BUDGET, **{limit: 0}))
    assert caught.value.code == "budget_exceeded"


async def test_money_is_counted_by_the_price_of_the_model_and_ends_the_run() -> None:
    budget = replace(with_limits(max_cost=1.0), prices={"scripted": Price(input=1, output=10)})
    used = Usage(input_tokens=100_000, output_tokens=30_000)
    outcome = await tried(budget, *[turn(calls=[Call("look", {"n": n})], usage=used) for n in range(9)])
    assert (outcome.run.reason, outcome.run.turns, len(outcome.hands.done)) == (Reason.BUDGET, 3, 2)
    assert measure_run(outcome.run, budget).cost == pytest.approx(1.2)


async def test_a_run_without_a_price_spends_no_money() -> None:
    outcome = await tried(with_limits(max_cost=1.0), Call("look"))
    assert (outcome.run.reason, outcome.hands.done) == (Reason.BUDGET, [])


async def test_a_turn_that_failed_without_a_count_is_estimated() -> None:
    async with engine_of(fail(Unavailable("down")), Call("look")) as engine:
        spec = apply_budget(order(retry_model_errors=True, instructions="word " * 700), BUDGET)
        run = await (await engine.start(spec)).wait()
    assert (run.turns, run.answered) == (3, 2)
    assert measure_run(run, BUDGET).tokens >= run.usage.total_tokens + 1000, "the failed turn was asked with a thousand tokens"


async def test_a_backend_that_counts_nothing_still_uses_the_budget_up() -> None:
    made = [FunctionCall(f"call_{n}", "look", f'{{"n":{n}}}', id=f"fc_{n}") for n in range(9)]
    uncounted = [Turn(events=(ItemStarted(replace(item, arguments="")), ItemDone(item), TurnEnded())) for item in made]
    outcome = await tried(with_limits(max_tokens=3500), *uncounted, instructions="word " * 700)
    assert (outcome.run.reason, outcome.run.turns) == (Reason.BUDGET, 2)
    assert 2000 < outcome.run.usage.total_tokens < 3500
    assert outcome.run.usage.is_estimated


async def test_a_turn_whose_input_is_more_than_the_tokens_left_does_not_begin() -> None:
    used = Usage(input_tokens=1000, output_tokens=10)
    outcome = await tried(with_limits(max_tokens=3000), *[turn(calls=[Call("look", {"n": n})], usage=used) for n in range(9)])
    assert (outcome.run.reason, outcome.run.turns, outcome.run.usage.total_tokens) == (Reason.BUDGET, 2, 2020)


_made = st.sampled_from(
    [
        write("src/a", "1\n2"), write("src/b"), write("src/c", "1\n2\n3"), write("elsewhere"), read(".env"), read("x"),
        shell("ls"), shell("git log"), shell("git status"), shell("git push"), fetch("https://docs.example/"),
        Call("look"), Call("look", "nonsense"), Call("unheard_of"),
    ]
)  # fmt: skip
_turns = st.lists(st.lists(_made, min_size=1, max_size=4).map(lambda made: turn(calls=made)), max_size=4)
_small = st.none() | st.integers(1, 5)
_budgets = st.builds(
    lambda turns, made, files, lines, at, action: replace(
        BUDGET,
        limits=only(max_iterations=turns, max_tool_calls=made, max_files_modified=files, max_lines_changed=lines),
        stop_conditions=(StopCondition("SC-08", action=action, at=at),),
    ),
    _small, _small, _small, _small, st.sampled_from([0.5, 1.0]), st.sampled_from(["stop", "warn", "escalate"]),
)  # fmt: skip


def stays_within(run: Run, log: Sequence[Recorded], hands: RecordingExecutor, budget: AutonomyBudget) -> None:
    written = [arguments for name, arguments in hands.done if name == "files" and arguments["operation"] == "write"]
    limits = budget.limits
    assert limits.max_iterations is None or run.turns <= limits.max_iterations
    assert limits.max_tool_calls is None or len(hands.done) <= limits.max_tool_calls
    assert limits.max_files_modified is None or len({each["path"] for each in written}) <= limits.max_files_modified
    lines = sum(len(each["content"].splitlines()) for each in written)
    assert limits.max_lines_changed is None or lines <= limits.max_lines_changed
    assert sum(arguments.get("command", "").startswith("git") for _, arguments in hands.done) <= 2
    assert sum(name == "fetch" for name, _ in hands.done) <= 3


async def played(
    budget: AutonomyBudget, turns: list[Turn], store: Store, hands: RecordingExecutor, **options: Any
) -> list[Recorded]:
    async with engine_of(*turns, store=store, hands=hands) as engine:
        handle = await engine.start(apply_budget(order(**options), budget))
        with anyio.fail_after(PATIENCE):
            return [record async for record in handle.events()]


@given(_budgets, _turns)
@settings(max_examples=60)
async def test_parallel_calls_never_use_more_than_the_budget(budget: AutonomyBudget, turns: list[Turn]) -> None:
    store, hands = MemoryStore(), RecordingExecutor()
    log = await played(budget, turns, store, hands)
    async with engine_of(store=store) as engine:
        stays_within((await engine.attach("resp_1")).run, log, hands, budget)


@given(_budgets, _turns, st.data())
@settings(max_examples=60)
async def test_a_resumed_run_gets_the_verdicts_that_it_would_have_had(
    budget: AutonomyBudget, turns: list[Turn], data: st.DataObject
) -> None:
    """A crash at any event, and another process that goes on: it judges as the first one would have."""
    whole, before = MemoryStore(), RecordingExecutor()
    log = await played(budget, turns, whole, before)
    survived = data.draw(st.integers(1, len(log) - 1), label="events that reached the store")
    store, after = MemoryStore(), RecordingExecutor()
    await store.append("resp_1", log[:survived])
    async with engine_of(*turns, store=store, hands=after) as engine:
        with anyio.fail_after(PATIENCE):
            run = await (await engine.resume("resp_1")).wait()
    again = await store.events("resp_1")
    assert verdicts(again) == verdicts(log)
    begun = {record.event.call_id for record in log[:survived] if isinstance(record.event, ToolStarted)}
    ran = RecordingExecutor()
    ran.done = before.done[: len(begun)] + after.done
    stays_within(run, again, ran, budget)


@pytest.mark.requirement("D62")
@given(_budgets, _turns)
@settings(max_examples=15)
async def test_the_verdicts_are_the_same_waited_for_streamed_and_in_the_background_on_both_stores(
    budget: AutonomyBudget, turns: list[Turn]
) -> None:
    stories = []
    with TemporaryDirectory() as folder:
        for background in (False, True):
            for store in (MemoryStore(), SqliteStore(Path(folder, f"{background}.db"))):
                async with store:
                    stories.append(verdicts(await played(budget, turns, store, RecordingExecutor(), background=background)))
    assert all(story == stories[0] for story in stories)
