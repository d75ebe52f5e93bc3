"""What every provider over HTTP shares: one connection pool, the loop that reads a reply as it arrives, the list of models.

Each wire format is a folder of three parts. Its provider, a child of `HttpProvider`, asks and hands events on at once. `request`
turns a `ModelRequest` into the vendor's JSON. `reply` turns the vendor's chunks into events without doing I/O.
"""

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Final, TypedDict, Unpack

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import asdict, replace
from multidict import CIMultiDict

from mainspring.core.errors import BadOutput, ContextOverflow, EmptyAnswer, ProviderError, Refused, Unavailable, UnreadCall
from mainspring.core.events import TurnEnded
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Adaptation, Json
from mainspring.core.lru_cache import LRUCache
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import DocumentStore, KnownProfile, ModelFeature, ModelInfo, ProfileValue, RequestSigner, Tape
from mainspring.providers.http_client import EVENT_BYTES, Http, HttpReply
from mainspring.providers.json_text import encode_body
from mainspring.providers.leak_reader import LeakReader
from mainspring.providers.profile_book import Pins, ProfileBook
from mainspring.providers.profile_documents import StoredProfiles
from mainspring.providers.profiles import BOUNDS, NEUTRAL, ModelProfile, RefusalRule, list_values
from mainspring.providers.relay import PIECE_BYTES, Relay
from mainspring.providers.reply import ReplyReader
from mainspring.providers.silent_cut import ENLARGE, find_cut_answer, find_cut_prompt
from mainspring.providers.transcript import find_schema, find_seal, list_functions, mentions
from mainspring.providers.turn import TurnBuilder, list_call_ids

MOST_CHANGES = 3
"""How often one request is changed because a backend refused it."""
MOST_STALE = 1024
"""How many signatures are remembered that a backend has refused: they are not sent again."""
MOST_UNCLOSED = 3
"""After how many answers in a row without the end of reasoning it is no longer taken to be begun."""


class HttpOptions(TypedDict, total=False):
    """What every provider over HTTP takes besides its address; see `HttpProvider`."""

    api_key: str | None
    headers: Mapping[str, str] | None
    name: str | None
    new_id: NewId
    timeout: float
    tape: Tape | None
    signer: RequestSigner | None
    profiles: Pins
    proxy: str | None
    ca_file: str | None


class HttpProvider(ABC):
    """A backend over HTTP. `base_url` is what the paths of the format are appended to.

    `timeout` is how many seconds the backend may stay silent: a large model on a small machine takes minutes to read a long
    prompt. `headers` go with every request and take precedence over our own. `profiles` are fields of profiles that hold whatever
    the backend shows, by model. Closing the stream early closes the connection, by which backends know to stop.
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
        self._http = Http(
            base_url or self.default_url,
            api_key=api_key,
            headers=headers,
            timeout=timeout,
            tape=tape,
            signer=signer,
            proxy=options.get("proxy"),
            ca_file=options.get("ca_file"),
        )
        self._unclosed: Counter[str] = Counter()
        self._stale: LRUCache[int, bool] = LRUCache(MOST_STALE)
        self._book = ProfileBook(self._http.url, self._http.host, options.get("profiles"))

    @abstractmethod
    async def _ask(self, request: ModelRequest) -> HttpReply:
        """Sends the request. Raises a `ProviderError` if the backend does not agree to answer."""

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        """As `_ask`, of those that adapt: they add to the notes what they have changed."""
        return await self._ask(request)

    @abstractmethod
    def _reader(self, request: ModelRequest) -> ReplyReader[Any]: ...

    async def stream(self, request: ModelRequest) -> ModelStream:
        if self._book.is_due:
            await self._book.load()
        if self._stale:
            request = replace(request, items=[item for item in request.items if not self._stale.get(hash(find_seal(item)))])
        reader, most = self._reader(request), request.max_bytes or sys.maxsize
        notes, take = reader.notes, None
        reply = await self._ask_and_note(request, notes)
        if any(note.field == "seals" for note in notes):
            for seal in filter(None, map(find_seal, request.items)):
                self._stale[hash(seal)] = True
        self._book.meet(reply.server)
        try:
            while True:
                try:
                    if reader.may_be_whole and reply.mime == "application/json":
                        for event in reader.read_whole(await reply.body(min(most, EVENT_BYTES))):
                            yield event
                    while not reader.is_over:
                        if take is not None and await (relay := Relay(reader, take, most)).run(reply):
                            most = relay.left
                            for event in relay.rest:
                                if take is None or not take(event):
                                    take = yield event
                            continue
                        if not (data := await reply.more(is_complete=reader.is_complete)):
                            break
                        most -= len(data)
                        if most < 0:
                            reader.cut()
                            break
                        for start in range(0, len(data), PIECE_BYTES):
                            if start:
                                await checkpoint()  # others have a turn: a thousand events may be in one piece
                            for event in reader.feed(data[start : start + PIECE_BYTES]):
                                if take is None or not take(event):
                                    take = yield event
                        if len(data) >= PIECE_BYTES:
                            await checkpoint()
                    continued = await self._ask_on(request, reader)
                except (Refused, Unavailable, UnreadCall) as error:
                    if (continued := await self._ask_changed(request, reader, error)) is None:
                        raise
                if continued is None:
                    break
                reply.close()
                reply = continued
            if (flaw := self._check_answer(request, reader)) is not None:
                await reply.drain()
                raise flaw
            try:
                last = list(reader.end())
                if reader.says_nothing:
                    raise EmptyAnswer(f"{self._http.url} ended its answer without a word and without a call; try again")
            except BadOutput:
                await reply.drain()
                raise
            for event in last:
                yield replace(event, adaptations=tuple(notes)) if notes and isinstance(event, TurnEnded) else event
            await reply.drain()
        except ProviderError as error:
            error.usage, error.adaptations = reader.usage, tuple(notes)
            raise
        finally:
            reply.close()

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """Asks a backend that has paused its answer to go on with it; None if it has said all."""
        return None

    async def _ask_changed(self, request: ModelRequest, reader: ReplyReader[Any], error: ProviderError) -> HttpReply | None:
        """Asks a backend again that has refused the request within its answer; None if nothing can be changed."""
        return None

    def _check_answer(self, request: ModelRequest, reader: ReplyReader[Any]) -> ProviderError | None:
        """Learns from a whole answer. Returns what is wrong with one that is not what it seems."""
        model, profile, usage = request.model, self._book.find(request.model), reader.usage
        full = find_cut_prompt(request, usage, profile.window)
        if full is None and reader.finish == "length":
            full = find_cut_answer(request, usage, profile.window)
        if full is not None:
            if profile.window is None or full.size < profile.window:
                self._learn(model, "window", full.size, "tokens were left out that did not fit", reader.notes)
            return ContextOverflow(f"{self._http.url} {full.told}, without a word; {ENLARGE}")
        if reader.finish is not None and (reader.has_closed_thought or reader.has_unopened_thought):
            self._learn(
                model, "thinking", "begun", "an answer had the tag that closes reasoning, and none that opens it", reader.notes
            )
            if reader.has_closed_thought:
                return None
            told = "the model's reasoning came as its answer: its prompt opens the tag, and only the end of it is told"
            return BadOutput(f"{told}; this is known now, ask again, or have {self._http.url} parse reasoning")
        if profile.thinking == "begun" and reader.finish == "stop":
            self._check_begun(model, reader)
        if find_schema(request) is not None and not profile.format_told and reader.finish == "stop" and reader.is_worded:
            # Some drop a schema without a word: the next time it is told in words, too.
            self._learn(model, "format_told", True, "an answer was not the JSON that was asked for", reader.notes)
        return None

    def _check_begun(self, model: str, reader: ReplyReader[Any]) -> None:
        """Anybody can have a model write a tag. One that does not go on to close its reasoning was misjudged by it."""
        self._unclosed[model] = self._unclosed[model] + 1 if reader.is_unclosed else 0
        if self._unclosed[model] >= MOST_UNCLOSED:
            del self._unclosed[model]
            self._learn(model, "thinking", "marked", "answers came without the tag that closes reasoning", reader.notes)

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers, from a list as OpenAI writes it. Raises a `ProviderError` if it has no such list."""
        listed = await self._http.fetch(self.models_path, _models, "list of models", query=self.models_query)
        found = listed if isinstance(listed, list) else listed.data or []
        return tuple([ModelInfo(model.id, model.owned_by or self.owner, model.parse_created()) for model in found])

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return self.features

    def keep_profiles(self, store: DocumentStore) -> None:
        self._book.open(StoredProfiles(store))

    async def write_profiles(self) -> None:
        await self._book.close()

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]:
        await self._book.load()
        return (self._book.explain(model),)

    async def find_window(self, model: str) -> int | None:
        await self._book.load()
        return self._book.find(model).window

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        await self._book.load()
        self._book.learn(model, values, evidence)

    async def forget_profiles(self, model: str) -> int:
        await self._book.load()
        return self._book.forget(model)

    async def close(self) -> None:
        await self._http.close()

    def _turn(self, request: ModelRequest, *, leaks: bool = False) -> TurnBuilder:
        """The turn that answers the request. `leaks` says that reasoning and calls may come as text, for servers that run models
        of any kind."""
        tools, taken = list_functions(request), list_call_ids(request.items)
        if not leaks:
            return TurnBuilder(self._new_id, taken, tools=tools)
        is_json = find_schema(request) is not None
        is_asked = partial(mentions, request)
        reader = LeakReader(tools if request.tool_choice.mode != "none" else (), is_json=is_json, is_asked=is_asked)
        is_begun = self._book.find(request.model).thinking == "begun"
        return TurnBuilder(
            self._new_id,
            taken,
            tools=tools,
            thinks=True,
            is_begun=is_begun,
            leaks=reader,
            is_json=is_json,
            is_asked=is_asked,
        )

    async def _post(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> HttpReply:
        reply = await self._http.send(path, encode_body(body), query)
        if reply.mime == "text/html":
            reply.close()
            raise BadOutput(f"{reply.url} answered with a web page; check the base URL{self.url_hint}")
        return reply

    async def _post_adapted(
        self,
        path: str,
        model: str,
        build: Callable[[ModelProfile], Json],
        rules: Sequence[RefusalRule],
        notes: list[Adaptation],
        changed: Mapping[str, ProfileValue] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Posts the body that `build` makes for the model as it is known, but for the fields that are `changed` already.

        `rules` say how backends refuse a request, and which field of the profile helps: with that it is built and sent again, up
        to `MOST_CHANGES` times. A change is kept if the backend then agrees, or refuses something else. That it fails proves
        nothing, nor that it says the same in other words.
        """
        profile, last = self._find_profile(model, build, changed), None
        for attempt in range(MOST_CHANGES + 1):
            try:
                reply = await self._post(path, build(profile), query)
            except (Refused, Unavailable, ContextOverflow) as refusal:
                known = [rule for rule in rules if rule.field in BOUNDS] if isinstance(refusal, ContextOverflow) else rules
                rule = self._find_rule(model, refusal.message, profile, build, known)
                is_another = last is not None and not last.words.search(refusal.message[:_MOST_WORDS])
                if is_another and (rule is not None or isinstance(refusal, Refused)):
                    self._keep_change(model, notes, build)
                if rule is None or attempt == MOST_CHANGES:
                    refusal.adaptations = tuple(notes)
                    raise
                last = rule
                why = f"the backend refused a request ({refusal.code})"
                notes.append(Adaptation("changed", rule.field, rule.value, why, attempt + 1))
                profile = replace(profile, **{rule.field: rule.value})
                continue
            if last is not None:
                self._keep_change(model, notes, build)
            return reply
        raise AssertionError("the last attempt returns or raises")

    def _find_profile(
        self, model: str, build: Callable[[ModelProfile], Json], changed: Mapping[str, ProfileValue] | None
    ) -> ModelProfile:
        """The profile in force for these tools, but for the fields that are `changed`."""
        profile, of_tools = self._book.find(model), self._book.find_of_tools(model, partial(_digest_tools, build))
        return replace(profile, **{**of_tools, **(changed or {})}) if of_tools or changed else profile

    def _find_rule(
        self, model: str, words: str, profile: ModelProfile, build: Callable[[ModelProfile], Json], rules: Sequence[RefusalRule]
    ) -> RefusalRule | None:
        """The first rule for such words that makes a difference, and that the operator has not forbidden."""
        body, known, words = encode_body(build(profile)), asdict(profile), words[:_MOST_WORDS]
        for rule in rules:
            if not rule.words.search(words) or not self._book.can_learn(model, rule.field):
                continue
            rule = rule.read(words)
            values, value = list_values(rule.field), known[rule.field]
            is_number = isinstance(rule.value, int) and not isinstance(rule.value, bool)
            is_further = value != rule.value if is_number else values.index(rule.value) > values.index(value)
            if is_further and encode_body(build(replace(profile, **{rule.field: rule.value}))) != body:
                return rule
        return None

    def _keep_change(self, model: str, notes: list[Adaptation], build: Callable[[ModelProfile], Json], index: int = -1) -> None:
        """The change has helped, by default the last one. What a caller's tools have led to holds for these tools alone, and what
        a conversation has brought along for this request."""
        if notes[index].field in _OF_HISTORY:
            return
        note = notes[index] = replace(notes[index], is_kept=True)
        digest = _digest_tools(build) if (note.field, note.value) in _OF_TOOLS else ""
        self._book.learn(model, {note.field: note.value}, f"{note.why}, and took it with this", digest)

    def _learn(self, model: str, field: str, value: ProfileValue, evidence: str, notes: list[Adaptation]) -> None:
        """Keeps what the backend has shown of the model, unless the operator has set it."""
        if self._book.can_learn(model, field):
            self._book.learn(model, {field: value}, evidence)
            notes.append(Adaptation("learned", field, value, evidence, is_kept=True))

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


def _digest_tools(build: Callable[[ModelProfile], Json]) -> str:
    """Tells requests with the same tools from others."""
    body = build(NEUTRAL)
    return blake2b(encode_body({"tools": body.get("tools") or body.get("toolConfig")}), digest_size=8).hexdigest()


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


# How much of a refusal is read: the rules look for pairs of words, which takes long in a long text.
_MOST_WORDS: Final = 2_000
# Changes that are due to what is in the tools, or to how much.
_OF_TOOLS: Final = frozenset({("schemas", "bare"), ("schemas", "told"), ("descriptions", "short")})
# Changes that are due to what another account, or a model that is gone, has sealed.
_OF_HISTORY: Final = frozenset({"seals"})
_token_count = msgspec.json.Decoder(_TokenCount)
_models = msgspec.json.Decoder(_ModelList | list[_Model])
_named_models = msgspec.json.Decoder(_NamedModelPage)
