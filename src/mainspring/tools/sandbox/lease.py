"""A lease on this machine: runs, cells and files of one slot."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.sandbox import (
    MEGABYTE,
    ExitReason,
    Language,
    OutputChunk,
    ProgramExit,
    ProgramResult,
    WorkspaceFile,
    WorkspaceListing,
)
from mainspring.ports import SandboxLease
from mainspring.tools.sandbox import workspace_files
from mainspring.tools.sandbox.backend import build_process_limits, find_languages
from mainspring.tools.sandbox.jail import Jail, WorkerExit, WorkerOrder
from mainspring.tools.sandbox.slot import Slot

# A command line's longest word is 128 KB on Linux.
LONGEST_CODE = 120_000
LOOK_EVERY = 0.5
# What may be written between two checks. In a workspace with more than that, nothing is started any more.
SURPLUS_BYTES, SURPLUS_ENTRIES = 256 * MEGABYTE, 10_000


class WaitingLease(SandboxLease):
    """A lease that can also wait for a program."""

    async def execute(
        self,
        program: str | Sequence[str],
        *,
        language: Language = "python",
        timeout: float | None = None,  # noqa: ASYNC109 - it ends the program, not the awaiting task
        stdin: bytes = b"",
    ) -> ProgramResult:
        """`run`, waited for to its end, with the files that it has changed."""
        before = await self.list()
        gathered = await gather_output(self.run(program, language=language, timeout=timeout, stdin=stdin))
        return replace(gathered, files=list_changes(before, await self.list()))


class LocalLease(WaitingLease):
    """See `ports.SandboxLease`. `remove` returns when whoever lent the slot out has removed it."""

    def __init__(self, slot: Slot, remove: Callable[[Slot], Coroutine[None, None, None]]) -> None:
        self._slot = slot
        self._remove = remove

    async def run(
        self,
        program: str | Sequence[str],
        *,
        language: Language = "python",
        timeout: float | None = None,  # noqa: ASYNC109 - likewise
        stdin: bytes = b"",
    ) -> AsyncGenerator[OutputChunk | ProgramExit, None]:
        known = find_languages(self._slot.backend.python)
        order = build_order(_build_limits(self._slot, language), known, program, language)
        await asyncio.to_thread(_check_room, self._slot)
        with self._slot.keep_awake():
            jail = await self._slot.get_jail()
            try:
                async with aclosing(run_order(self._slot, jail, order, stdin, timeout)) as output:
                    async for part in output:
                        yield part.exit if isinstance(part, WorkerExit) else part
            finally:
                jail.end()

    @asynccontextmanager
    async def session(self) -> AsyncIterator["LocalSession"]:
        session = LocalSession(self)
        try:
            yield session
        finally:
            session.end()

    async def put(self, path: str, data: bytes) -> WorkspaceFile:
        [entry] = await asyncio.to_thread(_put, self._slot, {path: data})
        return entry

    async def put_all(self, files: Mapping[str, bytes], listing: WorkspaceListing) -> None:
        executable = {entry.path for entry in listing.entries if entry.is_executable}
        if files:
            await asyncio.to_thread(_put, self._slot, files, executable)
        workspace, owner = self._slot.place.workspace, self._slot.place.owner
        await asyncio.to_thread(workspace_files.make_entries, workspace, listing.folders, listing.links, owner)

    async def remove(self, path: str) -> None:
        await asyncio.to_thread(workspace_files.remove, self._slot.place.workspace, path)

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(workspace_files.read, self._slot.place.workspace, path, self._slot.limits.file)

    async def list(self) -> WorkspaceListing:
        return await asyncio.to_thread(workspace_files.list_files, self._slot.place.workspace, self._slot.limits.entries)

    async def release(self) -> None:
        await self._remove(self._slot)


class LocalSession:
    """See `ports.PythonSession`."""

    def __init__(self, lease: LocalLease) -> None:
        self._lease = lease
        self._slot = lease._slot
        self._jail: Jail | None = None
        self._looking: asyncio.Task[None] | None = None

    async def run_cell(self, code: str, *, timeout: float | None = None) -> ProgramResult:  # noqa: ASYNC109 - likewise
        await asyncio.to_thread(_check_room, self._slot)
        before = await self._lease.list()
        self._look_away()
        is_over = False
        with self._slot.keep_awake():
            try:
                jail = self._jail = self._jail or await self._slot.get_jail()
                order = WorkerOrder(limits=_build_limits(self._slot, "python"), cell=code)
                result = await gather_output(run_order(self._slot, jail, order, b"", timeout))
                if jail.is_alive and await asyncio.to_thread(_is_over, self._slot, jail):
                    # It would keep the unlinked files while it is frozen.
                    result = replace(result, exit=ProgramExit(None, reason="disk_limit"))
                is_over = result.exit.reason == "exited" and jail.is_alive
            finally:
                if not is_over:
                    self.end()
        if self._jail is not None and not self._slot.is_firm:
            # Stopped by signals only, it can wake up again; it must not fill the disk then.
            self._looking = asyncio.get_running_loop().create_task(self._look(self._jail))
        return replace(result, files=list_changes(before, await self._lease.list()), is_state_lost=not is_over)

    async def _look(self, jail: Jail) -> None:
        await _Watch(self._slot, jail).look()
        jail.process.end()

    def _look_away(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def end(self) -> None:
        self._look_away()
        if self._jail is not None:
            self._jail.end()
            self._jail = None


class _Watch(Struct):
    """Polls disk usage during a run, and wakes the run when it exceeds the limit."""

    slot: Slot
    jail: Jail
    reason: ExitReason | None = None

    def get_reason(self) -> ExitReason | None:
        return self.reason

    async def look(self) -> None:
        while self.reason is None:
            await asyncio.sleep(LOOK_EVERY)
            if await asyncio.to_thread(_is_over, self.slot, self.jail):
                self.reason = "disk_limit"
                self.jail.wake()


async def run_order(
    slot: Slot, jail: Jail, order: WorkerOrder, stdin: bytes, seconds: float | None
) -> AsyncGenerator[OutputChunk | WorkerExit, None]:
    """Runs one order within the limits: its output, then how it ended."""
    loop = asyncio.get_running_loop()
    kills = slot.count_kills()
    watch = _Watch(slot, jail)
    looking = loop.create_task(watch.look())
    deadline = loop.time() + (slot.limits.seconds if seconds is None else seconds)
    run = jail.run(order, stdin=stdin, deadline=deadline, most=slot.limits.output, spoiled=watch.get_reason)
    try:
        async with aclosing(run) as output:
            async for part in output:
                if isinstance(part, WorkerExit) and part.exit.is_error and slot.count_kills() > kills:
                    part = replace(part, exit=replace(part.exit, reason="memory"))
                yield part
    finally:
        looking.cancel()


async def gather_output(
    output: AsyncGenerator[OutputChunk | WorkerExit, None] | AsyncGenerator[OutputChunk | ProgramExit, None],
) -> ProgramResult:
    """A stream of output as one result."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    streams = {"stdout": bytearray(), "stderr": bytearray()}
    ended = WorkerExit(ProgramExit(None, reason="lost"))
    async with aclosing(output):
        async for part in output:
            if isinstance(part, OutputChunk):
                streams[part.stream] += part.data
            else:
                ended = part if isinstance(part, WorkerExit) else WorkerExit(part)
    stdout, stderr = (data.decode(errors="replace") for data in streams.values())
    return ProgramResult(exit=ended.exit, stdout=stdout, stderr=stderr, seconds=loop.time() - began, value=ended.value)


def _put(slot: Slot, files: Mapping[str, bytes], executable: Collection[str] = ()) -> list[WorkspaceFile]:
    workspace, limits = slot.place.workspace, slot.limits
    with slot.writing:
        used = workspace_files.measure_usage(workspace, limits.entries)
        size = used.size + sum([len(data) for data in files.values()])
        # A path may bring folders with it.
        names = {name for path in files for name in (path, *[str(above) for above in PurePosixPath(path).parents])}
        entries = used.entries + sum([not os.path.lexists(workspace / name) for name in names if "\0" not in name])
        if size > limits.disk or entries > limits.entries or not used.is_whole:
            raise InvalidRequest(
                f"`{next(iter(files)):.200}` does not fit: {used.entries} files with {used.size} bytes are there; remove some"
            )
        return [
            workspace_files.write(workspace, path, data, slot.place.owner, limits.file, is_executable=path in executable)
            for path, data in files.items()
        ]


def _measure_all(slot: Slot, most: int) -> workspace_files.DiskUsage:
    used = [workspace_files.measure_usage(folder, most) for folder in slot.folders]
    return workspace_files.DiskUsage(
        sum([one.size for one in used]), sum([one.entries for one in used]), all(one.is_whole for one in used)
    )


def _is_over(slot: Slot, jail: Jail) -> bool:
    """Whether the disk limits are exceeded, unlinked files included."""
    limits, used = slot.limits, _measure_all(slot, slot.limits.entries)
    if used.size > limits.disk or used.entries > limits.entries or not used.is_whole:
        return True
    pid = jail.process.pid
    return (
        pid is not None
        and used.size + workspace_files.count_unlinked_bytes(pid, slot.place.workspace.stat().st_dev) > limits.disk
    )


def _check_room(slot: Slot) -> None:
    """Raises `InvalidRequest` if the workspace is far beyond its limits."""
    limits = slot.limits
    try:
        used = _measure_all(slot, limits.entries + SURPLUS_ENTRIES)
    except FileNotFoundError:
        return  # The lease was released; starting a worker reports that.
    if used.size <= limits.disk + SURPLUS_BYTES and used.entries <= limits.entries + SURPLUS_ENTRIES and used.is_whole:
        return
    what = f"{used.entries} files with {used.size} bytes" if used.is_whole else "folders nested too deep to be looked into"
    raise InvalidRequest(f"nothing runs in this workspace any more, it has {what}; remove files from outside, or begin a new one")


def list_changes(before: WorkspaceListing, after: WorkspaceListing) -> tuple[WorkspaceFile, ...]:
    known = set(before.entries)
    return tuple(entry for entry in after.entries if entry not in known)


def build_order(
    limits: dict[str, int], known: Mapping[Language, str], program: str | Sequence[str], language: Language
) -> WorkerOrder:
    """What the worker is told to run. Raises `InvalidRequest` for a language that is not among the known."""
    if not isinstance(program, str):
        return WorkerOrder(limits=limits, argv=tuple(program))
    if language not in known:
        raise InvalidRequest(f"`{language}` is not installed for the sandbox; there is: {', '.join(known)}")
    if language == "python":
        return WorkerOrder(limits=limits, code=program)
    if len(program.encode()) > LONGEST_CODE:
        raise InvalidRequest(f"{len(program)} characters are too much for one command; put them into a file and run that")
    return WorkerOrder(limits=limits, argv=(known[language], "-c" if language == "shell" else "-e", program))


def _build_limits(slot: Slot, language: Language) -> dict[str, int]:
    """What each process is held to. Without a user namespace the kernel counts all processes of the user together."""
    has_totals = slot.group is not None
    others: int | None = 0
    if not slot.backend.is_namespaced:
        others = None if has_totals else count_processes(slot.place.owner.uid)
    return build_process_limits(slot.limits, language, has_totals=has_totals, others=others)


def count_processes(uid: int | None) -> int:
    """How many processes and threads a user has; None is ourselves."""
    wanted = os.getuid() if uid is None else uid
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == wanted:
                count += len(os.listdir(entry / "task"))
        except OSError:
            continue
    return count
