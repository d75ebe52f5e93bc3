"""The body of `POST /v1/messages`, and the request for a response that it stands for."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import derive_id
from mainspring.core.items import Json, text_of
from mainspring.features.messages.api_tools import CLIENT_TOOLS, SEARCH, define_api_tools
from mainspring.features.messages.blocks import BlockReader
from mainspring.features.messages.search_blocks import shows_searches
from mainspring.features.responses.door import DoorRequest, FieldNames
from mainspring.features.responses.request import Count, CreateResponse, RunLimits, Stop, Text
from mainspring.features.responses.sent_request import WEB_RESULTS, check_values
from mainspring.http.bodies import Name, parse_body
from mainspring.http.ignored import IgnoredFields
from mainspring.http.kinds import TOOL_KINDS

MOST_MESSAGES: Final = 10_000
MOST_TOOLS: Final = 512
MOST_NAME: Final = 512


class CreateMessage(RunLimits):
    """What is understood of a request. `store` is ours, as in requests for responses."""

    messages: Annotated[tuple[Json, ...], Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: Name | None = None
    max_tokens: Count | None = None
    system: Text | tuple[Json, ...] | None = None
    tools: Annotated[tuple[Json, ...], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    output_format: Json | None = None
    stop_sequences: Annotated[tuple[Stop, ...], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stream: bool | None = None
    metadata: Json | None = None
    service_tier: Name | None = None
    cache_control: Json | None = None
    thread: Json | None = None
    store: bool | None = None


class SentMessage(Struct, frozen=True):
    """A request as it was sent, and as one for a response."""

    body: CreateMessage
    asked: DoorRequest


FIELDS: Final = frozenset(CreateMessage.__struct_fields__)
OTHER_NAMES: Final = {
    "input": "send it as `messages`",
    "instructions": "send it as `system`",
    "max_output_tokens": "send it as `max_tokens`",
    "stop": "send it as `stop_sequences`",
    "user": "send it as `metadata.user_id`",
    "previous_response_id": "send the id of the message as `thread.previous_message_id`, with the type `continue`",
    "top_k": "tokens cannot be cut off by rank; leave it out",
    "mcp_servers": 'declare each as a tool, `{"type": "mcp", "server_label": ..., "server_url": ...}`',
    "container": "leave it out, and declare the tool `code_interpreter`, if its operator offers it",
}
_COPIED: Final = (
    "model", "temperature", "top_p", "stream", "store", "service_tier", *RunLimits.__struct_fields__,
)  # fmt: skip
_TOOL: Final = {"type", "name", "description", "input_schema", "strict", "cache_control"}
# What is read of the fields that are objects.
_NESTED: Final = {
    "thinking": {"type", "budget_tokens"},
    "output_config": {"effort", "format"},
    "tool_choice": {"type", "name", "disable_parallel_tool_use"},
    "thread": {"type", "previous_message_id"},
    "cache_control": {"type", "ttl"},
    "metadata": {"user_id"},
}


def parse_message(raw: bytes) -> SentMessage:
    """The body, checked. Raises `InvalidRequest` naming the field at fault."""
    body = parse_body(raw, CreateMessage)
    names = FieldNames(
        (r"input\b", "messages"),
        (r"instructions\b", "system"),
        (r"text\.format\b", "output_config.format"),
        (r"reasoning\.effort\b", "output_config.effort"),
        (r"max_output_tokens\b", "max_tokens"),
        (r"previous_response_id\b", "thread.previous_message_id"),
        (r"stop\b", "stop_sequences"),
        (r"user\b", "metadata.user_id"),
        (r"tools\[(\d+)\]\.parameters\b", r"tools[\1].input_schema"),
    )
    ignored = IgnoredFields(names.rename)
    ignored.compare_body(raw, FIELDS, OTHER_NAMES)
    for name, known in _NESTED.items():
        ignored.compare(name, getattr(body, name) or {}, known)
    if body.messages[-1].get("role") == "assistant":
        told = "messages: the last one must be of the user: what the assistant has begun to say cannot be gone on with"
        raise InvalidRequest(told, param=f"messages[{len(body.messages) - 1}].role", code="unsupported_value")
    reader = BlockReader(ignored, names.places)
    tools = None if body.tools is None else _flatten_tools(body.tools, ignored)
    choice, is_searching = body.tool_choice or {}, shows_searches(tools or ())
    request = CreateResponse(
        input=reader.read(body.messages),
        instructions=_read_system(body.system, reader),
        tools=tools,
        tool_choice=_flatten_choice(choice, is_searching=is_searching),
        include=(WEB_RESULTS,) if is_searching else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        max_output_tokens=body.max_tokens,
        text=_read_format(body),
        reasoning=_read_thinking(body),
        user=_read_user(body.metadata, ignored),
        previous_response_id=_read_thread(body),
        **{name: getattr(body, name) for name in _COPIED},
    )
    with names.apply():
        asked = check_values(raw, request, ignored)
    sampling: Json = {"stop": body.stop_sequences} if body.stop_sequences else {}
    if (lifetime := _find_lifetime(body)) is not None:
        sampling["cache_ttl"] = lifetime
    return SentMessage(body, DoorRequest(asked, names, sampling))


def _read_system(system: str | Sequence[Json] | None, reader: BlockReader) -> str | None:
    if system is None or isinstance(system, str):
        return system or None
    blocks = reader.list_blocks(list(system), "system", ("text",))
    return "\n\n".join([text_of([*reader.read_parts(block, place)]) for block, place in blocks]) or None


def _flatten_tools(tools: Sequence[Json], ignored: IgnoredFields) -> tuple[Json, ...]:
    """The tools as requests for responses declare them. Those that the server performs are declared as there."""
    return tuple([_flatten_tool(tool, number, ignored) for number, tool in enumerate(define_api_tools(tools, ignored))])


def _flatten_tool(tool: Json, number: int, ignored: IgnoredFields) -> Json:
    param, kind = f"tools[{number}]", tool.get("type", "custom")
    if kind in (None, "custom") or (kind == "function" and "input_schema" in tool):
        if not isinstance(tool.get("input_schema"), dict):
            told = f"{param}.input_schema is missing; it is the JSON Schema of what the tool is called with"
            raise InvalidRequest(told, param=f"{param}.input_schema", code="missing_required_parameter")
        ignored.compare(param, tool, _TOOL)
        kept = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
        return {"type": "function", **kept, "parameters": tool["input_schema"]}
    if isinstance(kind, str) and kind in TOOL_KINDS and TOOL_KINDS[kind].performer == "server":
        return tool
    ways = f"declare a tool with `input_schema`, which the client performs, or one of {', '.join(CLIENT_TOOLS)}, `{SEARCH}_...`"
    told = f"{param}.type: `{str(kind)[:80]}` is not known here; {ways}, `mcp`, `code_interpreter`, `file_search`"
    raise InvalidRequest(told, param=f"{param}.type", code="unsupported_value")


def _flatten_choice(choice: Json, *, is_searching: bool) -> str | Json | None:
    match choice:
        case {"type": "any"}:
            return "required"
        case {"type": "auto" | "none" as mode}:
            return str(mode)
        case {"type": "tool", "name": "web_search"} if is_searching:
            return {"type": SEARCH}
        case {"type": "tool", "name": str(name)}:
            return {"type": "function", "name": name}
        case {}:
            if not choice:
                return None
    told = 'tool_choice must be {"type": "auto"}, "any", "none", or {"type": "tool", "name": ...}'
    raise InvalidRequest(told, param="tool_choice", code="invalid_value")


def _read_thinking(body: CreateMessage) -> Json | None:
    """How much to think. A budget is told as the effort that comes nearest: most backends know no other measure."""
    effort = (body.output_config or {}).get("effort")
    if not isinstance(effort, str | None):
        told = "output_config.effort must be a word, such as `low`, `medium` or `high`"
        raise InvalidRequest(told, param="output_config.effort", code="invalid_type")
    match body.thinking:
        case None:
            return {"effort": effort} if effort else None
        case {"type": "disabled"}:
            return {"effort": "none"}
        case {"type": "adaptive"}:
            return {"effort": effort or "high"}
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return {"effort": effort or ("low" if budget <= 4096 else "medium" if budget <= 16_384 else "high")}
        case _:
            told = 'thinking must be {"type": "enabled", "budget_tokens": N}, {"type": "adaptive"} or {"type": "disabled"}'
            raise InvalidRequest(told, param="thinking", code="invalid_value")


def _read_format(body: CreateMessage) -> Json | None:
    match (body.output_config or {}).get("format") or body.output_format:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
        case _:
            told = 'output_config.format must be {"type": "json_schema", "schema": {...}}'
            raise InvalidRequest(told, param="output_config.format", code="invalid_value")


def _read_thread(body: CreateMessage) -> str | None:
    """The run that is gone on with, None for a new thread: what a thread needs is kept of every stored run."""
    if body.thread is not None and body.store is False:
        raise InvalidRequest("a thread is kept, and `store: false` asks that nothing is; send one of them", param="store")
    match body.thread:
        case None | {"type": "create"}:
            return None
        case {"type": "continue", "previous_message_id": str(id)}:
            return derive_id("resp", id)
        case _:
            told = 'thread must be {"type": "create"} or {"type": "continue", "previous_message_id": ...}'
            raise InvalidRequest(told, param="thread", code="invalid_value")


def _read_user(metadata: Json | None, ignored: IgnoredFields) -> str | None:
    user = (metadata or {}).get("user_id")
    if user is None or (isinstance(user, str) and len(user) <= MOST_NAME):
        return user
    ignored.add("metadata.user_id")
    return None


def _find_lifetime(body: CreateMessage) -> str | None:
    """How long the prompt is to stay in a cache: the longest that a mark asks for. The backend's adapter sets its own marks."""
    asked = {str(mark.get("ttl") or "5m") for mark in _list_marks(body) if isinstance(mark, dict)}
    if odd := asked - {"5m", "1h"}:
        told = f"cache_control.ttl must be `5m` or `1h`, not `{odd.pop()[:80]}`"
        raise InvalidRequest(told, param="cache_control.ttl", code="invalid_value")
    return "1h" if "1h" in asked else "5m" if asked else None


def _list_marks(body: CreateMessage) -> Iterator[object]:
    yield body.cache_control
    contents = [message.get("content") for message in body.messages]
    for blocks in (body.tools, body.system, *contents):
        if isinstance(blocks, list | tuple):
            yield from [block.get("cache_control") for block in blocks if isinstance(block, dict)]
