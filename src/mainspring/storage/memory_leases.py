"""Who drives which run of a store in memory: engines of one process, which tell each other by events."""

from asyncio import Event, timeout
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from msgspec import Struct

from mainspring.ports import OWNED, Claim, Driver


class OpenRun(Struct):
    """A run that has not ended."""

    tenant: str
    created_at: float
    driver: str | None
    is_cancelled: bool = False


class _Lease(Struct):
    driver: Driver
    expires: float


class MemoryLeases:
    """The `ports.Leases` of a process. `runs` are those that have not ended; `check` raises `NotFound` for others."""

    def __init__(self, check: Callable[[str], object]) -> None:
        self.runs: dict[str, OpenRun] = {}
        self._check = check
        self._leases: dict[str, _Lease] = {}
        self._waiting: set[Event] = set()

    def open(self, run_id: str, run: OpenRun) -> None:
        """The run has begun."""
        self.runs[run_id] = run
        if run.driver is None:
            self._tell()

    async def beat(self, driver: Driver, seconds: float) -> bool:
        is_held = self._is_alive(driver.id)
        self._leases[driver.id] = _Lease(driver, monotonic() + seconds)
        return is_held

    async def release(self, driver: str, run_id: str | None = None) -> None:
        if run_id is None:
            self._leases.pop(driver, None)
        elif (run := self.runs.get(run_id)) is not None and run.driver == driver:
            run.driver = None
        self._tell()

    async def list_drivers(self, place: str | None = None) -> list[Driver]:
        alive = [each.driver for each in self._leases.values() if self._is_alive(each.driver.id)]
        return [driver for driver in alive if place in (None, driver.place)]

    async def is_alive(self, driver: str) -> bool:
        return self._is_alive(driver)

    async def find_driver(self, run_id: str) -> str | None:
        self._check(run_id)
        run = self.runs.get(run_id)
        return None if run is None or not self._is_alive(run.driver) else run.driver

    async def claim(self, run_id: str, driver: str) -> Claim | None:
        self._check(run_id)
        if (run := self.runs.get(run_id)) is None or (run.driver != driver and self._is_alive(run.driver)):
            return None
        was_free, run.driver = not run.driver, driver
        return Claim(run.is_cancelled, was_free)

    async def list_claimable(self, *, owned: bool = False, limit: int = 1000) -> list[str]:
        found = [(run.created_at, id) for id, run in self.runs.items() if not self._is_alive(run.driver)]
        return [id for _, id in sorted(found, key=lambda each: each[0]) if (OWNED in self.runs[id].tenant) is owned][:limit]

    async def wait_for_claimable(self, seconds: float) -> None:
        await self._wait(seconds)

    async def request_cancel(self, run_id: str) -> None:
        self._check(run_id)
        if (run := self.runs.get(run_id)) is not None:
            run.is_cancelled = True
            self._tell()

    async def list_cancelled(self, driver: str) -> list[str]:
        return [id for id, run in self.runs.items() if run.driver == driver and run.is_cancelled]

    async def wait_for_cancel(self, driver: str, seconds: float) -> None:
        await self._wait(seconds)

    def _is_alive(self, driver: str | None) -> bool:
        lease = None if driver is None else self._leases.get(driver)
        return lease is not None and lease.expires > monotonic()

    def _tell(self) -> None:
        for news in self._waiting:
            news.set()

    async def _wait(self, seconds: float) -> None:
        news = Event()
        self._waiting.add(news)
        try:
            with suppress(TimeoutError):
                async with timeout(seconds):
                    await news.wait()
        finally:
            self._waiting.discard(news)
