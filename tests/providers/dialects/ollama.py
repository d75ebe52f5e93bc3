"""Ollama's own format: JSON lines, no call ids, arguments as objects."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping

import msgspec
from ollama import AsyncClient
from ollama._types import ChatRequest, Message, Options, Tool
from tests.providers.dialects import Ability, Asked, Failure, Line, Reading, Spoken, Stop, Trouble
from tests.providers.dialects.published import check

from mainspring.core.ids import counting
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.http_client import Http
from mainspring.providers.ollama.provider import Ollama
from mainspring.providers.ollama.reply import OllamaReply
from mainspring.providers.turn import TurnBuilder

KEY = "sk-clockwork-key"
FAILURES: dict[Trouble, tuple[int, str]] = {
    "rate_limited": (429, "you have reached your hourly usage limit"),
    "overloaded": (503, "server busy, please try again. maximum pending requests exceeded"),
    "overflow": (400, "the input length exceeds the context length"),
    "unauthorized": (401, "unauthorized"),
    "not_found": (404, "model 'clockwork' not found"),
    "bad_request": (400, "invalid message format"),
    "server_error": (500, "model runner has unexpectedly stopped"),
}


class OllamaDialect:
    name = "ollama"
    mime = "application/x-ndjson"
    abilities: frozenset[Ability] = frozenset({"thinking", "structured_output"})

    def provider(self, url: str) -> Ollama:
        return Ollama(url, api_key=KEY, new_id=counting())

    def reader(self) -> OllamaReply:
        return OllamaReply(TurnBuilder(counting()), Http("http://127.0.0.1", api_key=None, headers=None, timeout=1.0))

    def frames(self, spoken: Spoken) -> list[bytes]:
        said: list[Json] = [{"content": "", "thinking": piece} for piece in spoken.think]
        said += [{"content": piece} for piece in spoken.text]
        for number, call in enumerate(spoken.calls):
            made = {"index": number, "name": call.name, "arguments": json.loads("".join(call.arguments) or "{}")}
            said.append({"content": "", "tool_calls": [{"function": made}]})
        return [*[line(message) for message in said], _last(spoken.stop, spoken.usage)]

    def failure(self, trouble: Trouble) -> Failure:
        status, message = FAILURES[trouble]
        return Failure(status, msgspec.json.encode({"error": message}))

    def failure_within(self) -> bytes:
        return b'{"error":"an error was encountered while running the model: unexpected EOF"}\n'

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        assert (method, target) == ("POST", "/api/chat")
        assert (headers["Authorization"], headers["Content-Type"]) == (f"Bearer {KEY}", "application/json")
        judge(body)
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        options = body.get("options", {})
        form = body.get("format")
        return Asked(
            model=body["model"],
            lines=tuple(_lines(body["messages"])),
            tools=tuple(names),
            tool_choice=_choice(body["messages"][0]["content"]) if names else "none",
            max_output_tokens=options.get("num_predict"),
            temperature=options.get("temperature"),
            schema=form if isinstance(form, dict) else None,
        )

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        text, thoughts, stop = "", "", "stop"
        calls: list[tuple[str, Json]] = []
        usage: Usage | None = None
        async with AsyncClient(host=url) as client:
            question = [{"role": "user", "content": "What time is it?"}]
            async for chunk in await client.chat(model=request.model, messages=question, stream=True):
                text += chunk.message.content or ""
                thoughts += chunk.message.thinking or ""
                calls += [(call.function.name, dict(call.function.arguments)) for call in chunk.message.tool_calls or ()]
                stop = chunk.done_reason or stop
                if chunk.prompt_eval_count is not None or chunk.eval_count is not None:
                    usage = Usage(chunk.prompt_eval_count or 0, chunk.eval_count or 0)
        return Reading(text, thoughts, tuple(calls), "length" if stop == "length" else "stop", usage)


def line(message: Json, **fields: object) -> bytes:
    payload = {"model": "clockwork", "created_at": "2026-10-01T12:00:00.123456789Z", "message": {"role": "assistant", **message}}
    text = msgspec.json.encode({**payload, "done": False, **fields}).decode()
    # The vendor's client takes these for ends of lines.
    return f"{text}\n".translate({0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}).encode()


def _last(stop: Stop, usage: Usage | None) -> bytes:
    """What is zero is left out."""
    durations = {"total_duration": 4_883_583_458, "load_duration": 1_334_875, "prompt_eval_duration": 342_546_000}
    counts = {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens} if usage else {}
    given = {name: count for name, count in counts.items() if count}
    return line({"content": ""}, done=True, done_reason="length" if stop == "length" else "stop", **durations, **given)


def judge(body: Json) -> None:
    """Fails for what Ollama refuses or misreads: unknown fields, images that are no base64, arguments that are no object."""
    check(ChatRequest, body | {"tools": None, "messages": None})
    check(Options, body.get("options", {}))
    for tool in body.get("tools", ()):
        parameters = tool["function"]["parameters"]
        assert parameters["type"] == "object"
        assert all(isinstance(part, dict) for part in parameters["properties"].values()), "a property is no object"
        check(Tool, tool | {"function": tool["function"] | {"parameters": None}})
    assert any(message["role"] != "system" for message in body["messages"]), "asked nothing, Ollama only loads the model"
    made: list[str] = []
    for message in body["messages"]:
        check(Message, message | {"images": None})
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert message["content"] or message["role"] == "tool" or message.get("images") or message.get("tool_calls")
        assert all(b64decode(image, validate=True) for image in message.get("images", ["AA=="]))
        if message["role"] == "tool":
            assert made.pop(0) == message["tool_name"], "an output belongs to no call, or to another"
            continue
        assert not made, f"the calls of {made} are not answered"
        made = [call["function"]["name"] for call in message.get("tool_calls", ())]
    assert not made, f"the calls of {made} are not answered"


def _choice(rules: str) -> str:
    """Ollama has no such field: the model is asked in words."""
    if found := re.search("Answer by calling the tool `(.+)`", rules):
        return found[1]
    return "required" if "Answer by calling one of the tools." in rules else "auto"


def _lines(messages: list[Json]) -> Iterator[Line]:
    for message in messages:
        images = tuple([f"data:image/png;base64,{image}" for image in message.get("images", ())])
        if thought := message.get("thinking"):
            yield Line("thought", thought)
        match message["role"]:
            case "tool":
                yield Line("output", message["content"], name=message["tool_name"])
            case role if message["content"] or images:
                yield Line(role, message["content"], images=images)
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = json.dumps(function["arguments"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            yield Line("call", arguments, name=function["name"])


DIALECT = OllamaDialect()
