"""An engine behind uvicorn, from its settings. Run as a module, it is the process that `mainspring serve` becomes."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from socket import socket
from typing import cast

import msgspec
from anyio import move_on_after
from msgspec import Struct
from msgspec.structs import asdict
from starlette.applications import Starlette
from uvicorn import Config, Server

import mainspring
from mainspring.app.assembly import ServerEngine, build_server_engine
from mainspring.app.build import check_surroundings
from mainspring.app.keep_days import read_keep_days
from mainspring.app.server import find_key_use, server
from mainspring.app.settings import FILE, Settings, find_settings_type, list_misspelt, load
from mainspring.app.shared_listener import ConnectionLoads, SharedListener, bind_listener
from mainspring.cli.exit import INTERRUPTED, leave, run_reporting_errors
from mainspring.cli.output import accept_any_text, fit_message, name_program
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node
from mainspring.definitions.reader import read_text
from mainspring.definitions.toml import parse_toml
from mainspring.features.config.settings_page import hide_secrets
from mainspring.features.system.routes import SettingInForce, SettingList, Source
from mainspring.features.traces.shared_metrics import SharedMetrics
from mainspring.http.auth import Keys
from mainspring.http.bodies import MOST_BODY_BYTES
from mainspring.http.connections import LEAVE_SECONDS, BoundedProtocol, ConnectionTable, leave_connections, raise_file_limit
from mainspring.http.layers import make_layers
from mainspring.http.origins import is_loopback
from mainspring.http.wire import Dialect
from mainspring.ports import Store
from mainspring.storage.location import parse_location

# How long clients have to read what they are told at the end.
GOODBYE_SECONDS = 5
# And how long those who have just connected have to ask, where other processes take who comes next.
BEGIN_SECONDS = 1
TICKS_PER_SECOND = 10  # of uvicorn
# After so many new objects, garbage is looked for among them; Python itself says 700.
GARBAGE_OBJECTS = 10_000
# How far what is said of a server stands behind its titles.
MARGIN = 12
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Siblings(Struct, frozen=True):
    """What a process has from the supervisor that started it, as descriptors: the `listener`, the `loads` and the `metrics` that
    all of them share, its own metrics first, and its `link` to the supervisor. `place` is its own among the loads. `is_first`
    says that the others come after it. A worker that says nowhere how it is has no listener, which is then below 0."""

    listener: int
    link: int
    count: int
    is_first: bool
    loads: int
    place: int
    metrics: Sequence[int]

    @classmethod
    def parse(cls, text: str) -> "Siblings":
        listener, link, count, is_first, loads, place, *metrics = [int(number) for number in text.split(",")]
        for descriptor in (*([] if listener < 0 else [listener]), link, loads, *metrics):
            os.set_inheritable(descriptor, False)
        return cls(listener, link, count, bool(is_first), loads, place, metrics)

    def open_listener(self) -> socket | None:
        return None if self.listener < 0 else socket(fileno=self.listener)


class EngineServer(Server):
    """Says where it listens once it does, so that port 0 and scripts work, and stops in two steps, so that runs can end. What
    fails when the application starts is raised. One that has `siblings` tells their supervisor instead, and stops without it."""

    def __init__(
        self,
        app: Starlette,
        settings: Settings,
        choice: ServerEngine,
        connections: ConnectionTable,
        siblings: Siblings | None = None,
        metrics: SharedMetrics | None = None,
    ) -> None:
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
                timeout_keep_alive=settings.http.keep_alive_seconds,
                timeout_graceful_shutdown=GOODBYE_SECONDS,
            )
        )
        self._app, self._settings, self._choice, self._connections = app, settings, choice, connections
        self._siblings, self._metrics = siblings, metrics
        self._link = None if siblings is None else socket(fileno=siblings.link)
        self._accepting: SharedListener | None = None

    async def _serve(self, sockets: list[socket] | None = None) -> None:
        async with self._app.router.lifespan_context(self._app):
            await super()._serve(sockets)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets if self._siblings is None else [])
        url = ""
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if self._siblings is not None:
                loads = ConnectionLoads(self._siblings.loads, self._siblings.place)
                self._accepting = SharedListener(listener, self._make_protocol, loads, self.server_state.connections)
                self._accepting.open()
        told = await announce(self._settings, self._choice, url, 1 if self._siblings is None else self._siblings.count)
        if self._link is None:
            try:
                print(fit_message(name_program(told), sys.stdout, MARGIN), flush=True)
            except OSError:  # nobody reads it any more
                await self.shutdown(sockets)
                raise
        else:
            self._link.sendall(told.encode())
            asyncio.get_running_loop().add_reader(self._link, self._leave)

    def _make_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )

    def _leave(self) -> None:
        """The supervisor is gone."""
        assert self._link is not None
        asyncio.get_running_loop().remove_reader(self._link)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._accepting is not None:
            self._accepting.tell_load()
        if counter % TICKS_PER_SECOND == 0:
            self._connections.sweep(self.server_state.connections, asyncio.get_running_loop().time())
            if self._metrics is not None:
                self._metrics.write(self._choice.engine.core.live)
        return await super().on_tick(counter)

    async def _let_begin(self, accepting: SharedListener) -> None:
        """Waits a moment for requests on connections that were accepted just now: nobody else can answer them."""
        with move_on_after(BEGIN_SECONDS):
            while accepting.is_beginning or any(map(_is_beginning, self.server_state.connections)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Takes no more requests, lets runs finish for a while, and leaves the rest to be resumed; its clients are told so."""
        for listening in self.servers:
            listening.close()
        if self._accepting is not None:
            self._accepting.close()
        await leave_connections(self.server_state.connections, min(LEAVE_SECONDS, self._settings.drain_seconds))
        if self._accepting is not None:
            await self._let_begin(self._accepting)
        for listener in sockets or ():
            listener.close()
        with move_on_after(self._settings.drain_seconds):
            await self._choice.engine.drain()
        self._choice.engine.interrupt()
        await super().shutdown(sockets)
        if self._metrics is not None:
            self._metrics.write(0)
        # Stopping when told to is a success; uvicorn would raise the signal once more.
        self._captured_signals.clear()


def _is_beginning(connection: object) -> bool:
    return isinstance(connection, BoundedProtocol) and connection.is_beginning


def is_only_local(settings: Settings) -> bool:
    """Whether nobody but this machine can reach the server: neither by the network, nor from every web page that is looked at."""
    return is_loopback(settings.host) and "*" not in settings.http.cors_origins


async def announce(settings: Settings, choice: ServerEngine, url: str, count: int) -> str:
    """What a server says once it serves, and a worker once it works."""
    example, is_worker = choice.engine.model or "NAME", settings.role == "worker"
    gap = f" \\\n{'':{MARGIN + 2}}" if sys.stdout.isatty() else " "
    database = parse_location(settings.database)
    keys, header, key = "none needed, since only this machine can reach it, until you make one", "", "unused"
    if not is_only_local(settings) or await Keys(choice.engine.store, configured=settings.api_key).are_needed():
        keys = f"needed; `mainspring keys create --database {database}` makes one"
        header, key = f"{gap}-H 'authorization: Bearer KEY'", "KEY"
    lines = [
        f"Mainspring {mainspring.__version__} " + ("waits for runs to drive" if is_worker else f"listens at {url}/v1"),
        f"  model     {choice.model}",
        f"  database  {database}",
    ]
    lines += [f"  ignored   {told}" for told in list_misspelt()]
    if count > 1:
        lines.append(f"  workers   {count} processes")
    if settings.role == "gateway":
        lines.append(f"  role      gateway; runs wait until `mainspring worker --database {database}` drives them")
    if is_worker:
        return "\n".join([*lines, *([f"  health    {url}/healthz"] if url else [])])
    asked = f'-d \'{{"model": "{example}", "input": "Hello"}}\''
    client, call = f'OpenAI(base_url="{url}/v1", api_key="{key}")', f'.responses.create(model="{example}", input="Hello")'
    return "\n".join(
        [
            *lines,
            f"  API keys  {keys}",
            f"  try       curl {url}/v1/responses{header}{gap}-H 'content-type: application/json'{gap}{asked}",
            f"  or        client = {client}\n{'':{MARGIN}}client{call}" if sys.stdout.isatty() else f"  or        {client}{call}",
            f"  console   {url}/ in a browser",
        ]
    )


def serve(settings: Settings, file: Path | None = None, siblings: Siblings | None = None) -> int:
    """Serves until it is told to stop. Runs that do not finish in time are resumed by the next start. `file` is where the
    settings are from."""
    dialect = Dialect(
        reasoning=settings.reasoning_events,
        server_calls=settings.server_calls,
        requires_action=settings.requires_action,
        extensions=settings.extension_events,
        error_event=settings.error_event,
    )
    if settings.log_level is not None:
        logging.basicConfig(format=LOG_FORMAT)
        logging.getLogger("mainspring").setLevel(settings.log_level.upper())
    count, is_first = (1, True) if siblings is None else (siblings.count, siblings.is_first)
    choice = build_server_engine(settings, file, count=count, is_quiet=not is_first)
    engine = choice.engine
    asyncio.run(_try_out(engine.store, settings, is_first=is_first))
    connections = ConnectionTable(settings.http, raise_file_limit(), engine.core.quota)
    keys = Keys(
        engine.store,
        configured=settings.api_key,
        most_requests=connections.most_per_key,
        quota=engine.core.quota,
        use=find_key_use(engine),
        limits=settings.http.key_limits,
        most_at_once=settings.http.requests_per_key,
    )
    is_worker = settings.role == "worker"
    metrics = None if siblings is None else SharedMetrics(engine.metrics, siblings.metrics)
    is_local, layers = is_only_local(settings), make_layers(settings.http)
    app = server(
        engine,
        dialect,
        keys=keys,
        is_local=is_local,
        metrics=metrics,
        is_worker=is_worker,
        layers=layers,
        keep_days=read_keep_days(settings.keep_days),
        list_settings=partial(list_settings, settings, file),
        schedules=[Path(folder) for folder in settings.schedules],
        offer=settings.mcp_server,
    )
    # A thousand open streams are half a million objects: looking through all of them again and again took a fifth of the time,
    # and everybody waited meanwhile. What is there now stays, and need not be looked at.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    listener = bind_listener(settings) if siblings is None else siblings.open_listener()
    with nullcontext() if listener is None else listener:
        serving = EngineServer(app, settings, choice, connections, siblings, metrics)
        serving.run([] if listener is None else [listener])
    return 0


async def _try_out(store: Store, settings: Settings, *, is_first: bool) -> None:
    """A database, bucket or cluster that cannot be used is told in one line, before anything is started."""
    await store.open()
    await store.close()
    if is_first:
        await check_surroundings(settings)


def _serve_given() -> int:
    """Serves as the arguments say: the descriptor of what the command line had, the settings file, and, for one of several
    processes, what it shares with the others."""
    descriptor, path, *shared = sys.argv[1:]
    given = os.pread(int(descriptor), os.fstat(int(descriptor)).st_size, 0)
    os.close(int(descriptor))
    file = Path(path) if path else None
    return serve(load(msgspec.json.decode(given, type=dict[str, object]), file=file), file, *map(Siblings.parse, shared))


def list_settings(settings: Settings, file: Path | None, environment: Mapping[str, str] = os.environ) -> SettingList:
    """Every setting; one that is neither in the environment nor in the file, and not as by default, is the command line's."""
    path = file or Path(FILE)
    try:
        written = set(cast(dict[str, Node], parse_toml(path, read_text(path)).root.value)) if path.exists() else set()
    except InvalidRequest:  # it has changed since
        written = set()
    defaults, shown = asdict(find_settings_type()()), hide_secrets("", msgspec.to_builtins(settings))

    def find_source(name: str, value: object) -> Source:
        if f"MAINSPRING_{name.upper()}" in environment:
            return "environment"
        if name in written:
            return "file"
        return "default" if value == defaults[name] else "command line"

    data = [SettingInForce(name, shown.get(name), find_source(name, value)) for name, value in asdict(settings).items()]
    return SettingList(data, str(path) if written else None)


if __name__ == "__main__":
    accept_any_text()
    try:
        leave(run_reporting_errors(_serve_given))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
