"""Chromium as a process: in the sandbox, as nobody, with no network but our proxies, controlled over a socket.

Its network namespace has only a loopback of its own. Before Chromium starts, a few lines of Python open listening sockets there
and pass them to us. So a proxy is a port inside the namespace that nobody outside can reach, and no other traffic leaves. The
socket that passed them then serves as the DevTools pipe: it closes when we exit, and Chromium ends.
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio import Task
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from socket import recv_fds, socket, socketpair
from subprocess import DEVNULL

import anyio
from anyio.abc import Process
from msgspec import Struct

from mainspring.core.errors import ToolUnavailable
from mainspring.tools.browser.devtools import MOST_BYTES, DevTools
from mainspring.tools.sandbox.grants import Program, Wrap
from mainspring.tools.sandbox.places import is_system
from mainspring.tools.sandbox.supervisor_client import read_library_path
from mainspring.tools.sandbox.wrap import StartedProgram, start_program

START_SECONDS = 30.0
GRACE_SECONDS = 2.0

# The command on the path is often a wrapper script; these are the binaries behind it.
PROGRAMS = (
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "there is no Chromium on this machine; the operator can install one, on Debian: apt-get install chromium"
FONTS = Path("/etc/fonts")

START = """
import os, socket, sys
doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
with socket.socket(fileno=os.dup(0)) as engine:
    socket.send_fds(engine, [b"."], [door.fileno() for door in doors])
os.dup2(0, 3)
os.dup2(0, 4)
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
os.execv(sys.argv[2], sys.argv[2:])
"""
FLAGS = (
    # Its own sandbox needs privileges that ours takes away.
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    *("--user-data-dir=/tmp/profile", "--window-size=1280,800", "--hide-scrollbars", "--mute-audio", "--password-store=basic"),
    *("--no-first-run", "--no-default-browser-check", "--no-pings", "--disable-breakpad", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-domain-reliability"),
    *("--disable-client-side-phishing-detection", "--disable-default-apps", "--metrics-recording-only", "--disable-quic"),
    *("--dns-prefetch-disable", "--deny-permission-prompts", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp"),
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,DialMediaRouteProvider",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # Nothing listens there: each context has a proxy of its own, and requests outside a context must fail.
    *("--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>"),
)


class Chromium(Struct, frozen=True):
    """A running Chromium. `doors` are sockets that listen on its loopback."""

    protocol: DevTools
    doors: tuple[socket, ...]
    pid: int


def find_chromium() -> Path:
    """The Chromium of this machine. Raises `ToolUnavailable` with what to install."""
    for place in (*PROGRAMS, *[found for name in NAMES if (found := shutil.which(name)) is not None]):
        path = Path(place).resolve()
        if os.access(path, os.X_OK) and not _is_script(path):
            return path
    raise ToolUnavailable(MISSING)


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


@asynccontextmanager
async def run_chromium(wrap: Wrap, doors: int, program: Path) -> AsyncIterator[Chromium]:
    """Starts Chromium, and ends it with all its processes. Raises `ToolUnavailable` or `SandboxError` if it does not start."""
    argv = (sys.executable, "-I", "-S", "-c", START, str(doors), str(program), *FLAGS)
    async with wrap(Program(argv=argv, reads=_list_reads(program))) as line, AsyncExitStack() as stack:
        ours, theirs = socketpair()
        stack.callback(ours.close)
        with theirs:
            env = {"PATH": "/usr/bin:/bin", **read_library_path()}
            started = await start_program(line, stack, stdin=theirs.fileno(), stdout=DEVNULL, env=env)
        words = _LastWords()
        stack.push_async_callback(_stop, started, asyncio.create_task(words.listen(started.process)))
        stack.callback(ours.close)
        try:
            chromium = await _connect(ours, doors, started.process.pid, stack)
        except (ToolUnavailable, TimeoutError, OSError) as error:
            raise ToolUnavailable(f"Chromium does not start in the sandbox: {words.last or 'it says nothing'}") from error
        yield chromium


def _list_reads(program: Path) -> tuple[str, ...]:
    """What it needs of this machine beside the system."""
    return tuple([str(path) for path in (FONTS, program.parent) if path.exists() and not is_system(path)])


async def _connect(ours: socket, doors: int, pid: int, stack: AsyncExitStack) -> Chromium:
    """The browser, once it answers. Raises `TimeoutError`, `OSError` or `ToolUnavailable` if it does not."""
    ours.setblocking(False)
    with anyio.fail_after(START_SECONDS):
        await _wait_readable(ours)
    _, files, _, _ = recv_fds(ours, 1, doors)
    listening = tuple([stack.enter_context(socket(fileno=file)) for file in files])
    if len(listening) < doors:
        raise ToolUnavailable("it has no doors")
    protocol = DevTools(*await asyncio.open_unix_connection(sock=ours, limit=MOST_BYTES))
    stack.push_async_callback(_cancel, asyncio.create_task(protocol.read()))
    await protocol.send("Browser.getVersion", seconds=START_SECONDS)
    return Chromium(protocol, listening, pid)


async def _cancel(reading: "Task[None]") -> None:
    reading.cancel()
    await asyncio.wait([reading])


async def _wait_readable(end: socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)


async def _stop(started: StartedProgram, listening: "Task[None]") -> None:
    """Waits for a process whose socket is closed, then kills it; with it goes its whole namespace."""
    with anyio.CancelScope(shield=True):
        if not await started.wait(GRACE_SECONDS):
            started.signal_group(signal.SIGKILL)
            await started.process.wait()
        await asyncio.wait([listening])


class _LastWords:
    """Keeps the last line of standard error, to explain a failed start."""

    def __init__(self) -> None:
        self.last = ""

    async def listen(self, process: Process) -> None:
        assert process.stderr is not None
        async for chunk in process.stderr:
            self.last = chunk.decode(errors="replace").strip().rpartition("\n")[2][:300] or self.last
