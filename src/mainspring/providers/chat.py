"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Three parts. `Chat` is the provider: it asks, reads as the bytes arrive, and hands events on at once. `body_of` writes the
request: our items become messages, each call directly followed by its output. `Answer` reads the reply without doing I/O:
bytes in, events out. Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only
is understood.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing, suppress

import msgspec
from anyio import move_on_after
from msgspec import Struct

from mainspring.errors import BadOutput, Refused, Unavailable
from mainspring.events import ModelEvent
from mainspring.ids import NewId, random_id
from mainspring.items import (
    FunctionCall,
    Json,
)
from mainspring.loop.request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers._chat_answer import Answer
from mainspring.providers._chat_request import body_of
from mainspring.providers._http import Http, Reply, shortened
from mainspring.providers._turn import Turn

USAGE_SECONDS = 5.0


class Chat:
    """A backend that speaks Chat Completions. `base_url` is what `/chat/completions` is appended to, usually ending in `/v1`.

    `timeout` is how many seconds the backend may stay silent: a large model on a small machine takes minutes to read a long
    prompt. `named_outputs` repeats the tool's name with each output: the standard does without, a few backends want it.
    Closing the stream early closes the connection, by which backends know to stop.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "chat",
        new_id: NewId = random_id,
        timeout: float = 600.0,
        named_outputs: bool = False,
    ) -> None:
        self.name = name
        self._http = Http(base_url, api_key=api_key, headers=headers, timeout=timeout)
        self._new_id = new_id
        self._named_outputs = named_outputs
        self._knows_stream_options = True

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(Turn(self._new_id, taken=calls), self._http)
        with closing(await self._ask(request)) as reply:
            if reply.mime == "application/json":
                for event in answer.given(await reply.body()):
                    yield event
            while not answer.is_over and (data := await _more(reply, answer)):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event
            await reply.drain()

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers. Raises a `ProviderError` if it has no such list."""
        with closing(await self._http.send("GET", "models")) as reply:
            data = await reply.body()
        try:
            listed = _models.decode(data)
        except (ValueError, RecursionError) as error:
            text = self._http.redacted(shortened(data))
            raise BadOutput(f"{reply.url} answered with no list of models ({error}): `{text}`") from error
        found = listed if isinstance(listed, list) else listed.data or []
        return tuple([ModelInfo(model.id, model.owned_by or "", int(model.created or 0)) for model in found])

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, request: ModelRequest) -> Reply:
        """Sends the request; once more, without `stream_options`, if that is what the backend does not understand."""
        body = body_of(request, self._http.host, named_outputs=self._named_outputs)
        if not self._knows_stream_options and "stream_options" not in (request.extra or {}):
            del body["stream_options"]
        try:
            return await self._post(body)
        except Refused as refusal:
            if "stream_options" not in refusal.message or body.pop("stream_options", None) is None:
                raise
        reply = await self._post(body)
        self._knows_stream_options = False
        return reply

    async def _post(self, body: Json) -> Reply:
        try:
            data = msgspec.json.encode(body)
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(f"the request cannot be written as JSON: {error}") from error
        reply = await self._http.send("POST", "chat/completions", data)
        if reply.mime == "text/html":
            reply.close()
            raise BadOutput(f"{reply.url} answered with a web page; check the base URL, which usually ends in /v1")
        return reply


async def _more(reply: Reply, answer: "Answer") -> bytes:
    """The next bytes. Behind a complete answer only its usage is waited for, and not for long; a connection that breaks there
    has only ended."""
    if not answer.is_complete:
        return await reply.read()
    with move_on_after(USAGE_SECONDS), suppress(Unavailable):
        return await reply.read()
    return b""


class _Model(Struct, gc=False):
    id: str
    owned_by: str | None = None
    created: int | float | None = None


class _Models(Struct, gc=False):
    data: list[_Model] | None = None


_models = msgspec.json.Decoder(_Models | list[_Model])
