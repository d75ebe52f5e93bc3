"""Containers that several processes share: each works in its own sandbox on the same files, one at a time; nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import FilesUnavailable, InvalidRequest, NotFound, SandboxBusy, SandboxFull, Superseded
from mainspring.core.sandbox import MEGABYTE, SandboxLimits, SandboxSpec
from mainspring.engine.presence import Presence
from mainspring.ports import FileStorage
from mainspring.storage.choose_files import choose_files
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.builtin import shared_containers
from mainspring.tools.builtin.container_tools import LOST, CodeInterpreter, Shell
from mainspring.tools.builtin.containers import NEW, Containers
from mainspring.tools.builtin.shared_containers import SharedContainers
from mainspring.tools.contract import ToolContext
from mainspring.tools.sandbox.local import LocalSandbox


class Failing:
    """A storage that can be made to fail, or to wait."""

    def __init__(self, storage: FileStorage) -> None:
        self.storage = storage
        self.is_down = False
        self.writes = 0
        self.before_list_and_remove: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> None:
        await self.storage.open()

    async def put(self, key: str, data: bytes) -> None:
        self._check()
        self.writes += 1
        await self.storage.put(key, data)

    async def get(self, key: str) -> bytes:
        self._check()
        return await self.storage.get(key)

    async def remove(self, keys: "list[str]") -> None:
        self._check()
        if self.before_list_and_remove is not None:
            await self.before_list_and_remove()
        await self.storage.remove(keys)

    async def list_keys(self, prefix: str) -> "list[str]":
        self._check()
        if self.before_list_and_remove is not None:
            await self.before_list_and_remove()
        return list(await self.storage.list_keys(prefix))

    async def list_folders(self, prefix: str) -> "list[str]":
        self._check()
        return list(await self.storage.list_folders(prefix))

    def _check(self) -> None:
        if self.is_down:
            raise FilesUnavailable("the storage is down")


class World:
    """One store and one storage, and as many processes on them as are asked for; `leave` is the death of one."""

    def __init__(self, sandbox: LocalSandbox, folder: Path, stack: AsyncExitStack) -> None:
        self.sandbox, self.folder, self._stack = sandbox, folder, stack
        self.storage = Failing(choose_files(str(folder / "files")))
        self.presences: list[Presence] = []

    async def join(self, **options: float) -> SharedContainers:
        store = SqliteStore(self.folder / "runs.db")
        await store.open()
        self._stack.push_async_callback(store.close)
        self.presences.append(Presence(store))
        containers = SharedContainers(self.sandbox, self.storage, **options)  # type: ignore[arg-type]
        containers.keep_in(store, self.presences[-1])
        return await self._stack.enter_async_context(containers)


@pytest.fixture
async def world(sandbox: LocalSandbox, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(sandbox, tmp_path, stack)


async def ran(containers: Containers, command: str, scope: str = "conv_1", tenant: str = "") -> str:
    with anyio.fail_after(PATIENCE):
        result = await Shell(containers).execute({"command": command}, ToolContext(scope=scope, tenant=tenant))
    return str(result.output) or result.error


async def computed(containers: Containers, code: str) -> str:
    with anyio.fail_after(PATIENCE):
        result = await CodeInterpreter(containers).execute({"code": code}, ToolContext(scope="conv_1"))
    return str(result.output) or result.error


async def files(containers: Containers, id: str = "cntr_1", tenant: str = "") -> dict[str, int]:
    return {entry.path: entry.size for entry in (await containers.list(tenant, id)).entries}


async def test_what_one_process_writes_the_next_one_finds(world: World) -> None:
    first, second = await world.join(), await world.join()
    assert await ran(first, "mkdir -p a/b; echo one > a/b/c; printf '\\000\\377' > 'ä b'; : > empty") == f"{NEW}\n[exit code 0]"
    assert await files(second) == {"a/b/c": 4, "empty": 0, "ä b": 2}
    assert await second.get("", "cntr_1", "ä b") == b"\0\xff"
    assert await ran(second, "cat a/b/c; echo two >> a/b/c; rm empty") == "one\n[exit code 0]"
    assert await ran(first, "cat a/b/c; ls") == "one\ntwo\na\nä b\n[exit code 0]"
    assert [about.id for about in await second.list_all("")] == ["cntr_1"]
    with pytest.raises(NotFound):
        await second.list("other", "cntr_1")


async def test_variables_stay_while_calls_come_to_one_process_and_a_move_is_told(world: World) -> None:
    first, second = await world.join(), await world.join()
    assert await computed(first, "x = 41; open('f', 'w').write('kept'); None") == f"{NEW}\n[files written: f (4 bytes)]"
    assert await computed(first, "x + 1") == "42"
    assert await computed(second, "open('f').read()") == f"{LOST}\n'kept'"
    assert (await computed(first, "x")).startswith(LOST), "which has gone on elsewhere"


async def test_a_file_that_comes_by_another_process_does_not_end_the_interpreter(world: World) -> None:
    first, second = await world.join(), await world.join()
    await computed(first, "x = 41; open('old', 'w').write('old'); None")
    await second.put("", "cntr_1", "data.csv", b"1,2")
    await second.remove_file("", "cntr_1", "old")
    assert set(await first.list_given("", "cntr_1")) == {"data.csv"}
    told = await computed(first, "import os; x, open('data.csv').read(), os.listdir()")
    assert told == "[files put in by the user: data.csv (3 bytes)]\n(41, '1,2', ['data.csv'])"
    assert await computed(first, "x") == "41", "and it is told once"


async def test_one_process_works_in_a_container_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await world.join(), await world.join()
    alone = "mkdir busy && sleep 0.05 && rmdir busy && echo alone; echo x >> count"
    told = await asyncio.gather(*[ran(containers, alone) for containers in (first, second) * 4])
    assert [text.removeprefix(f"{NEW}\n") for text in told] == ["alone\n[exit code 0]"] * 8
    assert (await first.get("", "cntr_1", "count")).count(b"x") == 8
    monkeypatch.setattr(shared_containers, "REQUEST_SECONDS", 0.1)
    async with first.use("", "cntr_1"):
        with pytest.raises(SandboxBusy):
            await second.put("", "cntr_1", "late", b"")
        with pytest.raises(SandboxBusy):
            await second.remove("", "cntr_1")
        await first.put("", "cntr_1", "own", b"mine")
        assert await second.get("", "cntr_1", "own") == b"mine", "saved although the call goes on"
    await second.remove("", "cntr_1")


async def test_a_process_that_dies_in_a_call_leaves_what_was_saved(world: World) -> None:
    first, second = await world.join(), await world.join()
    await ran(first, "echo saved > file")

    async def work() -> None:
        async with first.use("", "cntr_1") as container:
            await container.lease.put("file", b"half")
            await world.presences[0].leave()
            assert await ran(second, "cat file; echo second >> file") == "saved\n[exit code 0]"
            with pytest.raises(Superseded):
                # It was only frozen, wakes up, and goes on.
                await first.put("", "cntr_1", "late", b"late")

    with pytest.raises(Superseded):
        await work()
    assert await files(second) == {"file": 13}


async def test_calls_of_a_process_that_was_taken_for_dead_fail_and_disturb_nobody(world: World) -> None:
    first, second = await world.join(), await world.join()
    await ran(first, "echo saved > file")
    started = asyncio.Event()
    context = ToolContext(scope="conv_1", progress=lambda text: started.set())
    call = Shell(first).execute({"command": "echo up; while [ ! -e go ]; do sleep 0.01; done; echo late > file"}, context)
    running = asyncio.get_running_loop().create_task(call)
    await asyncio.wait_for(started.wait(), PATIENCE)
    await world.presences[0].leave()
    assert await ran(second, "cat file; echo second > file") == "saved\n[exit code 0]"
    container = first._places["", "cntr_1"].container
    assert container is not None
    await container.lease.put("go", b"")
    result = await asyncio.wait_for(running, PATIENCE)
    assert not result.success
    assert "another process has taken it over" in result.error
    assert await second.get("", "cntr_1", "file") == b"second\n"
    assert await ran(first, "cat file") == "second\n[exit code 0]"


async def test_while_the_storage_is_down_work_goes_on_here_and_nowhere_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_containers, "SAVE_SECONDS", 0.02)
    monkeypatch.setattr(shared_containers, "REQUEST_SECONDS", 0.1)
    first, second = await world.join(), await world.join()
    await computed(first, "x = 1")
    world.storage.is_down = True
    assert await computed(first, "open('new', 'w').write('unsaved'); x") == "1\n[files written: new (7 bytes)]"
    assert await computed(first, "x") == "1"
    with pytest.raises(FilesUnavailable):
        await first.put("", "cntr_1", "more", b"more")
    with pytest.raises(SandboxBusy):
        await second.put("", "cntr_1", "other", b"")
    world.storage.is_down = False
    with anyio.fail_after(PATIENCE):
        while first._places["", "cntr_1"].users:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await ran(second, "cat new more")).endswith("\nunsavedmore\n[exit code 0]")


async def test_what_has_not_changed_is_not_written_again(world: World) -> None:
    first = await world.join()
    await ran(first, "for i in 1 2 3 4 5; do echo $i > $i; done")
    before = world.storage.writes
    await ran(first, "cat 1")
    assert world.storage.writes == before
    await ran(first, "echo new > 6; touch 1")
    assert world.storage.writes == before + 2, "the file, and the list of files"
    kept = await world.storage.list_keys("containers")
    assert len(kept) == 7, "six files and one list: what is not needed any more is removed"


async def test_a_container_that_lies_idle_is_removed_once_with_its_files(world: World) -> None:
    first, second = await world.join(idle_seconds=1000.0), await world.join(idle_seconds=1000.0)
    await ran(first, "echo x > file")
    await second.create("", "cntr_short", "short", 0.01)
    await second.put("", "cntr_short", "file", b"x")
    await asyncio.sleep(0.02)
    await asyncio.gather(first.expire(), second.expire())
    assert [about.id for about in await first.list_all("")] == ["cntr_1"]
    assert len(await world.storage.list_keys("containers")) == 2
    assert len(await first._store.documents("container_sweep")) == 1  # type: ignore[union-attr]


async def test_files_without_a_container_are_swept_and_those_of_another_deployment_are_not(world: World) -> None:
    first = await world.join(idle_seconds=1000.0)
    await ran(first, "echo x > file")
    await world.storage.put(f"{first._folder}/orphan/file", b"")
    await world.storage.put("containers/another/folder/file", b"")
    await first.expire()
    kept = await world.storage.list_keys("containers")
    assert len(kept) == 3
    assert "containers/another/folder/file" in kept
    assert await first.get("", "cntr_1", "file") == b"x\n"


async def test_a_sandbox_whose_container_has_moved_or_is_gone_is_closed(world: World) -> None:
    first, second = await world.join(), await world.join()
    await ran(first, "echo x > file")
    await ran(second, "echo x > file", "conv_2")
    await ran(first, "cat file", "conv_2")
    await first.remove("", "cntr_1")
    await second.expire()
    assert (await world.sandbox.health()).leases == 1


async def test_a_removed_container_is_gone_everywhere_and_with_all_its_files(world: World) -> None:
    first, second = await world.join(), await world.join()
    await ran(first, "echo x > file")
    await second.remove("", "cntr_1")
    assert await world.storage.list_keys("containers") == []
    for containers in (first, second):
        with pytest.raises(NotFound):
            await containers.list("", "cntr_1")
        assert await containers.list_all("") == ()
    assert await ran(first, "ls") == f"{NEW}\n[exit code 0]"


async def test_a_tenant_that_has_too_many_loses_the_one_used_longest_ago(world: World) -> None:
    first, second = await world.join(most_each=2), await world.join(most_each=2)
    for number, containers in enumerate((first, second, first)):
        await containers.create("acme", f"cntr_{number}")
    assert [about.id for about in await second.list_all("acme")] == ["cntr_1", "cntr_2"]
    async with first.use("acme", "cntr_1"), second.use("acme", "cntr_2"):
        with pytest.raises(SandboxFull):
            await first.create("acme", "cntr_3")
    await first.create("other", "cntr_3")


@pytest.mark.parametrize("path", ["dir/", "d/" * 65 + "f", "f" * 300, "../x", "/etc/passwd", "file/below", "a"])
async def test_a_file_that_no_workspace_would_take_is_refused_without_one(world: World, path: str) -> None:
    first = await world.join()
    await first.create("", "cntr_1")
    await first.put("", "cntr_1", "file", b"x")
    await first.put("", "cntr_1", "a/b", b"x")
    with pytest.raises(InvalidRequest):
        await first.put("", "cntr_1", path, b"x")
    assert await files(first) == {"a/b": 1, "file": 1}


async def test_files_that_do_not_fit_are_refused(world: World) -> None:
    first = await world.join()
    first.spec = SandboxSpec(limits=SandboxLimits(disk=2 * MEGABYTE, file=MEGABYTE, entries=3))
    await first.create("", "cntr_1")
    await first.put("", "cntr_1", "a", bytes(MEGABYTE))
    for path, size in (("b", MEGABYTE + 1), ("b/c/d", 1)):
        with pytest.raises(InvalidRequest):
            await first.put("", "cntr_1", path, bytes(size))
    await first.put("", "cntr_1", "a", bytes(MEGABYTE))
    await first.put("", "cntr_1", "b", bytes(MEGABYTE))
    with pytest.raises(InvalidRequest, match="does not fit"):
        await first.put("", "cntr_1", "c", b"x")


async def test_a_container_that_is_full_to_the_last_file_is_restored(world: World) -> None:
    first, second = await world.join(), await world.join()
    first.spec = second.spec = SandboxSpec(limits=SandboxLimits(entries=602))
    await ran(first, "mkdir -p a/b; cd a/b; for i in $(seq 600); do echo $i > $i; done")
    assert (await ran(second, "cat a/b/600; ls a/b | wc -l")) == "600\n600\n[exit code 0]"


async def test_programs_links_and_empty_folders_are_restored_as_they_were(world: World) -> None:
    first, second = await world.join(), await world.join()
    await ran(
        first, "mkdir -p bin out/deep full; printf '#!/bin/sh\\necho works' > bin/program; chmod +x bin/program; echo x > full/x"
    )
    await ran(first, "ln -s ../bin/program full/link; ln -s /nowhere dangling; mkfifo pipe")
    look = "full/link; readlink dangling; find . -mindepth 1 | sort | tr '\\n' ' '"
    expected = "works\n/nowhere\n./bin ./bin/program ./dangling ./full ./full/link ./full/x ./out ./out/deep"
    assert (await ran(second, look)).startswith(expected)
    assert await files(second) == {"bin/program": 20, "full/x": 2}
    await second.put("", "cntr_1", "out/deep/file", b"fills it")
    await ran(second, "rm dangling; rmdir full 2>/dev/null; chmod -x bin/program; mkdir bin2; ln -sf ../full/x full/link")
    seen = await ran(first, "cat full/link; [ -x bin/program ] || echo plain; ls -d bin2 dangling out/deep/* 2>/dev/null")
    assert seen == "x\nplain\nbin2\nout/deep/file\n[exit code 2]"
    await second.put("", "cntr_1", "bin2/sub/file", b"x")
    for path in ("full/link", "full/link/below", "out/deep"):
        with pytest.raises(InvalidRequest):
            await second.put("", "cntr_1", path, b"x")
    assert (await ran(first, "cat bin2/sub/file")).endswith("\nx\n[exit code 0]")


async def test_a_stop_in_the_middle_of_a_call_saves_its_files(world: World, sandbox: LocalSandbox) -> None:
    up = asyncio.Event()
    first, second = await world.join(), await world.join()
    context = ToolContext(scope="conv_1", progress=lambda text: up.set())
    call = Shell(first).execute({"command": "echo half > file; echo up; sleep 600"}, context)
    running = asyncio.get_running_loop().create_task(call)
    await asyncio.wait_for(up.wait(), PATIENCE)
    await first.__aexit__(None, None, None)
    await asyncio.wait_for(running, PATIENCE)
    assert await ran(second, "cat file") == "half\n[exit code 0]"


@pytest.mark.requirement("M7")
@pytest.mark.parametrize("is_orphan", [False, True], ids=["deleted", "orphaned"])
async def test_a_container_made_anew_while_the_files_of_the_old_one_are_removed_keeps_its_own(
    world: World, is_orphan: bool
) -> None:
    first, second = await world.join(), await world.join(idle_seconds=600.0)
    await first.create("", "cntr_1")
    await first.put("", "cntr_1", "old", b"old")
    if is_orphan:
        await first.records.remove(("", "cntr_1"))

    async def make_anew() -> None:
        try:
            await second.describe("", "cntr_1")
        except NotFound:
            world.storage.before_list_and_remove = None
            await second.create("", "cntr_1")
            await second.put("", "cntr_1", "new", b"new")

    world.storage.before_list_and_remove = make_anew
    await (first.expire() if is_orphan else first.remove("", "cntr_1"))
    assert await second.get("", "cntr_1", "new") == b"new"


async def test_a_container_whose_files_cannot_be_listed_is_not_removed_and_is_free(world: World) -> None:
    first, second = await world.join(), await world.join()
    await first.create("", "cntr_1")
    await first.put("", "cntr_1", "kept", b"kept")
    world.storage.is_down = True
    with pytest.raises(FilesUnavailable):
        await first.remove("", "cntr_1")
    world.storage.is_down = False
    assert await second.get("", "cntr_1", "kept") == b"kept"
    await second.remove("", "cntr_1")
    with pytest.raises(NotFound):
        await first.describe("", "cntr_1")
