"""Reads the text of documents in the sandbox: no network, another user, bounds on memory, time and output."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from mainspring.core.errors import CallerError, SandboxError
from mainspring.core.sandbox import MEGABYTE, OutputChunk, SandboxLimits, SandboxSpec
from mainspring.ports import Sandbox, SandboxLease
from mainspring.tools.work_turns import take_turn

FILE_BYTES: Final = 128 * MEGABYTE
"""The largest file that is read."""
SECONDS: Final = 120.0
LIMITS: Final = SandboxLimits(
    memory=1024 * MEGABYTE, processes=16, seconds=SECONDS, output=96 * MEGABYTE, file=FILE_BYTES, disk=FILE_BYTES + 8 * MEGABYTE
)
_INPUT: Final = "input.bin"
_SCRIPT: Final = "extract_text.py"
_SOURCES: Final = (Path(__file__).with_name(_SCRIPT), Path(__file__).parents[1] / "builtin" / "readable.py")


class UnreadableFile(CallerError):
    """A file that no text can be read from: `code` is `unsupported_file` or `invalid_file`."""

    def __init__(self, message: str, *, code: str = "invalid_file") -> None:
        super().__init__(message)
        self.code = code


class DocumentPage(Struct, frozen=True):
    """The text of a page, a sheet or a slide; one without a number is all of its file."""

    number: int | None
    label: str
    text: str


class _Outcome(Struct, frozen=True):
    code: str | None
    message: str = ""


class DocumentReader:
    """`open_sandbox` gives the sandbox of this machine, which is opened when it is first asked for."""

    def __init__(self, open_sandbox: Callable[[], Awaitable[Sandbox]]) -> None:
        self._open_sandbox = open_sandbox

    async def read(self, name: str, data: bytes, tenant: str = "") -> tuple[DocumentPage, ...]:
        """The pages of a file but blank ones, once it is the tenant's turn. Raises `UnreadableFile`, and `SandboxError` if no
        sandbox holds here."""
        if len(data) > FILE_BYTES:
            raise UnreadableFile(f"it has {len(data)} bytes, more than the {FILE_BYTES} that are read; send it in parts")
        sandbox = await self._open_sandbox()
        # In a task of its own, so that whoever is cancelled lets it end what it has started.
        reading = asyncio.get_running_loop().create_task(self._read(sandbox, name, data, tenant))
        try:
            return await asyncio.shield(reading)
        finally:
            reading.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([reading])

    async def _read(self, sandbox: Sandbox, name: str, data: bytes, tenant: str) -> tuple[DocumentPage, ...]:
        async with take_turn(tenant), sandbox.acquire(SandboxSpec(limits=LIMITS, name="documents")) as lease:
            for source in _SOURCES:
                await lease.put(source.name, await anyio.Path(source).read_bytes())
            await lease.put(_INPUT, data)
            said = await self._run(lease, name)
        # A page that has nothing but its number is read in no time, and there may be a million.
        return await anyio.to_thread.run_sync(_parse, said)

    async def _run(self, lease: SandboxLease, name: str) -> bytes:
        ending = Path(name).suffix[1:20].lower()
        command = ["python3", "-s", "-E", _SCRIPT, ending, _INPUT]
        said = bytearray()
        async with aclosing(lease.run(command, timeout=SECONDS)) as output:
            async for part in output:
                if isinstance(part, OutputChunk):
                    said += part.data if part.stream == "stdout" else b""
                elif part.reason == "lost":
                    raise SandboxError("the sandbox ended while it read a document")
                elif part.is_error:
                    why = {"timeout": "it takes too long", "memory": "it takes too much memory", "output_limit": "it is too long"}
                    raise UnreadableFile(f"the file cannot be read: {why.get(part.reason, 'its reader crashed')}")
        return bytes(said)


def _parse(said: bytes) -> tuple[DocumentPage, ...]:
    lines = said.splitlines()
    try:
        outcome = msgspec.json.decode(lines[-1], type=_Outcome)
        if outcome.code is None:
            found = [msgspec.json.decode(line, type=tuple[int | None, str, str]) for line in lines[:-1]]
            return tuple([DocumentPage(*page) for page in found])
    except (msgspec.DecodeError, IndexError):
        raise UnreadableFile("the file cannot be read: its reader crashed") from None
    raise UnreadableFile(outcome.message, code=outcome.code)
