"""The composition root: names and options in, a running engine out. The only module that knows every adapter."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from anyio import CancelScope, to_thread
from msgspec import to_builtins
from msgspec.structs import replace

from mainspring.app.settings import Remembering
from mainspring.core.actions import Finish
from mainspring.core.errors import InvalidRequest, MainspringError, NotFound, RunFailed
from mainspring.core.events import Status, TextDelta
from mainspring.core.history import History
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Item, Json, Tool, ToolDefinition, text_of, user
from mainspring.core.run import Run
from mainspring.core.spec import STEP_MODEL, PresetName, RunSpec, spec_for
from mainspring.engine.approvals import Asked, asked_by
from mainspring.engine.engine import Engine as CoreEngine
from mainspring.engine.engine import Handle
from mainspring.engine.policy_order import PolicySlots, order_policies
from mainspring.engine.redact import presentable
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.agents.charter import Chartered
from mainspring.features.agents.delegation import AgentTools, child_id, is_delegation
from mainspring.features.budgets.budget import AutonomyBudget
from mainspring.features.budgets.plan import Admission, Before, Plan
from mainspring.features.governance.answer_check import FormedAnswer
from mainspring.features.governance.injection import flags_of
from mainspring.features.governance.tool_policies import ToolStatus, fill_standard_slots
from mainspring.features.memory.embedding import Embedder
from mainspring.features.memory.memory import Memory, NoMemory
from mainspring.features.models.backends import provider_for
from mainspring.features.skills.activation import LOAD, ActiveSkills
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_policy import SkillScope
from mainspring.features.skills.skill_prompt import build_skill_metadata_block
from mainspring.features.skills.skill_tools import SkillTools
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.otel import Exporter
from mainspring.features.traces.trace_builder import trace_of
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.features.workflows.agent_steps import AgentSteps
from mainspring.features.workflows.call_steps import Calls
from mainspring.features.workflows.http_request import HttpRequest
from mainspring.features.workflows.step_provider import Dictated
from mainspring.features.workflows.workflow_folder import WorkflowFolders
from mainspring.features.workflows.workflows import Workflows
from mainspring.ports import CallPolicy, Filter, Provider, Sink, Store, ToolExecutor
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.builtin.builtins import Workshop, asks_for_container, hosted
from mainspring.tools.contract import Tool as CallableTool
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.mcp_tools_step import joined
from mainspring.tools.registry import Registry
from mainspring.tools.schema import Validators

log = getLogger(__name__)

DAY: Final = 86_400.0
CATCH_UP_SECONDS: Final = 3_600.0
CATCH_UP_RUNS: Final = 50
ENDED: Final[tuple[Status, ...]] = ("completed", "incomplete", "failed", "cancelled", "requires_action")


class Engine(CoreEngine):
    """An engine from plain names: a model, Python functions or other tools, and a file to remember in.

    `model` is as in `backends.provider_for`: a name for the OpenAI-compatible backend at `base_url` (default: the environment's
    `OPENAI_BASE_URL`), `anthropic/...` and the like, `local`, or `scripted:FILE`; it may also be a `Provider`. `database` is a
    file; without one, runs live in memory. `policies` are asked after the built-in ones and before the budget, or in the
    slots that they name (`engine.policy_order`).
    `mcp` are servers whose tools every run has, `workshop` the built-in tools, `skills` folders of
    skills, `agents` folders of agents: `engine.agents` invokes them, `workflows` those of
    workflows: `engine.workflows` carries them out. `context_tokens` is how many tokens the model takes in at once; without
    it, only the backend knows. `approval_seconds` is the longest that a call waits for a person; `audit` keeps an audit of calls
    in the store; `memory` is what remembers runs, True for one beside the database; `exporter` sends spans and metrics to an
    OpenTelemetry collector. `budget` bounds what runs do on their own, each for itself or as the plan says; with `scans`,
    inputs that read like orders to the model are noted in the log.
    """

    def __init__(
        self,
        model: str | Provider,
        *,
        tools: Registry | Sequence[CallableTool | Callable[..., object]] = (),
        instructions: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        database: str | Path | None = None,
        store: Store | None = None,
        preset: PresetName = "responses",
        executors: Sequence[ToolExecutor] = (),
        policies: Sequence[CallPolicy] | PolicySlots = (),
        sinks: Sequence[Sink] = (),
        memory: Memory | bool = False,
        exporter: Exporter | None = None,
        mcp: McpTools | None = None,
        workshop: Workshop | None = None,
        skills: Sequence[Path] = (),
        agents: Sequence[Path] = (),
        workflows: Sequence[Path] = (),
        audit: bool = False,
        budget: AutonomyBudget | Plan | None = None,
        scans: bool = False,
        approval_seconds: float = DAY,
        context_tokens: int | None = None,
        new_id: NewId = random_id,
    ) -> None:
        self.memory: Memory | NoMemory = memory_for(database) if memory is True else memory or NoMemory()
        sinks = (*sinks, *self.memory.sinks)
        self.workshop = workshop or Workshop()
        registry = tools if isinstance(tools, Registry) else Registry(tools, context=self.workshop.context)
        for builtin in self.workshop.tools:
            registry.register(builtin)
        self.mcp = mcp or McpTools()
        self.skills = SkillFolders(skills)
        loading = SkillTools(lambda: self.skills.skills)
        active = ActiveSkills(lambda: self.skills.skills, _skills_of)
        scope: PolicySlots = {"skill scope": (SkillScope(active.refusal),)} if self.skills.skills else {}
        loaders = (loading,) if self.skills.skills else ()
        folder = self.workshop.context.working_dir
        root = "" if folder is None else str(folder.resolve())
        self.agents = AgentRuntime(
            self,
            AgentRegistry(agents, skills=lambda: self.skills.skills),
            skills=self.skills,
            has_servers=bool(self.mcp.servers),
            root=root,
            audit=audit,
        )
        self.agents.remember_with(self.memory.recall)
        steps = Registry([HttpRequest(self.workshop.guard, flaw=self.workshop.url_flaw)], context=self.workshop.context)
        performers: tuple[ToolExecutor, ...] = (registry, *loaders, AgentTools(self.agents), *executors, self.mcp, steps)
        kept = store if store is not None else store_for(database)
        plan = Plan(budget) if isinstance(budget, AutonomyBudget) else budget
        self.admission = Admission(kept, plan, root=root)
        status: PolicySlots = {"status": (ToolStatus(registry.status, registry.reason),)}
        given: PolicySlots = policies if isinstance(policies, Mapping) else {"custom": policies}
        self.operator_policies: tuple[PolicySlots, ...] = (status, given, {"budget": (self.admission.policy,)})
        """What the operator wants of every call, also of an application's."""
        self.governed = ""
        """A digest of the settings that runs are governed by here."""
        standard = fill_standard_slots(performers)
        super().__init__(
            Dictated(provider_for(model, base_url, api_key) if isinstance(model, str) else model),
            kept,
            executors=performers,
            policies=order_policies(standard, scope, {"charter": (Chartered(),)}, *self.operator_policies),
            checks=(FormedAnswer(Validators().errors),),
            sinks=(*sinks, self.admission.ledger) if self.admission.is_shared else sinks,
            audit=audit,
        )
        self.approval_seconds, self._scans = approval_seconds, scans
        self.owns_provider, self._owns_store = isinstance(model, str), store is None
        self.model = model if isinstance(model, str) else model.name
        self.metrics, self._exporter = Metrics(self.model), exporter
        self.preset = preset
        self.instructions = instructions
        self.definitions: tuple[ToolDefinition, ...] = (*registry.definitions, *loading.definitions())
        self.context_tokens = context_tokens
        self.new_id = new_id
        calls = Calls(self, lambda: (*self.definitions, *steps.definitions))
        self.workflows = Workflows(self, WorkflowFolders(workflows), AgentSteps(self, self.agents), calls, new_id=new_id)

    async def __aenter__(self) -> Self:
        await self.store.open()
        await self.workshop.__aenter__()
        await self.memory.open()
        await super().__aenter__()
        await self.workflows.__aenter__()
        await self._catch_up()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.workflows.__aexit__(kind, error, trace)
            await super().__aexit__(kind, error, trace)
        finally:
            with CancelScope(shield=True):
                if self._exporter is not None:
                    await self._exporter.close()
                await self.memory.close()
                await self.mcp.close()
                await self.workshop.__aexit__(None, None, None)
                if self.owns_provider:
                    await self.provider.close()
                if self._owns_store:
                    await self.store.close()

    async def start(self, spec: RunSpec, *, history: History | None = None) -> Handle:
        """Starts a run under its budget, with the tools of MCP servers that the order names or the engine has. What a person's
        answer lets go on is bound by the agents that asked, whoever brings the answer."""
        question = await asked_by(self.store, spec.input, spec.tenant)
        if question is not None:
            above = tuple([each for each in question.charters if each not in spec.charters])
            spec = replace(spec, charters=(*above, *spec.charters))
        hosting = await self._with_hosted(self._with_skills(self._bounded(spec)))
        # An agent that answers in one turn has no tools at all.
        is_single = bool(spec.agent) and not spec.tools and spec.tool_choice.mode == "none"
        whole = hosting if is_single or spec.model == STEP_MODEL else await joined(hosting, self.mcp, self.new_id)
        try:
            admitted = await self.admission.admit(await self._flagged(whole), await self._before(question))
            return await super().start(admitted, history=history)
        except BaseException:
            if spec.id not in self._live:
                self._let_go(spec.id)
                if spec.id not in self._starting:
                    with CancelScope(shield=True), suppress(MainspringError):
                        await self.admission.withdraw(spec)
            raise

    async def resume_all(self) -> list[Handle]:
        """As the engine's own; workflow runs that nobody carries out are taken up too."""
        handles = await super().resume_all()
        await self.workflows.resume_all()
        return handles

    async def drained(self) -> None:
        await super().drained()
        await self.workflows.drained()

    def interrupt(self) -> None:
        self.workflows.interrupt()
        super().interrupt()

    async def resume(self, run_id: str) -> Handle:
        """As the engine's own; what was not remembered of the run before its driver was gone is remembered now."""
        handle = await super().resume(run_id)
        if not handle.run.has_ended and handle.run.spec.governed not in ("", self.governed):
            log.warning("run %s began under other settings of governance or budget; it goes on under those of now", run_id)
        await self.memory.catch_up(handle.retell)
        return handle

    async def forget(self, run_id: str) -> None:
        """As the engine's own, with the runs of the agents that it has called, and with what is remembered of it."""
        run = (await self.attach(run_id)).run
        for item in run.allowed:
            if is_delegation(item.name):
                with suppress(NotFound):  # it was refused, or is gone
                    await self.cancel(child := child_id(run_id, item.call_id))
                    await self.forget(child)
        await super().forget(run_id)
        await self.memory.forget_run(run.spec)

    async def _catch_up(self) -> None:
        """After a crash: what ended just before it may be in the store and not in the memory."""
        if isinstance(self.memory, Memory) and (since := self.memory.cut_off_since) is not None:
            only = Filter(status=ENDED, since=since - CATCH_UP_SECONDS)
            for stored in (await self.store.list(limit=CATCH_UP_RUNS, only=only)).runs:
                with suppress(MainspringError):
                    await self.memory.catch_up((await self.attach(stored.id)).retell)
            await self.memory.caught_up()

    async def _before(self, question: Asked | None) -> Before:
        """What the run was under, and has used, that a person's answer lets go on."""
        if question is None:
            return Before()
        with suppress(MainspringError):  # it was not stored, or is gone
            return Before(question.budget, (await self.attach(question.run)).run)
        return Before(question.budget)

    async def _flagged(self, spec: RunSpec) -> RunSpec:
        """The order with what in its input reads like orders to the model."""
        found = await to_thread.run_sync(flags_of, to_builtins(spec.input)) if self._scans else ()
        return replace(spec, flags=found) if found else spec

    @property
    def live(self) -> int:
        """How many runs are driven here."""
        return len(self._live)

    async def trace(self, run_id: str) -> TraceRecord:
        """A run as a trace, as far as it has come. Raises `NotFound`."""
        journal = (await self.attach(run_id))._journal
        trace = trace_of(journal.log, journal.history.waiting)
        delegated = [action for action in trace.actions if action.started_at is not None and is_delegation(action.tool)]
        children = tuple([child_id(run_id, action.action_id) for action in delegated])
        return replace(trace, metadata=replace(trace.metadata, children=children)) if children else trace

    async def _settle(self, handle: Handle, finish: Finish | None) -> None:
        await super()._settle(handle, finish)
        if handle.run.has_ended:
            self._tell_of(handle)

    def _tell_of(self, handle: Handle) -> None:
        """Counts and exports a run that has ended. Like a sink's, its failures are no failure of the run."""
        try:
            trace = trace_of(handle._journal.log, handle._journal.history.waiting)
            self.metrics.add(trace)
            if self._exporter is not None:
                self._exporter.add(trace)
        except Exception:
            log.exception("run %s is in no metric and no trace", handle.id)

    def _bounded(self, spec: RunSpec) -> RunSpec:
        most = min(spec.limits.approval_seconds or self.approval_seconds, self.approval_seconds)
        return replace(spec, limits=replace(spec.limits, approval_seconds=most), governed=self.governed)

    async def _with_hosted(self, spec: RunSpec) -> RunSpec:
        """The order with the built-in tools that it names by their own kind, in the container of what it continues."""
        if not asks_for_container(spec):
            return spec
        scope = spec.conversation.id if spec.conversation is not None else spec.scope or spec.id
        if spec.parent is not None:
            with suppress(NotFound):
                parent = (await self.attach(spec.parent)).run.spec
                scope = parent.scope or parent.id if parent.tenant == spec.tenant else scope
        return hosted(spec, self.definitions, scope, self.workshop.containers)

    def _with_skills(self, spec: RunSpec) -> RunSpec:
        """The order with the list of skills in its instructions, of which its client is not told."""
        if spec.tool(LOAD) is None or spec.agent:
            return spec  # an agent has been told of its own
        block = build_skill_metadata_block(self.skills.skills.values())
        told = block if spec.instructions is None else f"{spec.instructions}\n\n{block}"
        return replace(spec, instructions=told, echo={**spec.echo, "instructions": spec.instructions})

    def _let_go(self, run_id: str) -> None:
        self.mcp.unbind(run_id)

    def spec(
        self, prompt: str | Sequence[Item], *, previous: str | None = None, tools: Sequence[Tool] = (), **options: Any
    ) -> RunSpec:
        """The order for a run: the engine's own tools and manners, with `options` as in `spec_for`."""
        given = (user(prompt, id=self.new_id("msg")),) if isinstance(prompt, str) else tuple(prompt)
        fields: Json = {
            "model": self.model,
            "instructions": self.instructions,
            "tools": (*self.definitions, *tools),
            "parent": previous,
            "context_tokens": self.context_tokens,
            **options,
        }
        return spec_for(self.preset, id=self.new_id("resp"), input=given, **fields)

    async def ask(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Any) -> Handle:
        """Starts a run and returns at once."""
        return await self.start(self.spec(prompt, previous=previous, **options))

    async def run(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Any) -> Run:
        """Starts a run and waits for its end; `.text` is the answer, `.status` and `.reason` say how it ended."""
        return await (await self.ask(prompt, previous=previous, **options)).wait()

    async def stream(self, prompt: str | Sequence[Item], *, previous: str | None = None, **options: Any) -> AsyncIterator[str]:
        """The text as it is said. Raises `RunFailed` at its end if the run failed."""
        handle = await self.ask(prompt, previous=previous, **options)
        async for record in handle.events():
            if isinstance(record.event, TextDelta):
                yield record.event.delta
        if handle.run.status == "failed":
            why = handle.run.error.message if handle.run.error is not None else str(handle.run.reason)
            raise RunFailed(f"run `{handle.id}` failed: {why}")


def _skills_of(run: Run) -> Iterable[str]:
    """The skills that a run begins with: those of its agent, and of the agents above it."""
    return [name for charter in run.spec.charters for name in charter.skills]


def memory_for(database: str | Path | None, asked: Remembering | None = None) -> Memory:
    """A memory beside the runs of a database, or in this process; it keeps no secrets. Raises `InvalidRequest`."""
    asked = asked or Remembering()
    embedder: Embedder | None = None
    if asked.embedding_model is not None:
        if asked.embedding_url is None:
            raise InvalidRequest("memory.embedding_model needs memory.embedding_url, such as http://127.0.0.1:11434/v1")
        from mainspring.features.memory.openai_embedder import OpenAIEmbedder  # brings along an HTTP client

        embedder = OpenAIEmbedder(asked.embedding_model, asked.embedding_url, asked.embedding_key)
    return Memory(
        None if database is None else Path(database),
        redact=lambda text, most: text_of(presentable(text, most)),
        embedder=embedder,
        keep_days=asked.keep_days,
        keep_observations=asked.keep_observations,
    )


def store_for(database: str | Path | None) -> Store:
    return MemoryStore() if database is None else SqliteStore(Path(database))
