"""What wrappers are tested with: a provider in the hands of the test."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from anyio import current_time
from anyio.lowlevel import checkpoint

from mainspring.core.errors import ProviderError
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import Message, assistant, user
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo, Provider

BEGUN = ItemStarted(Message("assistant", id="msg_1", status="in_progress"))
ANSWER: tuple[ModelEvent, ...] = (BEGUN, TextDelta("msg_1", "noon"), ItemDone(assistant("noon", id="msg_1")), TurnEnded())


class Held:
    """One stream of a `Puppet`: it says what the test tells it to, and then ends or fails."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.begun_at = current_time()
        self.is_closed = False
        self.orders: asyncio.Queue[ModelEvent | ProviderError | None] = asyncio.Queue()

    def say(self, *events: ModelEvent) -> None:
        for event in events:
            self.orders.put_nowait(event)

    def end(self) -> None:
        self.orders.put_nowait(None)

    def fail(self, error: ProviderError) -> None:
        self.orders.put_nowait(error)


class Puppet:
    """A provider that does nothing by itself; `calls` are the streams it was asked for."""

    def __init__(self, name: str = "puppet") -> None:
        self.name = name
        self.calls: list[Held] = []
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        held = Held(request)
        self.calls.append(held)
        try:
            while (order := await held.orders.get()) is not None:
                if isinstance(order, ProviderError):
                    raise order
                yield order
        finally:
            held.is_closed = True

    async def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo("m", owned_by=self.name),)

    async def close(self) -> None:
        self.closed += 1


_READING: set[asyncio.Task[None]] = set()


class Reader:
    """Somebody who reads a stream to its end: what was heard, and how it ended."""

    def __init__(self, provider: Provider, tenant: str = "", model: str = "m") -> None:
        self.heard: list[ModelEvent] = []
        self.begun = asyncio.Event()
        self.error: ProviderError | None = None
        self.request = asks(tenant=tenant, model=model)
        self.task = asyncio.get_running_loop().create_task(self._read(provider))
        # The event loop alone does not keep it: whoever is still reading when a test ends is cancelled with it, not collected.
        _READING.add(self.task)
        self.task.add_done_callback(_READING.discard)

    @property
    def is_done(self) -> bool:
        return self.task.done()

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _read(self, provider: Provider) -> None:
        try:
            async with aclosing(provider.stream(self.request)) as events:
                async for event in events:
                    self.heard.append(event)
                    self.begun.set()
        except ProviderError as error:
            self.error = error


def asks(text: str = "What time is it?", *, tenant: str = "", model: str = "m") -> ModelRequest:
    return ModelRequest("resp_1", model, (user(text),), tenant=tenant)


async def heard(provider: Provider, request: ModelRequest | None = None) -> list[ModelEvent]:
    async with aclosing(provider.stream(request or asks())) as events:
        return [event async for event in events]


async def said(provider: Provider, request: ModelRequest | None = None) -> str:
    return "".join([event.delta for event in await heard(provider, request) if isinstance(event, TextDelta)])


async def settle() -> None:
    """Lets everybody do what can be done now."""
    for _ in range(20):
        await checkpoint()
