"""Tool calls for models that cannot make them, but can be held to a JSON Schema.

Theory of operation. `Constrained` wraps a provider whose backend honours `text.format` with a schema. Where tools may be called,
`constrain` rewrites the request: no tools, but their description in the instructions, and a schema that lets the model write
either `{"tool": NAME, "arguments": {...}}` or `{"reply": TEXT}`. Past calls and outputs become plain messages, because small
models that are shown a tool protocol keep calling. `ConstrainedReply` reads the JSON back as it arrives: a reply is streamed, a
call appears once it is whole. Where no tool may be called, the model just chats.

Two things are checked here. A model that answers an output with the very same call is asked again, for words only. And since no
backend enforces all of JSON Schema, each call is validated against its tool's own schema; a call that does not fit is reported
to the model, which may try again. Of rejected answers, only the usage is passed on.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from mainspring.core.errors import BadOutput
from mainspring.core.events import ModelEvent, TurnEnded
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Usage
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelFeature, Provider
from mainspring.providers.constrained.reply import ConstrainedReply
from mainspring.providers.constrained.request import constrain, find_answered_call, find_choices, strip_tools
from mainspring.providers.turn import TurnBuilder, list_call_ids
from mainspring.providers.wrapper import ProviderWrapper

TRIES = 3


class Constrained(ProviderWrapper):
    """A provider whose tool calls are valid for the schema of a declared tool, or not made.

    Its stream raises `BadOutput` if the model finds no valid call in `TRIES` tries. The wrapped provider is closed with this one.
    A turn makes at most one call.
    """

    def __init__(self, inner: Provider, *, new_id: NewId = random_id) -> None:
        super().__init__(inner)
        self._new_id = new_id

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        """None: what the model writes is not what is said, so its log probabilities would be of other words."""
        return frozenset()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        choices = find_choices(request)
        if not choices.tools:
            async with aclosing(self._provider.stream(strip_tools(request))) as events:
                async for event in events:
                    yield event
            return
        misfit, spent = None, Usage()
        repeats = find_answered_call(request) if choices.may_reply else None
        for _ in range(TRIES):
            turn = TurnBuilder(self._new_id, list_call_ids(request.items))
            answer = ConstrainedReply(turn, choices.tools, is_text=choices.form is None, repeats=repeats)
            async with aclosing(self._provider.stream(constrain(request, choices, misfit))) as events:
                async for event in events:
                    for told in answer.take(event):
                        yield _add_usage(told, spent)
            misfit, spent = answer.misfit, spent + (answer.usage or Usage())
            if misfit is None:
                break
        else:
            assert misfit is not None
            raise BadOutput(
                f"the model called `{misfit.tool}` {TRIES} times with arguments that do not fit its schema, at last because of "
                f"{misfit.flaw}; ask again, simplify the schema or use a larger model"
            )
        if answer.is_repeated:
            async with aclosing(self._provider.stream(strip_tools(request))) as events:
                async for event in events:
                    yield _add_usage(event, spent)


def _add_usage(event: ModelEvent, spent: Usage) -> ModelEvent:
    """The event, its usage raised by what was spent before."""
    if spent == Usage() or not isinstance(event, TurnEnded):
        return event
    return replace(event, usage=spent + (event.usage or Usage()))
