"""The one thread that works on the database file.

Theory of operation. The event loop only puts jobs into a queue and is woken when they are done; the thread owns the connection.
Jobs are done in the order they came, so an answer is never older than its question. Appends that wait side by side become one
transaction: the busier the store, the fewer commits. A segment that does not fit its log is refused alone (`rows.append` says so
without failing); if the transaction itself fails, each segment is tried again in one of its own, so only those fail that must.

Once the file is open, its path is told to the log alone: errors may reach clients, who have no business with it.
"""

import sqlite3
from asyncio import AbstractEventLoop, Future, get_running_loop, shield
from collections.abc import Callable
from contextlib import closing, suppress
from logging import getLogger
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from msgspec import Struct

from mainspring.core.errors import MainspringError, StoreError
from mainspring.storage import run_rows as rows
from mainspring.storage.run_schema import connect, explained, is_locked, transaction
from mainspring.storage.segment import Segment

log = getLogger(__name__)

T = TypeVar("T")


class Append(Struct):
    segment: Segment
    future: Future[None]


class Question(Struct, Generic[T]):
    """Anything but an append: the future learns what `work` returns or raises."""

    work: Callable[[sqlite3.Connection], T]
    future: Future[T]


class Outcome(Struct):
    future: Future[Any]
    result: object = None
    error: Exception | None = None


class Worker:
    """Lives from `start` to `stop`, both called in the event loop that is to be woken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop: AbstractEventLoop = get_running_loop()
        self._jobs: SimpleQueue[Append | Question[Any] | None] = SimpleQueue()
        self._ended: Future[None] = self._loop.create_future()
        self._opened: Future[None] = self._loop.create_future()
        # A daemon, so that a process that forgets to stop it can still end; the file does not mind.
        self._thread = Thread(target=self._work, name=f"store {path.name}", daemon=True)

    async def start(self) -> None:
        """Returns when the file is open; raises `StoreError` if it cannot be, and then there is nothing to stop."""
        self._thread.start()
        try:
            await self._opened
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Returns when everything asked for is done and the file is closed."""
        self._jobs.put(None)
        await shield(self._ended)
        self._thread.join()

    def append(self, segment: Segment) -> Future[None]:
        written: Future[None] = self._loop.create_future()
        self._jobs.put(Append(segment, written))
        return written

    def ask(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        answer: Future[T] = self._loop.create_future()
        self._jobs.put(Question(work, answer))
        return answer

    def _work(self) -> None:
        try:
            with closing(connect(self._path)) as connection:
                self._settle([Outcome(self._opened)])
                self._serve(connection)
        except Exception as error:  # Whatever it is, whoever waits must be told.
            self._settle([Outcome(self._opened, error=self._told(error))])
        finally:
            self._settle([Outcome(self._ended)])

    def _serve(self, connection: sqlite3.Connection) -> None:
        gathered: list[Append] = []
        while True:
            job = self._jobs.get()
            if isinstance(job, Append):
                gathered.append(job)
                if not self._jobs.empty():
                    continue
            if gathered:
                self._settle(self._write(connection, gathered))
                gathered = []
            if isinstance(job, Question):
                self._settle([self._answer(connection, job)])
            if job is None:
                return

    def _write(self, connection: sqlite3.Connection, appends: list[Append]) -> list[Outcome]:
        try:
            with transaction(connection):
                return [Outcome(append.future, error=rows.append(connection, append.segment)) for append in appends]
        except Exception as error:  # Likewise, and the thread must live on.
            if len(appends) == 1 or is_locked(error):
                return [Outcome(append.future, error=self._told(error)) for append in appends]
        return [outcome for append in appends for outcome in self._write(connection, [append])]

    def _answer(self, connection: sqlite3.Connection, question: Question[T]) -> Outcome:
        try:
            return Outcome(question.future, question.work(connection))
        except Exception as error:  # Likewise.
            return Outcome(question.future, error=self._told(error))

    def _told(self, error: Exception) -> MainspringError:
        if isinstance(error, MainspringError):
            return error
        log.error("%s: %s: %s", self._path, type(error).__name__, error)
        if isinstance(error, sqlite3.Error):
            told = explained(error, "the database")
        else:
            told = StoreError(f"this cannot be written or read ({type(error).__name__}: {error})")
        told.__cause__ = error
        return told

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Wakes the loop once for all of them. If it has been closed, nobody is left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_tell, outcomes)


def _tell(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.future.done():  # cancelled by whoever waited for it
            continue
        if outcome.error is not None:
            outcome.future.set_exception(outcome.error)
        else:
            outcome.future.set_result(outcome.result)
