"""Programs that the engine starts and talks to itself, such as MCP servers, in the profile of sandboxed code."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mainspring.errors import SandboxError
from mainspring.tools.sandbox.backend import environment
from mainspring.tools.sandbox.bwrap import FILTER, SCRATCH, Bwrap
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.processes import Launch

ENTER = Path(__file__).with_name("enter.py")


def wrapping(
    sandbox: LocalSandbox, *, network: bool = False, workspace: Path | None = None
) -> Callable[[Sequence[str]], Sequence[str]]:
    """What turns a command line into one that runs the same program in the sandbox, as long as that is open.

    The program sees the system, read-only, and `workspace`, which must belong to the sandbox's user, or an empty one in memory.
    Its environment is the one it is started with, but for its path, home and folder for temporary files. Raises `SandboxError`
    where bubblewrap does not hold; `unsafe` wraps nothing.
    """
    backend = sandbox._backend
    if backend.name == "unsafe":
        return tuple
    if not isinstance(backend, Bwrap):
        raise SandboxError(f"`{backend.name}` cannot hold a program that is started from outside; install bubblewrap")
    mounted = ("--size", str(SCRATCH), "--tmpfs") if workspace is None else ("--bind", str(workspace))
    own = environment(backend.python, "/home", "/tmp").items()
    line = (*backend.line(mounted, network=network), *(word for name, value in own for word in ("--setenv", name, value)), "--")
    fixed = {"namespace": _namespace(sandbox), "extra": backend.extra(network=network).hex(), "file": FILTER}

    def wrapped(argv: Sequence[str]) -> Sequence[str]:
        launch = Launch(argv=(*line, *argv), env={}, uid=backend.owner.uid, gid=backend.owner.gid)
        order = msgspec.json.encode({"launch": launch, **fixed}).decode()
        return sys.executable, "-I", "-S", str(ENTER), order

    return wrapped


def _namespace(sandbox: LocalSandbox) -> str:
    """The mount namespace of the warden, if we may enter it and have to."""
    warden = sandbox._processes._warden
    return f"/proc/{warden.pid}/ns/mnt" if warden is not None and os.getuid() == 0 else ""
