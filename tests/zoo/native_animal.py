"""The zoo of the native formats: small servers that speak as Ollama, Gemini, Claude or the Responses API do, each with one habit.

An animal is asked through our server, engine and the adapter of its format. Most tell the story of the other zoo: the user asks
for the time, the model calls `get_time`, and answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import openai
import pytest
from aiohttp import web
from msgspec import Struct
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFailedEvent, ResponseIncompleteEvent
from tests.zoo.animal import MODEL, NOON, Refusal

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape

ASKED_AGAIN = {
    "input": [
        {"role": "user", "content": "What time is it?"},
        {"type": "function_call", "call_id": "old", "name": "get_time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "old", "output": "11:00"},
        {"role": "user", "content": "And now?"},
    ]
}
"""A request with a question, its call and its output, and another question."""


class Outcome(Struct, frozen=True):
    """What the client got, and the zones that the tools were called with."""

    response: Response
    zones: list[str]


class NativeAnimal(ABC):
    """A backend with one habit. `first` answers a question, `last` what follows the output of a call."""

    root: ClassVar[str] = ""
    path: ClassVar[str]
    mime: ClassVar[str] = "text/event-stream"
    model: ClassVar[str] = MODEL
    zones: ClassVar[list[str]] = ["UTC"]
    request: ClassVar[dict[str, Any]] = {}
    status: ClassVar[str] = "completed"

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.refused: list[str] = []

    @abstractmethod
    def make_provider(self, url: str, tape: Tape | None = None) -> Provider: ...

    @abstractmethod
    def find_outputs(self, body: Json) -> Sequence[Json]:
        """The outputs of tools in a request."""

    @abstractmethod
    def call(self) -> bytes:
        """A call as it should be."""

    @abstractmethod
    def say(self, *pieces: str) -> bytes:
        """An answer as it should be."""

    def refuse(self, body: Json) -> str | Refusal | None:
        """What is wrong with a request, if something is."""
        return None

    def describe(self, refusal: Refusal) -> Json:
        """How the format puts a refusal."""
        return {"error": {"message": refusal.message}}

    def first(self, body: Json) -> bytes | list[bytes]:
        return self.call()

    def last(self, body: Json) -> bytes | list[bytes]:
        return self.say(NOON)

    async def ask(self, client: openai.AsyncOpenAI, *, streamed: bool = False) -> Response:
        asked = {"model": self.model, "input": "What time is it?", **self.request}
        told = await client.responses.create(**asked, stream=streamed)
        if isinstance(told, Response):
            return told
        try:
            ends = [event.response for event in [each async for each in told] if isinstance(event, ENDS)]
        except openai.APIError:
            return Response.model_construct(status="failed")
        return ends[-1]

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == self.status, outcome.response
        if self.status == "completed":
            assert outcome.response.output_text == NOON
        assert outcome.zones == self.zones

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        self.asked.append(body)
        if (refusal := self.refuse(body)) is not None:
            told = refusal if isinstance(refusal, Refusal) else Refusal(refusal)
            self.refused.append(told.message)
            return web.json_response(self.describe(told), status=told.status, headers=told.headers)
        reply = self.last(body) if self.find_outputs(body) else self.first(body)
        if isinstance(reply, bytes):
            return web.Response(body=reply, content_type=self.mime)
        response = web.StreamResponse(headers={"Content-Type": self.mime})
        await response.prepare(request)
        for piece in reply:
            await response.write(piece)
        return response


ENDS = (ResponseCompletedEvent, ResponseIncompleteEvent, ResponseFailedEvent)


class Silent:
    """Says nothing where it should have, or breaks off: the client is told of a failure, with a code, and no tool runs."""

    zones: ClassVar[list[str]] = []
    code: ClassVar[str]
    words: ClassVar[str] = ""

    async def ask(self, client: openai.AsyncOpenAI, *, streamed: bool = False) -> Response:
        with pytest.raises(openai.APIStatusError) as caught:
            await super().ask(client)  # type: ignore[misc]
        assert caught.value.code == self.code, caught.value
        assert self.words in caught.value.message, caught.value
        return Response.model_construct(status="failed")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.zones) == ("failed", [])
