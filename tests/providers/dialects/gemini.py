"""Gemini's own format, as the Gemini API speaks it."""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Literal

import httpx
import msgspec
from google import genai
from google.genai import types
from tests.providers.dialects import Ability, Asked, Failure, Line, Reading, Spoken, Stop, Trouble
from tests.providers.dialects.published import check
from typing_extensions import TypedDict

from mainspring.core.ids import counting
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.gemini.provider import Gemini
from mainspring.providers.gemini.reply import GeminiReply
from mainspring.providers.http_client import Http
from mainspring.providers.turn import TurnBuilder

KEY = "sk-clockwork-key"
STOPS: dict[Stop, str] = {"stop": "STOP", "length": "MAX_TOKENS", "safety": "SAFETY"}
READ_STOPS: dict[str, Stop] = {name: stop for stop, name in STOPS.items()}
RPC = "type.googleapis.com/google.rpc."
FAILURES: dict[Trouble, tuple[int, str, str, list[Json]]] = {
    "rate_limited": (
        429,
        "RESOURCE_EXHAUSTED",
        "This minute's quota is used up. Please retry in 3.5s.",
        [{"@type": f"{RPC}QuotaFailure", "violations": []}, {"@type": f"{RPC}RetryInfo", "retryDelay": "3.5s"}],
    ),
    "overloaded": (503, "UNAVAILABLE", "The model is busy. Please try again later.", []),
    "overflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        [],
    ),
    "unauthorized": (
        400,
        "INVALID_ARGUMENT",
        "API key not valid. Please pass a valid API key.",
        [{"@type": f"{RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}],
    ),
    "not_found": (404, "NOT_FOUND", "models/clockwork is not found for API version v1beta.", []),
    "bad_request": (400, "INVALID_ARGUMENT", "Request contains an invalid argument.", []),
    "server_error": (500, "INTERNAL", "An internal error has occurred.", []),
}


class Request(TypedDict, total=False):
    """The body of `generateContent`, of which the SDK publishes the parts."""

    contents: list[types.Content]
    systemInstruction: types.Content
    tools: list[types.Tool]
    toolConfig: types.ToolConfig
    generationConfig: types.GenerationConfig


class GeminiDialect:
    name = "gemini"
    mime = "text/event-stream"
    abilities: frozenset[Ability] = frozenset(
        {
            "call_ids", "thinking", "signatures", "safety_stop", "result_images", "error_results", "structured_output",
            "cached_tokens", "reasoning_tokens",
        }
    )  # fmt: skip

    def provider(self, url: str) -> Gemini:
        return Gemini(url, api_key=KEY, new_id=counting())

    def reader(self) -> GeminiReply:
        return GeminiReply(TurnBuilder(counting()), Http("http://127.0.0.1", api_key=None, headers=None, timeout=1.0))

    def frames(self, spoken: Spoken) -> list[bytes]:
        """Each chunk holds one part and the tokens so far; the last one also says why it is the last."""
        parts = list(_parts(spoken)) or [{"text": ""}]
        *first, last = [{"content": {"parts": [part], "role": "model"}, "index": 0} for part in parts]
        last["finishReason"] = STOPS[spoken.stop]
        if spoken.calls and spoken.stop == "stop":
            last["finishMessage"] = "Model generated function call(s)."
        usage = spoken.usage
        begun = None if usage is None else _usage(Usage(usage.input_tokens))
        so_far = [chunk({"candidates": [one]}, begun) for one in first]
        return [*so_far, chunk({"candidates": [last]}, None if usage is None else _usage(usage))]

    def failure(self, trouble: Trouble) -> Failure:
        status, code, message, details = FAILURES[trouble]
        error = {"code": status, "message": message, "status": code} | ({"details": details} if details else {})
        return Failure(status, json.dumps({"error": error}, indent=2).encode())

    def failure_within(self) -> bytes:
        return _frame({"error": {"code": 503, "message": "The service is unavailable.", "status": "UNAVAILABLE"}})

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        model = target.removeprefix("/v1beta/models/").removesuffix(":streamGenerateContent?alt=sse")
        assert (method, target) == ("POST", f"/v1beta/models/{model}:streamGenerateContent?alt=sse")
        assert (headers["x-goog-api-key"], headers["Content-Type"]) == (KEY, "application/json")
        assert "Authorization" not in headers, "a key is no bearer token"
        check(Request, body)
        judge(body["contents"], is_strict="gemini-2" not in model)
        config = body.get("generationConfig", {})
        declared = [tool for tools in body.get("tools", ()) for tool in tools["functionDeclarations"]]
        system = [part["text"] for part in body.get("systemInstruction", {"parts": []})["parts"]]
        assert all(system), "a text of the system is empty"
        return Asked(
            model=model,
            lines=(*[Line("system", text) for text in system], *_lines(body["contents"])),
            tools=tuple([tool["name"] for tool in declared]),
            tool_choice=_choice(body.get("toolConfig", {}).get("functionCallingConfig", {})),
            max_output_tokens=config.get("maxOutputTokens"),
            temperature=config.get("temperature"),
            schema=config.get("responseJsonSchema"),
        )

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        text, thoughts, stop = "", "", "STOP"
        calls: list[tuple[str, Json]] = []
        usage: types.GenerateContentResponseUsageMetadata | None = None
        async with httpx.AsyncClient() as http:
            options = types.HttpOptions(base_url=url, httpx_async_client=http)
            models = genai.Client(api_key=KEY, http_options=options).aio.models
            chunks = await models.generate_content_stream(model=request.model, contents="What time is it?")
            async for chunk in chunks:
                usage = chunk.usage_metadata or usage
                for candidate in chunk.candidates or ():
                    stop = candidate.finish_reason.value if candidate.finish_reason else stop
                    for part in (candidate.content and candidate.content.parts) or ():
                        if part.function_call:
                            calls.append((part.function_call.name or "", part.function_call.args or {}))
                        elif part.thought:
                            thoughts += part.text or ""
                        else:
                            text += part.text or ""
        return Reading(text, thoughts, tuple(calls), READ_STOPS[stop], _read_usage(usage))


def chunk(payload: Json, usage: Json | None = None) -> bytes:
    counted = {"usageMetadata": usage} if usage is not None else {}
    return _frame({**payload, **counted, "modelVersion": "clockwork-2", "responseId": "Zq1"})


def _frame(payload: Json) -> bytes:
    # The vendor's client takes these for ends of lines; the vendor writes them as escapes.
    text = msgspec.json.encode(payload).decode()
    return f"data: {text}\r\n\r\n".translate({0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}).encode()


def _parts(spoken: Spoken) -> Iterator[Json]:
    """Calls are whole, and the first of them carries the signature; without any, it is on an empty text at the end."""
    yield from [{"text": piece, "thought": True} for piece in spoken.think]
    yield from [{"text": piece} for piece in spoken.text]
    for number, call in enumerate(spoken.calls):
        made = {"name": call.name, "args": json.loads("".join(call.arguments) or "{}")} | ({"id": call.id} if call.id else {})
        yield {"functionCall": made} | ({"thoughtSignature": spoken.seal} if spoken.seal and not number else {})
    if spoken.seal and not spoken.calls:
        yield {"text": "", "thoughtSignature": spoken.seal}


def _usage(usage: Usage) -> Json:
    """What is zero is left out."""
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        "totalTokenCount": usage.total_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
    }
    details = [{"modality": "TEXT", "tokenCount": usage.input_tokens}]
    return {name: count for name, count in counts.items() if count} | {"promptTokensDetails": details}


def _read_usage(usage: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    if usage is None:
        return None
    thoughts = usage.thoughts_token_count or 0
    return Usage(
        (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        (usage.candidates_token_count or 0) + thoughts,
        cached_tokens=usage.cached_content_token_count or 0,
        reasoning_tokens=thoughts,
    )


def judge(contents: list[Json], *, is_strict: bool = True) -> None:
    """Fails for what Gemini refuses: roles that do not alternate, empty parts, calls without outputs; a strict one also misses
    signatures."""
    assert contents, "contents is not specified"
    assert [content["role"] for content in contents] == [("user", "model")[place % 2] for place in range(len(contents))]
    assert contents[-1]["role"] == "user", "the last turn is not the user's"
    made: list[tuple[str, str]] = []
    for content in contents:
        assert content["parts"], "a turn has no parts"
        for part in content["parts"]:
            _judge_part(part)
        answered = [_called(part["functionResponse"]) for part in content["parts"] if "functionResponse" in part]
        assert answered == made, "as many outputs as calls must follow the calls, in their order"
        calls = [part for part in content["parts"] if "functionCall" in part]
        assert not is_strict or not calls or calls[0].get("thoughtSignature"), "a call is missing its thought_signature"
        assert not calls or content["role"] == "model"
        made = [_called(call["functionCall"]) for call in calls]


def _judge_part(part: Json) -> None:
    data = part.keys() & {"text", "inlineData", "fileData", "functionCall", "functionResponse"}
    assert len(data) == 1, f"a part holds one thing, not {sorted(data)}"
    assert part.get("text") != "" or part.get("thoughtSignature"), "a text is empty"
    blobs = [part, *part.get("functionResponse", {}).get("parts", ())]
    for blob in [blob["inlineData"] for blob in blobs if "inlineData" in blob]:
        assert b64decode(blob["data"], validate=True)
    outcome = part.get("functionResponse", {"response": {"output": ""}})["response"]
    assert isinstance(outcome, dict), "a response is an object"


def _called(call: Json) -> tuple[str, str]:
    return call["id"], call["name"]


def _choice(calling: Json) -> str:
    names = calling.get("allowedFunctionNames", [])
    assert not names or calling["mode"] in ("ANY", "VALIDATED"), "names are for the modes ANY and VALIDATED only"
    if calling.get("mode") == "ANY" and names:
        [name] = names
        return str(name)
    return {"ANY": "required", "NONE": "none"}.get(calling.get("mode", "AUTO"), "auto")


def _lines(contents: list[Json]) -> Iterator[Line]:
    for content in contents:
        plain = [part for part in content["parts"] if not part.keys() & {"functionCall", "functionResponse", "thought"}]
        rest = [part for part in content["parts"] if part not in plain]
        if content["role"] == "model":
            yield from [Line("thought", part["text"]) for part in rest if "thought" in part]
            yield from _words("assistant", plain)
            yield from [_call_line(part["functionCall"]) for part in rest if "functionCall" in part]
        else:
            yield from [_output_line(part["functionResponse"]) for part in rest]
            yield from _words("user", plain)


def _words(kind: Literal["user", "assistant"], parts: list[Json]) -> Iterator[Line]:
    """Each text is a line; images go with the first."""
    texts, images = [part["text"] for part in parts if part.get("text")], _images(parts)
    for place, text in enumerate(texts or ([""] if images else [])):
        yield Line(kind, text, images=() if place else images)


def _images(parts: list[Json]) -> tuple[str, ...]:
    blobs = [part["inlineData"] for part in parts if "inlineData" in part]
    shown = [f"data:{blob['mimeType']};base64,{blob['data']}" for blob in blobs if blob["mimeType"].startswith("image/")]
    return (*shown, *[part["fileData"]["fileUri"] for part in parts if "fileData" in part])


def _call_line(call: Json) -> Line:
    arguments = json.dumps(call["args"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Line("call", arguments, name=call["name"], id=call["id"])


def _output_line(output: Json) -> Line:
    match response := output["response"]:
        case {"error": text} | {"output": text} if len(response) == 1:
            pass
        case _:
            text = json.dumps(response)
    images = _images(output.get("parts", []))
    return Line("output", text, output["name"], output["id"], is_error="error" in response, images=images)


DIALECT = GeminiDialect()
