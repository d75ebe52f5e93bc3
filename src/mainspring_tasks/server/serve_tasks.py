"""The server as a process: on standard input and output, or on the network."""

import signal
from collections.abc import Sequence
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from typing import TYPE_CHECKING

from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response
from uvicorn import Config, Server

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.identity import Identity, Unidentified
from mainspring_tasks.server.mcp_server import build_task_server

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Far more than a task needs, so that one that is too long is told so by its tool.
MOST_BODY_BYTES = 1024 * 1024
LOCAL = ("127.0.0.1", "localhost", "[::1]")
GOODBYE_SECONDS = 5


class Address(Struct, frozen=True):
    """Where to listen, and by which other names clients may call that."""

    host: str
    port: int
    allowed: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that a request may be for. A wildcard is nobody's name."""
        own = () if self.host in ("0.0.0.0", "::") else (f"[{self.host}]" if ":" in self.host else self.host,)
        return tuple(dict.fromkeys([*LOCAL, *own, *self.allowed]))


def parse_address(text: str, allowed: Sequence[str] = ()) -> Address:
    """`HOST:PORT`, with an IPv6 address in brackets. Raises `InvalidRequest`."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in bare and host == bare):
        raise InvalidRequest(f"`{text}` is not HOST:PORT, such as 127.0.0.1:8100 or [::1]:8100", param="http")
    return Address(bare, int(port), tuple(allowed))


async def serve_stdio(store: TaskStore, identity: Identity) -> int:
    """Serves until the client closes its end."""
    # What was answered is kept, so there is nothing to do before the end; and the SDK cannot be woken while it waits for input.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server = build_task_server(store, identity)
    await store.open()
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await store.close()
    return 0


async def serve_http(store: TaskStore, identity: Identity, address: Address) -> int:
    """Serves until it is told to stop, by SIGINT or SIGTERM; prints where it listens once it does."""
    config = Config(
        build_application(store, identity, address),
        http="h11",  # the other parser leaves spaces around values, which the protocol compares
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    await store.open()
    try:
        with _listening(address) as listener:
            await _Announcing(config).serve([listener])
    finally:
        await store.close()
    return 0


def build_application(store: TaskStore, identity: Identity, address: Address) -> "ASGIApp":
    """The server at `/mcp`, for requests that say whose they are, and were not sent here by a web page of somebody else."""
    hosts = [host for name in address.names for host in (name, f"{name}:*")]
    security = TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    )
    inner = build_task_server(store, identity).streamable_http_app(
        # Without sessions a restart costs no client anything, and nobody can go on with another's.
        stateless_http=True,
        json_response=True,
        transport_security=security,
        max_request_body_size=MOST_BODY_BYTES,
    )
    return _Door(inner, identity)


class _Door:
    """Refuses requests without identity, before anything of them is read."""

    def __init__(self, app: "ASGIApp", identity: Identity) -> None:
        self._app = app
        self._identity = identity

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http":
            try:
                self._identity(Headers(scope=scope))
            except Unidentified as error:
                await _refusal(str(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Announcing(Server):
    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"Mainspring tasks listens at http://{f'[{host}]' if ':' in host else host}:{port}/mcp", flush=True)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Stopping when told to is a success; uvicorn would raise the signal once more.
        self._captured_signals.clear()


def _refusal(message: str) -> Response:
    body = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=INVALID_REQUEST, message=message))
    return Response(
        body.model_dump_json(by_alias=True, exclude_unset=True),
        status_code=401,
        media_type="application/json",
        headers={"WWW-Authenticate": 'Bearer realm="mainspring tasks"'},
    )


def _listening(address: Address) -> socket:
    listener = socket(AF_INET6 if ":" in address.host else AF_INET)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        told = f"cannot listen at {address.host} port {address.port}: {error.strerror or error}"
        raise InvalidRequest(f"{told}; choose another with --http (port 0 picks a free one)", param="http") from None
    return listener
