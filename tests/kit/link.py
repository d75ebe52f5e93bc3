"""A link to a server that a test can cut, hold and let go: bytes go through a socket of its own.

`cut` ends every connection at once. With `swallow`, what the server answers from then on is lost, and the connections are cut
when it answers: whoever asked does not learn what became of it. `is_refusing` has new connections ended as soon as they are made.
`hold` keeps back what is sent in some directions, and tells nobody: with both it is a network that has gone, with `answers` alone
a connection that is half open. `delay` is how long each piece takes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

SSL_REQUEST = (80877103).to_bytes(4)
Change = Callable[[bytes], bytes]
Direction = Literal["questions", "answers"]


def _keep(data: bytes) -> bytes:
    return data


class Link:
    def __init__(self, server: Path, change: Change = _keep) -> None:
        self._server, self._change = server, change
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.is_refusing = False
        self.swallowed: asyncio.Event | None = None
        self._matches: Callable[[bytes], bool] | None = None
        self.connections = 0
        self.delay = 0.0
        self._open: dict[Direction, asyncio.Event] = {"questions": asyncio.Event(), "answers": asyncio.Event()}
        self.release()

    def hold(self, *directions: Direction) -> None:
        for direction in directions:
            self._open[direction].clear()

    def release(self) -> None:
        """What was kept back goes on."""
        for gate in self._open.values():
            gate.set()

    async def _travel(self, direction: Direction) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open[direction].wait()

    def say(self, data: bytes) -> None:
        """Tells all who are connected something that the server has not said."""
        for writer in self._clients:
            writer.write(data)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def swallow_answer_of(self, matches: Callable[[bytes], bool]) -> asyncio.Event:
        """Cuts the connection when it has sent something that matches and the server has answered; the answer is lost."""
        self._matches, self.swallowed = matches, asyncio.Event()
        return self.swallowed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            inner, outer = await asyncio.open_unix_connection(self._server)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        self._writers |= {writer, outer}
        self._clients.add(writer)
        is_doomed = asyncio.Event()

        async def ask() -> None:
            while data := await reader.read(65536):
                if self._matches is not None and self._matches(data):
                    self._matches = None
                    is_doomed.set()
                await self._travel("questions")
                outer.write(data)
                await outer.drain()

        async def answer() -> None:
            while data := await inner.read(65536):
                if is_doomed.is_set():
                    assert self.swallowed is not None
                    self.swallowed.set()
                    writer.transport.abort()
                    outer.transport.abort()
                    return
                await self._travel("answers")
                writer.write(self._change(data))
                await writer.drain()

        tasks = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (writer, outer):
                each.transport.abort()
            self._writers -= {writer, outer}
            self._clients.discard(writer)


@asynccontextmanager
async def linked(server: Path, folder: Path, change: Change = _keep) -> AsyncIterator[Link]:
    """A link to the server of this socket, at a socket of the same name in the folder."""
    link = Link(server, change)
    door = await asyncio.start_unix_server(link.serve, folder / server.name)
    try:
        yield link
    finally:
        door.close()
        link.cut()
        with suppress(Exception):
            await asyncio.sleep(0)


@asynccontextmanager
async def linked_port(server: Path, host: str = "127.0.0.1") -> AsyncIterator[tuple[Link, int]]:
    """A link to the server of this socket, and the port of this machine where it is."""
    link = Link(server)
    door = await asyncio.start_server(link.serve, host, 0)
    try:
        yield link, door.sockets[0].getsockname()[1]
    finally:
        door.close()
        link.release()
        link.cut()
        with suppress(Exception):
            await asyncio.sleep(0)


@asynccontextmanager
async def tls_door(server: Path, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """The port of a door to the server of this socket that speaks TLS as PostgreSQL does; without a context, none."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        writers = [writer]
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await pass_on(reader, writer, writers)
        finally:
            for each in writers:
                each.transport.abort()
            serving.discard(task)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, writers: list[asyncio.StreamWriter]) -> None:
        asked = await reader.readexactly(8)
        if asked[4:] == SSL_REQUEST:
            writer.write(b"N" if context is None else b"S")
            if context is None:
                return
            await writer.start_tls(context)
            asked = b""
        inner, outer = await asyncio.open_unix_connection(server)
        writers.append(outer)
        outer.write(asked)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)

        copies = [asyncio.create_task(copy(reader, outer)), asyncio.create_task(copy(inner, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for each in copies:
            each.cancel()
        await asyncio.gather(*copies, return_exceptions=True)

    door = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield door.sockets[0].getsockname()[1]
    finally:
        door.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
