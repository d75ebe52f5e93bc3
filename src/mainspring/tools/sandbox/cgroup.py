"""Totals for a whole lease: memory and processes of all that runs in it, counted by the kernel.

Limits of a single process do not add up: eight processes may each use what one may. Where control groups can be made, of
either version, each lease gets one and the kernel ends what exceeds it. They are made below the group this process is in, so
whatever limits the engine limits them too.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from mainspring.tools.sandbox.sandbox_port import Limits

MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
CONTROLLERS = ("memory", "pids")
FREEZER = "freezer"


class Group(Protocol):
    """The control group of one lease. A process joins by writing to each of `joins` before it does anything else."""

    folders: tuple[Path, ...]

    @property
    def joins(self) -> tuple[str, ...]: ...

    def limit(self, limits: Limits) -> None: ...

    def kills(self) -> int:
        """How many processes the kernel has ended in it for want of memory."""
        ...

    def freeze(self, is_frozen: bool) -> bool:
        """Stops everything in it, or lets it go on; it cannot resist. False where this cannot be done."""
        ...


class Groups(Protocol):
    """Makes groups. `name` is what `SandboxHealth.totals` says."""

    name: str

    def make(self) -> Group | None: ...


class NoGroups:
    name = "none"

    def make(self) -> None:
        return None


class _Version1:
    """One folder for each controller."""

    def __init__(self, parents: dict[str, Path]) -> None:
        name = f"mainspring-{token_hex(6)}"
        self._memory, self._pids = parents["memory"] / name, parents["pids"] / name
        self._freezer = parents[FREEZER] / name if FREEZER in parents else None
        self.folders: tuple[Path, ...] = (self._memory, self._pids, *([self._freezer] if self._freezer else []))
        _make(self.folders)

    @property
    def joins(self) -> tuple[str, ...]:
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def limit(self, limits: Limits) -> None:
        # A new limit may be above or below the last one, and that of memory with swap may never be the smaller one.
        swap = self._memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            swap.write_text("-1")
        (self._memory / "memory.limit_in_bytes").write_text(str(limits.memory))
        if swap.exists():
            swap.write_text(str(limits.memory))
        (self._pids / "pids.max").write_text(str(limits.processes + OVERHEAD))

    def kills(self) -> int:
        return _counted(self._memory / "memory.oom_control")

    def freeze(self, is_frozen: bool) -> bool:
        return self._freezer is not None and _is_written(self._freezer / "freezer.state", "FROZEN" if is_frozen else "THAWED")


class _Version2:
    """One folder for all controllers."""

    def __init__(self, parent: Path) -> None:
        self._folder = parent / f"mainspring-{token_hex(6)}"
        self.folders: tuple[Path, ...] = (self._folder,)
        _make(self.folders)

    @property
    def joins(self) -> tuple[str, ...]:
        return (str(self._folder / "cgroup.procs"),)

    def limit(self, limits: Limits) -> None:
        (self._folder / "memory.max").write_text(str(limits.memory))
        swap = self._folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        (self._folder / "pids.max").write_text(str(limits.processes + OVERHEAD))

    def kills(self) -> int:
        return _counted(self._folder / "memory.events")

    def freeze(self, is_frozen: bool) -> bool:
        return _is_written(self._folder / "cgroup.freeze", "1" if is_frozen else "0")


# The sandbox's own processes are counted too: the launcher, the first process of its namespace, the interpreter that starts the
# program.
OVERHEAD = 4


class Version1Groups:
    name = "cgroup v1"

    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = parents

    def make(self) -> Group:
        return _Version1(self._parents)


class Version2Groups:
    name = "cgroup v2"

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def make(self) -> Group:
        return _Version2(self._parent)


def find_groups() -> Groups:
    """The version that works here, shown by making a group with limits and removing it again."""
    for groups in _candidates():
        with suppress(OSError):
            group = groups.make()
            if group is not None:
                try:
                    group.limit(Limits())
                    return groups
                finally:
                    remove(group)
    return NoGroups()


def remove(group: Group) -> None:
    """Removes an empty group. Raises `OSError` while a process is in it."""
    for folder in group.folders:
        with suppress(FileNotFoundError):
            folder.rmdir()


def _candidates() -> list[Groups]:
    try:
        own = dict(_own_group(line) for line in OWN.read_text().splitlines())
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return []
    found: list[Groups] = []
    first: dict[str, Path] = {}
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup2" and "" in own:
            parent = _below(fields, own[""])
            if _delegates(parent):
                found.append(Version2Groups(parent))
        elif kind == "cgroup":
            first |= {name: _below(fields, own[name]) for name in (*CONTROLLERS, FREEZER) if name in options and name in own}
    if first.keys() >= set(CONTROLLERS):
        found.append(Version1Groups(first))
        # Groups that cannot be frozen are better than none.
        found.append(Version1Groups({name: first[name] for name in CONTROLLERS}))
    return found


def _own_group(line: str) -> tuple[str, str]:
    _, controllers, path = line.split(":", 2)
    return next((name for name in (*CONTROLLERS, FREEZER) if name in controllers.split(",")), controllers), path


def _below(fields: list[str], path: str) -> Path:
    """Where a group is found under a mount, which may show only a part of the hierarchy."""
    root, mounted = fields[3], fields[4]
    return Path(mounted) / os.path.relpath(path, root) if path.startswith(root) else Path(mounted)


def _delegates(parent: Path) -> bool:
    """Whether groups below this one can have both controllers, switching them on if that is permitted."""
    control = parent / "cgroup.subtree_control"
    with suppress(OSError):
        if not set(CONTROLLERS) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        return set(CONTROLLERS) <= set(control.read_text().split())
    return False


def _make(folders: Sequence[Path]) -> None:
    """Makes all of them, or none. Raises `OSError`."""
    with ExitStack() as undo:
        for folder in folders:
            folder.mkdir()
            undo.callback(folder.rmdir)
        undo.pop_all()


def _is_written(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _counted(path: Path) -> int:
    with suppress(FileNotFoundError):  # Removed already, and nobody is there to be ended any more.
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
