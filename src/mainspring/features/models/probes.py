"""What a model can really do, found out by asking it: `examine` puts one small question after the other.

Every question is answered by what comes back, never by what a backend says of itself. A model that cannot answer at all is not
asked the rest.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Literal

import msgspec
from anyio import fail_after
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import BadOutput, MainspringError, ProviderError, RateLimited, Unauthorized, Unavailable
from mainspring.core.events import Delta, ItemDone, TurnEnded
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCall, Json, Message, ToolDefinition, Usage, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.ports import Provider

Verdict = Literal["ok", "weak", "failed"]

WEATHER = ToolDefinition(
    "get_weather",
    "Tells the weather in one city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


class ProbeResult(Struct, frozen=True):
    """What one question showed. `weak` is something to know, not to mend; `advice` says what to do."""

    question: str
    verdict: Verdict
    detail: str
    advice: str = ""


class ProbeAnswer(Struct, frozen=True):
    """One turn, as far as the questions need it."""

    text: str
    calls: tuple[FunctionCall, ...]
    deltas: int
    usage: Usage | None


async def examine(provider: Provider, model: str, *, seconds: float = 120.0) -> AsyncIterator[ProbeResult]:
    """The findings, as they come. Each question may take that many seconds; nothing is raised."""
    try:
        answer = await _ask(provider, _request(model, "Reply with one short sentence: what colour is the sky?"), seconds)
    except (MainspringError, TimeoutError) as error:
        yield ProbeResult("answers", "failed", _describe(error), _advice(error))
        return
    yield _judge_answer(answer)
    yield _judge_streaming(answer)
    yield _judge_usage(answer)
    one, both = "How is the weather in Oslo?", "How is the weather in Oslo and in Rome? Call the tool for both cities at once."
    forced, required = ToolChoice("required", name=WEATHER.name), ToolChoice("required")
    form = {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}
    place = replace(_request(model, "Name one city and its country."), text={"format": form})
    for question, request, judge in (
        ("calls a tool", replace(_request(model, one), tools=(WEATHER,), tool_choice=forced), _judge_call),
        ("calls in parallel", replace(_request(model, both), tools=(WEATHER,), tool_choice=required), _judge_parallel_calls),
        ("keeps to a schema", place, _judge_schema),
    ):
        try:
            yield judge(await _ask(provider, request, seconds))
        except (MainspringError, TimeoutError) as error:
            yield ProbeResult(question, "failed", _describe(error), _advice(error))
    yield await _judge_cancel(provider, model, seconds)


async def _ask(provider: Provider, request: ModelRequest, seconds: float) -> ProbeAnswer:
    texts: list[str] = []
    calls: list[FunctionCall] = []
    deltas = 0
    with fail_after(seconds):
        async with aclosing(provider.stream(request)) as events:
            async for event in events:
                match event:
                    case ItemDone(Message() as said):
                        texts.append(said.text)
                    case ItemDone(FunctionCall() as call):
                        calls.append(call)
                    case TurnEnded(usage=usage):
                        return ProbeAnswer("".join(texts), tuple(calls), deltas, usage)
                    case _ if isinstance(event, Delta):
                        deltas += 1
    raise BadOutput(f"provider `{provider.name}` ended its stream without ending the turn")


def _request(model: str, text: str) -> ModelRequest:
    return ModelRequest(run_id=random_id("resp"), model=model, items=(user(text, id="msg_1"),), max_output_tokens=400)


def _judge_answer(answer: ProbeAnswer) -> ProbeResult:
    if answer.text.strip():
        return ProbeResult("answers", "ok", " ".join(answer.text.split())[:60])
    advice = "Is it a chat model? Try another one, or raise its output limit."
    return ProbeResult("answers", "failed", "nothing but silence", advice)


def _judge_streaming(answer: ProbeAnswer) -> ProbeResult:
    if answer.deltas > 1:
        return ProbeResult("streams", "ok", f"{answer.deltas} pieces")
    return ProbeResult("streams", "weak", "in one piece", "Answers appear all at once; check whether a proxy holds them back.")


def _judge_usage(answer: ProbeAnswer) -> ProbeResult:
    if answer.usage is not None and answer.usage.input_tokens:
        return ProbeResult("counts tokens", "ok", f"{answer.usage.input_tokens} in, {answer.usage.output_tokens} out")
    return ProbeResult("counts tokens", "weak", "no usage", "Tokens are estimated, so budgets are approximate.")


def _judge_call(answer: ProbeAnswer) -> ProbeResult:
    question = "calls a tool"
    if not answer.calls:
        return ProbeResult(question, "failed", "answered in words", "Use a model that can call tools, or a server option for it.")
    call = answer.calls[0]
    try:
        given = msgspec.json.decode(call.arguments, type=dict[str, object])
    except ValueError:
        return ProbeResult(question, "failed", f"broken arguments {call.arguments[:40]}", "Use a larger or newer model.")
    if call.name != WEATHER.name or not isinstance(given.get("city"), str):
        return ProbeResult(question, "failed", f"{call.name}({call.arguments[:40]})", "Use a larger or newer model.")
    return ProbeResult(question, "ok", f"{call.name}({call.arguments[:40]})")


def _judge_parallel_calls(answer: ProbeAnswer) -> ProbeResult:
    if len(answer.calls) > 1:
        return ProbeResult("calls in parallel", "ok", f"{len(answer.calls)} calls")
    return ProbeResult("calls in parallel", "weak", f"{len(answer.calls)} call", "Several calls take several turns.")


def _judge_schema(answer: ProbeAnswer) -> ProbeResult:
    question, advice = "keeps to a schema", "Structured output will fail now and then; use a backend that constrains it."
    try:
        given = msgspec.json.decode(answer.text)
    except ValueError:
        return ProbeResult(question, "failed", f"no JSON: {answer.text[:40]}", advice)
    if not isinstance(given, dict) or set(given) != {"city", "country"}:
        return ProbeResult(question, "failed", f"another shape: {answer.text[:40]}", advice)
    return ProbeResult(question, "ok", " ".join(answer.text.split())[:60])


async def _judge_cancel(provider: Provider, model: str, seconds: float) -> ProbeResult:
    """Whether it answers on after an answer that was broken off."""
    question = "can be stopped"
    try:
        with fail_after(seconds):
            async with aclosing(provider.stream(_request(model, "Count from 1 to 100 in words."))) as events:
                await anext(events)
        await _ask(provider, _request(model, "Say hello."), seconds)
    except (MainspringError, TimeoutError, StopAsyncIteration) as error:
        return ProbeResult(question, "failed", _describe(error), "After a cancelled answer it does not answer: look at its log.")
    return ProbeResult(question, "ok", "answers again at once")


def _describe(error: BaseException) -> str:
    return error.message if isinstance(error, MainspringError) else "it took too long"


def _advice(error: BaseException) -> str:
    match error:
        case Unauthorized():
            return "Check the key: its variable, its project, and whether it is still valid."
        case RateLimited():
            return "Wait, or raise the limit at the vendor."
        case Unavailable() | TimeoutError():
            return "Is the server running, is the address right, is the model loaded?"
        case ProviderError():
            return "Check the model's name and the address; the message above is the backend's own."
        case _:
            return ""
