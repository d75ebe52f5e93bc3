"""What a lease owns on the host: its folders, its control group and, if it comes from the pool, a started worker."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import SandboxLimits, SandboxSpec
from mainspring.tools.sandbox import cgroup
from mainspring.tools.sandbox.backend import Backend, LeaseFolders
from mainspring.tools.sandbox.jail import Jail
from mainspring.tools.sandbox.leftovers import write_group_names
from mainspring.tools.sandbox.places import is_reachable
from mainspring.tools.sandbox.supervisor_client import SupervisorClient
from mainspring.tools.sandbox.workspace_files import Owner, remove_tree

PATIENCE = 200
PAUSE = 0.01


class Slot:
    """Made by `make_slot`, gone after `remove_group_folders`. Every worker started in it is in `jails` until it is gone."""

    def __init__(
        self, backend: Backend, processes: SupervisorClient, spec: SandboxSpec, folder: Path, group: cgroup.Group | None
    ) -> None:
        self.backend = backend
        self.group = group
        self.limits = spec.limits
        self.network = spec.network
        self.place = LeaseFolders(folder / "workspace", folder / "home", folder / "tmp", backend.choose_owner())
        self.warm: Jail | None = None
        self.removal: asyncio.Task[None] | None = None
        self.writing = Lock()
        """Held while writing from outside, so that two writers do not exceed the limits together."""
        self._folder = folder
        self._processes = processes
        self._jails: list[Jail] = []
        self._runs = 0
        self._is_at_rest = False
        self.is_firm = True
        """Whether paused processes are frozen by the kernel; stopped by signals, they could wake up."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where programs may write on the host."""
        place = self.place
        return (place.workspace,) if self.backend.is_namespaced else (place.workspace, place.home, place.scratch)

    def start(self) -> Jail:
        """Starts a worker. Raises `SandboxError`."""
        if self.removal is not None:
            raise SandboxError("the lease was released; acquire another one")
        joins = self.group.joins if self.group else ()
        launch = self.backend.launch(self.place, joins, network=self.network)
        jail = Jail(self._processes, launch, self.backend.extra(network=self.network))
        self._jails = [known for known in self._jails if not known.process.ended.done()]
        self._jails.append(jail)
        return jail

    async def get_jail(self) -> Jail:
        """The waiting worker if there is one, else a new one; ready in either case."""
        jail, self.warm = self.warm, None
        if jail is not None and not jail.is_alive:
            jail.end()
            jail = None
        jail = jail or self.start()
        try:
            await jail.wait_ready()
        except BaseException:
            jail.end()
            raise
        return jail

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Lets processes of the slot run within this context; outside of it they are paused."""
        self._runs += 1
        if self._is_at_rest:
            self._rest(False)
        try:
            yield
        finally:
            self._runs -= 1
            self._settle()

    def _settle(self, _: object = None) -> None:
        """Pauses what is left, once ended processes are gone: frozen ones could not exit."""
        if self._runs or self._is_at_rest or self.removal is not None:
            return
        left = [jail for jail in self._jails if not jail.process.ended.done()]
        ending = [jail for jail in left if not jail.is_alive]
        if ending:
            ending[0].process.ended.add_done_callback(self._settle)
        elif left:
            self._rest(True)

    def _rest(self, is_at_rest: bool) -> None:
        self._is_at_rest = is_at_rest
        self.is_firm = self.group is not None and self.group.freeze(is_at_rest)
        if not self.is_firm:
            for jail in self._jails:
                jail.process.pause(is_at_rest)

    def confine_to(self, limits: SandboxLimits) -> None:
        if limits != self.limits and self.group is not None:
            self.group.limit(limits)
        self.limits = limits

    def count_kills(self) -> int:
        return self.group.count_kills() if self.group else 0

    def end(self) -> None:
        """Kills whatever runs in it."""
        if self.warm is not None:
            self.warm.end()
        for jail in self._jails:
            jail.process.end()

    async def remove(self) -> None:
        """Returns when nothing of it is left."""
        self.end()
        for jail in self._jails:
            await asyncio.wait([jail.process.ended])
        if self.group is not None:
            # Done by the supervisor that ended them, unless the supervisor itself was ended.
            self.group.freeze(False)
            await remove_group(self.group)
            self._processes.forget(self.group.folders)
        await asyncio.to_thread(remove_tree, self._folder)


def make_slot(backend: Backend, processes: SupervisorClient, groups: cgroup.Groups, data: Path, spec: SandboxSpec) -> Slot:
    """Makes the folders and the group; blocks for a moment. Raises `SandboxError`, and has made nothing then."""
    if not is_reachable(data, backend.owner):
        raise SandboxError(f"{data} cannot be reached by the sandbox's user; choose a folder that others may enter")
    folder = data / token_hex(12)
    with ExitStack() as undo:
        try:
            # Not listable: a lease cannot find the folders of others.
            folder.mkdir(mode=0o711)
            undo.callback(remove_tree, folder)
            group = groups.make()
            if group is not None:
                undo.callback(cgroup.remove_group_folders, group)
                write_group_names(folder, group.folders)
                group.limit(spec.limits)
            slot = Slot(backend, processes, spec, folder, group)
            for owned in slot.folders:
                owned.mkdir(mode=0o700, exist_ok=True)
                give_folder(owned, slot.place.owner)
        except OSError as error:
            raise SandboxError(f"a sandbox cannot be made: {error}; check the space and rights of {data}") from error
        undo.pop_all()
    return slot


def give_folder(folder: Path, owner: Owner) -> None:
    """Makes the folder the sandbox's user's own."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner.take(descriptor)
    finally:
        os.close(descriptor)


async def remove_group(group: cgroup.Group) -> None:
    """Retries: the kernel releases ended processes a moment after it reports their end."""
    for _ in range(PATIENCE):
        with suppress(OSError):
            cgroup.remove_group_folders(group)
            return
        await asyncio.sleep(PAUSE)
    raise SandboxError(f"the control group {group.folders[0]} cannot be removed; something is still in it")
