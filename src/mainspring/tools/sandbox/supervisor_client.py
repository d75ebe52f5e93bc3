"""The engine's client of the supervisor: starts processes through it, and learns when they end."""

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec
from msgspec import Struct

from mainspring.core.errors import SandboxError

SUPERVISOR = Path(__file__).with_name("supervisor.py")
PACKET = 1 << 16


class Confine(Struct, frozen=True):
    """What a process without namespaces may still touch; everything else is refused by Landlock and the filter."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    network: bool
    filter: str


class Launch(Struct, frozen=True, kw_only=True):
    """What is to be started. `limits` hold for each of its processes. With `tree`, all it starts is ended with it by a reaper,
    for want of a namespace."""

    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str = "/"
    uid: int | None = None
    gid: int | None = None
    joins: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    tree: bool = False
    confine: Confine | None = None


class SupervisedProcess:
    """One started process. `ended` becomes its exit status, or None if the supervisor was lost and took it with it."""

    def __init__(self, owner: "SupervisorClient", number: int) -> None:
        self._owner = owner
        self._number = number
        self.pid: int | None = None
        """Known soon after the start. While `ended` is not done it is nobody else's."""
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def pause(self, is_paused: bool) -> None:
        """Stops it and all it started by signals, or lets them go on."""
        if not self.ended.done():
            self._owner.send({"do": "pause", "id": self._number, "is_paused": is_paused})

    def end(self) -> None:
        """Kills it and all it started. Does not wait: `ended` tells."""
        if not self.ended.done():
            self._owner.send({"do": "end", "id": self._number})


class _Told(Struct):
    id: int = -1
    pid: int | None = None
    status: int = 0
    is_shown: bool | None = None


def read_library_path() -> dict[str, str]:
    """The one variable without which some interpreters do not start."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


class SupervisorClient:
    """The connection to one supervisor process, from `open` to `close`."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._supervisor: asyncio.subprocess.Process | None = None
        self._numbers = count()
        self._running: dict[int, SupervisedProcess] = {}
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._opened: asyncio.Future[bool] | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def supervisor_pid(self) -> int | None:
        return None if self._supervisor is None else self._supervisor.pid

    async def open(self, folder: Path, views: Sequence[tuple[str, str]], lock: int) -> bool:
        """Starts the supervisor, which removes `folder` in the end and holds a copy of `lock` until then. True if the views
        could be mounted."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = (sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()))
            self._supervisor = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=(theirs.fileno(), lock),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env=read_library_path(),
                cwd="/",
            )
        ours.setblocking(False)
        self._socket = ours
        self._opened = loop.create_future()
        loop.add_reader(ours.fileno(), self._hear)
        self.send({"do": "open", "folder": str(folder), "views": views})
        return await self._opened

    async def close(self) -> None:
        """Ends every process; returns when the supervisor has cleared up and gone."""
        self._hang_up()
        if self._supervisor is not None:
            await self._supervisor.wait()
            self._supervisor = None

    def start(self, launch: Launch, files: Sequence[int]) -> SupervisedProcess:
        """Starts a process with these files as 0, 1, 2, ...; closes them. Raises `SandboxError` if the supervisor is gone."""
        if self._socket is None:
            for file in files:
                os.close(file)
            raise SandboxError("the sandbox is closed, or its supervisor process was ended; try again")
        process = SupervisedProcess(self, next(self._numbers))
        self._running[process._number] = process
        self.send({"do": "start", "id": process._number, **msgspec.to_builtins(launch)}, tuple(files))
        return process

    def remember(self, groups: Sequence[Path]) -> None:
        """Tells the supervisor of control groups that are to be removed in the end."""
        self.send({"do": "remember", "groups": [str(group) for group in groups]})

    def forget(self, groups: Sequence[Path]) -> None:
        """Tells the supervisor that these control groups are gone."""
        self.send({"do": "forget", "groups": [str(group) for group in groups]})

    def send(self, message: dict[str, object], files: tuple[int, ...] = ()) -> None:
        if self._socket is not None:
            self._waiting.append((msgspec.json.encode(message), files))
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        while self._waiting:
            packet, files = self._waiting[0]
            try:
                socket.send_fds(self._socket, [packet], files)
            except BlockingIOError:
                loop.add_writer(self._socket.fileno(), self._flush)
                return
            except OSError:
                self._hang_up()
                return
            self._waiting.popleft()
            for file in files:
                os.close(file)
        loop.remove_writer(self._socket.fileno())

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            packet = self._socket.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._hang_up()
            return
        told = msgspec.json.decode(packet, type=_Told)
        if told.is_shown is not None and self._opened is not None:
            self._opened.set_result(told.is_shown)
        elif told.pid is not None:
            if told.id in self._running:
                self._running[told.id].pid = told.pid
        elif process := self._running.pop(told.id, None):
            process.ended.set_result(told.status)

    def _hang_up(self) -> None:
        """Closes the line, which ends the supervisor and, through it, every process."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._socket = None
        for _, files in self._waiting:
            for file in files:
                os.close(file)
        self._waiting.clear()
        for process in self._running.values():
            process.ended.set_result(None)
        self._running.clear()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(
                SandboxError("the sandbox's supervisor process ended as it started; see its message above")
            )
