"""One worker in a sandbox and the pipes to it.

A run ends when the worker says so, not when its last process is gone: tearing down a namespace takes longer than most runs. The
output written before that is in the pipes by then and is read without waiting.
"""

import asyncio
import marshal
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing

import msgspec
from msgspec import Struct

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import ExitReason, OutputChunk, ProgramExit, Stream
from mainspring.tools.sandbox.supervisor_client import Launch, SupervisedProcess, SupervisorClient

PIECE = 1 << 16
LONGEST_ANSWER = 1 << 20
START_SECONDS = 20.0
NUMBERS = struct.Struct(">iii")


class WorkerAnswer(Struct):
    """The worker's answer. The code it runs may forge it, which harms only itself. Without a code it was malformed."""

    code: int | None = None
    signal: int | None = None
    value: str | None = None


class WorkerOrder(Struct, omit_defaults=True):
    """A request to the worker: exactly one of command, code and cell."""

    limits: dict[str, int]
    argv: tuple[str, ...] | None = None
    code: str | None = None
    cell: str | None = None


class WorkerExit(Struct, frozen=True):
    exit: ProgramExit
    value: str | None = None


class Jail:
    """A started worker. It is single-use but for cells; `end` is to be called in any case."""

    def __init__(self, processes: SupervisorClient, launch: Launch, extra: bytes = b"") -> None:
        """Starts the worker; `extra` is what it, or its launcher, can read as file 4. Raises `SandboxError`."""
        lines = _open_pipes(extra)
        self._stdin, self._stdout, self._stderr, self._control = lines.stdin, lines.stdout, lines.stderr, lines.control
        self._heard = bytearray()
        self._unsent: dict[int, memoryview] = {}
        self._asked = 0
        self._silent: set[int] = set()
        self._is_open = True
        self._is_ready = self._is_running = self._is_unwanted = False
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] | None = None
        try:
            self.process: SupervisedProcess = processes.start(launch, lines.theirs)
        except SandboxError:
            self._close()
            raise
        self.process.ended.add_done_callback(self._wake)

    @property
    def is_alive(self) -> bool:
        return self._is_open and not self.process.ended.done()

    def end(self) -> None:
        """Kills everything in it and closes the pipes. Does not wait; `process.ended` tells when it is gone."""
        self.process.end()
        self._is_unwanted = True
        if not self._is_running:
            self._close()

    async def wait_ready(self) -> None:
        """Waits until the worker is ready. Raises `SandboxError` with its output if it does not start."""
        if self._is_ready:
            return
        deadline = self._loop.time() + START_SECONDS
        while self._read_answer() is None:
            await self._wait_for_change(deadline)
            if self.process.ended.done() or self._loop.time() >= deadline:
                said = b"".join(chunk.data for chunk in self._drain(PIECE)).decode(errors="replace").strip()
                raise SandboxError(f"the sandbox did not start: {said or 'it said nothing'}; `mainspring doctor` tells more")
        self._is_ready = True

    async def run(
        self, order: WorkerOrder, *, stdin: bytes, deadline: float, most: int, spoiled: Callable[[], ExitReason | None]
    ) -> AsyncGenerator[OutputChunk | WorkerExit, None]:
        """Output as it comes, then one `WorkerExit`. `most` bytes at most; `spoiled` may name another reason to stop.

        Stopping is left to the caller, who calls `end`: a cell that ended by itself must not end its interpreter.
        """
        self._unsent = {self._control.fileno(): memoryview(encode_order(order)), self._stdin: memoryview(stdin)}
        self._asked += 1
        self._is_running = True
        try:
            async with aclosing(self._follow(deadline, most, spoiled)) as output:
                async for part in output:
                    yield part
        finally:
            self._is_running = False
            if self._is_unwanted:
                self._close()

    async def _follow(
        self, deadline: float, most: int, spoiled: Callable[[], ExitReason | None]
    ) -> AsyncGenerator[OutputChunk | WorkerExit, None]:
        while True:
            self._feed()
            answer = self._read_answer()
            is_over = answer is not None or self.process.ended.done()
            # One byte more than permitted shows that there is more.
            chunks = self._drain(most + 1)
            for chunk in chunks:
                if piece := chunk.data[:most]:
                    yield OutputChunk(chunk.stream, piece)
                most -= len(chunk.data)
            if most < 0:
                yield WorkerExit(ProgramExit(None, reason="output_limit"))
                return
            if is_over:
                yield read_exit(answer, self.process.ended.result() if answer is None else None)
                return
            reason = spoiled() or ("timeout" if self._loop.time() >= deadline else None)
            if reason is not None:
                yield WorkerExit(ProgramExit(None, reason=reason))
                return
            # The state may have changed while the caller had the chunks, so check again before waiting.
            if not chunks:
                await self._wait_for_change(deadline)

    def wake(self) -> None:
        """Has a waiting `run` look again."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _wake(self, _: object) -> None:
        self.wake()

    def _feed(self) -> None:
        """Writes what the worker and the program accept now. Closes standard input after its last byte."""
        for file, data in list(self._unsent.items()):
            if file < 0 or self._write(file, data):
                del self._unsent[file]
                if file == self._stdin >= 0:
                    os.close(file)
                    self._stdin = -1

    def _write(self, file: int, data: memoryview) -> bool:
        try:
            while data:
                data = data[os.write(file, data[:PIECE]) :]
        except BlockingIOError:
            self._unsent[file] = data
            return False
        except (BrokenPipeError, ConnectionError):
            pass  # The reader has closed its end.
        return True

    def _read_answer(self) -> WorkerAnswer | None:
        """The next complete message of the worker, if there is one."""
        try:
            # At most one message: hostile code may never stop writing.
            while len(self._heard) <= LONGEST_ANSWER + 4:
                data = self._control.recv(PIECE)
                if not data:
                    self._silent.add(self._control.fileno())
                    break
                self._heard += data
        except BlockingIOError:
            pass
        except OSError:
            self._silent.add(self._control.fileno())
        if len(self._heard) < 4:
            return None
        length = struct.unpack_from(">I", self._heard)[0]
        if length > LONGEST_ANSWER:
            return WorkerAnswer()
        if len(self._heard) < 4 + length:
            return None
        message = bytes(self._heard[4 : 4 + length])
        del self._heard[: 4 + length]
        return parse_answer(message, self._asked)

    def _drain(self, most: int) -> list[OutputChunk]:
        """What is in the pipes, up to so many bytes."""
        chunks: list[OutputChunk] = []
        streams: tuple[tuple[Stream, int], ...] = (("stdout", self._stdout), ("stderr", self._stderr))
        for stream, file in streams:
            while most > 0:
                try:
                    data = os.read(file, min(most, PIECE))
                except BlockingIOError:
                    break
                if not data:
                    self._silent.add(file)
                    break
                chunks.append(OutputChunk(stream, data))
                most -= len(data)
        return chunks

    async def _wait_for_change(self, deadline: float) -> None:
        """Waits until there is something to read or to send, the process has ended, time is up, or `wake`."""
        self._woken = self._loop.create_future()
        readers = {self._control.fileno(), self._stdout, self._stderr} - self._silent
        writers = tuple(self._unsent)
        for file in readers:
            self._loop.add_reader(file, self.wake)
        for file in writers:
            self._loop.add_writer(file, self.wake)
        timer = self._loop.call_at(deadline, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            for file in readers:
                self._loop.remove_reader(file)
            for file in writers:
                self._loop.remove_writer(file)

    def _close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._control.close()
        for file in (self._stdin, self._stdout, self._stderr):
            if file >= 0:
                os.close(file)
        self._stdin = -1


def encode_order(order: WorkerOrder) -> bytes:
    # The worker's Python may be another version than ours, hence an old format that all of them read.
    data = marshal.dumps(msgspec.to_builtins(order), 2)
    return struct.pack(">I", len(data)) + data


def parse_answer(message: bytes, asked: int) -> WorkerAnswer:
    """An answer to another request is malformed, too: the code has forged it."""
    if len(message) < NUMBERS.size:
        return WorkerAnswer()
    number, code, signal = NUMBERS.unpack_from(message)
    if number != asked:
        return WorkerAnswer()
    return WorkerAnswer(code, signal or None, message[NUMBERS.size :].decode(errors="replace") or None)


def read_exit(answer: WorkerAnswer | None, status: int | None) -> WorkerExit:
    """How a run ended; `status` is the worker's own, None if nobody knows, and counts without an answer only."""
    if answer is not None and answer.code is None:
        return WorkerExit(ProgramExit(None, reason="lost"))
    if answer is not None:
        reason: ExitReason = "exited" if answer.signal is None else "signal"
        return WorkerExit(ProgramExit(answer.code, answer.signal, reason), answer.value)
    if status is None:
        return WorkerExit(ProgramExit(None, reason="lost"))
    return WorkerExit(ProgramExit(status, status - 128, "signal") if status > 128 else ProgramExit(status))


class _Pipes(Struct):
    """Both ends of the pipes to a worker: ours by name, its own in the order of their numbers."""

    stdin: int
    stdout: int
    stderr: int
    control: socket.socket
    theirs: list[int]


def _open_pipes(extra: bytes) -> _Pipes:
    with ExitStack() as undo:
        try:
            pipes = [os.pipe() for _ in range(3)]
            for file in (end for pipe in pipes for end in pipe):
                undo.callback(os.close, file)
            control, other = socket.socketpair()
            undo.callback(control.close)
            undo.callback(other.close)
            more = [_make_file(extra)] if extra else []
        except OSError as error:
            raise SandboxError(f"no files can be opened for a sandbox: {error}; raise the limit of open files") from error
        undo.pop_all()
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
    for file in (to_stdin, from_stdout, from_stderr):
        os.set_blocking(file, False)
    control.setblocking(False)
    return _Pipes(to_stdin, from_stdout, from_stderr, control, [stdin, stdout, stderr, other.detach(), *more])


def _make_file(data: bytes) -> int:
    """A file with this content, open at its beginning."""
    file = os.memfd_create("extra")
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file
