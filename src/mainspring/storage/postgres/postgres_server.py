"""A PostgreSQL server: how it is connected to, what is asked of it, what its errors mean, and how tables are brought up to date.

Connections hold no state between two transactions: a pooler may stand between (`pgbouncer=true` in the URL says that one does,
and then no statement is prepared under a name). What listens must keep its session, so `listen` may name the server itself.
Questions go over a few connections that are made when they are needed; one that was cut is replaced, and the question asked
again, for a bounded time. What is written has a connection and rules of its own, see `writer`. A machine or a network that is
gone cuts nothing: so the kernel ends a connection whose other end has been silent for too long (`tcp_user_timeout` in the URL).

Each kind of content counts its migrations in one table, and brings itself up to date under a lock that all who do so take.
"""

import os
import socket
import ssl
import sys
from asyncio import Semaphore, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from logging import getLogger
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg  # type: ignore[import-untyped]
from msgspec import MsgspecError

from mainspring.core.errors import InvalidRequest, MainspringError, StoreError
from mainspring.storage.location import Location
from mainspring.storage.sql import ServerTables

log = getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
"""How long to try, all hosts of a URL together."""
SILENT_SECONDS: Final = 5.0
"""After how long a connection is taken to be gone whose other end's machine does not acknowledge what it is sent."""
QUERY_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 30.0
"""How long a question or a write waits for a server that is away."""
MOST_READERS: Final = 4
OLDEST: Final = 14
# Any number, as long as all who migrate use the same.
MIGRATION_LOCK: Final = 0x4D73_7072
# A transaction of a process that is frozen in it is taken back, or its locks would hold up whoever takes over. Whoever is silent
# for as long as this has lost its leases too.
SILENT_IN_TRANSACTION: Final = "5s"
# For how long a connection of a machine that is gone takes the room of another one.
_FORGOTTEN: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
# The plans of our statements are the same for few rows and for many, so that one made for an empty table is good for a full one.
_PLANNING: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_mergejoin": "off", "jit": "off"}
_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server has said that it stops, and not hung up yet
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TargetServerAttributeNotMatched,  # until one of the hosts is promoted
    OSError,
    TimeoutError,
)
_AGAIN: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

_FILES: Final = ("sslrootcert", "sslcert", "sslkey")
SCHEMAS: Final = "CREATE TABLE IF NOT EXISTS mainspring_schemas (name TEXT PRIMARY KEY, version INT NOT NULL)"

UNFINISHED: Final = "copying"
"""The schema that is there while a copy is made in the database."""

Connection = Any
Row = Any


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone or of no use, so that another one may do better."""
    return isinstance(error, _LOST) and not isinstance(error, ssl.SSLError | asyncpg.ClientConfigurationError)


def say_why(error: BaseException) -> str:
    """What the server says, or what happened where it says nothing, in one line."""
    unsaid = "it does not answer" if isinstance(error, TimeoutError) else type(error).__name__
    return (" ".join(str(error).split()) or unsaid)[:300]


def is_to_repeat(error: BaseException) -> bool:
    """Whether the server took everything back, and asks to be asked again."""
    return isinstance(error, _AGAIN)


class Server:
    """The server of a URL, between `open` and `close`."""

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self._may_be_unfinished = location.is_unfinished
        parts = urlsplit(location.given)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.has_pooler = options.pop("pgbouncer", "false").lower() in ("true", "1", "yes")
        if options.get("sslrootcert") == "system":
            paths = ssl.get_default_verify_paths()
            options["sslrootcert"] = paths.cafile or paths.openssl_cafile
        self._files = {name: options.get(name, "") for name in _FILES}
        self._verifies = options.get("sslmode", "").startswith("verify")
        direct = options.pop("listen", "")
        self.can_listen = bool(direct) or not self.has_pooler
        settings = {
            "application_name": "mainspring",
            "idle_in_transaction_session_timeout": SILENT_IN_TRANSACTION,
            "default_transaction_isolation": "read committed",  # what the statements rely on; a database may have another one
            "tcp_user_timeout": "30s",
            **_FORGOTTEN,
            **_PLANNING,
        }
        connect_seconds = _take_number(options, "connect_timeout", self.name)
        self._silent_ms = round(_take_number(options, "tcp_user_timeout", self.name) or 1000 * SILENT_SECONDS)
        parts = parts._replace(scheme="postgresql")
        self._hosts = _split_hosts(parts, options)
        self._direct_hosts = [_replace_host(parts, options, direct)] if direct else self._hosts
        self.options: Mapping[str, Any] = {
            "timeout": connect_seconds or CONNECT_SECONDS / len(self._hosts),
            "command_timeout": QUERY_SECONDS,
            "statement_cache_size": 0 if self.has_pooler else 200,
            "max_cached_statement_lifetime": 0,
            "max_cacheable_statement_size": 0,
            "server_settings": None if self.has_pooler else settings,
        }
        """How asyncpg is to connect."""
        self._idle: list[Connection] = []
        self._turns = Semaphore(MOST_READERS)
        self.is_open = False

    async def open(self, schema: ServerTables) -> None:
        """Checks that the server can be used, and migrates. Raises `StoreError` that says what to do."""
        self.is_open, self._turns = True, Semaphore(MOST_READERS)
        try:
            self._check_files()
            connection = await self.connect()
            self._idle.append(connection)
            await self.check(connection)
            await _migrate(connection, schema, self.name, self._may_be_unfinished)
        except BaseException as error:
            self.close()
            raise self.explain(error) from None if isinstance(error, MainspringError) else error

    def close(self) -> None:
        self.is_open = False
        # Not gracefully: a server that is gone would keep us waiting.
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()

    def take(self) -> Connection:
        """The connection that `open` has made, for whoever wants but one."""
        return self._idle.pop()

    async def connect(self, **options: object) -> Connection:
        """A new connection, with these options of asyncpg besides. Raises what asyncpg does."""
        return await self._connect(self._hosts, options)

    async def connect_directly(self, **options: object) -> Connection:
        """A new connection past the pooler, for what a session must keep. Raises what asyncpg does."""
        return await self._connect(self._direct_hosts, options)

    async def _connect(self, hosts: list[str], options: Mapping[str, object]) -> Connection:
        """Asks the host first that answered last; each has a time limit of its own, since one that is gone says nothing."""
        waiting = list(hosts)
        while True:
            url = waiting.pop(0)
            try:
                connection = await asyncpg.connect(url, **{**self.options, **options})
            except Exception as error:  # asyncpg's are many
                if not waiting or not is_lost(error):
                    raise
                continue
            hosts.remove(url)
            hosts.insert(0, url)
            self._limit_silence(connection)
            return connection

    def _limit_silence(self, connection: Connection) -> None:
        """Has the kernel end a connection whose other end is gone and could not say so. Where it cannot, questions are given up
        after `QUERY_SECONDS`."""
        found = connection._transport.get_extra_info("socket")  # asyncpg has no option for this
        if found is None or found.family not in (socket.AF_INET, socket.AF_INET6) or sys.platform != "linux":
            return
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._silent_ms)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)

    async def fetch(self, statement: str, *values: object, is_urgent: bool = False) -> Sequence[Row]:
        """The rows of a question, which is asked again if the connection is cut. Raises `StoreError`."""
        return await self.ask(lambda connection: connection.fetch(statement, *values), is_urgent=is_urgent)

    async def ask(self, question: Callable[[Connection], Awaitable[T]], *, is_urgent: bool = False) -> T:
        """What the question finds, which may be asked twice. One that is urgent waits for no other. Raises `StoreError`, and what
        the question raises of ours."""
        until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                async with nullcontext() if is_urgent else self._turns, self._borrow() as connection:
                    return await question(connection)
            except MainspringError:
                raise
            except Exception as error:  # asyncpg's are many
                if not is_lost(error) or monotonic() > until or not self.is_open:
                    raise self.explain(error) from error
            await sleep(0.1)

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        if not self.is_open:
            raise StoreError("the database is not open")
        connection = self._idle.pop() if self._idle else await self.connect()
        try:
            yield connection
        except MainspringError:
            self._give_back(connection)
            raise
        except BaseException:
            # Cut, or in the middle of something: of no use to the next one.
            connection.terminate()
            raise
        self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        if self.is_open and not connection.is_closed():
            self._idle.append(connection)
        else:
            connection.terminate()

    def _check_files(self) -> None:
        """Raises `StoreError` for what TLS needs and is not there; what asyncpg says of that does not name it."""
        for option, file in self._files.items():
            if file and not Path(file).is_file():
                raise StoreError(f"{self.name}: there is no file {file}, which {option} names")
        usual = Path("~/.postgresql/root.crt").expanduser()
        if self._verifies and not (self._files["sslrootcert"] or os.environ.get("PGSSLROOTCERT") or usual.is_file()):
            raise StoreError(
                f"{self.name}: sslmode says to verify, but not by which certificates; add sslrootcert=FILE, or "
                "sslrootcert=system for those of this machine"
            )

    async def check(self, connection: Connection) -> None:
        """Raises `StoreError` if this is no server to write to."""
        version = connection.get_server_version()
        if version.major < OLDEST:
            raise StoreError(f"{self.name} is PostgreSQL {version.major}; PostgreSQL {OLDEST} or newer is needed")
        encoding, isolation, is_replica, is_read_only = await connection.fetchrow(
            "SELECT current_setting('server_encoding'), current_setting('transaction_isolation'), pg_is_in_recovery(), "
            "current_setting('transaction_read_only') = 'on'"
        )
        if is_replica or is_read_only:
            kind = "a replica" if is_replica else "set to read only"
            raise StoreError(
                f"{self.name} is {kind}, and nothing can be written there; name the primary, or all hosts with "
                "?target_session_attrs=read-write"
            )
        if encoding != "UTF8":
            raise StoreError(f"{self.name} has the encoding {encoding}; make a database with: createdb --encoding=UTF8")
        if isolation != "read committed":  # behind a pooler, where it cannot be asked for
            raise StoreError(
                f"{self.name} isolates transactions as {isolation!r}; for the user of the URL: ALTER ROLE ... SET "
                "default_transaction_isolation = 'read committed'"
            )

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raises what goes wrong as `StoreError`: what the server says, and what cannot be decoded. Errors of ours stay."""
        try:
            yield
        except MainspringError:
            raise
        except Exception as error:  # asyncpg's are many
            raise self.explain(error) from error

    def explain(self, error: BaseException) -> MainspringError:
        """The error in words for whoever runs the machine. No word of it is the password."""
        if isinstance(error, MainspringError):
            return error
        log.debug("%s: %s", self.name, type(error).__name__)
        match error:
            case ssl.SSLError():
                return StoreError(f"{self.name}: no TLS with this server ({error}); check sslmode and sslrootcert")
            case MsgspecError():
                return StoreError(f"{self.name}: what is stored there cannot be read ({error}); restore a backup")
            case ValueError() if not isinstance(error, asyncpg.DataError | UnicodeError):
                # Its words quote the part of the URL that is at fault, which may be the password.
                return StoreError(f"the URL {self.name} is not right; check its host, port and options")
            case asyncpg.InvalidAuthorizationSpecificationError():
                return StoreError(f"{self.name}: {error}; check the user and password of the URL, and pg_hba.conf of the server")
            case asyncpg.UndefinedObjectError() | asyncpg.CantChangeRuntimeParamError():  # of an option of the URL
                return StoreError(f"{self.name}: {error}; leave that option out: asyncpg has none of this name, nor a session")
            case asyncpg.InvalidCatalogNameError():
                return StoreError(f"{self.name}: {error}; make it with: createdb")
            case asyncpg.InsufficientPrivilegeError():
                return StoreError(f"{self.name}: {error}; let this user make and write tables, or migrate as one who may")
            case (
                asyncpg.DuplicatePreparedStatementError()
                | asyncpg.InvalidSQLStatementNameError()
                | asyncpg.ProtocolViolationError()  # of a startup parameter
            ):
                return StoreError(f"{self.name} is behind a pooler; add pgbouncer=true to the options of the URL")
            case asyncpg.TargetServerAttributeNotMatched():
                return StoreError(f"{self.name}: none of the hosts is what target_session_attrs asks for; name the primary")
            case asyncpg.TooManyConnectionsError():
                return StoreError(
                    f"{self.name} takes no more connections ({error}); each process needs up to six: raise max_connections, or "
                    "the limit of the user, or put a pooler between"
                )
            case asyncpg.UndefinedTableError():
                return StoreError(
                    f"{self.name}: {error}; tables are missing that were there: restore a backup, or start this process again, "
                    "which makes empty ones"
                )
            case ConnectionError() if "rejected SSL" in str(error):
                return StoreError(f"{self.name} has no TLS, and sslmode asks for it; turn it on there, or leave sslmode out")
            case asyncpg.DiskFullError():
                return StoreError(f"the disk of {self.name} is full; free space, then resume the run")
            case _ if is_lost(error):
                return StoreError(f"{self.name} cannot be reached ({say_why(error)}); check that it runs, and the URL")
        return StoreError(f"this cannot be written or read ({type(error).__name__}: {error})")


def _take_number(options: dict[str, str], name: str, where: str) -> float:
    """This option, which is no option any more; 0 if it is not given. Raises `InvalidRequest`."""
    given = options.pop(name, "") or "0"
    if not given.isdecimal():
        raise InvalidRequest(f"{where}: {name} must be a whole number, and is {given[:100]!r}", param="database")
    return int(given)


def _split_hosts(parts: SplitResult, options: Mapping[str, str]) -> list[str]:
    """The URL, once for each of its hosts. Of several, one that can be written to is wanted, whatever asyncpg would take."""
    account, sign, netloc = parts.netloc.rpartition("@")
    hosts, ports = (netloc or options.get("host", "")).split(","), options.get("port", "").split(",")
    if len(hosts) == 1:
        return [urlunsplit(parts._replace(query=urlencode(options)))]
    found: list[str] = []
    for place, host in enumerate(hosts):
        own = {"target_session_attrs": "read-write", **options}
        if netloc:
            each = parts._replace(netloc=account + sign + host)
        else:
            each, own["host"] = parts, host
        if len(ports) == len(hosts):
            own["port"] = ports[place]
        found.append(urlunsplit(each._replace(query=urlencode(own))))
    return found


def _replace_host(parts: SplitResult, options: Mapping[str, str], place: str) -> str:
    """The URL with another `HOST:PORT`, or the folder of another socket."""
    account, sign, _ = parts.netloc.rpartition("@")
    others = {name: value for name, value in options.items() if name not in ("host", "port")}
    if place.startswith("/"):
        others["host"], place = place, ""
    return urlunsplit(parts._replace(netloc=account + sign + place, query=urlencode(others)))


async def _migrate(connection: Connection, schema: ServerTables, name: str, may_be_unfinished: bool) -> None:
    """Applies what is missing. Whoever finds nothing missing needs no right to make tables."""
    known = len(schema.migrations)
    try:
        found = dict(await connection.fetch("SELECT name, version FROM mainspring_schemas"))
    except asyncpg.UndefinedTableError:
        found = {}
    if UNFINISHED in found and not may_be_unfinished:
        raise StoreError(f"{name} is being filled; run the same `mainspring migrate` or `restore` again, to its end")
    version = found.get(schema.name)
    if version != known:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(SCHEMAS)
            await _apply(connection, schema, name)
    wanted = "SELECT t || ': ' || p FROM unnest($1::text[]) t, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p"
    if missing := await connection.fetch(f"{wanted} WHERE NOT has_table_privilege(t, p)", list(schema.tables)):
        raise StoreError(
            f"{name}: this user lacks rights ({', '.join([row[0] for row in missing[:3]])}); as the owner of the tables: "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ..."
        )


async def _apply(connection: Connection, schema: ServerTables, name: str) -> None:
    known = len(schema.migrations)
    version = await connection.fetchval("SELECT version FROM mainspring_schemas WHERE name = $1", schema.name) or 0
    if version > known:
        raise StoreError(
            f"{name} was written by a newer Mainspring (schema {version} of {schema.name}, this one knows {known}); upgrade "
            "Mainspring, or choose another database"
        )
    for migration in schema.migrations[version:]:
        await connection.execute(migration)
    keep = "INSERT INTO mainspring_schemas VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET version = excluded.version"
    await connection.execute(keep, schema.name, known)
