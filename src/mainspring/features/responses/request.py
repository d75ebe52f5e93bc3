"""A create body, and the order for a run that it is turned into.

Real clients leave out what they may, and spell input in several ways; all of that is accepted. What cannot be honoured is refused
with the name of the field at fault.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.declared_tools import define_tools, load_tools, map_names
from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import NewId
from mainspring.core.items import Item, Json, Tool, ToolDefinition, Unknown, user
from mainspring.core.operator_limits import NO_LIMITS, OperatorLimits
from mainspring.core.spec import PRESETS, Conversation, Goal, RunSpec, ToolChoice, spec_for
from mainspring.http.bodies import Metadata, Name
from mainspring.http.client_tools import flatten_call, parse_client_items
from mainspring.http.hosted_calls import WEB_SEARCH, split_server_call
from mainspring.http.kinds import TRIGGER, WEB_SEARCHES
from mainspring.http.sent_items import assign_id
from mainspring.tools.mcp.mcp_tools_step import make_choice_mark
from mainspring.tools.schema import compile_schema

MOST_INPUT_CHARS = 10_485_760
MOST_ITEMS = 1_000
MOST_TOOLS = 128
MOST_NUMBER = 2**31 - 1

Text = Annotated[str, Meta(max_length=MOST_INPUT_CHARS)]
Items = Annotated[tuple[Item, ...], Meta(max_length=MOST_ITEMS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


Count = Annotated[int, Meta(ge=1, le=MOST_NUMBER)]
# Every piece of an answer is held against these texts.
Stop = Annotated[str, Meta(min_length=1, max_length=1_000)]


class RunLimits(Struct, kw_only=True):
    """What a request may bound its run by, whatever API it is of."""

    max_turns: Count | None = None
    max_tool_calls: Count | None = None
    max_tool_calls_per_turn: Count | None = None
    max_errors_in_row: Count | None = None
    tool_seconds: Annotated[float, Meta(gt=0, le=MOST_NUMBER)] | None = None
    max_seconds: Annotated[float, Meta(ge=1, le=MOST_NUMBER)] | None = None


class CreateResponse(RunLimits):
    """The body of `POST /v1/responses`, as far as it is understood. `allowed_tools` names the tools that may be called, as
    `tool_choice` of that type does; none are named, all may be. With `generate: false` the model is not asked: the response only
    keeps its input, for one that continues it."""

    model: Name | None = None
    input: Text | Items | None = None
    instructions: Text | None = None
    previous_response_id: Name | None = None
    conversation: Name | Json | None = None
    tools: Annotated[tuple[Json, ...], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | Json | None = None
    allowed_tools: Annotated[tuple[Name, ...], Meta(max_length=MOST_TOOLS)] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=16, le=MOST_NUMBER)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: Json | None = None
    reasoning: Json | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: tuple[Json, ...] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: Json | None = None
    service_tier: Name | None = None
    metadata: Metadata | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None
    include: tuple[str, ...] | None = None
    prompt: Json | None = None
    generate: bool | None = None


_LIMITS = ("max_output_tokens", *RunLimits.__struct_fields__)


LOGPROBS: Final = "message.output_text.logprobs"


def find_logprobs(request: CreateResponse) -> str | None:
    """The field that asks for log probabilities, None if none does."""
    if LOGPROBS in (request.include or ()):
        return f"include[{(request.include or ()).index(LOGPROBS)}]"
    return "top_logprobs" if request.top_logprobs else "logprobs" if request.logprobs else None


def make_order(
    request: CreateResponse,
    *,
    new_id: NewId,
    default_model: str,
    server_tools: Sequence[ToolDefinition] = (),
    context_tokens: int | None = None,
    limits: OperatorLimits = NO_LIMITS,
) -> RunSpec:
    """The order that a request stands for, within the operator's limits. Raises `InvalidRequest`."""
    goal = _read_goal(request)
    given = _parse_input(request.input if goal != "compaction" else _cut_trigger(request.input), new_id)
    if not given and request.previous_response_id is None and request.conversation is None and request.prompt is None:
        raise InvalidRequest("nothing is asked: say something, or continue a response or a conversation", param="input")
    tools = load_tools(define_tools(request.tools or (), "tools"), given)
    names = map_names(tools)
    given = tuple([flatten_call(item, names) for item in given])
    named = {tool.name for tool in tools if isinstance(tool, ToolDefinition)}
    asked: Json = {name: value for name in _LIMITS if (value := getattr(request, name)) is not None}
    limits.refuse(asked)
    return spec_for(
        "responses",
        id=new_id("resp"),
        model=request.model or default_model,
        input=given,
        instructions=request.instructions,
        tools=(*tools, *[tool for tool in server_tools if tool.name not in named]),
        tool_choice=_narrow_choice(_parse_choice(request.tool_choice, tools), _name_all(request.allowed_tools, tools)),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        parent=request.previous_response_id,
        store=request.store is not False,
        background=request.background is True,
        metadata=request.metadata or {},
        echo=_echo(request),
        conversation=_parse_conversation(request.conversation),
        temperature=request.temperature,
        top_p=request.top_p,
        top_logprobs=request.top_logprobs or 0 if find_logprobs(request) is not None else None,
        presence_penalty=request.presence_penalty or None,
        frequency_penalty=request.frequency_penalty or None,
        text=_check_text(request.text),
        reasoning=request.reasoning,
        # Of a conversation that is too long even to be summed up, the oldest part is lost either way.
        truncation=request.truncation or ("auto" if goal == "compaction" else "disabled"),
        compact_threshold=_parse_threshold(request.context_management),
        context_tokens=context_tokens,
        goal=goal,
        limits=limits.apply(PRESETS["responses"].limits),
        **asked,
    )


def _read_goal(request: CreateResponse) -> Goal:
    """What the response is for. An item that asks for a compaction is the last, and the whole request."""
    items = request.input if isinstance(request.input, tuple) else ()
    places = [place for place, item in enumerate(items) if isinstance(item, Unknown) and item.data.get("type") == TRIGGER]
    if places and places != [len(items) - 1]:
        param = f"input[{places[0]}]"
        raise InvalidRequest("a `compaction_trigger` compacts all that is before it; send one, as the last item", param=param)
    if request.generate is False:
        if places:
            raise InvalidRequest("a compaction asks the model; leave out `generate: false`", param="generate")
        return "nothing"
    return "compaction" if places else "answer"


def _cut_trigger(given: str | tuple[Item, ...] | None) -> tuple[Item, ...]:
    return given[:-1] if isinstance(given, tuple) else ()


def _parse_input(given: str | tuple[Item, ...] | None, new_id: NewId) -> tuple[Item, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        return (user(given, id=new_id("msg")),)
    whole = [part for item in given for part in split_server_call(item)]
    return tuple([assign_id(item, new_id) for item in parse_client_items(whole)])


def _name_all(allowed: tuple[str, ...] | None, tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple([name for wanted in allowed or () for name in _name_chosen({"name": wanted}, tools)])


def _narrow_choice(choice: ToolChoice, allowed: tuple[str, ...]) -> ToolChoice:
    """The choice among the allowed tools; an empty list allows all."""
    if not allowed:
        return choice
    if choice.allowed is not None:
        message = "allowed_tools and a tool_choice of type `allowed_tools` exclude each other; send one of them"
        raise InvalidRequest(message, param="allowed_tools")
    if choice.name is not None and choice.name not in allowed:
        raise InvalidRequest(f"tool_choice names `{choice.name}`, which allowed_tools leaves out", param="tool_choice")
    return replace(choice, allowed=allowed)


def _parse_choice(choice: str | Json | None, tools: Sequence[Tool]) -> ToolChoice:
    match choice:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required")
        case {"type": "function" | "custom", "name": str()} if isinstance(choice, dict):
            return ToolChoice("required", name=_name_chosen(choice, tools)[0])
        case {"type": "shell" | "local_shell" | "apply_patch" | "code_interpreter" | "file_search" | "tool_search" as name}:
            return ToolChoice("required", name=name)
        case {"type": str(kind)} if kind in WEB_SEARCHES:
            return ToolChoice("required", name=WEB_SEARCH)
        case {"type": "mcp", "server_label": str(label), **rest}:
            return ToolChoice("required", name=make_choice_mark(label, str(rest["name"]) if rest.get("name") else None))
        case {"type": "allowed_tools", "tools": [*allowed], **rest}:
            mode, named = rest.get("mode") or "auto", [tool for tool in allowed if isinstance(tool, dict)]
            names = tuple([name for tool in named for name in _name_chosen(tool, tools)])
            if mode in ("auto", "required", "none") and names and len(named) == len(allowed):
                return ToolChoice(mode, allowed=names)
        case _:
            pass
    message = (
        'tool_choice must be "auto", "none", "required", {"type": "function", "name": ...} or `allowed_tools`; a tool of '
        "the backend's own cannot be forced"
    )
    raise InvalidRequest(message, param="tool_choice")


def _name_chosen(chosen: Json, tools: Sequence[Tool]) -> list[str]:
    """The model's names for what a choice names. A tool of a namespace is `namespace.tool`, or has a `namespace` beside."""
    match chosen:
        case {"type": "mcp", "server_label": str(label), **rest}:
            return [make_choice_mark(label, str(rest["name"]) if rest.get("name") else None)]
        case {"type": str(kind)} if kind in WEB_SEARCHES:
            return [WEB_SEARCH]
        case {"type": "namespace", "name": str(namespace)}:
            return [name for (group, _), name in map_names(tools).items() if group == namespace] or [namespace]
        case _:
            wanted = str(chosen.get("name", chosen.get("type")))
            paths = {f"{group}.{inner}": name for (group, inner), name in map_names(tools).items()}
            path = f"{chosen['namespace']}.{wanted}" if chosen.get("namespace") else wanted
            return [paths.get(path, paths.get(f".{path}", wanted))]


def _parse_conversation(given: str | Json | None) -> Conversation | None:
    match given:
        case None:
            return None
        case str(id) | {"id": str(id)}:
            return Conversation(id)
        case _:
            raise InvalidRequest('conversation must be an id, or {"id": ...}', param="conversation")


def _parse_threshold(management: Sequence[Json] | None) -> int | None:
    match management:
        case None | ():
            return None
        case ({"type": "compaction", **rest},):
            threshold = rest.get("compact_threshold")
            if threshold is None or (type(threshold) is int and threshold > 0):
                return threshold
        case _:
            pass
    message = 'context_management must be one {"type": "compaction", "compact_threshold": N} with N above 0'
    raise InvalidRequest(message, param="context_management")


def _check_text(text: Json | None) -> Json | None:
    form = (text or {}).get("format")
    if form is None:
        return text
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequest("text.format.type must be `text`, `json_object` or `json_schema`", param="text.format")
    if form["type"] == "json_schema" and not (isinstance(form.get("name"), str) and isinstance(form.get("schema"), dict)):
        raise InvalidRequest("text.format of type `json_schema` needs `name` and `schema`", param="text.format")
    if form["type"] == "json_schema":
        try:
            compile_schema(form["schema"])
        except ValueError as error:
            message = f"text.format.schema is not a JSON Schema: {error}; correct it"
            raise InvalidRequest(message, param="text.format.schema") from None
    return text


_SECRET: Final = ("authorization", "headers")


def _echo(request: CreateResponse) -> Json:
    """The fields that come back in the Response as they were sent."""
    echo: Json = {"tools": [_echo_tool(tool) for tool in request.tools or ()]}
    # No field of a Response: whoever goes on without sending tools is told that these cannot go on.
    if labels := [
        str(tool.get("server_label")) for tool in request.tools or () if tool.get("type") == "mcp" and _has_secret(tool)
    ]:
        echo["secret_servers"] = labels
    for field in (
        "presence_penalty", "frequency_penalty", "top_logprobs", "truncation", "safety_identifier", "prompt_cache_key", "user",
    ):  # fmt: skip
        if (value := getattr(request, field)) is not None:
            echo[field] = value
    # What `allowed_tools` leaves of a choice, the order says itself.
    if request.tool_choice is not None and not request.allowed_tools:
        echo["tool_choice"] = request.tool_choice
        if isinstance(request.tool_choice, dict) and request.tool_choice.get("type") == "allowed_tools":
            echo["tool_choice"] = {"mode": "auto", **request.tool_choice}
    if request.reasoning is not None:
        echo["reasoning"] = {"effort": None, "summary": None, **request.reasoning}
    if request.text is not None:
        echo["text"] = {"format": {"type": "text"}, **request.text}
    return echo


def _has_secret(tool: Json) -> bool:
    return any(tool.get(key) for key in _SECRET)


def _echo_tool(tool: Json) -> Json:
    """Function tools come back with every field; of other kinds, no secret does."""
    if tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": True, **tool}
    return {key: value for key, value in tool.items() if key not in _SECRET}
