"""Runs programs that the engine talks to itself, such as MCP servers and Chromium, in the sandbox."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from logging import getLogger
from pathlib import Path
from secrets import token_hex
from typing import IO

import anyio
import msgspec
from anyio.abc import Process
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import MEGABYTE, SandboxLimits
from mainspring.tools.sandbox.backend import LeaseFolders, build_environment
from mainspring.tools.sandbox.bwrap import FILTER, SCRATCH, Bwrap
from mainspring.tools.sandbox.cgroup import Group
from mainspring.tools.sandbox.grants import Mount, Program, list_mounts, name_script
from mainspring.tools.sandbox.landlock import Landlock
from mainspring.tools.sandbox.lease import count_processes
from mainspring.tools.sandbox.leftovers import write_group_names
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.places import is_reachable
from mainspring.tools.sandbox.slot import give_folder, remove_group
from mainspring.tools.sandbox.supervisor_client import Launch
from mainspring.tools.sandbox.workspace_files import remove_tree

log = getLogger(__name__)

# Elsewhere than on Linux there is no launcher: nothing can be sandboxed, and only the program's own group is ended with it.
HAS_LAUNCHER = hasattr(os, "pidfd_open")
LAUNCHER = Path(__file__).with_name("launcher.py")
# A server stays, and may have much to do; still it must not take the whole machine.
LIMITS = SandboxLimits(memory=2048 * MEGABYTE, processes=512, file=1024 * MEGABYTE)


class LauncherOrder(Struct, frozen=True):
    """What the launcher is told. Without `extra`, which only a program in a namespace has, it starts a reaper."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    launch: Launch | None = None
    namespace: str = ""
    views: tuple[tuple[str, str], ...] = ()
    extra: str = ""
    file: int = FILTER

    @property
    def line(self) -> tuple[str, ...]:
        """The command line, to which the number of a pipe is to be added; closing its other end is the end of the program."""
        return sys.executable, "-I", "-S", str(LAUNCHER), msgspec.json.encode(self).decode()


def build_bare_command(program: Program) -> tuple[str, ...]:
    """The command line of a program that may do whatever we may, and that leaves no process behind all the same."""
    return LauncherOrder(program.argv).line


@asynccontextmanager
async def wrap_program(sandbox: LocalSandbox, program: Program) -> AsyncIterator[Sequence[str]]:
    """The command line that runs the program in the sandbox, as `LauncherOrder.line`, for as long as this is entered.

    The program sees the system, read-only, a workspace, home and folder for temporary files of its own, which are empty and go
    with it, and what it was granted. Its environment is the one it is started with, but for what says where those are. Raises
    `SandboxError` if the sandbox cannot hold it so; `unsafe` holds nothing.
    """
    await sandbox.revive()
    backend = sandbox.backend
    if not isinstance(backend, Bwrap | Landlock):
        yield build_bare_command(program)
        return
    program = name_script(program)
    weak_version = backend.version if isinstance(backend, Bwrap) and backend.follows_links else ""
    grants = await asyncio.to_thread(partial(list_mounts, program, backend.owner, weak_version=weak_version))
    folder = sandbox.data / token_hex(12)
    group = sandbox.groups.make()
    try:
        folder.mkdir(mode=0o711)
        if group is not None:
            write_group_names(folder, group.folders)
            sandbox.processes.remember(group.folders)
            group.limit(LIMITS)
        build = _enter_namespace if isinstance(backend, Bwrap) else _confine
        order = build(sandbox, program, grants, folder)
        assert order.launch is not None
        launch = replace(order.launch, joins=group.joins if group is not None else (), limits=_build_limits(sandbox, group))
        yield replace(order, launch=launch).line
    finally:
        if group is not None:
            try:
                await remove_group(group)
            except SandboxError as error:
                log.warning("%s", error.message)
            else:
                sandbox.processes.forget(group.folders)
        if folder.exists():
            await asyncio.to_thread(remove_tree, folder)


class StartedProgram(Struct, frozen=True):
    """A program in a session of its own. Closing `lifeline` ends it, with all it started, unless it runs in a namespace."""

    process: Process
    lifeline: IO[bytes]

    async def wait(self, seconds: float) -> bool:
        """Whether the program has ended within this time."""
        with anyio.move_on_after(seconds):
            await self.process.wait()
            return True
        return False

    def signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


async def start_program(
    argv: Sequence[str], stack: AsyncExitStack, *, stdin: int, stdout: int, env: Mapping[str, str], cwd: str | None = None
) -> StartedProgram:
    """Starts a command line as `LauncherOrder.line` builds it. The lifeline is closed with the stack. Raises `OSError`."""
    theirs, ours = os.pipe()
    lifeline = stack.enter_context(os.fdopen(ours, "wb"))
    try:
        process = await anyio.open_process(
            [*argv, str(theirs)] if HAS_LAUNCHER else argv,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
            pass_fds=(theirs,),
        )
    finally:
        os.close(theirs)
    return StartedProgram(process, lifeline)


def _build_limits(sandbox: LocalSandbox, group: Group | None) -> dict[str, int]:
    """What each process is held to, which is more where no group counts them together. The launcher is the outer user's."""
    held = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": _cap_limit("RLIMIT_FSIZE", LIMITS.file)}
    if group is not None:
        return held
    others = count_processes(sandbox.backend.owner.uid)
    held["RLIMIT_NPROC"] = _cap_limit("RLIMIT_NPROC", LIMITS.processes + others)
    return {**held, "RLIMIT_DATA": _cap_limit("RLIMIT_DATA", LIMITS.memory)}


def _cap_limit(name: str, most: int) -> int:
    """No more than we have ourselves, for that cannot be given."""
    hard = resource.getrlimit(getattr(resource, name))[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def _enter_namespace(sandbox: LocalSandbox, program: Program, grants: Sequence[Mount], folder: Path) -> LauncherOrder:
    backend = sandbox.backend
    assert isinstance(backend, Bwrap)
    views = _make_views(sandbox, grants, folder)
    known = [Path(name) for name, _ in backend.python.parts]
    mounted: list[str] = []
    for grant in grants:
        if grant.is_writable or not any(Path(grant.path).is_relative_to(part) for part in known):
            mounted += ["--bind" if grant.is_writable else "--ro-bind", views.get(grant.path, grant.path), grant.path]
    workspace = ("--size", str(SCRATCH), "--tmpfs")
    start = program.cwd or "/workspace"
    line = (*backend.build_command(workspace, network=program.network, more=mounted, start=start), "--", *program.argv)
    return LauncherOrder(
        line,
        _build_environment(program, build_environment(backend.python, "/home", "/tmp")),
        Launch(argv=line, env={}, uid=backend.owner.uid, gid=backend.owner.gid),
        _find_namespace(sandbox),
        tuple(views.items()),
        backend.extra(network=program.network).hex(),
    )


def _confine(sandbox: LocalSandbox, program: Program, grants: Sequence[Mount], folder: Path) -> LauncherOrder:
    backend = sandbox.backend
    assert isinstance(backend, Landlock)
    for grant in grants:
        if not is_reachable(Path(grant.path), backend.owner):
            uid = backend.owner.uid
            raise SandboxError(f"the sandbox's user, {uid}, cannot reach `{grant.path}`; let others enter the folders above it")
    place = LeaseFolders(folder / "workspace", folder / "home", folder / "tmp", backend.owner)
    for own in (place.workspace, place.home, place.scratch):
        own.mkdir(mode=0o700)
        give_folder(own, backend.owner)
    launch = backend.launch(place, (), network=program.network)
    assert launch.confine is not None
    confine = replace(
        launch.confine,
        read=(*launch.confine.read, *[grant.path for grant in grants if not grant.is_writable]),
        write=(*launch.confine.write, *[grant.path for grant in grants if grant.is_writable]),
    )
    start = program.cwd or str(place.workspace)
    return LauncherOrder(program.argv, _build_environment(program, launch.env), replace(launch, folder=start, confine=confine))


def _build_environment(program: Program, own: dict[str, str]) -> dict[str, str]:
    """What differs from the environment that the program is started with: where its places are, unless its own says so."""
    path = f"{Path(program.argv[0]).parent}:{own['PATH']}"
    return {name: value for name, value in {**own, "PATH": path}.items() if name not in program.env}


def _make_views(sandbox: LocalSandbox, grants: Sequence[Mount], folder: Path) -> dict[str, str]:
    """Other names for what the sandbox's user cannot reach, which `enter` makes them; none if there is nothing of the kind."""
    hidden = [grant.path for grant in grants if not is_reachable(Path(grant.path), sandbox.backend.owner)]
    views = {path: str(folder / str(number)) for number, path in enumerate(hidden)}
    for path, view in views.items():
        Path(view).mkdir() if os.path.isdir(path) else Path(view).touch()
    return views


def _find_namespace(sandbox: LocalSandbox) -> str:
    """The mount namespace of the supervisor, if it has one of its own."""
    if (pid := sandbox.processes.supervisor_pid) is None:
        return ""
    namespace = f"/proc/{pid}/ns/mnt"
    return namespace if os.readlink(namespace) != os.readlink("/proc/self/ns/mnt") else ""
