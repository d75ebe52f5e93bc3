"""From a Responses request to the order for a run: whose it is, with which tools, and as which agent, if it names one."""

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from mainspring.core.errors import InvalidRequest
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_order import InvocationSettings
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.agent_runtime import PREFIX, AgentRuntime
from mainspring.features.agents.routes import require_agents
from mainspring.features.responses.request import CreateResponse, make_order
from mainspring.http.auth import INVOKE, get_caller, get_tenant, sign_order
from mainspring.http.faults import Fault
from mainspring.http.sent_items import resolve_references
from mainspring.ports import Store


class AgentSelection(Struct, frozen=True):
    """The agent that a request names. Without variables, it is spoken to and not given inputs."""

    name: str
    variables: dict[str, object] | None = None
    version: str | None = None


async def read_order(engine: Engine, agents: AgentRuntime, client: HTTPConnection, body: CreateResponse) -> RunSpec:
    """The order that this client's request stands for. Raises `InvalidRequest`, and `Fault` if it may not call agents.

    An agent is named as `model`, `agent:NAME`, or as `prompt`, with variables that are the agent's inputs.
    """
    await resolve_input(body, engine.store, get_tenant(client))
    choice = select_agent(body)
    spec = make_order(
        body if choice is None or not _is_agent(body.model) else replace(body, model=None),
        new_id=engine.new_id,
        default_model=engine.model,
        server_tools=engine.definitions,
        context_tokens=engine.context_tokens,
        limits=engine.defaults.limits,
    )
    spec = sign_order(client, spec)
    return spec if choice is None else await _apply_selection(agents, client, choice, body, spec)


async def resolve_input(body: CreateResponse, store: Store, tenant: str) -> None:
    """Puts the items themselves in the place of references to them. Raises `InvalidRequest` for one that names nothing."""
    if isinstance(body.input, tuple):
        body.input = await resolve_references(body.input, store, tenant, param="input")


def select_agent(body: CreateResponse) -> AgentSelection | None:
    """Raises `InvalidRequest` for a prompt that cannot be read, or that names another agent than the model does."""
    model = body.model[len(PREFIX) :] if body.model is not None and _is_agent(body.model) else None
    match body.prompt:
        case None:
            return None if model is None else AgentSelection(model)
        case {"id": str(name)} as prompt:
            variables, version = prompt.get("variables") or {}, prompt.get("version")
            if isinstance(variables, dict) and isinstance(version, str | None) and model in (None, name):
                return AgentSelection(name, variables, version)
        case _:
            pass
    message = 'prompt must be {"id": NAME, "variables": {...}} with the name of an agent, the same as in `model` if both name one'
    raise InvalidRequest(message, param="prompt")


async def _apply_selection(
    agents: AgentRuntime, client: HTTPConnection, choice: AgentSelection, body: CreateResponse, spec: RunSpec
) -> RunSpec:
    runtime = require_agents(agents)
    if not get_caller(client).may(INVOKE):
        raise Fault(403, "insufficient_scope", f"this API key may not call agents; a key with the scope `{INVOKE}` is needed")
    definition = runtime.registry.get(choice.name)
    if choice.version not in (None, definition.version):
        told = f"agent `{choice.name}` has the version {definition.version}, not {choice.version}; leave `version` out"
        raise InvalidRequest(told, param="prompt.version")
    config = ToolLoopConfig(
        max_iterations=body.max_turns,
        max_tool_calls_per_iteration=body.max_tool_calls_per_turn,
        enable_double_confirmation=False,
        error_threshold=body.max_errors_in_row,
        tool_call_timeout_seconds=body.tool_seconds,
    )
    manner = InvocationSettings(config, max_seconds=body.max_seconds)
    return await runtime.select_agent(spec, choice.name, choice.variables, manner)


def _is_agent(model: str | None) -> bool:
    return (model or "")[: len(PREFIX)].lower() == PREFIX
