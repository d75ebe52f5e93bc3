"""A disk without room fails what cannot be written, and nothing else."""

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from tests.store.locks import write_lock
from tests.store.logs import begin, say

from mainspring.core.errors import StoreError
from mainspring.storage.sqlite_runs import SqliteStore

KB = 1024


class Disk(Protocol):
    """A folder that can run out of room, and what the store says when it does."""

    folder: Path
    complaint: str

    def only(self, room: int) -> AbstractContextManager[None]:
        """Meanwhile there is only room for so many more bytes."""
        ...


class SmallDisk:
    """A real disk of 2 MB; only root can have one."""

    complaint = "the disk holding the database is full; free space and resume the run"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def only(self, room: int) -> Iterator[None]:
        state = os.statvfs(self.folder)
        ballast = self.folder / "ballast"
        ballast.write_bytes(b"x" * (state.f_bavail * state.f_frsize - room))
        yield
        ballast.unlink()


class SmallFiles:
    """A limit on the size of this process's files; anybody can have it."""

    complaint = "the database cannot be read or written (disk I/O error); check the disk and its free space, then resume the run"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def only(self, room: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest = max(entry.stat().st_size for entry in self.folder.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["small disk", "small files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "small files":
        yield SmallFiles(tmp_path)
        return
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "mainspring", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a disk can be mounted by root only")
    try:
        yield SmallDisk(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_full_disk_fails_the_append_and_the_run_can_go_on_when_there_is_room(disk: Disk) -> None:
    path = disk.folder / "runs.db"
    large = say(1, "x" * 256 * KB)
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))
        with disk.only(room=0):
            with pytest.raises(StoreError) as caught:
                await store.append("a", large)
            assert caught.value.message == disk.complaint
            assert await store.events("a") == begin("a")
        await store.append("a", large)
        await store.append("a", say(2, "and on"))
    async with SqliteStore(path) as store:
        assert await store.events("a") == [*begin("a"), *large, *say(2, "and on")]


async def test_what_does_not_fit_does_not_take_its_neighbours_with_it(disk: Disk) -> None:
    path = disk.folder / "runs.db"
    async with SqliteStore(path) as store:
        await store.append("large", begin("large"))
        with disk.only(room=256 * KB):
            with write_lock(path):
                first = store.append("first", begin("first"))
                small = store.append("small", begin("small"))
                large = store.append("large", say(1, "x" * 512 * KB))
                other = store.append("other", begin("other"))
            await asyncio.gather(first, small, other)
            with pytest.raises(StoreError, match="space"):
                await large
        assert await store.events("large") == begin("large")
        assert await store.list_unfinished() == ["large", "first", "small", "other"]
