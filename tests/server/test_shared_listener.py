"""Several listeners at one socket: the one that has fewest connections takes the next."""

import asyncio
import os
from functools import partial
from socket import AF_INET, socket

import anyio
import pytest
from tests.kit.waiting import PATIENCE

from mainspring.app.server_processes import NOBODY
from mainspring.app.shared_listener import ConnectionLoads, SharedListener


class Counted(asyncio.Protocol):
    """A connection that counts itself, and tells its client by whom it was taken."""

    def __init__(self, name: bytes, connections: list[object]) -> None:
        self._name, self._connections = name, connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connections.append(transport)
        transport.write(self._name)


@pytest.mark.parametrize(("held", "expected"), [((0, 0), 4), ((4, 0), 2), ((0, 8), 8)])
async def test_connections_go_to_whoever_has_fewer(held: tuple[int, int], expected: int) -> None:
    """`expected` is how many of eight the first one takes, give or take what a busy machine makes wait too long."""
    file = os.memfd_create("loads")
    os.pwrite(file, 3 * NOBODY, 0)  # the third process has not started
    listener = socket(AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    connections: list[list[object]] = [[None] * held[0], [None] * held[1]]
    sharing = [
        SharedListener(listener.dup(), partial(Counted, b"%d" % place, each), ConnectionLoads(file, place), each)
        for place, each in enumerate(connections)
    ]
    taken = []
    with anyio.fail_after(PATIENCE):
        for each in sharing:
            each.tell_load()
            each.open()
        for _ in range(8):
            async with await anyio.connect_tcp(*listener.getsockname()) as stream:
                taken.append(int(await stream.receive()))
    for each in sharing:
        each.close()
    for transport in [transport for each in connections for transport in each if transport is not None]:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
    listener.close()
    os.close(file)
    assert abs(taken.count(0) - expected) <= 2, taken
