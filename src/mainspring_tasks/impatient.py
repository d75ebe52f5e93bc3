"""How a decision asks its model: a person is waiting, so one that takes no more requests is not asked again but told of."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from mainspring.core.errors import ProviderError
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.providers.wrapper import ProviderWrapper


class Impatient(ProviderWrapper):
    """The provider behind it, which neither waits for a rate limit to pass nor has the loop ask again for what it said no to.

    Only a turn that was not over in its time is asked for again: it raises nothing, and the loop sees to it.
    """

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async with aclosing(self._provider.stream(replace(request, is_patient=False))) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            error.retryable = False
            raise
