"""Finds the sandbox that works on this machine, by running a program in each that tries to escape.

What a container allows cannot be told from version numbers. A backend that does not start, or from which the program escapes, is
not used, and the reason is reported.
"""

import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from msgspec import Struct

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox import bwrap
from mainspring.tools.sandbox.cgroup import Groups
from mainspring.tools.sandbox.local import Kind, LocalSandbox

Mode = Literal["auto", "bwrap", "landlock", "unsafe"]

SECONDS = 10.0
ADVICE = (
    "install bubblewrap and allow user namespaces, or use Linux 6.2 or newer with Landlock; "
    "`unsafe` runs code without isolation, for machines that hold nothing of value"
)

# Says what it could do. Each attempt is harmless should it succeed.
ATTEMPTS = """
import ctypes, json, os, socket
bait = json.loads(BAIT)
got = []
def attempt(name, work):
    try:
        work()
    except OSError:
        return
    got.append(name)
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.settimeout(2)
        end.connect(address)
def unshare():
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        raise OSError
def namespace():
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return bait["namespace"]
attempt("read a file of the host", lambda: open(bait["file"]).close())
attempt("write to a file of the host", lambda: open(bait["file"], "a").close())
attempt("connect to a port of the host", lambda: connect(socket.AF_INET, ("127.0.0.1", bait["port"])))
attempt("connect to a socket of the host", lambda: connect(socket.AF_UNIX, bait["socket"]))
attempt("make a user namespace", unshare)
if namespace() == bait["namespace"]:
    attempt("signal the engine", lambda: os.kill(bait["pid"], 0))
print(json.dumps(got))
"""


class Candidate(Struct, frozen=True):
    kind: Kind
    bwrap: Path | None = None


@asynccontextmanager
async def open_sandbox(
    mode: Mode = "auto",
    *,
    folder: Path | None = None,
    uid: int | None = None,
    warm: int = 2,
    groups: Groups | None = None,
    packages: Path | None = None,
) -> AsyncIterator[LocalSandbox]:
    """The strongest sandbox that holds here, or the one named. Raises `SandboxError` with every reason and what to do."""
    refused: list[str] = []
    async with AsyncExitStack() as stack:
        for candidate in list_candidates(mode):
            sandbox = LocalSandbox(
                candidate.kind,
                bwrap=candidate.bwrap,
                folder=folder,
                uid=uid,
                warm=warm,
                groups=groups,
                refused=tuple(refused),
                packages=packages,
            )
            reason = await _try_open(sandbox, stack, is_checked=candidate.kind != "unsafe")
            if reason is None:
                yield sandbox
                return
            refused.append(f"{candidate.kind} ({candidate.bwrap or 'kernel'}): {reason}")
        raise SandboxError(f"no sandbox holds here, so code is not run: {'; '.join(refused) or 'none is installed'}; {ADVICE}")


async def find_escapes(sandbox: LocalSandbox) -> tuple[str, ...]:
    """What a program in the sandbox could do that it should not. Raises `SandboxError` if it does not even run."""
    with _set_bait() as bait:
        async with sandbox.acquire() as lease:
            result = await lease.execute(f"BAIT = {bait!r}\n{ATTEMPTS}", timeout=SECONDS)
    if result.exit.is_error:
        raise SandboxError(f"a program in it failed: {result.text}")
    return tuple(json.loads(result.stdout))


def list_candidates(mode: Mode) -> Iterator[Candidate]:
    """What is to be tried, strongest first."""
    if mode in ("auto", "bwrap"):
        found = [program for program in (bwrap.find_bundled(), bwrap.find_installed()) if program is not None]
        for program in sorted(found, key=_is_weak):
            yield Candidate("bwrap", program)
    if mode in ("auto", "landlock"):
        yield Candidate("landlock")
    if mode == "unsafe":
        yield Candidate("unsafe")


def _is_weak(program: Path) -> bool:
    try:
        return not bwrap.is_fixed(bwrap.read_version(program))
    except SandboxError:
        return True


async def _try_open(sandbox: LocalSandbox, stack: AsyncExitStack, *, is_checked: bool) -> str | None:
    """Opens the sandbox onto the stack if it holds; else says why not and leaves it closed."""
    async with AsyncExitStack() as attempt:
        try:
            await attempt.enter_async_context(sandbox)
            got = await find_escapes(sandbox) if is_checked else ()
        except SandboxError as error:
            return error.message
        if got:
            return f"a program in it could {', '.join(got)}"
        await stack.enter_async_context(attempt.pop_all())
    return None


@contextmanager
def _set_bait() -> Iterator[str]:
    """Things of the host that a sandboxed program should not get at, described in JSON."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mainspring-bait-")))
        folder.chmod(0o755)
        file = folder / "file"
        file.touch()
        file.chmod(0o666)
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(f"\0mainspring-{os.urandom(8).hex()}")
        local.listen()
        yield json.dumps(
            {
                "file": str(file),
                "port": port.getsockname()[1],
                "socket": local.getsockname().decode(),
                "pid": os.getpid(),
                "namespace": os.readlink("/proc/self/ns/pid"),
            }
        )
