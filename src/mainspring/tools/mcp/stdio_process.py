"""An MCP server that is a process of this machine: a message is a line, on its standard input and output.

The process runs in the sandbox unless its spec says otherwise, and ends with the connection or the engine, with all it started.
It gets the environment of its spec and of ours only what a program needs to start. When it exits, the session is lost, and the
error quotes the end of its standard error.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from logging import getLogger
from subprocess import PIPE

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream

from mainspring.core.errors import SandboxError, ToolUnavailable
from mainspring.core.text import shorten_line
from mainspring.tools.mcp.exchange import MOST_BYTES, SessionLost, TooMuchSaid
from mainspring.tools.mcp.json_rpc import Hear, RequestRefused, StreamBudget
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.shared_link import SharedLink
from mainspring.tools.sandbox.grants import Program, Wrap
from mainspring.tools.sandbox.wrap import HAS_LAUNCHER, StartedProgram, build_bare_command, start_program

log = getLogger(__name__)

INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
GRACE_SECONDS = 1.0
LAST_WORDS = 2_000
PAUSE_SECONDS = 1.0

_COMPLAINT = re.compile(r"error|exception|fatal|panic|cannot|not found", re.IGNORECASE)
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@asynccontextmanager
async def open_process_link(spec: ServerSpec, wrap: Wrap | None, hear: Hear) -> AsyncGenerator[SharedLink, None]:
    """Starts the server and ends it. Raises `SessionLost` if it ends by itself, `ToolUnavailable` if it cannot start."""
    async with AsyncExitStack() as stack:
        process = await _start(spec, wrap, stack)
        # Without a buffer: who writes to a server that does not read must wait.
        outgoing, to_write = anyio.create_memory_object_stream[bytes](0)
        server = _Server(spec.label, process)

        async def send(message: bytes) -> None:
            try:
                await outgoing.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise SessionLost("it does not listen any more") from None

        with outgoing, to_write:
            async with anyio.create_task_group() as tasks:
                link = SharedLink(send, hear, tasks, server.budget)
                try:
                    tasks.start_soon(server.read, link)
                    tasks.start_soon(server.write, to_write)
                    tasks.start_soon(server.listen)
                    yield link
                    tasks.cancel_scope.cancel()
                finally:
                    link.fail("the session was closed")


def build_environment(own: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(own)


class _Server:
    """The pipes of a running server, with the coroutines that read and write them."""

    def __init__(self, label: str, process: Process) -> None:
        self._label = label
        self._process = process
        self.budget = StreamBudget()
        self._last_words = b""
        self._stderr_closed = anyio.Event()
        self._is_chatty = False

    async def read(self, link: SharedLink) -> None:
        rest = bytearray()
        assert self._process.stdout is not None
        with suppress(*_GONE):
            async for chunk in self._process.stdout:
                self._charge(chunk)
                rest += chunk
                if b"\n" in chunk:
                    *lines, last = rest.split(b"\n")
                    rest = bytearray(last)
                    for line in lines:
                        await self._take(bytes(line), link)
                    await asyncio.sleep(0)  # it may have more to say at once
                if len(rest) > MOST_BYTES:
                    size = f"{MOST_BYTES >> 20} MiB"
                    raise ToolUnavailable(
                        f"MCP server `{self._label}` said more than {size} at once, and was stopped; ask it for less"
                    )
        reason = await self._describe_end()
        link.fail(reason)
        raise SessionLost(reason)

    def _charge(self, chunk: bytes) -> None:
        try:
            self.budget.charge(chunk)
        except RequestRefused as error:
            raise TooMuchSaid(str(error)) from None

    async def write(self, messages: MemoryObjectReceiveStream[bytes]) -> None:
        assert self._process.stdin is not None
        # A server that does not listen any more is about to end; `read` tells of it.
        with suppress(*_GONE):
            async for message in messages:
                await self._process.stdin.send(message + b"\n")

    async def listen(self) -> None:
        """Keeps its last words. One that has more of them than it may waits with the next."""
        assert self._process.stderr is not None
        budget = StreamBudget()
        with suppress(*_GONE):
            async for chunk in self._process.stderr:
                self._last_words = (self._last_words + chunk)[-LAST_WORDS:]
                try:
                    budget.charge(chunk)
                except RequestRefused:
                    await asyncio.sleep(PAUSE_SECONDS)
        self._stderr_closed.set()

    async def _take(self, line: bytes, link: SharedLink) -> None:
        """Leaves out what is no message: many a server prints its greetings where its messages belong."""
        if not line.strip():
            return
        try:
            await link.receive(line)
        except RequestRefused:
            if not self._is_chatty:
                self._is_chatty = True
                log.warning(
                    "MCP server %s writes lines that are no messages, such as %s", self._label, shorten_line(repr(line), 100)
                )

    async def _describe_end(self) -> str:
        with anyio.move_on_after(GRACE_SECONDS):
            await self._process.wait()
            await self._stderr_closed.wait()
        status = self._process.returncode
        how = "it closed its output" if status is None else f"it exited with status {status}"
        words = shorten_line(_find_complaint(self._last_words.decode(errors="replace")))
        return f"{how}; its last words: {words}" if words else f"{how} without a word"


def _find_complaint(words: str) -> str:
    """The line to show of what a program said last: the last one that speaks of an error, else the last."""
    lines = [line for line in words.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _COMPLAINT.search(line)), lines[-1] if lines else "")


async def _start(spec: ServerSpec, wrap: Wrap | None, stack: AsyncExitStack) -> Process:
    """The running server, which is ended with the stack, and then what held it."""
    program = _build_program(spec)
    try:
        argv = await _enter(stack, _require(wrap)(program)) if spec.sandboxed else build_bare_command(program)
    except SandboxError as error:
        raise ToolUnavailable(f"MCP server `{spec.label}` cannot start in the sandbox: {error.message}; {spec.advice}") from error
    try:
        started = await start_program(
            argv if HAS_LAUNCHER else program.argv, stack, stdin=PIPE, stdout=PIPE, env=build_environment(spec.env), cwd=spec.cwd
        )
    except (OSError, ValueError) as error:
        raise ToolUnavailable(f"MCP server `{spec.label}` cannot be started: {error}") from error
    stack.push_async_callback(_stop, started)
    return started.process


async def _enter(stack: AsyncExitStack, held: AbstractAsyncContextManager[Sequence[str]]) -> Sequence[str]:
    """Enters the context so that it is left even on cancel: what it made must be removed."""
    argv = await held.__aenter__()

    async def leave() -> None:
        with anyio.CancelScope(shield=True):
            await held.__aexit__(None, None, None)

    stack.push_async_callback(leave)
    return argv


def _require(wrap: Wrap | None) -> Wrap:
    if wrap is None:
        raise SandboxError("this engine has none; give it a `BuiltinTools(wraps=True)`, and its `wrap` to `McpTools`")
    return wrap


def _build_program(spec: ServerSpec) -> Program:
    """What is to be started, found where its own `PATH` or ours says. Raises `ToolUnavailable`."""
    given = os.path.join(spec.cwd or os.getcwd(), spec.command) if os.sep in spec.command else spec.command
    found = shutil.which(given, path=build_environment(spec.env).get("PATH"))
    if found is None:
        raise ToolUnavailable(f"MCP server `{spec.label}` cannot be started: is `{spec.command}` installed?")
    return Program(
        argv=(os.path.abspath(found), *spec.args),
        env=spec.env,
        cwd=None if spec.cwd is None else os.path.abspath(spec.cwd),
        network=spec.network,
        folders=spec.folders,
        reads=spec.reads,
    )


async def _stop(started: StartedProgram) -> None:
    """Ends the process and all it has started: closes its input, then terminates, then kills it."""
    process = started.process
    with anyio.CancelScope(shield=True):
        assert process.stdin is not None
        with suppress(*_GONE), anyio.move_on_after(GRACE_SECONDS):
            await process.stdin.aclose()
        if not await started.wait(GRACE_SECONDS):
            started.signal_group(signal.SIGTERM)
            if not await started.wait(GRACE_SECONDS):
                started.lifeline.close()
                await started.wait(GRACE_SECONDS)
        # A program in a namespace does not listen to its lifeline.
        started.signal_group(signal.SIGKILL)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.aclose()
