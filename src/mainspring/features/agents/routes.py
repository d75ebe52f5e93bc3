"""`/v1/agents`: what agents there are, and one of them at work, once or until it is done."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.autonomy import Level
from mainspring.core.events import Reason
from mainspring.core.history import History
from mainspring.core.items import Json, encode
from mainspring.core.run import Run, fold, open_run
from mainspring.definitions.folder import DefinitionSource
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_definition import AgentDefinition
from mainspring.features.agents.agent_result import ToolLoopConfig, ToolLoopResult, has_answered, read_result
from mainspring.features.agents.agent_runtime import AgentRuntime, make_failure
from mainspring.features.agents.agent_stream import ToolLoopEvent, render_events
from mainspring.features.prompts.prompts import PREFIX as PROMPT_PREFIX
from mainspring.features.prompts.routes import PromptObject
from mainspring.http.auth import INVOKE, get_caller, sign_order
from mainspring.http.bodies import Metadata, Name, parse_body, read_json_body
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.run_replies import raise_failure, wait_for_end
from mainspring.http.streams import EventStream, write_batches
from mainspring.http.wire import hide_addresses

_PATH = "/v1/agents/{name}"
_ERRORS = (422, *MODEL_ERRORS)

Count = Annotated[int, Meta(ge=1, le=1000)]


class AgentInvocation(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/agents/{name}/invoke`. `domain` is the field that the task is from, for the agent to know; `metadata`
    and `store` are those of the response that its run is."""

    inputs: Json | None = None
    model: Name | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    effort: Literal["low", "medium", "high"] | None = None
    domain: Name | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    max_seconds: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    compact_threshold: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class InvokeIterative(AgentInvocation, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/agents/{name}/invoke-iterative`, and of its stream. A limit that is left out is as the agent's
    definition says, else as the server's settings do, else 20 iterations, 5 calls in each, 3 errors in a row, 60 seconds."""

    max_iterations: Count | None = None
    max_tool_calls_per_iteration: Count | None = None
    enable_double_confirmation: bool | None = None
    confirmation_prompt: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    confirm_after_work: bool | None = None
    error_threshold: Count | None = None
    tool_call_timeout_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=64)] | None = None
    loop_detection_threshold: Annotated[int, Meta(ge=0, le=1000)] | None = None
    autonomy_level: Level | None = None

    @property
    def config(self) -> ToolLoopConfig:
        given = {name: getattr(self, name) for name in ToolLoopConfig.__struct_fields__}
        return ToolLoopConfig(**{name: value for name, value in given.items() if value is not None})


class InvokedAgent(Struct, frozen=True):
    """`run_id` is the response that `GET /v1/responses/{response_id}` shows."""

    agent: str
    output: Json
    tokens_used: int
    model: str
    run_id: str


class InvokedIterative(ToolLoopResult, frozen=True, kw_only=True):
    """What the run came to, and the agent that did it."""

    agent: str


class AgentList(Struct, frozen=True):
    """`problems` are the files that hold no agent that could be used, and why."""

    data: Sequence[AgentDefinition]
    problems: Sequence[str]
    object: str = "list"


class AgentRoutes:
    """Every endpoint under `/v1/agents`."""

    def __init__(self, agents: AgentRuntime) -> None:
        self._agents = agents

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/agents", self.list, INVOKE, AgentList, errors=(503,)),
            Endpoint("GET", _PATH, self.retrieve, INVOKE, AgentDefinition, errors=(503,)),
            Endpoint("GET", f"{_PATH}/source", self.source, INVOKE, DefinitionSource, errors=(503,)),
            Endpoint("POST", f"{_PATH}/invoke", self.invoke, INVOKE, InvokedAgent, AgentInvocation, errors=_ERRORS),
            Endpoint(
                "POST",
                f"{_PATH}/invoke-iterative",
                self.invoke_iterative,
                INVOKE,
                InvokedIterative,
                InvokeIterative,
                errors=_ERRORS,
            ),
            Endpoint(
                "POST",
                f"{_PATH}/invoke-iterative/stream",
                self.stream_iterative,
                INVOKE,
                InvokedIterative,
                InvokeIterative,
                errors=_ERRORS,
                streams=True,
            ),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the agents, by name."""
        registry = require_agents(self._agents).registry
        return json_response(AgentList(list(registry.definitions.values()), registry.problems))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves the definition of an agent."""
        runtime, name = _require(self._agents, _name(request)), _name(request)
        return json_response(await runtime.find(name, get_caller(request).tenant, {}))

    async def source(self, request: Request) -> HttpResponse:
        """Retrieves the file of an agent, as its author wrote it."""
        registry = require_agents(self._agents).registry
        return json_response(await run_sync(registry.read_source, _name(request)))

    async def invoke(self, request: Request) -> HttpResponse:
        """Runs an agent for one turn, without tools."""
        body = parse_body(await read_json_body(request), AgentInvocation)
        handle = await self._start(request, body, None)
        await wait_for_end(handle, request)
        run = handle.run
        if not has_answered(run):
            _raise_failure(run)
            raise Fault(502, "run_failed", hide_addresses(make_failure(run).message))
        result = read_result(run)
        return json_response(InvokedAgent(run.spec.agent, result.output, result.tokens_used, result.model, result.run_id))

    async def invoke_iterative(self, request: Request) -> HttpResponse:
        """Runs an agent with tools until it is done."""
        body = parse_body(await read_json_body(request), InvokeIterative)
        handle = await self._start(request, body, body.config, autonomy_level=body.autonomy_level)
        await wait_for_end(handle, request)
        _raise_failure(handle.run)
        result = read_result(handle.run)
        why = None if result.error is None else hide_addresses(result.error)
        return json_response(InvokedIterative(agent=handle.run.spec.agent, **asdict(replace(result, error=why))))

    async def stream_iterative(self, request: Request) -> HttpResponse:
        """Runs an agent with tools and streams its events; the last is always `completed`."""
        body = parse_body(await read_json_body(request), InvokeIterative)
        handle = await self._start(request, body, body.config, autonomy_level=body.autonomy_level)
        return EventStream(write_batches(_read_frames(handle)), {}, handle.request_cancel, end=b"")

    async def _start(
        self, request: Request, body: AgentInvocation, config: ToolLoopConfig | None, *, autonomy_level: Level | None = None
    ) -> Handle:
        name, caller = _name(request), get_caller(request)
        runtime = _require(self._agents, name)
        order = await runtime.make_order(
            name,
            body.inputs or {},
            config,
            model=body.model,
            temperature=body.temperature,
            effort=body.effort,
            domain=body.domain or "",
            autonomy_level=autonomy_level,
            metadata=body.metadata or {},
            store=body.store is not False,
            max_seconds=body.max_seconds,
            truncation=body.truncation,
            compact_threshold=body.compact_threshold,
            tenant=caller.tenant,
            caller=caller.as_run_caller(),
        )
        return await runtime.engine.start(sign_order(request, order))


def require_agents(agents: AgentRuntime) -> AgentRuntime:
    """Raises `Fault` 503 if the server has no agents at all."""
    if not agents.registry.folders:
        message = "this server has no agents; name a folder of definitions as `agents` in its settings"
        raise Fault(503, "agents_not_configured", message)
    return agents


def show_as_prompt(agent: AgentDefinition) -> PromptObject:
    """An agent as a prompt whose variables are its inputs."""
    own = agent.prompts
    return PromptObject(
        agent.name, 0, agent.version, True, own.system, own.user, tuple(agent.inputs), agent.model, agent.temperature,
        agent.description, {}, agent=True,
    )  # fmt: skip


def _require(agents: AgentRuntime, name: str) -> AgentRuntime:
    """Prompts are there without any agents."""
    return agents if name.startswith(PROMPT_PREFIX) else require_agents(agents)


def _raise_failure(run: Run) -> None:
    """As for a response; but a model that failed is somebody else's failure, whatever it calls that."""
    try:
        raise_failure(run)
    except Fault as fault:
        if fault.status == 500 and run.reason in (Reason.PROVIDER_ERROR, Reason.ERRORS_IN_ROW):
            raise Fault(502, fault.code, fault.message, param="model") from None
        raise


def _name(request: Request) -> str:
    return str(request.path_params["name"])


async def _read_frames(handle: Handle) -> AsyncIterator[list[bytes]]:
    """The run's events as server-sent ones, as many at a time as there are."""
    run: Run | None = None
    async for batch in handle.batches():
        frames: list[bytes] = []
        for record in batch:
            before, run = run, open_run(record, History()) if run is None else fold(run, record)
            frames += [b"data: %b\n\n" % encode(_hide_backend(event)) for event in render_events(before, record, run)]
        if frames:
            yield frames


def _hide_backend(event: ToolLoopEvent) -> ToolLoopEvent:
    """What a client may know: where the backend is does not concern it."""
    key = {"error": "message", "completed": "error"}.get(event.event_type, "")
    if event.data.get(key) is None:
        return event
    return replace(event, data={**event.data, key: hide_addresses(str(event.data[key]))})
