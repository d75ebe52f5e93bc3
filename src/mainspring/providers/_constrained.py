"""Tool calls for models that cannot make them, but can be held to a JSON Schema.

Theory of operation. `Constrained` wraps a provider whose backend honours `text.format` with a schema. Where tools may be called,
`asked` rewrites the request: no tools, but their description in the instructions, and a schema that lets the model write one of
`{"tool": NAME, "arguments": {...}}` and `{"reply": TEXT}`. Calls and outputs of the past become plain messages, because small
models that are shown a tool protocol go on calling. `Answer` reads the JSON back as it arrives: a reply is streamed, a call
appears once it is whole. Where no tool may be called, the model just chats.

One thing is judged here: a model that answers an output by the very same call is asked again, for words only.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from mainspring.events import ModelEvent, TurnEnded
from mainspring.ids import NewId, random_id
from mainspring.items import FunctionCall, Usage
from mainspring.loop.request import ModelRequest
from mainspring.ports import ModelInfo, Provider
from mainspring.providers._constrained_answer import Answer
from mainspring.providers._constrained_request import asked, choices_of, just_answered, talked
from mainspring.providers._turn import Turn


class Constrained:
    """A provider whose tool calls are valid JSON for the schema of a declared tool, as far as its backend enforces schemas.

    What a backend's schemas do not cover is left to the engine, which holds every call against its tool's schema anyway.
    The wrapped provider is closed with this one. A turn makes at most one call.
    """

    def __init__(self, inner: Provider, *, new_id: NewId = random_id) -> None:
        self.name = inner.name
        self._inner = inner
        self._new_id = new_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        choices = choices_of(request)
        if not choices.tools:
            async with aclosing(self._inner.stream(talked(request))) as events:
                async for event in events:
                    yield event
            return
        answer = Answer(
            self._turn(request), is_text=choices.is_text, repeats=just_answered(request) if choices.may_reply else None
        )
        async with aclosing(self._inner.stream(asked(request, choices))) as events:
            async for event in events:
                for told in answer.take(event):
                    yield told
        if answer.is_repeated:
            async with aclosing(self._inner.stream(talked(request))) as events:
                async for event in events:
                    yield _with(event, answer.usage)

    async def models(self) -> Sequence[ModelInfo]:
        return await self._inner.models()

    async def close(self) -> None:
        await self._inner.close()

    def _turn(self, request: ModelRequest) -> Turn:
        return Turn(self._new_id, taken=[item.call_id for item in request.items if isinstance(item, FunctionCall)])


def _with(event: ModelEvent, usage: Usage | None) -> ModelEvent:
    """The event, its usage raised by what was spent before."""
    if usage is None or not isinstance(event, TurnEnded):
        return event
    return TurnEnded(event.finish, usage + (event.usage or Usage()), event.error)
