"""Agents as tools: a call starts a run of its own, within what is left of the caller's limits.

Theory of operation. The id of the run follows from the caller's and from the call, so a resumed caller finds the run that it
has started, live or ended, and never starts a second. What is left of the caller's limits is what its own turns and the runs of
its earlier calls have not used; the caller keeps a part of that, and the agents that it calls in one turn share the rest
evenly. Cancelling a caller cancels the runs it waits for.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from anyio import to_thread
from msgspec.structs import replace

from mainspring.core.allowance import sum_used
from mainspring.core.delegation import TOOL_PREFIX, child_id, is_delegation
from mainspring.core.errors import CallerError, InvalidRequest, NotFound
from mainspring.core.events import ToolStarted, TurnStarted, Used
from mainspring.core.items import FunctionCall, Json, ToolDefinition, ToolKind, to_json, user
from mainspring.core.lru_cache import LRUCache
from mainspring.core.run import Run
from mainspring.core.spec import Limits, RunSpec, pick_least, spec_for
from mainspring.engine.traceparent import make_traceparent
from mainspring.features.agents.agent_inputs import complete_inputs, render_message
from mainspring.features.agents.agent_order import AgentOrders, InvocationSettings, find_refusal
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_result import ToolLoopConfig, explain_lack, read_result
from mainspring.features.budgets.amounts import Amounts
from mainspring.features.budgets.budget import AutonomyBudget
from mainspring.features.budgets.budget_policy import apply_budget, measure_use, read_budget
from mainspring.features.governance.injection import refuse_injection
from mainspring.features.memory.observation import SESSION, TAGS, find_session
from mainspring.ports import CallContext, RunHandle, Runs, ToolCall, ToolResult

KEPT: Final = 0.2
REMEMBERED: Final = 256


class AgentTools:
    """Performs calls of agents."""

    kind: ToolKind = "builtin"

    def __init__(self, registry: AgentRegistry, orders: AgentOrders) -> None:
        self._registry, self._orders = registry, orders
        # What runs have used that nothing else will tell of.
        self._unstored: LRUCache[str, Run] = LRUCache(REMEMBERED)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind and is_delegation(tool.name) and _agent(tool.name) in self._registry.definitions

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        try:
            handle = await self._child(call, context)
        except CallerError as error:
            return ToolResult(call.id, error.message, is_error=True)
        try:
            await _follow(handle, context)
        except asyncio.CancelledError:
            # An engine that only stops has told the run so before; then it stays to be resumed.
            handle.request_cancel()
            raise
        if not handle.run.spec.store:
            self._unstored[handle.run.spec.id] = handle.run
        return replace(_render_result(call, handle.run), used=measure_usage(handle.run))

    async def _child(self, call: ToolCall, context: CallContext) -> RunHandle:
        """The run of this call: the one that it has started, or a new one. Raises a `CallerError` if it may not start."""
        id, runs = child_id(context.run_id, call.id), context.runs
        assert runs is not None, "agents are called by runs of an engine"
        try:
            return await runs.resume(id)
        except NotFound:
            caller = (await runs.attach(context.run_id)).run
            return await runs.start(await self._order(id, call, caller, runs))

    async def _order(self, id: str, call: ToolCall, caller: Run, runs: Runs) -> RunSpec:
        spec = caller.spec
        if (why := find_refusal([each.agent for each in spec.charters], _agent(call.name))) is not None:
            raise InvalidRequest(why)
        definition = self._registry.get(_agent(call.name))
        inputs = complete_inputs(definition, call.parsed)
        await to_thread.run_sync(refuse_injection, inputs)
        earlier = await self._earlier(caller, runs)
        beside = len([item for item in _latest(caller) if is_delegation(item.name)])
        order = spec_for(
            "iterative",
            id=id,
            model=definition.model or spec.model,
            input=(user(render_message(definition, inputs), id=runs.new_id("msg")),),
            tenant=spec.tenant,
            caller=spec.caller,
            on_behalf_of=spec.on_behalf_of,
            store=spec.store,
            within=spec.id,
            # What is private stays so, and is forgotten together.
            metadata={SESSION: find_session(spec), **({TAGS: spec.metadata[TAGS]} if TAGS in spec.metadata else {})},
            traceparent=make_traceparent(spec),
            echo={name: spec.echo[name] for name in ("user", "safety_identifier") if name in spec.echo},
            context_tokens=spec.window.context_tokens,
        )
        made = await self._orders.apply_definition(order, definition, InvocationSettings(ToolLoopConfig()), spec.charters)
        held = replace(made, limits=_share_limits(made.limits, _compute_remaining(caller, earlier), max(beside, 1)))
        budget = read_budget(spec)
        return (
            held
            if budget is None
            else apply_budget(held, await self._share(budget, caller, await self._all(earlier, runs), max(beside, 1)))
        )

    async def _earlier(self, caller: Run, runs: Runs) -> list[Run]:
        """The runs that calls of earlier turns have started."""
        now = {item.call_id for item in _latest(caller)}
        return await self._children(caller, [item for item in caller.allowed if item.call_id not in now], runs)

    async def _children(self, run: Run, calls: Sequence[FunctionCall], runs: Runs) -> list[Run]:
        found = []
        for item in calls:
            id = child_id(run.spec.id, item.call_id)
            if (unstored := self._unstored.get(id)) is not None:
                found.append(unstored)
            elif is_delegation(item.name):
                with suppress(NotFound):  # it was refused, and never began
                    found.append((await runs.attach(id)).run)
        return found

    async def _share(self, budget: AutonomyBudget, caller: Run, earlier: Sequence[Run], beside: int) -> AutonomyBudget:
        """The caller's budget, with this run's share of what is left in each of its layers."""
        layers = []
        for layer in budget.layers:
            used = await measure_use(caller, layer)
            for run in earlier:
                # Time that was waited for is in the caller's own.
                used = used + replace(await measure_use(run, layer), seconds=0.0)
            # Under a name of its own it holds beside the operator's, which every run has.
            named = replace(layer, budget_id=f"{layer.budget_id}.delegated", overlays=())
            layers.append(named.with_amounts(_share_amounts(layer.amounts - used.amounts, beside)))
        return replace(layers[0], overlays=tuple(layers[1:]))

    async def _all(self, found: Sequence[Run], runs: Runs) -> list[Run]:
        below = [child for run in found for child in await self._all(await self._children(run, run.allowed, runs), runs)]
        return [*found, *below]


def _agent(tool: str) -> str:
    return tool.removeprefix(TOOL_PREFIX)


def _latest(run: Run) -> list[FunctionCall]:
    """The calls of the run's last turn."""
    said = [entry.item for entry in run.transcript[run.base :] if entry.turn == run.turns and entry.origin == "model"]
    return [item for item in said if isinstance(item, FunctionCall)]


def measure_usage(run: Run) -> Used:
    """The usage of a run and of the runs that it has started."""
    return Used(run.turns, run.calls_allowed, sum_used(run)) + run.delegated


def _compute_remaining(caller: Run, earlier: Sequence[Run]) -> Limits:
    """What is left of the caller's limits."""
    limits = caller.spec.limits
    used = sum([measure_usage(run) for run in earlier], Used(caller.turns, caller.calls_allowed, sum_used(caller)))
    seconds = None if limits.max_seconds is None else limits.max_seconds - caller.elapsed
    return Limits(
        max_turns=_subtract(limits.max_turns, used.turns),
        max_tool_calls=_subtract(limits.max_tool_calls, used.calls),
        max_tokens=_subtract(limits.max_tokens, used.usage.total_tokens),
        max_output_tokens=_subtract(limits.max_output_tokens, used.usage.output_tokens),
        max_seconds=seconds,
    )


def _subtract(most: int | None, used: int) -> int | None:
    return None if most is None else most - used


def _share_limits(own: Limits, left: Limits, beside: int) -> Limits:
    """The agent's own limits, narrowed to its share of what the caller has left after keeping a part.

    Raises `InvalidRequest` if the share is empty.
    """
    shares: Json = {}
    for name in ("max_turns", "max_tool_calls", "max_tokens", "max_output_tokens", "max_seconds"):
        rest = getattr(left, name)
        if rest is None:
            continue
        part = rest * (1 - KEPT) if name == "max_seconds" else math.floor(rest * (1 - KEPT) / beside)
        if part <= 0:
            raise InvalidRequest(f"there is too little left of {name} to have an agent work on this; do it yourself")
        shares[name] = pick_least(getattr(own, name), part)
    return replace(own, **shares)


def _share_amounts(left: Amounts, beside: int) -> Amounts:
    """A share of what the caller has left after keeping a part. Seconds are not divided: the agents work at the same time."""
    seconds = left.scale(1 - KEPT).seconds
    commands = {key: count // beside for key, count in left.commands.items()}
    return replace(left.scale(1 - KEPT, parts=beside), seconds=seconds, commands=commands)


async def _follow(handle: RunHandle, context: CallContext) -> None:
    """Waits for the end, and reports progress meanwhile."""
    turns = 0
    async for batch in handle.batches():
        for record in batch:
            match record.event:
                case TurnStarted():
                    turns += 1
                    context.progress(f"turn {turns}")
                case ToolStarted(call_id):
                    named = [item.name for item in handle.run.allowed if item.call_id == call_id]
                    context.progress(f"turn {turns}: calls {named[0] if named else 'a tool'}")


def _render_result(call: ToolCall, run: Run) -> ToolResult:
    result = read_result(run)
    told = to_json(result.output)
    if result.termination_reason == "completed":
        return ToolResult(call.id, told)
    has = f" What it has said last: {told}" if run.text else ""
    why = f": {explain_lack(run)}" if result.termination_reason == "error" else ""
    name = run.spec.agent
    return ToolResult(call.id, f"The agent `{name}` did not finish ({result.termination_reason}{why}).{has}", is_error=True)
