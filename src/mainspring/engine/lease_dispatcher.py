"""Runs find their drivers by the store alone: whoever drives runs claims those that nobody does."""

from logging import getLogger

from anyio import sleep

from mainspring.core.errors import StoreError
from mainspring.ports import DispatchedRuns, Leases

log = getLogger(__name__)

# How often drivers look for what nobody has told them of.
LOOK_SECONDS = 0.5
FAILED_SECONDS = 2.0


class LeaseDispatcher:
    """The dispatcher of every store. A run that is stored without a driver can be claimed, and the store wakes those who wait for
    that."""

    def __init__(self, leases: Leases, look_seconds: float = LOOK_SECONDS) -> None:
        self._leases, self._look_seconds = leases, look_seconds

    async def submit(self, run_id: str) -> None:
        """It is there to be claimed already."""

    async def cancel(self, run_id: str) -> None:
        await self._leases.request_cancel(run_id)

    async def work(self, runs: DispatchedRuns) -> None:
        while True:
            try:
                await self._leases.wait_for_claimable(self._look_seconds)
                await runs.drive_all()
            except StoreError as error:
                log.warning("the store could not be asked for unfinished runs: %s", error)
                await sleep(FAILED_SECONDS)
