"""SQLite files: how they are opened, recognised, brought up to date, and worked on by one thread. Every SQLite file of ours is.

Theory of operation. A file carries the application id of its `Schema` in its header from its very first page on, so a file that
has content but not this mark is refused before anything is written to it. Each file counts the migrations that it has been
through; each is one transaction, so a file is always at one version or the next. A migration, once released, is never edited: a
change is a new one. Files are for their owner alone: new ones from their first byte on, and those of before once they are opened.

What is deleted is overwritten in the file, and with `erase` it leaves the write-ahead log as well. The room that it leaves is
given back when nobody asks for anything, a megabyte at a time; then the statistics of indexes are looked after, too.

The event loop only puts jobs into a queue and is woken when they are done; the thread owns the connection. Jobs are done in the
order they came, so an answer is never older than its question. Writes that wait side by side become one transaction (group
commit): the busier the file, the fewer commits. If that transaction fails, each write is tried again in one of its own, so only
those fail that must. After damage the file is opened anew for the next job: it may have been mended meanwhile. A question that
may take long is handed, when its turn has come, to a second thread with a connection for reading, so that nothing waits for it.

Once a file is open, its path is told to the log alone: errors may reach clients, who have no business with it.
"""

import os
import sqlite3
from asyncio import AbstractEventLoop, Future, Lock, get_running_loop, shield
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from logging import getLogger
from pathlib import Path
from queue import Empty, SimpleQueue
from stat import S_ISREG
from threading import Thread
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from msgspec import Struct

from mainspring.core.errors import MainspringError, StoreError
from mainspring.storage.vacuum import INCREMENTAL, give_back, update_statistics
from mainspring.storage.wal import find_damage

log = getLogger(__name__)

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

LOCK_SECONDS: Final = 10.0
# Statements that are kept prepared: there is one for each number of rows that were written at once.
STATEMENTS: Final = 400
_ERASE_MS: Final = 250
# Seconds between attempts to empty the log while somebody reads the file.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_TIDY_WRITES: Final = 10_000
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Migration = tuple[str, ...]

# Python asks of all but texts and numbers whether they can be adapted, and of these in vain each time, unless it is told how.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), lambda none: none)


class Schema(Struct, frozen=True):
    """One kind of content that a file may have.

    `tables` must be there and writable. `name` is what errors call an open file, `remedy` what they advise if it cannot be one,
    `retry` what to do once its disk works again.

    Several kinds may share a file: then all but one count their migrations in a `version_table` of their own, and name the
    application ids they join in `joins`. `unmarked` is a query that works on files of before there was an application id, and
    only on those.
    """

    application_id: int
    migrations: tuple[Migration, ...]
    tables: tuple[str, ...]
    name: str = "the database"
    remedy: str = "choose another file with --database"
    retry: str = "try again"
    version_table: str = ""
    joins: tuple[int, ...] = ()
    unmarked: str = ""


def connect(path: Path | None, schema: Schema, *, lock_seconds: float = LOCK_SECONDS) -> sqlite3.Connection:
    """Connects to the file, created if there is none and migrated to the newest version; without a path, to one in memory.

    Raises `StoreError`, and leaves the file as it is, if that is not a database, not ours, damaged, too new, or not writable.
    """
    if path is not None:
        _create(path, schema)
    deadline = monotonic() + lock_seconds
    while True:
        try:
            return _open(path, schema, lock_seconds)
        except sqlite3.Error as error:
            # SQLite itself does not wait for the locks that are needed to create a file or to recover it.
            if _code(error) != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise explain(error, path or ":memory:", schema) from error
        sleep(0.005)


def transaction(connection: sqlite3.Connection) -> AbstractContextManager[None]:
    """All that is written inside, or nothing of it."""
    return _Transaction(connection)


class _Transaction:
    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def explain(error: sqlite3.Error, name: str | Path, schema: Schema) -> StoreError:
    """The error in words for whoever runs the machine: what happened, and what to do. `name` is what the file is called in it."""
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return StoreError(f"the disk holding {name} is full; free space and {schema.retry}")
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"{name} cannot be read or written ({error}); check the disk and its free space, then {schema.retry}"
            )
        case sqlite3.SQLITE_BUSY:
            return StoreError(f"another process has locked {name} for too long; end it, or try again later")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{name} is not a database; {schema.remedy}")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"{name} is damaged ({error}); restore it from a backup, or {schema.remedy}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreError(f"{name} cannot be opened ({error}); let this user read and write the file and its folder")
        case _:
            return StoreError(f"{name} cannot be used ({error}); restore it from a backup, or {schema.remedy}")


class _Job(Struct, Generic[C]):
    work: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: Future[Any]
    is_write: bool
    is_erasing: bool = False
    is_long: bool = False
    # What the work is given if it can be done in parts. Then the result is a list, with an error or None for each.
    parts: Sequence[Any] | None = None

    def perform(self, connection: C) -> object:
        if self.parts is None:
            return self.work(connection, *self.args, **self.kwargs)
        self.work(connection, self.parts)
        return [None] * len(self.parts)

    def fail(self, error: MainspringError) -> "_Outcome":
        return _Outcome(self.future, error if self.parts is None else [error] * len(self.parts))

    def divide(self) -> "list[_Job[C]]":
        """A job for each part, if there are several."""
        if self.parts is None or len(self.parts) < 2:
            return []
        return [_Job(self.work, (), {}, self.future, self.is_write, parts=(part,)) for part in self.parts]


class _Outcome(Struct):
    """What a future is to learn: a result, or an error in place of one."""

    future: Future[Any]
    result: object = None


class Worker(Generic[C]):
    """One thread that owns a connection, between `open` and `close`, in one event loop.

    A subclass says how to connect, what a transaction is, and how to explain what goes wrong. Cancelling a future stops nothing.
    `on_rollback` is called in the thread when a transaction was taken back.
    """

    def __init__(self, name: str, on_rollback: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._opening = Lock()
        self._loop: AbstractEventLoop
        self._jobs: SimpleQueue[_Job[C] | None]
        self._ended: Future[None]
        self._thread: Thread
        self._connection: C | None = None
        self._connections = ExitStack()
        self._questions: SimpleQueue[_Job[C] | None] = SimpleQueue()
        self._reader: Thread | None = None
        self.has_reader = False
        self.on_rollback = on_rollback
        # Whether something that was deleted may be in the log of the file still, because somebody was reading it.
        self._is_owed = False
        # Whether `tidy` may find something to do, and how often was written since it was asked.
        self._is_untidy = True
        self._writes = 0
        self.is_open = False

    def connect(self) -> AbstractContextManager[C]:
        raise NotImplementedError

    def connect_reader(self) -> AbstractContextManager[C]:
        """A second connection, for reading. Asked for only where `has_reader` says that there can be one."""
        raise NotImplementedError

    def empty_log(self, connection: C, wait_ms: int) -> bool:
        """Empties the log of the file, if it has one, waiting so long for readers. Returns whether that is done."""
        return True

    def tidy(self, connection: C) -> bool:
        """Does a little of what can wait until nobody asks for anything. Returns whether there is more of it."""
        return False

    def begin(self, connection: C) -> AbstractContextManager[object]:
        raise NotImplementedError

    def explain(self, error: Exception) -> MainspringError:
        raise NotImplementedError

    def is_damaged(self, error: Exception) -> bool:
        """Whether another connection may work better than the one that this has happened to."""
        return False

    async def open(self) -> None:
        """Returns when the file is open, at once if it is already. Raises `StoreError` that says what to do if it cannot be."""
        async with self._opening:
            if self.is_open:
                return
            self._loop = get_running_loop()
            self._jobs, self._ended = SimpleQueue(), self._loop.create_future()
            opened: Future[None] = self._loop.create_future()
            # A daemon, so that a process that forgets to close it can still end; the file does not mind.
            self._thread = Thread(target=self._work, args=(opened,), name=self._name, daemon=True)
            self._thread.start()
            try:
                await opened
            except BaseException:
                await self._stop()
                raise
            self.is_open = True

    async def close(self) -> None:
        """Returns when everything asked for is done and the file is closed."""
        if self.is_open:
            self.is_open = False
            await self._stop()

    def read(self, work: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """What `work` returns or raises when it is called in the thread, with the connection and these arguments."""
        return self._submit(work, args, kwargs, is_write=False)

    def ask(self, work: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like `read`, for a question that may take long: others do not wait behind it."""
        return self._submit(work, args, kwargs, is_write=False, is_long=True)

    def write(self, work: Callable[Concatenate[C, P], T | MainspringError], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The same in a transaction, which others may share; durable when the future is done.

        A `MainspringError` that the work returns, in place of raising it, is told alike and takes nothing back.
        """
        return self._submit(work, args, kwargs, is_write=True)

    def write_all(self, work: Callable[[C, Sequence[W]], None], parts: Sequence[W]) -> "Future[list[MainspringError | None]]":
        """Like `write` for work on many parts at once. If that fails it is done part by part, each in a transaction of its own.
        The future never fails: it says of each part why it could not be done, None if it is durable."""
        if not self.is_open:
            closed: Future[list[MainspringError | None]] = get_running_loop().create_future()
            closed.set_result([StoreError(f"{self._name} is not open")] * len(parts))
            return closed
        job: _Job[C] = _Job(work, (), {}, self._loop.create_future(), is_write=True, parts=parts)
        self._jobs.put(job)
        return job.future

    def erase(self, work: Callable[Concatenate[C, P], T | MainspringError], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like `write`, for what deletes: what it deleted is in no file any more when the future is done, or, if somebody was
        reading the file just then, soon after they are done."""
        return self._submit(work, args, kwargs, is_write=True, is_erasing=True)

    def _submit(
        self,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_write: bool,
        is_erasing: bool = False,
        is_long: bool = False,
    ) -> Future[Any]:
        if not self.is_open:
            raise StoreError(f"{self._name} is not open")
        job: _Job[C] = _Job(work, args, kwargs, self._loop.create_future(), is_write, is_erasing, is_long)
        self._jobs.put(job)
        return job.future

    async def _stop(self) -> None:
        self._jobs.put(None)
        await shield(self._ended)
        self._thread.join()

    def _work(self, opened: Future[None]) -> None:
        try:
            self._current()
            self._settle([_Outcome(opened)])
            self._serve()
        except Exception as error:  # Whatever it is, whoever waits must be told.
            self._settle([_Outcome(opened, self._as_known_error(error))])
        finally:
            self._disconnect()
            if self._reader is not None:
                self._questions.put(None)
                self._reader.join()
                self._reader = None
            self._settle([_Outcome(self._ended)])

    def _wait_for_job(self) -> _Job[C] | None:
        """The next job. What somebody who reads has kept in the log is emptied meanwhile, once they are gone: as long as there is
        such a thing, that is tried, less and less often. And there is time to tidy up, a little at a time."""
        pause = _FIRST_PAUSE
        while (self._is_owed or self._is_untidy) and self._connection is not None:
            try:
                return self._jobs.get(timeout=pause)
            except Empty:
                if self._is_untidy:
                    self._is_untidy = self.tidy(self._connection)
                else:
                    self._is_owed = not self.empty_log(self._connection, 0)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        return self._jobs.get()

    def _serve(self) -> None:
        gathered: list[_Job[C]] = []
        while True:
            job = self._wait_for_job()
            if job is not None and job.is_write:
                gathered.append(job)
                if not self._jobs.empty():
                    continue
            if gathered:
                outcomes = self._write(gathered)
                is_erasing = any(each.is_erasing for each in gathered)
                if (is_erasing or self._is_owed) and self._connection is not None:
                    # Whoever deletes waits a little for readers, and nobody else does.
                    self._is_owed = not self.empty_log(self._connection, _ERASE_MS if is_erasing else 0)
                self._settle(outcomes)
                self._writes += len(gathered)
                if is_erasing or self._writes >= _TIDY_WRITES:
                    self._is_untidy, self._writes = True, 0
                gathered = []
            if job is None:
                return
            if job.is_long and self.has_reader:
                self._questions.put(job)
                if self._reader is None:
                    self._reader = Thread(target=self._answer, name=f"{self._name}, reading", daemon=True)
                    self._reader.start()
            elif not job.is_write:
                self._settle([self._read(job)])

    def _answer(self) -> None:
        """Answers long questions, in a thread and by a connection of its own."""
        with ExitStack() as connections:
            connection: C | None = None
            while (job := self._questions.get()) is not None:
                try:
                    if connection is None:
                        connection = connections.enter_context(self.connect_reader())
                    outcome = _Outcome(job.future, job.perform(connection))
                except MainspringError as error:
                    outcome = _Outcome(job.future, error)
                except Exception as error:  # As in `_read`; the next question gets another connection.
                    outcome = _Outcome(job.future, self.explain(error))
                    connection = None
                    with suppress(Exception):
                        connections.close()
                self._settle([outcome])

    def _read(self, job: _Job[C]) -> _Outcome:
        try:
            return _Outcome(job.future, job.perform(self._current()))
        except Exception as error:  # Likewise, and the thread must live on.
            return _Outcome(job.future, self._as_known_error(error))

    def _write(self, jobs: list[_Job[C]]) -> list[_Outcome]:
        has_begun = False
        try:
            connection = self._current()
            with self.begin(connection):
                has_begun = True
                return [_Outcome(job.future, job.perform(connection)) for job in jobs]
        except Exception as error:  # Likewise.
            self.on_rollback()
            if not has_begun or (len(jobs) == 1 and not jobs[0].divide()):
                known = self._as_known_error(error)
                return [job.fail(known) for job in jobs]
        return [self._write_apart(job) for job in jobs]

    def _write_apart(self, job: _Job[C]) -> _Outcome:
        if not (parts := job.divide()):
            return self._write([job])[0]
        return _Outcome(job.future, [result for part in parts for result in self._write([part])[0].result])  # type: ignore[attr-defined]

    def _current(self) -> C:
        if self._connection is None:
            self._connection = self._connections.enter_context(self.connect())
        return self._connection

    def _disconnect(self) -> None:
        self._connection = None
        with suppress(Exception):  # Of SQLite: what cannot even be closed is of no more use, and somebody has been told.
            self._connections.close()

    def _as_known_error(self, error: Exception) -> MainspringError:
        if self.is_damaged(error):
            self._disconnect()
        if isinstance(error, MainspringError):
            return error
        told = self.explain(error)
        told.__cause__ = error
        return told

    def _settle(self, outcomes: list[_Outcome]) -> None:
        """Wakes the loop once for all of them. If it has been closed, nobody is left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle_futures, outcomes)


def _settle_futures(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        if outcome.future.done():  # cancelled by whoever waited for it
            continue
        if isinstance(outcome.result, Exception):
            outcome.future.set_exception(outcome.result)
        else:
            outcome.future.set_result(outcome.result)


class Database(Worker[sqlite3.Connection]):
    """A file of one kind, or without a path a database in memory. Making one has no effect."""

    def __init__(
        self,
        path: Path | None,
        schema: Schema,
        *,
        lock_seconds: float = LOCK_SECONDS,
        on_rollback: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(schema.name, on_rollback)
        self.path = None if path is None else path.absolute()  # SQLite has its own idea of some names, such as `:memory:`
        self.has_reader = path is not None
        self._schema = schema
        self._lock_seconds = lock_seconds

    def connect_reader(self) -> AbstractContextManager[sqlite3.Connection]:
        assert self.path is not None
        connection = sqlite3.connect(self.path, timeout=self._lock_seconds, isolation_level=None)
        connection.execute("PRAGMA query_only = ON")
        return closing(connection)

    def connect(self) -> AbstractContextManager[sqlite3.Connection]:
        try:
            return closing(connect(self.path, self._schema, lock_seconds=self._lock_seconds))
        except StoreError as error:
            if not self.is_open:
                raise
            log.error("%s", error)
            raise StoreError(f"{self._schema.name} cannot be opened again; the log says why") from None

    def begin(self, connection: sqlite3.Connection) -> AbstractContextManager[None]:
        return transaction(connection)

    def empty_log(self, connection: sqlite3.Connection, wait_ms: int) -> bool:
        try:
            with self._hurry(connection, wait_ms):
                return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            log.warning("%s: its log could not be emptied yet: %s", self.path, error)
            return False

    def tidy(self, connection: sqlite3.Connection) -> bool:
        """Gives back pages that deletions left free. When there are no more, the file is cut short with its log, and the
        statistics of its indexes are looked after."""
        try:
            with self._hurry(connection, 0):
                if give_back(connection):
                    self._is_owed = True
                    return True
                update_statistics(connection)
        except sqlite3.Error as error:  # such as a lock of another process: it will be asked for again
            log.info("%s: it could not be tidied up: %s", self.path, error)
        return False

    @contextmanager
    def _hurry(self, connection: sqlite3.Connection, wait_ms: int) -> Iterator[None]:
        """What is done inside waits no longer than this for others."""
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
        try:
            yield
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._lock_seconds * 1000)}")

    def explain(self, error: Exception) -> StoreError:
        log.error("%s: %s: %s", self.path, type(error).__name__, error)
        if isinstance(error, sqlite3.Error):
            return explain(error, self._schema.name, self._schema)
        return StoreError(f"this cannot be written or read ({type(error).__name__}: {error})")

    def is_damaged(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error) and _code(error) in _DAMAGED and self.path is not None


def find_partial(path: Path) -> Path:
    """Where a copy is made that becomes this file once it is complete."""
    return path.with_name(f"{path.name}.partial")


def make_folder(path: Path) -> None:
    """Makes the folder, and those above it that are missing, for their owner alone. Raises `OSError`."""
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def _create(path: Path, schema: Schema) -> None:
    try:
        make_folder(path.parent)
        if path.is_dir():
            raise StoreError(f"{path} is a folder; {schema.remedy}")
        if path.exists() and path.stat().st_size == 1:  # which SQLite takes for an empty one, and writes over
            raise StoreError(f"{path} is not a database; {schema.remedy}")
        _make_private(path)
        if (damage := find_damage(path)) is not None:
            told = f"the write-ahead log {path}-wal is damaged ({damage}), so the last changes are lost"
            raise StoreError(f"{told}; restore both files from a backup, or move the log away to go on without them")
        if not path.exists():
            if (partial := find_partial(path)).exists():
                told = "run the same `mainspring migrate` or `restore` again, to its end, or remove that file"
                raise StoreError(f"{path} is being filled, in {partial}; {told}")
            # SQLite's own files beside it get the permissions of this one. Never for a file that is there: to close it would give
            # up the locks that other connections of this process have on it.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StoreError(f"{path} cannot be opened ({error.strerror}); {schema.remedy}") from error


def _make_private(path: Path) -> None:
    """Takes a file of before, and SQLite's own beside it, from everybody else. A group that may write is left as it is."""
    for file in [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]:
        with suppress(FileNotFoundError):
            mode = file.stat().st_mode
            if S_ISREG(mode) and (mode & 0o007 or mode & 0o070 == 0o040):
                try:
                    file.chmod(mode & (0o760 if mode & 0o020 else 0o700))
                except PermissionError:
                    log.warning("others can read %s, which is not ours to change: chmod 600 it as its owner", file)


def _open(path: Path | None, schema: Schema, lock_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path or ":memory:", lock_seconds, isolation_level=None, cached_statements=STATEMENTS)
    try:
        _prepare(connection, path, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path | None, schema: Schema) -> None:
    if _pragma(connection, "page_count") == 0:
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
    # In this order: whoever creates the file meanwhile marks it before it has tables, and so is not taken for another program.
    is_new = not _has_tables(connection) and _pragma(connection, "user_version") == 0
    mark = _pragma(connection, "application_id")
    if mark not in (schema.application_id, *schema.joins):
        if mark == 0 and is_new:
            connection.execute(f"PRAGMA application_id = {schema.application_id}")
        elif not _is_unmarked(connection, schema):
            raise StoreError(f"{path} is a database of another program; {schema.remedy}")
    connection.execute("PRAGMA journal_mode = WAL")
    # A commit survives the end of this process, however it ends; only a power cut can take the last few, and no more than those.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # else a statement that writes many rows makes a file
    _migrate(connection, path, schema)
    # Deletes nothing, but fails if a table is missing or if SQLite has opened the file for reading only, which it does silently.
    for table in schema.tables:
        connection.execute(f"DELETE FROM {table} WHERE FALSE")


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _is_unmarked(connection: sqlite3.Connection, schema: Schema) -> bool:
    if not schema.unmarked:
        return False
    try:
        connection.execute(schema.unmarked)
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_ERROR:  # such as a lock, which says nothing about the tables
            raise
        return False
    return True


def _migrate(connection: sqlite3.Connection, path: Path | None, schema: Schema) -> None:
    """Applies what is missing. The version is read under the write lock, because another process may be doing the same."""
    known = len(schema.migrations)
    version = -1
    while version < known:
        with transaction(connection):
            version = _version(connection, schema)
            if version > known:
                raise StoreError(
                    f"{path} was written by a newer Mainspring (schema {version}, this one knows {known}); "
                    f"upgrade Mainspring or {schema.remedy}"
                )
            if version < known:
                _apply(connection, path, schema, version)


def _version(connection: sqlite3.Connection, schema: Schema) -> int:
    if not schema.version_table:
        return _pragma(connection, "user_version")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {schema.version_table} (version INTEGER NOT NULL)")
    found: int = connection.execute(f"SELECT coalesce(max(version), 0) FROM {schema.version_table}").fetchone()[0]
    return found


def _apply(connection: sqlite3.Connection, path: Path | None, schema: Schema, version: int) -> None:
    try:
        for statement in schema.migrations[version]:
            connection.execute(statement)
        if schema.version_table:
            connection.execute(f"DELETE FROM {schema.version_table}")
            connection.execute(f"INSERT INTO {schema.version_table} VALUES (?)", (version + 1,))
        else:
            connection.execute(f"PRAGMA user_version = {version + 1}")
    except sqlite3.Error as error:
        raise StoreError(f"{path} stays at schema {version}: the step to {version + 1} failed ({error})") from error


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if the error is not SQLite's own, which then has none."""
    try:
        return error.sqlite_errorcode & 0xFF
    except AttributeError:
        return 0
