"""The victim of test_ledger: works through one budget with run after run on a database, until somebody kills it.

    worker.py DATABASE TALLY

Every tool call adds a line to TALLY before it does anything else, flushed to the operating system at once. What it is about to do
is said on standard output, so that it can be killed between any two steps.
"""

import asyncio
import os
import sys

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.ids import random_id
from mainspring.core.items import ToolDefinition, ToolKind, user
from mainspring.core.operator_limits import OperatorLimits
from mainspring.core.spec import spec_for
from mainspring.engine.engine import Engine, RunDefaults
from mainspring.engine.policy_order import order_policies
from mainspring.features.budgets.amounts import Amounts
from mainspring.features.budgets.budget import AutonomyBudget, AutonomyLimits
from mainspring.features.budgets.budget_policy import BudgetPolicy
from mainspring.features.budgets.ledger import Ledger
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.providers.script import Call
from mainspring.providers.scripted import Scripted, calls, say
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

BUDGET = AutonomyBudget(
    "shared", state="active", in_scope=("tests",), limits=AutonomyLimits(max_iterations=300, max_tool_calls=60)
)
LOOK = ToolDefinition("look", kind="builtin", effects=("read",))
tally = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Hands:
    kind: ToolKind = "builtin"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        os.write(tally, f"{context.run_id} {call.id}\n".encode())
        print("called", flush=True)
        await asyncio.sleep(0.001)
        return ToolResult(call.id, "seen")


async def main() -> None:
    async with open_store(parse_location(sys.argv[1])) as store:
        ledger, hands = Ledger(store), [Hands()]
        try:
            await ledger.find_account("shared")
        except NotFound:
            await ledger.open(BUDGET)
        turns = [calls(Call("look", {"n": n}), Call("look", {"m": n})) for n in range(9)]
        script = Scripted(*turns, say("Done."), repeat=True, chunk=0, pause=0.0005)
        policies = order_policies(fill_standard_slots(hands), {"custom": [BudgetPolicy(ledger.find_state)]})
        defaults = RunDefaults(limits=OperatorLimits(resumes=None))
        async with Engine(script, store, executors=hands, policies=policies, sinks=[ledger], defaults=defaults) as engine:
            for handle in await engine.resume_all():
                await handle.wait()
            print("ready", flush=True)
            try:
                while True:
                    spec = spec_for("responses", id=random_id("resp"), model="scripted", input=(user("Go."),), tools=(LOOK,))
                    spec = await ledger.admit(spec, "shared", at_most=Amounts(iterations=20, seconds=60, calls=7))
                    if spec.budget is not None and spec.budget["limits"]["max_tool_calls"] == 0:
                        break
                    print("admitted", flush=True)
                    await (await engine.start(spec)).wait()
                    print("ended", flush=True)
            except InvalidRequest:
                pass
    print("used_up", flush=True)


asyncio.run(main())
