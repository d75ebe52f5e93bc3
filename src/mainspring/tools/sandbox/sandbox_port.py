"""What every sandbox promises, whether it is a namespace on this machine or a pod elsewhere.

A `Sandbox` lends out leases. A `Lease` is one workspace, apart from every other: programs run in it, files are put in and taken
out, and when it is released nothing of it is left. A run streams `Chunk` and ends with exactly one `Exit`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

Language = Literal["python", "shell", "node"]
Stream = Literal["stdout", "stderr"]
Reason = Literal["exited", "signal", "timeout", "output_limit", "memory", "disk_limit", "lost"]

MEGABYTE = 1 << 20


class Limits(Struct, frozen=True, kw_only=True):
    """What one lease may use. How firmly each holds is said by `SandboxHealth`."""

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
    """What a lease is to be. Without a `workspace` it gets an empty one that is removed with it; a given one stays."""

    limits: Limits = Limits()
    network: bool = False
    """Grants the network of the host, its loopback included."""
    workspace: Path | None = None


DEFAULT = SandboxSpec()


class Chunk(Struct, frozen=True):
    stream: Stream
    data: bytes


class Exit(Struct, frozen=True):
    """How a run ended. `code` is None when the program did not end by itself."""

    code: int | None
    signal: int | None = None
    reason: Reason = "exited"

    @property
    def is_error(self) -> bool:
        return self.code != 0 or self.reason != "exited"

    @property
    def is_stopped(self) -> bool:
        """Whether the program did not end on its own."""
        return self.reason not in ("exited", "signal")


class Entry(Struct, frozen=True):
    """A regular file in the workspace; `path` is relative to it."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970, as the file system tells them."""


class Listing(Struct, frozen=True):
    entries: tuple[Entry, ...]
    is_complete: bool


class Result(Struct, frozen=True):
    """A run that was waited for. `text` is what a model should read of it."""

    exit: Exit
    stdout: str
    stderr: str
    seconds: float
    files: tuple[Entry, ...] = ()
    """Those that are new or changed."""
    value: str | None = None
    """A session's cell only: the `repr` of its last expression."""
    is_state_lost: bool = False
    """A session's cell only: the interpreter ended, so the next cell begins with nothing."""

    @property
    def text(self) -> str:
        parts = [self.stdout, self.stderr, self.value or "", _told(self.exit)]
        if self.is_state_lost:
            parts.append("[the interpreter was ended; its variables are gone, the files are still there]")
        return "\n".join(part.rstrip("\n") for part in parts if part)


class Session(Protocol):
    """A Python interpreter in a lease that keeps its variables from cell to cell."""

    async def run_cell(self, code: str, *, timeout: float | None = None) -> Result:  # noqa: ASYNC109 - for the program
        """Runs one cell. One that ends the interpreter, or is ended, says so; the next one gets a new interpreter."""
        ...


class Lease(Protocol):
    """One workspace and what runs in it. Cancelling whoever waits for a run ends that run and all it started."""

    def run(
        self,
        program: str | Sequence[str],
        *,
        language: Language = "python",
        timeout: float | None = None,
        stdin: bytes = b"",
    ) -> AsyncGenerator[Chunk | Exit, None]:
        """Runs code, or a command if it is a list. Closing the stream early ends the run.

        Raises `InvalidRequest` for a language that is not there or a path that leads out, `SandboxError` if nothing starts.
        """
        ...

    def session(self) -> AbstractAsyncContextManager[Session]: ...

    async def put(self, path: str, data: bytes) -> Entry:
        """Writes a file, making its folders, and says what `list` will. Raises `InvalidRequest` if the path leads out, over a
        link, or to no plain file, and if there is no room for it."""
        ...

    async def get(self, path: str) -> bytes:
        """A file's content. Raises `NotFound`, and `InvalidRequest` as `put` does or if it is larger than `Limits.file`."""
        ...

    async def remove(self, path: str) -> None:
        """Removes a file. Raises as `get` does."""
        ...

    async def list(self) -> Listing:
        """The regular files, links left out, by path."""
        ...

    async def release(self) -> None:
        """Ends everything in the lease and returns when it is removed. Leaving `async with` begins that without waiting."""
        ...


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
    """Stronger backends that do not hold here, and why."""


class Sandbox(Protocol):
    """Lends out leases, from `async with` on."""

    def acquire(self, spec: SandboxSpec = DEFAULT) -> AbstractAsyncContextManager[Lease]: ...

    async def health(self) -> SandboxHealth: ...


def _told(exit: Exit) -> str:
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
