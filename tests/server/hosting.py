"""A real server in the test's own process: uvicorn on a free loopback port, around an engine that the test can look into."""

from asyncio import Protocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Literal

import anyio
from starlette.types import ASGIApp
from tests.kit.waiting import PATIENCE, until
from uvicorn import Config, Server


class _Hosted(Server):
    """Says when it listens. Told to stop it does so once it has answered, where uvicorn looks every tenth of a second."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()
        self.stops = anyio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with anyio.move_on_after(0.1):
                await self.stops.wait()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        state = self.server_state
        for listener in self.servers:
            listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown or 0):
            await until(lambda: not state.connections and not state.tasks)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        self.should_exit = True
        self.stops.set()


@asynccontextmanager
async def hosted(app: ASGIApp, http: type[Protocol] | Literal["auto"] = "auto") -> AsyncIterator[str]:
    """The address of the running server, up to `/v1`. It speaks by its own protocol, unless it is given another."""
    running = _Hosted(Config(app, port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=5, http=http))
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve)
        with anyio.fail_after(PATIENCE):
            await running.listens.wait()
        port = running.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            running.stop()
