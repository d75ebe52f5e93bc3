"""An engine behind uvicorn, from its settings. Run as a module, it is the process that `mainspring serve` becomes."""

import asyncio
import gc
import os
import sys
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket

import msgspec
from anyio import move_on_after
from starlette.applications import Starlette
from uvicorn import Config, Server

import mainspring
from mainspring.app.assembly import ServerEngine, build_server_engine
from mainspring.app.server import server
from mainspring.app.settings import Settings, find_settings_type
from mainspring.cli.exit import INTERRUPTED, leave, run_reporting_errors
from mainspring.cli.output import accept_any_text
from mainspring.core.errors import InvalidRequest
from mainspring.http.auth import Keys, is_loopback
from mainspring.http.bodies import MOST_BODY_BYTES
from mainspring.http.connections import ConnectionTable, raise_file_limit
from mainspring.http.wire import Dialect
from mainspring.ports import Store
from mainspring.storage.location import parse_location

# How long clients have to read what they are told at the end.
GOODBYE_SECONDS = 5
TICKS_PER_SECOND = 10  # of uvicorn
# After so many new objects, garbage is looked for among them; Python itself says 700.
GARBAGE_OBJECTS = 10_000


class EngineServer(Server):
    """Says where it listens once it does, so that port 0 and scripts work, and stops in two steps, so that runs can end. What
    fails when the application starts is raised."""

    def __init__(self, app: Starlette, settings: Settings, choice: ServerEngine, connections: ConnectionTable) -> None:
        super().__init__(
            Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="uvloop" if sys.platform != "win32" else "asyncio",
                http=connections.protocol,
                lifespan="off",
                log_level="warning",
                access_log=False,
                ws=connections.socket_protocol,
                ws_max_size=MOST_BODY_BYTES,
                ws_per_message_deflate=False,  # a kilobyte would become a megabyte, and every token would be deflated
                server_header=False,
                proxy_headers=False,  # nothing asks where a request is from; addresses are counted by connection
                timeout_graceful_shutdown=GOODBYE_SECONDS,
            )
        )
        self._app, self._settings, self._choice, self._connections = app, settings, choice, connections

    async def _serve(self, sockets: list[socket] | None = None) -> None:
        async with self._app.router.lifespan_context(self._app):
            await super()._serve(sockets)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            print(await announcement(self._settings, self._choice, url), flush=True)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SECOND == 0:
            self._connections.sweep(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Takes no more requests, lets runs finish for a while, and leaves the rest to be resumed; its clients are told so."""
        for listening in self.servers:
            listening.close()
        for listener in sockets or ():
            listener.close()
        with move_on_after(self._settings.drain_seconds):
            await self._choice.engine.drain()
        self._choice.engine.interrupt()
        await super().shutdown(sockets)
        # Stopping when told to is a success; uvicorn would raise the signal once more.
        self._captured_signals.clear()


async def announcement(settings: Settings, choice: ServerEngine, url: str) -> str:
    example = choice.engine.model or "NAME"
    database = parse_location(settings.database)
    keys, header, key = "none needed, since only this machine can reach it, until you make one", "", "unused"
    if not is_loopback(settings.host) or await Keys(choice.engine.store, configured=settings.api_key).are_needed():
        keys = f"needed; `mainspring keys create --database {database}` makes one"
        header, key = " -H 'authorization: Bearer KEY'", "KEY"
    return (
        f"Mainspring {mainspring.__version__} listens at {url}\n"
        f"  model     {choice.model}\n"
        f"  database  {database}\n"
        f"  API keys  {keys}\n"
        f"  try       curl {url}/responses{header} -H 'content-type: application/json' "
        f'-d \'{{"model": "{example}", "input": "Hello"}}\'\n'
        f'  or        OpenAI(base_url="{url}", api_key="{key}").responses.create(model="{example}", input="Hello")'
    )


def serve(settings: Settings, file: Path | None = None) -> int:
    """Serves until it is told to stop. Runs that do not finish in time are resumed by the next start. `file` is where the
    settings are from."""
    dialect = Dialect(
        reasoning=settings.reasoning_events,
        server_calls=settings.server_calls,
        requires_action=settings.requires_action,
        extensions=settings.extension_events,
        error_event=settings.error_event,
    )
    choice = build_server_engine(settings, file)
    engine = choice.engine
    asyncio.run(_try_out(engine.store))
    connections = ConnectionTable(settings.http, raise_file_limit(), engine.core.quota)
    keys = Keys(engine.store, configured=settings.api_key, most_requests=connections.most_per_key, quota=engine.core.quota)
    app = server(engine, dialect, keys=keys, is_local=is_loopback(settings.host))
    # A thousand open streams are half a million objects: looking through all of them again and again took a fifth of the time,
    # and everybody waited meanwhile. What is there now stays, and need not be looked at.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    with _listening(settings) as listener:
        EngineServer(app, settings, choice, connections).run([listener])
    return 0


def _listening(settings: Settings) -> socket:
    """The socket to listen at. Raises `InvalidRequest` if it cannot be had."""
    family = AF_INET6 if ":" in settings.host else AF_INET
    listener = socket(family)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        message = (
            f"cannot listen at {settings.host} port {settings.port}: {reason}; choose another with --port (0 picks a free one)"
        )
        raise InvalidRequest(message, param="port") from None
    return listener


async def _try_out(store: Store) -> None:
    """A file that cannot be used is told in one line, before anything is started."""
    await store.open()
    await store.close()


def _serve_from_file() -> int:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        settings = msgspec.json.decode(file.read(), type=find_settings_type())
    return serve(settings, Path(sys.argv[2]) if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    accept_any_text()
    try:
        leave(run_reporting_errors(_serve_from_file))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
