"""Chat Completions as OpenAI speaks it, with the reasoning that others have added."""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest

import msgspec
from openai import AsyncOpenAI
from openai.types import CompletionUsage
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from tests.providers.dialects import Ability, Asked, Failure, Line, Reading, Spoken, SpokenCall, Stop, Trouble
from tests.providers.dialects.published import check

from mainspring.core.ids import counting
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.http_client import Http
from mainspring.providers.turn import TurnBuilder

KEY = "sk-clockwork-key"
STOPS: dict[Stop, str] = {"stop": "stop", "length": "length", "safety": "content_filter"}
READ_STOPS: dict[str, Stop] = {"stop": "stop", "tool_calls": "stop", "length": "length", "content_filter": "safety"}
FAILURES: dict[Trouble, tuple[int, Json]] = {
    "rate_limited": (429, {"message": "Too many requests for this minute.", "type": "requests", "code": "rate_limit_exceeded"}),
    "overloaded": (503, {"message": "No capacity is left just now.", "type": "server_error", "code": None}),
    "overflow": (
        400,
        {"message": "The messages are too long.", "type": "invalid_request_error", "code": "context_length_exceeded"},
    ),
    "unauthorized": (401, {"message": "This key is wrong.", "type": "invalid_request_error", "code": "invalid_api_key"}),
    "not_found": (404, {"message": "There is no such model.", "type": "invalid_request_error", "code": "model_not_found"}),
    "bad_request": (400, {"message": "This cannot be.", "type": "invalid_request_error", "param": "messages", "code": None}),
    "server_error": (500, {"message": "Something broke here.", "type": "server_error", "code": None}),
}


def failure_of(trouble: Trouble) -> Failure:
    """An error as OpenAI words it, in either of its formats."""
    status, error = FAILURES[trouble]
    return Failure(status, msgspec.json.encode({"error": {"param": None, **error}}))


class ChatDialect:
    name = "chat"
    mime = "text/event-stream"
    abilities: frozenset[Ability] = frozenset(
        {
            "call_ids", "argument_pieces", "interleaved_calls", "thinking", "refusal", "safety_stop", "structured_output",
            "parallel_switch", "cached_tokens", "reasoning_tokens",
        }
    )  # fmt: skip

    def provider(self, url: str) -> Chat:
        return Chat(f"{url}/v1", api_key=KEY, new_id=counting())

    def reader(self) -> ChatCompletionReply:
        return ChatCompletionReply(TurnBuilder(counting()), Http("http://127.0.0.1/v1", api_key=None, headers=None, timeout=1.0))

    def frames(self, spoken: Spoken) -> list[bytes]:
        stop = "tool_calls" if spoken.calls and spoken.stop == "stop" else STOPS[spoken.stop]
        frames = [_frame(_chunk(delta)) for delta in _deltas(spoken)] + [_frame(_chunk({}, stop))]
        if spoken.usage is not None:
            frames.append(_frame({**_chunk({}), "choices": [], "usage": _usage(spoken.usage)}))
        return [*frames, b"data: [DONE]\n\n"]

    def failure(self, trouble: Trouble) -> Failure:
        return failure_of(trouble)

    def failure_within(self) -> bytes:
        return _frame({"error": {"message": "Something broke here.", "type": "server_error", "param": None, "code": None}})

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        assert (method, target) == ("POST", "/v1/chat/completions")
        assert (headers["Authorization"], headers["Content-Type"]) == (f"Bearer {KEY}", "application/json")
        # The published types have lost the name of a tool message, which the API takes and others want.
        told = [{key: value for key, value in message.items() if key != "name"} for message in body["messages"]]
        check(CompletionCreateParamsStreaming, {**body, "messages": told})
        assert body["messages"], "there must be a message"
        _check_pairs(body["messages"])
        form = body.get("response_format", {})
        choice = body.get("tool_choice", "auto")
        return Asked(
            model=body["model"],
            lines=tuple(_lines(body["messages"])),
            tools=tuple([tool["function"]["name"] for tool in body.get("tools", ())]),
            tool_choice=choice if isinstance(choice, str) else choice["function"]["name"],
            max_output_tokens=body.get("max_tokens", body.get("max_completion_tokens")),
            temperature=body.get("temperature"),
            schema=form["json_schema"]["schema"] if form.get("type") == "json_schema" else None,
        )

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        text, thoughts, stop, usage = "", "", "stop", None
        calls: dict[int, list[str]] = {}
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            chunks = await client.chat.completions.create(
                model=request.model,
                messages=[{"role": "user", "content": "What time is it?"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in chunks:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    thoughts += (choice.delta.model_extra or {}).get("reasoning_content") or ""
                    stop = choice.finish_reason or stop
                    for piece in choice.delta.tool_calls or ():
                        assert piece.function is not None
                        call = calls.setdefault(piece.index, ["", ""])
                        call[0] += piece.function.name or ""
                        call[1] += piece.function.arguments or ""
        read = tuple([(name, json.loads(arguments or "{}")) for name, arguments in calls.values()])
        return Reading(text, thoughts, read, READ_STOPS[stop], _read_usage(usage))


def _frame(payload: Json) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def _chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-Zq1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "clockwork-2",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": [choice],
        "usage": None,
    }


def _deltas(spoken: Spoken) -> Iterator[Json]:
    yield {"role": "assistant", "content": None if spoken.calls and not spoken.text else "", "refusal": None}
    yield from [{"reasoning_content": piece} for piece in spoken.think]
    yield from [{"content": piece} for piece in spoken.text]
    if spoken.refusal:
        yield {"refusal": spoken.refusal}
    pieces = [list(_call_pieces(index, call)) for index, call in enumerate(spoken.calls)]
    if spoken.interleaved:
        ordered = [piece for row in zip_longest(*pieces) for piece in row if piece is not None]
    else:
        ordered = [piece for call in pieces for piece in call]
    yield from [{"tool_calls": [piece]} for piece in ordered]


def _call_pieces(index: int, call: SpokenCall) -> Iterator[Json]:
    yield {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    yield from [{"index": index, "function": {"arguments": piece}} for piece in call.arguments]


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    }


def _read_usage(usage: CompletionUsage | None) -> Usage | None:
    if usage is None:
        return None
    read, written = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        cached_tokens=(read.cached_tokens or 0) if read else 0,
        reasoning_tokens=(written.reasoning_tokens or 0) if written else 0,
    )


def _check_pairs(messages: list[Json]) -> None:
    """Every call is answered at once, by exactly one message each, and nothing else is."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "an output answers no call of the message before it"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"the calls {waiting} are not answered"
        calls = message.get("tool_calls")
        assert calls is None or calls, "a list of calls must not be empty"
        ids = [call["id"] for call in calls or ()]
        assert len(set(ids)) == len(ids), "a call id is used twice"
        assert all(1 <= len(id) <= 40 for id in ids), "a call id has 1 to 40 characters"
        assert message["role"] != "assistant" or calls or message.get("content"), "an assistant's message says nothing"
        assert message.get("content") != [], "a list of content must not be empty"
        waiting.update(ids)
    assert not waiting, f"the calls {waiting} are not answered"


def _lines(messages: list[Json]) -> Iterator[Line]:
    names: dict[str, str] = {}
    for message in messages:
        words, images = _content(message.get("content"))
        calls = message.get("tool_calls", ())
        names |= {call["id"]: call["function"]["name"] for call in calls}
        match message["role"]:
            case "tool":
                id = message["tool_call_id"]
                assert message["name"] == names[id]
                yield Line("output", words, name=names[id], id=id)
            case "user" | "system" as role:
                yield Line(role, words, images=images)
            case _ if words:
                yield Line("assistant", words)
        for call in calls:
            yield Line("call", canonical(call["function"]["arguments"]), name=call["function"]["name"], id=call["id"])


def _content(content: object) -> tuple[str, tuple[str, ...]]:
    if not isinstance(content, list):
        return str(content or ""), ()
    words = [part["text"] for part in content if part["type"] == "text"]
    return "".join(words), tuple([part["image_url"]["url"] for part in content if part["type"] == "image_url"])


def canonical(arguments: str) -> str:
    """Arguments as `Line` has them; the vendor refuses what is no JSON object."""
    value = json.loads(arguments)
    assert isinstance(value, dict), "arguments must be a JSON object"
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


DIALECT = ChatDialect()
