"""An engine is put together from what it is given: a provider, a store, and executors if there are any."""

import pytest

from mainspring.core.items import ToolDefinition, ToolKind, user
from mainspring.core.spec import spec_for
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import CallContext, ToolCall, ToolExecutor, ToolResult
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore


class Bell:
    """The whole of an executor: its kind, what it can perform, and how."""

    kind: ToolKind = "builtin"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind and tool.name == "ring"

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        return ToolResult(call.id, f"rang for {context.run_id}")


RING = ToolDefinition("ring", kind="builtin", parameters={"type": "object", "properties": {}})


@pytest.mark.requirement("A1", "A11")
async def test_an_executor_has_three_duties_and_the_engine_asks_no_more_of_it() -> None:
    executors: list[ToolExecutor] = [Bell()]
    with Scripted(call("ring"), say("Done.", expect="rang for resp_1")) as script:
        async with Engine(
            script, MemoryStore(), executors=executors, policies=order_policies(fill_standard_slots(executors))
        ) as engine:
            order = spec_for("responses", id="resp_1", model="m", input=(user("Ring"),), tools=(RING,))
            run = await (await engine.start(order)).wait()
    assert run.text == "Done."


@pytest.mark.requirement("A11", "A13")
async def test_no_executors_are_a_valid_choice() -> None:
    with Scripted(call("ring"), say("Nobody rings.", expect="cannot be performed")) as script:
        async with Engine(script, MemoryStore(), policies=order_policies(fill_standard_slots(()))) as engine:
            order = spec_for("responses", id="resp_1", model="m", input=(user("Ring"),), tools=(RING,))
            run = await (await engine.start(order)).wait()
    assert run.text == "Nobody rings."
