"""Agents as steps of a workflow: iterative, as soon as there are tools to iterate with."""

from collections.abc import Sequence

from mainspring.core.items import Json
from mainspring.engine.engine import Engine, Handle
from mainspring.features.agents.agent_result import ToolLoopConfig, read_result
from mainspring.features.agents.agent_runtime import AgentRuntime, make_failure
from mainspring.features.workflows.attend import follow_run
from mainspring.features.workflows.call_steps import StepWork


class AgentSteps:
    """The agents of a runtime. Each invocation is a run of the engine under an id that is known before."""

    def __init__(self, engine: Engine, runtime: AgentRuntime) -> None:
        self._engine = engine
        self._runtime = runtime

    def known(self) -> Sequence[str]:
        return tuple(self._runtime.registry.definitions)

    async def __call__(self, agent: str, inputs: Json, work: StepWork, *, model: str | None) -> Json:
        """See `drive.Agents`. Raises `RunFailed` if the agent did not come to an end of its own."""

        async def start() -> Handle:
            order = work.order
            return await self._runtime.start(
                agent,
                inputs,
                ToolLoopConfig(),
                id=work.run_id,
                tenant=order.tenant,
                caller=order.caller,
                model=model,
                background=True,
                traceparent=order.traceparent,
            )

        run = (await follow_run(self._engine, work.run_id, start, work.waiting)).run
        result = read_result(run)
        if result.termination_reason != "completed" or run.status != "completed":
            raise make_failure(run)
        return result.output
