"""The public engine: from plain names to a running engine, and the ways to ask it, with and without an event loop.

`Engine` has a core engine (`mainspring.engine.engine`) and the features that work on it. This module is the one place that puts
them together; what the settings file says comes here through `app.build`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, Unpack

from anyio import CancelScope, create_task_group
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mainspring.app.application import CallerBudgetStep, CallerLedger, ask_nobody
from mainspring.app.engine_tools import EngineTools
from mainspring.app.run_options import RunOptions, check_options
from mainspring.core.errors import Interrupted, RunFailed
from mainspring.core.events import TextDelta
from mainspring.core.history import History
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Item, ToolDefinition
from mainspring.core.memory_quota import MemoryQuota
from mainspring.core.operator_limits import NO_LIMITS, OperatorLimits
from mainspring.core.run import Run
from mainspring.core.spec import (
    PresetName,
    RunSpec,
)
from mainspring.engine.engine import Engine as CoreEngine
from mainspring.engine.engine import RunDefaults
from mainspring.engine.handle import Handle
from mainspring.engine.policy_order import PolicySlots, order_policies
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.agents.charter import CharterPolicy
from mainspring.features.approvals.pending import ApprovalDeadlineStep
from mainspring.features.budgets.budget import AutonomyBudget
from mainspring.features.budgets.limits import LimitsStep
from mainspring.features.budgets.plan import Admission, Plan
from mainspring.features.governance.injection import InjectionFlagsStep
from mainspring.features.governance.tool_policies import AnswerFormatCheck, ToolStatus, fill_standard_slots
from mainspring.features.memory.no_memory import NoMemory
from mainspring.features.models.model_choice import AbilityStep, WindowStep, resolve_provider
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_prompt import SkillListStep
from mainspring.features.skills.skill_scope import SkillScopePolicy
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.otel import Exporter
from mainspring.features.traces.trace_builder import TraceObserver, read_trace
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.features.triggers.outbox import Outbox, WorkflowOutbox, load_outbox
from mainspring.features.workflows.step_actions import StepActions, StepProvider
from mainspring.features.workflows.workflow_folder import WorkflowFolders
from mainspring.features.workflows.workflows import Workflows
from mainspring.late_module import LateModule
from mainspring.parts import Application, Host, PartContents, blame_part
from mainspring.ports import (
    CallPolicy,
    Dispatcher,
    Embedder,
    FileStorage,
    OrderStep,
    Provider,
    RunObserver,
    Sink,
    Store,
    ToolExecutor,
)
from mainspring.providers.wrapper import keep_profiles, share_limits, write_profiles
from mainspring.storage.choose_store import choose_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.shared_limits import StoreLimits
from mainspring.tools.builtin.builtins import BuiltinTools, HostedToolsStep
from mainspring.tools.contract import Tool as CallableTool
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.mcp_tools_step import McpToolsStep
from mainspring.tools.mcp.sign_in_policy import SignInPolicy
from mainspring.tools.registry import Registry
from mainspring.tools.schema import Validators

if TYPE_CHECKING:
    from mainspring.app import file_services
    from mainspring.features.files.settings import UploadSettings
    from mainspring.features.memory import memory as memory_module
    from mainspring.features.memory.memory import Memory
else:
    file_services = LateModule("mainspring.app.file_services")
    memory_module = LateModule("mainspring.features.memory.memory")

DAY: Final = 86_400.0


class Engine:
    """An engine from plain names: a model, Python functions or other tools, and a file to remember in.

    Use it as `async with`, or as plain `with` together with `run_sync` and `stream_sync`.

    `model` is as in `resolve_provider`: a name for the OpenAI-compatible backend at `base_url` (default: the environment's
    `OPENAI_BASE_URL`), `anthropic/...` and the like, `local`, or `scripted:FILE`. It may also be a `Provider`; then
    `default_model` names the model of runs that name none, and `owns_provider` has the engine close it. `database` is a
    file; without one, runs live in memory. A `store` is closed by whoever made it, unless the engine `owns_store`. `policies`
    are asked after the built-in ones and before the budget, or in the slots that they name (`engine.policy_order`).

    `files` is where uploaded files are kept, beside the database if it is not given, and `uploads` how large they may be.
    An `embedder`, which the engine closes, has passages of files be found by meaning, too.
    `mcp` are servers whose tools every run has, `builtins` the built-in tools, `skills`, `agents` and `workflows` folders of
    definitions: `engine.agents` invokes agents, `engine.workflows` runs workflows. `context_tokens` is the context window of
    the model; without it, only the backend knows. `limits` are those of runs that are told no others, and the most that may be
    asked for. `approval_seconds` is the longest that a call waits for a person; `audit`
    keeps an audit of calls in the store; `memory` remembers runs, True for one beside the database; `observers` are told of whole
    runs; `exporter` sends spans and metrics to an OpenTelemetry collector. `budget` bounds what runs do on their own, each for
    itself or as the plan says; with
    `scans`, inputs that read like instructions to the model are flagged in the log. `governed` is a digest of the settings that
    bind runs. `parts` are contributions of other packages. `drives`, `dispatcher` and `most_live` are as in the core engine.
    `quota` bounds the memory that runs hold.
    """

    def __init__(
        self,
        model: str | Provider,
        *,
        tools: Registry | Sequence[CallableTool | Callable[..., object]] = (),
        instructions: str | None = None,
        base_url: str | None = None,
        backend_key: str | None = None,
        api_key: str | None = None,
        default_model: str | None = None,
        owns_provider: bool = False,
        database: str | Path | Location | None = None,
        store: Store | None = None,
        owns_store: bool = False,
        preset: PresetName = "responses",
        executors: Sequence[ToolExecutor] = (),
        policies: Sequence[CallPolicy] | PolicySlots = (),
        sinks: Sequence[Sink] = (),
        memory: "Memory | NoMemory | bool" = False,
        exporter: Exporter | None = None,
        metrics_by_tenant: bool = False,
        observers: Sequence[RunObserver] = (),
        mcp: McpTools | None = None,
        builtins: BuiltinTools | None = None,
        files: FileStorage | None = None,
        uploads: "UploadSettings | None" = None,
        embedder: Embedder | None = None,
        skills: Sequence[Path] = (),
        agents: Sequence[Path] = (),
        workflows: Sequence[Path] = (),
        audit: bool = False,
        budget: AutonomyBudget | Plan | None = None,
        scans: bool = False,
        approval_seconds: float = DAY,
        context_tokens: int | None = None,
        limits: OperatorLimits = NO_LIMITS,
        governed: str = "",
        parts: Sequence[PartContents] = (),
        drives: bool = True,
        dispatcher: Dispatcher | None = None,
        most_live: int | None = None,
        new_id: NewId = random_id,
        quota: MemoryQuota | None = None,
    ) -> None:
        self.builtins, self.mcp, self.skills = builtins or BuiltinTools(), mcp or McpTools(), SkillFolders(skills)
        self._location = None if database is None else parse_location(database)
        self.memory: Memory | NoMemory = _build_memory(self._location) if memory is True else memory or NoMemory()
        self._exporter, self.parts, self._listeners = exporter, tuple(parts), tuple(observers)
        self._event_sinks: tuple[Sink, ...] = (*sinks, *self.memory.sinks, *[sink for part in parts for sink in part.sinks])
        self._owns_provider, self._owns_store = owns_provider or isinstance(model, str), owns_store or store is None
        kept, quota = store if store is not None else choose_store(self._location), quota or MemoryQuota()
        own = EngineTools(
            tools, self.builtins, self.mcp, self.skills, agents, self.parts, recall=self.memory.recall, limits=limits
        )
        self.embedder = embedder
        self.file_services = file_services.FileServices(
            kept,
            self._location,
            lambda: self.core.presence,
            self.builtins,
            storage=files,
            uploads=uploads,
            embedder=embedder,
            new_id=new_id,
        )
        self.files, self.vector_stores = self.file_services.files, self.file_services.vector_stores
        self.admission = Admission(kept, Plan(budget) if isinstance(budget, AutonomyBudget) else budget, root=own.root)
        performers = own.list_executors(self.file_services.search, *executors)
        name = default_model if default_model is not None else model if isinstance(model, str) else model.name
        self.metrics, self.outbox = Metrics(name, by_tenant=metrics_by_tenant), Outbox(kept)
        given: PolicySlots = policies if isinstance(policies, Mapping) else {"custom": policies}
        status: PolicySlots = {"status": (ToolStatus(own.registry.status, own.registry.reason),)}
        self.operator_policies: tuple[PolicySlots, ...] = (status, given, {"budget": (self.admission.policy,)})
        """What the operator wants of every call, also of an application's."""
        backend = resolve_provider(model, base_url, backend_key or api_key) if isinstance(model, str) else model
        provider = self._wrap(backend, quota)
        self.core = CoreEngine(
            provider,
            kept,
            executors=performers,
            policies=order_policies(fill_standard_slots(performers), *self._application_slots(), *self.operator_policies),
            checks=(AnswerFormatCheck(Validators().errors),),
            sinks=(*self._event_sinks, self.admission.ledger) if self.admission.is_shared else self._event_sinks,
            steps=self._steps(provider, own.definitions, new_id, approval_seconds, limits, scans=scans),
            observers=self._observers(),
            defaults=RunDefaults(
                model=name,
                instructions=instructions,
                tools=own.definitions,
                context_tokens=context_tokens,
                preset=preset,
                limits=limits,
            ),
            audit=audit,
            governed=governed,
            drives=drives,
            dispatcher=dispatcher,
            most_live=most_live,
            new_id=new_id,
            quota=quota,
            list_documents=self.outbox.list_documents,
        )
        self.agents = AgentRuntime(self.core, own.agents, own.orders)
        actions = StepActions(self.core, self.agents, own.step_definitions)
        told = WorkflowOutbox(self.outbox)
        self.workflows = Workflows(self.core, WorkflowFolders(workflows), actions, new_id=new_id, observer=told)
        self._running, self._blocking = AsyncExitStack(), ExitStack()
        self._portal: BlockingPortal | None = None
        self._is_open, self._opening = False, Lock()

    def _wrap(self, backend: Provider, quota: MemoryQuota) -> Provider:
        provider: Provider = StepProvider(self.file_services.wrap(backend, quota))
        for part in self.parts:
            provider = provider if part.wrap is None else part.wrap(provider)
        return provider

    @property
    def host(self) -> Host:
        """This engine as parts and applications see it."""
        file = None if self._location is None else self._location.file
        return Host(self.core, self.open_application, Path() if file is None else file.absolute().parent, self._location)

    def open_application(self, application: Application) -> CoreEngine:
        """A core engine for an application, on this engine's store and model: see `app.application`. Use it as `async with`,
        inside of this engine's."""
        # What a person is asked is for the application to say.
        standard: PolicySlots = {**fill_standard_slots(application.executors), "approval": ()}
        ledger: tuple[Sink, ...] = (CallerLedger(self.admission.ledger),) if self.admission.is_shared else ()
        return CoreEngine(
            application.wrap(self.core.provider),
            self.store,
            executors=application.executors,
            policies=order_policies(
                standard,
                *[ask_nobody(slots) for slots in (*self.operator_policies, *[part.policies for part in self.parts])],
                application.policies,
            ),
            sinks=(*self._event_sinks, *ledger),
            steps=(
                AbilityStep(self.core.provider),
                *[step for part in self.parts for step in part.steps],
                CallerBudgetStep(self.admission),
            ),
            observers=self.core.observers,
            defaults=self.core.defaults,
            audit=self.core.is_audited,
            governed=self.core.governed,
            owns=True,
            clock=application.clock,
            new_id=self.core.new_id,
            quota=self.core.quota,
        )

    def _application_slots(self) -> list[PolicySlots]:
        """The policies of features and parts."""
        return [
            {"skill scope": (SkillScopePolicy(lambda: self.skills.definitions, _skills_of),)} if self.skills.folders else {},
            {"charter": (CharterPolicy(),)},
            *self._sign_in_slots(),
            *[part.policies for part in self.parts],
        ]

    def _sign_in_slots(self) -> list[PolicySlots]:
        if self.mcp.sign_ins is None:
            return []
        return [{"approval": (SignInPolicy(self.mcp.servers, self.mcp.sign_ins),)}]

    def _steps(
        self,
        provider: Provider,
        definitions: Callable[[], Sequence[ToolDefinition]],
        new_id: NewId,
        approval_seconds: float,
        limits: OperatorLimits,
        *,
        scans: bool,
    ) -> list[OrderStep]:
        """What happens to an order before its run starts, in this order."""
        return [
            *([LimitsStep(limits)] if limits.most else []),
            WindowStep(provider),
            AbilityStep(provider),
            ApprovalDeadlineStep(approval_seconds),
            *([SkillListStep(lambda: self.skills.definitions)] if self.skills.folders else []),
            self.file_services.check_inputs(provider),
            HostedToolsStep(self.builtins, definitions, self.files.load_named),
            self.file_services.declare_search(provider),
            McpToolsStep(self.mcp, new_id),
            *([InjectionFlagsStep()] if scans else []),
            *[step for part in self.parts for step in part.steps],
            self.admission,
        ]

    def _observers(self) -> list[RunObserver]:
        """Who is told of whole runs."""
        return [
            TraceObserver(self.metrics, self._exporter),
            *self._listeners,
            self.outbox,
            *([] if isinstance(self.memory, NoMemory) else [self.memory]),
            *[observer for part in self.parts for observer in part.observers],
        ]

    @property
    def store(self) -> Store:
        return self.core.store

    @property
    def database_kind(self) -> Literal["memory", "sqlite", "postgres"]:
        if not self.store.is_durable:
            return "memory"
        return "sqlite" if self._location is None or self._location.file is not None else "postgres"

    @property
    def model(self) -> str:
        """The model of runs that name none."""
        return self.core.model

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools that every run has."""
        return self.core.definitions

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise Interrupted("the engine is open already; use it where it was opened")
        self._is_open = True
        try:
            await self._open()
        except BaseException:
            self._is_open = False
            raise
        return self

    async def _open(self) -> None:
        await self.store.open()
        keep_profiles(self.core.provider, self.store)
        if self.store.is_durable:
            limits = StoreLimits(self.store)
            share_limits(self.core.provider, limits)
            self.mcp.share_limits(limits)
        self.builtins.keep_in(self.store, self.core.presence)
        await self.builtins.__aenter__()
        await self.memory.open(self.store)
        await load_outbox(self.store, self.outbox)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.core)
            await stack.enter_async_context(self.workflows)
            for part in self.parts:
                if part.lifespan is not None:
                    with blame_part(part.name, "start"):
                        await stack.enter_async_context(part.lifespan(self.host))
            if not isinstance(self.memory, NoMemory):
                await self.memory.catch_up(self.core)
            self._running = stack.pop_all()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._running.__aexit__(kind, error, trace)
        finally:
            self._is_open = False
            with CancelScope(shield=True):
                if self._exporter is not None:
                    await self._exporter.close()
                await self.memory.close()
                await self.file_services.close()
                await self.mcp.close()
                await self.builtins.__aexit__(None, None, None)
                await write_profiles(self.core.provider)
                if self._owns_provider:
                    await self.core.provider.close()
                if self._owns_store:
                    await self.store.close()

    async def start(self, spec: RunSpec, *, history: History | None = None) -> Handle:
        """Starts a run by its order; see the core engine."""
        return await self.core.start(spec, history=history)

    async def attach(self, run_id: str) -> Handle:
        """A run to read, live or stored. Raises `NotFound`."""
        return await self.core.attach(run_id)

    async def resume(self, run_id: str) -> Handle:
        """Resumes a run whose driver is gone. Raises `NotFound`."""
        return await self.core.resume(run_id)

    async def cancel(self, run_id: str) -> Run:
        """Ends a run `cancelled`. Raises `NotFound`; an ended run stays as it is."""
        return await self.core.cancel(run_id)

    async def forget(self, run_id: str) -> None:
        """Deletes a run, the runs of agents that it called, and what is remembered of them. Raises `NotFound`."""
        await self.core.forget(run_id)

    async def trace(self, run_id: str) -> TraceRecord:
        """A run as a trace, as far as it has come. Raises `NotFound`."""
        return await read_trace(self.core, run_id)

    async def resume_all(self) -> list[Handle]:
        """Resumes every run and every workflow run whose driver is gone."""
        handles = await self.core.resume_all()
        await self.workflows.resume_all()
        return handles

    async def watch_over(self) -> None:
        """Takes up runs and workflow runs that nobody drives, until it is cancelled."""
        async with create_task_group() as tasks:
            tasks.start_soon(self.core.watch_over)
            tasks.start_soon(self.workflows.watch_over)
            for work in self.file_services.background:
                tasks.start_soon(work)

    async def drain(self) -> None:
        """Waits until no run and no workflow run is driven here."""
        await self.core.drain()
        await self.workflows.wait_until_idle()

    def interrupt(self) -> None:
        """Leaves every run as it is, to be resumed; whoever waits for one is told so."""
        self.workflows.interrupt()
        self.core.interrupt()

    def order(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]) -> RunSpec:
        """The order for a run with this engine's tools and defaults. Raises `InvalidRequest` for an unknown option."""
        check_options(options)
        return self.core.order(prompt, previous=previous, **options)

    async def ask(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]) -> Handle:
        """Starts a run and returns at once."""
        return await self.core.start(self.order(prompt, previous=previous, **options))

    async def run(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]) -> Run:
        """Starts a run and waits for its end; `.text` is the answer, `.status` and `.reason` say how it ended."""
        return await (await self.ask(prompt, previous=previous, **options)).wait()

    async def stream(
        self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]
    ) -> AsyncGenerator[str, None]:
        """The text as it is said. Raises `RunFailed` at its end if the run failed."""
        handle = await self.ask(prompt, previous=previous, **options)
        async for record in handle.events():
            if isinstance(record.event, TextDelta):
                yield record.event.delta
        if handle.run.status == "failed":
            why = handle.run.error.message if handle.run.error is not None else str(handle.run.reason)
            raise RunFailed(f"run `{handle.id}` failed: {why}")

    def __enter__(self) -> Self:
        """Opens the engine in a thread of its own, for programs without an event loop."""
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self))
            self._portal, self._blocking = portal, stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._portal = None
        self._blocking.__exit__(kind, error, trace)

    def run_sync(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]) -> Run:
        """As `run`, without an event loop. Outside of `with`, the engine is opened for this one run."""

        async def run() -> Run:
            return await self.run(prompt, previous=previous, **options)

        with self._open_portal() as portal:
            return portal.call(run)

    def stream_sync(
        self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Unpack[RunOptions]
    ) -> Iterator[str]:
        """As `stream`, without an event loop."""
        with self._open_portal() as portal:
            pieces = self.stream(prompt, previous=previous, **options)
            try:
                while (piece := portal.call(_next_or_none, pieces)) is not None:
                    yield piece
            finally:
                # After Ctrl-C the next piece may still be on its way; the engine ends the run then.
                with suppress(RuntimeError):
                    portal.call(pieces.aclose)

    @contextmanager
    def _open_portal(self) -> Iterator[BlockingPortal]:
        with ExitStack() as stack:
            if self._portal is None:
                if self._is_open:
                    raise Interrupted("the engine is open in an event loop; await `run` or iterate `stream` there")
                stack.enter_context(self._opening)  # one run at a time opens it
                stack.enter_context(self)
            yield self._opened_portal()

    def _opened_portal(self) -> BlockingPortal:
        assert self._portal is not None
        return self._portal


def _build_memory(location: Location | None) -> "Memory":
    return memory_module.build_memory(location)


async def _next_or_none(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


def _skills_of(run: Run) -> Iterable[str]:
    """The skills that a run begins with: those of its agent, and of the agents above it."""
    return [name for charter in run.spec.charters for name in charter.skills]
