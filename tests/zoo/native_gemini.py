"""Animals that speak as Gemini does. Shapes of chunks are those of `streamGenerateContent`, written by hand."""

from collections.abc import Sequence
from typing import ClassVar

from tests.providers.backend import sse
from tests.zoo.animal import NOON, mentions
from tests.zoo.native_animal import NativeAnimal, Silent

from mainspring.core.items import Json
from mainspring.ports import Provider
from mainspring.providers.gemini.provider import Gemini

CALL: Json = {"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}}
USAGE = {"promptTokenCount": 20, "candidatesTokenCount": 5, "totalTokenCount": 25}


def chunk(*parts: Json, reason: str | None = None, index: int = 0, **fields: object) -> Json:
    candidate: Json = {"index": index, **({"content": {"role": "model", "parts": list(parts)}} if parts else {})}
    return {"candidates": [candidate | ({"finishReason": reason} if reason else {}) | fields], "usageMetadata": USAGE}


class GeminiAnimal(NativeAnimal):
    path = "/v1beta/models/{model}:streamGenerateContent"
    model = "gemini-3-flash"

    def make_provider(self, url: str) -> Provider:
        return Gemini(url)

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return [part for content in body["contents"] for part in content["parts"] if "functionResponse" in part]

    def call(self) -> bytes:
        return sse(chunk(CALL, reason="STOP"))

    def say(self, *pieces: str) -> bytes:
        return sse(*[chunk({"text": piece}) for piece in pieces], chunk(reason="STOP"))


class NameWithPrefix(GeminiAnimal):
    """The name of a tool has `default_api:` before it. https://github.com/BerriAI/litellm/issues/16893"""

    def first(self, body: Json) -> bytes:
        return sse(chunk({"functionCall": {"name": "default_api:get_time", "args": {"zone": "UTC"}}}, reason="STOP"))


class CallAsCode(GeminiAnimal):
    """The call is code in the text. https://github.com/googleapis/python-genai/issues/2868"""

    def first(self, body: Json) -> bytes:
        return self.say("```tool_code\n", "print(default_api.get_time(zone='UTC'))", "\n```")


class NoClosedObjects(GeminiAnimal):
    """A word of JSON Schema is refused. https://github.com/danny-avila/LibreChat/pull/13850"""

    def refuse(self, body: Json) -> str | None:
        told = "Unknown name \"additionalProperties\" at 'tools[0].function_declarations[0].parameters': Cannot find field."
        return told if mentions(body["tools"], "additionalProperties") else None


class NoJsonSchema(GeminiAnimal):
    """Only the older field for parameters is known. https://github.com/danny-avila/LibreChat/pull/13850"""

    def refuse(self, body: Json) -> str | None:
        told = "Unknown name \"parametersJsonSchema\" at 'tools[0].function_declarations[0]': Cannot find field."
        return told if mentions(body["tools"], "parametersJsonSchema") else None


class SignatureMustReturn(GeminiAnimal):
    """A call without its signature is refused. https://github.com/docker/docker-agent/issues/851"""

    def refuse(self, body: Json) -> str | None:
        calls = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
        is_missing = calls and calls[0].get("thoughtSignature") != "c2lnbg=="
        return "Function call is missing a thought_signature in functionCall parts." if is_missing else None

    def first(self, body: Json) -> bytes:
        return sse(chunk({**CALL, "thoughtSignature": "c2lnbg=="}), chunk({"text": ""}, reason="STOP"))


class NoSignature(GeminiAnimal):
    """A proxy loses signatures, and the vendor behind it wants one. https://github.com/lbjlaq/Antigravity-Manager/issues/938"""

    def refuse(self, body: Json) -> str | None:
        is_missing = self.find_outputs(body) and not mentions(body, "skip_thought_signature_validator")
        return "Function call is missing a thought_signature in functionCall parts." if is_missing else None


class EmptyPartsBeforeTheCall(GeminiAnimal):
    """Empty texts come before a call. https://github.com/run-llama/LlamaIndexTS/pull/1993"""

    def first(self, body: Json) -> bytes:
        return sse(chunk({"text": ""}), chunk({"text": ""}), chunk(CALL), chunk({"text": ""}, reason="STOP"))


class ContentWithoutParts(GeminiAnimal):
    """The last chunk has content without parts. https://github.com/BerriAI/litellm/pull/24453"""

    def last(self, body: Json) -> bytes:
        return sse(chunk({"text": NOON}), chunk(reason="STOP", content={"role": "model"}))


class CallsWithoutIds(GeminiAnimal):
    """Parallel calls of one tool have no ids. https://github.com/vercel/ai/issues/15664"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        return sse(chunk(CALL, {"functionCall": {"name": "get_time", "args": {"zone": "CET"}}}, reason="STOP"))


class NoArguments(GeminiAnimal):
    """A call of a tool without parameters has no `args`. https://github.com/avante-corp/avante.nvim/issues/1788"""

    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return sse(chunk({"functionCall": {"name": "now"}}, reason="STOP"))


class SecondCandidate(GeminiAnimal):
    """Another candidate mixes its call in. https://github.com/BerriAI/litellm/pull/40864"""

    def first(self, body: Json) -> bytes:
        other = chunk({"functionCall": {"name": "get_time", "args": {"zone": "CET"}}}, index=1, reason="STOP")
        return sse(chunk(CALL), other, chunk(reason="STOP"))


class MalformedCall(Silent, GeminiAnimal):
    """The model writes Python instead of a call. https://github.com/googleapis/python-genai/issues/2868"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        words = "Malformed function call: print(default_api.get_time(zone='UTC'))"
        return sse(chunk(reason="MALFORMED_FUNCTION_CALL", finishMessage=words))


class UnexpectedCall(Silent, GeminiAnimal):
    """The model calls what there is not. https://github.com/BerriAI/litellm/pull/40864"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return sse(chunk(reason="UNEXPECTED_TOOL_CALL"))


class EmptyStop(Silent, GeminiAnimal):
    """It stops in good order and has said nothing. https://github.com/AstrBotDevs/AstrBot/pull/6735"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return sse(chunk(reason="STOP", content={"role": "model"}))


class EmptyText(Silent, GeminiAnimal):
    """Its one part is an empty text. https://github.com/livekit/agents/issues/4066"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return sse(chunk({"text": ""}, reason="STOP"))


class NoFinish(Silent, GeminiAnimal):
    """The stream ends without a reason. https://github.com/jakobdylanc/llmcord/issues/84"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return sse(chunk({"text": ""}))


class ErrorWithinTheStream(Silent, GeminiAnimal):
    """An error comes after 200. https://github.com/googleapis/python-genai/issues/2868"""

    code = "rate_limit_exceeded"

    def first(self, body: Json) -> bytes:
        return sse({"error": {"code": 429, "message": "Resource has been exhausted.", "status": "RESOURCE_EXHAUSTED"}})


class PromptBlocked(GeminiAnimal):
    """There are no candidates, only a reason why. https://github.com/avante-corp/avante.nvim/pull/2053"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USAGE})
