"""The Responses API as OpenAI speaks it."""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest

import msgspec
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseIncompleteEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from tests.providers.dialects import Ability, Asked, Failure, Line, Reading, Spoken, SpokenCall, Stop, Trouble
from tests.providers.dialects.chat import KEY, canonical, failure_of
from tests.providers.dialects.published import check

from mainspring.core.ids import counting
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.http_client import Http
from mainspring.providers.responses.provider import Responses
from mainspring.providers.responses.reply import ResponsesReply, ResponsesTurn

REASONS: dict[Stop, str] = {"length": "max_output_tokens", "safety": "content_filter"}
PREFIXES = {"message": "msg_", "function_call": "fc_", "reasoning": "rs_"}


class ResponsesDialect:
    name = "responses"
    mime = "text/event-stream"
    abilities: frozenset[Ability] = frozenset(
        {
            "call_ids", "argument_pieces", "interleaved_calls", "thinking", "signatures", "refusal", "safety_stop",
            "result_images", "structured_output", "parallel_switch", "cached_tokens", "reasoning_tokens",
        }
    )  # fmt: skip

    def provider(self, url: str) -> Responses:
        return Responses(f"{url}/v1", api_key=KEY, new_id=counting())

    def reader(self) -> ResponsesReply:
        return ResponsesReply(ResponsesTurn(counting()), Http("http://127.0.0.1/v1", api_key=None, headers=None, timeout=1.0))

    def frames(self, spoken: Spoken) -> list[bytes]:
        items = _items(spoken)
        last = "completed" if spoken.stop == "stop" else "incomplete"
        events = [_lifecycle("response.created", response()), _lifecycle("response.in_progress", response())]
        events += _told(spoken, items)
        details = None if spoken.stop == "stop" else {"reason": REASONS[spoken.stop]}
        final = response(status=last, output=items, incomplete_details=details, usage=spoken.usage and _usage(spoken.usage))
        return frames_of([*events, _lifecycle(f"response.{last}", final)])

    def failure(self, trouble: Trouble) -> Failure:
        return failure_of(trouble)

    def failure_within(self) -> bytes:
        error = {"type": "server_error", "code": "server_error", "message": "Something broke here.", "param": None}
        failed = response(status="failed", error={"code": "server_error", "message": "Something broke here."})
        return b"".join(frames_of([{"type": "error", "error": error}, _lifecycle("response.failed", failed)]))

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        assert (method, target) == ("POST", "/v1/responses")
        assert (headers["Authorization"], headers["Content-Type"]) == (f"Bearer {KEY}", "application/json")
        check(ResponseCreateParamsStreaming, body)
        assert body["store"] is False
        assert body["include"] == ["reasoning.encrypted_content"]
        assert body["input"] or body.get("instructions"), "there must be something to answer"
        _check_ids(body["input"])
        _check_pairs(body["input"])
        choice = body.get("tool_choice", "auto")
        form = body.get("text", {}).get("format", {})
        return Asked(
            model=body["model"],
            lines=tuple(_lines(body)),
            tools=tuple([tool["name"] for tool in body.get("tools", ())]),
            tool_choice=choice if isinstance(choice, str) else choice["name"],
            max_output_tokens=body.get("max_output_tokens"),
            temperature=body.get("temperature"),
            schema=form.get("schema"),
        )

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        final: Response | None = None
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            async for event in await client.responses.create(model=request.model, input="What time is it?", stream=True):
                if isinstance(event, ResponseCompletedEvent | ResponseIncompleteEvent):
                    final = event.response
        assert final is not None
        thoughts = [part.text for item in final.output if item.type == "reasoning" for part in item.summary]
        calls = [(item.name, json.loads(item.arguments or "{}")) for item in final.output if item.type == "function_call"]
        reason = final.incomplete_details.reason if final.incomplete_details else None
        stops: dict[str | None, Stop] = {None: "stop", "max_output_tokens": "length", "content_filter": "safety"}
        return Reading(final.output_text, "".join(thoughts), tuple(calls), stops[reason], _read_usage(final))


def frames_of(events: list[Json]) -> list[bytes]:
    """Events as they are sent: numbered, and named on a line of their own."""
    frames = []
    for number, event in enumerate(events):
        payload = {"type": event["type"], "sequence_number": number, **event}
        frames.append(f"event: {event['type']}\n".encode() + b"data: " + msgspec.json.encode(payload) + b"\n\n")
    return frames


def response(**fields: object) -> Json:
    """A Response object with everything that OpenAI puts in."""
    return {
        "id": "resp_Zq1", "object": "response", "created_at": 1_790_000_000, "status": "in_progress", "background": False,
        "completed_at": None, "error": None, "frequency_penalty": 0.0, "incomplete_details": None, "instructions": None,
        "max_output_tokens": None, "max_tool_calls": None, "model": "clockwork-2", "output": [], "parallel_tool_calls": True,
        "presence_penalty": 0.0, "previous_response_id": None, "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None}, "safety_identifier": None, "service_tier": "auto",
        "store": False, "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
        "top_p": 1.0, "truncation": "disabled", "usage": None, "user": None, "metadata": {}, **fields,
    }  # fmt: skip


def _lifecycle(kind: str, body: Json) -> Json:
    return {"type": kind, "response": body}


def _items(spoken: Spoken) -> list[Json]:
    items: list[Json] = []
    if spoken.think or spoken.seal:
        summary = [{"type": "summary_text", "text": "".join(spoken.think)}] if spoken.think else []
        items.append({"id": "rs_Zq1", "type": "reasoning", "summary": summary, "encrypted_content": spoken.seal or "gAAAAAB"})
    content: list[Json] = []
    if spoken.text:
        content.append({"type": "output_text", "annotations": [], "logprobs": [], "text": "".join(spoken.text)})
    if spoken.refusal:
        content.append({"type": "refusal", "refusal": spoken.refusal})
    status = "completed" if spoken.stop == "stop" else "incomplete"
    if content:
        items.append({"id": "msg_Zq1", "type": "message", "status": status, "content": content, "role": "assistant"})
    for number, call in enumerate(spoken.calls):
        items.append(
            {
                "id": f"fc_Zq{number}", "type": "function_call", "status": "completed",
                "arguments": "".join(call.arguments), "call_id": call.id, "name": call.name,
            }
        )  # fmt: skip
    return items


def _told(spoken: Spoken, items: list[Json]) -> Iterator[Json]:
    calls: list[list[Json]] = []
    for index, item in enumerate(items):
        where = {"item_id": item["id"], "output_index": index}
        added = {"type": "response.output_item.added", "output_index": index, "item": _blank(item)}
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        match item["type"]:
            case "reasoning":
                yield from [added, *_thinking(spoken, where), done]
            case "message":
                yield from [added, *_speaking(item, spoken, where), done]
            case _:
                calls.append([added, *_calling(item, spoken.calls[len(calls)], where), done])
    if spoken.interleaved:
        yield from [event for row in zip_longest(*calls) for event in row if event is not None]
    else:
        yield from [event for call in calls for event in call]


def _blank(item: Json) -> Json:
    """The item as far as it is known when it begins."""
    empty: dict[str, Json] = {"message": {"content": []}, "reasoning": {"summary": []}, "function_call": {"arguments": ""}}
    status = {} if item["type"] == "reasoning" else {"status": "in_progress"}
    return {**item, **empty[item["type"]], **status}


def _thinking(spoken: Spoken, where: Json) -> Iterator[Json]:
    if not spoken.think:
        return
    where = {**where, "summary_index": 0}
    text = "".join(spoken.think)
    yield {"type": "response.reasoning_summary_part.added", **where, "part": {"type": "summary_text", "text": ""}}
    for piece in spoken.think:
        yield {"type": "response.reasoning_summary_text.delta", **where, "delta": piece, "obfuscation": _padding(piece)}
    yield {"type": "response.reasoning_summary_text.done", **where, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **where, "part": {"type": "summary_text", "text": text}}


def _speaking(item: Json, spoken: Spoken, where: Json) -> Iterator[Json]:
    for index, part in enumerate(item["content"]):
        place = {**where, "content_index": index}
        is_text = part["type"] == "output_text"
        empty = {**part, "text": ""} if is_text else {**part, "refusal": ""}
        yield {"type": "response.content_part.added", **place, "part": empty}
        if is_text:
            for piece in spoken.text:
                yield {
                    "type": "response.output_text.delta", **place, "delta": piece, "logprobs": [], "obfuscation": _padding(piece),
                }  # fmt: skip
            yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        else:
            yield {"type": "response.refusal.delta", **place, "delta": part["refusal"]}
            yield {"type": "response.refusal.done", **place, "refusal": part["refusal"]}
        yield {"type": "response.content_part.done", **place, "part": part}


def _calling(item: Json, call: SpokenCall, where: Json) -> Iterator[Json]:
    for piece in call.arguments:
        yield {"type": "response.function_call_arguments.delta", **where, "delta": piece, "obfuscation": _padding(piece)}
    yield {"type": "response.function_call_arguments.done", **where, "arguments": item["arguments"]}


def _padding(piece: str) -> str:
    return "x" * (-len(piece) % 16)


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _read_usage(final: Response) -> Usage | None:
    usage = final.usage
    if usage is None:
        return None
    read, said = usage.input_tokens_details, usage.output_tokens_details
    written = read.cache_write_tokens or 0  # Not every model reports it, whatever the type says.
    return Usage(usage.input_tokens, usage.output_tokens, read.cached_tokens, written, said.reasoning_tokens)


def _check_ids(items: list[Json]) -> None:
    ids = [item["id"] for item in items if "id" in item]
    assert len(set(ids)) == len(ids), "an id is given twice"
    for item in items:
        if "id" in item and item["type"] in PREFIXES:
            assert item["id"].startswith(PREFIXES[item["type"]]), f"id {item['id']} must begin with {PREFIXES[item['type']]}"
            assert len(item["id"]) <= 64, "an id has at most 64 characters"


def _check_pairs(items: list[Json]) -> None:
    """Every call has one output behind it, every output a call before it, and thoughts lead to something."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for place, item in enumerate(items):
        if item["type"] == "function_call":
            assert 1 <= len(item["call_id"]) <= 64, "a call id has 1 to 64 characters"
            assert item["call_id"] not in seen, "a call id is used twice"
            seen.add(item["call_id"])
            waiting.add(item["call_id"])
        elif item["type"] == "function_call_output":
            assert item["call_id"] in waiting, "an output answers no call"
            waiting.remove(item["call_id"])
        elif item["type"] == "reasoning":
            behind = items[place + 1] if place + 1 < len(items) else {"type": "nothing"}
            leads = behind["type"] in ("reasoning", "function_call") or behind.get("role") == "assistant"
            assert leads, "a thought must be followed by what it led to"
        else:
            assert item["content"], "a message says nothing"
    assert not waiting, f"the calls {waiting} have no output"


def _lines(body: Json) -> Iterator[Line]:
    if body.get("instructions"):
        yield Line("system", body["instructions"])
    names = {item["call_id"]: item["name"] for item in body["input"] if item["type"] == "function_call"}
    for item in body["input"]:
        match item["type"]:
            case "function_call":
                yield Line("call", canonical(item["arguments"]), name=item["name"], id=item["call_id"])
            case "function_call_output":
                words, images = _content(item["output"])
                yield Line("output", words, name=names[item["call_id"]], id=item["call_id"], images=images)
            case "reasoning":
                yield Line("thought", "".join([part["text"] for part in (*item.get("content", ()), *item["summary"])]))
            case _:
                words, images = _content(item["content"])
                role = item["role"]
                yield Line(role if role in ("user", "assistant") else "system", words, images=images)


def _content(content: str | list[Json]) -> tuple[str, tuple[str, ...]]:
    if isinstance(content, str):
        return content, ()
    words = [str(part.get("text") or part.get("refusal") or "") for part in content]
    return "".join(words), tuple([part["image_url"] for part in content if part["type"] == "input_image"])


DIALECT = ResponsesDialect()
