"""A verdict is the same however a run is read, and whoever drives it: waited for, streamed, in the background, resumed."""

from contextlib import suppress
from typing import Any

import pytest
from anyio import fail_after
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct, convert
from tests.kit.waiting import PATIENCE

from mainspring import Engine, tool
from mainspring.core.errors import Interrupted
from mainspring.core.events import CallJudged, Recorded, ToolStarted
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Json
from mainspring.core.run import Run
from mainspring.core.spec import Caller
from mainspring.engine.handle import Handle
from mainspring.features.budgets.plan import LEVEL, build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import Scripted, calls, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.addresses import AddressGuard


class World(Struct):
    """The settings, who asks, and what the model does."""

    governance: Json
    budget: Json
    scopes: tuple[str, ...] | None
    level: str | None
    turns: list[list[tuple[str, Json]]]

    def engine(self, store: MemoryStore, script: Scripted) -> Engine:
        policies = build_policies(convert(self.governance, GovernanceSettings), AddressGuard())
        options: Json = {"policies": policies, "budget": build_plan(convert(self.budget, BudgetSettings)), "store": store}
        return Engine(script, tools=[look, files, shell], **options)

    @property
    def order(self) -> Json:
        metadata = {} if self.level is None else {LEVEL: self.level}
        return {"caller": Caller("ada", self.scopes), "metadata": metadata, "max_errors_in_row": None}

    def script(self) -> Scripted:
        made: list[Turn | Call] = [calls(*[Call(name, arguments) for name, arguments in turn]) for turn in self.turns]
        return Scripted(*made, say("Done."), chunk=0)


@tool(effects=("read",))
def look(n: int = 0) -> str:
    return "seen"


@tool(effects=("read", "write"), purposes={"path": "path"})
def files(operation: str, path: str) -> str:
    return "done"


@tool(effects=("execute",), purposes={"command": "command"})
def shell(command: str) -> str:
    return "ran"


VERDICTS = st.sampled_from(["allow", "ask", "deny"])
CALLS = st.sampled_from(
    [
        ("look", {"n": 1}), ("look", {"n": 2}), ("look", {"n": "many"}), ("Look", {}), ("nothing", {}),
        ("files", {"operation": "read", "path": "src/a"}), ("files", {"operation": "write", "path": "src/b"}),
        ("files", {"operation": "write", "path": "/etc/passwd"}), ("files", {"operation": "read", "path": "../.env"}),
        ("shell", {"command": "ls"}), ("shell", {"command": "rm x"}), ("shell", {"command": "git push"}),
    ]
)  # fmt: skip
GOVERNANCE = st.fixed_dictionaries(
    {},
    optional={
        "rules": st.dictionaries(st.sampled_from(["*", "look", "files", "files:write", "sh*"]), VERDICTS, max_size=3),
        "level": st.sampled_from(["read-only", "supervised", "full"]),
        "commands": st.just({"allowed": ["ls", "git"], "denied": ["rm"]}),
        "paths": st.just({"allowed": ["/tmp"], "denied": [".env"]}),
    },
)
BUDGETS: st.SearchStrategy[Json] = st.just({}) | st.fixed_dictionaries(
    {"level": st.integers(0, 3)},
    optional={
        "limits": st.dictionaries(
            st.sampled_from(["max_iterations", "max_tool_calls", "max_files_modified"]), st.integers(1, 4), max_size=2
        ),
        "per": st.sampled_from(["run", "tenant"]),
        "share": st.just(1.0),
    },
)
WORLDS = st.builds(
    World,
    GOVERNANCE,
    BUDGETS,
    st.none() | st.lists(st.sampled_from(["tools:execute", "tools:execute:look", "tools:execute:files", "responses"])).map(tuple),
    st.none() | st.sampled_from(["0", "1", "2", "3"]),
    st.lists(st.lists(CALLS, min_size=1, max_size=3), min_size=1, max_size=4),
)


def judged(log: list[Recorded]) -> list[tuple[str, str, str]]:
    return [(event.verdict, event.policy, event.reason) for record in log if isinstance(event := record.event, CallJudged)]


class Cut:
    """Stops the engine when the event of this number is recorded."""

    def __init__(self, engine: Engine, at: int) -> None:
        self._engine, self._at = engine, at

    def reset(self) -> None:
        """It stops the engine once, whatever is told again."""

    def add(self, record: Recorded, run: Run) -> None:
        if record.seq == self._at:
            self._engine.interrupt()


async def log_of(handle: Handle) -> list[Recorded]:
    with fail_after(PATIENCE):
        return [record async for record in handle.events()]


async def waited(world: World) -> list[Recorded]:
    async with world.engine(MemoryStore(), world.script()) as engine:
        handle = await engine.ask("Go.", **world.order)
        await handle.wait()
        return await log_of(handle)


async def streamed(world: World) -> list[Recorded]:
    async with world.engine(MemoryStore(), world.script()) as engine:
        return await log_of(await engine.ask("Go.", **world.order))


async def in_background(world: World) -> list[Recorded]:
    async with world.engine(MemoryStore(), world.script()) as engine:
        return await log_of(await engine.ask("Go.", background=True, **world.order))


async def resumed(world: World, cut: int) -> list[Recorded]:
    """The engine stops at an event, and another one takes the run up, with enforcers that have counted nothing."""
    store, script = MemoryStore(), world.script()
    async with world.engine(store, script) as engine:
        handle = await engine.ask("Go.", **world.order)
        handle.watch(Cut(engine, cut))
        with suppress(Interrupted):
            await handle.wait()
    async with world.engine(store, script) as engine:
        return await log_of(await engine.resume(handle.id))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORLDS, st.integers(1, 40))
@example(World({"level": "supervised"}, {"level": 1}, None, None, [[("files", {"operation": "write", "path": "a"})]]), 4)
async def test_a_verdict_is_the_same_in_every_form(world: World, cut: int) -> None:
    wanted = judged(await waited(world))
    assert judged(await streamed(world)) == wanted
    assert judged(await in_background(world)) == wanted
    assert judged(await resumed(world, cut)) == wanted


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORLDS)
async def test_nothing_runs_without_an_allow_and_an_approval_lifts_a_question_only(world: World) -> None:
    """Whoever says yes to all that is asked gets what was asked about, and nothing that any rule denies."""
    async with world.engine(MemoryStore(), world.script()) as engine:
        run = await engine.run("Go.", **world.order)
        logs = [await log_of(await engine.attach(run.spec.id))]
        while asked := [item for item in run.output if isinstance(item, ApprovalRequest)]:
            said: list[Any] = [ApprovalResponse(item.id, approve=True) for item in asked]
            if run.status != "requires_action":
                break
            scopes = None if world.scopes is None else (*world.scopes, "approvals")
            run = await engine.run(said, previous=run.spec.id, **{**world.order, "caller": Caller("boss", scopes)})
            logs.append(await log_of(await engine.attach(run.spec.id)))
    for log in logs:
        started = {record.event.call_id for record in log if isinstance(record.event, ToolStarted)}
        allowed = [record.event for record in log if isinstance(record.event, CallJudged) and record.event.verdict == "allow"]
        assert started <= {event.call_id for event in allowed}
    assert all(reason for log in logs for verdict, _, reason in judged(log) if verdict == "deny"), "every refusal says why"


WRITES = [[("files", {"operation": "write", "path": f"src/{name}"})] for name in "abc"]


@pytest.mark.parametrize("cut", range(1, 26))
async def test_what_was_counted_before_a_stop_is_counted_after_it(cut: int) -> None:
    """Two files may be written: the third is refused wherever the engine stopped."""
    world = World({}, {"limits": {"max_files_modified": 2}}, None, None, WRITES)
    log = await resumed(world, cut)
    assert [verdict for verdict, _, _ in judged(log)] == ["allow", "allow", "deny"]
