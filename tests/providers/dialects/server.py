"""A vendor on this machine: real HTTP, replies written byte for byte, and every request read by the vendor's own rules.

A test scripts the replies in order. What the dialect finds wrong with a request, a request too many or a reply nobody fetched
fails the test when the fake is taken down.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import msgspec
from aiohttp import web
from tests.kit.waiting import PATIENCE
from tests.providers.backend import QUESTION, folded
from tests.providers.dialects import Asked, Dialect, Failure, Reading, Spoken, Stop

from mainspring.core.drafts import item_id, words
from mainspring.core.errors import ProviderError
from mainspring.core.events import Finish, ItemDone, ItemStarted, ModelEvent, TurnEnded
from mainspring.core.items import FunctionCall, Item, Json, Message, Reasoning, parse_arguments
from mainspring.core.model_request import ModelRequest

Ending = Literal["end", "abort", "silence", "pings"]
PING_SECONDS = 0.01


class Scripted(msgspec.Struct, frozen=True):
    """One reply. `ending` is what happens behind its last piece: a proper end of the body, a broken line, nothing at all, or
    signs of life for ever."""

    pieces: Sequence[bytes]
    status: int
    headers: dict[str, str]
    ending: Ending


class Fake:
    """A vendor's server. `asked` are the requests as the vendor reads them, `bodies` as they came; `gone` is set when the
    client leaves a reply that has gone silent."""

    def __init__(self, dialect: Dialect, *, judges: bool) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()
        self._dialect = dialect
        self._judges = judges
        self._script: list[Scripted] = []
        self._faults: list[str] = []

    def says(self, spoken: Spoken) -> None:
        self.replies(*self._dialect.frames(spoken))

    def replies(self, *pieces: bytes, ending: Ending = "end") -> None:
        self._script.append(Scripted(pieces, 200, {"Content-Type": self._dialect.mime}, ending))

    def fails(self, failure: Failure) -> None:
        headers = {"Content-Type": "application/json", **failure.headers}
        self._script.append(Scripted([failure.body], failure.status, headers, "end"))

    def withdraw(self) -> None:
        """Nobody will ask for what is scripted still."""
        self._script.clear()

    def check(self) -> None:
        assert not self._faults, "\n".join(self._faults)
        assert not self._script, f"never asked for: {self._script!r:.200}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.bodies.append(data)
        try:
            if self._judges:
                headers = dict(request.headers.items())
                self.asked.append(self._dialect.asked(request.method, request.path_qs, headers, msgspec.json.decode(data)))
            assert self._script, f"asked once too often: {data!r}"
        except AssertionError as fault:
            self._faults.append(f"{fault}\nin {data.decode()}")
            return web.Response(status=500)
        return await _answer(request, self._script.pop(0), self.gone)


async def _answer(request: web.Request, reply: Scripted, gone: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    for piece in reply.pieces:
        await response.write(piece)
    if reply.ending == "abort":
        assert request.transport is not None
        # Closed, not reset: what is written arrives, but the body has no end.
        request.transport.close()
    elif reply.ending == "silence":
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
    elif reply.ending == "pings":
        await _ping(response, b": ping\n\n" if response.content_type == "text/event-stream" else b"\n")
    return response


async def _ping(response: web.StreamResponse, ping: bytes) -> None:
    with suppress(ConnectionError):
        while True:
            await response.write(ping)
            await anyio.sleep(PING_SECONDS)


@asynccontextmanager
async def serving(dialect: Dialect, *, judges: bool = True) -> AsyncIterator[Fake]:
    """The fake, up and running. Without `judges` it takes any request: the vendor's own client sends what it likes."""
    fake = Fake(dialect, judges=judges)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}"
    try:
        yield fake
    except ProviderError:
        # What the vendor finds wrong says more than what the adapter made of its answer.
        fake.check()
        raise
    finally:
        await runner.cleanup()
    fake.check()


async def answer(dialect: Dialect, fake: Fake, request: ModelRequest = QUESTION) -> list[ModelEvent]:
    """All events of one turn, which the engine's own fold must accept."""
    provider = dialect.provider(fake.url)
    try:
        with anyio.fail_after(PATIENCE):
            events = [event async for event in provider.stream(request)]
    finally:
        await provider.close()
    folded(events)
    return events


async def told(dialect: Dialect, spoken: Spoken, request: ModelRequest = QUESTION) -> list[ModelEvent]:
    """The events of this answer to this request, from a fake of its own."""
    async with serving(dialect) as fake:
        fake.says(spoken)
        return await answer(dialect, fake, request)


async def asked(dialect: Dialect, request: ModelRequest) -> Asked:
    """The request as the vendor reads it."""
    async with serving(dialect) as fake:
        fake.says(Spoken(text=("Noon.",)))
        await answer(dialect, fake, request)
        return fake.asked[0]


def items(events: Sequence[ModelEvent]) -> list[Item]:
    """The items in the order in which they began, as a run keeps them."""
    done = {item_id(event.item): event.item for event in events if isinstance(event, ItemDone)}
    return [done[item_id(event.item)] for event in events if isinstance(event, ItemStarted)]


def calls(events: Sequence[ModelEvent]) -> list[tuple[str, Json]]:
    return [(item.name, parse_arguments(item.arguments)) for item in items(events) if isinstance(item, FunctionCall)]


def text(events: Sequence[ModelEvent]) -> str:
    return "".join([item.text for item in items(events) if isinstance(item, Message)])


def ended(events: Sequence[ModelEvent]) -> TurnEnded:
    last = events[-1]
    assert isinstance(last, TurnEnded)
    return last


def reading(events: Sequence[ModelEvent]) -> Reading:
    """What our adapter understood, in the terms in which the vendor's client is asked too."""
    thoughts = ["".join(words(item)) for item in items(events) if isinstance(item, Reasoning)]
    end = ended(events)
    return Reading(text(events), "".join(thoughts), tuple(calls(events)), _STOP[end.finish], end.usage)


_STOP: dict[Finish, Stop] = {"stop": "stop", "length": "length", "content_filter": "safety"}
