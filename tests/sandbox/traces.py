"""What a lease leaves on the machine: processes, files, mounts, control groups."""

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from tests.sandbox.kube.cluster import PodsUnderTest

from mainspring.tools.sandbox.kubernetes.pod_lease import PodLease
from mainspring.tools.sandbox.lease import LocalLease
from mainspring.tools.sandbox.local import LocalSandbox


class PodTraces(Struct, frozen=True):
    """The same for a lease in a cluster: its objects, and its pod if something runs there."""

    names: tuple[str, ...]

    def left(self, sandbox: "LocalSandbox | PodsUnderTest") -> list[str]:
        assert isinstance(sandbox, PodsUnderTest)
        return [name for _, name in sandbox.cluster.objects if name in self.names] + [
            name for name in sandbox.cluster.list_running() if name in self.names
        ]


def find_traces(sandbox: "LocalSandbox | PodsUnderTest", lease: "LocalLease | PodLease") -> "Traces | PodTraces":
    if isinstance(lease, PodLease):
        return PodTraces((lease._held.name, lease._held.pod))
    assert isinstance(sandbox, LocalSandbox)
    return Traces.of(sandbox, lease)


class Traces(Struct, frozen=True):
    """Where to look once the lease is gone."""

    processes: tuple[int, ...]
    paths: tuple[Path, ...]
    mounts: str

    @classmethod
    def of(cls, sandbox: LocalSandbox, lease: LocalLease) -> "Traces":
        slot = lease._slot
        paths = (slot._folder, *(slot.group.folders if slot.group else ()))
        return cls(processes_of(sandbox), paths, mounts(sandbox))

    def left(self, sandbox: "LocalSandbox | PodsUnderTest") -> list[str]:
        """What is still there or has appeared."""
        assert isinstance(sandbox, LocalSandbox)
        found = [f"process {pid}: {command(pid)}" for pid in processes_of(sandbox) if pid not in self.processes]
        found += [f"path {path}" for path in self.paths if path.exists()]
        return found + (["a mount"] if mounts(sandbox) != self.mounts else [])


def processes_of(sandbox: LocalSandbox) -> tuple[int, ...]:
    """The processes of the sandbox's user; if that is our own, those that its supervisor has started."""
    uid = sandbox._owner.uid
    supervisor = sandbox.processes._supervisor
    assert supervisor is not None
    if uid is not None:
        return tuple(pid for pid in everything() if owner(pid) == uid)
    return tuple(pid for pid in everything() if supervisor.pid in ancestors(pid))


def everything() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def owner(pid: int) -> int | None:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80]
    return "?"


def mounts(sandbox: LocalSandbox) -> str:
    """What is mounted in the sandbox's folder, or of it; others may mount what they like meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return "\n".join(line for line in lines if sandbox._folder.name in line)
