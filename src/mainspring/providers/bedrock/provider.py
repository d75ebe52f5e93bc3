"""Amazon Bedrock: every model that Converse can ask, with keys of Amazon's or an API key of Bedrock's."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest, ModelNotFound, Refused, Unauthorized
from mainspring.core.items import Adaptation
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.bedrock.aws_credentials import find_region, find_source, name_domain
from mainspring.providers.bedrock.reply import BedrockReply
from mainspring.providers.bedrock.request import REFUSALS, UNPROFILED, UNSTREAMED, build_body, is_claude, name_vendor
from mainspring.providers.bedrock.sigv4 import SigV4Signer
from mainspring.providers.credentials import CredentialCache
from mainspring.providers.http_client import Http, HttpReply
from mainspring.providers.http_provider import HttpOptions, HttpProvider
from mainspring.providers.transcript import list_functions


def make_bedrock(
    base_url: str | None,
    *,
    environment: Mapping[str, str],
    region: str | None = None,
    aws_profile: str | None = None,
    **options: Unpack[HttpOptions],
) -> "Bedrock":
    """The provider for a region. Raises `InvalidRequest` if there is none, or the profile cannot be used."""
    place = region or find_region(environment, aws_profile)
    if not place or not _REGION.fullmatch(place):
        advice = "set `region` or AWS_REGION, like `us-east-1`"
        raise InvalidRequest(f"a backend of kind `bedrock` needs a region; {advice}", param="providers")
    key = options.get("api_key") or (environment.get("AWS_BEARER_TOKEN_BEDROCK") if aws_profile is None else None)
    options = {**options, "api_key": key}
    if not key:
        options["signer"] = SigV4Signer(CredentialCache(find_source(environment, aws_profile, place)), place, "bedrock")
    return Bedrock(base_url, place, **options)


class Bedrock(HttpProvider):
    """The Converse API in one region. A model is a model's id, an inference profile's id, or an ARN."""

    name = "bedrock"
    owner = "amazon"
    fixed_headers: ClassVar = {"Accept": "application/vnd.amazon.eventstream, application/json"}

    def __init__(self, base_url: str | None, region: str, **options: Unpack[HttpOptions]) -> None:
        domain = name_domain(region)
        super().__init__(base_url or f"https://bedrock-runtime.{region}.{domain}", **options)
        # Which models there are is asked elsewhere.
        self._control = base_url or f"https://bedrock.{region}.{domain}"
        self._region, self._options = region, options

    def _reader(self, request: ModelRequest) -> BedrockReply:
        turn = self._turn(request, leaks=not is_claude(request.model) or not self._book.find(request.model).tools)
        return BedrockReply(turn, self._http, name_vendor(request.model))

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        try:
            return await self._ask_converse(request, notes)
        except ModelNotFound as error:
            if not UNPROFILED.search(error.message):
                raise
            advice = f"ask for it by its profile in this region, such as `us.{request.model}`; `mainspring models` lists them"
            raise ModelNotFound(f"{error.message}; {advice}") from error
        except Unauthorized as error:
            needed = "the identity may call `bedrock:InvokeModelWithResponseStream` (and `bedrock:InvokeModel`) on it"
            advice = f"check that the account has access to the model in {self._region}, and that {needed}"
            raise Unauthorized(f"{error.message}; {advice}") from error

    async def _ask_converse(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        """A model that cannot stream calls is asked for a whole answer, by another operation."""
        build, place = partial(build_body, request), f"model/{quote(request.model, safe='')}"
        if self._book.find(request.model).stream_tools or not list_functions(request):
            try:
                return await self._post_adapted(f"{place}/converse-stream", request.model, build, REFUSALS, notes)
            except Refused as refusal:
                if not UNSTREAMED.search(refusal.message):
                    raise
                self._learn(request.model, "stream_tools", False, "the backend does not stream calls of this model", notes)
        return await self._post_adapted(f"{place}/converse", request.model, build, REFUSALS, notes)

    async def models(self) -> Sequence[ModelInfo]:
        """The models that can be asked by their ids, and the inference profiles."""
        options = self._options
        http = Http(
            self._control,
            api_key=options.get("api_key"),
            headers=options.get("headers"),
            timeout=options.get("timeout", 60.0),
            signer=options.get("signer"),
            proxy=options.get("proxy"),
            ca_file=options.get("ca_file"),
        )
        try:
            query = {"byOutputModality": "TEXT"}
            found = await http.fetch("foundation-models", _models, "list of models", query=query)
            models = [ModelInfo(model.modelId, model.providerName) for model in found.modelSummaries if model.can_answer()]
            query = {"maxResults": "1000"}
            while True:
                page = await http.fetch("inference-profiles", _profiles, "list of inference profiles", query=query)
                models += [ModelInfo(profile.inferenceProfileId, self.owner) for profile in page.inferenceProfileSummaries]
                if not page.nextToken:
                    return tuple(models)
                query["nextToken"] = page.nextToken
        finally:
            await http.close()


class _Model(Struct, gc=False):
    modelId: str
    providerName: str = ""
    inferenceTypesSupported: list[str] = []

    def can_answer(self) -> bool:
        return "ON_DEMAND" in self.inferenceTypesSupported


class _ModelList(Struct, gc=False):
    modelSummaries: list[_Model] = []


class _Profile(Struct, gc=False):
    inferenceProfileId: str


class _ProfilePage(Struct, gc=False):
    inferenceProfileSummaries: list[_Profile] = []
    nextToken: str | None = None


_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_models = msgspec.json.Decoder(_ModelList)
_profiles = msgspec.json.Decoder(_ProfilePage)
