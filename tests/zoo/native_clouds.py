"""Animals of the clouds: Azure OpenAI, Amazon Bedrock and Vertex AI. Shapes are those that are published, written by hand."""

from collections.abc import Sequence
from datetime import UTC as ZERO
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
from aiohttp import web
from tests.clouds import aws
from tests.clouds.aws import MIME, START, delta, event, exception
from tests.providers.backend import DONE, chunk, sse
from tests.zoo.animal import NOON, UTC, Refusal, call, mentions, outputs, say
from tests.zoo.native_animal import ASKED_AGAIN, NativeAnimal, Outcome, Silent
from tests.zoo.native_anthropic import START as CLAUDE_START
from tests.zoo.native_anthropic import ClaudeAnimal, text, write
from tests.zoo.native_gemini import CALL, GeminiAnimal
from tests.zoo.native_gemini import chunk as gemini_chunk
from tests.zoo.native_refusals import TAGGED, Thoughtful
from tests.zoo.native_responses import BEGUN, CREATED, ResponsesAnimal, added, arguments, completed, done
from tests.zoo.native_responses import CALL as ITEM

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape
from mainspring.providers.azure.provider import AzureChat, AzureResponses
from mainspring.providers.bedrock.provider import Bedrock
from mainspring.providers.bedrock.sigv4 import AwsKeys, SigV4Signer
from mainspring.providers.credentials import BearerSigner, CredentialCache, Expiring
from mainspring.providers.vertex.provider import Vertex

KEY = "cloud-key-0123456789abcdef"


class Tokens:
    """A service that gives tokens, a new one each time."""

    def __init__(self) -> None:
        self.count = 0

    async def fetch(self) -> Expiring[str]:
        self.count += 1
        return Expiring(f"cloud-token-{self.count}-0123456789abcdef")


class AzureAnimal(NativeAnimal):
    path = "/openai/v1/chat/completions"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return AzureChat(url, None, {}, api_key=KEY, tape=tape)

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return outputs(body)

    def describe(self, refusal: Refusal) -> Json:
        return {"error": {"code": str(refusal.status), "message": refusal.message}}

    def call(self) -> bytes:
        return call("call_1", UTC)

    def say(self, *pieces: str) -> bytes:
        return say(*pieces)


class FilteredPrompt(Silent, AzureAnimal):
    """A filter stops the prompt. https://github.com/langchain-ai/langchain/issues/18977"""

    code = "invalid_prompt"
    words = "hate (high)"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("The response was filtered due to the prompt triggering Azure OpenAI's content management policy.")

    def describe(self, refusal: Refusal) -> Json:
        found = {"content_filter_result": {"hate": {"filtered": True, "severity": "high"}, "violence": {"filtered": False}}}
        return {"error": {"code": "content_filter", "message": refusal.message, "status": 400, "innererror": found}}


class FilteredWords(AzureAnimal):
    """A filter stops the words. https://github.com/microsoft/autogen/issues/6465"""

    status = "incomplete"

    def last(self, body: Json) -> bytes:
        stop = chunk(finish="content_filter")
        stop["choices"][0]["content_filter_results"] = {"violence": {"filtered": True, "severity": "medium"}}
        return sse(chunk({"content": "It is"}), stop) + DONE


class FilterBesideThem(AzureAnimal):
    """What filters found comes in chunks of its own, without a delta. https://github.com/Azure/azure-sdk-for-go/issues/21086"""

    def last(self, body: Json) -> bytes:
        safe = {"hate": {"filtered": False, "severity": "safe"}}
        prompt: Json = {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": safe}]}
        late: Json = {"id": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_results": safe}]}
        return sse(prompt, chunk({"content": NOON}), late, chunk(finish="stop"), late) + DONE


class NoDeployment(Silent, AzureAnimal):
    """There is no such deployment. https://github.com/chatboxai/chatbox/issues/646"""

    code = "model_not_found"
    words = "`deployments`"

    def refuse(self, body: Json) -> Refusal:
        return Refusal(
            "The API deployment for this resource does not exist. If you created it within the last 5 minutes, wait.", 404
        )

    def describe(self, refusal: Refusal) -> Json:
        return {"error": {"code": "DeploymentNotFound", "message": refusal.message}}


class NoVersion(Silent, AzureAnimal):
    """The version is refused. https://github.com/hotovo/aider-desk/issues/460"""

    code = "provider_misconfigured"
    words = "`api_version`"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("API version not supported")

    def describe(self, refusal: Refusal) -> Json:
        return {"error": {"code": "BadRequest", "message": refusal.message}}


class NoChat(Silent, AzureAnimal):
    """The model is asked by Responses only. https://github.com/skydiscover-ai/skydiscover/pull/47"""

    code = "provider_misconfigured"
    words = 'api = "responses"'

    def refuse(self, body: Json) -> Refusal:
        return Refusal(
            "The chatCompletion operation does not work with the specified model, gpt-5-codex. Please choose different model."
        )

    def describe(self, refusal: Refusal) -> Json:
        return {"error": {"code": "OperationNotSupported", "message": refusal.message}}


class NoResource(Silent, AzureAnimal):
    """The path is not there. https://github.com/rusiaaman/chat.md/issues/2"""

    code = "provider_misconfigured"
    words = "base URL"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Resource not found", 404)


class WaitInMilliseconds(Silent, AzureAnimal):
    """How long to wait is told in milliseconds. https://github.com/chatboxai/chatbox/issues/646"""

    code = "rate_limit_exceeded"
    words = "in 0.25 s"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Requests have exceeded the token rate limit.", 429, {"retry-after-ms": "250"})


class Firewall(Silent, AzureAnimal):
    """A firewall stands before the resource. https://github.com/microsoft/azurechat/issues/447"""

    code = "provider_unauthorized"
    words = "Firewall rules"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Access denied due to Virtual Network/Firewall rules.", 403)


class OtherLimit(AzureAnimal):
    """The bound on the output has another name. https://github.com/anomalyco/opencode/issues/37964"""

    request: ClassVar = {"max_output_tokens": 500}

    def refuse(self, body: Json) -> str | None:
        words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return words if "max_tokens" in body else None


class OldVersion(AzureAnimal):
    """An old version knows no options of streams. https://github.com/gonka-ai/gonka/pull/1177"""

    def refuse(self, body: Json) -> str | None:
        return "Unrecognized request argument supplied: stream_options" if "stream_options" in body else None


class TokenExpires(AzureAnimal):
    """The token of Entra expires in between: it is fetched again. https://github.com/langchain-ai/langchain/issues/18977"""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = Tokens()

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return AzureChat(url, None, {}, signer=BearerSigner(self.tokens.fetch), tape=tape)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if len(self.asked) == 1 and "token-1-" in request.headers["Authorization"]:
            return web.json_response({"error": {"code": "401", "message": "Access token has expired"}}, status=401)
        return await super().handle(request)

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert self.tokens.count == 2


class AzureResponsesAnimal(ResponsesAnimal):
    path = "/openai/v1/responses"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return AzureResponses(url, None, {}, api_key=KEY, tape=tape)


class ItemsNotKept(AzureResponsesAnimal):
    """Items that are sent back by their ids are not found. https://github.com/earendil-works/pi/pull/4256"""

    def refuse(self, body: Json) -> str | None:
        ids = [item["id"] for item in body["input"] if "id" in item]
        words = "Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item."
        return f"Item with id '{ids[0]}' not found. {words}" if ids else None

    def first(self, body: Json) -> bytes:
        thought: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
        told = [added(BEGUN, 1), *arguments(UTC, index=1), done(ITEM, 1)]
        return sse(CREATED, added(thought), done(thought), *told, completed(thought, ITEM))


class BedrockAnimal(NativeAnimal):
    path = "/model/{model}/{operation}"
    mime = MIME
    model = "amazon.nova-lite-v1:0"
    kind: ClassVar[str] = "ValidationException"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Bedrock(url, "us-east-1", api_key=KEY, tape=tape)

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return [block for message in body["messages"] for block in message["content"] if "toolResult" in block]

    def describe(self, refusal: Refusal) -> Json:
        refusal.headers["x-amzn-ErrorType"] = f"{self.kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
        return {"message": refusal.message}

    def call(self) -> bytes:
        return START + aws.call(("tooluse_1", UTC))

    def say(self, *pieces: str) -> bytes:
        return aws.say(*pieces)


class NoToolsAtAll(BedrockAnimal):
    """The model knows no tools. https://github.com/langchain-ai/langchain-aws/issues/447"""

    model = "us.deepseek.r1-v1:0"

    def refuse(self, body: Json) -> str | None:
        is_told = "toolConfig" in body or mentions(body["messages"], '"tool(Use|Result)"')
        return "This model doesn't support tool use." if is_told else None

    def first(self, body: Json) -> bytes:
        if mentions(body, "12:00"):
            return self.say(NOON)
        return self.say(TAGGED if mentions(body, "Tells the time in a zone.") else "I cannot know that.")


class OutputsAlone(BedrockAnimal):
    """Outputs of tools and words may not be in one turn. https://github.com/browser-use/browser-use/issues/710"""

    request: ClassVar = ASKED_AGAIN

    def refuse(self, body: Json) -> str | None:
        roles = [message["role"] for message in body["messages"]]
        if any(before == after for before, after in pairwise(roles)):
            return "A conversation must alternate between user and assistant roles."
        mixed = [
            message
            for message in body["messages"]
            if {"toolResult", "text"} <= {key for block in message["content"] for key in block}
        ]
        return (
            "messages.2.content: Conversation blocks and tool result blocks cannot be provided in the same turn."
            if mixed
            else None
        )

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return super().find_outputs(body)[1:]


class NoCachePoints(BedrockAnimal):
    """A place for the cache is refused. https://github.com/earendil-works/pi/issues/2053"""

    model = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"

    def refuse(self, body: Json) -> str | Refusal | None:
        words = "Malformed input request: #/messages/0/content/1: extraneous key [cachePoint] is not permitted"
        return words if mentions(body, "cachePoint") else None


class NoCaching(NoCachePoints):
    """The account may not cache. https://github.com/BerriAI/litellm/pull/39210"""

    kind = "AccessDeniedException"

    def refuse(self, body: Json) -> str | Refusal | None:
        words = "You invoked an unsupported model or your request did not allow prompt caching. See the documentation."
        return Refusal(words, 403) if mentions(body, "cachePoint") else None


class StaleSealOnBedrock(Thoughtful, BedrockAnimal):
    """A signature is refused that was good once. https://github.com/pydantic/pydantic-ai/issues/3757"""

    model = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    sealed = 'mainspring.bedrock-anthropic.{"type":"thinking","thinking":"Hm.","signature":"b2xk"}'

    def refuse(self, body: Json) -> str | None:
        words = "The model returned the following errors: messages.1.content.0: Invalid `signature` in `thinking` block"
        return words if mentions(body, "b2xk") else None


class ProfileWanted(Silent, BedrockAnimal):
    """The model is had by an inference profile only. https://github.com/anomalyco/opencode/issues/396"""

    code = "model_not_found"
    words = "us.amazon.nova-lite-v1:0"

    def refuse(self, body: Json) -> Refusal:
        words = "with on-demand throughput isn\u2019t supported. Retry your request with the ID or ARN of an inference profile"
        return Refusal(f"Invocation of model ID {self.model} {words} that contains this model.")


class ClockIsWrong(BedrockAnimal):
    """The clock here is late: signatures have expired. https://github.com/anthropics/anthropic-sdk-go/issues/122"""

    kind = "InvalidSignatureException"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        async def fetch() -> Expiring[AwsKeys]:
            return Expiring(AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"))

        late = SigV4Signer(CredentialCache(fetch), "us-east-1", "bedrock", clock=lambda: datetime.now(ZERO) - timedelta(hours=1))
        return Bedrock(url, "us-east-1", signer=late, tape=tape)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        signed = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=ZERO)
        if abs(datetime.now(ZERO) - signed) > timedelta(minutes=5):
            told = Refusal(f"Signature expired: {signed:%Y%m%dT%H%M%SZ} is now earlier than now", 403)
            self.refused.append(told.message)
            body = self.describe(told)
            return web.json_response(body, status=403, headers=told.headers)
        return await super().handle(request)


class NoMetadata(BedrockAnimal):
    """Nothing follows the end, and no tokens are counted. https://github.com/ankit373/hydra/issues/971"""

    def last(self, body: Json) -> bytes:
        return START + delta(0, {"text": NOON}) + event("messageStop", {"stopReason": "end_turn"})


class NoBlockStarts(BedrockAnimal):
    """Blocks of words begin with nothing. https://github.com/ankit373/hydra/issues/971"""

    def last(self, body: Json) -> bytes:
        begun = event("contentBlockStart", {"contentBlockIndex": 0, "start": {}})
        return START + begun + delta(0, {"text": NOON}) + event("contentBlockStop", {"contentBlockIndex": 0}) + aws.end()


class BrokenCall(Silent, BedrockAnimal):
    """The model cannot write a call. https://github.com/strands-agents/harness-sdk/issues/649"""

    code = "provider_unavailable"
    words = "invalid sequence"

    def first(self, body: Json) -> bytes:
        return START + exception("modelStreamErrorException", "Model produced invalid sequence as part of ToolUse.")


class ThrottledBehindWords(BedrockAnimal):
    """It slows down in the middle of its words. https://github.com/strands-agents/harness-sdk/issues/649"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return START + delta(0, {"text": "It is"}) + exception("throttlingException", "Too many tokens, please wait.")


class OtherStopReason(BedrockAnimal):
    """It stops for a reason that nobody has listed. https://github.com/anomalyco/opencode/pull/46193"""

    status = "incomplete"

    def last(self, body: Json) -> bytes:
        return aws.say("It is", reason="output_guardrail_blocked")


class OddNames(BedrockAnimal):
    """It calls what has a name that it would refuse. https://github.com/vercel/ai/pull/17769"""

    zones: ClassVar = []

    def refuse(self, body: Json) -> str | None:
        blocks = [block["toolUse"] for message in body["messages"] for block in message["content"] if "toolUse" in block]
        is_odd = any(not set(block["name"]) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") for block in blocks)
        return (
            "toolUse.name failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
            if is_odd
            else None
        )

    def first(self, body: Json) -> bytes:
        start = {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "tooluse_1", "name": "$READ FILE"}}}
        return START + event("contentBlockStart", start) + delta(0, {"toolUse": {"input": "{}"}}) + aws.end("tool_use")


PLACE = "v1/projects/our-project/locations/global"


class VertexAnimal(GeminiAnimal):
    path = f"/{PLACE}/publishers/google/models/{{model}}:streamGenerateContent"

    def __init__(self) -> None:
        super().__init__()
        self.tokens = Tokens()

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Vertex(url, PLACE, signer=BearerSigner(self.tokens.fetch), tape=tape)


class GoogleTokenExpires(VertexAnimal):
    """The token expires in between: it is fetched again, once. https://github.com/zendev-sh/goai/pull/31"""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if len(self.asked) == 1 and "token-1-" in request.headers["Authorization"]:
            error = {"code": 401, "message": "Request had invalid authentication credentials.", "status": "UNAUTHENTICATED"}
            return web.json_response({"error": error}, status=401)
        return await super().handle(request)

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert self.tokens.count == 2


class TokenNeverGood(Silent, VertexAnimal):
    """No token is good. https://github.com/zendev-sh/goai/pull/31"""

    code = "provider_unauthorized"
    words = "roles/aiplatform.user"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Request had invalid authentication credentials.", 401)

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert self.tokens.count == 2


class NoPublisherModel(Silent, VertexAnimal):
    """The model is not in this location. https://github.com/zendev-sh/goai/pull/31"""

    code = "model_not_found"
    words = "`region`"

    def refuse(self, body: Json) -> Refusal:
        words = "was not found or your project does not have access to it. Please ensure you are using a valid model version."
        return Refusal(
            f"Publisher Model `projects/our-project/locations/global/publishers/google/models/{self.model}` {words}", 404
        )


class ServiceDisabled(Silent, VertexAnimal):
    """The API is not enabled. https://github.com/wso2/carbon-apimgt/pull/13953"""

    code = "provider_unauthorized"
    words = "the Vertex AI API is enabled"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Vertex AI API has not been used in project our-project before or it is disabled.", 403)


class Exhausted(Silent, VertexAnimal):
    """Its resources are exhausted. https://github.com/googleapis/python-genai/issues/2868"""

    code = "rate_limit_exceeded"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Resource exhausted. Please try again later.", 429)


class NoIdsTaken(VertexAnimal):
    """Ids of calls are refused. https://github.com/epam/ai-dial-adapter-vertexai/pull/335"""

    zones: ClassVar = ["UTC", "CET"]

    def refuse(self, body: Json) -> str | None:
        words = "Invalid JSON payload received. Unknown name \"id\" at 'contents[1].parts[0].function_call': Cannot find field."
        return words if mentions(body["contents"], '"id"') else None

    def first(self, body: Json) -> bytes:
        return sse(gemini_chunk(CALL, {"functionCall": {"name": "get_time", "args": {"zone": "CET"}}}, reason="STOP"))


class SignatureWanted(VertexAnimal):
    """A call that another model made has no signature. https://github.com/epam/ai-dial-adapter-vertexai/pull/335"""

    request: ClassVar = ASKED_AGAIN

    def refuse(self, body: Json) -> str | None:
        calls = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
        words = "Unable to submit request because function call `default_api:get_time` in the 2. content block is missing"
        return f"{words} a `thought_signature`." if any("thoughtSignature" not in part for part in calls) else None

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return super().find_outputs(body)[1:]


class ArrayFromVertex(VertexAnimal):
    """It answers with a JSON array. https://github.com/nyo16/nous/pull/26"""

    mime = "application/json"

    def first(self, body: Json) -> bytes:
        return msgspec.json.encode([gemini_chunk(CALL), gemini_chunk(reason="STOP")])

    def last(self, body: Json) -> bytes:
        return msgspec.json.encode([gemini_chunk({"text": NOON}), gemini_chunk(reason="STOP")])


class VertexClaudeAnimal(ClaudeAnimal):
    path = f"/{PLACE}/publishers/anthropic/models/{{model}}:streamRawPredict"
    model = "claude-opus-4-6"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Vertex(url, PLACE, signer=BearerSigner(Tokens().fetch), tape=tape)

    def describe(self, refusal: Refusal) -> Json:
        """As Google passes on what Anthropic says."""
        told = {**super().describe(refusal), "request_id": "req_vrtx_1"}
        return {"error": {"code": refusal.status, "message": msgspec.json.encode(told).decode(), "status": "INVALID_ARGUMENT"}}


class NoOutputConfigOnVertex(VertexClaudeAnimal):
    """The effort has no place. https://github.com/anthropics/claude-code/issues/37746"""

    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return "output_config: Extra inputs are not permitted" if "output_config" in body else None


class StaleThoughtOnVertex(Thoughtful, VertexClaudeAnimal):
    """A signature is refused that was good elsewhere. https://github.com/lbjlaq/Antigravity-Manager/issues/498"""

    sealed = 'mainspring.anthropic.{"type":"thinking","thinking":"Hm.","signature":"b2xk"}'

    def refuse(self, body: Json) -> str | None:
        return "messages.1.content.0: Invalid `signature` in `thinking` block" if mentions(body, "b2xk") else None


class OverloadedOnVertex(VertexClaudeAnimal):
    """It is overloaded in the middle of its words. https://github.com/anthropics/anthropic-sdk-typescript/issues/454"""

    status = "failed"
    zones: ClassVar[Any] = ["UTC"]

    def last(self, body: Json) -> bytes:
        error: Json = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return write(CLAUDE_START, *text("It is")[:2], error)


class QuotaOnVertex(Silent, VertexClaudeAnimal):
    """Its quota is used up. https://github.com/zendev-sh/goai/pull/31"""

    code = "rate_limit_exceeded"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model", 429)
