"""`LLMAdapter`: a model that is asked once and answers whole. A thin view of our providers, and the way back.

    LLMError                    the model could not be asked, or failed; `code` says how
    ├── RateLimitError          it takes no more requests; not tried again, `retry_after` seconds if it said so
    ├── TimeoutError            it took too long, twice
    ├── InvalidResponseError    its answer cannot be read; `raw_response` is what came
    └── ToolNotFoundError       it called a tool that is none of the five; `tool_name`

`ProviderAdapter` shows any provider as an adapter, `GeminiAdapter` is that for Gemini. `AdapterProvider` is an adapter as the
engine needs it: a provider whose turns come in one piece.
"""

import builtins
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from anyio import fail_after

from mainspring.core.errors import BadOutput, InvalidRequest, PeerError, ProviderError, RateLimited, Unavailable
from mainspring.core.events import Finish, ItemDone, ItemStarted, ModelEvent, TurnEnded
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCall as CallItem
from mainspring.core.items import (
    FunctionCallOutput,
    Item,
    ItemStatus,
    Message,
    ToolDefinition,
    Usage,
    assistant,
    parse_arguments,
    text_of,
    to_json,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo, Provider
from mainspring.providers.gemini.provider import Gemini
from mainspring_tasks.decision_types import (
    ALLOWED_TOOLS,
    DEFAULT_TEMPERATURE,
    MAX_RESPONSE_TOKENS,
    FinishReason,
    FunctionCall,
    FunctionResponse,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    TokenUsage,
    ToolDeclaration,
)
from mainspring_tasks.ports import LLMAdapter as LLMAdapter

MODEL: Final = "gemini-2.0-flash"
SECONDS: Final = 30.0
RETRIES: Final = 1

_FINISHES: Final[dict[Finish, FinishReason]] = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "error",
    "error": "error",
}


class LLMError(PeerError):
    code = "LLM_ERROR"


class RateLimitError(LLMError):
    code = "RATE_LIMITED"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TimeoutError(LLMError):
    code = "TIMEOUT"


class InvalidResponseError(LLMError):
    code = "INVALID_RESPONSE"

    def __init__(self, message: str, raw_response: str = "") -> None:
        super().__init__(message)
        self.raw_response = raw_response


class ToolNotFoundError(LLMError):
    code = "TOOL_NOT_FOUND"

    def __init__(self, tool_name: str) -> None:
        super().__init__(f"the model called `{tool_name:.80}`; the tools are {', '.join(sorted(ALLOWED_TOOLS))}")
        self.tool_name = tool_name


class ProviderAdapter:
    """Any provider as an adapter: drains its stream. Retries `retries` times, but not on a rate limit."""

    def __init__(self, provider: Provider, model: str, *, seconds: float = SECONDS, retries: int = RETRIES) -> None:
        self.provider, self.model = provider, model
        self._seconds, self._retries = seconds, retries

    async def generate(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[ToolDeclaration],
        temperature: float = DEFAULT_TEMPERATURE,
        max_tokens: int = MAX_RESPONSE_TOKENS,
        *,
        instructions: str | None = None,
    ) -> LLMResponse:
        order = LLMRequest(tuple(messages), tuple(tools), temperature, max_tokens)
        request = ModelRequest(
            random_id("llm"),
            self.model,
            _read_messages(order.messages),
            instructions=instructions,
            tools=tuple([ToolDefinition(tool.name, tool.description, tool.parameters) for tool in order.tools]),
            temperature=order.temperature,
            max_output_tokens=order.max_tokens,
        )
        for attempt in range(self._retries + 1):
            try:
                with fail_after(self._seconds):
                    return await self._answer(request)
            except (builtins.TimeoutError, ProviderError) as error:
                if attempt == self._retries or not isinstance(error, builtins.TimeoutError | Unavailable):
                    raise self._translate_error(error) from error
        raise AssertionError("the last attempt returns or raises")

    def _translate_error(self, error: builtins.TimeoutError | ProviderError) -> LLMError:
        match error:
            case RateLimited():
                return RateLimitError(error.message, error.retry_after)
            case BadOutput():
                return InvalidResponseError(error.message)
            case ProviderError():
                return LLMError(error.message)
            case _:
                return TimeoutError(f"the model did not answer within {self._seconds:g} s, {self._retries + 1} times")

    async def _answer(self, request: ModelRequest) -> LLMResponse:
        items: list[Item] = []
        end = TurnEnded()
        async with aclosing(self.provider.stream(request)) as events:
            async for event in events:
                if isinstance(event, ItemDone):
                    items.append(event.item)
                elif isinstance(event, TurnEnded):
                    end = event
        return _response(items, end)

    async def close(self) -> None:
        await self.provider.close()


class GeminiAdapter(ProviderAdapter):
    """Gemini, configured by the environment: GEMINI_API_KEY, and optionally GEMINI_MODEL and LLM_TIMEOUT.

    Raises `InvalidRequest` without a key.
    """

    def __init__(
        self,
        api_key: str | None = None,
        model: str | None = None,
        *,
        base_url: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        key = api_key or environment.get("GEMINI_API_KEY")
        if not key:
            raise InvalidRequest("Gemini needs a key: set GEMINI_API_KEY, or use a model without one, such as `local`")
        try:
            seconds = float(environment.get("LLM_TIMEOUT", SECONDS))
        except ValueError:
            raise InvalidRequest("LLM_TIMEOUT must be a number of seconds", param="LLM_TIMEOUT") from None
        gemini = Gemini(api_key=key) if base_url is None else Gemini(base_url, api_key=key)
        super().__init__(gemini, model or environment.get("GEMINI_MODEL", MODEL), seconds=seconds)


class AdapterProvider:
    """An adapter as a provider, so that a custom adapter can drive decisions."""

    name = "adapter"

    def __init__(self, adapter: LLMAdapter) -> None:
        self._adapter = adapter

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        order = _order(request)
        try:
            said = await self._adapter.generate(
                order.messages, order.tools, order.temperature, order.max_tokens, instructions=request.instructions
            )
        except LLMError as error:
            raise _provider_error(error) from error
        if said.finish_reason == "error":
            raise BadOutput("the adapter says that the model failed")
        for item in _make_items(said):
            yield ItemStarted(item)
            yield ItemDone(item)
        usage = said.usage
        used = None if usage is None else Usage(usage.prompt_tokens, usage.completion_tokens)
        yield TurnEnded("length" if said.finish_reason == "max_tokens" else "stop", used)

    async def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo(self.name),)

    async def close(self) -> None:
        pass


def declarations(tools: Sequence[ToolDefinition]) -> tuple[ToolDeclaration, ...]:
    return tuple([ToolDeclaration(tool.name, tool.description, tool.parameters or {}) for tool in tools])


def _provider_error(error: LLMError) -> ProviderError:
    match error:
        case RateLimitError():
            return RateLimited(error.message, retry_after=error.retry_after)
        case InvalidResponseError() | ToolNotFoundError():
            return BadOutput(error.message)
        case _:
            return Unavailable(error.message)


def _response(items: Sequence[Item], end: TurnEnded) -> LLMResponse:
    text = "".join([item.text for item in items if isinstance(item, Message)])
    calls = tuple([_call(item) for item in items if isinstance(item, CallItem) and item.status == "completed"])
    used, finish = end.usage, _FINISHES[end.finish]
    usage = None if used is None else TokenUsage(used.input_tokens, used.output_tokens, used.total_tokens)
    if finish == "stop" and calls:
        finish = "tool_calls"
    elif finish == "stop" and not text:
        raise InvalidResponseError("the model ended its turn without text and without a call")
    return LLMResponse(finish, text or None, calls or None, usage)


def _call(item: CallItem) -> FunctionCall:
    if item.name not in ALLOWED_TOOLS:
        raise ToolNotFoundError(item.name)
    try:
        return FunctionCall(item.name, parse_arguments(item.arguments), item.call_id)
    except ValueError as error:
        raise InvalidResponseError(str(error), item.arguments) from None


def _read_messages(messages: Sequence[LLMMessage]) -> tuple[Item, ...]:
    items: list[Item] = []
    open_calls: list[FunctionCall] = []
    for message in messages:
        match message:
            case LLMMessage(function_response=FunctionResponse() as response):
                call = next((call for call in open_calls if response.id in ("", call.id) and call.name == response.name), None)
                call_id = response.id if call is None else call.id
                open_calls = [other for other in open_calls if other is not call]
                items.append(FunctionCallOutput(call_id, to_json(response.response)))
            case LLMMessage(role="user"):
                items.append(user(message.content or ""))
            case _:
                if message.content:
                    items.append(assistant(message.content))
                if (made := message.function_call) is not None:
                    open_calls.append(made)
                    arguments = to_json(made.arguments)
                    items.append(CallItem(made.id, made.name, arguments, id=made.id))
    return tuple(items)


def _order(request: ModelRequest) -> LLMRequest:
    """The request in the form of an adapter. Items that are neither text, call nor result are dropped."""
    names = {item.call_id: item.name for item in request.items if isinstance(item, CallItem)}
    messages = [message for item in request.items if (message := _message(item, names)) is not None]
    tools = declarations([tool for tool in request.tools if isinstance(tool, ToolDefinition)])
    return LLMRequest(
        tuple(messages),
        tools,
        DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        MAX_RESPONSE_TOKENS if request.max_output_tokens is None else request.max_output_tokens,
    )


def _message(item: Item, names: Mapping[str, str]) -> LLMMessage | None:
    match item:
        case Message(role="assistant") if item.text:
            return LLMMessage("assistant", item.text)
        case Message() if item.text:
            return LLMMessage("user", item.text)
        case CallItem():
            return LLMMessage("assistant", function_call=_call(item)) if item.name in ALLOWED_TOOLS else None
        case FunctionCallOutput(call_id, output) if names.get(call_id) in ALLOWED_TOOLS:
            return LLMMessage("function", function_response=FunctionResponse(names[call_id], _object(text_of(output)), call_id))
        case _:
            return None


def _object(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        return {"success": False, "data": None, "error": text, "error_code": "TOOL_EXECUTION_ERROR"}


def _make_items(response: LLMResponse) -> list[Message | CallItem]:
    status: ItemStatus = "incomplete" if response.finish_reason == "max_tokens" else "completed"
    items: list[Message | CallItem] = []
    if response.content:
        items.append(msgspec.structs.replace(assistant(response.content, id=random_id("msg")), status=status))
    for call in response.function_calls or ():
        arguments = to_json(call.arguments)
        items.append(CallItem(call.id, call.name, arguments, id=random_id("fc"), status=status))
    return items
