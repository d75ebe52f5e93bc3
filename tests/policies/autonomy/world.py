"""Tools of every kind under a budget, in the real engine, with hands that remember what they did."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from tests.kit.engine import RecordingExecutor, make_engine, make_order

from mainspring.core.events import CallJudged, Recorded
from mainspring.core.items import Json, Tool, ToolDefinition
from mainspring.core.run import Run
from mainspring.core.spec import PresetName, RunSpec
from mainspring.engine.engine import Engine
from mainspring.features.budgets.budget import AutonomyBudget, AutonomyLimits, FileScope, Network
from mainspring.features.budgets.budget_policy import BudgetPolicy, apply_budget
from mainspring.ports import CallContext, CallPolicy, Sink, Store, ToolCall, ToolResult
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import Scripted, say, turn
from mainspring.tools.scope import AllowedCommand

TEXT: Json = {"type": "string"}
SHELL = ToolDefinition("shell", kind="builtin", effects=("execute",), purposes={"command": "command"})
FILES = ToolDefinition(
    "files",
    kind="builtin",
    effects=("read", "write", "destructive"),
    operations={"read": ("read",), "write": ("write",)},
    purposes={"path": "path"},
)
FETCH = ToolDefinition("fetch", kind="builtin", effects=("read", "network"), purposes={"url": "url"})
LOOK = ToolDefinition("look", kind="builtin", effects=("read",))
SAVE = ToolDefinition("save", kind="builtin", effects=("write",))
SILENT = ToolDefinition("silent", kind="builtin")
CLIENT = ToolDefinition("ask_user")
TOOLS: tuple[Tool, ...] = (SHELL, FILES, FETCH, LOOK, SAVE, SILENT, CLIENT)

BUDGET = AutonomyBudget(
    "b1",
    state="active",
    in_scope=("tests",),
    files=FileScope(read=("**",), write=("src/**",), deny=(".env", "secrets/**"), root="/work"),
    allowed_commands=(AllowedCommand("ls"), AllowedCommand("git", r"(status|log)( .*)?", max_calls=2), AllowedCommand("make")),
    denied_commands=("rm", "git push"),
    require_approval_commands=("python3",),
    network=Network(enabled=True, allowed_domains=("docs.example",), denied_domains=("bad.docs.example",), max_requests=3),
)


def with_limits(budget: AutonomyBudget = BUDGET, **limits: Any) -> AutonomyBudget:
    return replace(budget, limits=replace(budget.limits, **limits))


def only(**limits: Any) -> AutonomyLimits:
    """These limits and no others."""
    return AutonomyLimits(**{**dict.fromkeys(AutonomyLimits.__struct_fields__), **limits})


def order(*, id: str = "resp_1", preset: PresetName = "responses", **options: Any) -> RunSpec:
    return make_order(id, preset=preset, **{"tools": TOOLS, "max_turns": None, **options})


def engine_of(
    *turns: Turn | Call,
    store: Store | None = None,
    hands: RecordingExecutor | None = None,
    policy: CallPolicy | None = None,
    sinks: Sequence[Sink] = (),
) -> Engine:
    script = Scripted(*turns, *[say("Done.")] * 9, chunk=0)
    return make_engine(script, store, hands, [policy or BudgetPolicy()], sinks)


def verdicts(log: Sequence[Recorded]) -> list[tuple[str, str, str]]:
    return [(event.verdict, event.policy, event.reason) for record in log if isinstance(event := record.event, CallJudged)]


class Outcome:
    """What became of a run."""

    def __init__(self, run: Run, log: Sequence[Recorded], hands: RecordingExecutor) -> None:
        self.run, self.log, self.hands = run, log, hands

    @property
    def verdicts(self) -> list[str]:
        return [verdict for verdict, _, _ in verdicts(self.log)]

    @property
    def reasons(self) -> list[str]:
        return [reason for _, _, reason in verdicts(self.log)]


async def tried(budget: AutonomyBudget, *made: Call | Turn, policy: CallPolicy | None = None, **options: Any) -> Outcome:
    """One run in which the model makes these calls, one turn each, and then says something."""
    broken = options.pop("broken", ())

    async def perform(call: ToolCall, context: CallContext) -> ToolResult:
        return ToolResult(call.id, "done", is_error=call.name in broken)

    hands = RecordingExecutor(perform)
    turns = [each if isinstance(each, Turn) else turn(calls=[each]) for each in made]
    async with engine_of(*turns, hands=hands, policy=policy) as engine:
        handle = await engine.start(apply_budget(order(**options), budget))
        log = [record async for record in handle.events()]
        return Outcome(handle.run, log, hands)
