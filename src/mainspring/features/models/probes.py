"""What a model can really do, found out by asking it: `examine` puts one small question after the other.

Every question is answered by what comes back, never by what a backend says of itself. Together they use whatever backends are
known to refuse or to answer in ways of their own, so that an adapter learns it here and not in somebody's run. A model that
cannot answer at all is not asked the rest.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from time import monotonic
from typing import Final, Literal

import msgspec
from anyio import fail_after
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    MainspringError,
    ProviderError,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import Delta, ItemDone, TurnEnded
from mainspring.core.ids import random_id
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Json,
    Message,
    Reasoning,
    ToolDefinition,
    Usage,
    assistant,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.core.tokens import tokens_of_text
from mainspring.features.models.model_choice import CALLS, ENDING, SCHEMAS
from mainspring.ports import Provider

Verdict = Literal["ok", "weak", "failed"]

# Nobody has been trained on these names: a model calls them by reading what it was sent.
LEVEL = ToolDefinition(
    "read_quorl_level",
    "Reads the quorl level of one city. Only this tool knows it.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
COUNT = ToolDefinition("count_quorls", "Counts all quorls there are.", {"type": "object", "properties": {}})
RICH = ToolDefinition(
    "set_quorl_level",
    "Sets the quorl level of one city.",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z]", "maxLength": 40, "examples": ["Oslo"]},
            "level": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100, "default": 5},
            "notes": {"type": "object", "patternProperties": {"^n": {"type": "string"}}, "propertyNames": {"maxLength": 9}},
        },
        "required": ["city", "level", "notes"],
        "additionalProperties": False,
    },
    strict=True,
)
PLACE: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}},
    "required": ["city", "code"],
    "additionalProperties": False,
}
LEVEL_THERE: Final = "7351"
PASSWORD: Final = "Zanzibar"
LONG_TOKENS: Final = 5_000


class ProbeResult(Struct, frozen=True):
    """What one question showed. `weak` is something to know, not to mend; `advice` says what to do. With `is_outage` it is the
    backend that failed, which says nothing of the model."""

    question: str
    verdict: Verdict
    detail: str
    advice: str = ""
    is_outage: bool = False


class ProbeAnswer(Struct, frozen=True):
    """One turn, as far as the questions need it. `first` and `last` are the seconds until its first piece and its end."""

    items: tuple[Item, ...]
    deltas: int
    usage: Usage | None
    first: float
    last: float
    is_cut: bool = False

    @property
    def text(self) -> str:
        return "".join([item.text for item in self.items if isinstance(item, Message)])

    @property
    def calls(self) -> list[FunctionCall]:
        return [item for item in self.items if isinstance(item, FunctionCall)]

    @property
    def thinks(self) -> bool:
        return any(isinstance(item, Reasoning) for item in self.items)


Judge = Callable[[ProbeAnswer], ProbeResult]


async def examine(provider: Provider, model: str, *, seconds: float = 120.0) -> AsyncIterator[ProbeResult]:
    """The findings, as they come. Each question may take that many seconds; nothing is raised."""
    sky = _request(model, "Reply with one word: what colour is a clear sky at noon?")
    try:
        try:
            answer = await _ask(provider, sky, seconds)
        except BadOutput:  # it may have shown how the next one is to be read
            answer = await _ask(provider, sky, seconds)
        results = [_judge_answer(answer), _judge_end(answer), _judge_streaming(answer), _judge_usage(answer)]
    except (MainspringError, TimeoutError) as error:
        results = [_report("answers", error)]
        if not isinstance(error, BadOutput):
            yield results[0]
            return
    # Whoever answers badly may do better with other questions, and shows why.
    verdicts: dict[str, Verdict] = {}
    for result in results:
        verdicts[result.question] = result.verdict
        yield result
    calls: tuple[Item, ...] = ()
    for question, request, judge in _list_questions(model):
        try:
            answer = await _ask(provider, request, seconds)
            result = judge(answer)
            calls = calls or tuple(answer.items if answer.calls else ())
        except (MainspringError, TimeoutError) as error:
            result = _report(question, error)
        verdicts[result.question] = result.verdict
        yield result
    for result in [await _judge_results(provider, model, calls, seconds), await _judge_cancel(provider, model, seconds)]:
        verdicts[result.question] = result.verdict
        yield result
    yield _sum_up(verdicts)


def _list_questions(model: str) -> list[tuple[str, ModelRequest, Judge]]:
    """All that can be asked in one turn. What backends refuse is spread over them: a turn is adapted a few times at most."""
    ask = _request
    level, both = (
        "What is the quorl level of Oslo?",
        "What are the quorl levels of Oslo and of Rome? Call the tool for both at once.",
    )
    forced, required = ToolChoice("required", name=LEVEL.name), ToolChoice("required")
    form = {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}
    place = "Name one city, and for its code two capital letters, a hyphen and four digits."
    legs = "How many legs do three spiders have together? Think first, then answer."
    return [
        ("thinks", replace(ask(model, legs), reasoning={"effort": "low"}, top_p=0.9), _judge_thinking),
        (
            CALLS.question,
            replace(ask(model, level), tools=(LEVEL,), tool_choice=forced, parallel_tool_calls=False, temperature=0.0),
            _judge_call,
        ),
        ("calls in parallel", replace(ask(model, both), tools=(LEVEL,), tool_choice=required), _judge_parallel_calls),
        (
            "calls without arguments",
            replace(ask(model, "How many quorls are there?"), tools=(COUNT,), tool_choice=required),
            _judge_bare_call,
        ),
        (
            "takes rich schemas",
            replace(ask(model, "Set the quorl level of Oslo to 9."), tools=(RICH,), tool_choice=required),
            _judge_rich_call,
        ),
        (SCHEMAS.question, replace(ask(model, place), text={"format": form}), _judge_schema),
        ("schema with tools", replace(ask(model, place), text={"format": form}, tools=(LEVEL,)), _judge_schema_with_tools),
        ("writes JSON", replace(ask(model, f"{place} As JSON."), text={"format": {"type": "json_object"}}), _judge_json),
        ("takes any history", _tell_history(model), _judge_history),
        ("reads long prompts", _tell_password(model), _judge_window),
    ]


def _tell_history(model: str) -> ModelRequest:
    """A conversation that another vendor's model began, with an empty output, and a word of the developer's in between."""
    call = FunctionCall(call_id="functions.read_quorl_level:0", name=LEVEL.name, arguments='{"city": "Bonn"}', id="fc_1")
    items = (
        user("What is the quorl level of Bonn?", id="msg_1"),
        call,
        FunctionCallOutput(call_id=call.call_id, output="", id="fco_1"),
        assistant("It has none.", id="msg_2"),
        Message(role="developer", content=(InputText("Answer in one word."),), id="msg_3"),
        user("Say hello.", id="msg_4"),
    )
    return replace(_request(model, ""), items=items, instructions="Be friendly.")


def _tell_password(model: str) -> ModelRequest:
    filler = "tick tock " * (LONG_TOKENS // 2)
    return _request(model, f"The password is {PASSWORD}.\n{filler}\nReply with the password of the first line, and nothing else.")


async def _ask(provider: Provider, request: ModelRequest, seconds: float) -> ProbeAnswer:
    items: list[Item] = []
    ended: TurnEnded | None = None
    deltas, begun, first, last = 0, monotonic(), 0.0, 0.0
    with fail_after(seconds):
        async with aclosing(provider.stream(request)) as events:
            async for event in events:
                first = first or monotonic() - begun
                match event:
                    case ItemDone(item):
                        items.append(item)
                    case TurnEnded():
                        ended, last = event, monotonic() - begun
                    case _ if isinstance(event, Delta):
                        deltas += 1
    if ended is None:
        raise BadOutput(f"provider `{provider.name}` ended its stream without ending the turn")
    return ProbeAnswer(tuple(items), deltas, ended.usage, first, last, ended.finish == "length")


def _request(model: str, text: str) -> ModelRequest:
    return ModelRequest(run_id=random_id("resp"), model=model, items=(user(text, id="msg_1"),), max_output_tokens=400)


def _judge_answer(answer: ProbeAnswer) -> ProbeResult:
    said = _shorten(answer.text)
    if not said:
        advice = "Is it a chat model? Try another one, or raise its output limit."
        return ProbeResult("answers", "failed", "nothing but silence", advice)
    if "blue" not in said.lower():
        return ProbeResult("answers", "weak", said, "The sky is blue: do not trust what it says, or use a larger model.")
    return ProbeResult("answers", "ok", said)


def _judge_end(answer: ProbeAnswer) -> ProbeResult:
    if not answer.is_cut:
        return ProbeResult(ENDING.question, "ok", "by itself")
    advice = "It talks on until it is cut off: bound its output, or use a model that was trained to converse."
    return ProbeResult(ENDING.question, "failed", "one word was asked for, and it had to be cut off", advice)


def _judge_streaming(answer: ProbeAnswer) -> ProbeResult:
    if answer.deltas > 1:
        return ProbeResult("streams", "ok", f"{answer.deltas} pieces")
    return ProbeResult("streams", "weak", "in one piece", "Answers appear all at once; check whether a proxy holds them back.")


def _judge_usage(answer: ProbeAnswer) -> ProbeResult:
    if answer.usage is not None and answer.usage.input_tokens:
        return ProbeResult("counts tokens", "ok", f"{answer.usage.input_tokens} in, {answer.usage.output_tokens} out")
    return ProbeResult("counts tokens", "weak", "no usage", "Tokens are estimated, so budgets are approximate.")


def _judge_thinking(answer: ProbeAnswer) -> ProbeResult:
    """Also how fast it is, because this answer is the longest."""
    tokens = answer.usage.output_tokens if answer.usage is not None else tokens_of_text(answer.text)
    rate = f"{tokens / (answer.last - answer.first):.0f} tokens/s" if answer.last > answer.first + 0.05 else "at once"
    speed = f"first token after {answer.first:.2g} s, {rate}"
    return ProbeResult("thinks", "ok", f"shows its reasoning; {speed}" if answer.thinks else f"no reasoning shown; {speed}")


def _judge_call(answer: ProbeAnswer) -> ProbeResult:
    question = CALLS.question
    if not answer.calls:
        return ProbeResult(question, "failed", "answered in words", "Use a model that can call tools, or a server option for it.")
    call = answer.calls[0]
    given = _read_object(call.arguments)
    if given is None:
        return ProbeResult(question, "failed", f"broken arguments {call.arguments[:40]}", "Use a larger or newer model.")
    if call.name != LEVEL.name or not isinstance(given.get("city"), str):
        return ProbeResult(question, "failed", f"{call.name}({call.arguments[:40]})", "Use a larger or newer model.")
    return ProbeResult(question, "ok", f"{call.name}({call.arguments[:40]})")


def _judge_parallel_calls(answer: ProbeAnswer) -> ProbeResult:
    if len(answer.calls) > 1:
        return ProbeResult("calls in parallel", "ok", f"{len(answer.calls)} calls")
    return ProbeResult("calls in parallel", "weak", f"{len(answer.calls)} call", "Several calls take several turns.")


def _judge_bare_call(answer: ProbeAnswer) -> ProbeResult:
    question = "calls without arguments"
    if any(call.name == COUNT.name and _read_object(call.arguments or "{}") is not None for call in answer.calls):
        return ProbeResult(question, "ok", f"{COUNT.name}()")
    return ProbeResult(question, "weak", "no such call", "Give each tool a parameter, or use a larger model.")


def _judge_rich_call(answer: ProbeAnswer) -> ProbeResult:
    question = "takes rich schemas"
    given = [_read_object(call.arguments) for call in answer.calls if call.name == RICH.name]
    if given and given[0] is not None and {"city", "level"} <= given[0].keys():
        return ProbeResult(question, "ok", f"{RICH.name}({answer.calls[0].arguments[:40]})")
    return ProbeResult(
        question, "weak", "no call that fits", "Keep the schemas of tools simple; calls that do not fit are refused."
    )


def _judge_schema(answer: ProbeAnswer) -> ProbeResult:
    question, advice = SCHEMAS.question, "Structured output will fail now and then; use a backend that constrains it."
    given = _read_object(answer.text)
    if given is None:
        return ProbeResult(question, "failed", f"no JSON: {_shorten(answer.text)}", advice)
    if set(given) != {"city", "code"} or not re.fullmatch(PLACE["properties"]["code"]["pattern"], str(given["code"])):
        return ProbeResult(question, "failed", f"another shape: {_shorten(answer.text)}", advice)
    return ProbeResult(question, "ok", _shorten(answer.text))


def _judge_schema_with_tools(answer: ProbeAnswer) -> ProbeResult:
    given = _read_object(answer.text)
    if answer.calls or (given is not None and {"city", "code"} <= given.keys()):
        return ProbeResult("schema with tools", "ok", "a call" if answer.calls else _shorten(answer.text))
    return ProbeResult(
        "schema with tools", "weak", _shorten(answer.text), "Ask for structured output in a request without tools."
    )


def _judge_json(answer: ProbeAnswer) -> ProbeResult:
    if _read_object(answer.text) is not None:
        return ProbeResult("writes JSON", "ok", _shorten(answer.text))
    return ProbeResult("writes JSON", "weak", _shorten(answer.text), "Ask by a schema in place of `json_object`.")


def _judge_history(answer: ProbeAnswer) -> ProbeResult:
    if answer.text.strip() or answer.calls:
        return ProbeResult("takes any history", "ok", _shorten(answer.text))
    return ProbeResult("takes any history", "weak", "no answer", "Do not move conversations of other models to it.")


def _judge_window(answer: ProbeAnswer) -> ProbeResult:
    question, read = "reads long prompts", 0 if answer.usage is None else answer.usage.input_tokens
    if PASSWORD.lower() in answer.text.lower():
        return ProbeResult(question, "ok", f"{read or LONG_TOKENS:,} tokens")
    advice = "Give it a larger context (`num_ctx` or `OLLAMA_CONTEXT_LENGTH` of Ollama, the context length of others)."
    if LONG_TOKENS / 5 < read < LONG_TOKENS:
        return ProbeResult(
            question, "failed", f"it was sent over {LONG_TOKENS:,} tokens and read {read:,}, without a word", advice
        )
    return ProbeResult(question, "weak", f"forgot the beginning of {read or LONG_TOKENS:,} tokens", advice)


async def _judge_results(provider: Provider, model: str, calls: tuple[Item, ...], seconds: float) -> ProbeResult:
    """Whether it takes the output of a tool, answers by it, and goes on from there."""
    question = "uses results"
    made = calls or (FunctionCall(call_id="call_1", name=LEVEL.name, arguments='{"city": "Oslo"}', id="fc_1"),)
    outputs = [
        FunctionCallOutput(call_id=call.call_id, output=LEVEL_THERE, id=f"fco_{place}")
        for place, call in enumerate(made)
        if isinstance(call, FunctionCall)
    ]
    asked = replace(_request(model, "What is the quorl level of Oslo?"), tools=(LEVEL, COUNT))
    asked = replace(asked, items=(*asked.items, *made, *outputs))
    try:
        answer = await _ask(provider, asked, seconds)
        further = (*asked.items, *answer.items, user("And that of Rome?", id="msg_9"))
        if not answer.calls:
            await _ask(provider, replace(asked, items=further), seconds)
    except (MainspringError, TimeoutError) as error:
        return _report(question, error)
    if LEVEL_THERE in re.sub(r"[^\w]", "", answer.text):
        return ProbeResult(question, "ok", _shorten(answer.text))
    said = _shorten(answer.text) or "no answer"
    return ProbeResult(question, "weak", said, "It does not tell what the tool said; use a larger model for agents.")


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


def _sum_up(verdicts: dict[str, Verdict]) -> ProbeResult:
    """What of this product the model can serve."""
    able = [use for use, needs in _NEEDS.items() if all(verdicts.get(need) == "ok" for need in needs)]
    unable = [use for use in _NEEDS if use not in able]
    if not unable:
        return ProbeResult("serves", "ok", ", ".join(able))
    return ProbeResult("serves", "weak", ", ".join(able) or "nothing for sure", f"Not for {', '.join(unable)}.")


def _shorten(text: str) -> str:
    return " ".join(text.split())[:60]


def _read_object(text: str) -> Json | None:
    try:
        return msgspec.json.decode(text, type=dict)
    except ValueError:
        return None


def _report(question: str, error: BaseException) -> ProbeResult:
    return ProbeResult(question, "failed", _describe(error), _advice(error), is_outage=not isinstance(error, BadOutput))


def _describe(error: BaseException) -> str:
    return error.message if isinstance(error, MainspringError) else "it took too long"


def _advice(error: BaseException) -> str:
    match error:
        case Unauthorized():
            return "Check the key: its variable, its project, and whether it is still valid."
        case RateLimited():
            return "Wait, or raise the limit at the vendor."
        case ContextOverflow():
            return "Give it a larger context, or keep to short conversations."
        case TimeoutError():
            return "Is the model loaded? If it is only slow, raise --seconds."
        case Unavailable():
            return "Is the server running, is the address right, is the model loaded?"
        case ProviderError():
            return "Check the model's name and the address; the message above is the backend's own."
        case _:
            return ""


_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "conversation": ("answers", "takes any history"),
    "tools and agents": (CALLS.question, "uses results"),
    "structured output": (SCHEMAS.question,),
    "decisions and tasks": ("answers", ENDING.question, CALLS.question, "takes rich schemas", "uses results", SCHEMAS.question),
    "long conversations": ("reads long prompts",),
}
