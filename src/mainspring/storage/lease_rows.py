"""Who drives which run, in a SQLite file: a row for each driver with the end of its lease, and a column of the run.

A file has no clock of its own. All who share it are on one machine, so theirs is that of the machine: seconds since its start,
which nobody sets. A lease from before that start is over.

Between processes nothing is told; whoever waits looks again after a while. A look costs the same however many runs there are.
"""

import time
from functools import cache
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from anyio import sleep

from mainspring.ports import OWNED, Claim, Driver
from mainspring.storage.segment import not_found
from mainspring.storage.sqlite import Database, Migration

# How soon a driver learns that it is to cancel a run.
CANCEL_POLL: Final = 0.1
# How long the row of a driver is kept when its lease is over. One that was only stopped for a while may come back.
FORGOTTEN_SECONDS: Final = 86_400.0

LEASES: Final[Migration] = (
    # Only runs that have not ended have a driver.
    "ALTER TABLE runs ADD COLUMN driver TEXT",
    "ALTER TABLE runs ADD COLUMN is_cancelled INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX runs_by_driver ON runs (driver, created_at) WHERE status = 'in_progress'",
    "CREATE INDEX runs_to_cancel ON runs (driver) WHERE is_cancelled = 1",
    """
    CREATE TABLE drivers (
        id TEXT PRIMARY KEY,
        place TEXT NOT NULL,
        pid INTEGER NOT NULL,
        born TEXT NOT NULL,
        boot TEXT NOT NULL,
        expires REAL NOT NULL
    ) WITHOUT ROWID
    """,
)
_LIVES: Final = "drivers.boot = :boot AND drivers.expires > :now"
_HELD: Final = f"SELECT 1 FROM drivers WHERE id = :driver AND {_LIVES}"
_BEAT: Final = """
    INSERT INTO drivers (id, place, pid, born, boot, expires) VALUES (:driver, :place, :pid, :born, :boot, :until)
    ON CONFLICT (id) DO UPDATE SET boot = excluded.boot, expires = excluded.expires
"""
_FORGET: Final = """
    DELETE FROM drivers WHERE (boot <> :boot OR expires < :before)
    AND NOT EXISTS (SELECT 1 FROM runs INDEXED BY runs_by_driver WHERE driver = drivers.id AND status = 'in_progress')
"""
_DRIVER: Final = f"""
    SELECT drivers.id FROM runs LEFT JOIN drivers ON drivers.id = runs.driver AND {_LIVES} WHERE runs.id = :run
"""
_CLAIM: Final = f"""
    UPDATE runs SET driver = :driver WHERE id = :run AND status = 'in_progress' AND (
        driver IS NULL OR driver = :driver OR NOT EXISTS (SELECT 1 FROM drivers WHERE drivers.id = runs.driver AND {_LIVES})
    ) RETURNING is_cancelled
"""
_OF_KIND: Final = f"status = 'in_progress' AND (instr(tenant, char({ord(OWNED)})) > 0) = :owned"
# The drivers of runs are found one by one, in the order of their names: there are few of them, and many runs.
_NEXT: Final = "SELECT min(driver) FROM runs INDEXED BY runs_by_driver WHERE status = 'in_progress' AND driver"
_CLAIMABLE: Final = f"""
    WITH RECURSIVE named (driver) AS (
        {_NEXT} > '' UNION ALL SELECT ({_NEXT} > named.driver) FROM named WHERE named.driver IS NOT NULL
    )
    SELECT id FROM (
        SELECT id, created_at, number FROM runs INDEXED BY runs_by_driver WHERE driver IS NULL AND {_OF_KIND}
        UNION ALL
        SELECT runs.id, created_at, number FROM named CROSS JOIN runs INDEXED BY runs_by_driver ON runs.driver = named.driver
        WHERE NOT EXISTS (SELECT 1 FROM drivers WHERE drivers.id = named.driver AND {_LIVES}) AND {_OF_KIND}
    ) ORDER BY created_at, number LIMIT :limit
"""


class SqliteLeases:
    """The `ports.Leases` of a file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, driver: Driver, seconds: float) -> bool:
        return await self._database.write(_beat, driver, seconds)

    async def release(self, driver: str, run_id: str | None = None) -> None:
        await self._database.write(_release, driver, run_id)

    async def list_drivers(self, place: str | None = None) -> list[Driver]:
        return await self._database.read(_list_drivers, place)

    async def is_alive(self, driver: str) -> bool:
        return await self._database.read(_is_alive, driver)

    async def find_driver(self, run_id: str) -> str | None:
        return await self._database.read(_find_driver, run_id)

    async def claim(self, run_id: str, driver: str) -> Claim | None:
        return await self._database.write(_claim, run_id, driver)

    async def list_claimable(self, *, owned: bool = False, limit: int = 1000) -> list[str]:
        return await self._database.read(list_claimable, owned, limit)

    async def wait_for_claimable(self, seconds: float) -> None:
        await sleep(seconds)

    async def request_cancel(self, run_id: str) -> None:
        await self._database.write(_request_cancel, run_id)

    async def list_cancelled(self, driver: str) -> list[str]:
        return await self._database.read(_list_cancelled, driver)

    async def wait_for_cancel(self, driver: str, seconds: float) -> None:
        await sleep(min(seconds, CANCEL_POLL))


@cache
def _find_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read_clock() -> float:
    # Where the machine does not say when it was started, its clock must do.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _find_boot() else time.time()


def _moment(**values: object) -> dict[str, object]:
    return {"boot": _find_boot(), "now": _read_clock(), **values}


def _beat(connection: Connection, driver: Driver, seconds: float) -> bool:
    now = _read_clock()
    values = _moment(now=now, driver=driver.id, place=driver.place, pid=driver.pid, born=driver.born, until=now + seconds)
    is_held = connection.execute(_HELD, values).fetchone() is not None
    connection.execute(_BEAT, values)
    if not is_held:
        connection.execute(_FORGET, _moment(before=now - FORGOTTEN_SECONDS))
    return is_held


def _release(connection: Connection, driver: str, run_id: str | None) -> None:
    if run_id is None:
        connection.execute("UPDATE drivers SET expires = 0 WHERE id = ?", (driver,))
    else:
        connection.execute("UPDATE runs SET driver = NULL WHERE id = ? AND driver = ?", (run_id, driver))


def _list_drivers(connection: Connection, place: str | None) -> list[Driver]:
    query = f"SELECT id, place, pid, born FROM drivers WHERE place = coalesce(:place, place) AND {_LIVES}"
    return [Driver(*row) for row in connection.execute(query, _moment(place=place))]


def _is_alive(connection: Connection, driver: str) -> bool:
    return connection.execute(_HELD, _moment(driver=driver)).fetchone() is not None


def _find_driver(connection: Connection, run_id: str) -> str | None:
    if (row := connection.execute(_DRIVER, _moment(run=run_id)).fetchone()) is None:
        raise not_found(run_id)
    found: str | None = row[0]
    return found


def _claim(connection: Connection, run_id: str, driver: str) -> Claim | None:
    before = connection.execute("SELECT driver FROM runs WHERE id = ?", (run_id,)).fetchone()
    rows = connection.execute(_CLAIM, _moment(run=run_id, driver=driver)).fetchall()
    if not rows:
        _find_driver(connection, run_id)
        return None
    return Claim(bool(rows[0][0]), before[0] is None)


def list_claimable(connection: Connection, owned: bool, limit: int) -> list[str]:
    return [id for [id] in connection.execute(_CLAIMABLE, _moment(owned=owned, limit=limit))]


def _request_cancel(connection: Connection, run_id: str) -> None:
    asked = "UPDATE runs SET is_cancelled = 1 WHERE id = ? AND status = 'in_progress'"
    if connection.execute(asked, (run_id,)).rowcount == 0:
        _find_driver(connection, run_id)


def _list_cancelled(connection: Connection, driver: str) -> list[str]:
    query = "SELECT id FROM runs INDEXED BY runs_to_cancel WHERE driver = ? AND is_cancelled = 1"
    return [id for [id] in connection.execute(query, (driver,))]
