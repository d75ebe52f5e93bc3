"""What every provider over HTTP shares: one connection pool, the loop that reads a reply as it arrives, the list of models.

Each wire format is a folder of three parts. Its provider, a child of `HttpProvider`, asks and hands events on at once. `request`
turns a `ModelRequest` into the vendor's JSON. `reply` turns the vendor's chunks into events without doing I/O.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from logging import getLogger
from re import Pattern
from typing import Any, ClassVar, TypedDict, Unpack

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace
from multidict import CIMultiDict

from mainspring.core.errors import BadOutput, ProviderError, Refused, Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelFeature, ModelInfo, RequestSigner, Tape
from mainspring.providers.http_client import EVENT_BYTES, Http, HttpReply
from mainspring.providers.json_text import encode_body
from mainspring.providers.leak_reader import LeakReader
from mainspring.providers.profiles import ModelProfile, find_profile
from mainspring.providers.reply import ReplyReader
from mainspring.providers.silent_cut import check_prompt
from mainspring.providers.transcript import find_schema, list_functions
from mainspring.providers.turn import TurnBuilder, list_call_ids

log = getLogger(__name__)

PIECE_BYTES = 16_384
"""How much of an answer is read at once, if more has come."""
MOST_CHANGES = 3
"""How often one request is changed because a backend refused it."""


class HttpOptions(TypedDict, total=False):
    """What every provider over HTTP takes besides its address; see `HttpProvider`."""

    api_key: str | None
    headers: Mapping[str, str] | None
    name: str | None
    new_id: NewId
    timeout: float
    tape: Tape | None
    signer: RequestSigner | None


class HttpProvider(ABC):
    """A backend over HTTP. `base_url` is what the paths of the format are appended to.

    `timeout` is how many seconds the backend may stay silent: a large model on a small machine takes minutes to read a long
    prompt. `headers` go with every request and take precedence over our own. Closing the stream early closes the connection, by
    which backends know to stop.
    """

    name = ""
    runs_in_place = True
    default_url: ClassVar[str] = ""
    url_hint: ClassVar[str] = ""
    """What to say of the base URL when it seems wrong."""
    key_header: ClassVar[str | None] = None
    """The header for the key; None is `Authorization`."""
    fixed_headers: ClassVar[Mapping[str, str]] = {}
    models_path: ClassVar[str] = "models"
    models_query: ClassVar[Mapping[str, str]] = {}
    owner: ClassVar[str] = ""
    """Who owns the models whose list does not say it."""
    features: ClassVar[frozenset[ModelFeature]] = frozenset()
    """What the format can carry of what not all can."""

    def __init__(self, base_url: str | None = None, **options: Unpack[HttpOptions]) -> None:
        self.name = options.get("name") or self.name
        self._new_id = options.get("new_id", random_id)
        api_key, headers = options.get("api_key"), CIMultiDict(self.fixed_headers)
        if self.key_header is not None and api_key and api_key.strip():
            headers[self.key_header], api_key = api_key.strip(), None
        headers.update(options.get("headers") or {})
        timeout, tape, signer = options.get("timeout", 600.0), options.get("tape"), options.get("signer")
        address = base_url or self.default_url
        self._http = Http(address, api_key=api_key, headers=headers, timeout=timeout, tape=tape, signer=signer)
        # Of the models that have turned out to be other than their names say.
        self._profiles: dict[str, ModelProfile] = {}

    @abstractmethod
    async def _ask(self, request: ModelRequest) -> HttpReply:
        """Sends the request. Raises a `ProviderError` if the backend does not agree to answer."""

    @abstractmethod
    def _reader(self, request: ModelRequest) -> ReplyReader[Any]: ...

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reader, most = self._reader(request), request.max_bytes or sys.maxsize
        reply = await self._ask(request)
        try:
            while True:
                if reader.may_be_whole and reply.mime == "application/json":
                    for event in reader.read_whole(await reply.body(min(most, EVENT_BYTES))):
                        yield event
                while not reader.is_over and (data := await reply.more(is_complete=reader.is_complete)):
                    most -= len(data)
                    if most < 0:
                        reader.cut()
                        break
                    for start in range(0, len(data), PIECE_BYTES):
                        if start:
                            await checkpoint()  # others have a turn: a thousand events that say nothing may be in one piece
                        for event in reader.feed(data[start : start + PIECE_BYTES]):
                            yield event
                    if len(data) >= PIECE_BYTES:
                        await checkpoint()
                if (continued := await self._ask_on(request, reader)) is None:
                    break
                reply.close()
                reply = continued
            check_prompt(request, reader.usage, self._http.url)
            for event in reader.end():
                yield event
            await reply.drain()
        except ProviderError as error:
            error.usage = reader.usage
            raise
        finally:
            reply.close()

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """Asks a backend that has paused its answer to go on with it; None if it has said all."""
        return None

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers, from a list as OpenAI writes it. Raises a `ProviderError` if it has no such list."""
        listed = await self._http.fetch(self.models_path, _models, "list of models", query=self.models_query)
        found = listed if isinstance(listed, list) else listed.data or []
        return tuple([ModelInfo(model.id, model.owned_by or self.owner, model.parse_created()) for model in found])

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return self.features

    async def close(self) -> None:
        await self._http.close()

    def _turn(self, request: ModelRequest, *, leaks: bool = False) -> TurnBuilder:
        """The turn that answers the request. `leaks` says that reasoning and calls may come as text, for servers that run models
        of any kind."""
        tools, taken = list_functions(request), list_call_ids(request.items)
        names = [tool.name for tool in tools]
        if not leaks:
            return TurnBuilder(self._new_id, taken, names=names)
        is_json = find_schema(request) is not None
        reader = LeakReader(tools, is_json=is_json) if tools and request.tool_choice.mode != "none" else None
        return TurnBuilder(self._new_id, taken, names=names, thinks=True, leaks=reader, is_json=is_json)

    async def _post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> HttpReply:
        reply = await self._http.send(path, encode_body(body), query)
        if reply.mime == "text/html":
            reply.close()
            raise BadOutput(f"{reply.url} answered with a web page; check the base URL{self.url_hint}")
        return reply

    async def _post_supported(
        self, path: str, model: str, build: Callable[[ModelProfile], Json], lacks: Sequence[tuple[str, Pattern[str]]]
    ) -> HttpReply:
        """Posts the body that `build` makes for the model as it is known.

        `lacks` says how backends refuse a field, or one within a field, which `build` must then leave out or write otherwise: the
        refusal is remembered, and the request sent again, up to `MOST_CHANGES` times.
        """
        for _ in range(MOST_CHANGES):
            profile = self._find_profile(model)
            body = build(profile)
            try:
                return await self._post(path, body)
            except (Refused, Unavailable) as refusal:
                unknown = [field for field, words in lacks if words.search(refusal.message) and field not in profile.refuses]
                # A change that makes no difference is not the one that is asked for.
                told = ((field, build(replace(profile, refuses=profile.refuses | {field}))) for field in unknown)
                fresh = next((field for field, other in told if encode_body(other) != encode_body(body)), None)
                if fresh is None:
                    raise
            log.warning("model %s is asked without `%s`, which %s does not take", model, fresh, self._http.url)
            self._learn(model, {fresh})
        return await self._post(path, build(self._find_profile(model)))

    def _learn(self, model: str, refused: Set[str] = frozenset(), *, taken: Set[str] = frozenset()) -> None:
        """Remembers what the backend refuses of requests to the model, and what it takes after all."""
        profile = self._find_profile(model)
        self._profiles[model] = replace(profile, refuses=(profile.refuses | refused) - taken)

    def _find_profile(self, model: str) -> ModelProfile:
        return self._profiles.get(model) or find_profile(model)

    async def _count_tokens(self, path: str, body: Json) -> int:
        """The `input_tokens` that the backend counts in the body. Raises a `ProviderError` if it does not say."""
        return (await self._http.fetch(path, _token_count, "number of tokens", body=encode_body(body))).input_tokens

    async def _list_named_models(self, path: str, page_size: int | None = None) -> Sequence[ModelInfo]:
        """A list as Ollama writes it, and Gemini page by page: those that can be asked for answers."""
        found: list[_NamedModel] = []
        query = {"pageSize": str(page_size)} if page_size else {}
        while True:
            page = await self._http.fetch(path, _named_models, "list of models", query=query)
            found += [model for model in page.models or () if model.can_answer()]
            if not page.nextPageToken:
                return tuple([ModelInfo(model.name.removeprefix("models/"), self.owner) for model in found])
            query["pageToken"] = page.nextPageToken


class _Model(Struct, gc=False):
    id: str
    owned_by: str | None = None
    created: int | float | None = None
    created_at: object = None

    def parse_created(self) -> int:
        """When the model was made; Anthropic writes a date."""
        with suppress(ValueError):
            if self.created is None and isinstance(self.created_at, str):
                return int(datetime.fromisoformat(self.created_at).timestamp())
        return int(self.created or 0)


class _ModelList(Struct, gc=False):
    data: list[_Model] | None = None


class _NamedModel(Struct, gc=False):
    name: str
    supportedGenerationMethods: list[str] | None = None

    def can_answer(self) -> bool:
        return not self.supportedGenerationMethods or "generateContent" in self.supportedGenerationMethods


class _NamedModelPage(Struct, gc=False):
    models: list[_NamedModel] | None = None
    nextPageToken: str | None = None


class _TokenCount(Struct, gc=False):
    input_tokens: int


_token_count = msgspec.json.Decoder(_TokenCount)
_models = msgspec.json.Decoder(_ModelList | list[_Model])
_named_models = msgspec.json.Decoder(_NamedModelPage)
