"""A real server in the test's own process: uvicorn on a free loopback port, around an engine that the test can look into."""

from asyncio import Protocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Literal

import anyio
from starlette.types import ASGIApp
from tests.kit.waiting import PATIENCE
from uvicorn import Config, Server


class _Announced(Server):
    """Says when it listens."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@asynccontextmanager
async def hosted(app: ASGIApp, http: type[Protocol] | Literal["auto"] = "auto") -> AsyncIterator[str]:
    """The address of the running server, up to `/v1`. It speaks by its own protocol, unless it is given another."""
    running = _Announced(Config(app, port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=5, http=http))
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve)
        with anyio.fail_after(PATIENCE):
            await running.listens.wait()
        port = running.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            running.should_exit = True
