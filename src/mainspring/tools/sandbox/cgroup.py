"""Totals for a whole lease: memory and processes of all that runs in it, counted by the kernel.

Per-process limits do not add up: eight processes may each use the whole limit. Where control groups can be created, of either
version, each lease gets one, and the kernel kills what exceeds it. They are created below the engine's own group, so its limits
apply to them too.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex

from msgspec import Struct

from mainspring.core.sandbox import SandboxLimits

MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
CONTROLLERS = ("memory", "pids")
FREEZER = "freezer"
# The sandbox's own processes are counted too: the launcher, the first process of its namespace, the interpreter that starts the
# program.
OVERHEAD = 4


class Group:
    """The control group of one lease, a folder below each parent. Raises `OSError` if not all of them can be made.

    A process joins by writing to each of `joins` before it does anything else.
    """

    def __init__(self, *parents: Path) -> None:
        name = f"mainspring-{token_hex(6)}"
        self.folders = tuple([parent / name for parent in parents])
        with ExitStack() as undo:
            for folder in self.folders:
                folder.mkdir()
                undo.callback(folder.rmdir)
            undo.pop_all()

    @property
    def joins(self) -> tuple[str, ...]:
        return tuple([str(folder / "cgroup.procs") for folder in self.folders])

    def limit(self, limits: SandboxLimits) -> None:
        raise NotImplementedError

    def count_kills(self) -> int:
        """How many processes in it the kernel has killed for want of memory."""
        raise NotImplementedError

    def freeze(self, is_frozen: bool) -> bool:
        """Stops everything in it, or lets it go on. False where this cannot be done."""
        raise NotImplementedError


class GroupV1(Group):
    """One folder for each controller."""

    def __init__(self, parents: dict[str, Path]) -> None:
        names = [name for name in (*CONTROLLERS, FREEZER) if name in parents]
        super().__init__(*[parents[name] for name in names])
        self._memory, self._pids, *freezers = self.folders
        self._freezers = freezers

    def limit(self, limits: SandboxLimits) -> None:
        # A new limit may be above or below the last one, and that of memory with swap may never be the smaller one.
        swap = self._memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            swap.write_text("-1")
        (self._memory / "memory.limit_in_bytes").write_text(str(limits.memory))
        if swap.exists():
            swap.write_text(str(limits.memory))
        (self._pids / "pids.max").write_text(str(limits.processes + OVERHEAD))

    def count_kills(self) -> int:
        return _read_kills(self._memory / "memory.oom_control")

    def freeze(self, is_frozen: bool) -> bool:
        state = "FROZEN" if is_frozen else "THAWED"
        return bool(self._freezers) and _try_write(self._freezers[0] / "freezer.state", state)


class GroupV2(Group):
    """One folder for all controllers."""

    def limit(self, limits: SandboxLimits) -> None:
        (folder,) = self.folders
        (folder / "memory.max").write_text(str(limits.memory))
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        (folder / "pids.max").write_text(str(limits.processes + OVERHEAD))

    def count_kills(self) -> int:
        return _read_kills(self.folders[0] / "memory.events")

    def freeze(self, is_frozen: bool) -> bool:
        return _try_write(self.folders[0] / "cgroup.freeze", "1" if is_frozen else "0")


class Groups(Struct, frozen=True):
    """Makes groups, by default none. `name` is what `SandboxHealth.totals` says."""

    name: str = "none"
    make: Callable[[], Group | None] = lambda: None


def find_groups() -> Groups:
    """The version that works here, shown by making a group with limits and removing it again."""
    for groups in _list_candidates():
        with suppress(OSError):
            if (group := groups.make()) is not None:
                try:
                    group.limit(SandboxLimits())
                    return groups
                finally:
                    remove_group_folders(group)
    return Groups()


def remove_group_folders(group: Group) -> None:
    """Removes an empty group. Raises `OSError` while a process is in it."""
    for folder in group.folders:
        with suppress(FileNotFoundError):
            folder.rmdir()


def _list_candidates() -> list[Groups]:
    try:
        own = dict(_parse_own_group(line) for line in OWN.read_text().splitlines())
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return []
    found: list[Groups] = []
    first: dict[str, Path] = {}
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup2" and "" in own:
            parent = _find_folder(fields, own[""])
            if _can_delegate(parent):
                found.append(Groups("cgroup v2", partial(GroupV2, parent)))
        elif kind == "cgroup":
            first |= {
                name: _find_folder(fields, own[name]) for name in (*CONTROLLERS, FREEZER) if name in options and name in own
            }
    if first.keys() >= set(CONTROLLERS):
        found.append(Groups("cgroup v1", partial(GroupV1, first)))
        # Groups that cannot be frozen are better than none.
        found.append(Groups("cgroup v1", partial(GroupV1, {name: first[name] for name in CONTROLLERS})))
    return found


def _parse_own_group(line: str) -> tuple[str, str]:
    _, controllers, path = line.split(":", 2)
    return next((name for name in (*CONTROLLERS, FREEZER) if name in controllers.split(",")), controllers), path


def _find_folder(fields: list[str], path: str) -> Path:
    """Where a group is found under a mount, which may show only a part of the hierarchy."""
    root, mounted = fields[3], fields[4]
    return Path(mounted) / os.path.relpath(path, root) if path.startswith(root) else Path(mounted)


def _can_delegate(parent: Path) -> bool:
    """Whether groups below this one can have both controllers, switching them on if that is permitted."""
    control = parent / "cgroup.subtree_control"
    with suppress(OSError):
        if not set(CONTROLLERS) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        return set(CONTROLLERS) <= set(control.read_text().split())
    return False


def _try_write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _read_kills(path: Path) -> int:
    with suppress(FileNotFoundError):  # The group has been removed already.
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
