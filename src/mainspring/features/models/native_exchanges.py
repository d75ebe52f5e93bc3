"""Exchanges by the formats of Ollama, Gemini and Bedrock, as far as habits show in them, and which format an exchange has."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

import msgspec

from mainspring.core.errors import BadOutput
from mainspring.core.items import Json
from mainspring.features.models.claude_exchange import ClaudeExchange
from mainspring.features.models.native_exchange import (
    NativeExchange,
    count,
    declare_tools,
    dict_of,
    find_place,
    hold_to,
    list_of,
    say,
    tell_history,
)
from mainspring.features.models.responses_exchange import ResponsesExchange
from mainspring.features.models.seen_exchange import SeenExchange, decode
from mainspring.providers.bedrock import reply as bedrock
from mainspring.providers.bedrock.event_stream import EventStreamSplitter
from mainspring.providers.cassette import Exchange
from mainspring.providers.gemini import reply as gemini
from mainspring.providers.json_text import split_objects

LONG: Final = 20_000


def read_exchange(exchange: Exchange) -> SeenExchange | None:
    """The exchange as its format has it; none if it is no question to a model."""
    path = exchange.path.partition("?")[0]
    return next((kind(exchange) for ends, kind in _FORMATS.items() if path.endswith(ends)), None)


class OllamaExchange(NativeExchange):
    mime = "application/x-ndjson"
    standard = NativeExchange.standard | {"stop with calls"}
    finish_names: ClassVar = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}

    @cached_property
    def events(self) -> list[Json]:
        found: list[object] = []
        for line in filter(str.strip, self.raw.split("\n")):
            told = decode(line)
            found += [told] if told is not None else [decode(each.decode()) for each in split_objects(line.encode())]
        return [event for event in found if isinstance(event, dict)]

    def read_request(self) -> Json:
        limit = dict_of(self.own.get("options")).get("num_predict")
        tools = [tool["function"] for tool in list_of(self.own.get("tools"))]
        messages = [{"content": str(message)} for message in list_of(self.own.get("messages"))]
        return {"tools": declare_tools(tools), "messages": messages, "max_tokens": limit, **hold_to(self.own.get("format"))}

    def translate(self, event: Json) -> Iterator[Json]:
        if event.get("error"):
            yield {"error": event["error"]}
        message = dict_of(event.get("message"))
        yield say({"content": message.get("content"), "reasoning_content": message.get("thinking")})
        for call in list_of(message.get("tool_calls")):
            function = dict_of(call.get("function"))
            yield self.make_call(function.get("name"), _write(function, "arguments"), call.get("id"))
        if event.get("prompt_eval_count") or event.get("eval_count"):
            yield count(event.get("prompt_eval_count"), event.get("eval_count"))
        if reason := event.get("done_reason"):
            yield {"error": {"message": "done_reason: error"}} if reason == "error" else self.say_end(reason)

    @property
    def last(self) -> Json:
        return self.events[-1] if self.events else {}

    @property
    def has_end(self) -> bool:
        return any(event.get("done") for event in self.events)

    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "calls at the end": lambda seen: dict_of(seen.last.get("message")).get("tool_calls"),
        "objects on one line": lambda seen: len(seen.events) > len(list(filter(str.strip, seen.raw.split("\n")))),
        "no last line break": lambda seen: seen.has_end and not seen.raw.endswith("\n"),
        "fields left out": lambda seen: seen.has_end and "message" not in seen.last,
        "no usage": lambda seen: seen.has_end and not any("eval_count" in event for event in seen.events),
        "cache not counted": lambda seen: (
            len(str(seen.sent["messages"])) > LONG and 0 < max(find_place(seen.last, "prompt_eval_count"), 0) < LONG / 100
        ),
    }


class GeminiExchange(NativeExchange):
    standard = NativeExchange.standard | {"stop with calls", "usage often"}
    finish_names: ClassVar = {
        **gemini.FINISHES,
        **dict.fromkeys(gemini.UNSAID, ""),
        **dict.fromkeys(gemini.BOTCHED, "stop"),
        "OTHER": "stop",
    }

    def read_request(self) -> Json:
        tools = [tool for each in list_of(self.own.get("tools")) for tool in list_of(each.get("functionDeclarations"))]
        told = dict_of(self.own.get("generationConfig"))
        schema = "parametersJsonSchema" if any("parametersJsonSchema" in tool for tool in tools) else "parameters"
        messages = [{"content": str(content)} for content in list_of(self.own.get("contents"))]
        limit = told.get("maxOutputTokens")
        held = hold_to(told.get("responseJsonSchema"))
        return {"tools": declare_tools(tools, schema=schema), "messages": messages, "max_tokens": limit, **held}

    @cached_property
    def candidates(self) -> list[Json]:
        return [candidate for event in self.events for candidate in list_of(event.get("candidates"))]

    def translate(self, event: Json) -> Iterator[Json]:
        if event.get("error"):
            yield {"error": event["error"]}
        blocked = dict_of(event.get("promptFeedback")).get("blockReason")
        if blocked and str(blocked) not in gemini.UNSAID:
            yield say(reason="content_filter")
        for candidate in list_of(event.get("candidates")):
            if candidate.get("index"):
                continue
            for part in list_of(dict_of(candidate.get("content")).get("parts")):
                yield say({"reasoning_content" if part.get("thought") else "content": part.get("text")})
                if call := dict_of(part.get("functionCall")):
                    yield self.make_call(call.get("name"), _write(call, "args"), call.get("id"))
            if (reason := candidate.get("finishReason")) is not None:
                yield self.say_end(reason)
        if usage := dict_of(event.get("usageMetadata")):
            yield count(usage.get("promptTokenCount"), usage.get("candidatesTokenCount"))

    @property
    def has_end(self) -> bool:
        return any(self.finishes)

    def ends_by(self, reasons: Collection[str]) -> bool:
        return any(str(candidate.get("finishReason")) in reasons for candidate in self.candidates)

    def has_empty_part(self) -> bool:
        inner = [each for each in self.candidates if not each.get("finishReason")]
        parts = [part for each in inner for part in list_of(dict_of(each.get("content")).get("parts"))]
        return any(part.get("text") == "" and not part.get("thoughtSignature") for part in parts)

    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "array for a stream": lambda seen: not seen.is_stream and seen.raw.lstrip().startswith("["),
        "other candidates": lambda seen: any(candidate.get("index") for candidate in seen.candidates),
        "empty pieces": has_empty_part,
        "fields left out": lambda seen: any(
            isinstance(said := each.get("content"), dict) and said.get("parts") is None for each in seen.candidates
        ),
        "calls given up": lambda seen: seen.ends_by(gemini.BOTCHED),
        "given up": lambda seen: seen.ends_by(["OTHER"]),
        "empty block reason": lambda seen: any(
            dict_of(event.get("promptFeedback")).get("blockReason") in ("", *gemini.UNSAID) for event in seen.events
        ),
        "usage in the middle": lambda seen: (
            seen.has_end
            and any("usageMetadata" in event for event in seen.events)
            and not dict_of(seen.events[-1].get("usageMetadata"))
        ),
        "no usage": lambda seen: seen.has_end and not any("usageMetadata" in event for event in seen.events),
    }


class BedrockExchange(NativeExchange):
    mime = "application/vnd.amazon.eventstream"
    standard = NativeExchange.standard | {"no arguments"}
    finish_names: ClassVar = {**bedrock.FINISHES, "tool_use": "tool_calls"}

    @cached_property
    def events(self) -> list[Json]:
        try:
            told = [decode(data.decode()) for _, data in EventStreamSplitter().feed(self.data)] if self.is_stream else []
        except BadOutput:
            return []
        return [event for event in told if isinstance(event, dict)]

    def read_request(self) -> Json:
        told = [dict_of(tool.get("toolSpec")) for tool in list_of(dict_of(self.own.get("toolConfig")).get("tools"))]
        tools = [{**tool, "parameters": dict_of(tool.get("inputSchema")).get("json")} for tool in told if tool]
        messages = tell_history(self.own.get("messages"), lambda block: dict_of(block.get("toolUse")).get("toolUseId"))
        limit = dict_of(self.own.get("inferenceConfig")).get("maxTokens")
        return {"tools": declare_tools(tools), "messages": messages, "max_tokens": limit}

    def translate(self, event: Json) -> Iterator[Json]:
        match event:
            case {"error": error}:
                yield {"error": error}
            case {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolUse": dict(call)}}}:
                function = {"name": call.get("name"), "arguments": ""}
                yield say({"tool_calls": [{"index": index, "id": call.get("toolUseId"), "function": function}]})
            case {"contentBlockDelta": {"contentBlockIndex": index, "delta": {"toolUse": {"input": told}}}}:
                yield say({"tool_calls": [{"index": index, "function": {"arguments": told}}]})
            case {"contentBlockDelta": {"delta": dict(delta)}}:
                thought = dict_of(delta.get("reasoningContent")).get("text")
                yield say({"content": delta.get("text"), "reasoning_content": thought})
            case {"messageStop": dict(end)}:
                yield self.say_end(end.get("stopReason"))
            case {"metadata": {"usage": dict(usage)}}:
                yield count(usage.get("inputTokens"), usage.get("outputTokens"))

    @property
    def has_end(self) -> bool:
        return any("messageStop" in event for event in self.events)

    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "no usage": lambda seen: seen.has_end and not any("metadata" in event for event in seen.events),
        "parts without bounds": lambda seen: any(
            dict_of(event.get("contentBlockStart")).get("start") == {} for event in seen.events
        ),
    }


def _write(function: Json, field: str) -> str:
    """Arguments that should be an object, as text: text within text if they are text."""
    return msgspec.json.encode(function[field]).decode() if field in function else ""


_FORMATS: Final[Mapping[str, type[SeenExchange]]] = {
    "chat/completions": SeenExchange,
    "api/chat": OllamaExchange,
    ":streamGenerateContent": GeminiExchange,
    "v1/messages": ClaudeExchange,
    ":streamRawPredict": ClaudeExchange,
    "responses": ResponsesExchange,
    "/converse-stream": BedrockExchange,
}
"""The ends of the paths at which models are asked."""
