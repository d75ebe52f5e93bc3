"""Animals that speak as Gemini does. Shapes of chunks are those of `streamGenerateContent`, written by hand."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from tests.providers.backend import DONE, sse
from tests.zoo.animal import NOON, Refusal, mentions
from tests.zoo.native_animal import ASKED_AGAIN, NativeAnimal, Silent

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape
from mainspring.providers.gemini.provider import Gemini

CALL: Json = {"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}}
USAGE = {"promptTokenCount": 20, "candidatesTokenCount": 5, "totalTokenCount": 25}


def chunk(*parts: Json, reason: str | None = None, index: int = 0, **fields: object) -> Json:
    candidate: Json = {"index": index, **({"content": {"role": "model", "parts": list(parts)}} if parts else {})}
    return {"candidates": [candidate | ({"finishReason": reason} if reason else {}) | fields], "usageMetadata": USAGE}


def list_array(*chunks: Json) -> list[bytes]:
    """Chunks as one array that comes in pieces."""
    told = [msgspec.json.encode(each) for each in chunks]
    return [b"[" + told[0], *[b"\n,\r\n" + each for each in told[1:]], b"\n]"]


class GeminiAnimal(NativeAnimal):
    path = "/v1beta/models/{model}:streamGenerateContent"
    model = "gemini-3-flash"

    def describe(self, refusal: Refusal) -> Json:
        return {"error": {"code": refusal.status, "message": refusal.message, "status": "INVALID_ARGUMENT"}}

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Gemini(url, tape=tape)

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
        return told if mentions(body.get("tools"), "additionalProperties") else None


class NoJsonSchema(GeminiAnimal):
    """Only the older field for parameters is known. https://github.com/danny-avila/LibreChat/pull/13850"""

    def refuse(self, body: Json) -> str | None:
        told = "Unknown name \"parametersJsonSchema\" at 'tools[0].function_declarations[0]': Cannot find field."
        return told if mentions(body.get("tools"), "parametersJsonSchema") else None


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


class WithoutSse(GeminiAnimal):
    """It answers with a JSON array, as without `alt=sse`. https://github.com/nyo16/nous/pull/26"""

    mime = "application/json"

    def first(self, body: Json) -> list[bytes]:
        return list_array(chunk(CALL), chunk(reason="STOP"))

    def last(self, body: Json) -> list[bytes]:
        return list_array(chunk({"text": "It is "}), chunk({"text": "noon."}), chunk(reason="STOP"))


class WholeObject(GeminiAnimal):
    """It answers with one object. https://github.com/nyroway/nyro/pull/182"""

    mime = "application/json"

    def first(self, body: Json) -> bytes:
        return msgspec.json.encode(chunk(CALL, reason="STOP"))

    def last(self, body: Json) -> bytes:
        return msgspec.json.encode(chunk({"text": NOON}, reason="STOP"))


class WholeErrorArray(Silent, GeminiAnimal):
    """An error comes in an array, after 200. https://github.com/nyo16/nous/pull/26"""

    mime = "application/json"
    code = "rate_limit_exceeded"

    def first(self, body: Json) -> bytes:
        error = {"code": 429, "message": "Resource has been exhausted.", "status": "RESOURCE_EXHAUSTED"}
        return msgspec.json.encode([{"error": error}])


class ReasonFirst(GeminiAnimal):
    """A reason comes before the words. https://github.com/Chevey339/kelivo/pull/1002"""

    def last(self, body: Json) -> bytes:
        return sse(chunk(reason="STOP", content={"role": "model", "parts": []}), chunk({"text": NOON}), chunk(reason="STOP"))


class ReasonUnspecified(GeminiAnimal):
    """Each chunk has a reason that says nothing. https://github.com/epam/ai-dial-adapter-vertexai/issues/85"""

    def last(self, body: Json) -> bytes:
        return sse(chunk({"text": NOON}, reason="FINISH_REASON_UNSPECIFIED"), chunk(reason="STOP"))


class NoBlockReason(GeminiAnimal):
    """The reason for blocking is an empty text. https://github.com/BerriAI/litellm/pull/28847"""

    def first(self, body: Json) -> bytes:
        return sse({**chunk(CALL, reason="STOP"), "promptFeedback": {"blockReason": ""}})

    def last(self, body: Json) -> bytes:
        none = {"promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED"}}
        return sse({**chunk({"text": NOON}, reason="STOP"), **none})


class FilteredCall(GeminiAnimal):
    """A call comes with a filter's reason: it does not run. https://github.com/BerriAI/litellm/pull/28847"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return sse(chunk(CALL, reason="SAFETY"))


class Filtered(GeminiAnimal):
    """A filter stops it before it has said anything. https://github.com/epam/ai-dial-adapter-vertexai/issues/85"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return sse(chunk(reason="RECITATION", citationMetadata={"citationSources": [{"startIndex": 0, "endIndex": 9}]}))


class Other(Silent, GeminiAnimal):
    """It gives up for another reason. https://github.com/epam/ai-dial-adapter-vertexai/issues/85"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return sse(chunk(reason="OTHER"))


class NoCandidates(Silent, GeminiAnimal):
    """Nothing comes but counts. https://github.com/AstrBotDevs/AstrBot/pull/6735"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return sse({"usageMetadata": USAGE}, {"candidates": []})


class CutCall(GeminiAnimal):
    """It is out of room behind a call. https://github.com/NousResearch/hermes-agent/pull/43478"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return sse(chunk(CALL, reason="MAX_TOKENS"))


class NullParts(GeminiAnimal):
    """What is empty is null. https://github.com/BerriAI/litellm/pull/24453"""

    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        call = {"functionCall": {"name": "now", "args": None, "id": None}, "text": None, "thought": None}
        return sse(
            {"candidates": [{"content": {"parts": None}, "finishReason": None}], "usageMetadata": None},
            chunk(call),
            chunk(reason="STOP"),
        )


class SignatureOnTheThought(GeminiAnimal):
    """The signature of a call is on the thought before it, and must be on either. https://github.com/BerriAI/litellm/pull/25357"""

    def refuse(self, body: Json) -> str | None:
        is_missing = self.find_outputs(body) and not mentions(body["contents"], "c2lnbg==")
        return "Function call is missing a thought_signature in functionCall parts." if is_missing else None

    def first(self, body: Json) -> bytes:
        thought: Json = {"text": "I look.", "thought": True, "thoughtSignature": "c2lnbg=="}
        return sse(chunk(thought), chunk(CALL, reason="STOP"))


class SignatureOfTheFirstCall(GeminiAnimal):
    """Of calls made at once only the first is signed, and the others must not be. https://github.com/envoyproxy/ai-gateway/pull/2366"""

    zones: ClassVar = ["UTC", "CET"]

    def refuse(self, body: Json) -> str | None:
        calls = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
        is_wrong = calls and [part.get("thoughtSignature") for part in calls] != ["c2lnbg==", None]
        return "Thought signature is not valid." if is_wrong else None

    def first(self, body: Json) -> bytes:
        other: Json = {"functionCall": {"name": "get_time", "args": {"zone": "CET"}}}
        return sse(chunk({**CALL, "thoughtSignature": "c2lnbg=="}), chunk(other, reason="STOP"))


class SignatureOnEmptyText(GeminiAnimal):
    """The signature comes last, on an empty text. https://github.com/docker/docker-agent/issues/851"""

    def refuse(self, body: Json) -> str | None:
        return "Text part is missing." if self.find_outputs(body) and not mentions(body["contents"], "bGFzdA==") else None

    def first(self, body: Json) -> bytes:
        return sse(chunk(CALL), chunk({"text": "", "thoughtSignature": "bGFzdA=="}, reason="STOP"))


class UsageInTheMiddle(GeminiAnimal):
    """Tokens are counted in some chunks only. https://github.com/ankit373/hydra/pull/855"""

    def last(self, body: Json) -> bytes:
        first, rest = chunk({"text": "It is "}), chunk({"text": "noon."}, reason="STOP")
        rest.pop("usageMetadata")
        return sse(first, rest)


class ArgumentsAsText(GeminiAnimal):
    """Arguments are JSON text. https://github.com/BerriAI/litellm/issues/25561"""

    def first(self, body: Json) -> bytes:
        return sse(chunk({"functionCall": {"name": "get_time", "args": '{"zone": "UTC"}'}}, reason="STOP"))


class DoneAtTheEnd(GeminiAnimal):
    """A proxy writes `[DONE]`, and no reason. https://github.com/jakobdylanc/llmcord/issues/84"""

    def first(self, body: Json) -> bytes:
        return sse(chunk(CALL)) + DONE

    def last(self, body: Json) -> bytes:
        return sse(chunk({"text": NOON})) + DONE


class OutputsAlone(GeminiAnimal):
    """Outputs of tools must be alone in their turn. https://github.com/anomalyco/opencode/pull/43479"""

    request: ClassVar = ASKED_AGAIN

    def refuse(self, body: Json) -> str | None:
        mixed = [
            content
            for content in body["contents"]
            if {"functionResponse", "text"} <= {key for part in content["parts"] for key in part}
        ]
        words = "Please ensure that the number of function response parts is equal to the number of function call parts."
        return words if mixed else None

    def first(self, body: Json) -> bytes:
        return self.call()

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return super().find_outputs(body)[1:]
