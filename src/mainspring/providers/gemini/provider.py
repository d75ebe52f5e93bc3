"""Gemini's own wire format: `generateContent` of the Gemini API, streamed.

Three parts, as for Chat Completions: `Gemini` is the provider, `body_of` writes the request, `Answer` reads the reply without
doing I/O. Thoughts come with signatures that Gemini wants back; they travel in reasoning items, see `_gemini_request`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import FunctionCall
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.gemini.reply import Answer
from mainspring.providers.gemini.request import body_of, resource
from mainspring.providers.http_client import Http, Reply, Tape, shortened
from mainspring.providers.json_text import written
from mainspring.providers.turn import Turn

T = TypeVar("T")


class Gemini:
    """A backend that speaks Gemini's format. `base_url` is what `/v1beta/models/...` is appended to.

    `timeout` is how many seconds it may stay silent. Closing the stream early closes the connection, by which Gemini knows to
    stop.
    """

    def __init__(
        self,
        base_url: str = "https://generativelanguage.googleapis.com",
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "gemini",
        new_id: NewId = random_id,
        timeout: float = 600.0,
        tape: Tape | None = None,
    ) -> None:
        self.name = name
        key = {"x-goog-api-key": api_key.strip()} if api_key and api_key.strip() else {}
        self._http = Http(base_url, api_key=None, headers={**key, **(headers or {})}, timeout=timeout, tape=tape)
        self._new_id = new_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(Turn(self._new_id, taken=calls), self._http)
        path = f"v1beta/{resource(request.model)}:streamGenerateContent"
        with closing(await self._http.send("POST", path, written(body_of(request)), {"alt": "sse"})) as reply:
            while data := await reply.more(is_complete=answer.is_complete):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens Gemini would read. Raises a `ProviderError` if it does not say."""
        model = resource(request.model)
        body = written({"generateContentRequest": {"model": model, **body_of(request)}})
        with closing(await self._http.send("POST", f"v1beta/{model}:countTokens", body)) as reply:
            return (await self._read(reply, _counted)).totalTokens

    async def models(self) -> Sequence[ModelInfo]:
        """The models that can be asked for answers. Raises a `ProviderError` if there is no such list."""
        found: list[_Model] = []
        query = {"pageSize": "1000"}
        while True:
            with closing(await self._http.send("GET", "v1beta/models", query=query)) as reply:
                page = await self._read(reply, _page)
            found += page.models or ()
            if not page.nextPageToken:
                break
            query["pageToken"] = page.nextPageToken
        speaking = [model for model in found if "generateContent" in (model.supportedGenerationMethods or ["generateContent"])]
        return tuple([ModelInfo(model.name.removeprefix("models/"), "google") for model in speaking])

    async def close(self) -> None:
        await self._http.close()

    async def _read(self, reply: Reply, decoder: "msgspec.json.Decoder[T]") -> T:
        data = await reply.body()
        try:
            return decoder.decode(data)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{reply.url} answered what cannot be read ({error}): `{text}`; check the base URL") from error


class _Model(Struct, gc=False):
    name: str
    supportedGenerationMethods: list[str] | None = None


class _Page(Struct, gc=False):
    models: list[_Model] | None = None
    nextPageToken: str | None = None


class _Count(Struct, gc=False):
    totalTokens: int


_page: Final = msgspec.json.Decoder(_Page)
_counted: Final = msgspec.json.Decoder(_Count)
