"""The Messages API as Anthropic speaks it."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

import anthropic.types
import msgspec
from anthropic import AsyncAnthropic
from anthropic.types import ContentBlockParam
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from msgspec.structs import replace
from tests.providers.dialects import Ability, Asked, Failure, Line, Reading, Spoken, Stop, Trouble
from tests.providers.dialects.published import check

from mainspring.core.ids import counting
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.anthropic.provider import Anthropic
from mainspring.providers.anthropic.reply import AnthropicReply
from mainspring.providers.http_client import Http
from mainspring.providers.turn import TurnBuilder

KEY = "sk-ant-clockwork-key"
SIGNATURE = "EqQBCkYIBxgCKkDclockworkc2VhbA=="
STOPS: dict[Stop, str] = {"stop": "end_turn", "length": "max_tokens", "safety": "refusal"}
READ_STOPS: dict[str | None, Stop] = {"max_tokens": "length", "refusal": "safety"}
THOUGHTS = ("thinking", "redacted_thinking")
FAILURES: dict[Trouble, tuple[int, str, str]] = {
    "rate_limited": (429, "rate_limit_error", "Too many input tokens for this minute."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "overflow": (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    "unauthorized": (401, "authentication_error", "invalid x-api-key"),
    "not_found": (404, "not_found_error", "model: clockwork"),
    "bad_request": (400, "invalid_request_error", "messages: this cannot be"),
    "server_error": (500, "api_error", "Internal server error"),
}


class Published(MessageCreateParamsStreaming, total=False):
    """What the version that we speak takes beside what the SDK, which speaks a later one, still has."""

    temperature: float
    top_p: float


class AnthropicDialect:
    name = "anthropic"
    mime = "text/event-stream"
    abilities: frozenset[Ability] = frozenset(
        {
            "call_ids", "argument_pieces", "thinking", "signatures", "refusal", "safety_stop", "result_images", "error_results",
            "structured_output", "parallel_switch", "cached_tokens", "reasoning_tokens",
        }
    )  # fmt: skip

    def provider(self, url: str) -> Anthropic:
        return Anthropic(url, api_key=KEY, new_id=counting())

    def reader(self) -> AnthropicReply:
        return AnthropicReply(TurnBuilder(counting()), Http("http://127.0.0.1", api_key=None, headers=None, timeout=1.0))

    def frames(self, spoken: Spoken) -> list[bytes]:
        frames = [frame(event) for event in _events(spoken)]
        # Behind the first beginning of a block there is a sign of life, sent together with it.
        place = 2 if len(frames) > 3 else 1
        return [*frames[:place], b'event: ping\ndata: {"type": "ping"}\n\n', *frames[place:]]

    def failure(self, trouble: Trouble) -> Failure:
        status, kind, message = FAILURES[trouble]
        return Failure(status, error(kind, message), {"request-id": "req_01clockwork"})

    def failure_within(self) -> bytes:
        return b"event: error\ndata: " + error("overloaded_error", "Overloaded") + b"\n\n"

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        assert (method, target) == ("POST", "/v1/messages")
        headers = {name.lower(): value for name, value in headers.items()}
        assert (headers["x-api-key"], headers["content-type"]) == (KEY, "application/json")
        assert headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers
        check(Published, body)
        for message in body["messages"]:
            # As part of a whole request each block could also be one of the vendor's answers, which may hold anything.
            check(list[ContentBlockParam], message["content"])
        check_order(body)
        choice = body.get("tool_choice", {"type": "auto"})
        return Asked(
            model=body["model"],
            lines=tuple(_lines(body)),
            tools=tuple([tool["name"] for tool in body.get("tools", ())]),
            tool_choice=choice["name"] if choice["type"] == "tool" else choice["type"].replace("any", "required"),
            max_output_tokens=body["max_tokens"],
            temperature=body.get("temperature"),
            schema=body.get("output_config", {}).get("format", {}).get("schema"),
        )

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        question: list[anthropic.types.MessageParam] = [{"role": "user", "content": "What time is it?"}]
        async with (
            AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client,
            client.messages.stream(model=request.model, max_tokens=1024, messages=question) as stream,
        ):
            message = await stream.get_final_message()
        return reading_of(message)


def frame(event: Json) -> bytes:
    """An event as it is sent: with its name, and with blanks behind its last field."""
    data, kind = msgspec.json.encode(event), str(event["type"]).encode()
    return b"event: " + kind + b"\ndata: " + data[:-1] + b" " * (len(data) % 7) + b"}\n\n"


def error(kind: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_01clockwork"})


def started(usage: Json | None = None) -> Json:
    """The first event."""
    message: Json = {
        "model": "clockwork-2",
        "id": "msg_01clockwork",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 12, "output_tokens": 1},
    }
    return {"type": "message_start", "message": message}


def block(index: int, begun: Json, *deltas: Json) -> list[Json]:
    """All events of one block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *[{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": index},
    ]


def stopped(reason: str, usage: Json | None = None, details: Json | None = None, sequence: str | None = None) -> list[Json]:
    """The last two events."""
    delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": details}
    return [{"type": "message_delta", "delta": delta, "usage": usage or {"output_tokens": 7}}, {"type": "message_stop"}]


def reading_of(message: anthropic.types.Message) -> Reading:
    """What the vendor's client has understood."""
    calls = [(part.name, dict(part.input)) for part in message.content if part.type == "tool_use"]
    used = message.usage
    cached, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
    return Reading(
        text="".join([part.text for part in message.content if part.type == "text"]),
        thoughts="".join([part.thinking for part in message.content if part.type == "thinking"]),
        calls=tuple(calls),
        stop=READ_STOPS.get(message.stop_reason, "stop"),
        usage=Usage(
            used.input_tokens + cached + written,
            used.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=used.output_tokens_details.thinking_tokens if used.output_tokens_details else 0,
        ),
    )


def check_order(body: Json) -> None:
    """What the vendor demands beyond its types."""
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    assert roles[:1] == roles[-1:] == ["user"], "a user speaks first and last"
    assert all(a != b for a, b in pairwise(roles)), "roles must alternate"
    blocks = [block for message in messages for block in message["content"]]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids), "a call id is used twice"
    for before, message in pairwise([{"role": "user", "content": []}, *messages]):
        called = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        kinds = [block["type"] for block in message["content"]]
        answered = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        assert answered == called, "each call is answered in the next message, and nothing else is"
        assert kinds[: len(called)] == ["tool_result"] * len(called), "results come first"
        _check_blocks(message["role"], message["content"])
    _check_blocks("system", body.get("system", ()))
    _check_settings(body)
    marked = [block for block in (*blocks, *body.get("system", ()), *body.get("tools", ())) if "cache_control" in block]
    assert len(marked) <= 4, "at most four blocks may be marked for the cache"


def _check_blocks(role: str, blocks: list[Json]) -> None:
    assert blocks or role in ("system", "result"), "a message must not be empty"
    for part in blocks:
        match part["type"]:
            case "text":
                assert part["text"].strip(), "a text must not be blank"
            case "tool_use":
                assert role == "assistant"
                assert re.fullmatch("[a-zA-Z0-9_-]+", part["id"])
                assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", part["name"])
            case "tool_result":
                assert role == "user"
                assert part.get("content") or not part.get("is_error"), "an error must say something"
                _check_blocks("result", part.get("content", []))
            case "thinking" | "redacted_thinking":
                assert role == "assistant"
                assert "cache_control" not in part
            case "image" | "document":
                assert role in ("user", "result")
            case kind:
                raise AssertionError(f"nobody sends `{kind}`")
    kinds = [part["type"] for part in blocks]
    assert not kinds or kinds[-1] not in THOUGHTS, "a message must not end with a thought"
    assert not [a for a, b in pairwise(kinds) if a == "tool_use" and b != "tool_use"], "calls come last"


def _check_settings(body: Json) -> None:
    thinking, choice = body.get("thinking", {}), body.get("tool_choice", {}).get("type", "auto")
    assert body["max_tokens"] >= 1
    assert "tools" in body or "tool_choice" not in body, "a choice needs tools"
    assert 0 <= body.get("temperature", 0) <= 1
    assert not {"temperature", "top_p"} <= body.keys(), "one of them is enough"
    if thinking.get("type") == "enabled":
        assert 1024 <= thinking["budget_tokens"] < body["max_tokens"]
        assert choice in ("auto", "none"), "a thinking model cannot be forced"
        _check_begun(body["messages"])
    if thinking.get("type") in ("enabled", "adaptive"):
        assert not {"temperature", "top_p"} & body.keys(), "a thinking model has no temperature"
    for tool in body.get("tools", ()):
        assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", tool["name"])
        assert tool["input_schema"]["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf"} & tool["input_schema"].keys(), "no alternatives at the top"


def _check_begun(messages: list[Json]) -> None:
    """A turn under way, which results are given for, has begun with a thought if the model is to go on thinking."""
    asked = max(
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" and message["content"][0]["type"] != "tool_result"
    )
    assert not messages[asked + 1 :] or messages[asked + 1]["content"][0]["type"] in THOUGHTS, "expected a thought"


def _events(spoken: Spoken) -> Iterator[Json]:
    usage = spoken.usage or Usage()
    read = {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }
    written = {"output_tokens": usage.output_tokens, "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens}}
    yield started({**read, "output_tokens": min(1, usage.output_tokens), "service_tier": "standard"})
    for index, (begun, *deltas) in enumerate(_blocks(spoken)):
        yield from block(index, begun, *deltas)
    details = {"type": "refusal", "category": None, "explanation": spoken.refusal} if spoken.refusal else None
    reason = "refusal" if spoken.refusal else "tool_use" if spoken.calls and spoken.stop == "stop" else STOPS[spoken.stop]
    yield from stopped(reason, {**read, **written}, details)


def _blocks(spoken: Spoken) -> Iterator[list[Json]]:
    """Each block as it begins, and its deltas."""
    if spoken.think or spoken.seal:
        thoughts: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in spoken.think]
        sign = {"type": "signature_delta", "signature": spoken.seal or SIGNATURE}
        yield [{"type": "thinking", "thinking": "", "signature": ""}, *thoughts, sign]
    if spoken.text:
        yield [{"type": "text", "text": ""}, *[{"type": "text_delta", "text": piece} for piece in spoken.text]]
    for call in spoken.calls:
        yield [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": {}, "caller": {"type": "direct"}},
            *[{"type": "input_json_delta", "partial_json": piece} for piece in ("", *call.arguments)],
        ]


def _lines(body: Json) -> Iterator[Line]:
    """What the request says, block by block; an image belongs to the words before it."""
    names: dict[str, str] = {}
    yield from [Line("system", part["text"]) for part in body.get("system", ())]
    for message in body["messages"]:
        lines: list[Line] = []
        for part in message["content"]:
            match part["type"]:
                case "text":
                    lines.append(Line(message["role"], part["text"]))
                case "image":
                    last = lines.pop() if lines else Line(message["role"])
                    lines.append(replace(last, images=(*last.images, _image(part))))
                case "tool_result":
                    lines.append(_output(part, names[part["tool_use_id"]]))
                case "tool_use":
                    names[part["id"]] = part["name"]
                    text = json.dumps(part["input"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                    lines.append(Line("call", text, name=part["name"], id=part["id"]))
                case "thinking" | "redacted_thinking":
                    lines.append(Line("thought", part.get("thinking", part.get("data"))))
                case _:
                    pass
        yield from lines


def _output(result: Json, name: str) -> Line:
    parts = result.get("content", ())
    return Line(
        "output",
        "".join([part["text"] for part in parts if part["type"] == "text"]),
        name=name,
        id=result["tool_use_id"],
        is_error=result.get("is_error", False),
        images=tuple([_image(part) for part in parts if part["type"] == "image"]),
    )


def _image(part: Json) -> str:
    match part["source"]:
        case {"type": "base64", "media_type": mime, "data": data}:
            return f"data:{mime};base64,{data}"
        case {"url": str(place)} | {"file_id": str(place)}:
            return place
        case source:
            raise AssertionError(f"no image is at {source}")


DIALECT = AnthropicDialect()
