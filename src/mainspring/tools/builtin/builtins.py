"""The built-in tools by name, and the sandbox that some of them work in.

The sandbox is opened with the builtins if a tool needs one. Where none works, the tools exist all the same, and every call fails
with what to install.
"""

import re
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, cast

from anyio import CancelScope, to_thread
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.declared_tools import find_hosted_tool
from mainspring.core.errors import InvalidRequest, NotFound, SandboxError
from mainspring.core.ids import derive_id
from mainspring.core.items import ServerTool, ToolDefinition, Unknown
from mainspring.core.items import Tool as Declared
from mainspring.core.sandbox import DEFAULT_SPEC, SandboxHealth, SandboxSpec
from mainspring.core.spec import RunSpec
from mainspring.late_module import LateModule
from mainspring.ports import DocumentStore, Drivers, FileLoader, FileStorage, OrderContext, OrderStep, SandboxLease
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.contract import Tool, ToolContext
from mainspring.tools.safe_read import clean_path

if TYPE_CHECKING:
    from mainspring.tools.browser import browser
    from mainspring.tools.browser.browser import Browser
    from mainspring.tools.builtin import browser_tool, make_tools
    from mainspring.tools.builtin.containers import Containers
    from mainspring.tools.sandbox import probe, wrap
    from mainspring.tools.sandbox.grants import Program
    from mainspring.tools.sandbox.kubernetes import kubernetes_sandbox
    from mainspring.tools.sandbox.kubernetes.kubernetes_sandbox import KubernetesSandbox
    from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings
    from mainspring.tools.sandbox.local import LocalSandbox
    from mainspring.tools.sandbox.packages import PackageList
    from mainspring.tools.sandbox.probe import Mode as LocalMode
else:
    make_tools = LateModule("mainspring.tools.builtin.make_tools")
    browser = LateModule("mainspring.tools.browser.browser")
    browser_tool = LateModule("mainspring.tools.builtin.browser_tool")
    probe = LateModule("mainspring.tools.sandbox.probe")
    kubernetes_sandbox = LateModule("mainspring.tools.sandbox.kubernetes.kubernetes_sandbox")
    wrap = LateModule("mainspring.tools.sandbox.wrap")

Mode = Literal["auto", "bwrap", "landlock", "unsafe", "kubernetes"]
NAMES = ("shell", "code_interpreter", "file_ops", "web_fetch", "browser")
JAILED = ("shell", "code_interpreter")
# What they work in is kept for the conversation.
LASTING = (*JAILED, "browser")
MOST_FILES = 50
_CONTAINER = re.compile(r"cntr_[A-Za-z0-9_-]{1,64}")


class BuiltinTools:
    """Use as `async with` around the calls. `context` is what calls may touch. With `files`, containers are kept there and in the
    store that `keep_in` names. With `wraps`, a sandbox is opened for `wrap` even if no tool needs one."""

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        sandbox: Mode = "auto",
        kubernetes: "KubernetesSettings | None" = None,
        working_dir: Path | None = None,
        files: FileStorage | None = None,
        guard: AddressGuard | None = None,
        wraps: bool = False,
        packages: "PackageList | None" = None,
        path_flaw: Callable[[str], str | None] | None = None,
        url_flaw: Callable[[str], Awaitable[str | None]] | None = None,
    ) -> None:
        for name in names:
            if name not in NAMES:
                raise InvalidRequest(f"there is no built-in tool `{name}`; known: {', '.join(NAMES)}", param="builtins")
        self._mode, self._kubernetes, self._files, self._packages = sandbox, kubernetes, files, packages
        # Programs of this machine are held on this machine, wherever code runs.
        self._wraps = wraps or "browser" in names
        self._needs_sandbox = wraps or any(name in LASTING for name in names)
        self._sandbox = DeferredSandbox()
        self._local = DeferredSandbox()
        self._opening, self._is_local_open = Lock(), False
        self._stack = AsyncExitStack()
        self._path_flaw, self.url_flaw = path_flaw, url_flaw
        self.guard = guard or AddressGuard()
        self.context = ToolContext(working_dir=working_dir)
        self.containers: Containers | None = None
        """Where the tools work that need one, None if none does."""
        self._browser: Browser | None = None
        self.tools: tuple[Tool, ...] = tuple(self._make_tools(tuple(dict.fromkeys(names))))

    def _make_tools(self, names: Sequence[str]) -> list[Tool]:
        if not names:
            return []
        containers = make_tools.make_containers(self._sandbox, self._files)
        if any(name in JAILED for name in names):
            self.containers = containers
        made = make_tools.make_tools(containers, self.guard, self._path_flaw, self.url_flaw)
        if "browser" in names:
            made["browser"] = self._make_browser_tool()
        return [made[name] for name in names]

    def keep_in(self, store: DocumentStore, drivers: Drivers) -> None:
        """Has what several processes share kept in this store, from `async with` on."""
        if self.containers is not None:
            self.containers.keep_in(store, drivers)
        if self._browser is not None and store.is_durable:
            self._browser.keep_in(store, drivers)

    def _make_browser_tool(self) -> Tool:
        self._browser = browser.Browser(self.wrap, self._local.health, self.guard, self.url_flaw)
        return browser_tool.BrowserTool(self._browser)

    async def __aenter__(self) -> Self:
        if self._needs_sandbox:
            if self._mode == "kubernetes":
                self._sandbox.target = await self._open_pods()
            if self._mode != "kubernetes" or self._wraps:
                with suppress(SandboxError):  # every use of it says so
                    await self.open_local()
            if self._mode != "kubernetes":
                self._sandbox.target = self._local.target
            if self.containers is not None:
                await self._stack.enter_async_context(self.containers)
            if self._browser is not None:
                await self._stack.enter_async_context(self._browser)
        return self

    async def _open_local(self, mode: "LocalMode") -> "LocalSandbox | SandboxError":
        try:
            packages = None if self._packages is None else await to_thread.run_sync(self._packages.build)
            return await self._stack.enter_async_context(probe.open_sandbox(mode, packages=packages))
        except SandboxError as error:
            return error

    async def _open_pods(self) -> "KubernetesSandbox | SandboxError":
        try:
            return await self._stack.enter_async_context(kubernetes_sandbox.KubernetesSandbox(self._kubernetes))
        except SandboxError as error:
            return error

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_local_open = False
        await self._stack.__aexit__(kind, error, trace)

    async def open_local(self) -> "LocalSandbox":
        """The sandbox of this machine, opened now if no tool has needed it. Raises `SandboxError` if none holds."""
        async with self._opening:
            if not self._is_local_open:
                self._is_local_open = True
                # Half of a sandbox would be left behind by whoever is cancelled here.
                with CancelScope(shield=True):
                    self._local.target = await self._open_local("auto" if self._mode == "kubernetes" else self._mode)
        return cast("LocalSandbox", self._local.open())

    def wrap(self, program: "Program") -> AbstractAsyncContextManager[Sequence[str]]:
        """The command line that runs this program in the sandbox; see `wrap_program`. Raises `SandboxError` if there is none."""
        local = cast("LocalSandbox", self._local.open())
        return wrap.wrap_program(local, program)

    async def health(self) -> SandboxHealth | None:
        """The health of the sandbox, None if no tool needs one."""
        return await self._sandbox.health() if self._needs_sandbox else None


class DeferredSandbox:
    """A sandbox that is opened later. While it is not open, or cannot be opened, `target` is the error that every use raises."""

    def __init__(self, target: "LocalSandbox | KubernetesSandbox | SandboxError | None" = None) -> None:
        self.target = target or SandboxError("the sandbox is not open; use the engine as `async with`")

    def acquire(self, spec: SandboxSpec = DEFAULT_SPEC) -> AbstractAsyncContextManager[SandboxLease]:
        return self.open().acquire(spec)

    async def health(self) -> SandboxHealth:
        if not isinstance(self.target, SandboxError):
            return await self.target.health()
        return SandboxHealth(
            backend="none",
            version="",
            totals="none",
            isolates=(),
            languages={},
            uid=-1,
            is_ok=False,
            refused=(self.target.message,),
        )

    def open(self) -> "LocalSandbox | KubernetesSandbox":
        """Raises `SandboxError` if there is none."""
        if isinstance(self.target, SandboxError):
            raise SandboxError(self.target.message)
        return self.target


def _find_hosted(tool: Declared) -> str | None:
    return find_hosted_tool(tool.data) if isinstance(tool, Unknown) else None


def asks_for_container(spec: RunSpec) -> bool:
    """Whether a tool of the order keeps state in a container or a browser session."""
    return any(_find_hosted(tool) or (isinstance(tool, ToolDefinition) and tool.name in LASTING) for tool in spec.tools)


class ChosenContainer(Struct, frozen=True):
    """The container that a tool names, None for `auto`, and the files that are to be in that."""

    id: str | None = None
    file_ids: tuple[str, ...] = ()


def _read_container(tool: Declared) -> ChosenContainer:
    """Raises `InvalidRequest` for options that are not supported."""
    given = tool.data if isinstance(tool, Unknown) else {}
    match given.get("environment") if given.get("type") == "shell" else given.get("container"):
        case str(name) | {"type": "container_reference", "container_id": str(name)} if _CONTAINER.fullmatch(name):
            return ChosenContainer(name)
        case None:
            return ChosenContainer()
        case {"type": "auto" | "container_auto", **rest} if not any({**rest, "file_ids": None}.values()):
            match rest.get("file_ids") or []:
                case [*ids] if len(ids) <= MOST_FILES and all(isinstance(id, str) for id in ids):
                    return ChosenContainer(None, tuple([str(id) for id in ids]))
            raise InvalidRequest(f"file_ids must be a list of at most {MOST_FILES} ids of files", param="tools")
        case _:
            message = (
                'a container must be {"type": "auto"} (of a shell: "container_auto"), with `file_ids` if you like, or the id of '
                "one, such as `cntr_abc`; its limits, network and skills cannot be set"
            )
            raise InvalidRequest(message, param="tools")


async def _check_container(containers: "Containers | None", tenant: str, id: str) -> None:
    try:
        if containers is not None:
            await containers.describe(tenant, id)
    except NotFound as error:
        raise NotFound(f'{error.message}; make one, or ask for {{"type": "auto"}}', param="tools") from None


async def put_files(
    containers: "Containers",
    load: FileLoader,
    tenant: str,
    id: str,
    file_ids: Sequence[str],
    *,
    name: str = "",
    idle_seconds: float | None = None,
) -> None:
    """Has uploaded files be in a container. One that is not there is made, and not left if it cannot have them. Raises `NotFound`
    for a file of another tenant, `InvalidRequest` for files that are too large, of which two have one name, or whose name a file
    of the container has. One that was put there before stays as it is, whatever calls have made of it."""
    loaded = await _load_files(containers, load, tenant, file_ids)
    is_new = False
    try:
        await containers.describe(tenant, id)
    except NotFound:
        await containers.create(tenant, id, name, idle_seconds)
        is_new = True
    try:
        for path, data in (loaded if is_new else await _find_missing(containers, tenant, id, loaded)).items():
            await containers.put(tenant, id, path, data)
    except BaseException:
        if is_new:
            with CancelScope(shield=True), suppress(NotFound):
                await containers.remove(tenant, id)
        raise


async def _find_missing(containers: "Containers", tenant: str, id: str, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The files that a container has yet to get. Raises `InvalidRequest` if it has another one by the name of one of them."""
    given, listing = await containers.list_given(tenant, id), await containers.list(tenant, id)
    present, missing = {entry.path for entry in listing.entries}, dict[str, bytes]()
    for name, data in files.items():
        if (path := clean_path(name, "the container")) not in present:
            missing[name] = data
        elif given.get(path) != sha256(data).hexdigest() and await containers.get(tenant, id, path) != data:
            told = f"the container has another file `{path:.80}`; delete that one first, or send yours by another name"
            raise InvalidRequest(told, param="file_ids")
    return missing


async def _load_files(containers: "Containers", load: FileLoader, tenant: str, file_ids: Sequence[str]) -> dict[str, bytes]:
    """The files by their names, no more of them than a container holds."""
    loaded, limits = dict[str, bytes](), containers.spec.limits
    for file_id in dict.fromkeys(file_ids):
        room = limits.disk - sum(map(len, loaded.values()))
        file = await load(tenant, file_id, min(limits.file, room))
        if file.name in loaded:
            raise InvalidRequest(f"two of the files are called `{file.name:.80}`; send one by another name", param="file_ids")
        loaded[file.name] = file.data
    return loaded


class HostedToolsStep(OrderStep):
    """Adds the hosted tools that an order names, in the container of the run or conversation that it continues."""

    name = "hosted tools"
    runs_in_place = True

    def __init__(self, builtins: BuiltinTools, offered: Callable[[], Sequence[ToolDefinition]], load: FileLoader) -> None:
        self._builtins, self._offered, self._load = builtins, offered, load

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if not asks_for_container(order):
            return order
        scope = order.conversation.id if order.conversation is not None else order.scope or order.id
        if order.parent is not None:
            with suppress(NotFound):
                parent = (await context.find_run(order.parent)).spec
                scope = parent.scope or parent.id if parent.tenant == order.tenant else scope
        return await add_hosted_tools(order, self._offered(), scope, self._builtins.containers, self._load)


async def add_hosted_tools(
    spec: RunSpec,
    offered: Sequence[ToolDefinition],
    scope: str,
    containers: "Containers | None" = None,
    load: FileLoader | None = None,
) -> RunSpec:
    """The order with the hosted tools that it names replaced by built-in ones, in the container that it names or in `scope`.
    `load` reads the files that it names.

    Raises `InvalidRequest` for a tool that this server does not offer, `NotFound` for a container of another tenant.
    """
    known = {tool.name: tool for tool in offered}
    tools: dict[str, Declared] = {}
    others: list[Declared] = []
    for tool in spec.tools:
        if (name := _find_hosted(tool)) is None:
            others.append(tool)
            continue
        if name not in known:
            message = f"this server has no `{name}`; its operator can offer one: mainspring serve --builtin {name}"
            raise InvalidRequest(message, param="tools")
        chosen = _read_container(tool)
        if chosen.id is not None:
            await _check_container(containers, spec.tenant, chosen.id)
            scope = chosen.id
        if chosen.file_ids and containers is not None and load is not None:
            await put_files(containers, load, spec.tenant, derive_id("cntr", scope), chosen.file_ids)
        tools[name] = known[name]
    if "code_interpreter" in tools:
        whose = ServerTool(derive_id("cntr", scope), "code_interpreter")
        tools["code_interpreter"] = replace(known["code_interpreter"], form="code_interpreter", server=whose)
    kept = [tool for tool in others if not (isinstance(tool, ToolDefinition) and tool.kind != "function" and tool.name in tools)]
    return replace(spec, tools=(*kept, *tools.values()), scope=scope)
