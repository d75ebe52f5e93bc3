"""A transaction pooler, as PgBouncer is one: a client has a connection to the server only for the length of a transaction.

The server's connections are lent in turn, so that whoever counts on finding what it left in a session, a setting or a prepared
statement, does not. Like PgBouncer it refuses startup parameters that it cannot track.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

TRACKED = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone", "standard_conforming_strings"}


class Session:
    """A connection to the server, past its startup. `greeting` is what the server said of itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> None:
        self.reader, self.writer, self.greeting = reader, writer, greeting


async def read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack(">I", head[1:])[0] - 4)


async def log_in(server: Path, database: str) -> Session:
    reader, writer = await asyncio.open_unix_connection(server)
    body = struct.pack(">I", 196608) + b"user\0postgres\0database\0" + database.encode() + b"\0client_encoding\0utf-8\0\0"
    writer.write(struct.pack(">I", len(body) + 4) + body)
    greeting = b""
    while True:
        message = await read_message(reader)
        greeting += message
        if message[:1] == b"Z":
            return Session(reader, writer, greeting)
        assert message[:1] != b"E", message


# What a session still has of a transaction that is over. asyncpg itself has `jit` off while it looks up types.
_LEFT = """
    SELECT concat_ws(', ',
        (SELECT 'prepared ' || string_agg(name, ' ') FROM pg_prepared_statements),
        (SELECT 'listens to ' || string_agg(name, ' ') FROM pg_listening_channels() AS name),
        (SELECT 'cursors ' || string_agg(name, ' ') FROM pg_cursors WHERE name <> ''),
        (SELECT 'settings ' || string_agg(name, ' ') FROM pg_settings WHERE source = 'session' AND name <> 'jit'),
        (SELECT 'temporary ' || string_agg(relname, ' ') FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
        (SELECT 'locks ' || count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() HAVING count(*) > 0))
"""


class Pooler:
    """`left` is what was left in a session by a transaction that was over."""

    def __init__(self, sessions: list[Session]) -> None:
        self.left: set[str] = set()
        self._greeting = sessions[0].greeting  # those that are free may be none when somebody connects
        self._free = deque(sessions)
        self._freed = asyncio.Condition()
        self.lent = 0

    async def _borrow(self) -> Session:
        async with self._freed:
            await self._freed.wait_for(lambda: bool(self._free))
            self.lent += 1
            return self._free.popleft()

    async def _look_at(self, session: Session) -> None:
        query = _LEFT.encode() + b"\0"
        session.writer.write(b"Q" + struct.pack(">I", len(query) + 4) + query)
        while (message := await read_message(session.reader))[:1] != b"Z":
            assert message[:1] != b"E", message
            if message[:1] == b"D" and (found := message[11:]):
                self.left.add(found.decode())

    async def _give_back(self, session: Session) -> None:
        await self._look_at(session)
        async with self._freed:
            self._free.append(session)
            self._freed.notify()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = struct.unpack(">I", await reader.readexactly(4))[0]
            words = (await reader.readexactly(size - 4))[4:].split(b"\0")
            unknown = {word.decode().lower() for word in words[::2] if word} - TRACKED
            if unknown:
                told = b"SFATAL\0C08P01\0Munsupported startup parameter: " + ", ".join(sorted(unknown)).encode() + b"\0\0"
                writer.write(b"E" + struct.pack(">I", len(told) + 4) + told)
                return
            writer.write(self._greeting)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                message = await read_message(reader)
                while message[:1] != b"X":
                    asking = await self._transact(message, reader, writer)
                    message = await asking
        finally:
            writer.close()

    async def _transact(
        self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> "asyncio.Task[bytes]":
        """One transaction, which this message begins. Returns the reading of the message that begins the next."""
        session = await self._borrow()
        owed = 0

        async def answer() -> None:
            """Passes on what the server says, until it is idle and owes nothing."""
            nonlocal owed
            while True:
                said = await read_message(session.reader)
                writer.write(said)
                if said[:1] == b"Z":
                    owed -= 1
                    if said[5:6] == b"I" and owed == 0:
                        return

        answering = asyncio.create_task(answer())
        try:
            while True:
                owed += message[:1] in b"QS"
                session.writer.write(message)
                asking = asyncio.create_task(read_message(reader))
                await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    await self._give_back(session)
                    return asking
                message = asking.result()
        finally:
            answering.cancel()


@asynccontextmanager
async def pooled(server: Path, folder: Path, database: str) -> AsyncIterator[Pooler]:
    """A pooler with three connections to this database, at a socket of the same name in the folder."""
    sessions = [await log_in(server, database) for _ in range(3)]
    pooler = Pooler(sessions)
    door = await asyncio.start_unix_server(pooler.serve, folder / server.name)
    try:
        yield pooler
    finally:
        door.close()
        for session in sessions:
            session.writer.transport.abort()
