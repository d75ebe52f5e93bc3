"""Which engines are alive on a store, so that none takes a run away from another that is still driving it.

An engine that drives stored runs leaves a document that says which process it is. On the same machine that is proof: the process
is there, or it is not. For one on another machine the time of its last heartbeat must do. An engine has one `Presence`, for
whatever it drives.
"""

import os
import time
from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from socket import gethostname

import msgspec
from anyio import sleep
from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.core.ids import random_id
from mainspring.core.items import decode, encode
from mainspring.ports import Document, Store

log = getLogger(__name__)

DRIVER = "driver"
BEAT_SECONDS = 10.0
LOST_SECONDS = 45.0


class Sign(Struct, frozen=True):
    """Where an engine runs: `place` is what numbers its processes, `born` tells a process from a later one with its number."""

    place: str
    pid: int
    born: str
    beat: float


class Presence:
    """This engine's sign of life. `id` names it in the logs of the runs that it drives; empty where no log outlives it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_shown = False
        self.id = random_id("drv") if store.is_durable else ""

    async def show(self) -> None:
        """Leaves the sign, before the first run that others might find."""
        if self.id and not self._is_shown:
            self._is_shown = True
            try:
                await self.beat()
            except StoreError:
                self._is_shown = False
                raise

    async def beat(self) -> None:
        if self._is_shown:
            sign = Sign(_place(), os.getpid(), _born(os.getpid()), time.time())
            await self._store.put([Document(DRIVER, self.id, encode(sign))])

    async def keep_beating(self, is_busy: Callable[[], bool]) -> None:
        """Beats while there is something to drive, until it is cancelled."""
        while True:
            await sleep(BEAT_SECONDS)
            try:
                if is_busy():
                    await self.beat()
            except StoreError as error:
                log.warning("the store could not be told that this process lives: %s", error)

    async def leave(self) -> None:
        if self._is_shown:
            self._is_shown = False
            await self._store.remove(DRIVER, self.id)

    async def is_driven(self, driver: str) -> bool:
        """Whether this driver is another engine that lives. One that has left, or never said who it was, is gone."""
        if not driver or driver == self.id:
            return False
        document = await self._store.get(DRIVER, driver)
        if document is None:
            return False
        try:
            sign = decode(document.body, Sign)
        except msgspec.ValidationError:
            return False
        if sign.place == _place():
            return _born(sign.pid) == sign.born and _is_running(sign.pid)
        return time.time() - sign.beat < LOST_SECONDS


def _place() -> str:
    """This machine since its last start, and what numbers our processes in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return gethostname()


def _born(pid: int) -> str:
    """When the process began, as the kernel counts it; empty where it does not say, and for one that has ended and only waits to
    be looked at by whoever started it."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
