"""Kept connections of a server that stops: each ends with an answer, or after a moment in which none was asked for."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.kit.clock import JUMPING
from uvicorn import Config
from uvicorn.server import ServerState

from mainspring.http.connections import LEAVE_SECONDS, BoundedProtocol, ConnectionTable, leave_connections
from mainspring.http.settings import HttpSettings

ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Client(asyncio.Transport):
    """The other end of a connection: what it was sent, and when the connection was closed."""

    def __init__(self, state: ServerState) -> None:
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 80)})
        config = Config(answer, lifespan="off", log_config=None)
        config.load()
        self.got, self.closed_at = b"", -1.0
        self.protocol = BoundedProtocol(ConnectionTable(HttpSettings(), 1000), config=config, server_state=state, app_state={})
        self.protocol.connection_made(self)

    async def ask(self) -> None:
        self.protocol.data_received(ASK)
        for _ in range(3):
            await asyncio.sleep(0)

    def write(self, data: Any) -> None:
        self.got += data

    def is_closing(self) -> bool:
        return self.closed_at >= 0

    def close(self) -> None:
        if not self.is_closing():
            self.closed_at = asyncio.get_running_loop().time()

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None:
        pass


async def test_a_request_that_a_proxy_sends_while_the_server_leaves_is_answered_and_ends_its_connection() -> None:
    state = ServerState()
    late, silent, new = [Client(state) for _ in range(3)]
    for client in (late, silent):
        await client.ask()
        assert (client.got.count(b"200 OK"), client.is_closing()) == (1, False)
    leaving = asyncio.create_task(leave_connections(state.connections, LEAVE_SECONDS))
    await asyncio.sleep(LEAVE_SECONDS - 0.1)
    assert not late.is_closing()
    await late.ask()
    assert late.got.count(b"200 OK") == 2
    assert b"connection: close" in late.got.rpartition(b"200 OK")[2]
    assert late.is_closing()
    await leaving
    assert silent.closed_at == pytest.approx(LEAVE_SECONDS, abs=0.02)
    assert not new.is_closing(), "its first request is on its way"


async def test_a_server_without_kept_connections_leaves_at_once() -> None:
    state = ServerState()
    client = Client(state)
    await client.ask()
    leaving = asyncio.create_task(leave_connections(state.connections, LEAVE_SECONDS))
    await asyncio.sleep(0)
    await client.ask()
    await leaving
    assert asyncio.get_running_loop().time() < 0.05
