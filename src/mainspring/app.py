"""The composition root: names and options in, a running engine out. The only module that knows every adapter."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from anyio import CancelScope
from msgspec.structs import replace

from mainspring.backends import provider_for
from mainspring.engine.engine import Engine as CoreEngine
from mainspring.engine.engine import Handle
from mainspring.errors import NotFound, RunFailed
from mainspring.events import TextDelta
from mainspring.ids import NewId, random_id
from mainspring.items import Item, Json, Tool, ToolDefinition, user
from mainspring.loop.history import History
from mainspring.loop.run import Run
from mainspring.policies.answers import FormedAnswer
from mainspring.policies.limits import WithinLimits
from mainspring.policies.skills import SkillScope
from mainspring.policies.tools import AllowedTools, Approved, HandOff, KnownTool, ValidArguments
from mainspring.ports import CallPolicy, Provider, Sink, Store, ToolExecutor
from mainspring.skills.activation import LOAD, ActiveSkills
from mainspring.skills.folder import SkillFolders
from mainspring.skills.prompt import build_skill_metadata_block
from mainspring.skills.tools import SkillTools
from mainspring.spec import PresetName, RunSpec, spec_for
from mainspring.store.memory import MemoryStore
from mainspring.store.sqlite import SqliteStore
from mainspring.tools.contract import Tool as CallableTool
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.joining import joined
from mainspring.tools.registry import Registry
from mainspring.tools.schema import Validators
from mainspring.workshop import Workshop, asks_for_container, hosted

DAY: Final = 86_400.0


class Engine(CoreEngine):
    """An engine from plain names: a model, Python functions or other tools, and a file to remember in.

    `model` is as in `backends.provider_for`: a name for the OpenAI-compatible backend at `base_url` (default: the environment's
    `OPENAI_BASE_URL`), `anthropic/...` and the like, `local`, or `scripted:FILE`; it may also be a `Provider`. `database` is a
    file; without one, runs live in memory. `policies` are asked after the built-in ones and before a call is handed to the
    client. `mcp` are servers whose tools every run has, `workshop` the built-in tools, `skills` folders of
    skills. `context_tokens` is how many tokens the model takes in at once; without
    it, only the backend knows. `approval_seconds` is the longest that a call waits for a person; `audit` keeps an audit of calls
    in the store.
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
        policies: Sequence[CallPolicy] = (),
        sinks: Sequence[Sink] = (),
        mcp: McpTools | None = None,
        workshop: Workshop | None = None,
        skills: Sequence[Path] = (),
        audit: bool = False,
        approval_seconds: float = DAY,
        context_tokens: int | None = None,
        new_id: NewId = random_id,
    ) -> None:
        self.workshop = workshop or Workshop()
        registry = tools if isinstance(tools, Registry) else Registry(tools, context=self.workshop.context)
        for builtin in self.workshop.tools:
            registry.register(builtin)
        self.mcp = mcp or McpTools()
        self.skills = SkillFolders(skills)
        loading = SkillTools(lambda: self.skills.skills)
        scope = (SkillScope(ActiveSkills(lambda: self.skills.skills).refusal),) if self.skills.skills else ()
        loaders = (loading,) if self.skills.skills else ()
        performers: tuple[ToolExecutor, ...] = (registry, *loaders, *executors, self.mcp)
        super().__init__(
            provider_for(model, base_url, api_key) if isinstance(model, str) else model,
            store if store is not None else store_for(database),
            executors=performers,
            policies=standard_policies(performers, (*scope, *policies)),
            checks=(FormedAnswer(Validators().errors),),
            sinks=sinks,
            audit=audit,
        )
        self.approval_seconds = approval_seconds
        self.owns_provider, self._owns_store = isinstance(model, str), store is None
        self.model = model if isinstance(model, str) else model.name
        self.preset = preset
        self.instructions = instructions
        self.definitions: tuple[ToolDefinition, ...] = (*registry.definitions, *loading.definitions())
        self.context_tokens = context_tokens
        self.new_id = new_id

    async def __aenter__(self) -> Self:
        await self.store.open()
        await self.workshop.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            with CancelScope(shield=True):
                await self.mcp.close()
                await self.workshop.__aexit__(None, None, None)
                if self.owns_provider:
                    await self.provider.close()
                if self._owns_store:
                    await self.store.close()

    async def start(self, spec: RunSpec, *, history: History | None = None) -> Handle:
        """Starts a run, with the tools of MCP servers that the order names or the engine has."""
        hosting = await self._with_hosted(self._with_skills(self._bounded(spec)))
        whole = await joined(hosting, self.mcp, self.new_id)
        try:
            return await super().start(whole, history=history)
        except BaseException:
            if spec.id not in self._live:
                self._let_go(spec.id)
            raise

    def _bounded(self, spec: RunSpec) -> RunSpec:
        most = min(spec.limits.approval_seconds or self.approval_seconds, self.approval_seconds)
        return replace(spec, limits=replace(spec.limits, approval_seconds=most))

    async def _with_hosted(self, spec: RunSpec) -> RunSpec:
        """The order with the built-in tools that it names by their own kind, in the container of what it continues."""
        if not asks_for_container(spec):
            return spec
        scope = spec.conversation.id if spec.conversation is not None else spec.id
        if spec.parent is not None:
            with suppress(NotFound):
                parent = (await self.attach(spec.parent)).run.spec
                scope = parent.scope or parent.id if parent.tenant == spec.tenant else scope
        return hosted(spec, self.definitions, scope)

    def _with_skills(self, spec: RunSpec) -> RunSpec:
        """The order with the list of skills in its instructions, of which its client is not told."""
        if spec.tool(LOAD) is None:
            return spec
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


def standard_policies(executors: Sequence[ToolExecutor], more: Sequence[CallPolicy] = ()) -> tuple[CallPolicy, ...]:
    """Every question a call must pass, in order."""
    validators = Validators()
    return (WithinLimits(), KnownTool(), AllowedTools(), ValidArguments(validators.errors), *more, Approved(), HandOff(executors))


def store_for(database: str | Path | None) -> Store:
    return MemoryStore() if database is None else SqliteStore(Path(database))
