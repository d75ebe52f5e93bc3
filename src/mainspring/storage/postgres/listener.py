"""Being told that there is something new, by one connection that listens. A run that somebody follows has a channel, and so has
each driver.

Whoever follows a run says so in a table, for a while; whoever adds to its log looks there, and tells the channel. So nothing is
told of runs that nobody follows. What is told is only that there is more: it is then read like anything else. If the connection
is cut, or a pooler stands between and nothing says where the server itself is, nothing is told, and followers look for
themselves.

Many runs are followed for a moment only. So what there is to listen to, to say and to leave is gathered while the connection is
busy, and asked for in one round trip, by statements that nobody prepares.
"""

from asyncio import Event, Lock, sleep, timeout
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from logging import getLogger
from time import monotonic
from typing import Final

import asyncpg  # type: ignore[import-untyped]

from mainspring.storage.postgres.postgres_server import Connection, Server
from mainspring.storage.postgres.run_tables import CHANNEL, make_key

log = getLogger(__name__)

RENEW_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 2.0
# How long to wait for what is told, until it is looked for; and how soon to rely on that, since a transaction that was under way
# did not know yet that somebody follows.
TOLD_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 0.25
_FOLLOW: Final = f"""
    WITH old AS (
        DELETE FROM mainspring_followed WHERE key IN (
            SELECT key FROM mainspring_followed
            WHERE until < now() - interval '1 minute' AND key <> ALL ('{{{{{{keys}}}}}}') FOR UPDATE SKIP LOCKED
        )
    )
    INSERT INTO mainspring_followed (key, until)
    SELECT key, now() + interval '{3 * RENEW_SECONDS:g} seconds' FROM unnest('{{{{{{keys}}}}}}'::bytea[]) key ORDER BY key
    ON CONFLICT (key) DO UPDATE SET until = excluded.until
"""
# Nobody misses a follower who is forgotten when the server crashes: they look for themselves, and say so again.
_BEGIN: Final = "SET synchronous_commit = off"


class _Ear(asyncpg.Connection):  # type: ignore[misc]
    """A connection that hands on what it is told, whatever the channel. asyncpg would prepare and keep a statement for each."""

    __slots__ = ("tell",)
    tell: Callable[[str], None]

    def _process_notification(self, pid: int, channel: str, payload: str) -> None:
        self.tell(channel)


class Listener:
    """Wakes those who follow. It connects when the first of them comes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._events: dict[str, set[Event]] = {}
        self._kept: dict[str, Event] = {}
        # What is to be listened to, with the key of the run that is followed, and what not any more.
        self._wanted: dict[str, bytes | None] = {}
        self._left: set[str] = set()
        self._connection: Connection | None = None
        self._turn = Lock()
        self._tried_at = -RETRY_SECONDS
        self._renewed_at: dict[str, float] = {}

    @asynccontextmanager
    async def hear(self, key: bytes) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        """What waits for the log of this run to grow, so many seconds at most; longer while that is told."""
        channel, event, renewed_at = CHANNEL + key.hex(), Event(), 0.0
        self._events.setdefault(channel, set()).add(event)

        async def wait(seconds: float) -> None:
            nonlocal renewed_at
            if monotonic() - renewed_at > RENEW_SECONDS:
                renewed_at = monotonic()
                await self._subscribe(channel, key)
                return
            if self._is_to_retry():
                await self._subscribe(channel, key)
            least = 0.0
            if self._is_connected():
                least = TOLD_SECONDS if monotonic() - renewed_at > SETTLE_SECONDS else SETTLE_SECONDS / 4
            with suppress(TimeoutError):
                async with timeout(max(seconds, least)):
                    await event.wait()
            event.clear()

        try:
            yield wait
        finally:
            self._events[channel].discard(event)
            if not self._events[channel]:
                del self._events[channel]
                self._wanted.pop(channel, None)
                if self._is_connected():
                    self._left.add(channel)

    async def wait(self, channel: str, seconds: float) -> bool:
        """Waits until something is told on this channel, so many seconds at most. The first time it returns at once, and what is
        told from then on is not missed. Returns False, at once, if nothing can be heard now."""
        if channel not in self._kept or self._is_to_retry():
            event = self._kept.setdefault(channel, Event())
            self._events.setdefault(channel, set()).add(event)
            await self._subscribe(channel)
            return self._is_connected()
        if not self._is_connected():
            return False
        with suppress(TimeoutError):
            async with timeout(seconds):
                await self._kept[channel].wait()
        self._kept[channel].clear()
        return True

    async def wait_for_any(self, channel: str, seconds: float) -> None:
        """Waits until something is told on this channel, which is told of only while somebody listens, or for so many seconds."""
        if monotonic() - self._renewed_at.get(channel, -RENEW_SECONDS) >= RENEW_SECONDS:
            self._renewed_at[channel] = monotonic()
            await self._subscribe(channel, make_key(channel))
        if not await self.wait(channel, seconds):
            await sleep(seconds)

    def _is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def _is_to_retry(self) -> bool:
        return not self._is_connected() and monotonic() - self._tried_at > RETRY_SECONDS

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _subscribe(self, channel: str, key: bytes | None = None) -> None:
        """Listens, and says that the run of this key is followed. Without that it is only looked for more seldom."""
        if not self._server.can_listen:
            return
        self._tried_at = monotonic()
        self._wanted[channel] = key or self._wanted.get(channel)
        try:
            async with self._turn:
                if channel in self._wanted:  # else whoever had the turn before has asked for it
                    await self._ask()
        except Exception as error:  # asyncpg's are many, and none of them matters here
            log.debug("%s: not told of new events: %s", self._server.name, error)
            self.close()

    async def _ask(self) -> None:
        """Asks for all that is wanted by now. What could not be asked for is wanted still."""
        if (connection := self._connection) is None or connection.is_closed():
            connection = await self._server.connect_directly(connection_class=_Ear)
            connection.tell = self._tell
            self._connection, self._left = connection, set()
            await connection.execute(_BEGIN)
            channels = set(self._events)
        else:
            channels = self._wanted.keys() & self._events.keys()
        wanted, left = dict(self._wanted), self._left - self._events.keys()
        keys = [key for channel, key in wanted.items() if key is not None and channel in self._events]
        statements = [f"UNLISTEN {_quote(channel)}" for channel in left] + [f"LISTEN {_quote(channel)}" for channel in channels]
        if keys:
            statements.append(_FOLLOW.format(keys=",".join([rf'"\\x{key.hex()}"' for key in keys])))
        if statements:
            await connection.execute("; ".join(statements))
        self._left -= left
        for channel, key in wanted.items():
            if self._wanted.get(channel) == key:
                del self._wanted[channel]

    def _tell(self, channel: str) -> None:
        for event in self._events.get(channel, ()):
            event.set()


def _quote(channel: str) -> str:
    return '"' + channel.replace('"', '""') + '"'
