"""Using too much: each attack ends as an ordinary error of its own run, and leaves nothing behind."""

import os

import pytest
from tests.sandbox.traces import Traces, processes_of

from mainspring.core.errors import InvalidRequest
from mainspring.core.sandbox import MEGABYTE, ProgramExit, ProgramResult, SandboxLimits, SandboxSpec
from mainspring.tools.sandbox.cgroup import Groups
from mainspring.tools.sandbox.lease import LocalLease
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root may ask what a process has mapped")
SMALL = SandboxLimits(
    memory=128 * MEGABYTE, processes=24, seconds=20, output=100_000, file=MEGABYTE, disk=8 * MEGABYTE, entries=1_500
)

FORK_BOMB = """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
    except OSError:
        break
    assert made < 600
print(made)
"""
TWO_GIGABYTES = "blocks = []\nfor _ in range(200): blocks.append(bytearray(10 << 20))\nprint('had it all')"
MANY_BY_MANY = """
import os, time
for number in range(8):
    if os.fork() == 0:
        block = bytearray(60 << 20)
        for at in range(0, len(block), 4096): block[at] = 1
        open(f'{number}.had', 'w').close()
        time.sleep(600)
while len([name for name in os.listdir() if name.endswith('.had')]) < 8: time.sleep(0.02)
print('had it all')
"""
SHARED_MEMORY = "import mmap\nm = mmap.mmap(-1, 2 << 30)\nfor at in range(0, 2 << 30, 4096): m[at] = 1\nprint('had it all')"
GIGABYTE_OF_OUTPUT = "import os\nwhile True: os.write(1, b'x' * 65536)"
THOUSANDS_OF_FILES = "import time\nfor n in range(3000): open(str(n), 'w').close()\ntime.sleep(600)"
MUCH_IN_MANY_FILES = "import time\nfor n in range(100): open(str(n), 'w').write('x' * 1_000_000)\ntime.sleep(600)"
MUCH_OUT_OF_SIGHT = """
import os, time
for _ in range(70): os.mkdir('d'); os.chdir('d')
for n in range(30): open(str(n), 'w').write('x' * 1_000_000)
time.sleep(600)
"""
WITHOUT_NAMES = """
import os
held = []
for n in range(30):
    file = open(str(n), 'wb', buffering=0)
    file.write(b'x' * 1_000_000)
    os.unlink(str(n))
    held.append(file)
"""
MAPPED = """
import mmap, os
held = []
for n in range(30):
    with open(str(n), 'wb+', buffering=0) as file:
        file.write(b'x' * 1_000_000)
        held.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED))
    held[-1][0] = 1
    os.unlink(str(n))
file = None
"""
TENS_OF_THOUSANDS = "import os\nfor n in range(11_000): os.mknod(str(n))"
ONE_LARGE_FILE = "with open('large', 'wb') as f:\n    while True: f.write(b'x' * 65536); f.flush()"
SURVIVOR = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        for file in range(0, 64):
            try: os.close(file)
            except OSError: pass
        while True: time.sleep(1)
    os._exit(0)
os.wait()
print('left one behind')
"""
DEEP = "import os\nfor _ in range(1100): os.mkdir('folder'); os.chdir('folder')\nprint('deep')"
LOCKED = "import os\nos.makedirs('a/b/c'); open('a/b/c/f', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0o100)"


async def attacked(sandbox: LocalSandbox, code: str, **options: float) -> ProgramResult:
    """Runs the code in a lease with small limits; asserts that all of it goes and that the next run is well."""
    async with sandbox.acquire(SandboxSpec(limits=SMALL)) as lease:
        traces = Traces.of(sandbox, lease)
        result = await lease.execute(code, timeout=options.get("timeout"))
        assert (await lease.execute("print('well')")).stdout == "well\n", "the lease goes on"
        await lease.release()
        assert traces.left(sandbox) == []
    return result


async def test_a_fork_bomb_gets_no_further_than_its_limit(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, FORK_BOMB)
    assert 4 <= int(result.stdout) <= SMALL.processes + 4


async def test_a_fork_bomb_that_never_ends_is_ended(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout=1.0)
    assert result.exit == ProgramExit(None, reason="timeout")


async def test_two_gigabytes_in_one_process_are_refused(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, TWO_GIGABYTES)
    assert result.exit.is_error
    assert "had it all" not in result.stdout
    assert "MemoryError" in result.stderr or result.exit.reason == "memory"


@pytest.mark.slow
async def test_memory_of_all_processes_together_is_limited_where_control_groups_are(sandbox: LocalSandbox) -> None:
    if (await sandbox.health()).totals == "none":
        pytest.skip("this machine lets us make no control groups; health says that totals do not hold")
    result = await attacked(sandbox, MANY_BY_MANY, timeout=3.0)
    assert result.exit.reason == "memory"
    assert "had it all" not in result.stdout


async def test_shared_memory_is_limited_too(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, SHARED_MEMORY)
    assert result.exit.is_error
    assert "had it all" not in result.stdout


async def test_an_endless_loop_is_ended(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, "while True: pass", timeout=0.5)
    assert result.exit == ProgramExit(None, reason="timeout")


async def test_endless_output_is_cut_at_its_limit(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, GIGABYTE_OF_OUTPUT)
    assert result.exit == ProgramExit(None, reason="output_limit")
    assert len(result.stdout) == SMALL.output


async def test_output_of_exactly_the_limit_is_no_error(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, f"import sys\nsys.stdout.write('x' * {SMALL.output})")
    assert (len(result.stdout), result.exit) == (SMALL.output, ProgramExit(0))


@pytest.mark.parametrize(
    "code",
    [THOUSANDS_OF_FILES, MUCH_IN_MANY_FILES, MUCH_OUT_OF_SIGHT, WITHOUT_NAMES + "import time\ntime.sleep(600)"],
    ids=["thousands", "large", "deep", "without names"],
)
async def test_too_many_or_too_large_files_end_the_run(sandbox: LocalSandbox, code: str) -> None:
    result = await attacked(sandbox, code)
    assert result.exit == ProgramExit(None, reason="disk_limit")
    assert len(result.files) <= SMALL.entries


@pytest.mark.parametrize("code", [WITHOUT_NAMES, pytest.param(MAPPED, marks=ROOT_ONLY)], ids=["open", "mapped"])
async def test_a_cell_that_holds_on_to_files_without_names_does_not_rest_with_them(sandbox: LocalSandbox, code: str) -> None:
    async with sandbox.acquire(SandboxSpec(limits=SMALL)) as lease, lease.session() as session:
        await session.run_cell("n = 1")
        result = await session.run_cell(code)
        assert (result.exit, result.is_state_lost) == (ProgramExit(None, reason="disk_limit"), True)
        assert (await session.run_cell("'n' in globals()")).value == "False"


async def filled(lease: LocalLease) -> None:
    for number in range(100):
        await lease.execute(f"import os\nos.mkdir('{number}'); os.chdir('{number}')\n{TENS_OF_THOUSANDS}")


async def test_nothing_is_started_in_a_workspace_that_one_run_after_the_other_has_filled(sandbox: LocalSandbox) -> None:
    async with sandbox.acquire(SandboxSpec(limits=SMALL)) as lease:
        with pytest.raises(InvalidRequest, match="nothing runs in this workspace any more"):
            await filled(lease)
        with pytest.raises(InvalidRequest, match="does not fit"):
            await lease.put("more", b"x")


async def test_a_file_grows_no_further_than_its_limit(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, ONE_LARGE_FILE)
    assert "File too large" in result.stderr
    assert [(entry.path, entry.size) for entry in result.files] == [("large", SMALL.file)]


async def test_what_survives_in_the_background_is_ended_with_the_run(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, SURVIVOR)
    assert (result.stdout, result.exit) == ("left one behind\n", ProgramExit(0))


@pytest.mark.slow
async def test_folders_deeper_than_any_path_are_removed(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, DEEP)
    assert result.stdout == "deep\n"


async def test_locked_folders_are_removed(sandbox: LocalSandbox) -> None:
    await attacked(sandbox, LOCKED)


@pytest.mark.parametrize(
    "frame",
    [
        "b'\\xff\\xff\\xff\\xff'",
        "b'\\0\\0\\0\\2xx'",
        "b'\\0\\0\\0\\0'",
    ],
    ids=["too long", "too short", "empty"],
)
async def test_nonsense_on_the_line_to_the_engine_is_one_failed_run(sandbox: LocalSandbox, frame: str) -> None:
    result = await attacked(sandbox, f"import os, time\nos.write(3, {frame})\ntime.sleep(600)")
    assert result.exit == ProgramExit(None, reason="lost")


async def test_a_flood_on_the_line_to_the_engine_ends_with_the_run(sandbox: LocalSandbox) -> None:
    flood = "import os\nos.write(3, b'\\0\\x10\\0\\0')\nwhile True: os.write(3, b'x' * 65536)"
    assert (await attacked(sandbox, flood, timeout=5.0)).exit.is_error


async def test_a_line_that_is_closed_is_one_failed_run(sandbox: LocalSandbox) -> None:
    result = await attacked(sandbox, "import os\nos.close(3)")
    assert result.exit.is_error
    waiting = await attacked(sandbox, "import os, time\nos.close(3)\ntime.sleep(600)", timeout=0.5)
    assert waiting.exit == ProgramExit(None, reason="timeout")


async def test_a_session_that_does_not_listen_is_ended_without_blocking_the_engine(sandbox: LocalSandbox) -> None:
    async with sandbox.acquire() as lease, lease.session() as session:
        await session.run_cell("import os, time\nos.read = lambda *_: time.sleep(600)")
        result = await session.run_cell("#" * 3_000_000, timeout=0.5)
    assert result.exit == ProgramExit(None, reason="timeout")
    assert result.is_state_lost


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_limits_of_each_process_hold_where_there_are_no_control_groups(mode: Mode) -> None:
    async with open_sandbox(mode, uid=29_000, warm=0, groups=Groups()) as sandbox:
        assert (await sandbox.health()).totals == "none"
        memory = await attacked(sandbox, TWO_GIGABYTES)
        shared = await attacked(sandbox, SHARED_MEMORY)
        forks = await attacked(sandbox, FORK_BOMB)
        survivor = await attacked(sandbox, SURVIVOR)
        assert processes_of(sandbox) == ()
    assert memory.stderr.endswith("MemoryError\n")
    assert shared.exit.is_error
    assert 4 <= int(forks.stdout) <= SMALL.processes + 4
    assert survivor.exit == ProgramExit(0)
