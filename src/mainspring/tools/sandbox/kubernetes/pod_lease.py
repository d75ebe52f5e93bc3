"""A lease in a pod: runs, cells and files, each through a connection to `pod_agent` inside of it.

A connection serves one request at a time and is kept for the next. What happens in the pod is not trusted: its answers are
bounded here, and time and output are measured here. Closing a connection ends what runs on it.
"""

import asyncio
import json
import marshal
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from mainspring.core.errors import InvalidRequest, SandboxError
from mainspring.core.items import Json
from mainspring.core.sandbox import (
    ExitReason,
    Language,
    OutputChunk,
    ProgramExit,
    ProgramResult,
    SandboxLimits,
    WorkspaceFile,
    WorkspaceListing,
)
from mainspring.tools.safe_read import clean_path, explain_errors
from mainspring.tools.sandbox.backend import WORKER, build_process_limits
from mainspring.tools.sandbox.jail import WorkerExit, WorkerOrder, encode_order, parse_answer, read_exit
from mainspring.tools.sandbox.lease import WaitingLease, build_order, gather_output, list_changes
from mainspring.tools.sandbox.workspace_files import DEEPEST, PLACE

AGENT: Final = Path(__file__).with_name("pod_agent.py").read_bytes()
# Its text comes by standard input: a URL, which carries the command, is not to be long.
BOOT: Final = (
    "import os\ndef read(n):\n d=b''\n while len(d)<n:\n  m=os.read(0,n-len(d))\n  if not m:os._exit(1)\n  d+=m\n return d\n"
    "exec(compile(read(int(read(8))),'<agent>','exec'),{'__name__':'__main__'})"
)
COMMAND: Final = ("python3", "-I", "-c", BOOT)
PIECE: Final = 1 << 15
SLACK: Final = 1 << 20
FILE_SECONDS: Final = 60.0
LONGEST_LIST: Final = 64 << 20
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
Kind = Literal["o", "e", "x"]


class Held(Struct):
    """What a lease has in the cluster."""

    name: str
    is_claim: bool
    holder: str
    """Written on it, so that nobody takes another's of the same name for its own."""
    pod: str = ""
    container: str = ""
    languages: dict[Language, str] = {}
    is_lost: bool = False
    removal: asyncio.Task[None] | None = None


class PodConnection:
    """A connection to the agent. `ask` may be called again once its answer was read to the end."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._heard = bytearray()
        self._said = bytearray()
        self.is_free, self.is_closed = True, False

    async def start(self) -> None:
        await self._send(b"%08d" % len(AGENT) + AGENT)

    async def ask(self, request: Json, most: int) -> AsyncGenerator[tuple[Kind, bytes], None]:
        """The answer piece by piece; the last one is an `x`. Raises `SandboxError` if the connection ends before, or if a piece
        has more than so many bytes."""
        self.is_free = False
        data = marshal.dumps(request, 2)
        sending = asyncio.get_running_loop().create_task(self._send(struct.pack(">I", len(data)) + data))
        try:
            while True:
                kind, piece = await self._receive(most)
                if kind == "x":
                    self.is_free = sending.done()
                yield kind, piece
                if kind == "x":
                    return
        except ConnectionClosed as error:
            said = self._said.decode(errors="replace").strip()[-500:] or str(error)
            raise SandboxError(f"the connection to the pod ended: {said}; an image for pods needs `python3`") from error
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await sending

    async def close(self) -> None:
        self.is_closed = True
        await self._socket.close()

    async def _send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            await self._socket.send(bytes([STDIN]) + data[start : start + PIECE])

    async def _receive(self, most: int) -> tuple[Kind, bytes]:
        while True:
            if len(self._heard) >= 4:
                length = struct.unpack_from(">I", self._heard)[0]
                if not 1 <= length <= most + SLACK:
                    raise SandboxError("the pod sent what is no answer")
                if len(self._heard) >= 4 + length:
                    message = bytes(self._heard[4 : 4 + length])
                    del self._heard[: 4 + length]
                    if (kind := chr(message[0])) not in get_args(Kind):
                        raise SandboxError("the pod sent what is no answer")
                    return cast(Kind, kind), message[1:]
            message = await self._socket.recv(decode=False)
            if message[:1] == bytes([STDOUT]):
                self._heard += message[1:]
            elif message[:1] in (bytes([STDERR]), bytes([ERROR])):
                self._said = (self._said + message[1:])[-2000:]


Connect = Callable[[Held], Awaitable[PodConnection]]


class PodLease(WaitingLease):
    """See `ports.SandboxLease`. `connect` opens a connection, `remove` returns when the pod is gone."""

    def __init__(self, held: Held, limits: SandboxLimits, connect: Connect, remove: Callable[[Held], Awaitable[None]]) -> None:
        self._held, self._limits = held, limits
        self._connect, self._remove = connect, remove
        self._free: list[PodConnection] = []

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PodConnection]:
        """A connection that nobody else uses meanwhile. It is closed unless it is free again."""
        connection = self._free.pop() if self._free else await self._connect(self._held)
        try:
            yield connection
        finally:
            if connection.is_free and self._held.removal is None:
                self._free.append(connection)
            else:
                await connection.close()

    async def run(
        self,
        program: str | Sequence[str],
        *,
        language: Language = "python",
        timeout: float | None = None,  # noqa: ASYNC109 - it ends the program, not the awaiting task
        stdin: bytes = b"",
    ) -> AsyncGenerator[OutputChunk | ProgramExit, None]:
        order = build_order(self._build_limits(language), self._held.languages, program, language)
        async with self.borrow() as connection, aclosing(self.follow(connection, order, 1, stdin, timeout)) as output:
            async for part in output:
                yield part.exit if isinstance(part, WorkerExit) else part

    @asynccontextmanager
    async def session(self) -> AsyncIterator["PodSession"]:
        session = PodSession(self)
        try:
            yield session
        finally:
            await session.end()

    async def put(self, path: str, data: bytes) -> WorkspaceFile:
        return await self._put(path, data, is_executable=False)

    async def put_all(self, files: Mapping[str, bytes], listing: WorkspaceListing) -> None:
        executable = {entry.path for entry in listing.entries if entry.is_executable}
        for path, data in files.items():
            await self._put(path, data, is_executable=path in executable)
        folders = [clean_path(path, PLACE) for path in listing.folders]
        links = [(clean_path(path, PLACE), target) for path, target in listing.links]
        if folders or links:
            await self._ask(".", do="make", folders=folders, links=links)

    async def _put(self, path: str, data: bytes, *, is_executable: bool) -> WorkspaceFile:
        limits, name = self._limits, clean_path(path, PLACE)
        if len(data) > limits.file:
            raise InvalidRequest(f"`{path}` has {len(data)} bytes, more than the {limits.file} a file may have")
        if path.endswith("/") or name.count("/") > DEEPEST:
            raise InvalidRequest(f"`{path:.200}` cannot be written: name a file, in at most {DEEPEST} folders")
        done, _ = await self._ask(
            path, do="put", path=name, data=data, disk=limits.disk, entries=limits.entries, executable=is_executable
        )
        if "full" in done:
            count, size = done["full"]
            raise InvalidRequest(f"`{path:.200}` does not fit: {count} files with {size} bytes are there; remove some first")
        return _read_entry(done["entry"])

    async def remove(self, path: str) -> None:
        await self._ask(path, do="remove", path=clean_path(path, PLACE))

    async def get(self, path: str) -> bytes:
        most = self._limits.file
        done, data = await self._ask(path, do="get", path=clean_path(path, PLACE), most=most)
        if len(data) > most or (not data and done["size"]):
            raise InvalidRequest(f"`{path}` has {done['size']} bytes, more than the {most} that can be read; split it")
        return data

    async def list(self) -> WorkspaceListing:
        done, _ = await self._ask(".", do="list", most=self._limits.entries)
        entries = tuple([_read_entry(entry) for entry in done["entries"]])
        with _check_answer():
            folders, links = msgspec.convert(
                (done["folders"], done["links"]), tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
            )
        return WorkspaceListing(entries, bool(done["whole"]), folders, links)

    async def release(self) -> None:
        await self.close()
        await self._remove(self._held)

    async def close(self) -> None:
        """Closes what is open and not in use."""
        while self._free:
            await self._free.pop().close()

    async def greet(self, *, network: bool) -> Json:
        """What the agent finds out about its pod."""
        return (await self._ask(".", do="greet", network=network))[0]

    async def _ask(self, shown: str, /, **request: object) -> tuple[Json, bytes]:
        """The end of an answer, and what came before. Raises `InvalidRequest` or `NotFound` for what the path is."""
        data, done = bytearray(), b"{}"
        async with self.borrow() as connection:
            try:
                async with asyncio.timeout(FILE_SECONDS), aclosing(connection.ask(request, LONGEST_LIST)) as answer:
                    async for kind, piece in answer:
                        if kind == "x":
                            done = piece
                        elif len(data) <= self._limits.file:
                            data += piece
            except TimeoutError as error:
                raise SandboxError("the pod did not answer in time") from error
        with _check_answer(), explain_errors(shown, PLACE):
            found: Json = json.loads(done)
            if "errno" in found:
                raise OSError(int(found["errno"]), str(found["said"]))
            return found, bytes(data)

    async def follow(
        self,
        connection: PodConnection,
        order: WorkerOrder,
        number: int,
        stdin: bytes,
        seconds: float | None,
        *,
        keep: bool = False,
    ) -> AsyncGenerator[OutputChunk | WorkerExit, None]:
        """Runs one order, the worker's `number`-th, within the limits: its output, then how it ended."""
        limits, left = self._limits, self._limits.output
        request: Json = {"do": "run", "text": WORKER, "order": encode_order(order), "stdin": stdin, "keep": keep}
        request |= {"disk": limits.disk, "entries": limits.entries}
        deadline = asyncio.get_running_loop().time() + (limits.seconds if seconds is None else seconds)
        async with aclosing(connection.ask(request, LONGEST_LIST)) as answer:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        kind, data = await anext(answer)
                except TimeoutError:
                    yield WorkerExit(ProgramExit(None, reason="timeout"))
                    return
                except SandboxError:
                    is_ours = connection.is_closed or self._held.removal is not None
                    killed = ProgramExit(137, 9, "signal") if is_ours else ProgramExit(None, reason="lost")
                    yield WorkerExit(killed)
                    return
                if kind == "x":
                    end = _read_end(data)
                    if keep and end.status is not None:
                        connection.is_free = False  # Its interpreter has ended.
                    yield _tell_exit(end, number)
                    return
                if piece := data[:left]:
                    yield OutputChunk("stdout" if kind == "o" else "stderr", piece)
                left -= len(data)
                if left < 0:
                    yield WorkerExit(ProgramExit(None, reason="output_limit"))
                    return

    def _build_limits(self, language: Language) -> dict[str, int]:
        return build_process_limits(self._limits, language, has_totals=True, others=None)


class PodSession:
    """See `ports.PythonSession`. It has a connection of its own, on which its interpreter lives."""

    def __init__(self, lease: PodLease) -> None:
        self._lease = lease
        self._connection: PodConnection | None = None
        self._count = 0

    async def run_cell(self, code: str, *, timeout: float | None = None) -> ProgramResult:  # noqa: ASYNC109 - likewise
        lease, before = self._lease, await self._lease.list()
        is_over = False
        try:
            connection = self._connection = self._connection or await lease._connect(lease._held)
            self._count += 1
            order = WorkerOrder(limits=lease._build_limits("python"), cell=code)
            result = await gather_output(lease.follow(connection, order, self._count, b"", timeout, keep=True))
            is_over = result.exit.reason == "exited" and result.exit.code is not None and connection.is_free
        finally:
            if not is_over:
                await self.end()
        return replace(result, files=list_changes(before, await lease.list()), is_state_lost=not is_over)

    async def end(self) -> None:
        connection, self._connection, self._count = self._connection, None, 0
        if connection is not None:
            await connection.close()


class _End(Struct):
    answer: str | None = None
    status: int | None = None
    reason: ExitReason | None = None


class _check_answer:
    """Turns what is no answer of ours into a `SandboxError`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | KeyError | TypeError):
            raise SandboxError("the pod sent what is no answer") from error


def _read_entry(entry: object) -> WorkspaceFile:
    with _check_answer():
        return WorkspaceFile(*msgspec.convert(entry, tuple[str, int, int, bool]))


def _read_end(data: bytes) -> _End:
    with _check_answer():
        return msgspec.convert(json.loads(data), _End)


def _tell_exit(end: _End, number: int) -> WorkerExit:
    with _check_answer():
        answer = None if end.answer is None else parse_answer(bytes.fromhex(end.answer), number)
    found = read_exit(answer, end.status)
    if end.reason == "disk_limit":
        return WorkerExit(ProgramExit(None, reason="disk_limit"))
    if end.reason is not None and found.exit.is_error:
        return replace(found, exit=replace(found.exit, reason=end.reason))
    return found
