"""Drives a workflow run step by step, from wherever its log ends.

Theory of operation. Steps are tasks that wait for those before them. The log says whether a step is done, so a resumed run goes
through the same steps again and continues with the first that are not. A step that was in progress is run again if that is
safe: its work is a run of the engine, which is followed rather than started again, or has no effect outside. Groups of steps
are steps too: what they hold has its own entries in the log.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final, assert_never

from anyio import (
    CancelScope,
    CapacityLimiter,
    create_task_group,
    fail_after,
    get_cancelled_exc_class,
    move_on_after,
    sleep,
    sleep_forever,
)  # fmt: skip
from anyio import Event as Flag
from anyio.to_thread import run_sync

from mainspring.core.errors import Interrupted, InvalidRequest, MainspringError, MemoryLimit, StoreError, Superseded
from mainspring.core.items import Json
from mainspring.core.memory_quota import Hold
from mainspring.features.workflows.dry_run import plan_dry_run
from mainspring.features.workflows.expressions import check_condition, find_reads, resolve_values
from mainspring.features.workflows.graph import After, Losses, find_predecessors, sort_steps
from mainspring.features.workflows.step_actions import StepActions
from mainspring.features.workflows.step_work import StepError, StepWork, derive_run_id
from mainspring.features.workflows.workflow_definition import (
    AgentStep,
    CallStep,
    Conditional,
    ExecuteCode,
    Group,
    GroupChat,
    Handoff,
    HttpRequest,
    InvokeAgent,
    ParallelGroup,
    Route,
    RunCommand,
    Step,
    SubWorkflow,
    Transform,
    Validate,
    Wait,
    complete_inputs,
    list_steps,
)  # fmt: skip
from mainspring.features.workflows.workflow_log import WorkflowJournal
from mainspring.features.workflows.workflow_run import (
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepSkipped,
    StepStarted,
    StepState,
    StepWaiting,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowLogEvent,
    WorkflowRun,
    WorkflowScope,
)  # fmt: skip
from mainspring.tools.schema import compile_schema

MOST_BYTES: Final = 64 * 1024 * 1024
# They leave no trace but their result, so one write holds both: that they began, and what came of it.
_INSTANT: Final = (Transform, Validate)


class WorkflowDriver:
    """Drives one run within `scope`. `stop` cancels a run that a step has started, `hold` counts what steps give."""

    def __init__(
        self, journal: WorkflowJournal, actions: StepActions, stop: Callable[[str], Awaitable[None]], hold: Hold
    ) -> None:
        self.scope = CancelScope()
        self.hold = hold
        self._journal = journal
        self._actions = actions
        self._stop = stop
        self._order = journal.run.order
        self._limiter = CapacityLimiter(self._order.definition.execution.parallel_limit)
        self.is_leaving = False
        self.why: MainspringError | None = None

    def leave(self, why: MainspringError | None = None) -> None:
        """Stops driving, and leaves the run to be resumed."""
        self.is_leaving, self.why = True, self.why or why
        self.scope.cancel()

    def hand_over(self) -> None:
        """Stops driving, since another process has taken the run over or ended it."""
        if self._journal.run.has_ended:
            self.scope.cancel()
        else:
            self.leave(self._journal.failure)

    async def run(self) -> None:
        """Drives the run to its end, and records that."""
        scope = WorkflowScope(self._order.definition, self._order.inputs)
        await self._whole(scope, dry_run=self._order.dry_run)
        await self._journal.record(*end_open_steps(self._journal.run, "the workflow ended"), await self._ending(scope))

    async def _ending(self, scope: WorkflowScope) -> WorkflowCompleted | WorkflowFailed:
        workflow = scope.workflow
        failed, done = self._describe_failures(scope), any(self._status(scope, step.id) == "success" for step in workflow.steps)
        if failed and not (done and workflow.execution.continue_on_error):
            return WorkflowFailed(failed)
        lost = self._losses(scope, workflow.steps)
        missing = {each.id for step in workflow.steps if step.id in lost for each in list_steps((step,))}
        wanted = {name: value for name, value in workflow.outputs.items() if missing.isdisjoint(find_reads(value).results)}
        try:
            outputs = await resolve_values(wanted, self._names(scope), self._order.tenant) if done else {}
        except InvalidRequest as error:
            return WorkflowFailed(f"the outputs of the workflow: {error.message}")
        return WorkflowCompleted("partial" if failed else "success" if done else "skipped", outputs)

    def _describe_failures(self, scope: WorkflowScope) -> str:
        """The failed steps and their errors; empty if none failed."""
        states = [(step.id, self._state(scope.key(step.id))) for step in scope.workflow.steps]
        failed = [(id, state.error) for id, state in states if state is not None and state.status == "failed"]
        return "; ".join([f"step `{id}` failed: {error}" for id, error in failed])

    async def _whole(self, scope: WorkflowScope, *, dry_run: bool) -> None:
        execution = scope.workflow.execution
        if dry_run:
            agents, definitions = self._actions.list_agents(), self._order.definitions
            await self._journal.record(*await run_sync(plan_dry_run, scope, self._order.id, definitions, agents))
            return
        after = find_predecessors(scope.workflow.steps, execution.mode)
        await self._group(scope, scope.workflow.steps, after, CapacityLimiter(execution.parallel_limit))

    def _losses(self, scope: WorkflowScope, steps: tuple[Step, ...]) -> Losses:
        return Losses(steps, lambda id: self._status(scope, id), goes_on=scope.workflow.execution.continue_on_error)

    async def _group(self, scope: WorkflowScope, steps: tuple[Step, ...], after: After, limiter: CapacityLimiter) -> bool:
        """Runs steps in their order, and returns whether none failed. Steps that a failure keeps from starting are skipped."""
        execution = scope.workflow.execution
        stops = execution.fail_fast and not execution.continue_on_error
        done = {step.id: Flag() for step in steps}
        lost = self._losses(scope, steps)

        async def run_when_ready(step: Step) -> None:
            for id in after[step.id]:
                await done[id].wait()
            async with limiter:
                if not await self._unless_lost(scope, step, lost) and stops:
                    group.cancel_scope.cancel()
            done[step.id].set()

        if lost and stops:
            # Whoever worked on it before could not stop the others any more.
            await self._stop_runs(scope, steps)
        else:
            async with create_task_group() as group:
                for step in steps:
                    group.start_soon(run_when_ready, step)
        if lost and stops:
            await self._run_handlers(scope, steps, lost)
        if lost:
            await self._skip(scope, steps, lost.first)
        return not lost

    async def _unless_lost(self, scope: WorkflowScope, step: Step, lost: Losses) -> bool:
        """Runs a step, or skips it because a step that it needs has failed. Returns false if it failed itself."""
        if self._state(scope.key(step.id)) is None and (cause := lost.cause(step.id)) is not None:
            await self._skip(scope, (step,), cause)
            lost.add(step.id, cause)
        elif not await self._step(scope, step):
            lost.add(step.id, step.id)
            return False
        return True

    async def _run_handlers(self, scope: WorkflowScope, steps: tuple[Step, ...], lost: Losses) -> None:
        """Runs the steps that handle the failure which stopped the others."""
        await self._skip(scope, tuple([step for step in steps if not lost.handles_some(step.id)]), lost.first)
        for step in sort_steps(steps):
            if lost.handles_some(step.id):
                await self._unless_lost(scope, step, lost)

    async def _skip(self, scope: WorkflowScope, steps: tuple[Step, ...], because: str) -> None:
        """Ends the steps, and those inside of them, that have not ended, because another one has failed."""
        events: list[WorkflowLogEvent] = []
        for step in list_steps(steps):
            state = self._state(scope.key(step.id))
            if state is None:
                events.append(StepSkipped(scope.key(step.id), f"step `{because}` failed"))
            elif not state.has_ended:
                events.append(StepFailed(scope.key(step.id), f"stopped, because step `{because}` failed", state.attempt))
        if events:
            await self._journal.record(*events)

    async def _stop_runs(self, scope: WorkflowScope, steps: tuple[Step, ...]) -> None:
        """Cancels the runs of the engine that steps have started."""
        for step in list_steps(steps):
            state = self._state(scope.key(step.id))
            if state is not None and state.run_id and not state.has_ended:
                await self._stop(state.run_id)

    async def _step(self, scope: WorkflowScope, step: Step) -> bool:
        """Runs a step with its retries, and returns whether it did not fail."""
        key = scope.key(step.id)
        state = self._state(key)
        if state is not None and state.has_ended:
            return state.status != "failed"
        if state is None and step.condition is not None:
            try:
                if not await check_condition(step.condition, self._names(scope), self._order.tenant):
                    skipped = [scope.key(each.id) for each in list_steps((step,))]
                    await self._journal.record(*[StepSkipped(key, "its condition does not hold") for key in skipped])
                    return True
            except InvalidRequest as error:
                await self._journal.record(StepFailed(key, f"its condition: {error.message}"))
                return False
        if state is not None and state.status == "retrying":
            await sleep(step.retry.delay)
        return await self._attempts(scope, step, key, state)

    async def _attempts(self, scope: WorkflowScope, step: Step, key: str, state: StepState | None) -> bool:
        attempt = 1 if state is None else state.attempt
        is_begun = state is not None and state.status == "running"
        if not is_begun and (excess := self._find_excess()):  # what has begun may have its effect already
            await self._journal.record(StepFailed(key, excess, attempt))
            return False
        while True:
            action = type(step).__struct_config__.tag
            run_id = derive_run_id(self._order.id, key, attempt) if isinstance(step, AgentStep | CallStep) else ""
            start = () if is_begun else (StepStarted(key, str(action), attempt, run_id),)
            if start and not isinstance(step, _INSTANT):
                await self._journal.record(*start)
                start = ()
            began = monotonic()
            try:
                output = await self._perform(scope, step, self._work(scope, key, run_id))
            except (Interrupted, Superseded, StoreError) as error:
                # The engine stops, or somebody else has taken over: the step has not failed, it is only not done here.
                self.leave(error)
                await sleep_forever()
            except MainspringError as error:
                may_repeat = error.may_repeat if isinstance(error, StepError) else True
                if attempt >= step.retry.max_attempts or not may_repeat:
                    await self._journal.record(*start, StepFailed(key, error.message, attempt))
                    return False
                attempt, is_begun = attempt + 1, False
                await self._journal.record(*start, StepRetrying(key, attempt, error.message, step.retry.delay))
                await sleep(step.retry.delay)
            else:
                break
        end: StepCompleted | StepFailed
        try:
            outputs = await resolve_values(step.outputs, {**self._names(scope), "output": output}, self._order.tenant)
            end = StepCompleted(key, output, outputs, monotonic() - began)
        except InvalidRequest as error:
            # What was done is not done again to be named otherwise.
            end = StepFailed(key, f"it was done, but its outputs cannot be evaluated: {error.message}", attempt)
        await self._journal.record(*start, end)
        return isinstance(end, StepCompleted)

    def _find_excess(self) -> str:
        """Why no further step may give something; empty if one may."""
        if self._journal.size > MOST_BYTES:
            return f"what the steps of this run have given is more than {MOST_BYTES >> 20} MiB in all; hand on less"
        try:
            self.hold.add(self._journal.size - self.hold.size)
        except MemoryLimit as error:
            return error.message
        return ""

    def _work(self, scope: WorkflowScope, key: str, run_id: str) -> StepWork:
        async def waiting(approvals: tuple[str, ...]) -> None:
            state = self._state(key)
            if state is not None and state.approvals != approvals:
                await self._journal.record(StepWaiting(key, approvals))

        return StepWork(self._order, key, run_id, self._names(scope), waiting)

    async def _perform(self, scope: WorkflowScope, step: Step, work: StepWork) -> Any:
        """The output of one attempt. Its run of the engine is cancelled unless another process will resume it."""
        try:
            if isinstance(step, Group):
                with fail_after(step.timeout):
                    return await self._run_group(scope, step)
            async with self._limiter:
                with fail_after(step.timeout):
                    async with self._stop_on_cancel(work.run_id):
                        return await self._run_action(scope, step, work)
        except TimeoutError:
            raise StepError(f"it exceeded its timeout of {step.timeout:g} s") from None

    async def _run_group(self, scope: WorkflowScope, step: Group) -> Any:
        match step:
            case Conditional():
                is_then = await check_condition(step.test, self._names(scope), self._order.tenant)
                branch, other = (step.then, step.otherwise) if is_then else (step.otherwise, step.then)
                if left := [each.id for each in list_steps(other) if self._state(scope.key(each.id)) is None]:
                    name = "then" if not is_then else "else"
                    await self._journal.record(*[StepSkipped(scope.key(id), f"the branch `{name}` is not taken") for id in left])
                await self._inside(scope, branch, find_predecessors(branch, "sequential"), 1)
                return {"branch": "then" if is_then else "else"}
            case ParallelGroup():
                limit = step.parallel_limit or scope.workflow.execution.parallel_limit
                await self._inside(scope, step.steps, find_predecessors(step.steps, "parallel"), limit)
                ended = {each.id: self._state(scope.key(each.id)) for each in step.steps}
                return {id: None if state is None else state.output for id, state in ended.items()}
            case SubWorkflow():
                return await self._sub(scope, step)
            case _:
                assert_never(step)

    async def _inside(self, scope: WorkflowScope, steps: tuple[Step, ...], after: After, limit: int) -> None:
        if not await self._group(scope, steps, after, CapacityLimiter(limit)):
            failed = [step.id for step in steps if (state := self._state(scope.key(step.id))) and state.status == "failed"]
            raise StepError(f"step `{failed[0]}` inside it failed", may_repeat=False)

    async def _sub(self, scope: WorkflowScope, step: SubWorkflow) -> Json:
        workflow = self._order.definitions[step.workflow]
        inputs = complete_inputs(workflow, await resolve_values(step.inputs, self._names(scope), self._order.tenant))
        within, execution = WorkflowScope(workflow, inputs, f"{scope.key(step.id)}/"), workflow.execution
        with move_on_after(execution.timeout) as limit:
            await self._whole(within, dry_run=execution.dry_run)
        if limit.cancelled_caught:
            raise StepError(f"workflow `{workflow.name}` exceeded its timeout of {execution.timeout:g} s", may_repeat=False)
        ending = await self._ending(within)
        if isinstance(ending, WorkflowFailed) or ending.status == "partial":
            told = ending.error if isinstance(ending, WorkflowFailed) else self._describe_failures(within)
            raise StepError(f"workflow `{workflow.name}`: {told}", may_repeat=False)
        return ending.outputs

    async def _run_action(self, scope: WorkflowScope, step: Step, work: StepWork) -> Any:
        match step:
            case InvokeAgent():
                return await self._actions.invoke_agent(step, work)
            case RunCommand():
                return await self._actions.run_command(step, work)
            case HttpRequest():
                return await self._actions.send_request(step, work)
            case ExecuteCode():
                return await self._actions.execute_code(step, work)
            case Route():
                return await self._actions.choose_agent(step, work)
            case Handoff():
                return await self._actions.hand_off(step, work)
            case GroupChat():
                return await self._actions.chat(step, work)
            case Transform():
                return await resolve_values(step.value, work.names, work.order.tenant)
            case Validate():
                return await _validate(step, work)
            case Wait():
                return await self._wait(scope, step)
            case Conditional() | ParallelGroup() | SubWorkflow():
                raise AssertionError(f"`{step.id}` is a group")
            case _:
                assert_never(step)

    async def _wait(self, scope: WorkflowScope, step: Wait) -> Json:
        began = monotonic()
        if step.until is None:
            await sleep(step.seconds or 0)
        else:
            while not await check_condition(step.until, self._names(scope, with_open=True), self._order.tenant):
                if monotonic() - began + step.every > step.max_seconds:
                    raise StepError(f"`{step.until}` did not hold within {step.max_seconds:g} s")
                await sleep(step.every)
        return {"seconds": monotonic() - began}

    @asynccontextmanager
    async def _stop_on_cancel(self, run_id: str) -> AsyncIterator[None]:
        """Cancels a run of the engine when its step is cancelled, unless both are left to be resumed."""
        try:
            yield
        except get_cancelled_exc_class():
            if run_id and not self.is_leaving:
                with CancelScope(shield=True):
                    await self._stop(run_id)
            raise

    def _state(self, key: str) -> StepState | None:
        return self._journal.run.steps.get(key)

    def _status(self, scope: WorkflowScope, id: str) -> str | None:
        state = self._state(scope.key(id))
        return None if state is None else state.status

    def _names(self, scope: WorkflowScope, *, with_open: bool = False) -> Json:
        """The names that expressions read: inputs, results so far, and the run. `with_open` adds the steps that have not ended;
        those that have not started are `pending`."""
        start, states = len(scope.prefix), self._journal.run.steps
        found = {
            key[start:]: {"status": state.status, "output": state.output, "outputs": state.outputs, "error": state.error}
            for key, state in states.items()
            if (state.has_ended or with_open) and key.startswith(scope.prefix) and "/" not in key[start:]
        }
        if with_open:
            pending: Json = {"status": "pending", "output": None, "outputs": {}, "error": None}
            found = {each.id: pending for each in list_steps(scope.workflow.steps)} | found
        workflow = {"name": scope.workflow.name, "run_id": self._order.id}
        return {"inputs": scope.inputs, "steps": found, "workflow": workflow}


def end_open_steps(run: WorkflowRun, why: str) -> list[WorkflowLogEvent]:
    """Events that end the steps in progress when a run ends."""
    return [StepFailed(key, f"stopped: {why}", state.attempt) for key, state in run.steps.items() if not state.has_ended]


async def _validate(step: Validate, work: StepWork) -> Any:
    """The value, if it is valid. Raises `StepError` with every problem."""
    value = await resolve_values(step.value, work.names, work.order.tenant)
    problems = []
    if step.schema is not None:
        errors = compile_schema(step.schema).list_errors(value)
        problems += [f"{'.'.join(map(str, error.instance_path)) or 'the value'}: {error.message}" for error in errors]
    if step.expression is not None and not await check_condition(step.expression, work.names, work.order.tenant):
        problems.append(f"`{step.expression}` does not hold")
    if problems:
        raise StepError(f"{step.message or 'the value is not valid'}: {'; '.join(problems)[:2_000]}")
    return value
