"""Vertex AI: Gemini and Claude as Google Cloud serves them, at its addresses and with its tokens.

Both speak as they do at home, through the adapters of their own formats. A model whose name begins with `claude` is Anthropic's.
"""

import re
from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import ClassVar, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest, ModelNotFound, ProviderError, Refused, Unauthorized
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import DocumentStore, KnownProfile, ModelFeature, ModelInfo, ProfileValue
from mainspring.providers.anthropic.provider import Anthropic
from mainspring.providers.credentials import BearerSigner
from mainspring.providers.gemini.provider import Gemini, token_total
from mainspring.providers.gemini.request import build_body, name_resource
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpOptions
from mainspring.providers.json_text import encode_body
from mainspring.providers.profiles import ModelProfile
from mainspring.providers.vertex.google_credentials import lack_credentials, make_source, read_credentials

log = getLogger(__name__)

VERSION = "vertex-2023-10-16"


def make_vertex(
    base_url: str | None,
    *,
    environment: Mapping[str, str],
    project: str | None = None,
    region: str | None = None,
    credentials_file: str | None = None,
    **options: Unpack[HttpOptions],
) -> "Vertex":
    """The provider for a project in a location, or for an API key of express mode, which needs neither. Raises
    `InvalidRequest`."""
    place = region or environment.get("GOOGLE_CLOUD_LOCATION") or "global"
    if not _PLACE.fullmatch(place):
        raise InvalidRequest(
            f"`{place:.60}` is no location of Vertex AI; write it like `global` or `us-east5`", param="providers"
        )
    if options.get("api_key"):
        return Vertex(base_url or _find_host("global"), "v1", **options)
    found, file = project or environment.get("GOOGLE_CLOUD_PROJECT"), None
    try:
        file = read_credentials(environment, credentials_file)
        source = make_source(environment, file)
        found = found or (None if file is None else file.project_id or file.quota_project_id)
    except Unauthorized as error:
        log.warning("%s: %s", options.get("name") or "vertex", error.message)
        source, found = lack_credentials(error), found or "unknown"
    if not found or not _PROJECT.fullmatch(found):
        advice = "set `project` or GOOGLE_CLOUD_PROJECT, or a key of express mode by `key_env`"
        raise InvalidRequest(f"a backend of kind `vertex` needs a project; {advice}", param="providers")
    # Whose quota counts, for credentials that belong to no project.
    billed = {"x-goog-user-project": file.quota_project_id or found} if file and file.type == "authorized_user" else {}
    options["signer"] = BearerSigner(source, billed)
    return Vertex(base_url or _find_host(place), f"v1/projects/{found}/locations/{place}", **options)


class Vertex(Gemini):
    """The models at one address. `place` is what stands before the publisher in a path."""

    name = "vertex"

    def __init__(self, base_url: str, place: str, **options: Unpack[HttpOptions]) -> None:
        super().__init__(base_url, **options)
        self._place = f"{place}/publishers/google"
        self._claude = None if place == "v1" else VertexClaude(base_url, place, **options)

    def stream(self, request: ModelRequest) -> ModelStream:
        is_claude = self._claude is not None and _is_claude(request.model)
        return self._find_claude().stream(request) if is_claude else super().stream(request)

    def _find_path(self, request: ModelRequest) -> str:
        if _is_claude(request.model):
            self._find_claude()
        return f"{self._place}/{name_resource(request.model)}:streamGenerateContent"

    def _build(self, request: ModelRequest, profile: ModelProfile) -> Json:
        return _drop_ids(super()._build(request, profile))

    async def _post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> HttpReply:
        try:
            return await super()._post(path, body, query)
        except (Unauthorized, ModelNotFound) as error:
            raise _advise(error) from error

    async def count_tokens(self, request: ModelRequest) -> int:
        if _is_claude(request.model):
            return await self._find_claude().count_tokens(request)
        body = encode_body(_drop_ids(build_body(request)))
        path = f"{self._place}/{name_resource(request.model)}:countTokens"
        return (await self._http.fetch(path, token_total, "number of tokens", body=body)).totalTokens

    async def models(self) -> Sequence[ModelInfo]:
        """The models of both publishers, whether the project may ask them or not."""
        publishers = ("google",) if self._claude is None else ("google", "anthropic")
        return tuple([model for publisher in publishers for model in await self._list_models(publisher)])

    async def _list_models(self, publisher: str) -> list[ModelInfo]:
        found: list[ModelInfo] = []
        query = {"pageSize": "200"}
        while True:
            path = f"v1beta1/publishers/{publisher}/models"
            page = await self._http.fetch(path, _models, "list of models", query=query)
            names = [model.name.rpartition("/")[2] for model in page.publisherModels]
            found += [ModelInfo(name, publisher) for name in names if name.startswith(("gemini", "claude"))]
            if not page.nextPageToken:
                return found
            query["pageToken"] = page.nextPageToken

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return Anthropic.features if _is_claude(model) else super().find_features(model)

    def keep_profiles(self, store: DocumentStore) -> None:
        super().keep_profiles(store)
        if self._claude is not None:
            self._claude.keep_profiles(store)

    async def write_profiles(self) -> None:
        await super().write_profiles()
        if self._claude is not None:
            await self._claude.write_profiles()

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]:
        is_claude = self._claude is not None and _is_claude(model)
        return await (self._find_claude().explain_profiles(model) if is_claude else super().explain_profiles(model))

    async def find_window(self, model: str) -> int | None:
        is_claude = self._claude is not None and _is_claude(model)
        return await (self._find_claude().find_window(model) if is_claude else super().find_window(model))

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        is_claude = self._claude is not None and _is_claude(model)
        learn = self._find_claude().learn_profile if is_claude else super().learn_profile
        await learn(model, values, evidence)

    async def forget_profiles(self, model: str) -> int:
        is_claude = self._claude is not None and _is_claude(model)
        return await (self._find_claude().forget_profiles(model) if is_claude else super().forget_profiles(model))

    async def close(self) -> None:
        await super().close()
        if self._claude is not None:
            await self._claude.close()

    def _find_claude(self) -> "VertexClaude":
        if self._claude is None:
            raise Refused("Claude on Vertex AI needs a `project` and credentials; a key of express mode is for Gemini only")
        return self._claude


class VertexClaude(Anthropic):
    """Claude on Vertex AI: the model is in the path, the version in the body."""

    name = "vertex"
    fixed_headers: ClassVar = {}

    def __init__(self, base_url: str, place: str, **options: Unpack[HttpOptions]) -> None:
        super().__init__(base_url, **options)
        self._place = f"{place}/publishers/anthropic/models"

    async def _post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> HttpReply:
        told = {"anthropic_version": VERSION, **{name: value for name, value in body.items() if name != "model"}}
        try:
            return await super()._post(f"{self._place}/{quote(body['model'], safe='@')}:streamRawPredict", told, query)
        except (Unauthorized, ModelNotFound) as error:
            raise _advise(error) from error

    async def _count_tokens(self, path: str, body: Json) -> int:
        return await super()._count_tokens(f"{self._place}/count-tokens:rawPredict", {"anthropic_version": VERSION, **body})


def _advise(error: Unauthorized | ModelNotFound) -> ProviderError:
    if isinstance(error, ModelNotFound):
        return ModelNotFound(f"{error.message}, that this location has it (`region`), and that it is enabled in this project")
    needed = "the Vertex AI API is enabled, the identity has the role `roles/aiplatform.user`, and the model is enabled"
    return Unauthorized(f"{error.message}; check that {needed} in this project and location")


def _is_claude(model: str) -> bool:
    return model.startswith("claude")


def _drop_ids(body: Json) -> Json:
    """Vertex AI knows no ids of calls: outputs belong to calls by name and order."""
    for content in body["contents"]:
        for part in content["parts"]:
            (part.get("functionCall") or part.get("functionResponse") or {}).pop("id", None)
    return body


def _find_host(place: str) -> str:
    if place == "global":
        return "https://aiplatform.googleapis.com"
    return (
        f"https://aiplatform.{place}.rep.googleapis.com"
        if place in ("us", "eu")
        else f"https://{place}-aiplatform.googleapis.com"
    )


class _Model(Struct, gc=False):
    name: str


class _ModelPage(Struct, gc=False):
    publisherModels: list[_Model] = []
    nextPageToken: str | None = None


_PLACE = re.compile(r"global|us|eu|[a-z]+(-[a-z]+)+\d{1,2}")
_PROJECT = re.compile(r"[a-z0-9.:-]{1,100}")
_models = msgspec.json.Decoder(_ModelPage)
