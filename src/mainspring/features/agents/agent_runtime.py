"""Invokes agents: once (`invoke`), or until they are done (`invoke_iterative`). Both are runs of the one engine.

async with Engine("anthropic/claude-sonnet-5-5", agents=[Path("agents")]) as engine:
    result = await engine.agents.invoke_iterative("code-review", {"path": "src"})
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, Unpack

from anyio import to_thread
from msgspec.structs import replace

from mainspring.core.autonomy import Level
from mainspring.core.errors import InvalidInputs, InvalidRequest, RunFailed
from mainspring.core.items import InputFile, InputText, Item, Json, Message, OutputText, Part, encode, to_json
from mainspring.core.run import Run
from mainspring.core.spec import Caller, RunSpec, spec_for
from mainspring.engine.audit import REASON_CHARS, AuditEntry, digest_of
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_definition import AgentDefinition, make_prompt_agent
from mainspring.features.agents.agent_inputs import complete_inputs, make_message, parse_inputs
from mainspring.features.agents.agent_order import AgentOrders, Effort, InvocationSettings, Truncation
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_result import (
    AgentResult,
    ToolLoopConfig,
    ToolLoopResult,
    explain_lack,
    has_answered,
    read_result,
)
from mainspring.features.governance.injection import refuse_injection
from mainspring.features.prompts.prompts import PREFIX as PROMPT_PREFIX
from mainspring.features.prompts.prompts import StoredPrompts
from mainspring.ports import Note

PREFIX: Final = "agent:"
DOMAIN_CHARS: Final = 100
MOST_INPUT_BYTES: Final = 1024 * 1024

DIALOGUE: Final = InvocationSettings(ToolLoopConfig(enable_double_confirmation=False))

AgentInputs = Mapping[str, object] | None


class InvokeOptions(TypedDict, total=False):
    """Who invokes the agent, with which model, and how; see `RunSpec` and `InvocationSettings`."""

    model: str | None
    temperature: float | None
    tenant: str
    caller: Caller
    effort: Effort | None
    domain: str
    autonomy_level: Level | None
    active_skills: tuple[str, ...] | None
    max_seconds: float | None
    truncation: Truncation | None
    compact_threshold: int | None
    metadata: dict[str, str]
    background: bool
    store: bool
    id: str
    traceparent: str


_MANNER = ("effort", "domain", "autonomy_level", "active_skills", "max_seconds", "truncation", "compact_threshold")


class AgentRuntime:
    """Runs the agents of a registry in an engine, and prompts as agents. If the engine is audited, refused inputs are audited as
    well."""

    def __init__(
        self, engine: Engine, registry: AgentRegistry, orders: AgentOrders, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.engine, self.registry, self.orders, self._clock = engine, registry, orders, clock
        self.prompts = StoredPrompts(engine.store, engine.new_id)

    async def invoke(self, name: str, inputs: AgentInputs = None, **options: Unpack[InvokeOptions]) -> AgentResult:
        """Has the agent answer in one turn, without tools.

        Raises `NotFound`, `InvalidInputs`, and `RunFailed` if there is no complete answer; the run holds what there is.
        """
        run = await (await self.start(name, inputs, None, **options)).wait()
        if not has_answered(run):
            raise make_failure(run)
        return read_result(run).agent_result

    async def invoke_iterative(
        self,
        name: str,
        inputs: AgentInputs = None,
        tool_loop_config: ToolLoopConfig | None = None,
        **options: Unpack[InvokeOptions],
    ) -> ToolLoopResult:
        """Has the agent work with tools until it has confirmed that it is done, or something else ends the run. Without tools
        it answers in one turn. Raises `NotFound` and `InvalidInputs`."""
        handle = await self.start(name, inputs, tool_loop_config or ToolLoopConfig(), **options)
        return read_result(await handle.wait())

    async def start(
        self, name: str, inputs: AgentInputs, config: ToolLoopConfig | None = None, **options: Unpack[InvokeOptions]
    ) -> Handle:
        """Starts a run of the agent: iterative with a `config`, else of one turn. Raises as `invoke` does."""
        return await self.engine.start(await self.make_order(name, inputs, config, **options))

    async def make_order(
        self, name: str, inputs: AgentInputs, config: ToolLoopConfig | None = None, **options: Unpack[InvokeOptions]
    ) -> RunSpec:
        """The order for such a run. Also raises `InvalidRequest` for inputs that try to instruct the model."""
        definition = await self.find(name, options.get("tenant", ""), inputs or {})
        engine, given = self.engine, complete_inputs(definition, inputs or {})
        domain = _check_domain(options.get("domain") or "")
        if len(encode(given)) > MOST_INPUT_BYTES:
            told = f"the inputs of agent `{name}` have more than {MOST_INPUT_BYTES} bytes; put what is long into a file"
            raise InvalidInputs(told, param="inputs")
        await self.screen(name, {**(inputs or {}), **({"domain": domain} if domain else {})}, options)
        fields: Json = {field: value for field, value in options.items() if field not in _MANNER and value is not None}
        manner = {field: value for field, value in options.items() if field in _MANNER and value is not None}
        spec = spec_for(
            "iterative",
            **{
                "id": engine.new_id("resp"),
                "model": definition.model or engine.model,
                "input": (make_message(definition, given, engine.new_id("msg")),),
                "context_tokens": engine.context_tokens,
                **({} if definition.temperature is None else {"temperature": definition.temperature}),
                **fields,
            },
        )
        return await self.orders.apply_definition(spec, definition, InvocationSettings(config, **manner))  # type: ignore[arg-type]

    async def select_agent(
        self,
        spec: RunSpec,
        name: str,
        variables: Mapping[str, object] | None,
        manner: InvocationSettings = DIALOGUE,
        *,
        names_no_model: bool = True,
    ) -> RunSpec:
        """The order of another endpoint as one for this agent. `variables` are its inputs, rendered before the order's input;
        without them the input stands alone. Unless told otherwise, the agent is not asked to confirm that it is done: its client
        can ask. If the order `names_no_model`, it gets the one of the definition."""
        definition = self.registry.get(name)
        # What functions of the client's give back is material, as is what tools of the server do.
        texts = [text for item in spec.input if isinstance(item, Message) for part in item.content for text in _texts(part)]
        await self.screen(name, [variables, spec.instructions, texts], {"tenant": spec.tenant, "caller": spec.caller})
        if names_no_model and definition.model is not None:
            spec = replace(spec, model=definition.model)
        said: tuple[Item, ...] = ()
        if variables is not None:
            given = complete_inputs(definition, parse_inputs(definition, variables))
            said = (make_message(definition, given, self.engine.new_id("msg")),)
        return await self.orders.apply_definition(replace(spec, input=(*said, *spec.input)), definition, manner)

    async def find(self, name: str, tenant: str, inputs: Mapping[str, object]) -> AgentDefinition:
        """The agent of this name, or the prompt of this id as an agent whose inputs are its variables. Raises `NotFound`."""
        if name.startswith(PROMPT_PREFIX):
            return make_prompt_agent(await self.prompts.get(tenant, name), inputs)
        return self.registry.get(name)

    async def screen(self, name: str, inputs: object, options: InvokeOptions) -> None:
        """Raises `InvalidRequest` for inputs that try to instruct the model, and audits that."""
        tenant, caller = options.get("tenant", ""), options.get("caller")
        try:
            await to_thread.run_sync(refuse_injection, inputs)
        except InvalidRequest as error:
            if self.engine.is_audited:
                digest = digest_of(to_json(inputs))
                who = "" if caller is None else caller.subject
                entry = AuditEntry(
                    self._clock(), "", 0, "flagged", "refused", tenant, who, tool=f"{PREFIX}{name}", digest=digest,
                    reason=error.message[:REASON_CHARS],
                )  # fmt: skip
                await self.engine.store.note([Note(encode(entry))])
            raise


def _check_domain(domain: str) -> str:
    """The domain enters the system prompt, so it must be one short line. Raises `InvalidRequest`."""
    if len(domain) > DOMAIN_CHARS or not domain.isprintable():
        told = (
            f"domain must be one line of at most {DOMAIN_CHARS} characters, not `{domain[:40]!r}`; put the rest into the inputs"
        )
        raise InvalidRequest(told, param="domain")
    return domain


def _texts(part: Part) -> list[str]:
    """The texts in a part of a message."""
    match part:
        case InputText(text) | OutputText(text):
            return [text]
        case InputFile(filename, data):
            return [text for text in (filename, data) if isinstance(text, str)]
        case _:
            return []


def make_failure(run: Run) -> RunFailed:
    """An error that says why there is no answer, and names the run."""
    return RunFailed(f"agent `{run.spec.agent}` gave no answer in run `{run.spec.id}`: {explain_lack(run)}")
