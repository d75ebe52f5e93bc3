"""An MCP server that is a process of this machine: a message is a line, on its standard input and output.

The process leads a group of its own, and the whole group is ended with the connection. It is given the environment of its
description and no more of ours than a program needs to start. When it ends by itself, the session is lost with its last words.
"""

import os
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from logging import getLogger
from subprocess import PIPE

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from mainspring.errors import ToolUnavailable
from mainspring.tools.mcp.exchange import MOST_BYTES, Lost, shortened
from mainspring.tools.mcp.servers import ServerSpec

log = getLogger(__name__)

Wrap = Callable[[Sequence[str]], Sequence[str]]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR")
GRACE_SECONDS = 1.0
LAST_WORDS = 2_000

_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@asynccontextmanager
async def process_streams(spec: ServerSpec, wrap: Wrap | None) -> AsyncGenerator[Streams, None]:
    """Starts the server and ends it. Raises `Lost` if it ends by itself, `ToolUnavailable` if it cannot start or is too loud."""
    argv = [spec.command, *spec.args]
    if spec.sandboxed:
        if wrap is None:
            raise ToolUnavailable(f"MCP server `{spec.label}` is to run in a sandbox, and there is none")
        argv = list(wrap(argv))
    process = await _started(spec, argv)
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    server = _Server(spec.label, process)
    try:
        with to_session, incoming, outgoing, from_session:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.read, to_session)
                tasks.start_soon(server.write, from_session)
                tasks.start_soon(server.listen)
                yield incoming, outgoing
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)


def environment(own: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(own)


class _Server:
    """The three pipes of a running server, each with the task that serves it."""

    def __init__(self, label: str, process: Process) -> None:
        self._label = label
        self._process = process
        self._last_words = b""
        self._is_chatty = False

    async def read(self, session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        rest = bytearray()
        assert self._process.stdout is not None
        with suppress(*_GONE):
            async for chunk in self._process.stdout:
                rest += chunk
                if b"\n" in chunk:
                    *lines, last = rest.split(b"\n")
                    rest = bytearray(last)
                    for message in [found for line in lines if (found := self._message(line)) is not None]:
                        await session.send(SessionMessage(message))
                if len(rest) > MOST_BYTES:
                    size = f"{MOST_BYTES >> 20} MiB"
                    raise ToolUnavailable(
                        f"MCP server `{self._label}` said more than {size} at once, and was stopped; ask it for less"
                    )
        raise Lost(await self._end())

    async def write(self, session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        # A server that does not listen any more is about to end; `read` tells of it.
        with suppress(*_GONE):
            async for item in session:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._process.stdin.send(line.encode() + b"\n")

    async def listen(self) -> None:
        assert self._process.stderr is not None
        with suppress(*_GONE):
            async for chunk in self._process.stderr:
                self._last_words = (self._last_words + chunk)[-LAST_WORDS:]

    def _message(self, line: bytearray) -> JSONRPCMessage | None:
        """None for what is no message: many a server prints its greetings where its messages belong."""
        if not line.strip():
            return None
        try:
            return jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if not self._is_chatty:
                self._is_chatty = True
                log.warning(
                    "MCP server %s writes lines that are no messages, such as %s", self._label, shortened(repr(line), 100)
                )
            return None

    async def _end(self) -> str:
        with anyio.move_on_after(GRACE_SECONDS):
            await self._process.wait()
        status = self._process.returncode
        how = "it closed its output" if status is None else f"it exited with status {status}"
        words = shortened(self._last_words.decode(errors="replace"))
        return f"{how}; its last words: {words}" if words else f"{how} without a word"


async def _started(spec: ServerSpec, argv: list[str]) -> Process:
    try:
        return await anyio.open_process(
            argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(spec.env), cwd=spec.cwd, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise ToolUnavailable(f"MCP server `{spec.label}` cannot be started: {error}; is `{argv[0]}` installed?") from error


async def _stop(process: Process) -> None:
    """Ends the process and all it has started: asked by the end of its input, then told, then forced."""
    assert process.stdin is not None
    with suppress(*_GONE), anyio.move_on_after(GRACE_SECONDS):
        await process.stdin.aclose()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            _signal_group(process, number)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
            break
    # It may have left children behind, which may even hold its pipes open.
    _signal_group(process, signal.SIGKILL)
    with anyio.move_on_after(GRACE_SECONDS):
        await process.aclose()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
