"""`mainspring serve`: an engine behind uvicorn, from its settings."""

import asyncio
import sys
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket

from uvicorn import Config, Server

import mainspring
from mainspring.app import Engine, provider_for
from mainspring.config import Settings
from mainspring.errors import InvalidRequest
from mainspring.ports import Provider, Store
from mainspring.providers.scripted import Scripted, say
from mainspring.server.app import server
from mainspring.server.keys import Keys, is_loopback
from mainspring.server.responses import MOST_BODY_BYTES
from mainspring.server.wire import Dialect
from mainspring.tools.functions import load

WELCOME = (
    "Hello! I am only a scripted stand-in, because this server has no model yet. Start it with `mainspring serve --base-url "
    "http://127.0.0.1:11434/v1 --model NAME`, and a real one will answer you here."
)


class Announcing(Server):
    """Says where it listens once it does, so that port 0 and scripts work."""

    def __init__(self, config: Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(announcement(self._settings, f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"), flush=True)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Stopping when told to is a success; uvicorn would raise the signal once more.
        self._captured_signals.clear()


def announcement(settings: Settings, url: str) -> str:
    model = settings.model or ("every model of " + settings.base_url if settings.base_url else "a scripted stand-in")
    example = settings.model or "NAME"
    if settings.api_key is not None or not is_loopback(settings.host):
        keys = f"needed; `mainspring keys create --database {settings.database}` makes one"
    else:
        keys = "none needed, since only this machine can reach it, until you make one"
    return (
        f"Mainspring {mainspring.__version__} listens at {url}\n"
        f"  model     {model}\n"
        f"  database  {settings.database}\n"
        f"  API keys  {keys}\n"
        f"  try       curl {url}/responses -H 'content-type: application/json' "
        f'-d \'{{"model": "{example}", "input": "Hello"}}\'\n'
        f'  or        OpenAI(base_url="{url}", api_key="unused").responses.create(model="{example}", input="Hello")'
    )


def engine_for(settings: Settings) -> Engine:
    """The engine that the settings describe. Raises `InvalidRequest` for what is missing or wrong."""
    tools = [function for reference in settings.tools for function in load(reference)]
    provider: Provider
    if settings.model is None and settings.base_url is None and settings.backend_key is None:
        provider = Scripted(say(WELCOME), repeat=True, chunk=4)
    else:
        provider = provider_for(settings.model or "", settings.base_url, settings.backend_key)
    engine = Engine(provider, tools=tools, database=Path(settings.database), context_tokens=settings.context_tokens)
    engine.owns_provider = True
    engine.model = settings.model or (provider.name if isinstance(provider, Scripted) else "")
    return engine


def serve(settings: Settings) -> int:
    """Serves until it is told to stop. Runs that do not finish in time are resumed by the next start."""
    dialect = Dialect(
        reasoning="reasoning" if settings.reasoning_events == "reasoning" else "reasoning_text",
        requires_action=settings.requires_action,
        extensions=settings.extension_events,
        error_event=settings.error_event,
    )
    engine = engine_for(settings)
    asyncio.run(_try_out(engine.store))
    config = Config(
        server(engine, dialect, keys=Keys(engine.store, configured=settings.api_key), is_local=is_loopback(settings.host)),
        host=settings.host,
        port=settings.port,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http="httptools",
        log_level="warning",
        access_log=False,
        ws_max_size=MOST_BODY_BYTES,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    with _listening(settings) as listener:
        Announcing(config, settings).run([listener])
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
