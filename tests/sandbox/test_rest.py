"""Between the cells of a session, and the runs beside it, nothing in a lease goes on; yet what was there is there again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.sandbox.conftest import opened
from tests.sandbox.traces import Traces, processes_of

from mainspring.core.sandbox import MEGABYTE, SandboxLimits, SandboxSpec
from mainspring.tools.sandbox.cgroup import Groups, find_groups
from mainspring.tools.sandbox.local import LocalSandbox

T = TypeVar("T")

COUNTER = """
import os, threading, time
def count():
    n = 0
    while True:
        n += 1
        with open("new", "w") as file:
            file.write(str(n))
        os.rename("new", "count")
        time.sleep(0.0005)
threading.Thread(target=count, daemon=True).start()
while not os.path.exists("count"):
    time.sleep(0.001)
"""
GOES_ON = """
def read():
    return int(open("count").read())
first = read()
while read() == first:
    time.sleep(0.001)
"goes on"
"""
# A process of a session of its own, whose parent is gone. Where we number our own processes it does not outlive the cell.
FORKED = """
import os, time
if os.fork() == 0:
    os.setsid()
    n = 0
    while True:
        n += 1
        with open("forked.new", "w") as file:
            file.write(str(n))
        os.rename("forked.new", "forked")
        time.sleep(0.0005)
while not os.path.exists("forked"):
    time.sleep(0.001)
"""
WRITER = """
import os, threading, time
def write():
    n = 0
    while True:
        n += 1
        with open(f"piece{n}", "wb") as file:
            file.write(bytes(16384))
        time.sleep(0.001)
threading.Thread(target=write, daemon=True).start()
while not os.path.exists("piece2"):
    time.sleep(0.001)
"""
# Its own clock tells it to go on, which no program can be kept from that was merely told to stop.
WAKER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
SIGCONT, CLOCK_MONOTONIC = 18, 1
event = (ctypes.c_int * 16)()
event[2], event[3] = SIGCONT, 0
timer = ctypes.c_void_p()
assert libc.timer_create(CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0
every = (ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000)
assert libc.timer_settime(timer, 0, every, None) == 0
"""


@pytest.fixture(scope="module", params=["bwrap", "bwrap without groups", "landlock without groups"])
async def resting(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    mode, _, without = request.param.partition(" ")
    groups: Groups = Groups() if without else find_groups()
    async for entered in opened(mode, groups=groups):
        yield entered


async def settled(sandbox: LocalSandbox, look: Callable[[], Awaitable[T]], seconds: float = 0.02) -> T:
    """What is seen once it does not change any more, though another program runs for so long meanwhile."""
    with anyio.fail_after(PATIENCE):
        while True:
            before = await look()
            async with sandbox.acquire() as other:
                await other.execute(f"import time\ntime.sleep({seconds})")
            if await look() == before:
                return before


async def gone(sandbox: LocalSandbox, processes: tuple[int, ...]) -> None:
    with anyio.fail_after(PATIENCE):
        while set(processes_of(sandbox)) & set(processes):  # noqa: ASYNC110 (processes set no event)
            await asyncio.sleep(0.01)


async def test_a_thread_rests_between_cells_and_goes_on_in_the_next(resting: LocalSandbox) -> None:
    async with resting.acquire() as lease, lease.session() as session:
        assert not (await session.run_cell(COUNTER)).exit.is_error
        counted = int(await settled(resting, lambda: lease.get("count")))
        again = await session.run_cell(GOES_ON)
        assert (again.value, again.is_state_lost) == ("'goes on'", False)
        assert int(await settled(resting, lambda: lease.get("count"))) > counted
        beside = await lease.execute("print(1)")
        assert beside.stdout == "1\n", "other programs run beside it"
        await settled(resting, lambda: lease.get("count"))
        assert (await session.run_cell("first")).value is not None


async def test_a_process_that_a_cell_left_behind_does_not_go_on_either(resting: LocalSandbox) -> None:
    async with resting.acquire() as lease, lease.session() as session:
        assert not (await session.run_cell(FORKED)).exit.is_error
        await settled(resting, lambda: lease.get("forked"))


async def test_a_writer_in_the_background_cannot_fill_the_disk(resting: LocalSandbox) -> None:
    limits = SandboxLimits(disk=16 * MEGABYTE)
    async with resting.acquire(SandboxSpec(limits=limits)) as lease, lease.session() as session:
        assert not (await session.run_cell(WRITER)).exit.is_error
        found = await settled(resting, lease.list)
        assert len(found.entries) * 16384 < limits.disk
        full = await session.run_cell("time.sleep(600)")
        assert (full.exit.reason, full.is_state_lost) == ("disk_limit", True)


async def test_a_program_that_wakes_itself_is_frozen_or_ended_before_it_has_filled_the_disk(resting: LocalSandbox) -> None:
    limits = SandboxLimits(disk=2 * MEGABYTE)
    async with resting.acquire(SandboxSpec(limits=limits)) as lease, lease.session() as session:
        assert not (await session.run_cell(WAKER + WRITER)).exit.is_error
        found = await settled(resting, lease.list, 0.6)
        assert len(found.entries) * 16384 < 64 * MEGABYTE


async def test_what_is_at_rest_can_be_taken_down(resting: LocalSandbox) -> None:
    async with resting.acquire() as lease, lease.session() as session:
        await session.run_cell(COUNTER)
        await settled(resting, lambda: lease.get("count"))
        traces = Traces.of(resting, lease)
        with anyio.fail_after(PATIENCE):
            await lease.release()
        await gone(resting, traces.processes)
        assert traces.left(resting) == []


async def test_a_killed_supervisor_leaves_nothing_frozen() -> None:
    async for sandbox in opened("bwrap"):
        async with sandbox.acquire() as lease, lease.session() as session:
            await session.run_cell(COUNTER)
            await settled(sandbox, lambda: lease.get("count"))
            supervisor, running = sandbox.processes._supervisor, processes_of(sandbox)
            assert supervisor is not None
            assert running
            os.kill(supervisor.pid, signal.SIGKILL)
            with anyio.fail_after(PATIENCE):
                await lease.release()
            await gone(sandbox, running)
