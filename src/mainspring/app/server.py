"""The server: an engine behind the endpoints of every feature."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from anyio import create_task_group
from msgspec import Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware

import mainspring
from mainspring.app.engine import Engine
from mainspring.app.keep_days import KeepDays
from mainspring.app.mcp_services import make_mcp_services
from mainspring.app.retention import Retention
from mainspring.core.errors import InvalidRequest
from mainspring.features.agents.agent_runtime import PREFIX
from mainspring.features.agents.routes import AgentRoutes, show_as_prompt
from mainspring.features.approvals.pending import Approvals
from mainspring.features.approvals.routes import ApprovalRoutes
from mainspring.features.audit.daily_check import AuditWatch
from mainspring.features.audit.routes import AuditRoutes
from mainspring.features.budgets.routes import BudgetRoutes
from mainspring.features.chat_completions.routes import ChatCompletionRoutes
from mainspring.features.containers.routes import ContainerRoutes
from mainspring.features.conversations.routes import ConversationRoutes
from mainspring.features.files.routes import FileRoutes
from mainspring.features.governance.routes import PolicyRoutes
from mainspring.features.keys.routes import KeyRoutes
from mainspring.features.mcp.routes import McpRoutes
from mainspring.features.mcp_server.routes import McpServerRoutes
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.features.memory.routes import MemoryRoutes
from mainspring.features.messages.routes import MessageRoutes
from mainspring.features.models.routes import ModelRoutes
from mainspring.features.prompts.routes import PromptRoutes
from mainspring.features.responses.routes import ResponseRoutes
from mainspring.features.runs.routes import RunRoutes
from mainspring.features.system.health_routes import HealthRoutes
from mainspring.features.system.reference_routes import ReferenceRoutes
from mainspring.features.system.routes import SettingList, SystemParts, SystemRoutes
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.routes import TraceRoutes
from mainspring.features.traces.shared_metrics import SharedMetrics
from mainspring.features.triggers.schedule import ScheduleFolders
from mainspring.features.triggers.schedule_routes import ScheduleRoutes
from mainspring.features.triggers.triggers import Triggers
from mainspring.features.triggers.webhook_routes import EndpointRoutes, WebhookRoutes
from mainspring.features.vector_stores.embedding_routes import EmbeddingRoutes
from mainspring.features.vector_stores.routes import VectorStoreRoutes
from mainspring.features.workflows.routes import WorkflowRoutes
from mainspring.http.app import build_app
from mainspring.http.auth import Keys
from mainspring.http.endpoints import PUBLIC, Endpoint, KeyScope, Method, overlap_paths
from mainspring.http.key_limits import KeyUse
from mainspring.http.wire import Dialect
from mainspring.late_module import LateModule
from mainspring.parts import Host, PartContents, ServedPart, blame_part

if TYPE_CHECKING:
    from mainspring.features.mcp import open_sign_ins, sign_in_routes
    from mainspring.features.mcp.open_sign_ins import WaitingRuns
    from mainspring.features.mcp.sign_in_routes import SignInRoutes
else:
    open_sign_ins = LateModule("mainspring.features.mcp.open_sign_ins")
    sign_in_routes = LateModule("mainspring.features.mcp.sign_in_routes")

Work = Callable[[], Coroutine[Any, Any, None]]

log = getLogger(__name__)

# What a worker serves, to whoever looks after it.
WORKER_PATHS: Final = frozenset({"/health", "/healthz", "/readyz", "/metrics"})


def server(
    engine: Engine,
    dialect: Dialect | None = None,
    *,
    keys: Keys | None = None,
    is_local: bool = True,
    metrics: SharedMetrics | None = None,
    is_worker: bool = False,
    layers: Sequence[Middleware] = (),
    keep_days: KeepDays = KeepDays(),  # noqa: B008 (frozen)
    list_settings: Callable[[], SettingList] | None = None,
    schedules: Sequence[Path] = (),
    offer: OfferSettings | None = None,
) -> Starlette:
    """The application: an engine behind its endpoints. The engine runs as long as the application does.

    `is_local` says that only this machine can reach it; then, and while there are no keys, none is asked for. `metrics` are those
    of all processes that serve the same address. A worker only says how it is. `layers` surround every request. What is
    older than `keep_days` is deleted. `schedules` are folders of them. `offer` is what MCP clients are offered.
    """
    dialect, keys = dialect or Dialect(), keys or Keys(engine.store, use=find_key_use(engine))
    approvals = Approvals(engine.core, {spec.label for spec in engine.mcp.servers})
    sign_ins = _open_sign_ins(engine, approvals)
    served = [] if is_worker else [(part.name, _serve_part(part, engine.host)) for part in engine.parts]
    triggers = Triggers(
        engine.core,
        engine.agents,
        engine.workflows,
        keys,
        ScheduleFolders(schedules),
        engine.metrics,
        engine.outbox,
        engine.builtins.guard,
        engine.builtins.url_flaw,
    )

    works = _list_background(engine, keep_days, None if is_worker else sign_ins)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine:
            resumed = await engine.resume_all()
            if resumed:
                log.info("took up %d unfinished runs", len(resumed))
            async with AsyncExitStack() as stack:
                stack.push_async_callback(keys.close)
                for name, part in served:
                    if part.lifespan is not None:
                        with blame_part(name, "start"):
                            await stack.enter_async_context(part.lifespan())
                engine.mcp.connect()
                async with create_task_group() as tasks:
                    await tasks.start(triggers.run)
                    for work in works:
                        tasks.start_soon(work)
                    yield
                    tasks.cancel_scope.cancel()

    system = SystemParts(mainspring.__version__, engine.database_kind, engine.builtins.health, list_settings)
    shown, offered = metrics or engine.metrics, offer or OfferSettings()
    ours = _list_endpoints(engine, keys, dialect, approvals, triggers, shown, system, offered)
    endpoints = [endpoint for endpoint in ours if not is_worker or endpoint.path in WORKER_PATHS]
    endpoints += [] if sign_ins is None or is_worker else sign_ins.routes.endpoints()
    endpoints += _list_part_endpoints(served, endpoints)
    return build_app(endpoints, keys=keys, is_local=is_local, version=mainspring.__version__, lifespan=lifespan, layers=layers)


def _list_endpoints(
    engine: Engine,
    keys: Keys,
    dialect: Dialect,
    approvals: Approvals,
    triggers: Triggers,
    metrics: SharedMetrics | Metrics,
    system: SystemParts,
    offer: OfferSettings,
) -> list[Endpoint]:
    """What the features serve."""
    core, agents = engine.core, engine.agents
    routes = (
        ResponseRoutes(core, agents, dialect),
        ChatCompletionRoutes(core, agents, dialect),
        MessageRoutes(core, agents, dialect),
        ConversationRoutes(core),
        AgentRoutes(agents),
        PromptRoutes(agents.prompts, lambda: [show_as_prompt(each) for each in agents.registry.definitions.values()]),
        ApprovalRoutes(approvals, dialect),
        BudgetRoutes(engine.admission, core.store),
        TraceRoutes(core, metrics),
        RunRoutes(core, engine.admission.find_price),
        KeyRoutes(keys),
        AuditRoutes(core),
        PolicyRoutes(core),
        McpRoutes(lambda: engine.mcp.states, engine.mcp.fetch),
        ReferenceRoutes(),
        SystemRoutes(core, system),
        MemoryRoutes(engine.memory),
        FileRoutes(engine.files),
        VectorStoreRoutes(engine.vector_stores),
        EmbeddingRoutes(engine.embedder, keys),
        ContainerRoutes(engine.builtins.containers, core.new_id, engine.files.load_named),
        WorkflowRoutes(engine.workflows),
        ScheduleRoutes(triggers),
        WebhookRoutes(triggers),
        EndpointRoutes(triggers, engine.builtins.guard),
        ModelRoutes(core.provider, lambda: [f"{PREFIX}{name}" for name in agents.registry.definitions]),
        McpServerRoutes(lambda: make_mcp_services(engine, offer)),
        HealthRoutes(core.store, engine.builtins.health, lambda: engine.mcp.states),
    )
    return [endpoint for each in routes for endpoint in each.endpoints()]


def _list_part_endpoints(served: Sequence[tuple[str, ServedPart]], ours: Sequence[Endpoint]) -> list[Endpoint]:
    """What the parts serve. Raises `InvalidRequest` for an endpoint that cannot be."""
    owners = dict.fromkeys([(endpoint.method, endpoint.path) for endpoint in ours], "Mainspring")
    for name, part in served:
        for endpoint in part.endpoints:
            _check_endpoint(endpoint, name, owners)
        owners |= dict.fromkeys([(endpoint.method, endpoint.path) for endpoint in part.endpoints], f"the part `{name}`")
    return [endpoint for _, part in served for endpoint in part.endpoints]


class _SignIns(Struct, frozen=True):
    routes: "SignInRoutes"
    waiting: "WaitingRuns"


def _open_sign_ins(engine: Engine, approvals: Approvals) -> _SignIns | None:
    """The routes for signing in to MCP servers, None if there is no such server."""
    if engine.mcp.sign_ins is None:
        return None
    waiting = open_sign_ins.WaitingRuns(approvals, engine.store, engine.mcp.sign_ins)
    return _SignIns(sign_in_routes.SignInRoutes(engine.mcp.servers, engine.mcp.sign_ins, waiting), waiting)


def _list_background(
    engine: Engine, keep_days: KeepDays, sign_ins: _SignIns | None
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What goes on for as long as the application does."""
    works: list[Work] = [engine.watch_over]
    if sign_ins is not None:
        works.append(sign_ins.waiting.watch)
    if engine.core.is_audited:
        works.append(AuditWatch(engine.store, engine.metrics.count_audit).run)
    if keep_days != KeepDays():
        works.append(Retention(engine.store, engine.files, keep_days).run)
    return works


def _serve_part(part: PartContents, host: Host) -> ServedPart:
    if part.serve is None:
        return ServedPart(())
    with blame_part(part.name, "be served"):
        return part.serve(host)


def _check_endpoint(endpoint: Endpoint, part: str, owners: Mapping[tuple[Method, str], str]) -> None:
    """Raises `InvalidRequest` for an endpoint that would answer requests of another owner's, or that no key could be for."""
    where = f"{endpoint.method} {endpoint.path}"
    for (method, path), owner in owners.items():
        if endpoint.method == method and overlap_paths(endpoint.path, path):
            raise InvalidRequest(f"the part `{part}` serves {where}, and {owner} {method} {path}: a path fits both; move one")
    if endpoint.scope not in (*get_args(KeyScope), PUBLIC):
        raise InvalidRequest(f"{where} has the scope `{endpoint.scope}`; known: {', '.join(get_args(KeyScope))}, {PUBLIC}")


def find_key_use(engine: Engine) -> KeyUse | None:
    """What counts the use of keys in this engine, if it was given that."""
    return next((each for each in engine.core.observers if isinstance(each, KeyUse)), None)
