"""The lease of an engine on a store: while it holds, nobody else takes up the runs that the engine drives.

Theory of operation. An engine that has stored runs extends its lease every `BEAT_SECONDS`. It counts on it for less time than
the store does, and from the moment it asked, by a clock that does not stop while the process or its machine does: so it knows
that its lease may be over before anybody else can claim one of its runs. Then, unless the store extends it at once, it stops
what has an effect (`on_doubt`). It begins nothing that has one (`confirm`) before the store has extended the lease and each run
was found to be its own (`recheck`).

On one machine it is also known for sure which processes are there: the lease of one that is not is ended at once.

An engine has one `Presence`, for whatever it drives.
"""

import os
import time
from asyncio import Event, Task, TimerHandle, create_task, get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from logging import getLogger
from pathlib import Path
from socket import gethostname
from typing import Final

from anyio import Lock, move_on_after

from mainspring.core.errors import StoreError
from mainspring.core.ids import random_id
from mainspring.ports import Driver, RunStore

log = getLogger(__name__)

LEASE_SECONDS: Final = 5.0
BEAT_SECONDS: Final = 1.25
# The lease of an engine that drives nothing: it may have other things that are its own, and a file should be left in peace.
IDLE_SECONDS: Final = 60.0
# How long an engine is taken to be busy that has had something to do.
LINGER_SECONDS: Final = 10.0
# How much of a lease the engine itself counts on. The rest is for a last attempt, and for tools that take a moment to stop.
TRUSTED: Final = 0.8
DOUBT_SECONDS: Final = 0.3


async def _check_nothing() -> None:
    return


class Presence:
    """The lease of this engine. `id` names it in the logs of the runs that it drives; empty where no log outlives it."""

    def __init__(
        self,
        store: RunStore,
        is_busy: Callable[[], bool] = lambda: False,
        on_doubt: Callable[[], None] = lambda: None,
        recheck: Callable[[], Awaitable[None]] = _check_nothing,
    ) -> None:
        self._leases = store.leases
        self._is_busy, self._on_doubt, self._recheck = is_busy, on_doubt, recheck
        self._trusted_until = self._beat_at = self._used_at = 0.0
        self._is_shown = self._is_idle = False
        self._turn = Lock()
        self._alarm: TimerHandle | None = None
        self._keeper: Task[None] | None = None
        self._doubt: Task[None] | None = None
        self._hurry = Event()
        self.id = random_id("drv") if store.is_durable else ""

    async def show(self) -> None:
        """Has the lease, and keeps it until `leave`: to be called before anything of this engine's that others might find. Raises
        `StoreError`."""
        if not self.id:
            return
        self._used_at = _read_clock()
        if self._is_idle:
            self._hurry.set()
        await self.confirm()
        if self._keeper is None or self._keeper.done():
            self._hurry = Event()  # of the loop that runs now
            self._keeper = create_task(self._keep())

    async def confirm(self) -> None:
        """Returns once the lease holds, at once if it does: whoever waited has been stopped if its run is another's by now."""
        if not self.is_held:
            await self.beat()

    @property
    def is_held(self) -> bool:
        """Whether the lease holds as far as this engine counts on it: nobody else has claimed one of its runs."""
        return not self.id or _read_clock() < self._trusted_until

    async def beat(self) -> None:
        """Extends the lease. Raises `StoreError`."""
        if not self.id:
            return
        async with self._turn:
            self._beat_at = asked_at = _read_clock()
            self._is_idle = not self._is_busy() and asked_at > self._used_at + LINGER_SECONDS
            seconds = IDLE_SECONDS if self._is_idle else LEASE_SECONDS
            is_held = await self._leases.beat(_describe(self.id), seconds)
            # One that was extended in the last moment may have been found over by somebody who asked before.
            if self._is_shown and not (is_held and asked_at < self._trusted_until):
                await self._recheck()
            self._is_shown = True
            self._trust_until(asked_at + TRUSTED * seconds)

    def _trust_until(self, moment: float) -> None:
        self._trusted_until = moment
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = get_running_loop().call_later(max(moment - _read_clock(), 0), self._begin_doubt)

    def _begin_doubt(self) -> None:
        self._doubt = create_task(self._look_once_more())

    async def _look_once_more(self) -> None:
        """Whoever was only stopped for a while finds that nobody has claimed anything, and goes on."""
        with move_on_after(DOUBT_SECONDS), suppress(StoreError):
            await self.confirm()
            return
        self._on_doubt()

    async def _keep(self) -> None:
        while True:
            with move_on_after(BEAT_SECONDS):
                await self._hurry.wait()
            self._hurry.clear()
            pause = BEAT_SECONDS
            if self._is_idle and not self._is_busy() and _read_clock() > self._used_at + LINGER_SECONDS:
                pause = IDLE_SECONDS / 4
            try:
                if _read_clock() > self._beat_at + pause / 2:
                    await self.beat()
            except StoreError as error:
                log.warning("the store could not be told that this process lives: %s", error)

    async def leave(self) -> None:
        """Ends the lease: what this engine has left undone can be taken up at once."""
        for work in (self._alarm, self._doubt, self._keeper):
            if work is not None:
                work.cancel()
        self._alarm = self._doubt = self._keeper = None
        if self._is_shown:
            self._is_shown, self._trusted_until = False, 0.0
            await self._leases.release(self.id)

    async def is_driven(self, driver: str) -> bool:
        """Whether this driver is another engine that lives. One that has left, or never said who it was, is gone."""
        if not driver or driver == self.id:
            return False
        await self.end_leases_of_the_dead()
        return await self._leases.is_alive(driver)

    async def end_leases_of_the_dead(self) -> None:
        """Ends the leases of engines whose process was on this machine, and is there no more."""
        for driver in await self._leases.list_drivers(find_place()):
            if driver.pid and not is_running(driver):
                await self._leases.release(driver.id)


@cache
def _describe(id: str) -> Driver:
    pid = os.getpid()
    return Driver(id, find_place(), pid, _find_born(pid) or "")


def _read_clock() -> float:
    """Seconds that go on while the machine sleeps, where there is such a clock."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except AttributeError:
        return time.monotonic()


@cache
def find_place() -> str:
    """This machine since its last start, and what numbers our processes in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return gethostname()


def is_running(driver: Driver) -> bool:
    """Whether a process of this place is there, and is the one that it was. One that is hidden from us is taken to be."""
    try:
        os.kill(driver.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = _find_born(driver.pid)
    return found is None or found == driver.born


def _find_born(pid: int) -> str | None:
    """When the process began, as the kernel counts it; None where that is not told, and empty for one that has ended and only
    waits to be looked at by whoever started it."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else rest[18]
