"""From settings to an engine: the one way there, for the server and for the commands beside it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

import mainspring
from mainspring.app.engine import Engine
from mainspring.app.settings import Settings, build_parts
from mainspring.cli.output import say
from mainspring.core.errors import InvalidRequest
from mainspring.core.memory_quota import MemoryQuota
from mainspring.core.spec import PresetName
from mainspring.engine.lease_dispatcher import LOOK_SECONDS, LeaseDispatcher
from mainspring.engine.policy_order import PolicySlots
from mainspring.features.budgets.limits import build_limits
from mainspring.features.budgets.plan import build_plan
from mainspring.features.files.files import choose_file_storage
from mainspring.features.governance.governance_settings import build_policies, digest_settings
from mainspring.features.governance.scope_policies import DomainPolicy, PathPolicy
from mainspring.features.mcp.settings import make_server_specs
from mainspring.features.memory.memory import build_memory
from mainspring.features.memory.settings import MemorySettings
from mainspring.features.traces.otel import Exporter, is_wanted, name_provider
from mainspring.features.vector_stores.settings import VectorStoreSettings
from mainspring.features.web_search.settings import WebSearchSettings
from mainspring.http.key_limits import KeyUse, find_key_limits
from mainspring.late_module import LateModule
from mainspring.parts import PartContents
from mainspring.ports import Dispatcher, Embedder, Provider, Store
from mainspring.providers.choose_embedder import choose_embedder
from mainspring.storage.choose_files import choose_files
from mainspring.storage.choose_store import choose_store
from mainspring.storage.location import Location
from mainspring.storage.shared_limits import StoreLimits
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import LASTING, BuiltinTools
from mainspring.tools.contract import ToolContext
from mainspring.tools.functions import load_functions
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.lock import LockFile
from mainspring.tools.mcp.server_connection import CONNECT_SECONDS
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.registry import Registry

if TYPE_CHECKING:
    from mainspring.engine.temporal import temporal_dispatcher
    from mainspring.features.mcp import open_sign_ins
    from mainspring.features.web_search import searchers, web_search
    from mainspring.providers.local import weights
    from mainspring.tools.builtin import web_fetch
    from mainspring.tools.mcp.sign_in import SignIns
    from mainspring.tools.sandbox import packages
    from mainspring.tools.sandbox.kubernetes import kubernetes_sandbox
    from mainspring.tools.sandbox.packages import PackageList
else:
    temporal_dispatcher = LateModule("mainspring.engine.temporal.temporal_dispatcher")
    searchers = LateModule("mainspring.features.web_search.searchers")
    web_search = LateModule("mainspring.features.web_search.web_search")
    web_fetch = LateModule("mainspring.tools.builtin.web_fetch")
    kubernetes_sandbox = LateModule("mainspring.tools.sandbox.kubernetes.kubernetes_sandbox")
    open_sign_ins = LateModule("mainspring.features.mcp.open_sign_ins")
    weights = LateModule("mainspring.providers.local.weights")
    packages = LateModule("mainspring.tools.sandbox.packages")

# A worker has nothing else to do, and a file tells nobody of new runs.
WORKER_LOOK = 0.1


@contextmanager
def _refuse_clashes() -> Iterator[None]:
    """Tools that do not go together are a mistake of the settings."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


@_refuse_clashes()
def compose_engine(
    settings: Settings,
    provider: Provider,
    model: str,
    *,
    database: Location | None,
    instructions: str | None = None,
    preset: PresetName = "responses",
    start_seconds: float = CONNECT_SECONDS,
    is_trial: bool = False,
    quota: MemoryQuota | None = None,
) -> Engine:
    """The engine that the settings describe, with this provider, which it owns, and everything they bind it to.

    `database` is where runs are kept; without one, in memory. `start_seconds` is how long a run waits for an MCP server that is
    starting. In a trial nothing is performed: no spans are sent, and folders need not be there. Raises `InvalidRequest` for what
    is missing or wrong, and for tools that do not go together.
    """
    guard, servers = AddressGuard(settings.allow_hosts), make_server_specs(settings.mcp)
    store = choose_store(database)
    limits, http = StoreLimits(store), settings.http
    policies = build_policies(settings.governance, guard, None if database is None else limits)
    if not is_trial:
        check_working_dir(settings)
    builtins = _open_builtins(settings, database, guard, policies, wraps=any(server.is_held for server in servers))
    defined = settings.tool_definitions and os.path.realpath(settings.tool_definitions)
    return Engine(
        provider,
        default_model=model,
        owns_provider=True,
        parts=(*build_parts(settings), *_build_web_search(settings.web_search, builtins)),
        governed=digest_settings(settings.governance, settings.budget, sorted(settings.allow_hosts), defined),
        tools=_load_tools(settings, builtins.context),
        instructions=instructions,
        database=database,
        store=store,
        owns_store=True,
        preset=preset,
        mcp=McpTools(
            servers,
            guard=guard,
            wrap=builtins.wrap,
            start_seconds=start_seconds,
            lock=_open_lock(settings),
            sign_ins=_open_sign_ins(settings, servers, store, database, guard),
        ),
        builtins=builtins,
        files=choose_file_storage(settings.files, database),
        uploads=settings.uploads,
        embedder=build_embedder(settings.vector_stores, settings.memory),
        skills=[Path(folder) for folder in settings.skills],
        agents=[Path(folder) for folder in settings.agents],
        workflows=[Path(folder) for folder in settings.workflows],
        policies=policies,
        budget=build_plan(settings.budget),
        scans=settings.governance.scan_inputs,
        audit=settings.audit and database is not None,
        approval_seconds=settings.approval_seconds,
        context_tokens=settings.context_tokens,
        limits=build_limits(settings.limits),
        quota=quota,
        drives=settings.role != "gateway",
        dispatcher=None if database is None else _choose_dispatcher(settings, store),
        most_live=settings.runs_at_once,
        exporter=None if is_trial else _exporter(settings, provider.name),
        metrics_by_tenant=settings.metrics_by_tenant,
        observers=(KeyUse(limits, partial(find_key_limits, store, http.key_limits, http.requests_per_key)),),
        memory=build_memory(database, settings.memory) if settings.memory.enabled else False,
    )


def _load_tools(settings: Settings, context: ToolContext) -> Registry:
    functions = dict.fromkeys([function for reference in settings.tools for function in load_functions(reference)])
    registry = Registry(tuple(functions), context=context)
    if settings.discover:
        registry.discover()
    if settings.tool_definitions is not None:
        registry.load_definitions(Path(settings.tool_definitions))
    return registry


def build_embedder(own: VectorStoreSettings, memory: MemorySettings) -> Embedder | None:
    """The embedding model of vector stores, else of memory. Raises `InvalidRequest` if it does not say where that is."""
    found = choose_embedder("vector_stores", own.embedding_model, own.embedding_url, own.embedding_key)
    return found or choose_embedder("memory", memory.embedding_model, memory.embedding_url, memory.embedding_key)


def _build_web_search(settings: WebSearchSettings, builtins: BuiltinTools) -> tuple[PartContents, ...]:
    if settings == WebSearchSettings():
        return ()
    return (
        web_search.make_web_search(
            searchers.build_searcher(settings), web_fetch.WebFetch(builtins.guard, flaw=builtins.url_flaw)
        ),
    )


def check_working_dir(settings: Settings) -> None:
    """Raises `InvalidRequest` if a tool needs a working directory and there is none."""
    if "file_ops" in settings.builtins and not (settings.working_dir and Path(settings.working_dir).is_dir()):
        told = "the built-in tool `file_ops` needs the folder that it works in; set `working_dir` in mainspring.toml, or export "
        raise InvalidRequest(f"{told}MAINSPRING_WORKING_DIR; it is {settings.working_dir or 'not set'}", param="working_dir")


async def check_surroundings(settings: Settings) -> None:
    """Tries out what the settings name beside the database. Raises `FilesUnavailable` for a folder or bucket that cannot be used,
    and `SandboxError` for a cluster that would give no pods, with what to do."""
    if settings.files is not None:
        await choose_files(settings.files).open()
    if settings.sandbox == "kubernetes" and {*LASTING} & {*settings.builtins}:
        async with kubernetes_sandbox.KubernetesSandbox(settings.kubernetes) as pods:
            await pods.check()


def _open_lock(settings: Settings) -> LockFile | None:
    """Raises `InvalidRequest` for a file that cannot be read."""
    if not settings.mcp:
        return None
    file = LockFile(Path(settings.mcp_lock))
    file.read()
    return file


def _open_sign_ins(
    settings: Settings, servers: Sequence[ServerSpec], store: Store, database: Location | None, guard: AddressGuard
) -> "SignIns | None":
    if not any(server.oauth is not None for server in servers):
        return None
    return open_sign_ins.open_sign_ins(store, database, guard, secret_key=settings.secret_key, public_url=settings.public_url)


def _open_builtins(
    settings: Settings, database: Location | None, guard: AddressGuard, policies: PolicySlots, *, wraps: bool
) -> BuiltinTools:
    paths = next((policy for policy in policies.get("paths", ()) if isinstance(policy, PathPolicy)), None)
    domains = next((policy for policy in policies.get("domains", ()) if isinstance(policy, DomainPolicy)), None)
    return BuiltinTools(
        settings.builtins,
        sandbox=settings.sandbox,
        kubernetes=settings.kubernetes,
        working_dir=None if settings.working_dir is None else Path(settings.working_dir),
        files=None if (files := _find_files(settings, database)) is None else choose_files(files),
        guard=guard,
        wraps=wraps,
        packages=_find_packages(settings),
        path_flaw=None if paths is None else paths.flaw,
        url_flaw=None if domains is None else domains.flaw,
    )


def _find_packages(settings: Settings) -> "PackageList | None":
    """The list of packages for the sandbox. Raises `InvalidRequest` if there is none for it."""
    if not settings.sandbox_packages:
        return None
    if settings.sandbox == "kubernetes":
        message = "pods have the packages of their image; add them there, and leave `sandbox_packages` out"
        raise InvalidRequest(message, param="sandbox_packages")
    file = packages.OURS if settings.sandbox_packages is True else Path(settings.sandbox_packages).absolute()
    if not file.is_file():
        raise InvalidRequest(f"there is no list of packages `{file}`; write one, or set `true`", param="sandbox_packages")
    return packages.PackageList(file, weights.find_cache_folder() / "sandbox", say)


def _choose_dispatcher(settings: Settings, store: Store) -> Dispatcher:
    """What brings runs to those who drive them. Raises `InvalidRequest` if it needs a package that is not there."""
    if settings.dispatcher == "lease":
        return LeaseDispatcher(store.leases, WORKER_LOOK if settings.role == "worker" else LOOK_SECONDS)
    try:
        make_dispatcher = temporal_dispatcher.TemporalDispatcher
    except ModuleNotFoundError:
        raise InvalidRequest("Temporal needs another package: pip install 'mainspring[temporal]'", param="dispatcher") from None
    named = replace(settings.temporal, build_id=settings.temporal.build_id or mainspring.__version__)
    return make_dispatcher(store, named, settings.runs_at_once)


def is_one_of_several(settings: Settings) -> bool:
    """Whether other processes have runs of the same database, by the settings."""
    return settings.workers != 1 or settings.role != "all"


def _find_files(settings: Settings, database: Location | None) -> str | None:
    """Where files are kept. Several processes on the database of one machine share a folder beside it, unless told otherwise."""
    if settings.files is None and is_one_of_several(settings) and database is not None and database.file is not None:
        return f"{database.file}.files"
    return settings.files


def _exporter(settings: Settings, provider: str) -> Exporter | None:
    if not is_wanted(settings.otel.endpoint):
        return None
    named, told = partial(name_provider, provider=provider), settings.otel
    return Exporter(named, endpoint=told.endpoint, content=told.content, version=mainspring.__version__)
