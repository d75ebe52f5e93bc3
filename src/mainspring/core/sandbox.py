"""What goes into a sandbox and comes out of it, as data. `ports.Sandbox` says what one does."""

from typing import Literal

from msgspec import Struct

Language = Literal["python", "shell", "node"]
Stream = Literal["stdout", "stderr"]
ExitReason = Literal["exited", "signal", "timeout", "output_limit", "memory", "disk_limit", "lost"]

MEGABYTE = 1 << 20


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """What one lease may use. `SandboxHealth` says how firmly each limit holds."""

    memory: int = 512 * MEGABYTE
    """Bytes, of all processes together where cgroups hold, else of each."""
    processes: int = 64
    """Processes and threads at a time."""
    seconds: float = 30.0
    """How long a run may take unless it is started with a timeout of its own."""
    output: int = MEGABYTE
    """Bytes of standard output and error of one run together."""
    file: int = 64 * MEGABYTE
    """Bytes of a single file."""
    disk: int = 512 * MEGABYTE
    """Bytes of all files in the workspace. Looked at from time to time, so a fast writer can exceed it for a moment."""
    entries: int = 10_000
    """Files and folders in the workspace, looked at likewise, and the most that `list` names."""


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """What a lease is to be."""

    limits: SandboxLimits = SandboxLimits()
    network: bool = False
    """Grants the network of the host, its loopback included."""
    name: str = ""
    """For what the lease is. Where leases are seen by others, as pods are, their names are derived from it."""


DEFAULT_SPEC = SandboxSpec()


class OutputChunk(Struct, frozen=True):
    stream: Stream
    data: bytes


class ProgramExit(Struct, frozen=True):
    """How a run ended. `code` is None when the program did not end by itself."""

    code: int | None
    signal: int | None = None
    reason: ExitReason = "exited"

    @property
    def is_error(self) -> bool:
        return self.code != 0 or self.reason != "exited"

    @property
    def is_stopped(self) -> bool:
        """Whether the program did not end on its own."""
        return self.reason not in ("exited", "signal")


class WorkspaceFile(Struct, frozen=True):
    """A regular file in the workspace; `path` is relative to it."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970, as the file system tells them."""
    is_executable: bool = False


class WorkspaceListing(Struct, frozen=True):
    """The files of a workspace, its empty folders, and its links with what they point to. `is_complete` says that nothing but
    special files was left out."""

    entries: tuple[WorkspaceFile, ...]
    is_complete: bool
    folders: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


class ProgramResult(Struct, frozen=True):
    """A run that was waited for. `text` is what a model should read of it."""

    exit: ProgramExit
    stdout: str
    stderr: str
    seconds: float
    files: tuple[WorkspaceFile, ...] = ()
    """Those that are new or changed."""
    value: str | None = None
    """A session's cell only: the `repr` of its last expression."""
    is_state_lost: bool = False
    """A session's cell only: the interpreter ended, so the next cell begins with nothing."""

    @property
    def text(self) -> str:
        parts = [self.stdout, self.stderr, self.value or "", _describe_exit(self.exit)]
        if self.is_state_lost:
            parts.append("[the interpreter was ended; its variables are gone, the files are still there]")
        return "\n".join(part.rstrip("\n") for part in parts if part)


class SandboxHealth(Struct, frozen=True):
    """What a sandbox is and how firmly it holds."""

    backend: str
    version: str
    totals: str
    """What holds memory and processes of a whole lease: `cgroup v1`, `cgroup v2`, or `none`, when limits are per process."""
    isolates: tuple[str, ...]
    languages: dict[str, str]
    """Where each language is found in the sandbox."""
    uid: int
    is_ok: bool
    warm: int = 0
    leases: int = 0
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Stronger backends that do not hold here, and why."""


def _describe_exit(exit: ProgramExit) -> str:
    match exit.reason:
        case "exited":
            return f"[exit code {exit.code}]" if exit.code else ""
        case "signal":
            return f"[ended by signal {exit.signal}]"
        case "timeout":
            return "[stopped: it took longer than it may; do less at once or ask for more time]"
        case "output_limit":
            return "[stopped: too much output; print less, or write to a file]"
        case "memory":
            return "[stopped: out of memory; work on smaller pieces]"
        case "disk_limit":
            return "[stopped: too many or too large files in the workspace]"
        case "lost":
            return "[stopped: the sandbox itself ended; try again]"
