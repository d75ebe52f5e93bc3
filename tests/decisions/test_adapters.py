"""`LLMAdapter`: our providers as adapters, Gemini over real HTTP, and somebody's own adapter behind decisions."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.decisions.world import Actor, answer, world

from mainspring.core.errors import InvalidRequest, RateLimited
from mainspring.core.items import FunctionCall as CallItem
from mainspring.core.items import FunctionCallOutput, Json, Usage, text_of
from mainspring.core.model_request import ModelRequest
from mainspring.providers.scripted import Turn, call, calls, fail, refuse, say, stall
from mainspring_tasks.adapters import (
    AdapterProvider,
    GeminiAdapter,
    InvalidResponseError,
    LLMError,
    ProviderAdapter,
    RateLimitError,
    TimeoutError,
    ToolNotFoundError,
    declarations,
)
from mainspring_tasks.decision_types import (
    FunctionCall,
    FunctionResponse,
    LLMMessage,
    LLMResponse,
    Outcome,
    TokenUsage,
    ToolDeclaration,
)
from mainspring_tasks.task_tools import TOOLS

HELLO = (LLMMessage("user", "Hello"),)
DECLARED = declarations(TOOLS)


@pytest.mark.requirement("B7", "B8")
async def test_a_provider_is_drained_cold_and_short() -> None:
    actor = Actor(say("Hi!", usage=Usage(3, 4)))
    response = await ProviderAdapter(actor, "m").generate(HELLO, DECLARED, instructions="Be kind.")
    assert response == LLMResponse("stop", "Hi!", None, TokenUsage(3, 4, 7))
    (request,) = actor.requests
    assert (request.temperature, request.max_output_tokens, request.model, request.instructions) == (0.0, 1024, "m", "Be kind.")
    assert [getattr(tool, "name", "") for tool in request.tools] == [tool.name for tool in TOOLS]


@pytest.mark.requirement("B8", "S10")
async def test_calls_have_ids_and_arguments_that_fit() -> None:
    adapter = ProviderAdapter(Actor(calls(call("list_tasks"), call("list_tasks", status="pending"))), "m")
    response = await adapter.generate(HELLO, DECLARED, 0.5, 99)
    assert (response.finish_reason, response.content) == ("tool_calls", None)
    first, second = response.function_calls or ()
    assert (first.name, first.arguments, second.arguments) == ("list_tasks", {}, {"status": "pending"})
    assert first.id != second.id


async def test_a_conversation_with_calls_reaches_the_provider_as_it_was() -> None:
    made = FunctionCall("add_task", {"description": "Milk"}, "call_1")
    messages = (
        *HELLO,
        LLMMessage("assistant", "Adding it.", made),
        LLMMessage("function", function_response=FunctionResponse("add_task", {"success": True})),
    )
    actor = Actor(say("Done."))
    await ProviderAdapter(actor, "m").generate(messages, ())
    *_, called, output = actor.requests[0].items
    assert isinstance(called, CallItem)
    assert isinstance(output, FunctionCallOutput)
    assert (called.name, json.loads(called.arguments), called.call_id) == ("add_task", {"description": "Milk"}, output.call_id)
    assert json.loads(text_of(output.output)) == {"success": True}


@pytest.mark.requirement("B8")
@pytest.mark.parametrize(
    ("cue", "response"),
    [
        (say("Hel", finish="length"), LLMResponse("max_tokens", "Hel")),
        (say("", finish="content_filter"), LLMResponse("error")),
        (calls(call("list_tasks"), finish="length"), LLMResponse("max_tokens")),
    ],
)
async def test_an_answer_that_is_not_whole_says_so(cue: Turn, response: LLMResponse) -> None:
    got = await ProviderAdapter(Actor(cue), "m").generate(HELLO, DECLARED)
    assert (got.finish_reason, got.content, got.function_calls) == (response.finish_reason, response.content, None)


@pytest.mark.parametrize(
    ("cues", "kind", "code"),
    [
        ((fail(RateLimited("slow down", retry_after=9)),), RateLimitError, "RATE_LIMITED"),
        ((fail("provider_unavailable"), fail("provider_unavailable")), LLMError, "LLM_ERROR"),
        ((fail("provider_unauthorized"),), LLMError, "LLM_ERROR"),
        ((fail("provider_bad_output"),), InvalidResponseError, "INVALID_RESPONSE"),
        ((stall(), stall()), TimeoutError, "TIMEOUT"),
        ((call("drop_table"),), ToolNotFoundError, "TOOL_NOT_FOUND"),
        ((call("add_task", title="x"),), InvalidResponseError, "INVALID_RESPONSE"),
        ((say(""),), InvalidResponseError, "INVALID_RESPONSE"),
    ],
)
async def test_failures_have_names(cues: tuple[Turn, ...], kind: type[LLMError], code: str) -> None:
    actor = Actor(*cues)
    with pytest.raises(kind) as failed:
        await ProviderAdapter(actor, "m", seconds=0.05).generate(HELLO, DECLARED)
    assert (type(failed.value), failed.value.code) == (kind, code)
    actor.assert_done()
    if isinstance(failed.value, RateLimitError):
        assert failed.value.retry_after == 9
    if isinstance(failed.value, ToolNotFoundError):
        assert failed.value.tool_name == "drop_table"


async def test_a_passing_failure_is_tried_once_more() -> None:
    actor = Actor(fail("provider_unavailable"), say("Hi!"))
    assert (await ProviderAdapter(actor, "m").generate(HELLO, ())).content == "Hi!"
    slow = Actor(stall(), say("Hi!"))
    assert (await ProviderAdapter(slow, "m", seconds=0.05).generate(HELLO, ())).content == "Hi!"


@asynccontextmanager
async def gemini(*chunks: Json, status: int = 200) -> AsyncIterator[tuple[str, list[Json]]]:
    """A server that speaks Gemini's format, and what it was asked."""
    asked: list[Json] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        asked.append({"path": request.path, "key": request.headers.get("x-goog-api-key"), **(await request.json())})
        if status != 200:
            error = {"error": {"code": status, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}
            return web.json_response(error, status=status, headers={"retry-after": "30"})
        lines = "".join([f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks])
        return web.Response(body=lines.encode(), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/{tail:.*}", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def candidate(finish: str | None = "STOP", *parts: Json) -> Json:
    fields: Json = {"content": {"role": "model", "parts": list(parts)}}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 5, "totalTokenCount": 16}
    return {"candidates": [fields | ({} if finish is None else {"finishReason": finish})], "usageMetadata": usage}


@pytest.mark.requirement("D50")
async def test_gemini_is_told_the_instructions_as_such_and_results_as_the_users() -> None:
    made = FunctionCall("list_tasks", {}, "call_1")
    history = (
        *HELLO,
        LLMMessage("assistant", function_call=made),
        LLMMessage("function", function_response=FunctionResponse("list_tasks", {"success": True, "data": []}, "call_1")),
    )
    async with gemini(candidate("STOP", {"text": "Nothing "}, {"text": "to do."})) as (url, asked):
        adapter = GeminiAdapter("secret", base_url=url, environment={})
        response = await adapter.generate(history, DECLARED, instructions="Be kind.")
        await adapter.close()
    assert response == LLMResponse("stop", "Nothing to do.", None, TokenUsage(11, 5, 16))
    (body,) = asked
    assert (body["key"], body["path"]) == ("secret", "/v1beta/models/gemini-2.0-flash:streamGenerateContent")
    assert body["systemInstruction"] == {"parts": [{"text": "Be kind."}]}
    assert [turn["role"] for turn in body["contents"]] == ["user", "model", "user"]
    assert body["contents"][1]["parts"][0]["functionCall"]["name"] == "list_tasks"
    assert body["contents"][2]["parts"][0]["functionResponse"]["name"] == "list_tasks"
    assert (body["generationConfig"]["temperature"], body["generationConfig"]["maxOutputTokens"]) == (0.0, 1024)
    assert len(body["tools"][0]["functionDeclarations"]) == 5


async def test_gemini_calls_are_calls_and_its_limits_are_errors() -> None:
    call_part = {"functionCall": {"name": "add_task", "args": {"description": "Milk"}}}
    async with gemini(candidate("STOP", call_part)) as (url, _):
        adapter = GeminiAdapter("k", base_url=url, environment={"GEMINI_MODEL": "gemini-flash-latest"})
        response = await adapter.generate(HELLO, DECLARED)
        await adapter.close()
    assert response.finish_reason == "tool_calls"
    (made,) = response.function_calls or ()
    assert (made.name, made.arguments, bool(made.id)) == ("add_task", {"description": "Milk"}, True)
    async with gemini(candidate("MAX_TOKENS", {"text": "Hel"})) as (url, _):
        adapter = GeminiAdapter("k", base_url=url, environment={})
        assert (await adapter.generate(HELLO, ())).finish_reason == "max_tokens"
        await adapter.close()
    async with gemini(candidate("SAFETY")) as (url, _):
        adapter = GeminiAdapter("k", base_url=url, environment={})
        assert (await adapter.generate(HELLO, ())).finish_reason == "error"
        await adapter.close()
    async with gemini(status=429) as (url, asked):
        adapter = GeminiAdapter("k", base_url=url, environment={})
        with pytest.raises(RateLimitError) as limited:
            await adapter.generate(HELLO, ())
        await adapter.close()
    assert (limited.value.retry_after, len(asked)) == (30.0, 1)


@pytest.mark.requirement("D50")
def test_without_a_key_one_is_told_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="set GEMINI_API_KEY, or use a model without one, such as `local`"):
        GeminiAdapter(environment={})
    with pytest.raises(InvalidRequest, match="LLM_TIMEOUT must be a number"):
        GeminiAdapter("k", environment={"LLM_TIMEOUT": "soon"})


class Own:
    """Somebody's own adapter."""

    def __init__(self, *answers: LLMResponse | LLMError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Sequence[LLMMessage], Sequence[ToolDeclaration], str | None]] = []

    async def generate(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[ToolDeclaration],
        temperature: float = 0.0,
        max_tokens: int = 1024,
        *,
        instructions: str | None = None,
    ) -> LLMResponse:
        assert (temperature, max_tokens) == (0.0, 1024)
        self.asked.append((messages, tools, instructions))
        said = self.answers.pop(0)
        if isinstance(said, LLMError):
            raise said
        return said


@pytest.mark.requirement("B12", "B13")
async def test_somebodys_own_adapter_can_make_the_decisions(tmp_path: Path) -> None:
    own = Own(
        LLMResponse("tool_calls", None, (FunctionCall("add_task", {"description": "Milk"}),), TokenUsage(1, 2, 3)),
        LLMResponse("stop", answer("Added.", "CREATE_TASK").say),
    )
    async with world(tmp_path, provider=AdapterProvider(own), constitution="Be kind.") as w:
        made = await w.say("add milk")
        assert (made.decision.decision_type, made.decision.response_text) == ("INVOKE_TOOL", "Added.")
        assert await w.names() == ["Milk"]
    first, second = own.asked
    assert [message.role for message in first[0]] == ["user"]
    assert ([tool.name for tool in first[1]], first[2]) == ([tool.name for tool in TOOLS], "Be kind.")
    assert [message.role for message in second[0]] == ["user", "assistant", "function"]
    result = second[0][-1].function_response
    assert result is not None
    assert (result.name, result.response["success"]) == ("add_task", True)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (RateLimitError("slow down", 3), Outcome.RATE_LIMITED),
        (TimeoutError("too slow"), Outcome.RESPONSE_GENERATION),
        (InvalidResponseError("???"), Outcome.RESPONSE_GENERATION),
        (ToolNotFoundError("shell"), Outcome.RESPONSE_GENERATION),
        (LLMResponse("error"), Outcome.RESPONSE_GENERATION),
        (LLMResponse("max_tokens", "Hel"), Outcome.RESPONSE_GENERATION),
        (LLMResponse("stop", "Plain words."), Outcome.RESPONSE_GIVEN),
    ],
)
async def test_whatever_an_adapter_does_is_a_decision(said: LLMResponse | LLMError, outcome: Outcome, tmp_path: Path) -> None:
    async with world(tmp_path, provider=AdapterProvider(Own(said))) as w:
        made = await w.say("hello")
        assert (made.decision.decision_type, made.report.outcome) == ("RESPOND_ONLY", outcome)


async def test_a_refusal_of_the_models_is_no_text_for_an_adapter() -> None:
    with pytest.raises(InvalidResponseError):
        await ProviderAdapter(Actor(refuse("No.")), "m").generate(HELLO, ())


def test_types_of_the_port_are_kept() -> None:
    provider = AdapterProvider(Own())
    stream = provider.stream(ModelRequest("r", "m", ()))
    assert isinstance(stream, AsyncGenerator)
