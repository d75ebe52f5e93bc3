"""Who drives which run, in PostgreSQL: a row for each driver with the end of its lease, and a column of the run.

All times are the server's. A driver is told of a cancel on a channel of its own, and all who wait for work on one channel. What
is told may be lost with a connection, so whoever waits looks again after a while, too.
"""

from asyncio import sleep
from collections.abc import Sequence
from typing import Final

from mainspring.ports import OWNED, Claim, Driver
from mainspring.storage.postgres.listener import Listener
from mainspring.storage.postgres.postgres_server import Row, Server
from mainspring.storage.postgres.run_tables import CHANNEL, CLAIMABLE, escape, make_key, unescape
from mainspring.storage.segment import not_found

# How soon a driver learns that it is to cancel a run if it cannot be told.
CANCEL_POLL: Final = 0.1
FORGOTTEN: Final = "1 day"
_BEAT: Final = """
    WITH held AS MATERIALIZED (
        SELECT expires > clock_timestamp() AS is_held FROM mainspring_drivers WHERE id = $1 FOR UPDATE
    ), kept AS (
        INSERT INTO mainspring_drivers (id, place, pid, born, expires)
        VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5::float8))
        ON CONFLICT (id) DO UPDATE SET expires = excluded.expires
    ) SELECT coalesce((SELECT is_held FROM held), FALSE)
"""
_FORGET: Final = f"""
    DELETE FROM mainspring_drivers driver WHERE expires < now() - interval '{FORGOTTEN}'
    AND NOT EXISTS (SELECT FROM mainspring_runs WHERE driver = driver.id AND status = 'in_progress')
"""
_RELEASE: Final = f"""
    WITH released AS (UPDATE mainspring_drivers SET expires = '-infinity' WHERE id = $1)
    SELECT pg_notify('{CLAIMABLE}', '')
"""
_GIVE_BACK: Final = f"""
    WITH released AS (UPDATE mainspring_runs SET driver = NULL WHERE key = $2 AND driver = $1)
    SELECT pg_notify('{CLAIMABLE}', '')
"""
_DRIVER: Final = """
    SELECT driver.id FROM mainspring_runs run
    LEFT JOIN mainspring_drivers driver ON driver.id = run.driver AND driver.expires > now() WHERE run.key = $1
"""
# Of two who claim at once, one waits for the other, and then finds another row than the one that it has seen. That the driver is
# the same says nothing: one whose lease was over has it again once it has renewed the lease and claimed its run. Whoever has the
# run keeps it, whatever else was written to the row, such as a cancel.
_CLAIM: Final = """
    WITH seen AS MATERIALIZED (SELECT number, driver, xmin FROM mainspring_runs WHERE key = $1)
    UPDATE mainspring_runs run SET driver = $2 FROM seen
    WHERE run.number = seen.number AND (run.xmin = seen.xmin OR run.driver = $2) AND run.status = 'in_progress'
        AND (seen.driver IS NULL OR seen.driver = $2 OR NOT EXISTS (
            SELECT FROM mainspring_drivers driver WHERE driver.id = seen.driver AND driver.expires > now()
        ))
    RETURNING run.is_cancelled, seen.driver IS NULL
"""
_OF_KIND: Final = f"status = 'in_progress' AND (strpos(tenant, chr({ord(OWNED)})) > 0) = $1"
# The drivers of runs are found one by one, in the order of their names: there are few of them, and many runs.
_NEXT: Final = "SELECT min(driver) AS driver FROM mainspring_runs WHERE status = 'in_progress' AND driver"
_CLAIMABLE_RUNS: Final = f"""
    WITH RECURSIVE named AS (
        {_NEXT} > '' UNION ALL SELECT ({_NEXT} > named.driver) FROM named WHERE named.driver IS NOT NULL
    ), gone AS MATERIALIZED (
        SELECT driver FROM named WHERE driver IS NOT NULL
            AND NOT EXISTS (SELECT FROM mainspring_drivers driver WHERE driver.id = named.driver AND driver.expires > now())
    )
    SELECT id FROM (
        SELECT id, created_at, number FROM mainspring_runs WHERE driver IS NULL AND {_OF_KIND}
        UNION ALL
        SELECT run.id, run.created_at, run.number FROM gone JOIN mainspring_runs run USING (driver) WHERE {_OF_KIND}
    ) found ORDER BY created_at, number LIMIT $2
"""
_CANCEL: Final = f"""
    WITH asked AS (
        UPDATE mainspring_runs SET is_cancelled = TRUE WHERE key = $1 AND status = 'in_progress' RETURNING driver
    ) SELECT pg_notify('{CHANNEL}' || driver, '') FROM asked WHERE driver IS NOT NULL
"""


class PostgresLeases:
    """The `ports.Leases` of a database. It does not wait for what is being written: a lease must be renewed in time."""

    def __init__(self, server: Server, listener: Listener) -> None:
        self._server, self._listener = server, listener

    async def _fetch(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._server.fetch(statement, *values, is_urgent=True)

    async def beat(self, driver: Driver, seconds: float) -> bool:
        [[is_held]] = await self._fetch(_BEAT, driver.id, escape(driver.place), driver.pid, driver.born, seconds)
        if not is_held:
            await self._fetch(_FORGET)
        return bool(is_held)

    async def release(self, driver: str, run_id: str | None = None) -> None:
        if run_id is None:
            await self._fetch(_RELEASE, driver)
        else:
            await self._fetch(_GIVE_BACK, driver, make_key(run_id))

    async def list_drivers(self, place: str | None = None) -> list[Driver]:
        query = "SELECT id, place, pid, born FROM mainspring_drivers WHERE place = coalesce($1, place) AND expires > now()"
        rows = await self._fetch(query, None if place is None else escape(place))
        return [Driver(id, unescape(where), pid, born) for id, where, pid, born in rows]

    async def is_alive(self, driver: str) -> bool:
        return bool(await self._fetch("SELECT 1 FROM mainspring_drivers WHERE id = $1 AND expires > now()", driver))

    async def find_driver(self, run_id: str) -> str | None:
        for [driver] in await self._fetch(_DRIVER, make_key(run_id)):
            return driver  # type: ignore[no-any-return]
        raise not_found(run_id)

    async def claim(self, run_id: str, driver: str) -> Claim | None:
        for is_cancelled, was_free in await self._fetch(_CLAIM, make_key(run_id), driver):
            return Claim(is_cancelled, was_free)
        await self.find_driver(run_id)
        return None

    async def list_claimable(self, *, owned: bool = False, limit: int = 1000) -> list[str]:
        return [unescape(id) for [id] in await self._fetch(_CLAIMABLE_RUNS, owned, limit)]

    async def wait_for_claimable(self, seconds: float) -> None:
        if not await self._listener.wait(CLAIMABLE, seconds):
            await sleep(seconds)

    async def request_cancel(self, run_id: str) -> None:
        if not await self._fetch(_CANCEL, make_key(run_id)):
            await self.find_driver(run_id)

    async def list_cancelled(self, driver: str) -> list[str]:
        query = "SELECT id FROM mainspring_runs WHERE driver = $1 AND is_cancelled"
        return [unescape(id) for [id] in await self._fetch(query, driver)]

    async def wait_for_cancel(self, driver: str, seconds: float) -> None:
        if not await self._listener.wait(CHANNEL + driver, seconds):
            await sleep(min(seconds, CANCEL_POLL))
