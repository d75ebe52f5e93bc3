"""From a Responses request to the order for a run: whose it is, with which tools, and as which agent, if it names one."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json, Message, Tool, ToolDefinition, Unknown, user
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_order import InvocationSettings
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.agent_runtime import PREFIX, AgentRuntime
from mainspring.features.prompts.prompts import PREFIX as PROMPT_PREFIX
from mainspring.features.prompts.prompts import Prompt, fill_prompt
from mainspring.features.responses.request import MOST_INPUT_CHARS, CreateResponse, find_logprobs, make_order
from mainspring.features.responses.sent_request import FOREIGN_INCLUDES, RESULTS, SOURCES, WEB_RESULTS, SentRequest
from mainspring.features.vector_stores.file_search import INCLUDE
from mainspring.features.vector_stores.file_search import NAME as FILE_SEARCH
from mainspring.http.auth import INVOKE, get_caller, get_tenant, sign_order
from mainspring.http.faults import Fault
from mainspring.http.kinds import WEB_SEARCHES
from mainspring.http.sent_items import check_text_size, resolve_references
from mainspring.http.support import Need, check_needs, is_met, list_item_needs, list_sampling_needs, list_tool_needs
from mainspring.ports import RunStore
from mainspring.providers.wrapper import find_features


class AgentSelection(Struct, frozen=True):
    """The agent that a request names. Without variables, it is spoken to and not given inputs."""

    name: str
    variables: dict[str, object] | None = None
    version: str | None = None


async def read_order(engine: Engine, agents: AgentRuntime, client: HTTPConnection, sent: SentRequest) -> RunSpec:
    """The order that this client's request stands for. Raises `InvalidRequest`, and `Fault` if it may not call agents.

    An agent is named as `model`, `agent:NAME`, or as `prompt`, with variables that are the agent's inputs. A prompt that is kept
    here is named in the same ways, by its id.
    """
    body = sent.body
    needs = list_needs(body)
    await resolve_input(body, engine.store, get_tenant(client))
    choice, echo = select_agent(body), Json()
    if choice is not None and choice.name.startswith(PROMPT_PREFIX):
        prompt = await _find_prompt(agents, client, choice, body)
        echo["prompt"] = {"id": prompt.id, "version": str(prompt.number), "variables": choice.variables}
        body, choice = await _apply_prompt(agents, client, prompt, choice.variables or {}, body), None
    spec = make_order(
        body if choice is None or not _is_agent(body.model) else replace(body, model=None),
        new_id=engine.new_id,
        default_model=engine.model,
        server_tools=engine.definitions,
        context_tokens=engine.context_tokens,
        limits=engine.defaults.limits,
    )
    spec = sign_order(client, spec)
    if echo:
        spec = replace(spec, echo={**spec.echo, **echo})
    if choice is not None:
        spec = await _apply_selection(agents, client, choice, body, spec)
    asked = {RESULTS, SOURCES, WEB_RESULTS}.intersection(body.include or ())
    if not asked and not needs and not sent.ignored.passable:
        return spec
    if shown := _list_shown(engine, spec, asked):
        spec = replace(spec, tools=tuple([_include_results(tool, shown) for tool in spec.tools]))
    return _apply_features(engine, spec, sent, needs, is_lenient=offers_unasked(client))


def check_client_calls(spec: RunSpec) -> RunSpec:
    """The order with calls of the client's functions checked, for a client that is not shown them as they come."""
    has_functions = any(isinstance(tool, ToolDefinition) and tool.kind == "function" for tool in spec.tools)
    return replace(spec, checks_calls=True) if has_functions else spec


def _list_shown(engine: Engine, spec: RunSpec, asked: set[str]) -> tuple[str, ...]:
    """The types of tools whose results the client wants to see. Those of a backend's own web search are its business."""
    shown = (FILE_SEARCH,) if RESULTS in asked else ()
    is_ours = WEB_RESULTS in asked and "web_search" in find_features(engine.provider, spec.model)
    return (*shown, *WEB_SEARCHES) if is_ours else shown


def _include_results(tool: Tool, shown: Sequence[str]) -> Tool:
    """A tool marked so; see `features.vector_stores.file_search` and `features.web_search.declaration`."""
    is_shown = isinstance(tool, Unknown) and tool.data.get("type") in shown
    return Unknown({**tool.data, INCLUDE: True}) if isinstance(tool, Unknown) and is_shown else tool


def list_needs(body: CreateResponse) -> list[Need]:
    """What a request needs of the model's backend. Raises `InvalidRequest` for what nobody could have."""
    items = body.input if isinstance(body.input, tuple) else ()
    penalties = {"presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty}
    asked = [field for field, value in penalties.items() if value]
    return [
        *list_tool_needs(body.tools or ()),
        *list_item_needs(items, "input"),
        *list_sampling_needs(find_logprobs(body), asked),
    ]


def offers_unasked(client: HTTPConnection) -> bool:
    """Whether this client declares tools that nobody may have asked for, as Codex does with every request: those that are not
    here are left out then, and listed as ignored."""
    headers = client.headers
    return headers.get("mainspring-unavailable-tools") == "ignore" or headers.get("originator", "").lower().startswith("codex")


def _apply_features(engine: Engine, spec: RunSpec, sent: SentRequest, needs: list[Need], *, is_lenient: bool) -> RunSpec:
    """The order as the backend of its model can carry it. Raises `InvalidRequest` for what it cannot."""
    features = find_features(engine.provider, spec.model)
    if "passthrough" in features:
        check_needs(needs, features)
        wanted = [value for value in sent.body.include or () if value in (RESULTS, SOURCES, WEB_RESULTS, *FOREIGN_INCLUDES)]
        extra = {**(spec.sampling.extra or {}), "include": wanted}
        return replace(spec, sampling=replace(spec.sampling, extra=extra)) if wanted else spec
    for path in sent.ignored.passable:
        sent.ignored.add(path)
    gone = {need.kind for need in needs if need.kind is not None and not is_met(need, features)} if is_lenient else set()
    check_needs([need for need in needs if need.kind not in gone], features)
    if not gone:
        return spec
    for need in needs:
        if need.kind in gone:
            sent.ignored.add(need.param.removesuffix(".type"))
    told = [tool for tool in spec.echo["tools"] if tool["type"] not in gone]
    tools = tuple([tool for tool in spec.tools if not (isinstance(tool, Unknown) and tool.data["type"] in gone)])
    return replace(spec, tools=tools, echo={**spec.echo, "tools": told})


async def resolve_input(body: CreateResponse, store: RunStore, tenant: str) -> None:
    """Puts the items themselves in the place of references to them. Raises `InvalidRequest` for one that names nothing."""
    if isinstance(body.input, tuple):
        resolved = await resolve_references(body.input, store, tenant, param="input")
        if resolved is not body.input:
            check_text_size(resolved, MOST_INPUT_CHARS)
            body.input = resolved


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


async def _find_prompt(agents: AgentRuntime, client: HTTPConnection, choice: AgentSelection, body: CreateResponse) -> Prompt:
    try:
        return await agents.prompts.get(get_tenant(client), choice.name, choice.version)
    except (NotFound, InvalidRequest) as error:
        error.param = "prompt.version" if error.param == "version" else "prompt.id" if body.prompt is not None else "model"
        raise


async def _apply_prompt(
    agents: AgentRuntime, client: HTTPConnection, prompt: Prompt, variables: dict[str, object], body: CreateResponse
) -> CreateResponse:
    """The request with what the prompt says: its instructions before those of the request, its message before the input. What
    the request names itself, the model among it, counts. Raises `InvalidRequest`."""
    caller = get_caller(client)
    await agents.screen(prompt.id, variables, {"tenant": caller.tenant, "caller": caller.as_run_caller()})
    filled, content = fill_prompt(prompt, variables, "prompt.variables"), prompt.content
    given = body.input if isinstance(body.input, tuple) else () if body.input is None else (user(body.input),)
    said = (Message("user", filled.parts),) if filled.parts else ()
    return replace(
        body,
        prompt=None,
        model=content.model if body.model is None or _is_agent(body.model) else body.model,
        temperature=content.temperature if body.temperature is None else body.temperature,
        instructions="\n\n".join([text for text in (filled.instructions, body.instructions) if text]) or None,
        input=(*said, *given),
    )


async def _apply_selection(
    agents: AgentRuntime, client: HTTPConnection, choice: AgentSelection, body: CreateResponse, spec: RunSpec
) -> RunSpec:
    if not get_caller(client).may(INVOKE):
        raise Fault(403, "insufficient_scope", f"this API key may not call agents; a key with the scope `{INVOKE}` is needed")
    param = "model" if choice.variables is None else "prompt.id"
    try:
        definition = agents.registry.get(choice.name)
    except NotFound as error:
        none = "; this server has no agents: its operator names a folder of definitions as `agents` in the settings"
        raise NotFound(error.message + ("" if agents.registry.folders else none), param=param) from None
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
    manner = InvocationSettings(config, max_seconds=body.max_seconds, truncation=body.truncation)
    is_open = body.model is None or _is_agent(body.model)
    return await agents.select_agent(spec, choice.name, choice.variables, manner, names_no_model=is_open)


def _is_agent(model: str | None) -> bool:
    return (model or "")[: len(PREFIX)].lower() == PREFIX
