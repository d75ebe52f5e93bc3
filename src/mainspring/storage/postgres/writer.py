"""The one connection that writes, and what happens when it is cut.

Theory of operation. Jobs wait in a queue. Those that wait side by side become one statement (group commit), so one round trip and
one commit; while it is under way the next ones gather. What needs several statements has a transaction of its own, in its turn.

A writer has a row in the database: the number of its last batch, and its epoch. If the connection is cut, nobody knows whether
the batch under way was committed. So the next connection first raises the epoch, which waits for what the old one is still
doing and ends what it has not begun, and then reads which batch was the last: if it is the one in doubt, that is done, and its
outcome is in the row; if not, it is written again. Nothing is lost, and nothing is done twice.

While the server is away jobs wait, but no longer than `PATIENCE_SECONDS`; then they fail.
"""

from asyncio import CancelledError, Event, Future, Task, create_task, get_running_loop, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from logging import getLogger
from os import urandom
from typing import Any, Final, TypeVar

from msgspec import Struct

from mainspring.core.errors import MainspringError, StoreDoubt, StoreError
from mainspring.ports import Document, Segment
from mainspring.storage.audit_chain import make_anchor
from mainspring.storage.postgres.anchors import Anchors
from mainspring.storage.postgres.batch import Batch, Job, build_statement
from mainspring.storage.postgres.log_shrinker import LogShrinker
from mainspring.storage.postgres.postgres_server import PATIENCE_SECONDS, Connection, Row, Server, is_lost, is_to_repeat, say_why
from mainspring.storage.postgres.run_tables import make_key
from mainspring.storage.segment import explain_mismatch

log = getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
# How long the row of a writer that did not take leave is kept.
FORGOTTEN: Final = "1 day"
_ENROL: Final = """
    INSERT INTO mainspring_writers (id, epoch, batch, refused, seen_at) VALUES ($1, 1, 0, '{}', now())
    ON CONFLICT (id) DO UPDATE SET epoch = mainspring_writers.epoch + 1 RETURNING epoch, batch, refused
"""
_LENGTHS: Final = """
    SELECT run.key, run.ended_at IS NOT NULL,
        (SELECT last + 1 FROM mainspring_segments WHERE run = run.number ORDER BY first DESC LIMIT 1)
    FROM mainspring_runs run WHERE run.key = ANY($1::bytea[])
"""
_MARK: Final = """
    UPDATE mainspring_writers SET batch = $3, refused = '{}', seen_at = now() WHERE id = $1 AND epoch = $2 RETURNING 1
"""


class Undone(Exception):
    """What a transaction was to do is not to be done: it is rolled back, and `result` is its result."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result


class _Alone(Struct, eq=False):
    """Work in a transaction of its own."""

    future: "Future[Any]"
    since: float
    work: Callable[[Connection], Awaitable[object]]
    ticket: int = 0


class _FencedError(Exception):
    """Another connection of this writer has taken over, or its row is gone."""


class Writer:
    """Writes what it is given, in the order it was given, between `open` and `close`, in one event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._id = urandom(16)
        self._queue: deque[Job | _Alone] = deque()
        self._connection: Connection | None = None
        self._epoch = self._number = 0
        self._last: Row = None
        self._task: Task[None] | None = None
        self._wake = Event()
        self._is_closing = True
        self._is_busy = False
        self._submitted = 0
        self._readers: list[tuple[int, Future[None]]] = []
        self._anchors = Anchors()
        self._shrinker = LogShrinker(server)

    async def open(self) -> None:
        self._id, self._is_closing, self._wake, self._anchors = urandom(16), False, Event(), Anchors()
        try:
            connection = await self._connect()
            sweep = f"DELETE FROM mainspring_writers WHERE seen_at < now() - interval '{FORGOTTEN}'"
            await connection.execute(sweep)
        except Exception as error:  # asyncpg's are many
            self._drop()
            raise self._server.explain(error) from error
        self._task = create_task(self._work())

    async def close(self) -> None:
        """Returns when everything asked for is written, or has failed."""
        self._is_closing = True
        self._wake.set()
        self._revive()
        if self._task is not None:
            await self._task
            self._task = None
        await self._shrinker.close()
        if self._connection is not None:
            try:
                await self._connection.execute("DELETE FROM mainspring_writers WHERE id = $1", self._id)
                await self._connection.close(timeout=1)
            except Exception as error:  # whatever it is, it is over
                log.debug("%s: %s", self._server.name, error)
            self._drop()

    async def catch_up(self) -> None:
        """Waits until all that was given so far is written, or has failed: so an answer is never older than its question."""
        if self._queue or self._is_busy:
            reader: Future[None] = get_running_loop().create_future()
            self._readers.append((self._submitted, reader))
            await reader

    def append(self, segment: Segment) -> "Future[None]":
        return self._submit(segment=segment)

    def put(self, document: Document, *, if_absent: bool) -> "Future[bool]":
        return self._submit(document=document, if_absent=if_absent)

    def transact(self, work: Callable[[Connection], Awaitable[T]]) -> "Future[T]":
        """What `work` returns, in a transaction of its own; it may be called again if that is in doubt. `Undone` takes all of it
        back and has a result, a `MainspringError` takes all of it back, too."""
        loop = get_running_loop()
        return self._enqueue(_Alone(loop.create_future(), loop.time(), work))

    def _submit(
        self, *, segment: Segment | None = None, document: Document | None = None, if_absent: bool = False
    ) -> "Future[Any]":
        loop = get_running_loop()
        return self._enqueue(Job(loop.create_future(), loop.time(), segment, document, if_absent))

    def _enqueue(self, job: Job | _Alone) -> "Future[Any]":
        if self._is_closing:
            job.future.set_exception(StoreError("the database is not open"))
            return job.future
        self._submitted += 1
        job.ticket = self._submitted
        self._queue.append(job)
        self._wake.set()
        self._revive()
        return job.future

    def _revive(self) -> None:
        """Whoever ends a loop cancels every task in it, and then writes what it leaves behind: that is to be written, too."""
        if self._task is not None and self._task.cancelled():
            self._task = create_task(self._work())

    async def _work(self) -> None:
        while True:
            self._release_readers()
            if not self._queue:
                if self._is_closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            self._is_busy = True
            jobs: list[Job | _Alone] = [self._queue[0]]
            try:
                if isinstance(job := self._queue[0], _Alone):
                    self._queue.popleft()
                    await self._write_alone(job)
                else:
                    batch = self._gather()
                    jobs[:] = batch.jobs
                    await self._write(batch)
            except CancelledError:
                self._drop()
                for job in jobs:
                    _set_exception(job.future, StoreError("the process was stopped before this was written"))
                raise
            finally:
                self._is_busy = False

    def _release_readers(self) -> None:
        """Those behind whose question nothing waits any more."""
        first = self._queue[0].ticket if self._queue else self._submitted + 1
        waiting = [(ticket, reader) for ticket, reader in self._readers if ticket >= first]
        for ticket, reader in self._readers:
            if ticket < first:
                _set_result(reader, None)
        self._readers = waiting

    def _gather(self) -> Batch:
        batch, waiting = Batch(), deque[Job | _Alone]()
        runs: set[str] = set()
        while self._queue and isinstance(job := self._queue[0], Job):
            self._queue.popleft()
            # Of one run, nothing overtakes what waits.
            run_id = job.segment.run_id if job.segment is not None else ""
            if run_id in runs or not batch.add(job):
                waiting.append(job)
                runs |= {run_id} - {""}
        self._queue.extendleft(reversed(waiting))
        return batch

    async def _write(self, batch: Batch) -> None:
        try:
            refused = await self._persist(batch.jobs, lambda connection, number: self._execute(connection, batch, number))
        except Exception as error:  # ours, asyncpg's, or of what cannot be encoded
            await self._fail(batch, error)
            return
        await self._settle(batch, set(refused))

    async def _fail(self, batch: Batch, error: Exception) -> None:
        """If the server or what was to be written is at fault, others may not be: each is tried again alone."""
        if len(batch.jobs) == 1 or is_lost(error) or isinstance(error, StoreDoubt):
            for job in batch.jobs:
                _set_exception(job.future, self._server.explain(error))
            return
        for job in batch.jobs:
            alone = Batch()
            alone.add(job)
            await self._write(alone)

    async def _execute(self, connection: Connection, batch: Batch, number: int) -> Sequence[int]:
        ends = await self._anchors.find(connection, self._id.hex()) if batch.has_notes else []
        anchor = make_anchor([end.anchor for end in ends]) if ends else None
        statement = build_statement(batch, self._id, self._epoch, number, anchor)
        row = await connection.fetchrow(statement.text, *statement.values)
        if row is None:
            raise _FencedError
        await self._anchors.keep(connection, ends)
        refused: Sequence[int] = row[0]
        return refused

    async def _settle(self, batch: Batch, refused: set[int]) -> None:
        chained = {place: chain.jobs[0] for chain in batch.chains.values() for place in chain.jobs}
        superseded: list[Job] = []
        for place, job in enumerate(batch.jobs):
            is_refused = chained.get(place, place) in refused
            if job.document is not None:
                _set_result(job.future, not is_refused)
            elif is_refused:
                superseded.append(job)
            else:
                _set_result(job.future, None)
        for run_id, chain in batch.chains.items():
            if chain.has_more_rows and chain.jobs[0] not in refused:
                self._shrinker.add(make_key(run_id))
        if superseded:
            await self._explain_refusals(superseded)

    async def _explain_refusals(self, jobs: Sequence[Job]) -> None:
        segments = [job.segment for job in jobs if job.segment is not None]
        try:
            rows = await self._server.fetch(_LENGTHS, [make_key(segment.run_id) for segment in segments])
        except StoreError as error:
            for job in jobs:
                _set_exception(job.future, error)
            return
        known = {key: (length or 0, has_ended) for key, has_ended, length in rows}
        for job, segment in zip(jobs, segments, strict=True):
            length, has_ended = known.get(make_key(segment.run_id), (0, False))
            _set_exception(job.future, explain_mismatch(segment, length=length, has_ended=has_ended))

    async def _write_alone(self, job: _Alone) -> None:
        result: list[object] = []

        async def execute(connection: Connection, number: int) -> Sequence[int]:
            result.clear()
            try:
                async with connection.transaction():
                    result.append(await job.work(connection))
                    if await connection.fetchval(_MARK, self._id, self._epoch, number) is None:
                        raise _FencedError
            except Undone as undone:
                result[:] = [undone.result]
            return ()

        try:
            await self._persist([job], execute)
        except Exception as error:  # ours, or asyncpg's
            _set_exception(job.future, self._server.explain(error))
        else:
            _set_result(job.future, result[0])

    async def _persist(
        self, jobs: Sequence[Job | _Alone], execute: Callable[[Connection, int], Awaitable[Sequence[int]]]
    ) -> Sequence[int]:
        """Writes until it is known to be written, and returns who was refused. Raises once that has taken too long."""
        self._number += 1
        number, pause, is_in_doubt, said = self._number, FIRST_PAUSE, False, ""
        while True:
            try:
                connection = self._connection or await self._connect()
                if is_in_doubt and self._last is not None and self._last["batch"] == number:
                    return self._last["refused"]  # type: ignore[no-any-return]
                is_in_doubt = True
                return await execute(connection, number)
            except Exception as error:  # asyncpg's are many
                if isinstance(error, _FencedError) or is_lost(error):
                    self._drop()
                elif not is_to_repeat(error):
                    raise
                if get_running_loop().time() - min(job.since for job in jobs) > PATIENCE_SECONDS:
                    if is_in_doubt and is_lost(error):
                        raise StoreDoubt(f"{self._server.name} cannot be reached, and may have written this") from error
                    raise
                if (reason := say_why(error)) != said:
                    log.warning("%s: %s; trying again", self._server.name, reason)
                said = reason
            self._expire()
            await sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _expire(self) -> None:
        """Whoever has waited too long is told so, and waits no more."""
        before = get_running_loop().time() - PATIENCE_SECONDS
        while self._queue and self._queue[0].since < before:
            told = StoreError(f"{self._server.name} cannot be reached; check that it runs")
            _set_exception(self._queue.popleft().future, told)

    async def _connect(self) -> Connection:
        """A connection of the next epoch; whatever an earlier one was doing is over."""
        connection = await self._server.connect()
        try:
            self._last = await connection.fetchrow(_ENROL, self._id)
        except BaseException:
            connection.terminate()
            raise
        self._epoch = self._last["epoch"]
        self._connection = connection
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _set_result(future: "Future[Any]", result: object) -> None:
    if not future.done():  # cancelled by whoever waited for it
        future.set_result(result)


def _set_exception(future: "Future[Any]", error: MainspringError) -> None:
    if not future.done():
        future.set_exception(error)
