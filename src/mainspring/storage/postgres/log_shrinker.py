"""Makes one row of the log of a run that has ended, without the texts that its entries have.

Theory of operation. While a run streams, its log gets a row with each batch. When it has ended, and a moment has passed in which
others end too, all of its rows become one, those of several runs by one statement. Nobody waits for that, and the connection that
writes is not held up. A log that a process leaves as it is, is read all the same.
"""

from asyncio import Task, create_task, sleep, to_thread
from collections.abc import Sequence
from logging import getLogger
from typing import Final

from anyio import CancelScope, move_on_after

from mainspring.core.errors import StoreError
from mainspring.core.history import Entry
from mainspring.core.items import Item, decode
from mainspring.storage.postgres.postgres_server import Row, Server
from mainspring.storage.segment import MOST_SHRUNK, shrink_rows

log = getLogger(__name__)

PAUSE_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 2.0
MOST_AT_ONCE: Final = 16
_ROWS: Final = f"""
    SELECT found.number, found.last, found.bodies, run.entries FROM (
        SELECT segment.run AS number, max(segment.last) AS last, array_agg(segment.body ORDER BY segment.first) AS bodies
        FROM mainspring_segments segment JOIN mainspring_runs run ON run.number = segment.run
        WHERE run.key = ANY($1::bytea[]) AND run.ended_at IS NOT NULL
        GROUP BY segment.run HAVING count(*) > 1 AND sum(octet_length(segment.body)) <= {MOST_SHRUNK}
    ) found JOIN mainspring_runs run USING (number)
"""
_REPLACE: Final = """
    WITH kept AS (
        UPDATE mainspring_segments segment SET last = shrunk.last, body = shrunk.body
        FROM unnest($1::bigint[], $2::int[], $3::bytea[]) AS shrunk (run, last, body)
        WHERE segment.run = shrunk.run AND segment.first = 0 RETURNING segment.run
    )
    DELETE FROM mainspring_segments segment USING kept WHERE segment.run = kept.run AND segment.first > 0
"""


class LogShrinker:
    """Shrinks the logs of runs by their keys."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended: list[bytes] = []
        self._task: Task[None] | None = None

    def add(self, key: bytes) -> None:
        """The run has ended."""
        self._ended.append(key)
        if self._task is None or self._task.done():
            self._task = create_task(self._work())

    async def close(self) -> None:
        """Does what is left, unless that takes long."""
        if self._task is not None:
            self._task.cancel()
            with CancelScope(shield=True), move_on_after(CLOSE_SECONDS):
                await self._shrink_all()

    async def _work(self) -> None:
        await sleep(PAUSE_SECONDS)
        await self._shrink_all()

    async def _shrink_all(self) -> None:
        while self._ended:
            keys = self._ended[:MOST_AT_ONCE]
            try:
                await self._shrink(await self._server.fetch(_ROWS, keys))
            except StoreError as error:
                log.info("%d logs stay as they are: %s", len(keys), error)
            del self._ended[: len(keys)]

    async def _shrink(self, rows: Sequence[Row]) -> None:
        shrunk: list[tuple[int, int, bytes]] = []
        for number, last, bodies, entries in rows:
            try:
                body = await to_thread(_shrink_log, bodies, entries)
            except ValueError as error:  # whoever reads it is told
                log.info("the log of run number %d stays as it is: %s", number, error)
                continue
            if body is not None:
                shrunk.append((number, last, body))
        if shrunk:
            await self._server.fetch(_REPLACE, *[list(column) for column in zip(*shrunk, strict=True)])


def _shrink_log(bodies: list[bytes], entries: bytes) -> bytes | None:
    entered: list[Item] = [entry.item for entry in decode(entries, list[Entry])]
    return shrink_rows(bodies, entered)
