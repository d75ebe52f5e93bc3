"""The body of `POST /v1/chat/completions`, and the request for a response that it stands for."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.chat_completions.messages import MessageReader
from mainspring.features.responses.door import DoorRequest, FieldNames
from mainspring.features.responses.request import MOST_TOOLS, Count, CreateResponse, Penalty, RunLimits, Stop
from mainspring.features.responses.sent_request import check_values
from mainspring.http.bodies import Metadata, Name, parse_body
from mainspring.http.ignored import IgnoredFields
from mainspring.http.kinds import TOOL_KINDS

MOST_MESSAGES: Final = 10_000


class CreateChatCompletion(RunLimits):
    """What is understood of a request."""

    messages: Annotated[tuple[Json, ...], Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: Name | None = None
    tools: Annotated[tuple[Json, ...], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stop: Stop | Annotated[tuple[Stop, ...], Meta(max_length=16)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Count | None = None
    modalities: tuple[str, ...] | None = None
    response_format: Json | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None
    stream: bool | None = None
    stream_options: Json | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: Name | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    web_search_options: Json | None = None


class SentChat(Struct, frozen=True):
    """A request as it was sent, and as one for a response."""

    body: CreateChatCompletion
    asked: DoorRequest


FIELDS: Final = frozenset(CreateChatCompletion.__struct_fields__)
# What has another name here, or cannot be had.
OTHER_NAMES: Final = {
    "input": "send it as `messages`",
    "instructions": "send it as the first of `messages`, with the role `system`",
    "max_output_tokens": "send it as `max_completion_tokens`",
    "text": "send its format as `response_format`",
    "reasoning": "send its effort as `reasoning_effort`",
    "previous_response_id": "send all of the conversation as `messages`, or use /v1/responses",
    "conversation": "send all of the conversation as `messages`, or use /v1/responses",
    "functions": "declare them as `tools`, of the type `function`",
    "function_call": "send it as `tool_choice`",
    "logit_bias": "tokens cannot be weighed; leave it out",
    "audio": "nothing is spoken here; leave it out, and `modalities` too",
    "moderation": "nothing is moderated here; leave it out, and moderate before and after",
}
# Clients send these for options that nobody has set.
_NOTHING: Final = (b"null", b"{}", b"[]")
_COPIED: Final = (
    "model", "parallel_tool_calls", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs",
    "stream", "stream_options", "store", "metadata", "service_tier", "user", "safety_identifier", "prompt_cache_key",
    *RunLimits.__struct_fields__,
)  # fmt: skip


def parse_chat(raw: bytes) -> SentChat:
    """The body, checked. Raises `InvalidRequest` naming the field at fault."""
    body = parse_body(raw, CreateChatCompletion)
    is_new = body.max_completion_tokens is not None
    names = FieldNames(
        (r"input\b", "messages"),
        (r"text\.format\b", "response_format"),
        (r"text\.verbosity\b", "verbosity"),
        (r"reasoning\.effort\b", "reasoning_effort"),
        (r"max_output_tokens\b", "max_completion_tokens" if is_new else "max_tokens"),
        (r"tools\[(\d+)\]\.(name|description|parameters|strict)\b", r"tools[\1].function.\2"),
    )
    ignored = IgnoredFields(names.rename)
    ignored.compare_body(raw, FIELDS, OTHER_NAMES, _NOTHING)
    _refuse_values(body)
    if is_new and body.max_tokens not in (None, body.max_completion_tokens):
        ignored.add("max_tokens")
    request = CreateResponse(
        input=MessageReader(ignored, names.places).read(body.messages),
        tools=_list_tools(body, ignored),
        tool_choice=_flatten_choice(body.tool_choice),
        max_output_tokens=body.max_completion_tokens or body.max_tokens,
        text=_make_text(body),
        reasoning=None if body.reasoning_effort is None else {"effort": body.reasoning_effort},
        **{name: getattr(body, name) for name in _COPIED},
    )
    with names.apply():
        asked = check_values(raw, request, ignored)
    sampling: Json = {"stop": (body.stop,) if isinstance(body.stop, str) else body.stop} if body.stop else {}
    sampling |= {} if body.seed is None else {"seed": body.seed}
    return SentChat(body, DoorRequest(asked, names, sampling))


def _refuse_values(body: CreateChatCompletion) -> None:
    """Raises `InvalidRequest` for values that the API has and that cannot be honoured."""
    if body.n is not None and body.n > 1:
        told = "n must be 1: each answer is a run of its own, with tools that act; send the request as often as you want answers"
        raise InvalidRequest(told, param="n", code="unsupported_value")
    if any(word != "text" for word in body.modalities or ()):
        raise InvalidRequest("modalities: answers are text; leave it out", param="modalities", code="unsupported_value")


def _list_tools(body: CreateChatCompletion, ignored: IgnoredFields) -> tuple[Json, ...] | None:
    """The tools, with a search of the web if it is asked for by options."""
    tools = None if body.tools is None else tuple([_flatten_tool(tool, number) for number, tool in enumerate(body.tools)])
    if (options := body.web_search_options) is None:
        return tools
    ignored.compare("web_search_options", options, {"search_context_size", "user_location"})
    search = {"type": "web_search", "search_context_size": options.get("search_context_size")}
    match options.get("user_location"):
        case None:
            pass
        case {"approximate": dict(place)}:
            search["user_location"] = {**place, "type": "approximate"}
        case _:
            told = 'web_search_options.user_location must be {"type": "approximate", "approximate": {...}}'
            raise InvalidRequest(told, param="web_search_options.user_location", code="invalid_value")
    return (*(tools or ()), search)


def _flatten_tool(tool: Json, number: int) -> Json:
    """A tool as requests for responses declare it. Those that the server performs are declared as there."""
    match tool:
        case {"type": "function" | "custom" as kind, **rest} if isinstance(inner := rest.get(kind), dict):
            return {**inner, "type": kind}
        case {"type": "function" | "custom" as kind}:
            param = f"tools[{number}].{kind}"
            raise InvalidRequest(f"{param} is missing; it holds the name", param=param, code="missing_required_parameter")
        case {"type": str(kind)} if kind in TOOL_KINDS and TOOL_KINDS[kind].performer == "client":
            param = f"tools[{number}].type"
            told = f"{param}: a chat knows no calls of `{kind}`; declare a function, or use /v1/responses"
            raise InvalidRequest(told, param=param, code="unsupported_value")
        case _:
            return tool


def _flatten_choice(choice: str | Json | None) -> str | Json | None:
    match choice:
        case {"type": "function" | "custom" as kind, **rest} if isinstance(inner := rest.get(kind), dict):
            return {**inner, "type": kind}
        case {"type": "allowed_tools", "allowed_tools": dict(allowed)} if isinstance(tools := allowed.get("tools"), list):
            return {**allowed, "type": "allowed_tools", "tools": [_flatten_choice(tool) for tool in tools]}
        case _:
            return choice


def _make_text(body: CreateChatCompletion) -> Json | None:
    text: Json = {} if body.verbosity is None else {"verbosity": body.verbosity}
    match body.response_format:
        case None:
            pass
        case {"type": "json_schema", "json_schema": {"name": str(), "schema": dict()} as schema}:
            text["format"] = {**schema, "type": "json_schema"}
        case {"type": "text" | "json_object"} as form:
            text["format"] = form
        case _:
            schema = '{"type": "json_schema", "json_schema": {"name", "schema"}}'
            told = f'response_format must be {{"type": "text"}}, {{"type": "json_object"}} or {schema}'
            raise InvalidRequest(told, param="response_format", code="invalid_value")
    return text or None
