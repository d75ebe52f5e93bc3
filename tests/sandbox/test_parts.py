"""The parts by themselves: the filter's program, control groups, places, the pool, and which sandbox is chosen."""

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import SandboxLimits, SandboxSpec
from mainspring.tools.sandbox import cgroup, seccomp
from mainspring.tools.sandbox.cgroup import GroupV1, GroupV2
from mainspring.tools.sandbox.landlock import Landlock
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.places import FolderViews, PythonInstall, find_python, is_reachable
from mainspring.tools.sandbox.probe import Mode, find_escapes, open_sandbox
from mainspring.tools.sandbox.seccomp import ALLOW, KILL, Profile, build_filter
from mainspring.tools.sandbox.workspace_files import Owner

CONTAINED = Path(__file__).with_name("contained.py")
X86, ARM = 0xC000003E, 0xC00000B7
EPERM, ENOSYS = 0x50001, 0x50026
OPEN = Profile((1, 2))


STRANGER = Owner(os.getuid() + 12345, os.getgid() + 12345)


def judged(code: bytes, number: int, *arguments: int, audit: int = X86) -> int:
    """Runs a filter as the kernel would, on one call."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", code))
    at, word = 0, 0
    while True:
        kind, yes, no, value = lines[at]
        at += 1
        match kind:
            case seccomp.LOAD:
                word = struct.unpack_from("=I", data, value)[0]
            case seccomp.EQUAL:
                at += yes if word == value else no
            case seccomp.AT_LEAST:
                at += yes if word >= value else no
            case seccomp.ANY_BIT:
                at += yes if word & value else no
            case seccomp.RETURN:
                return int(value)


@pytest.mark.parametrize(("machine", "audit", "column"), [("x86_64", X86, 0), ("aarch64", ARM, 1)])
def test_every_listed_call_is_refused_on_each_machine(machine: str, audit: int, column: int) -> None:
    code = build_filter(Profile((), signals=False, metadata=False, others=False), machine)
    tables = seccomp.REFUSED | seccomp.SIGNALS | seccomp.METADATA | seccomp.OTHERS
    numbers = {name: numbers[column] for name, numbers in tables.items()}
    assert {name: judged(code, number, audit=audit) for name, number in numbers.items() if number is not None} == {
        name: EPERM for name, number in numbers.items() if number is not None
    }
    assert judged(code, seccomp.CLONE3[column], audit=audit) == ENOSYS
    assert judged(code, 0 if column == 0 else 63, audit=audit) == ALLOW, "read"
    assert len(code) // 8 < 4096, "the kernel's limit"


def test_calls_in_another_convention_are_not_let_through() -> None:
    assert judged(build_filter(OPEN, "x86_64"), 39, audit=0x40000003) == KILL
    assert judged(build_filter(OPEN, "x86_64"), 0x40000000 + 39) == ENOSYS


def test_arguments_decide_where_they_must() -> None:
    code = build_filter(Profile((2,), metadata=False, others=False), "x86_64")
    assert judged(code, 56, 17) == ALLOW, "an ordinary fork"
    assert judged(code, 56, 0x10000000 | 17) == EPERM, "with a new user namespace"
    assert judged(code, 41, 2) == ALLOW, "an internet socket"
    assert judged(code, 41, 1) == EPERM, "a unix socket"
    assert judged(code, 41, 1 << 32 | 2) == ALLOW, "the kernel takes the lower half"
    assert judged(code, 16, 0, 0x5413) == ALLOW
    assert judged(code, 16, 0, 0x5412) == EPERM
    assert judged(code, 280, 3, 0) == ALLOW, "the times of an open file"
    assert judged(code, 280, 3, 0x1000) == EPERM, "of one by its name"
    assert judged(code, 280, 3, 1 << 32) == EPERM, "at an address whose lower half is zero"
    assert judged(code, 302, 0) == ALLOW, "one's own limits"
    assert judged(code, 302, 4711) == EPERM, "those of another process"
    assert judged(build_filter(OPEN, "x86_64"), 62) == ALLOW, "signals are open unless closed"


def test_a_processor_without_a_list_is_refused() -> None:
    with pytest.raises(SandboxError, match="`riscv64`; known: x86_64, aarch64"):
        build_filter(OPEN, "riscv64")


def test_a_version_2_group_is_limited_by_its_files_and_counts_what_was_ended(tmp_path: Path) -> None:
    group = GroupV2(tmp_path)
    (folder,) = group.folders
    (folder / "memory.swap.max").touch()
    group.limit(SandboxLimits(memory=1000, processes=10))
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "memory.swap.max").read_text() == "0"
    assert int((folder / "pids.max").read_text()) == 10 + cgroup.OVERHEAD
    assert group.count_kills() == 2
    assert group.freeze(True)
    assert (folder / "cgroup.freeze").read_text() == "1"
    assert group.freeze(False)
    assert (folder / "cgroup.freeze").read_text() == "0"
    assert group.joins == (str(folder / "cgroup.procs"),)


def test_groups_that_cannot_be_frozen_are_used_all_the_same(tmp_path: Path) -> None:
    parents = {name: tmp_path / name for name in ("memory", "pids")}
    for folder in parents.values():
        folder.mkdir()
    with pytest.raises(OSError, match="freezer"):
        GroupV1({**parents, "freezer": tmp_path / "freezer"})
    assert [path for folder in parents.values() for path in folder.iterdir()] == [], "all of them are made, or none"
    group = GroupV1(parents)
    assert not group.freeze(True)
    cgroup.remove_group_folders(group)


def test_groups_that_were_found_work_and_are_removed() -> None:
    groups = cgroup.find_groups()
    group = groups.make()
    if group is None:
        pytest.skip("this machine lets us make no control groups")
    group.limit(SandboxLimits(memory=1 << 26))
    group.limit(SandboxLimits(memory=1 << 28))
    assert group.count_kills() == 0
    assert all(folder.is_dir() for folder in group.folders)
    cgroup.remove_group_folders(group)
    assert not any(folder.exists() for folder in group.folders)


def test_a_folder_that_only_its_owner_may_enter_is_not_reachable_for_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "python").mkdir()
    stranger, owner = STRANGER, Owner((tmp_path / "home").stat().st_uid, 12345)
    inside = tmp_path / "home" / "python"
    assert not is_reachable(inside, stranger)
    assert is_reachable(tmp_path / "home", stranger) == is_reachable(tmp_path, stranger)
    assert is_reachable(inside, owner) == is_reachable(tmp_path, owner)


def test_a_view_gives_a_name_only_to_what_cannot_be_reached_and_was_shown(tmp_path: Path) -> None:
    hidden = tmp_path / "home" / "python"
    hidden.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (tmp_path / "views").mkdir()
    views = FolderViews(tmp_path / "views", STRANGER)
    views.want(hidden)
    views.want(Path("/usr/lib"))
    assert views.pairs == [(str(hidden), str(tmp_path / "views" / "0"))]
    assert views.find_path(Path("/usr/lib/x")) == Path("/usr/lib/x")
    assert views.find_path(hidden / "bin") == tmp_path / "views" / "0" / "bin"
    views.settle(are_shown=False)
    assert views.find_path(hidden / "bin") is None


async def test_the_interpreter_of_this_environment_runs_wherever_it_is_installed(sandbox: LocalSandbox) -> None:
    if sandbox._kind != "bwrap":
        pytest.skip("without namespaces the interpreter must lie where everybody may read it")
    async with sandbox.acquire() as lease:
        result = await lease.execute("import sys\nprint(sys.prefix, sys.base_prefix, sys.version, sep='|')")
        by_name = await lease.execute(["python3", "-c", "import sys; print(sys.prefix)"])
    assert result.stdout == f"{sys.prefix}|{sys.base_prefix}|{sys.version}\n"
    assert by_name.stdout == f"{sys.prefix}\n"


async def test_an_older_landlock_refuses_signals_altogether(sandbox: LocalSandbox) -> None:
    if not isinstance(sandbox.backend, Landlock):
        pytest.skip("of Landlock only")
    current, sandbox.backend = sandbox.backend, Landlock(sandbox.backend.python, sandbox._owner, version=5)
    try:
        async with sandbox.acquire() as lease:
            result = await lease.execute("import os\nos.kill(os.getpid(), 0)")
    finally:
        sandbox.backend = current
    assert "PermissionError" in result.stderr


def test_a_landlock_that_cannot_guard_files_is_refused() -> None:
    with pytest.raises(SandboxError, match="has version 2 here and 3 is needed"):
        Landlock(PythonInstall("/usr/bin/python3"), Owner(), version=2)


async def test_the_probe_finds_every_way_out_of_what_is_no_sandbox(unsafe: LocalSandbox, sandbox: LocalSandbox) -> None:
    found = await find_escapes(unsafe)
    assert set(found) >= {
        "read a file of the host",
        "write to a file of the host",
        "connect to a port of the host",
        "connect to a socket of the host",
    }
    assert await find_escapes(sandbox) == ()


@pytest.fixture
def entered() -> Iterator[Path]:
    """A folder that others may enter; above those of pytest they may not, whatever one of its runs does about it."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_a_backend_that_does_not_hold_is_passed_over_and_health_says_why(
    monkeypatch: pytest.MonkeyPatch, entered: Path
) -> None:
    broken = entered / "lib" / "package" / "bin" / "bwrap"
    broken.parent.mkdir(parents=True)
    broken.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 9 && exit\necho 'no namespaces for you' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr("mainspring.tools.sandbox.bwrap.find_bundled", lambda: broken)
    monkeypatch.setattr("mainspring.tools.sandbox.bwrap.find_installed", lambda: None)
    async with open_sandbox("auto", warm=0) as sandbox:
        health = await sandbox.health()
    assert health.backend == "landlock"
    assert len(health.refused) == 1
    assert "no namespaces for you" in health.refused[0]
    with pytest.raises(SandboxError, match=r"no sandbox holds here, so code is not run: bwrap.*no name.*install bubblewrap"):
        async with open_sandbox("bwrap", warm=0):
            pass


def test_in_a_container_that_refuses_namespaces_landlock_takes_over() -> None:
    done = subprocess.run([sys.executable, str(CONTAINED)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["backend"], told["escapes"], told["said"]) == ("landlock", [], "fine\n")
    assert "bwrap" in told["refused"][0]
    assert "new namespace" in told["refused"][0]


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_a_waiting_worker_serves_one_lease_and_is_replaced(mode: Mode) -> None:
    async with open_sandbox(mode, warm=1) as sandbox:
        workers: list[object] = []
        for number in range(3):
            await sandbox.wait_until_warm()
            assert (await sandbox.health()).warm == 1
            async with sandbox.acquire(SandboxSpec(limits=SandboxLimits(memory=200 << 20))) as lease:
                workers.append(lease._slot.warm)
                result = await lease.execute("import builtins\nprint(hasattr(builtins, 'left'))\nbuiltins.left = 1")
                assert result.stdout == "False\n", f"lease {number} sees nothing of the one before"
        assert len(set(map(id, workers))) == 3
        assert None not in workers


async def test_a_waiting_worker_that_died_is_not_handed_out() -> None:
    async with open_sandbox("auto", warm=1) as sandbox:
        await sandbox.wait_until_warm()
        async with sandbox.acquire() as lease:
            waiting = lease._slot.warm
            assert waiting is not None
            waiting.process.end()
            await waiting.process.ended
            assert (await lease.execute("print('fine')")).stdout == "fine\n"


def test_the_system_python_stands_in_for_one_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "python"
    (hidden / "bin").mkdir(parents=True)
    hidden.chmod(0o700)
    monkeypatch.setattr("sys.prefix", str(hidden))
    found = find_python(FolderViews(tmp_path, STRANGER))
    assert found is None or found.executable.startswith("/usr")


def test_root_is_no_user_for_sandboxed_programs() -> None:
    with pytest.raises(SandboxError, match="must not run as root"):
        LocalSandbox("bwrap", uid=0)


async def test_a_lease_that_is_cancelled_while_it_is_made_leaves_nothing() -> None:
    async with open_sandbox("auto", warm=0) as sandbox:
        for pauses in range(6):
            task = asyncio.get_running_loop().create_task(sandbox.acquire().__aenter__())
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        while sandbox._removals:
            await asyncio.wait(sandbox._removals)
        assert {path.name for path in sandbox.data.iterdir()} <= {"etc"}
