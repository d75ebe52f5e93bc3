"""Whether the server is alive and can do its work."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import time
from typing import Final

from anyio import fail_after, move_on_after
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import MainspringError, StoreError
from mainspring.core.sandbox import SandboxHealth
from mainspring.http.auth import identify_caller
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.ports import Document, Store
from mainspring.tools.mcp.server_watch import ServerState

READINESS: Final = "readiness"
READY_SECONDS: Final = 2.0


class Health(Struct, frozen=True):
    """`degraded` means that tools need a sandbox and none works. Whoever may see metrics is told more: with such tools the kind
    and strength of the `sandbox`, and in `mcp` of each configured MCP server its state, such as `ready` or `down`."""

    status: str
    sandbox: SandboxHealth | None = None
    mcp: dict[str, str] = {}


class HealthRoutes:
    """What a supervisor asks, without a key: is the server alive, and can it write to its store."""

    def __init__(
        self,
        store: Store,
        check_sandbox: Callable[[], Awaitable[SandboxHealth | None]],
        list_servers: Callable[[], Sequence[ServerState]],
    ) -> None:
        self._store, self._check_sandbox, self._list_servers = store, check_sandbox, list_servers

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/health", self.health, PUBLIC, Health),
            Endpoint("GET", "/healthz", self.health, PUBLIC, Health),
            Endpoint("GET", "/readyz", self.ready, PUBLIC, Health, errors=(503,)),
        )

    async def health(self, request: Request) -> HttpResponse:
        """Reports whether the server and its sandbox work."""
        sandbox = await self._check_sandbox()
        status = "ok" if sandbox is None or sandbox.is_ok else "degraded"
        return json_response(Health(status, sandbox if sandbox is not None and await _may_see_details(request) else None))

    async def ready(self, request: Request) -> HttpResponse:
        """Reports whether the server can write to its store."""
        try:
            with fail_after(READY_SECONDS):
                await self._store.put([Document(READINESS, "probe", str(time()).encode())])
        except StoreError as error:
            why = f": {error.message}" if await _may_see_details(request) else ""
            raise Fault(503, "not_ready", f"nothing can be written{why}") from None
        except TimeoutError:
            raise Fault(503, "not_ready", f"nothing could be written within {READY_SECONDS:g} seconds") from None
        # Requests are served without the tools of a server that is down, so that is no reason to send them elsewhere.
        servers = self._list_servers() if await _may_see_details(request) else ()
        return json_response(Health("ready", mcp={server.label: server.state for server in servers}))


async def _may_see_details(request: Request) -> bool:
    """Whether whoever asks, maybe without a key, may know what this server is made of."""
    caller = None
    with move_on_after(READY_SECONDS), suppress(Fault, MainspringError):  # keys are in the store, which may not answer
        caller = await identify_caller(request)
    return caller is not None and not caller.tenant and (caller.may("metrics") or caller.may("admin"))
