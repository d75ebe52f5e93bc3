"""An engine for tests, its orders, and an executor that remembers what it has performed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mainspring.core.items import Item, Json, ToolDefinition, ToolKind, user
from mainspring.core.spec import PresetName, RunSpec, spec_for
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import CallContext, CallPolicy, Provider, Sink, Store, ToolCall, ToolExecutor, ToolResult
from mainspring.storage.memory_runs import MemoryStore

Perform = Callable[[ToolCall, CallContext], Awaitable[ToolResult]]


async def _say_done(call: ToolCall, context: CallContext) -> ToolResult:
    return ToolResult(call.id, "done")


class RecordingExecutor:
    """Performs every tool of the server in the way it was given. `done` are the names and arguments of its calls."""

    kind: ToolKind = "builtin"

    def __init__(self, perform: Perform = _say_done) -> None:
        self.done: list[tuple[str, Json]] = []
        self._perform = perform

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == "builtin"

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        self.done.append((call.name, call.parsed))
        return await self._perform(call, context)


def make_order(
    id: str = "resp_1", prompt: str | Sequence[Item] = "Go.", *, preset: PresetName = "responses", **options: Any
) -> RunSpec:
    """An order for a scripted model; `options` are as in `spec_for`."""
    given = (user(prompt),) if isinstance(prompt, str) else tuple(prompt)
    return spec_for(preset, **{"id": id, "model": "scripted", "input": given, **options})


def make_engine(
    provider: Provider,
    store: Store | None = None,
    executor: ToolExecutor | None = None,
    policies: Sequence[CallPolicy] = (),
    sinks: Sequence[Sink] = (),
) -> Engine:
    """A core engine with one executor, the policies that no engine is without, and these."""
    executors = [RecordingExecutor() if executor is None else executor]
    slots = order_policies(fill_standard_slots(executors), {"custom": policies})
    return Engine(provider, MemoryStore() if store is None else store, executors=executors, policies=slots, sinks=sinks)
