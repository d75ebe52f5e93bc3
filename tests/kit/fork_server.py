"""A process with everything imported, which forks a worker for each command that it is sent.

    python -m tests.kit.fork_server DESCRIPTOR

To start an interpreter and import Mainspring takes most of a second of a core, to fork one that has done both takes
milliseconds. What is forked is a process like any other, with its own pid, files, environment and end, and can be killed.

Each request is a byte on the socket DESCRIPTOR with four descriptors attached: a control socket and the three standard
streams. A JSON line on the control socket says what to run; the worker's pid and later its exit code come back there.
The server ends when nobody holds the other end of DESCRIPTOR any more. What a worker raises goes up into the interpreter's
own last lines, so that it is dealt with as everywhere.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from mainspring.app.engine import Engine
from mainspring.app.product_parts import find_installed_parts
from mainspring.app.server import server
from mainspring.providers.scripted import Scripted
from mainspring.storage.memory_runs import MemoryStore

PACKAGES = ("mainspring", "mainspring_tasks")
LIBRARIES = (
    "aiohttp", "anyio", "anyio._backends._asyncio", "anyio.streams.tls", "apsw", "hypothesis", "jinja2", "jsonschema_rs", "mcp",
    "pytest", "rich", "starlette", "typer", "typer._click.decorators", "uvicorn", "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop", "yaml",
)  # fmt: skip


class Order(NamedTuple):
    """What a worker is to do. `command` is that of an interpreter, without its path: `-m MODULE`, `-c CODE` or a file."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    is_session: bool


class _Replaced(BaseException):
    """A worker is about to replace itself by this interpreter with another command."""

    def __init__(self, order: Order) -> None:
        self.order = order


def main() -> None:
    _import_everything()
    _warm_up()
    assert threading.active_count() == 1, "a thread of the server would be missing in its workers"
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    while order is not None:
        try:
            _perform(order)
        except _Replaced as replaced:
            order = replaced.order
        except SystemExit as left:
            if left.code is None or isinstance(left.code, int):
                _leave(left.code or 0)
            raise
        else:
            _leave(0)


def _import_everything() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                # A module that cannot be imported here fails the command that needs it, and tells why.
                with contextlib.suppress(Exception):
                    importlib.import_module(module.name)


def _warm_up() -> None:
    """Does once what takes each command a while: looks for installed parts, and compiles the patterns of all routes."""
    find_installed_parts()
    server(Engine(Scripted(), store=MemoryStore()))


def _serve(requests: socket.socket) -> Order | None:
    """Forks for each request; returns an order in a worker, and nothing in the server, at its end."""
    workers: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(workers)
        if requests.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return None
        control = socket.socket(fileno=descriptors[0])
        with control.makefile("rb") as file:
            order = Order(*json.loads(file.readline()))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for target, descriptor in enumerate(descriptors[1:]):
                os.dup2(descriptor, target)
            for held in (requests, control, *workers.values()):
                held.close()
            for descriptor in (woken, wakes, *descriptors[1:]):
                os.close(descriptor)
            return order
        workers[pid] = control
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        _tell(control, pid)


def _reap(workers: dict[int, socket.socket]) -> None:
    while workers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with workers.pop(pid) as control:
            _tell(control, os.waitstatus_to_exitcode(status))


def _tell(control: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody may wait for this worker any more
        control.sendall(b"%d\n" % number)


def _perform(order: Order) -> None:
    """Becomes what a new interpreter would be, and does what the command says."""
    if order.is_session:
        os.setsid()
    os.execv = _replace  # type: ignore[assignment]
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    time.tzset()
    tempfile.tempdir = None
    warnings.resetwarnings()
    _open_streams(order.env)
    paths = order.env.get("PYTHONPATH", "").split(os.pathsep)
    if {*filter(None, paths)} - {*sys.path}:
        find_installed_parts.cache_clear()  # others may be installed there
    sys.path[:] = [*filter(None, paths), *[path for path in sys.path if path not in paths and path != os.getcwd()]]
    sys.path_importer_cache.clear()
    match order.command:
        case ["-m", module, *arguments]:
            sys.path.insert(0, order.cwd)
            sys.argv[:] = [module, *arguments]
            sys.modules.pop(module, None)  # or runpy would warn of it
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *arguments]:
            sys.path.insert(0, "")
            sys.argv[:] = ["-c", *arguments]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [file, *arguments]:
            sys.path.insert(0, os.path.dirname(file))
            sys.argv[:] = [file, *arguments]
            runpy.run_path(file, run_name="__main__")
        case []:
            raise ValueError("there is nothing to run")


def _leave(code: int) -> NoReturn:
    """Ends as an interpreter does, but for taking every module apart, which would copy most of the memory first."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _replace(path: str, arguments: Sequence[str]) -> NoReturn:
    """Instead of `os.execv`: what has been imported need not be imported again."""
    assert path == sys.executable, path
    command = [argument for argument in arguments[1:] if argument != "-P"]
    raise _Replaced(Order(command, os.getcwd(), dict(os.environ), is_session=False))


def _open_streams(env: dict[str, str]) -> None:
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        is_direct = name != "stdin" and bool(env.get("PYTHONUNBUFFERED"))
        buffer = open(descriptor, "rb" if name == "stdin" else "wb", 0 if is_direct else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            buffer,
            encoding,
            "backslashreplace" if name == "stderr" else errors or None,
            line_buffering=name == "stderr" or os.isatty(descriptor),
            write_through=is_direct,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main()
