"""The engine: starts, resumes, cancels and shows runs. Runs belong to it, not to whoever asked for them.

Every run is driven by one task of the engine's, whatever its readers do. Leaving the engine stops the drivers where
they are; what they recorded is stored, and the next engine on the same store takes the runs up again with `resume`.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from inspect import iscoroutinefunction
from logging import DEBUG, ERROR, getLogger
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from weakref import WeakValueDictionary

from anyio import CancelScope, CapacityLimiter, Lock, create_task_group, current_time, move_on_after, sleep
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.actions import Finish
from mainspring.core.conversation_items import ITEM
from mainspring.core.decide import closing, recovery
from mainspring.core.declared_tools import brings_tools, load_tools
from mainspring.core.delegation import child_id, is_delegation
from mainspring.core.errors import (
    CallerError,
    HistoryTooLarge,
    Interrupted,
    InvalidRequest,
    MainspringError,
    MemoryLimit,
    NotFound,
    NoWorker,
    OrderStepTimeout,
    OurError,
    PreviousNotFound,
    ResumeLimit,
    StoreError,
    Superseded,
)
from mainspring.core.events import ErrorInfo, Event, Reason, Recorded, RunEnded, RunResumed, RunStarted
from mainspring.core.history import Entry, History, history_of, opening, replace_lost_history
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import (
    ApprovalResponse,
    FunctionCallOutput,
    Item,
    Json,
    Tool,
    ToolDefinition,
    encode,
    user,
)
from mainspring.core.lru_cache import LRUCache
from mainspring.core.memory_quota import Hold, MemoryQuota, find_holder, measure_items
from mainspring.core.model_request import ModelRequest, request_for
from mainspring.core.operator_limits import OperatorLimits
from mainspring.core.run import Run, open_run
from mainspring.core.spec import PRESETS, PresetName, RunSpec, check, spec_for
from mainspring.engine.approvals import (
    add_kept,
    find_answering,
    find_question,
    recall_calls,
    spend_answers,
    use_answers,
)
from mainspring.engine.approvals import check as check_answers
from mainspring.engine.conversation import enter, reread
from mainspring.engine.drive import drive
from mainspring.engine.gate import Gate
from mainspring.engine.guard import Guard, Misbehaved, TimedOut, finish_within
from mainspring.engine.handle import Handle
from mainspring.engine.journal import Clock, Journal
from mainspring.engine.lease_dispatcher import LOOK_SECONDS, LeaseDispatcher
from mainspring.engine.presence import Presence
from mainspring.engine.resume_attempts import ResumeAttempts
from mainspring.engine.seal import Seal
from mainspring.engine.segment_writer import ListDocuments, SegmentWriter
from mainspring.engine.toolbox import Toolbox
from mainspring.ports import (
    OWNED,
    AnswerCheck,
    CallPolicy,
    Claim,
    ContinuedRun,
    DispatchedRuns,
    Dispatcher,
    EndedRun,
    OrderContext,
    OrderStep,
    Provider,
    QuestionStand,
    ReadingStep,
    RunObserver,
    SelectiveSink,
    Sink,
    Store,
    ToolExecutor,
)

log = getLogger(__name__)

T = TypeVar("T")

# Whatever other people's code raises, the end of the process included. A cancel of our own task passes.
_ANYTHING = (Exception, SystemExit)
REMEMBERED = 256
# What remembered histories have in all. One that is longer is shared by those who read it at the same time.
REMEMBERED_BYTES = 64 * 1024 * 1024
SINK_SECONDS = 5.0
# How long drivers in other processes may take to stop, and how often it is found out whether they are there at all.
DRIVER_SECONDS = 10.0
# How long a run that somebody waits for may wait for an engine that drives it.
OFFER_SECONDS = 10.0
START_WORKER = "start `mainspring worker` on the same database, then send the request again"
# How many runs are taken up at a time: each asks the store several times, one after the other.
RESUMED_AT_ONCE = 16
# How long a run is left that could not be resumed.
POSTPONED_SECONDS = 10.0
CANCELLED = Finish("cancelled", Reason.CANCELLED)
# How often the store may refuse a run, while it takes others, until less of it is to be stored.
MOST_REFUSALS = 2
# How long the steps of an order may take in all. MCP servers that have to be started first need most of it.
STEP_SECONDS = 120.0


class RunDefaults(Struct, frozen=True, kw_only=True):
    """What a run has unless its order says otherwise. `tools` gives those that every run has without bringing them."""

    model: str = ""
    instructions: str | None = None
    tools: Callable[[], tuple[ToolDefinition, ...]] = tuple
    context_tokens: int | None = None
    preset: PresetName = "responses"
    limits: OperatorLimits = OperatorLimits()


class Engine:
    """Runs orders with one provider, some executors, and policies in order. Use as `async with`.

    `steps` prepare every order before its run starts, in their order, within `step_seconds`. `observers` are told of whole
    runs, `sinks` of every event; a slow or failing one never holds a run up. With `audit`, the store keeps an audit of what
    runs do. `governed` is a digest of the operator's settings, recorded with every run. One that `owns` resumes the runs of
    `OWNED` tenants when their driver is gone, any other those of all the others. One that does not `drive` accepts stored runs
    for others to claim, follows them, and takes up none; `dispatcher` brings them there. One that drives takes up no more than
    `most_live` at a time. `quota` bounds the memory that runs hold. `list_documents`
    says what else is stored with the end of a run.
    Provider and store belong to whoever made them: the engine closes neither.
    """

    def __init__(
        self,
        provider: Provider,
        store: Store,
        *,
        executors: Sequence[ToolExecutor] = (),
        policies: Sequence[CallPolicy] = (),
        checks: Sequence[AnswerCheck] = (),
        sinks: Sequence[Sink] = (),
        steps: Sequence[OrderStep] = (),
        observers: Sequence[RunObserver] = (),
        defaults: RunDefaults | None = None,
        audit: bool = False,
        governed: str = "",
        owns: bool = False,
        drives: bool = True,
        dispatcher: Dispatcher | None = None,
        most_live: int | None = None,
        clock: Clock = time.time,
        new_id: NewId = random_id,
        step_seconds: float = STEP_SECONDS,
        quota: MemoryQuota | None = None,
        list_documents: ListDocuments = lambda run: (),
    ) -> None:
        self.provider = provider
        self.store = store
        self.defaults = defaults or RunDefaults()
        self.policies = tuple(policies)
        self.steps = tuple(steps)
        self.observers = tuple(observers)
        for name, called in (
            *[(each.name, each.release) for each in steps],
            *[(each.name, each.run_ended) for each in observers],
        ):
            if iscoroutinefunction(called):
                told = f"`{called.__name__}` of `{name}` is `async def`, and nobody would await it"
                raise InvalidRequest(f"{told}; write `def`, and hand what takes time to a task or a thread of its own")
        self.governed = governed
        self.new_id = new_id
        self.quota = quota or MemoryQuota()
        self.seal = Seal(store)
        self._guard = Guard()
        self._run_provider = self._guard.find_runner(provider)
        self._steps = tuple([(step, self._guard.find_runner(step) == self._guard.run_in_place) for step in steps])
        self._releasing = tuple([step for step in steps if type(step).release is not OrderStep.release])
        self._gate = Gate(policies, self._guard, checks)
        self._executors = tuple(executors)
        # As long as somebody has them: those of the server come with every order.
        self._right_tools: WeakValueDictionary[int, ToolDefinition] = WeakValueDictionary()
        self.presence = Presence(store, lambda: bool(self._live), self._stop_effects, self._check_runs)
        self._toolbox = Toolbox(executors, self._guard, self, self.presence.confirm)
        self._sinks = tuple(sinks)
        self._audit = audit
        self._writer = SegmentWriter(store, list_documents)
        self._owns, self.drives, self._step_seconds = owns, drives, step_seconds
        self._dispatcher = dispatcher or LeaseDispatcher(store.leases)
        self._most_live = most_live
        self._clock = clock
        self._live: dict[str, Handle] = {}
        # Runs that were told to have failed, while the store could not be told.
        self._unsaved: dict[str, Handle] = {}
        # Runs that nobody drove, and that are to be ended here, while the store could not be told.
        self._to_end: dict[str, Finish] = {}
        self._refusals: Counter[str] = Counter()
        self._starting: set[str] = set()
        self._resuming: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        # Runs that have ended, as long as somebody reads them.
        self._shown: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        self._showing: dict[str, Lock] = {}
        self._attempts = ResumeAttempts(store, self.defaults.limits.resumes, clock)
        self._histories: LRUCache[tuple[str, str], History] = LRUCache(REMEMBERED, _measure, REMEMBERED_BYTES)
        self._shared: WeakValueDictionary[tuple[str, str], History] = WeakValueDictionary()
        self._reading: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._drivers: set[asyncio.Task[None]] | None = None
        self._followed: dict[str, Handle] = {}
        self._feeders: set[asyncio.Task[Any]] = set()
        self._heeder: asyncio.Task[None] | None = None
        self._tellers: TaskGroup | None = None
        # Runs that this engine has stopped to drive before they ended, and those that it is to leave alone until some time.
        self._left: set[str] = set()
        self._is_watching = False
        self._postponed: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        self._tellers = await create_task_group().__aenter__()
        self._drivers = set()
        self._writer.open()
        return self

    @property
    def model(self) -> str:
        """The model of runs that name none."""
        return self.defaults.model

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools that runs have without bringing them."""
        return self.defaults.tools()

    @property
    def context_tokens(self) -> int | None:
        return self.defaults.context_tokens

    @property
    def live(self) -> int:
        """How many runs are driven here."""
        return len(self._live)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Whoever is told every event, for another engine beside this one to tell as well."""
        return self._sinks

    @property
    def is_audited(self) -> bool:
        return self._audit

    async def drain(self) -> None:
        """Waits until no run is driven here."""
        while self._live:
            for handle in list(self._live.values()):
                await handle.wait_for_end()

    def interrupt(self) -> None:
        """Leaves every run as it is, to be resumed: whoever waits for one is told so."""
        for handle in self._live.values():
            handle.interrupt()
        for feeder in self._feeders:
            feeder.cancel()

    async def watch_over(self) -> None:
        """Takes up runs that nobody drives, until it is cancelled."""
        self._is_watching = True
        try:
            # One that drives nothing has only what it could not tell the store of.
            dispatcher = self._dispatcher if self.drives else LeaseDispatcher(self.store.leases)
            await dispatcher.work(DispatchedRuns(self.drive, self.resume_all, self.tend))
        finally:
            self._is_watching = False

    async def drive(self, run_id: str) -> None:
        """Takes up a run that nobody drives, and returns when it has ended, or is not driven here, be it for now."""
        await self._resume_some([run_id])
        if (handle := self._live.get(run_id)) is not None:
            await handle.wait_for_end()

    async def tend(self) -> None:
        """Does what is left to do of runs that this engine has begun with, and could not finish at the time."""
        await self._save_ends()
        await self._resume_some(list(self._left))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            # A driver that ends may leave readers who would follow its run.
            while working := [*(self._drivers or ()), *self._feeders]:
                self.interrupt()
                with CancelScope(shield=True):
                    await asyncio.wait(working)
            if self._tellers is not None:
                # Drivers stop within moments; a sink gets this long to hear the rest.
                self._tellers.cancel_scope.deadline = current_time() + SINK_SECONDS
                await self._tellers.__aexit__(None, None, None)
            with CancelScope(shield=True), suppress(StoreError):
                await self._save_ends()
                await self._writer.drain()
                await self._attempts.end_all()
                await self.presence.leave()
        finally:
            self._drivers = self._tellers = None

    def order(
        self,
        prompt: str | Sequence[Item],
        *,
        id: str | None = None,
        previous: str | None = None,
        tools: Sequence[Tool] = (),
        **options: Any,
    ) -> RunSpec:
        """An order for a run with this engine's tools and defaults; `options` are as in `spec_for`."""
        given = (user(prompt, id=self.new_id("msg")),) if isinstance(prompt, str) else tuple(prompt)
        defaults = self.defaults
        fields: Json = {
            "model": defaults.model,
            "instructions": defaults.instructions,
            "tools": (*defaults.tools(), *tools),
            "parent": previous,
            "context_tokens": defaults.context_tokens,
            "limits": defaults.limits.apply(PRESETS[defaults.preset].limits),
            **options,
        }
        return spec_for(defaults.preset, id=id or self.new_id("resp"), input=given, **fields)

    async def start(self, spec: RunSpec, *, history: History | None = None) -> Handle:
        """Starts a run, once its order has passed every step.

        Raises `InvalidRequest` before anything is recorded; a background run is durable when this returns.
        `history` is for a run whose parent is not stored and whose caller has kept what came before.
        """
        self._running()
        try:
            return await self._start_prepared(await self._prepare(spec), history)
        except BaseException:
            if spec.id not in self._live:
                await self._withdraw(spec)
            raise

    async def _prepare(self, spec: RunSpec) -> RunSpec:
        """Runs the order steps. A run that a person's answer continues keeps its charters, whoever brings the answer."""
        if self.governed:
            spec = replace(spec, governed=self.governed)
        context = OrderContext(self.find_run)
        if (question := await find_question(self.store, spec.input, spec.tenant)) is not None:
            context = OrderContext(self.find_run, ContinuedRun(question.run, question.budget, question.charters))
            above = tuple([each for each in question.charters if each not in spec.charters])
            spec = replace(spec, charters=(*above, *spec.charters))
        step_name = ""

        async def run_steps(order: RunSpec) -> RunSpec:
            nonlocal step_name
            for step, is_in_place in self._steps:
                step_name, work = step.name, step.prepare(order, context)
                prepared: object = await (work if is_in_place else self._guard.run(work))
                if not isinstance(prepared, RunSpec):
                    raise TypeError(f"the order step `{step.name}` returned {prepared!r:.80} instead of an order")
                order = prepared
            return order

        try:
            return await self._guard.run_in_place(finish_within(self._step_seconds, run_steps(spec)))
        except TimedOut:
            told = f"the order was not ready after {self._step_seconds:g} s, in the order step `{step_name}`; try again"
            raise OrderStepTimeout(told) from None

    async def _withdraw(self, spec: RunSpec) -> None:
        self._release(spec.id)
        if spec.id not in self._starting:
            with CancelScope(shield=True):
                for step in self.steps:
                    try:
                        await step.withdraw(spec)
                    except _ANYTHING:
                        log.exception("order step %s did not withdraw from run %s", step.name, spec.id)

    async def _start_prepared(self, spec: RunSpec, history: History | None) -> Handle:
        check(spec, self._right_tools)
        if spec.id in self._live or spec.id in self._starting:
            raise InvalidRequest(f"run `{spec.id}` is under way already", param="id")
        self._starting.add(spec.id)
        try:
            return await self._start(spec, history)
        finally:
            self._starting.discard(spec.id)

    async def _start(self, spec: RunSpec, history: History | None) -> Handle:
        if not (self.drives or spec.store):
            told = "this server hands runs to workers through its database, so a response must be stored; send `store: true`"
            raise InvalidRequest(f"{told}, or ask a server whose `role` is `all`", param="store")
        await self.seal.check(spec.input)
        hold = await self._hold(spec, history)
        if spec.conversation is not None:
            entered = await enter(self.store, spec, spec.conversation)
            spec, history = entered.spec, entered.history
        elif history is None:
            history = await self._history(spec)
        elif spec.store:
            # A stored run is read back through the stored chain behind it, and this one has none.
            raise InvalidRequest("a run that continues a history which is not stored cannot be stored itself", param="store")
        spec = _load_tools(await self._use_approvals(spec, history), history)
        if spec.store and self.drives:
            await self.presence.show()
        first = RunStarted(spec, self.presence.id if self.drives else "")
        journal = Journal.begin(first, history, self._writer, self._clock, hold, audit=self._audit)
        if spec.background or not self.drives:
            await journal.flush()
        return self._drive(journal) if self.drives else await self._offer(journal)

    async def _offer(self, journal: Journal) -> Handle:
        """Has a run driven by another engine, and follows it. Raises what the dispatcher does, unless somebody drives the run all
        the same: it may only have failed to say that it has it."""
        spec = journal.run.spec
        try:
            await self._dispatcher.submit(spec.id)
        except MainspringError as error:
            finish = Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(error))
            if await self._end_unless_driven(spec.id, finish) is not None:
                raise
        handle = self._follow(journal)
        if not spec.background:
            self._start_feeder(self._expect_driver(handle))
        return handle

    async def _expect_driver(self, handle: Handle) -> None:
        """Ends a run that somebody waits for, and that nobody has taken up in time."""
        await sleep(OFFER_SECONDS)
        with suppress(NotFound, StoreError):
            if len(handle.log) > 1 or not handle.is_live:
                return
            error = ErrorInfo.of(NoWorker(f"nobody has taken up this run within {OFFER_SECONDS:g} s; {START_WORKER}"))
            await self._end_unless_driven(handle.id, Finish("failed", Reason.INTERNAL_ERROR, error))

    async def _hold(self, spec: RunSpec, history: History | None = None) -> Hold:
        """Counts what a run by this order will hold when it begins, before any of it is read. Raises `MemoryLimit`."""
        if spec.conversation is not None:
            size = await self.store.measure_documents(ITEM, tenant=spec.tenant, parent=spec.conversation.id)
            param = "conversation"
        elif spec.parent is not None:
            known = history or self._find_history(spec.tenant, spec.parent)
            size = await self.store.measure_history(spec.parent, tenant=spec.tenant) if known is None else known.size
            param = "previous_response_id"
        else:
            size, param = 0, "input"
        hold = self.quota.hold(find_holder(spec.caller.subject, spec.tenant), size, param, beside=measure_items(spec.input))
        # What a request has brought counts as its body while it lasts. Other runs have no such request, or outlive it.
        if spec.background or spec.within:
            hold.add(measure_items(spec.input) + len(encode((spec.instructions, spec.tools))), "input")
        return hold

    async def _use_approvals(self, spec: RunSpec, history: History) -> RunSpec:
        """An approval counts once, and in time: whoever sends it again, or too late, is told so before anything is recorded."""
        if any(isinstance(item, ApprovalResponse) for item in spec.input):
            spec = await recall_calls(self.store, spec, history.waiting)
            opened = opening(history, spec.input)
            await use_answers(self.store, spec, opened.waiting, opened.approvals, self._clock())
            spec = await add_kept(self.store, spec)
        return spec

    async def check_answer(self, spec: RunSpec, said: ApprovalResponse) -> None:
        """Raises `InvalidRequest` if a run by this order could not act on this answer, whatever the others are."""
        spec = replace(spec, input=(said,))
        _held = await self._hold(spec)
        entered = None if spec.conversation is None else await enter(self.store, spec, spec.conversation)
        history = await self._history(spec) if entered is None else entered.history
        await check_answers(self.store, spec, history.waiting, [said], self._clock())

    def can_perform(self, tool: ToolDefinition) -> bool:
        return any(executor.can_execute(tool) for executor in self._executors)

    async def preview(self, spec: RunSpec) -> ModelRequest:
        """What the model would be asked first in such a run, which is not started. Raises as `start` does."""
        for step in self.steps:
            if isinstance(step, ReadingStep):
                spec = await step.prepare(spec, OrderContext(self.find_run))
        check(spec)
        await self.seal.check(spec.input)
        _held = await self._hold(spec)
        entered = None if spec.conversation is None else await enter(self.store, spec, spec.conversation)
        history = await self._history(spec) if entered is None else entered.history
        spec = _load_tools(await recall_calls(self.store, spec, history.waiting), history)
        return request_for(open_run(Recorded(0, self._clock(), RunStarted(spec)), history))

    async def resume(self, run_id: str) -> Handle:
        """Resumes a run that nobody drives; one that is live here or has ended is only shown, and another engine's is followed.
        Raises `NotFound`."""
        return await self._resume(run_id) or await self.follow(run_id)

    async def _resume(self, run_id: str) -> Handle | None:
        """As `resume`, but for another engine's run, of which nothing is read."""
        async with self._resuming.setdefault(run_id, Lock()):
            try:
                handle = await self._claim_and_drive(run_id)
            except MainspringError:
                await self._attempts.end(run_id)
                raise
        if handle is None:
            return None
        if not handle.run.has_ended and handle.run.spec.governed not in ("", self.governed):
            log.warning(
                "run %s was started under other governance or budget settings and continues under the current ones", run_id
            )
        for observer in self.observers:
            await observer.run_resumed(handle.retell)
        return handle

    async def find_run(self, run_id: str) -> Run:
        """A run as it stands now. Raises `NotFound`."""
        return (await self.attach(run_id)).run

    async def _claim_and_drive(self, run_id: str) -> Handle | None:
        if (handle := self._live.get(run_id) or self._unsaved.get(run_id)) is not None:
            return handle
        await self.presence.show()
        while (claim := await self._claim(run_id)) is not None:
            self._left.add(run_id)
            if claim.is_cancelled:
                await self._end_stored(run_id, CANCELLED)
                break
            with suppress(Superseded):  # whoever has just lost it was quicker
                # Nobody can have died with a run that nobody had.
                read = self._read_run(run_id, "resume") if claim.was_free else self._read_to_resume(run_id)
                return await self._take_up(await read, was_free=claim.was_free)
        self._left.discard(run_id)
        await self._attempts.end(run_id)
        return None if await self._is_elsewhere(run_id) else await self.follow(run_id)

    async def _claim(self, run_id: str) -> Claim | None:
        if (claim := await self.store.leases.claim(run_id, self.presence.id)) is None:
            await self.presence.end_leases_of_the_dead()  # its driver may be one of them
            claim = await self.store.leases.claim(run_id, self.presence.id)
        return claim

    async def _take_up(self, handle: Handle, *, was_free: bool) -> Handle:
        """Drives a run on that was read from the store. Raises `Superseded`, unless it `was_free`: then nobody can have written
        to it, and its first event need not be waited for."""
        journal = handle.journal
        self._left.discard(handle.id)
        if (found := journal.run).has_ended:
            await self._attempts.end(handle.id)
            return handle
        journal.reopen()
        for event in recovery(found):
            journal.record(replace(event, driver=self.presence.id) if isinstance(event, RunResumed) else event)
        if not was_free:
            await journal.flush()
        return self._drive(journal, found)

    async def _read_to_resume(self, run_id: str) -> Handle:
        try:
            await self._attempts.begin(run_id)
        except ResumeLimit as error:
            log.error("run %s is not resumed again: %s", run_id, error)
            handle = await self._read_run(run_id, "end")
            await self._end_read(handle, Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(error)))
            return handle
        return await self._read_run(run_id, "resume")

    async def resume_all(self) -> list[Handle]:
        """Takes up every unfinished run of the store that nobody drives; one that cannot be is logged and left."""
        await self._save_ends()
        if not self.drives:
            return []
        await self.presence.end_leases_of_the_dead()
        claimable = await self.store.leases.list_claimable(owned=self._owns)
        return await self._resume_some(list(dict.fromkeys((*claimable, *self._left))))

    async def _resume_some(self, run_ids: Sequence[str]) -> list[Handle]:
        """Takes up those that nobody drives, as far as there is room for them. Returns those that are driven here, or have
        ended."""
        handles, now = list[Handle](), current_time()
        self._postponed = {run_id: until for run_id, until in self._postponed.items() if until > now}
        waiting = [
            run_id
            for run_id in await self._attempts.sort(run_ids)
            if not (run_id in self._live or run_id in self._unsaved or run_id in self._postponed)
        ]
        if self._most_live is not None:  # another engine may have time for the rest
            del waiting[max(self._most_live - len(self._live), 0) :]
        turns = CapacityLimiter(RESUMED_AT_ONCE)
        async with create_task_group() as tasks:
            for run_id in waiting:
                if not self._attempts.is_suspect(run_id):
                    tasks.start_soon(self._try_to_resume, run_id, handles, turns)
        for run_id in waiting:
            if self._attempts.is_suspect(run_id) and self._attempts.may_try(run_id):
                await self._try_to_resume(run_id, handles, turns)
        return [handle for handle in handles if handle.id in self._live or handle.run.has_ended]

    async def _try_to_resume(self, run_id: str, handles: list[Handle], turns: CapacityLimiter) -> None:
        async with turns:
            try:
                if (handle := await self._resume(run_id)) is not None:
                    handles.append(handle)
            except NotFound:
                self._left.discard(run_id)
            except HistoryTooLarge as error:
                log.error("run %s cannot be resumed: %s", run_id, error)
                with suppress(StoreError):  # it is tried again
                    await self._end_stored(run_id, Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(error)))
            except MainspringError as error:
                log.warning("run %s was not resumed: %s", run_id, error)
                await self._postpone(run_id)

    async def _postpone(self, run_id: str) -> None:
        """Leaves a run that could not be resumed to others for a while."""
        self._postponed[run_id] = current_time() + POSTPONED_SECONDS
        self._left.add(run_id)
        with suppress(StoreError):
            await self.store.leases.release(self.presence.id, run_id)
            self._left.discard(run_id)

    def _stop_effects(self) -> None:
        """The lease may soon be over: tools under way are stopped, and their runs left, to be taken up by whoever may."""
        for handle in self._live.values():
            run = handle.run
            if run.spec.store and any(call.is_started for call in run.open_calls):
                log.warning("run %s is left, for the store cannot be told that this process lives", handle.id)
                handle.interrupt()

    async def _check_runs(self) -> None:
        """The lease has been over for a while: runs that others have claimed meanwhile are theirs."""
        for handle in list(self._live.values()):
            with suppress(NotFound):  # it is not stored yet
                claim = handle.run.spec.store and await self.store.leases.claim(handle.id, self.presence.id)
                if claim is None and not handle.run.has_ended:
                    handle.journal.fail(Superseded(f"another driver has taken run `{handle.id}` over"))

    async def _save_ends(self) -> None:
        """Tells the store of the runs that it could not be told of when they failed."""
        for run_id, handle in list(self._unsaved.items()):
            if self._refusals[run_id] < 2 * MOST_REFUSALS and await self._save_end(run_id, handle.journal):
                del self._unsaved[run_id], self._refusals[run_id]
        for run_id, finish in list(self._to_end.items()):
            if self._postponed.get(run_id, 0.0) < current_time():
                self._postponed[run_id] = current_time() + POSTPONED_SECONDS  # unless it can be ended now
                with suppress(MainspringError):
                    await self._end_unless_driven(run_id, finish)

    async def _save_end(self, run_id: str, journal: Journal) -> bool:
        """Tells the store of the end of one run. If it refuses that while it takes other things, it is told of an end without
        what was said, and if it refuses even that, of nothing any more. Raises `StoreError` if it takes nothing at all."""
        if await journal.save_end():
            if not journal.is_stored:
                await self._end_doubtful(run_id, journal.run)
            return True
        await self.presence.beat()
        self._refusals[run_id] += 1
        if self._refusals[run_id] == MOST_REFUSALS:
            log.error("run %s cannot be stored; it is stored as failed, without its output", run_id)
            return await journal.end_bare(journal.run.error.message if journal.run.error else "")
        if self._refusals[run_id] == 2 * MOST_REFUSALS:
            log.error("run %s cannot be stored at all; this is not tried again before the next start", run_id)
        return False

    async def _end_doubtful(self, run_id: str, told: Run) -> None:
        """Ends a run as it was told to have ended, if what the store has beyond that is ours: it had said that it took none."""
        with suppress(NotFound, Superseded):  # it is gone, or another has taken it over
            if told.spec.store and _find_driver(await self.store.events(run_id)) == self.presence.id:
                await self._end_read(await self._read_run(run_id, "end"), Finish("failed", Reason.INTERNAL_ERROR, told.error))

    async def is_driven(self, run_id: str) -> bool:
        """Whether another engine that lives drives this run, or it is for an engine of the other kind to take up."""
        is_owned = OWNED in (await self.store.load(run_id)).tenant
        return is_owned is not self._owns or await self._is_elsewhere(run_id)

    async def _is_elsewhere(self, run_id: str) -> bool:
        """Whether another engine that lives drives this run."""
        if run_id in self._live:
            return False
        await self.presence.end_leases_of_the_dead()
        return await self.store.leases.find_driver(run_id) not in (None, self.presence.id)

    async def find_question(self, id: str, tenant: str) -> QuestionStand:
        """How it stands about what a call has asked a person."""
        match await find_answering(self.store, id, tenant, self._clock()):
            case None:
                return "closed"
            case "":
                return "open"
            case run_id:
                return "used_here" if run_id in self._live else "used_elsewhere"

    async def attach(self, run_id: str) -> Handle:
        """A run to read: live if it is driven here, else as far as the store has it. Raises `NotFound`."""
        self._running()
        if (live := self._live.get(run_id) or self._unsaved.get(run_id)) is not None:
            return live
        reading = self._showing.setdefault(run_id, Lock())
        try:
            async with reading:  # whoever wants to read it meanwhile gets the same one
                if (shown := self._shown.get(run_id)) is None or not await self.store.measure_run(run_id):
                    shown = await self._read_run(run_id, "show")
                    if shown.run.has_ended:
                        self._shown[run_id] = shown
                return shown
        finally:
            if not reading.statistics().tasks_waiting:
                self._showing.pop(run_id, None)

    async def follow(self, run_id: str) -> Handle:
        """A run to read to its end: live if it is driven here, and as the store gets it if another engine drives it, or will. If
        nobody does, as far as the store has it. Raises `NotFound`."""
        handle = await self.attach(run_id)
        if handle.is_live or handle.run.has_ended:
            return handle
        # Where runs are watched over, one that nobody drives now is soon taken up.
        if self.drives and not self._is_watching and not await self._is_elsewhere(run_id):
            return handle
        if run_id in self._followed:
            return self._followed[run_id]
        handle.journal.reopen()
        return self._follow(handle.journal)

    def _follow(self, journal: Journal) -> Handle:
        run_id = journal.run.spec.id
        handle = Handle(journal, partial(self._request_cancel, run_id), is_elsewhere=True)
        self._start_following(handle)
        return handle

    def _start_following(self, handle: Handle) -> None:
        self._followed[handle.id] = handle
        self._start_feeder(self._feed(handle.journal)).add_done_callback(partial(self._stop_following, handle))

    def _start_feeder(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Has this done until it has ended or the engine stops, which may be before it has begun."""
        feeder = asyncio.get_running_loop().create_task(work)
        self._feeders.add(feeder)
        feeder.add_done_callback(self._feeders.discard)
        return feeder

    async def _feed(self, journal: Journal) -> OurError | None:
        """Shows the readers of a run what another engine records of it, until it has ended. Returns why it has not."""
        try:
            async with aclosing(self.store.follow(journal.run.spec.id, len(journal.log) - 1)) as stored:
                async for records in stored:
                    journal.adopt(records)
        except NotFound as error:
            return Interrupted(error.message)
        except OurError as error:
            return error
        return None

    def _stop_following(self, handle: Handle, feeder: "asyncio.Task[OurError | None]") -> None:
        if self._followed.get(handle.id) is handle:
            del self._followed[handle.id]
        failure: OurError | None = Interrupted(f"the engine stopped before run `{handle.id}` ended, which goes on elsewhere")
        if not feeder.cancelled():
            failure = feeder.result() if (error := feeder.exception()) is None else StoreError(f"its log cannot be read: {error}")
        handle.journal.close(failure)
        handle.end()

    async def _read_run(self, run_id: str, purpose: Literal["resume", "show", "end"]) -> Handle:
        """A run out of the store. Only to resume it is its history needed: where there is no memory for that, the run is shown
        without. To end or delete it, its memory is not counted either, since that must always be possible."""
        hold = self.quota.hold("", 0)
        if purpose != "end":
            hold.add(await self.store.measure_run(run_id), "response_id")
        records = await self.store.events(run_id)
        assert isinstance(records[0].event, RunStarted)
        spec, history = records[0].event.spec, None
        if purpose != "end":
            try:
                held = await self._hold(replace(spec, input=()))
                held.add(hold.size)
                hold, history = held, await self._history(spec)
            except CallerError as error:
                has_ended = isinstance(records[-1].event, RunEnded)
                if not has_ended and (purpose == "resume" or not isinstance(error, MemoryLimit)):
                    raise
        elif any(isinstance(item, ApprovalResponse | FunctionCallOutput) for item in spec.input):
            with suppress(CallerError):  # it may be gone; but what answers a call can be read only after that call
                history = await self._history(spec)
        history = history or replace_lost_history(spec.input)
        journal = Journal(records, history, self._writer, self._clock, hold, audit=self._audit)
        hint = f"run `{run_id}` is not driven here and has not ended; resume it to go on"
        journal.close(None if journal.run.has_ended else Interrupted(hint))
        handle = Handle(journal)
        handle.end()
        return handle

    async def cancel(self, run_id: str) -> Run:
        """Ends a run `cancelled`, also one that nobody drives at the moment. Raises `NotFound`; an ended run stays as it is."""
        self._running()
        until = current_time() + DRIVER_SECONDS
        while current_time() < until:
            if (run := await self._cancel(run_id)) is not None:
                return run
        raise Interrupted(f"run `{run_id}` is driven by another process, which has not stopped yet; ask again")

    async def _cancel(self, run_id: str) -> Run | None:
        """Ends the run, or has the engine end it that drives it, and waits until it has: before that, a tool may still have its
        effect. Returns None if it is not known yet that it has."""
        if (handle := self._live.get(run_id)) is not None:
            with suppress(Superseded):
                return await handle.cancel()
            return None
        if run_id not in self._unsaved:
            await self._dispatcher.cancel(run_id)
            await self.presence.end_leases_of_the_dead()
            if (run := await self._end_unless_driven(run_id, CANCELLED)) is not None:
                return run
            with move_on_after(LOOK_SECONDS), suppress(OurError):
                return await (await self.follow(run_id)).wait()
            return None
        return await self._end_stored(run_id, CANCELLED)

    async def _end_unless_driven(self, run_id: str, finish: Finish) -> Run | None:
        """Ends a run that nobody drives; returns None if somebody does. If the store cannot be told now, it is told later, since
        nobody else takes up a run that is claimed here."""
        self._to_end[run_id] = finish
        try:
            await self.presence.show()
            async with self._resuming.setdefault(run_id, Lock()):
                # What is taken up here just now is claimed by this engine, and driven all the same.
                is_driven = run_id in self._live or (self.drives and run_id in self._starting)
                claim = None if is_driven else await self.store.leases.claim(run_id, self.presence.id)
                run = None if claim is None else await self._end_stored(run_id, finish)
        except NotFound:
            self._to_end.pop(run_id, None)
            raise
        self._to_end.pop(run_id, None)
        return run

    async def prevent(self, spec: RunSpec) -> None:
        """Stores a run that was cancelled before it began, so that nobody can begin one under its id any more. Raises
        `Superseded` if somebody has."""
        journal = Journal.begin(RunStarted(spec), History(), self._writer, self._clock, self.quota.hold("", 0), audit=self._audit)
        for event in closing(journal.run, CANCELLED):
            journal.record(event)
        await journal.flush()
        journal.close()

    def _request_cancel(self, run_id: str) -> None:
        self._start_feeder(self._send_cancel(run_id))

    async def _send_cancel(self, run_id: str) -> None:
        with suppress(StoreError, NotFound):
            await self._dispatcher.cancel(run_id)

    async def _heed_cancels(self) -> None:
        """Stops the runs driven here that somebody has cancelled in another process, as long as there are runs."""
        while self._live:
            try:
                await self.store.leases.wait_for_cancel(self.presence.id, LOOK_SECONDS)
                for run_id in await self.store.leases.list_cancelled(self.presence.id) if self._live else ():
                    if (handle := self._live.get(run_id)) is not None:
                        handle.request_cancel()
            except StoreError as error:  # it stays asked for
                log.warning("the store could not be asked for cancels: %s", error)
                await sleep(LOOK_SECONDS)

    async def _end_stored(self, run_id: str, finish: Finish) -> Run:
        """Ends a run that is this engine's to end, unless it has ended."""
        while True:
            with suppress(Superseded):  # whoever has just lost it was quicker
                run = await self._end_read(self._unsaved.get(run_id) or await self._read_run(run_id, "end"), finish)
                await self._attempts.forget(run_id)
                return run

    async def _end_read(self, handle: Handle, finish: Finish) -> Run:
        journal = handle.journal
        if not journal.run.has_ended:
            journal.reopen()
            for event in recovery(journal.run):
                journal.record(event)
            for event in closing(journal.run, finish):
                journal.record(event)
            await journal.flush()
            journal.close()
        return journal.run

    async def forget(self, run_id: str) -> None:
        """Deletes a run that has ended, or that nobody drives, with the runs of agents that it called. Raises `NotFound`."""
        self._running()
        handle = self._live.get(run_id) or self._unsaved.get(run_id) or await self._read_run(run_id, "end")
        run = handle.run
        for item in run.allowed:
            if is_delegation(item.name):
                with suppress(NotFound):  # it was refused, or is gone
                    await self.cancel(child := child_id(run_id, item.call_id))
                    await self.forget(child)
        await spend_answers(self.store, run.spec)
        await self.store.delete(run_id)
        if not run.has_ended:
            await self._attempts.forget(run_id)
        self._unsaved.pop(run_id, None)
        self._shown.pop(run_id, None)
        self._refusals.pop(run_id, None)
        for known in (*[key for key, _ in self._histories.items()], *self._shared):
            if known[0] == run.spec.tenant:  # what continues it has it in its history
                self._histories.pop(known)
                self._shared.pop(known, None)
        for observer in self.observers:
            await observer.run_forgotten(run)

    def _running(self) -> "set[asyncio.Task[None]]":
        if self._drivers is None:
            raise Interrupted("the engine is not running; use it as `async with`")
        return self._drivers

    def _drive(self, journal: Journal, found: Run | None = None) -> Handle:
        drivers = self._running()
        handle = Handle(journal, partial(self._request_cancel, journal.run.spec.id))
        self._live[handle.id] = handle
        if self.store.is_durable and (self._heeder is None or self._heeder.done()):
            self._heeder = self._start_feeder(self._heed_cancels())
        journal.on_failure = handle.stop
        if self._tellers is not None:
            for sink in self._sinks:
                ear = SinkQueue(sink.hears if isinstance(sink, SelectiveSink) else None, -1 if found is None else found.seq - 1)
                journal.watch(ear)
                self._tellers.start_soon(_tell, sink, journal, ear, self._guard)
        driver = asyncio.get_running_loop().create_task(self._drive_to_end(handle, is_resumed=found is not None))
        drivers.add(driver)
        driver.add_done_callback(drivers.discard)
        return handle

    async def _drive_to_end(self, handle: Handle, *, is_resumed: bool) -> None:
        """Drives a run until it has ended, was cancelled, ran out of time, or the engine stops."""
        journal = handle.journal
        if is_resumed:
            await asyncio.sleep(0)  # whoever else waits to resume it finds it driven
        limit, timer = journal.run.spec.limits.max_seconds, None
        if limit is not None:
            timer = asyncio.get_running_loop().call_later(max(limit - journal.run.elapsed, 0), handle.stop)
        finish: Finish | None = None
        try:
            await handle.run_driver(drive(journal, self.provider, self._gate, self._toolbox, self.seal, self._run_provider))
            if not journal.run.has_ended and not handle.is_interrupted:
                cancelled = handle.is_cancelled
                finish = CANCELLED if cancelled else Finish("incomplete", Reason.DEADLINE)
        except (StoreError, Superseded):
            pass
        except MemoryLimit as error:
            log.warning("run %s failed: %s", handle.id, error)
            finish = Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo.of(error))
        except Exception as error:
            log.exception("run %s failed inside the engine", handle.id)
            finish = Finish("failed", Reason.INTERNAL_ERROR, ErrorInfo("server_error", f"internal error: {error}"))
        finally:
            if timer is not None:
                timer.cancel()
            await self._settle(handle, finish)
            if is_resumed:
                await self._attempts.end(handle.id)

    async def _settle(self, handle: Handle, finish: Finish | None) -> None:
        """Records the end, or leaves the run for another driver, and lets the readers go."""
        journal = handle.journal
        failure: Interrupted | Superseded | None = None
        try:
            if finish is not None and journal.failure is None:
                for event in closing(journal.run, finish):
                    journal.record(event)
            await journal.flush()
            if not journal.run.has_ended:
                failure = Interrupted(f"the engine stopped before run `{handle.id}` ended; it can be resumed")
                self._left.add(handle.id)
        except Superseded as error:
            failure = error
            self._left.add(handle.id)  # it may be this engine's all the same: then another has written that had just lost it
        except MainspringError as error:
            log.error("run %s could not be recorded: %s", handle.id, error)
            if journal.run.spec.store and not self.presence.is_held:
                failure = Interrupted(f"run `{handle.id}` may be driven by another process by now; ask for it again")
                self._left.add(handle.id)
            elif not await journal.break_off(error):
                failure = Interrupted(f"run `{handle.id}` may have ended, and the database cannot be asked; ask for it later")
                self._left.add(handle.id)
            elif not journal.is_stored:
                self._unsaved[handle.id] = handle
        if failure is None and journal.is_stored:
            self._remember(journal.run.spec.tenant, handle.id, handle.continued)
        self._live.pop(handle.id, None)
        self._release(handle.id)
        if isinstance(failure, Superseded) and await self._hand_over(handle):
            return
        if journal.run.has_ended and not isinstance(failure, Interrupted):
            self._notify_observers(EndedRun(journal.run, journal.log, journal.earlier_calls))
        journal.close(failure)
        handle.end()

    async def _hand_over(self, handle: Handle) -> bool:
        """Has the readers of a run that goes on elsewhere follow it there. Returns False if it is another run, or cannot be read,
        or the engine stops."""
        if handle.is_interrupted or not self.store.is_durable:
            return False
        try:
            if (await self.store.events(handle.id))[0] != handle.log[0]:
                return False
        except (NotFound, StoreError):
            return False
        handle.journal.rewind()
        if handle.is_cancelled:
            self._request_cancel(handle.id)
        handle.is_elsewhere = True
        self._start_following(handle)
        return True

    def _release(self, run_id: str) -> None:
        for step in self._releasing:
            try:
                step.release(run_id)
            except _ANYTHING:
                log.exception("order step %s did not release run %s", step.name, run_id)

    def _notify_observers(self, ended: EndedRun) -> None:
        for observer in self.observers:
            try:
                observer.run_ended(ended)
            except _ANYTHING:
                log.exception("observer %s failed for run %s", observer.name, ended.run.spec.id)

    async def _history(self, spec: RunSpec) -> History:
        if spec.conversation is not None:
            return await reread(self.store, spec.tenant, spec.conversation)
        if (run_id := spec.parent) is None:
            return History()
        # Whoever wants the same one meanwhile gets what is read now. Only a tenant's own have it wait.
        async with self._reading.setdefault(spec.tenant, Lock()):
            if (known := self._find_history(spec.tenant, run_id)) is not None:
                return known
            try:
                size = await self.store.measure_history(run_id, tenant=spec.tenant)
                history = history_of(await self.store.history(run_id, tenant=spec.tenant), size)
            except NotFound:
                raise PreviousNotFound(run_id) from None
            self._remember(spec.tenant, run_id, history)
            return history

    def _find_history(self, tenant: str, run_id: str) -> History | None:
        return self._histories.get((tenant, run_id)) or self._shared.get((tenant, run_id))

    def _remember(self, tenant: str, run_id: str, history: History) -> None:
        self._histories[tenant, run_id] = self._shared[tenant, run_id] = history


def _find_driver(log: Sequence[Recorded]) -> str:
    """Who drives the run, or did last."""
    return [record.event.driver for record in log if isinstance(record.event, RunStarted | RunResumed)][-1]


def _measure(history: History) -> int:
    return history.size


def _load_tools(spec: RunSpec, history: History) -> RunSpec:
    """The order with the tools that its conversation has brought. Raises `InvalidRequest`."""
    brought = [entry.item for entry in history.entries.pick(_brings_tools)]
    tools = load_tools(spec.tools, (*brought, *spec.input))
    return spec if tools is spec.tools else replace(spec, tools=tools)


def _brings_tools(entry: Entry) -> bool:
    return not entry.hidden and brings_tools(entry.item)


class SinkQueue:
    """Keeps what a sink is to be told, with the run as each event left it, until it may be: once it is published.

    `hears` are the types of events that the sink wants, None for all; `after` is the number of the last that it knows.
    """

    def __init__(self, hears: Collection[type] | None, after: int) -> None:
        self._hears, self.after = hears, after
        self._heard: deque[tuple[int, Run, Event]] = deque()

    def reset(self) -> None:
        self._heard.clear()

    def add(self, record: Recorded, run: Run) -> None:
        if not self.add_delta(record):
            self._heard.append((record.seq, run, record.event))

    def add_delta(self, record: Recorded) -> bool:
        return record.seq <= self.after or (self._hears is not None and type(record.event) not in self._hears)

    def take(self, upto: int) -> Iterator[tuple[Run, Event]]:
        """What is to be told of the first `upto` events, each once."""
        while self._heard and self._heard[0][0] < upto:
            self.after, run, event = self._heard.popleft()
            yield run, event


async def _tell(sink: Sink, journal: Journal, ear: SinkQueue, guard: Guard) -> None:
    """Tells a sink what happens from now on, with the run as each event left it. Its failures are logged, once per run."""

    async def listen() -> None:
        has_failed = False
        async for upto in journal.follow_published(ear.after):
            for run, event in ear.take(upto):
                try:
                    await sink(run, event)
                except Exception:
                    log.log(DEBUG if has_failed else ERROR, "sink %s failed in run %s", sink, run.spec.id, exc_info=True)
                    has_failed = True

    try:
        await guard.run(listen())
    except MainspringError as error:
        log.debug("the events of a run ended early for sink %s: %s", sink, error)
    except Misbehaved as error:
        log.error("sink %s tried to end more than itself and is told no more of this run: %s", sink, error)
