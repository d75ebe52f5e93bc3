"""`/v1/tools`, `/v1/workers`, `/v1/system` and `/v1/settings`: what the server has, who drives its runs, and how it is set."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.items import Effect, Json
from mainspring.core.sandbox import SandboxHealth
from mainspring.engine.engine import Engine
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, make_page
from mainspring.http.tenants import require_operator

MOST_WAITING: Final = 1000
Source = Literal["default", "file", "environment", "command line"]


class ShownTool(Struct, frozen=True):
    """A tool that every run has. `effects` is all that a call may do; none declared means everything."""

    name: str
    kind: str
    description: str
    parameters: Json | None
    effects: tuple[Effect, ...]
    operations: Mapping[str, tuple[Effect, ...]]
    repeatable: bool
    seconds: float | None
    object: str = "tool"


class ShownWorker(Struct, frozen=True):
    """A process that drives runs and whose lease is not over. `is_self` is the one that answers."""

    id: str
    place: str
    pid: int
    is_self: bool
    object: str = "worker"


class WorkerList(Struct, frozen=True):
    """`live` are the runs that are driven by the process that answers; `unfinished` those that have not ended, wherever they are;
    `claimable` those of them that nobody drives, as far as they are counted."""

    data: Sequence[ShownWorker]
    live: int
    unfinished: int
    claimable: int
    object: str = "list"


class SystemState(Struct, frozen=True):
    """`sandbox` is there if tools need one. `database` is `memory`, `sqlite` or `postgres`."""

    version: str
    model: str
    provider: str
    database: str
    is_audited: bool
    drives: bool
    live: int
    sandbox: SandboxHealth | None
    object: str = "system"


class SettingInForce(Struct, frozen=True):
    """A setting, its value without secrets, and where that is from."""

    name: str
    value: object
    source: Source


class SettingList(Struct, frozen=True):
    data: Sequence[SettingInForce]
    file: str | None
    object: str = "list"


class SystemParts(Struct, frozen=True):
    """What the composition says of itself. `list_settings` is None where an engine was made without settings."""

    version: str
    database: str
    check_sandbox: Callable[[], Awaitable[SandboxHealth | None]]
    list_settings: Callable[[], SettingList] | None = None


class SystemRoutes:
    def __init__(self, engine: Engine, parts: SystemParts) -> None:
        self._engine, self._parts = engine, parts

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/tools", self.list_tools, "responses", Page, schemas=(ShownTool,)),
            Endpoint("GET", "/v1/workers", self.list_workers, "admin", WorkerList),
            Endpoint("GET", "/v1/system", self.show_system, "admin", SystemState),
            Endpoint("GET", "/v1/settings", self.list_settings, "admin", SettingList),
        )

    async def list_tools(self, request: Request) -> HttpResponse:
        """Lists the tools that every run has, without those of MCP servers."""
        told = [
            ShownTool(
                tool.name,
                tool.kind,
                tool.description,
                tool.parameters,
                tool.effects,
                tool.operations,
                tool.repeatable,
                tool.timeout,
            )
            for tool in self._engine.definitions
        ]
        return json_response(make_page(told, [tool.name for tool in told], has_more=False))

    async def list_workers(self, request: Request) -> HttpResponse:
        """Lists the processes that drive runs, and counts the runs that wait for one."""
        require_operator(request)
        store, own = self._engine.store, self._engine.presence.id
        drivers = [ShownWorker(each.id, each.place, each.pid, each.id == own) for each in await store.leases.list_drivers()]
        waiting = await store.leases.list_claimable(limit=MOST_WAITING)
        return json_response(WorkerList(drivers, self._engine.live, len(await store.list_unfinished()), len(waiting)))

    async def show_system(self, request: Request) -> HttpResponse:
        """Reports the version, the model, the kind of database and the sandbox."""
        require_operator(request)
        engine, parts = self._engine, self._parts
        return json_response(
            SystemState(
                parts.version,
                engine.model,
                engine.provider.name,
                parts.database,
                engine.is_audited,
                engine.drives,
                engine.live,
                await parts.check_sandbox(),
            )
        )

    async def list_settings(self, request: Request) -> HttpResponse:
        """Lists the settings in force, with where each is from; secrets are masked."""
        require_operator(request)
        found = self._parts.list_settings
        return json_response(SettingList((), None) if found is None else found())
