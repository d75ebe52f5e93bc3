"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Three parts. `Chat` is the provider: it asks, reads as the bytes arrive, and hands events on at once. `body_of` writes the
request: our items become messages, each call directly followed by its output. `Answer` reads the reply without doing I/O:
bytes in, events out. Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only
is understood.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from logging import getLogger

import msgspec

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import (
    FunctionCall,
    Json,
)
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.chat.reply import Answer
from mainspring.providers.chat.request import body_of
from mainspring.providers.http_client import Http, Reply, Tape
from mainspring.providers.model_list import models_of
from mainspring.providers.profiles import profile_of
from mainspring.providers.turn import Turn

log = getLogger(__name__)

_NO = r"(unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(parameter|argument|field|input)[^.]*"
_NOT = r"[^.]* (is|are) not (supported|permitted|allowed)"


def _parameter(name: str) -> re.Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    return re.compile(rf"{_NO}{name}|{name}[^.]*{_NO}|\b{name}\b{_NOT}", re.IGNORECASE)


# How backends say that they do not take a field that can be done without.
_LACKS = (
    ("stream_options", re.compile(r"stream_options")),
    ("parallel_tool_calls", re.compile(r"parallel_tool_calls")),
    ("tools", re.compile(r"not support (tools|tool use|tool calling|function)|enable-auto-tool-choice|tool use is not", re.I)),
    ("reasoning_effort", _parameter("reasoning_effort")),
    # With these, a value that is not supported means that only the default is.
    ("temperature", re.compile(r"temperature.*(not support|unsupported|only the default)|unsupported.*temperature", re.I)),
    ("top_p", re.compile(r"top_p.*(not support|unsupported|only the default)|unsupported.*top_p", re.I)),
)
_WITH = {"tools": ("tool_choice", "parallel_tool_calls")}


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
        tape: Tape | None = None,
        named_outputs: bool = False,
    ) -> None:
        self.name = name
        self._http = Http(base_url, api_key=api_key, headers=headers, timeout=timeout, tape=tape)
        self._new_id = new_id
        self._named_outputs = named_outputs
        # What models have turned out not to understand, by model: fields of the request.
        self._lacking: dict[str, set[str]] = {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        answer = Answer(Turn(self._new_id, calls, profile_of(request.model).think), self._http)
        with closing(await self._ask(request)) as reply:
            if reply.mime == "application/json":
                for event in answer.given(await reply.body()):
                    yield event
            while not answer.is_over and (data := await reply.more(is_complete=answer.is_complete)):
                for event in answer.feed(data):
                    yield event
            for event in answer.end():
                yield event
            await reply.drain()

    async def models(self) -> Sequence[ModelInfo]:
        """The models the backend offers. Raises a `ProviderError` if it has no such list."""
        return await models_of(self._http)

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, request: ModelRequest) -> Reply:
        """Sends the request, without what the model was found not to understand; a lack that is news is remembered, and the
        request sent again. What was asked for by `extra` stays."""
        lacking = self._lacking.setdefault(request.model, set())
        asked = body_of(request, self._http.host, named_outputs=self._named_outputs)
        while True:
            body = {name: value for name, value in asked.items() if name not in lacking or name in (request.extra or {})}
            try:
                return await self._post(body)
            except Refused as refusal:
                news = [name for name, words in _LACKS if name in body and words.search(refusal.message)]
                if not news:
                    raise
            log.warning("model %s is asked without `%s`, which %s does not take", request.model, news[0], self._http.url)
            lacking |= {news[0], *_WITH.get(news[0], ())}

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
