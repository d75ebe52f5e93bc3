"""Indexes files, one after another, for as long as an engine lives.

The files that wait are rows of the database, so nothing is lost with a process. Several processes share the work: each takes a
file that is nobody's, or whose process is gone, and shows with every write that it has it still. A file that was begun by one
that died is begun anew.
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice
from logging import getLogger
from typing import Final

import anyio

from mainspring.core.errors import (
    FilesUnavailable,
    InvalidRequest,
    MemoryLimit,
    NotFound,
    SandboxBusy,
    SandboxError,
    SandboxFull,
    StoreError,
    Superseded,
)
from mainspring.core.ids import random_id
from mainspring.features.files.files import Files
from mainspring.features.vector_stores import passage_rows as rows
from mainspring.features.vector_stores.chunking import Passage, cut_passages
from mainspring.features.vector_stores.passage_database import PassageDatabase
from mainspring.features.vector_stores.passage_rows import StoreFile
from mainspring.ports import Drivers
from mainspring.tools.documents.document_reader import FILE_BYTES, DocumentPage, DocumentReader, UnreadableFile

log = getLogger(__name__)

# How many passages are written at a time.
BATCH: Final = 200
# How often a process looks for files that others have left, and after what failed here.
LOOK_SECONDS: Final = 5.0
# How long a list of what waits is worked off before files of other tenants are looked for.
LIST_SECONDS: Final = 1.0
MOST_PASSAGES: Final = 50_000


class Indexing:
    """`wake` tells it that there is something new."""

    def __init__(
        self, database: PassageDatabase, files: Files, reader: DocumentReader, find_drivers: Callable[[], Drivers]
    ) -> None:
        self._database, self._files, self._reader, self._find_drivers = database, files, reader, find_drivers
        self._wanted = asyncio.Event()
        self._name = random_id("indexer")
        self._last: str | None = None
        # To list what waits takes the longer the more there is, so not each claim does.
        self._listed, self._listed_at = list[StoreFile](), -LIST_SECONDS

    @property
    def _me(self) -> str:
        # Where no other process can be, this one has no name.
        return self._find_drivers().id or self._name

    def wake(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Indexes what waits, until it is cancelled."""
        while True:
            self._wanted.clear()
            try:
                if await self._database.is_used():
                    await self.work()
            except (StoreError, FilesUnavailable) as error:
                log.warning("files are not indexed now: %s", error)
            with anyio.move_on_after(LOOK_SECONDS):
                await self._wanted.wait()

    async def work(self) -> None:
        """Indexes all that waits, a file of each tenant in turn, and removes what is left of what was removed. What cannot be
        done for want of memory, or of room in the sandbox, waits for the next time, and holds up nobody else."""
        left: set[int] = set()
        while (file := await self._claim(left)) is not None:
            try:
                await self._index(file)
            except Superseded as error:
                log.info("%s: %s", file.file, error)
            except (MemoryLimit, SandboxFull, SandboxBusy) as error:
                log.warning("%s is indexed later: %s", file.file, error)
                left.add(file.number)
        await self._database.remove_left()
        await self._database.embed()

    async def _claim(self, left: Container[int]) -> StoreFile | None:
        """A file that is to be indexed, in our hands, and not one that was left: of the tenant behind that of the last one."""
        await self._find_drivers().show()
        for must_list in (time.monotonic() > self._listed_at + LIST_SECONDS, True):
            if must_list:
                self._listed, self._listed_at = await self._database.read(rows.list_waiting_files), time.monotonic()
            waiting = [file for file in self._listed if file.number not in left]
            for file in sorted(waiting, key=lambda file: (self._last is not None and file.tenant <= self._last, file.tenant)):
                self._listed.remove(file)
                is_free = file.holder in ("", self._me) or not await self._find_drivers().is_driven(file.holder)
                if is_free and await self._database.write(rows.claim_file, file, self._me):
                    self._last = file.tenant
                    return file
        return None

    async def _index(self, file: StoreFile) -> None:
        """Raises `Superseded`, `StoreError`, `FilesUnavailable`, and what may work the next time; whatever else goes wrong is the
        file's error."""
        try:
            await self._database.clear(file.number, self._me)
            size = await self._add_passages(file, await self._read_pages(file))
            await self._database.embed()
            await self._database.write(rows.finish_file, file.number, self._me, "completed", size)
        except UnreadableFile as error:
            await self._fail(file, error.code, error.message)
        except (NotFound, InvalidRequest) as error:
            await self._fail(file, "invalid_file", error.message)
        except (SandboxFull, SandboxBusy):
            raise
        except SandboxError as error:
            await self._fail(file, "server_error", error.message)

    async def _fail(self, file: StoreFile, code: str, message: str) -> None:
        await self._database.clear(file.number, self._me)
        await self._database.write(rows.finish_file, file.number, self._me, "failed", 0, code, message[:2_000])

    async def _read_pages(self, file: StoreFile) -> Sequence[DocumentPage]:
        stored = await self._files.get(file.tenant, file.file)
        return await self._reader.read(stored.filename, await self._files.load(stored, FILE_BYTES), file.tenant)

    async def _add_passages(self, file: StoreFile, pages: Sequence[DocumentPage]) -> int:
        """Returns how many bytes the passages have."""
        passages: Iterator[Passage] = cut_passages(pages, file.chunking)
        size = first = 0
        now = await self._files.store.read_clock()
        while batch := list(islice(passages, BATCH)):
            if first + len(batch) > MOST_PASSAGES:
                raise UnreadableFile(f"it has more than {MOST_PASSAGES} passages; send it in parts, or cut it into longer ones")
            await self._database.write(rows.add_passages, file, self._me, first, batch, now)
            first += len(batch)
            size += sum([len(passage.text.encode()) for passage in batch])
        if not first:
            raise UnreadableFile("there is no text in it; pages that are pictures are not read")
        return size
