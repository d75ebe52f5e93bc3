"""The workflows of an engine: start, follow, list, cancel and resume runs. Runs belong to the engine, not to the caller.

Theory of operation. One task drives a run. Closing the engine stops the tasks where they are; what is recorded stays, and the
next engine on the same store resumes the runs, unless the process that drives one is still alive (see `engine.presence`). A run
carries its definition: files that change meanwhile do not change it.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from logging import getLogger
from types import TracebackType
from typing import Final, Self

from anyio import CancelScope, Lock, create_task_group, current_time, move_on_after, sleep
from anyio import Event as Flag
from anyio.abc import TaskGroup
from msgspec import Struct

from mainspring.core.errors import CallerError, Interrupted, MainspringError, NotFound, NoWorker, StoreError, Superseded
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Json, decode, user
from mainspring.core.memory_quota import find_holder
from mainspring.core.spec import STEP_MODEL, Caller, RunSpec
from mainspring.engine.engine import OFFER_SECONDS, START_WORKER, Engine
from mainspring.features.approvals.pending import cancel_with_questions
from mainspring.features.workflows.step_actions import StepActions
from mainspring.features.workflows.step_driver import WorkflowDriver, end_open_steps
from mainspring.features.workflows.step_work import derive_next_id
from mainspring.features.workflows.workflow_definition import complete_inputs
from mainspring.features.workflows.workflow_folder import WorkflowFolders
from mainspring.features.workflows.workflow_log import (
    EVENT,
    IGNORE,
    RUN,
    WorkflowJournal,
    WorkflowObserver,
    forget_open,
    list_unfinished,
    mark_driver,
)
from mainspring.features.workflows.workflow_run import (
    Status,
    StepState,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowLogEvent,
    WorkflowOrder,
    WorkflowRecord,
    WorkflowResumed,
    WorkflowRun,
    WorkflowStarted,
)  # fmt: skip
from mainspring.ports import PAGE_BYTES, Document

log = getLogger(__name__)

LOOK_SECONDS: Final = 0.5
# How often runs are looked for that nobody drives.
TAKE_UP_SECONDS: Final = 1.0
BATCH: Final = 100


class WorkflowHandle:
    """A run for its readers: live if this process drives it, else as the store has it."""

    def __init__(self, journal: WorkflowJournal, driver: WorkflowDriver | None = None) -> None:
        self._journal = journal
        if driver is None:
            journal.close()
        self._driver = driver
        self._ended = Flag()
        self._is_cancelled = False

    @property
    def id(self) -> str:
        return self._journal.run.id

    @property
    def run(self) -> WorkflowRun:
        """The run so far."""
        return self._journal.run

    @property
    def is_live(self) -> bool:
        return self._driver is not None and not self._ended.is_set()

    async def events(self, after: int = -1) -> AsyncIterator[WorkflowRecord]:
        """The events after number `after`, as they are recorded, in this process or another. Ends with the run.

        Raises `Interrupted` if the engine stops first.
        """
        while batch := await self.more(after):
            for record in batch:
                yield record
            after = batch[-1].seq

    async def more(self, after: int) -> Sequence[WorkflowRecord]:
        """The events after number `after`, once there are any; none at the end of the run. Raises as `events` does."""
        while not (found := await self._journal.more(after)) and not self.run.has_ended:
            if self._driver is not None and not isinstance(failure := self._failure(), Superseded):
                raise failure
            await sleep(LOOK_SECONDS)
            await self._journal.refresh()
        return found

    async def wait(self) -> WorkflowRun:
        """The run at its end; raises as `events` does."""
        async for _ in self.events(self.run.seq - 1):
            pass
        return self.run

    def request_cancel(self) -> None:
        self._is_cancelled = True
        if self._driver is not None:
            self._driver.scope.cancel()

    def _failure(self) -> MainspringError:
        stopped = Interrupted(f"the engine stopped before workflow run `{self.id}` ended; it can be resumed")
        return self._journal.failure or (self._driver and self._driver.why) or stopped


class KeyReused(CallerError):
    """An idempotency key was sent again with another order."""

    code = "idempotency_key_reused"
    status = 409


class WorkflowRunSummary(Struct, frozen=True):
    """A run in a list."""

    id: str
    workflow: str
    status: Status | str
    created_at: float
    dry_run: bool


class WorkflowRunPage(Struct, frozen=True):
    runs: tuple[WorkflowRunSummary, ...]
    has_more: bool = False


class Workflows:
    """Use as `async with`, inside of its engine's. `actions` performs their steps; `observer` is told of the ends of runs."""

    def __init__(
        self,
        engine: Engine,
        folders: WorkflowFolders,
        actions: StepActions,
        *,
        new_id: NewId = random_id,
        observer: WorkflowObserver = IGNORE,
    ) -> None:
        self.folders = folders
        self._observer = observer
        self._engine = engine
        self._store = engine.store
        self._actions = actions
        self._new_id = new_id
        self._presence = engine.presence
        self._live: dict[str, WorkflowHandle] = {}
        self._resuming = Lock()
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._is_looking = False

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(create_task_group())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.interrupt()
        for handle in list(self._live.values()):
            await handle._ended.wait()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        await self._stack.__aexit__(None, None, None)
        self._tasks = None

    async def start(
        self,
        name: str,
        inputs: Json | None = None,
        *,
        dry_run: bool = False,
        tenant: str = "",
        caller: Caller | None = None,
        key: str | None = None,
        traceparent: str = "",
    ) -> WorkflowHandle:
        """Starts a run, which is durable when this returns; with a `key` that the tenant has used for this workflow, returns
        that run. `traceparent` is the parent span of its steps.

        Raises `NotFound`, `InvalidRequest`, and `KeyReused` for a key with other inputs, before anything is recorded.
        """
        definitions = self.folders.closure(name)
        workflow = definitions[name]
        order = WorkflowOrder(
            id=self._new_id("wfr") if key is None else derive_id(tenant, name, key),
            workflow=name,
            definitions=definitions,
            inputs=complete_inputs(workflow, inputs or {}),
            created_at=time.time(),
            dry_run=dry_run or workflow.execution.dry_run,
            tenant=tenant,
            caller=caller or Caller(),
            traceparent=traceparent,
        )
        self._group()
        if key is not None and (known := await self._find_started(order)) is not None:
            return known
        driver = ""
        if self._engine.drives:
            await self._presence.show()
            driver = self._presence.id
        try:
            started = WorkflowStarted(name, order.inputs, order.dry_run, driver)
            journal = await WorkflowJournal.begin(self._store, order, started, self._observer)
            return self._drive(journal) if self._engine.drives else WorkflowHandle(journal)
        except StoreError:
            # Somebody else may have sent the same key in this moment.
            if key is not None and (known := await self._find_started(order)) is not None:
                return known
            raise

    async def _find_started(self, order: WorkflowOrder) -> WorkflowHandle | None:
        """The run that this order has started before; None if there is none."""
        try:
            handle = await self.attach(order.id, tenant=order.tenant)
        except NotFound:
            return None
        before = handle.run.order
        if (before.inputs, before.dry_run) != (order.inputs, order.dry_run):
            raise KeyReused(
                f"this Idempotency-Key has started run `{before.id}` of workflow `{order.workflow}`, with other inputs; send a "
                "new key with new inputs",
                param="Idempotency-Key",
            )
        return handle

    async def wait(self, handle: WorkflowHandle) -> WorkflowRun:
        """The run at its end. One that others are to drive, and that nobody takes up in time, is cancelled: raises `NoWorker`."""
        if not self._engine.drives:
            with move_on_after(OFFER_SECONDS):
                await handle.more(0)
            if handle.run.seq == 1:
                await self.cancel(handle.id, tenant=handle.run.order.tenant)
                raise NoWorker(f"nobody has taken up this run within {OFFER_SECONDS:g} s; {START_WORKER}")
        return await handle.wait()

    async def run(self, name: str, inputs: Json | None = None, *, dry_run: bool = False) -> WorkflowRun:
        """Starts a run and waits for its end; `.status` and `.outputs` are its result."""
        return await (await self.start(name, inputs, dry_run=dry_run)).wait()

    async def attach(self, run_id: str, *, tenant: str = "") -> WorkflowHandle:
        """A run by its id. Raises `NotFound`, also for one of another tenant."""
        if (live := self._live.get(run_id)) is not None and live.run.order.tenant == tenant:
            return live
        return WorkflowHandle(await WorkflowJournal.read(self._store, run_id, tenant, self._observer))

    async def list(
        self,
        *,
        tenant: str = "",
        workflow: str | None = None,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = True,
    ) -> WorkflowRunPage:
        """Runs by the time they started; `after` is the id of the last one seen. Raises `NotFound` for it."""
        number = None
        if after is not None:
            if (last := await self._store.get(RUN, after, tenant=tenant)) is None:
                raise NotFound(f"there is no workflow run `{after[:80]}`", param="after")
            number = last.number
        found: list[WorkflowRunSummary] = []
        while len(found) <= limit and (
            batch := await self._store.documents(
                RUN, tenant=tenant, after=number, limit=BATCH, newest_first=newest_first, most_bytes=PAGE_BYTES
            )
        ):
            found += [await self._summarize(each) for each in batch if workflow in (None, decode(each.body, _Named).workflow)]
            number = batch[-1].number
        return WorkflowRunPage(tuple(found[:limit]), has_more=len(found) > limit)

    async def cancel(self, run_id: str, *, tenant: str = "") -> WorkflowRun:
        """Cancels a run and the steps in progress, in whichever process. An ended run stays as it is."""
        handle = await self.attach(run_id, tenant=tenant)
        if handle.run.status == "cancelled":  # whoever cancelled it may not have reached the runs of its steps
            await self._stop_steps(handle.run.order, [step for step in handle.run.steps.values() if step.status == "failed"])
        if handle.is_live:
            handle.request_cancel()
            await handle._ended.wait()
        while not handle.run.has_ended:
            # Whoever carries it out elsewhere is told so when it next writes, and stops; unless it is quicker.
            with suppress(Superseded):
                await self._record_cancel(handle._journal)
            handle = await self.attach(run_id, tenant=tenant)
        return handle.run

    async def _record_cancel(self, journal: WorkflowJournal) -> None:
        steps = [step for step in journal.run.steps.values() if not step.has_ended]
        await journal.record(*end_open_steps(journal.run, "the workflow was cancelled"), WorkflowCancelled())
        await self._stop_steps(journal.run.order, steps)

    async def _stop_steps(self, order: WorkflowOrder, steps: Sequence[StepState]) -> None:
        for step in steps:
            if step.run_id:
                with suppress(Superseded):  # it has begun meanwhile
                    await self._prevent(step.run_id, order)
                await self._stop(step.run_id)

    async def _prevent(self, run_id: str, order: WorkflowOrder) -> None:
        """Has the run of a step not begin any more, if it has not: whoever drives the workflow may be about to."""
        try:
            await self._store.load(run_id)
        except NotFound:
            told = (user(f"A step of workflow `{order.workflow}`, run `{order.id}`, which was cancelled before it began."),)
            metadata = {"workflow": order.workflow, "workflow_run": order.id}
            spec = RunSpec(run_id, STEP_MODEL, told, background=True, metadata=metadata, tenant=order.tenant, caller=order.caller)
            await self._engine.prevent(spec)

    async def resume(self, run_id: str, *, tenant: str = "") -> WorkflowHandle:
        """Resumes a run whose process is gone; one that is live or has ended is only returned. Raises `NotFound`."""
        async with self._resuming:
            handle = await self.attach(run_id, tenant=tenant)
            if handle.is_live or handle.run.has_ended or await self._presence.is_driven(handle.run.driver):
                return handle
            self._group()
            await self._presence.show()
            await handle._journal.record(WorkflowResumed(self._presence.id))
            await mark_driver(self._store, handle.run.order, self._presence.id)
            handle._journal.is_closed = False
            return self._drive(handle._journal)

    async def resume_all(self) -> Sequence[WorkflowHandle]:
        """Resumes every unfinished run that no process drives; logs those that cannot be resumed."""
        handles = []
        unfinished = await list_unfinished(self._store) if self._engine.drives else []
        living = {driver for driver in {run.driver for run in unfinished} if await self._presence.is_driven(driver)}
        for run_id, tenant, driver in unfinished:
            if driver in living:
                continue
            try:
                handle = self._live.get(run_id) or await self.resume(run_id, tenant=tenant)
                if handle.run.has_ended:
                    await forget_open(self._store, run_id)
                elif handle.is_live:
                    handles.append(handle)
            except NotFound:
                await forget_open(self._store, run_id)
            except MainspringError as error:
                log.warning("workflow run %s was not resumed: %s", run_id, error)
        return handles

    async def watch_over(self) -> None:
        """Takes up runs that nobody drives, until it is cancelled."""
        while True:
            await sleep(TAKE_UP_SECONDS)
            try:
                await self.resume_all()
            except StoreError as error:
                log.warning("the store could not be asked for unfinished workflow runs: %s", error)

    async def wait_until_idle(self) -> None:
        """Waits until no run is in progress here; runs that only wait for a person do not count."""
        while busy := [handle for handle in self._live.values() if not handle.run.is_waiting]:
            if not await busy[0]._journal.more(busy[0].run.seq - 1):
                await busy[0]._ended.wait()

    def interrupt(self) -> None:
        """Stops driving every run, and leaves it to be resumed."""
        for handle in self._live.values():
            if handle._driver is not None:
                handle._driver.leave()

    def _group(self) -> TaskGroup:
        if self._tasks is None:
            raise Interrupted("the engine is not running; use it as `async with`")
        return self._tasks

    def _drive(self, journal: WorkflowJournal) -> WorkflowHandle:
        order = journal.run.order
        hold = self._engine.quota.hold(find_holder(order.caller.subject, order.tenant), 0)
        driver = WorkflowDriver(journal, self._actions, self._stop, hold)
        handle = WorkflowHandle(journal, driver)
        journal.on_failure = driver.leave
        self._live[handle.id] = handle
        group = self._group()
        if not self._is_looking:
            self._is_looking = True
            group.start_soon(self._look_around)
        group.start_soon(self._drive_to_end, handle, driver)
        return handle

    async def _drive_to_end(self, handle: WorkflowHandle, driver: WorkflowDriver) -> None:
        run = handle.run
        limit = run.order.definition.execution.timeout
        driver.scope.deadline = current_time() + max(limit - run.elapsed, 0)
        end: WorkflowLogEvent = WorkflowFailed(f"it exceeded its timeout of {limit:g} s")
        why = "the workflow ran out of time"
        try:
            with driver.scope:
                await driver.run()
            if handle._is_cancelled:
                end, why = WorkflowCancelled(), "the workflow was cancelled"
        except MainspringError as error:
            end = WorkflowFailed(error.message)
        except Exception as error:
            log.exception("workflow run %s failed inside the engine", handle.id)
            end, why = WorkflowFailed(f"internal error: {type(error).__name__}"), "the workflow failed"
        finally:
            with CancelScope(shield=True):
                if not handle.run.has_ended and not driver.is_leaving:
                    with suppress(StoreError, Superseded):
                        await handle._journal.record(*end_open_steps(handle.run, why), end)
                self._live.pop(handle.id, None)
                driver.hold.release()
                handle._journal.close()
                handle._ended.set()

    async def _stop(self, run_id: str) -> None:
        """Cancels a run of the engine, its questions, and the run that continues it after an answer; then those that the same
        step has begun after it."""
        with suppress(MainspringError):  # one of them was never begun
            while True:
                await cancel_with_questions(self._engine, run_id, "the step that asks was stopped")
                run_id = derive_next_id(run_id)

    async def _look_around(self) -> None:
        """Stops driving runs that another process has ended or taken over."""
        while True:
            await sleep(LOOK_SECONDS)
            for handle in list(self._live.values()):
                with suppress(StoreError):
                    if not handle.run.has_ended and await handle._journal.catch_up() and handle._driver is not None:
                        handle._driver.hand_over()

    async def _summarize(self, document: Document) -> WorkflowRunSummary:
        order = decode(document.body, _Named)
        found = await self._store.documents(EVENT, tenant=document.tenant, parent=document.id, newest_first=True, limit=1)
        match decode(found[0].body, WorkflowRecord).event if found else None:
            case WorkflowCompleted(status=status):
                told: str = status
            case WorkflowFailed():
                told = "failed"
            case WorkflowCancelled():
                told = "cancelled"
            case _:
                told = "running"
        return WorkflowRunSummary(order.id, order.workflow, told, order.created_at, order.dry_run)


def derive_id(tenant: str, workflow: str, key: str) -> str:
    """The id of the run of an idempotency key."""
    meant = sha256("\0".join((tenant, workflow, key)).encode())
    return f"wfr_{meant.hexdigest()[:24]}"


class _Named(Struct, frozen=True):
    """The fields of an order that a list shows."""

    id: str
    workflow: str
    created_at: float
    dry_run: bool = False
