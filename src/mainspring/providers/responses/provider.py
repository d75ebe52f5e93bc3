"""The Responses wire format: a backend that speaks as we do, OpenAI's own or anybody's.

Three parts. `Responses` is the provider. `body_of` writes the request: our items as they are, but for what the backend would
refuse. `Answer` reads the reply without doing I/O: bytes in, events out.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing

import msgspec
from msgspec import Struct

from mainspring.core.drafts import item_id
from mainspring.core.errors import BadOutput, Refused
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import FunctionCall, Json
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.ports import ModelInfo
from mainspring.providers.http_client import Http, Reply, Tape
from mainspring.providers.json_text import written
from mainspring.providers.model_list import models_of
from mainspring.providers.responses.reply import Answer
from mainspring.providers.responses.request import body_of, question

OPENAI = "https://api.openai.com/v1"
COUNTED = frozenset({"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"})


class Responses:
    """A backend that speaks the Responses API. `base_url` is what `/responses` is appended to, usually ending in `/v1`.

    `timeout` is how many seconds the backend may stay silent. Nothing is stored upstream. Closing the stream early closes the
    connection, by which backends know to stop.
    """

    def __init__(
        self,
        base_url: str = OPENAI,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "responses",
        new_id: NewId = random_id,
        timeout: float = 600.0,
        tape: Tape | None = None,
    ) -> None:
        self.name = name
        self._http = Http(base_url, api_key=api_key, headers=headers, timeout=timeout, tape=tape)
        self._new_id = new_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(self._http, self._new_id, items=map(item_id, request.items), calls=calls)
        with closing(await self._post("responses", body_of(request, self._http.host))) as reply:
            if reply.mime == "application/json":
                for event in answer.given(await reply.body()):
                    yield event
            while not answer.is_over and (data := await reply.read()):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event
            await reply.drain()

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers. Raises a `ProviderError` if it has no such list."""
        return await models_of(self._http)

    async def count_tokens(self, request: ModelRequest) -> int:
        """The backend's own count; our estimate if it does not count."""
        body = {name: value for name, value in question(request, self._http.host).items() if name in COUNTED}
        try:
            with closing(await self._post("responses/input_tokens", body)) as reply:
                return _counted.decode(await reply.body()).input_tokens
        except (Refused, ValueError):
            return estimate(request.items, request.instructions, request.tools)

    async def close(self) -> None:
        await self._http.close()

    async def _post(self, path: str, body: Json) -> Reply:
        reply = await self._http.send("POST", path, written(body))
        if reply.mime == "text/html":
            reply.close()
            raise BadOutput(f"{reply.url} answered with a web page; check the base URL, which usually ends in /v1")
        return reply


class _Counted(Struct, gc=False):
    input_tokens: int


_counted = msgspec.json.Decoder(_Counted)
