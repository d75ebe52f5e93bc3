"""Azure OpenAI: Chat Completions and Responses at Azure's addresses, with its keys or tokens, and told what its filters stop.

A deployment stands where elsewhere a model does. What a request asks for is the name of a model, by which its habits are known,
or of a deployment; `deployments` says which deployment has which model.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Unpack
from urllib.parse import quote

import msgspec

from mainspring.core.errors import InvalidRequest, Misconfigured, ModelNotFound, Refused, Unauthorized
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo, Provider
from mainspring.providers.azure.entra import make_signer
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_failures import list_filtered
from mainspring.providers.http_provider import HttpOptions, HttpProvider
from mainspring.providers.responses.provider import Responses


def make_azure(
    base_url: str | None,
    *,
    environment: Mapping[str, str],
    api: Literal["chat", "responses"] | None = None,
    api_version: str | None = None,
    deployments: Mapping[str, str] | None = None,
    **options: Unpack[HttpOptions],
) -> Provider:
    """The provider for a resource. With no key it asks Microsoft Entra ID for tokens. Raises `InvalidRequest`."""
    resource = base_url or environment.get("AZURE_OPENAI_ENDPOINT")
    if not resource:
        advice = "set it to https://RESOURCE.openai.azure.com, or set AZURE_OPENAI_ENDPOINT"
        raise InvalidRequest(f"a backend of kind `azure` needs a `base_url`; {advice}", param="providers")
    key = options.get("api_key") or environment.get("AZURE_OPENAI_API_KEY")
    options = {**options, "api_key": key, "signer": None if key else make_signer(environment)}
    return (AzureResponses if api == "responses" else AzureChat)(resource, api_version, deployments or {}, **options)


class AzureDoor(HttpProvider):
    """What is Azure's own about a backend that speaks as OpenAI does. Without an `api_version` it is the `/openai/v1` surface."""

    key_header = "api-key"
    owner = "azure"

    def __init__(
        self, resource: str, api_version: str | None, deployments: Mapping[str, str], **options: Unpack[HttpOptions]
    ) -> None:
        base = _SURFACE.sub("", resource.strip())
        version = quote(api_version, safe="") if api_version else None
        super().__init__(f"{base}/openai/v1" if version is None else f"{base}/openai?api-version={version}", **options)
        self._deployments = deployments
        self._is_dated = api_version is not None
        by_key = "it is that of this resource: `key_env`, or AZURE_OPENAI_API_KEY"
        by_token = "the identity has the role `Cognitive Services OpenAI User` for the resource"
        self._advice = f"check that {by_token if options.get('signer') else by_key}"

    async def _post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> HttpReply:
        told = self._name_deployment(body)
        if self._is_dated and path.startswith("chat/"):
            path = f"deployments/{quote(told['model'], safe='')}/{path}"
        try:
            return await super()._post(path, told, query)
        except Unauthorized as error:
            raise Unauthorized(f"{error.message}; {self._advice}") from error
        except ModelNotFound as error:
            advice = f"`{told['model']}` is what is asked for: `deployments` says which deployment has which model"
            raise ModelNotFound(f"{error.message}; {advice}") from error
        except Refused as error:
            if not (known := [advice for words, advice in _ADVICE.items() if words in error.message]):
                raise
            raise Misconfigured(f"{error.message}; {known[0]}") from error

    async def _count_tokens(self, path: str, body: Json) -> int:
        return await super()._count_tokens(path, self._name_deployment(body))

    async def models(self) -> Sequence[ModelInfo]:
        """The models that are said to be deployed, or else those that the resource offers: Azure lists no deployments."""
        if self._deployments:
            return tuple([ModelInfo(model, self.owner) for model in self._deployments])
        return await super().models()

    def _name_deployment(self, body: Json) -> Json:
        return {**body, "model": self._deployments.get(body["model"], body["model"])}


class AzureChat(AzureDoor, Chat):
    """A resource by Chat Completions."""

    name = "azure"
    url_hint = ", which is https://RESOURCE.openai.azure.com"

    def _reader(self, request: ModelRequest) -> "AzureChatReply":
        return AzureChatReply(self._turn(request, leaks=True), self._http)


class AzureResponses(AzureDoor, Responses):
    """A resource by the Responses API."""

    name = "azure"
    url_hint = ", which is https://RESOURCE.openai.azure.com"


class AzureChatReply(ChatCompletionReply):
    """Chunks with what Azure's filters found in them, which comes beside the text or after it. What was stopped is told as a
    refusal, once."""

    _is_told = False

    def _take(self, data: bytes) -> None:
        super()._take(data)
        if not self._is_told and _FILTERED.search(data):
            self._tell_filtered(data)

    def _tell_filtered(self, data: bytes) -> None:
        match self._decode(_anything, data):
            case {"choices": [dict(choice), *_]} if found := list_filtered(choice):
                self._finish, self._is_told = "content_filter", True
                self._turn.refusal(f"The content filter of Azure stopped this answer: {', '.join(found)}.")


_ADVICE = {
    "API version not supported": "set `api_version` to one that the resource has, or leave it out for the `/openai/v1` surface",
    "chatCompletion operation does not work": 'set `api = "responses"` for this backend',
}
_SURFACE = re.compile(r"/*(/openai(/v1)?)?/*$")
_FILTERED = re.compile(rb'"filtered"\s*:\s*true')
_anything = msgspec.json.Decoder()
