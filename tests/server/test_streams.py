"""Streams under our own protocol, which writes without waiting, and under a server that knows only ASGI."""

from asyncio import Protocol
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp
import anyio
import pytest
from anyio.abc import SocketStream
from starlette.types import Receive, Scope, Send
from tests.kit.waiting import PATIENCE, until
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.http import streams
from mainspring.http.client_connection import CONNECTION
from mainspring.http.connections import BoundedProtocol, ConnectionTable
from mainspring.http.settings import HttpSettings
from mainspring.providers.scripted import Scripted, say, stall

Http = type[Protocol] | Literal["auto"]

OURS = ConnectionTable(HttpSettings(), files=1024).protocol
BOTH: tuple[Http, ...] = (OURS, "auto")


@pytest.mark.parametrize("http", BOTH)
async def test_quiet_streams_are_all_pinged_again_and_again(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING_SECONDS", 0.01)
    engine = Engine(Scripted(stall(), repeat=True))
    async with hosted(server(engine), http) as url, aiohttp.ClientSession() as session:
        answers = [await session.post(f"{url}/responses", json={"input": "go", "stream": True}) for _ in range(3)]
        with anyio.fail_after(PATIENCE):
            for answer in answers:
                seen = b""
                while seen.count(streams.PING) < 3:
                    seen += await answer.content.readany()
                assert seen.startswith(b"event: response.created")
            answers[0].close()
            await until(lambda: engine.core.live == 2)
            for answer in answers[1:]:
                assert streams.PING in await answer.content.readany()
                answer.close()
            await until(lambda: engine.core.live == 0)


@pytest.mark.parametrize("http", BOTH)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_is_noticed_behind_a_large_body(http: Http, is_stream: bool) -> None:
    """A body that comes when it is waited for, all at once, makes the server stop reading."""
    engine = Engine(Scripted(stall(), repeat=True))
    async with hosted(server(engine), http) as url:
        address, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        body = b'{"input": "%s", "stream": %s}' % (b"x" * 100_000, b"true" if is_stream else b"false")
        client = await anyio.connect_tcp(address, int(port))
        head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await client.send(head % len(body))
        await anyio.sleep(0.05)
        await client.send(body)
        await until(lambda: engine.core.live == 1)
        await client.aclose()
        await until(lambda: engine.core.live == 0)


@pytest.mark.parametrize("http", BOTH)
async def test_the_head_of_a_stream_is_told_at_once_and_its_connection_goes_on(http: Http) -> None:
    async with hosted(server(Engine(Scripted(say("Hello."), stall()))), http) as url, aiohttp.ClientSession() as session:
        made = await (await session.post(f"{url}/responses", json={"input": "go"})).json()
        for _ in range(2):
            head = await session.head(f"{url}/responses/{made['id']}", params={"stream": "true"})
            assert (head.status, head.content_type) == (200, "text/event-stream")
        begun = await (await session.post(f"{url}/responses", json={"input": "go", "background": True})).json()
        with anyio.fail_after(PATIENCE):
            assert (await session.head(f"{url}/responses/{begun['id']}", params={"stream": "true"})).status == 200


@pytest.mark.parametrize("http", BOTH)
async def test_requests_sent_at_once_on_one_connection_are_answered_in_order(http: Http) -> None:
    """A stream, a second stream and a body that comes while the first is under way."""
    engine = Engine(Scripted(say("One.", pause=0.01), say("Two.", pause=0.01), say("Three.")))
    async with hosted(server(engine), http) as url:
        address, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        client = await anyio.connect_tcp(address, int(port))
        head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        bodies = [b'{"input": "go", "stream": %s}' % kind for kind in (b"true", b"true", b"false")]
        await client.send(b"".join([head % len(body) + body for body in bodies]))
        seen = b""
        with anyio.fail_after(PATIENCE):
            while b"Three." not in seen:
                seen += await client.receive()
        assert seen.count(b"HTTP/1.1 200 OK") == 3
        assert seen.count(b"data: [DONE]") == 2
        assert seen.index(b'"text":"One."') < seen.index(b'"text":"Two."') < seen.index(b'"text":"Three."')
        await client.aclose()


@asynccontextmanager
async def ended_run(text: str, before: Callable[[BoundedProtocol], Awaitable[None]]) -> AsyncIterator[SocketStream]:
    """A client that has asked for the stream of a run that has ended. `before` has its connection before the answer begins."""
    app = server(Engine(Scripted(say(text), chunk=0)))
    failures: list[Exception] = []

    async def delayed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("query_string") == b"stream=true":
            await before(scope[CONNECTION])
        try:
            await app(scope, receive, send)
        except Exception as failure:
            failures.append(failure)
            raise

    async with hosted(delayed, OURS) as url, aiohttp.ClientSession() as session:
        made = await (await session.post(f"{url}/responses", json={"input": "go"})).json()
        address, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        async with await anyio.connect_tcp(address, int(port)) as client:
            await client.send(b"GET /v1/responses/%b?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n" % made["id"].encode())
            yield client
    assert not failures


def test_a_client_that_left_before_its_stream_began_is_no_failure() -> None:
    """With the event loop that servers have, which takes nothing for a connection that is closed."""

    async def leave() -> None:
        begun = anyio.Event()

        async def wait_until_it_left(connection: BoundedProtocol) -> None:
            await until(connection.transport.is_closing)
            begun.set()

        async with ended_run("Hello.", wait_until_it_left) as client:
            await client.aclose()
            with anyio.fail_after(PATIENCE):
                await begun.wait()

    anyio.run(leave, backend_options={"use_uvloop": True})


async def test_little_is_kept_for_a_client_that_does_not_read_its_stream() -> None:
    connections: list[BoundedProtocol] = []

    async def note(connection: BoundedProtocol) -> None:
        connections.append(connection)

    async with ended_run("x" * 20_000_000, note) as client:
        await until(lambda: bool(connections) and connections[0].is_full)
        assert connections[0].transport.get_write_buffer_size() <= 2 * streams.PIECE_BYTES
        seen = b""
        with anyio.fail_after(PATIENCE):
            while b"data: [DONE]" not in seen[-100:]:
                seen = seen[-100:] + await client.receive()
