"""Carries a workflow run out, step by step, from wherever its log ends.

Theory of operation. Steps are tasks that wait for those before them. Whether a step has been done is read off the log, so a run
that is taken up goes through the same steps again and finds the first that are not done. A step that was under way is done again
if that can do no harm: what it did is a run of the engine, which is followed instead of begun, or nothing that anybody would see.
Groups of steps are steps too: what they hold has its own place in the log.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from time import monotonic
from typing import Any, Final, Protocol, assert_never

from anyio import (
    CancelScope,
    CapacityLimiter,
    create_task_group,
    fail_after,
    get_cancelled_exc_class,
    sleep,
    sleep_forever,
)  # fmt: skip
from anyio import Event as Flag
from msgspec import Struct

from mainspring.errors import Interrupted, InvalidRequest, MainspringError, StoreError, Superseded
from mainspring.items import Json
from mainspring.spec import Caller
from mainspring.tools.schema import compiled
from mainspring.workflows.attend import run_id_of
from mainspring.workflows.calls import Calls, StepError, Work
from mainspring.workflows.definition import (
    Conditional,
    Group,
    HttpRequest,
    InvokeAgent,
    ParallelGroup,
    RunCommand,
    Step,
    SubWorkflow,
    Transform,
    Validate,
    Wait,
    Workflow,
    every_step,
    given_inputs,
)  # fmt: skip
from mainspring.workflows.events import (
    Event,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepSkipped,
    StepStarted,
    WorkflowCompleted,
    WorkflowFailed,
)  # fmt: skip
from mainspring.workflows.expressions import is_true, value_of
from mainspring.workflows.graph import After, after_in, order_of
from mainspring.workflows.journal import Journal
from mainspring.workflows.run import StepState, WorkflowRun

# They leave no trace but their result, so one write holds both: that they began, and what came of it.
_INSTANT: Final = (Transform, Validate)


class Agents(Protocol):
    """Agents as steps use them. `agents.runtime` has the real ones."""

    def known(self) -> Sequence[str]:
        """The names of those that there are."""
        ...

    async def __call__(self, agent: str, inputs: Json, *, run_id: str, tenant: str, caller: Caller, model: str | None) -> Json:
        """The agent's output. The run has this id: if there is one, it is followed, and no second one is begun.

        Raises a `MainspringError` in words that say what went wrong. Being cancelled leaves the run to whoever cancels.
        """
        ...


class Scope(Struct, frozen=True):
    """A workflow that is being carried out: the whole, or one inside of it. `prefix` stands before the ids of its steps."""

    workflow: Workflow
    inputs: Json
    prefix: str = ""

    def key(self, id: str) -> str:
        return f"{self.prefix}{id}"


class Driver:
    """Carries out one run within `scope`. `stop` ends a run of the engine that a step has begun."""

    def __init__(self, journal: Journal, agents: Agents, calls: Calls, stop: Callable[[str], Awaitable[None]]) -> None:
        self.scope = CancelScope()
        self._journal = journal
        self._agents = agents
        self._calls = calls
        self._stop = stop
        self._order = journal.run.order
        self._limiter = CapacityLimiter(self._order.definition.execution.parallel_limit)
        self.is_leaving = False
        self.why: MainspringError | None = None

    def leave(self, why: MainspringError | None = None) -> None:
        """Stops here, with all that is under way left to be taken up by somebody else."""
        self.is_leaving, self.why = True, self.why or why
        self.scope.cancel()

    async def run(self) -> None:
        """Carries the run out to its end, and records that."""
        scope = Scope(self._order.definition, self._order.inputs)
        if self._order.dry_run:
            await self._pretend(scope)
        else:
            await self._whole(scope)
        await self._journal.record(*stopped(self._journal.run, "the workflow ended"), self._ending(scope))

    def _ending(self, scope: Scope) -> Event:
        states = [self._state(scope.key(step.id)) for step in scope.workflow.steps]
        failed = [
            f"step `{step.id}` failed: {state.error}"
            for step, state in zip(scope.workflow.steps, states, strict=True)
            if state is not None and state.status == "failed"
        ]
        done = any(state is not None and state.status == "success" for state in states)
        if failed and not (done and scope.workflow.execution.continue_on_error):
            return WorkflowFailed("; ".join(failed))
        try:
            outputs = {} if not done or failed else value_of(scope.workflow.outputs, self._names(scope))
        except InvalidRequest as error:
            return WorkflowFailed(f"the outputs of the workflow: {error.message}")
        return WorkflowCompleted("partial" if failed else "success" if done else "skipped", outputs)

    async def _whole(self, scope: Scope) -> bool:
        execution = scope.workflow.execution
        after = after_in(scope.workflow.steps, execution.mode)
        return await self._group(scope, scope.workflow.steps, after, CapacityLimiter(execution.parallel_limit))

    async def _group(self, scope: Scope, steps: tuple[Step, ...], after: After, limiter: CapacityLimiter) -> bool:
        """Carries out steps in their order; says whether none has failed. What was not begun then is skipped."""
        execution, needed = scope.workflow.execution, order_of(steps)
        done = {step.id: Flag() for step in steps}
        failed = [step.id for step in steps if (state := self._state(scope.key(step.id))) and state.status == "failed"]
        if failed and execution.fail_fast and not execution.continue_on_error:
            # Whoever worked on it before could not stop the others any more.
            await self._halted(scope, steps)
            await self._skipped(scope, steps, failed[0])
            return False

        async def carried(step: Step) -> None:
            for id in after[step.id]:
                await done[id].wait()
            async with limiter:
                blocked = [id for id in failed if id in needed[step.id] or not execution.continue_on_error]
                if blocked and self._state(scope.key(step.id)) is None:
                    await self._skipped(scope, (step,), blocked[0])
                elif not await self._step(scope, step) and step.id not in failed:
                    failed.append(step.id)
                    if execution.fail_fast and not execution.continue_on_error:
                        group.cancel_scope.cancel()
            done[step.id].set()

        async with create_task_group() as group:
            for step in steps:
                group.start_soon(carried, step)
        if failed:
            await self._skipped(scope, steps, failed[0])
        return not failed

    async def _skipped(self, scope: Scope, steps: tuple[Step, ...], because: str) -> None:
        """Ends those of the steps, and of the steps inside of them, that have not ended, since another one has failed."""
        events: list[Event] = []
        for step in every_step(steps):
            state = self._state(scope.key(step.id))
            if state is None:
                events.append(StepSkipped(scope.key(step.id), f"step `{because}` failed"))
            elif not state.has_ended:
                events.append(StepFailed(scope.key(step.id), f"stopped, because step `{because}` failed", state.attempt))
        if events:
            await self._journal.record(*events)

    async def _halted(self, scope: Scope, steps: tuple[Step, ...]) -> None:
        """Ends the runs of the engine that steps have begun."""
        for step in every_step(steps):
            state = self._state(scope.key(step.id))
            if state is not None and state.run_id and not state.has_ended:
                await self._stop(state.run_id)

    async def _pretend(self, scope: Scope) -> None:
        """Says what would be done, and does nothing. Raises `InvalidRequest` for what is not there to do it with."""
        for step in every_step(scope.workflow.steps):
            if isinstance(step, InvokeAgent):
                self._known(step.agent)
            await self._journal.record(StepSkipped(scope.key(step.id), f"dry run: {_described(step)}"))

    async def _step(self, scope: Scope, step: Step) -> bool:
        """Carries a step out, attempt after attempt; says whether it did not fail."""
        key = scope.key(step.id)
        state = self._state(key)
        if state is not None and state.has_ended:
            return state.status != "failed"
        if state is None and step.condition is not None:
            try:
                if not is_true(step.condition, self._names(scope)):
                    skipped = [scope.key(each.id) for each in every_step((step,))]
                    await self._journal.record(*[StepSkipped(key, "its condition does not hold") for key in skipped])
                    return True
            except InvalidRequest as error:
                await self._journal.record(StepFailed(key, f"its condition: {error.message}"))
                return False
        if state is not None and state.status == "retrying":
            await sleep(step.retry.delay)
        return await self._attempts(scope, step, key, state)

    async def _attempts(self, scope: Scope, step: Step, key: str, state: StepState | None) -> bool:
        attempt = 1 if state is None else state.attempt
        is_begun = state is not None and state.status == "running"
        while True:
            action = type(step).__struct_config__.tag
            run_id = run_id_of(self._order.id, key, attempt) if isinstance(step, InvokeAgent | RunCommand | HttpRequest) else ""
            start = () if is_begun else (StepStarted(key, str(action), attempt, run_id),)
            if start and not isinstance(step, _INSTANT):
                await self._journal.record(*start)
                start = ()
            began = monotonic()
            try:
                output = await self._performed(scope, step, Work(self._order, key, run_id, self._names(scope)))
                outputs = value_of(step.outputs, {**self._names(scope), "output": output}) if step.outputs else {}
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
                await self._journal.record(*start, StepCompleted(key, output, outputs, monotonic() - began))
                return True

    async def _performed(self, scope: Scope, step: Step, work: Work) -> Any:
        """What comes of one attempt. The run of the engine that does the work is ended if nobody is to take it up."""
        try:
            if isinstance(step, Group):
                with fail_after(step.timeout):
                    return await self._opened(scope, step)
            async with self._limiter:
                with fail_after(step.timeout):
                    async with self._ended_with(work.run_id):
                        return await self._done(scope, step, work)
        except TimeoutError:
            raise StepError(f"it took longer than its {step.timeout:g} s") from None

    async def _opened(self, scope: Scope, step: Group) -> Any:
        match step:
            case Conditional():
                is_then = is_true(step.test, self._names(scope))
                branch, other = (step.then, step.otherwise) if is_then else (step.otherwise, step.then)
                if left := [each.id for each in every_step(other) if self._state(scope.key(each.id)) is None]:
                    name = "then" if not is_then else "else"
                    await self._journal.record(*[StepSkipped(scope.key(id), f"the branch `{name}` is not taken") for id in left])
                await self._inside(scope, branch, after_in(branch, "sequential"), 1)
                return {"branch": "then" if is_then else "else"}
            case ParallelGroup():
                limit = step.parallel_limit or scope.workflow.execution.parallel_limit
                await self._inside(scope, step.steps, after_in(step.steps, "parallel"), limit)
                ended = {each.id: self._state(scope.key(each.id)) for each in step.steps}
                return {id: None if state is None else state.output for id, state in ended.items()}
            case SubWorkflow():
                return await self._sub(scope, step)
            case _:
                assert_never(step)

    async def _inside(self, scope: Scope, steps: tuple[Step, ...], after: After, limit: int) -> None:
        if not await self._group(scope, steps, after, CapacityLimiter(limit)):
            failed = [step.id for step in steps if (state := self._state(scope.key(step.id))) and state.status == "failed"]
            raise StepError(f"inside of it, step `{failed[0]}` failed", may_repeat=False)

    async def _sub(self, scope: Scope, step: SubWorkflow) -> Json:
        workflow = self._order.definitions[step.workflow]
        inputs = given_inputs(workflow, value_of(step.inputs, self._names(scope)))
        within = Scope(workflow, inputs, f"{scope.key(step.id)}/")
        await self._whole(within)
        match self._ending(within):
            case WorkflowFailed(error):
                raise StepError(f"workflow `{workflow.name}`: {error}", may_repeat=False)
            case WorkflowCompleted(outputs=outputs):
                return outputs
            case event:
                raise AssertionError(event)

    async def _done(self, scope: Scope, step: Step, work: Work) -> Any:
        match step:
            case InvokeAgent():
                return await self._invoked(step, work)
            case RunCommand():
                return await self._calls.command(step, work)
            case HttpRequest():
                key = sha256(f"{work.order.id} {work.key}".encode()).hexdigest()[:32]
                return await self._calls.request(step, work, key)
            case Transform():
                return value_of(step.value, work.names)
            case Validate():
                return _validated(step, work.names)
            case Wait():
                return await self._waited(scope, step)
            case Conditional() | ParallelGroup() | SubWorkflow():
                raise AssertionError(f"`{step.id}` is a group")
            case _:
                assert_never(step)

    async def _invoked(self, step: InvokeAgent, work: Work) -> Json:
        agent, model = value_of(step.agent, work.names), value_of(step.model, work.names)
        self._known(agent)
        return await self._agents(
            agent,
            value_of(step.inputs, work.names),
            run_id=work.run_id,
            tenant=self._order.tenant,
            caller=self._order.caller,
            model=model,
        )

    async def _waited(self, scope: Scope, step: Wait) -> Json:
        began = monotonic()
        if step.until is None:
            await sleep(step.seconds or 0)
        else:
            while not is_true(step.until, self._names(scope)):
                if monotonic() - began + step.every > step.max_seconds:
                    raise StepError(f"`{step.until}` did not hold within {step.max_seconds:g} s")
                await sleep(step.every)
        return {"seconds": monotonic() - began}

    def _known(self, agent: str) -> None:
        if agent not in (known := self._agents.known()):
            names = ", ".join([f"`{name}`" for name in sorted(known)]) or "none"
            raise StepError(f"there is no agent `{agent}`; known: {names}", may_repeat=False)

    @asynccontextmanager
    async def _ended_with(self, run_id: str) -> AsyncIterator[None]:
        """Ends a run of the engine if the step is stopped that has begun it, unless somebody else is to take both up."""
        try:
            yield
        except get_cancelled_exc_class():
            if run_id and not self.is_leaving:
                with CancelScope(shield=True):
                    await self._stop(run_id)
            raise

    def _state(self, key: str) -> StepState | None:
        return self._journal.run.steps.get(key)

    def _names(self, scope: Scope) -> Json:
        """What expressions may read: inputs, the results so far, and which run this is."""
        start = len(scope.prefix)
        return {
            "inputs": scope.inputs,
            "steps": {
                key[start:]: {"status": state.status, "output": state.output, "outputs": state.outputs, "error": state.error}
                for key, state in self._journal.run.steps.items()
                if state.has_ended and key.startswith(scope.prefix) and "/" not in key[start:]
            },
            "workflow": {"name": scope.workflow.name, "run_id": self._order.id},
        }


def stopped(run: WorkflowRun, why: str) -> list[Event]:
    """The ends of the steps that are under way, when a run ends."""
    return [StepFailed(key, f"stopped: {why}", state.attempt) for key, state in run.steps.items() if not state.has_ended]


def _validated(step: Validate, names: Json) -> Any:
    """The value, if it is right. Raises `StepError` that says what is not."""
    value = value_of(step.value, names)
    problems = []
    if step.schema is not None:
        errors = compiled(step.schema).iter_errors(value)
        problems += [f"{'.'.join(map(str, error.instance_path)) or 'the value'}: {error.message}" for error in errors]
    if step.expression is not None and not is_true(step.expression, names):
        problems.append(f"`{step.expression}` does not hold")
    if problems:
        raise StepError(f"{step.message or 'the value is not valid'}: {'; '.join(problems)[:2_000]}")
    return value


def _described(step: Step) -> str:
    match step:
        case InvokeAgent():
            return f"would invoke agent `{step.agent}`"
        case RunCommand():
            return f"would run `{step.command}`"
        case HttpRequest():
            return f"would send {step.method} {step.url}"
        case SubWorkflow():
            return f"would carry out workflow `{step.workflow}`"
        case _:
            return f"would carry out the {type(step).__struct_config__.tag}"
