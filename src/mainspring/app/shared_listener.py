"""The socket that a server listens at, for one process or for several that share it."""

import asyncio
from collections.abc import Callable, Sized
from errno import EADDRNOTAVAIL
from logging import getLogger
from mmap import mmap
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SO_REUSEADDR, SOL_SOCKET, TCP_NODELAY, gaierror, socket

from mainspring.app.settings import Settings
from mainspring.core.errors import InvalidRequest

log = getLogger(__name__)

PAUSE_SECONDS = 1.0
# How long a connection is left to a process that has fewer, and how many a process has that takes none.
AHEAD_SECONDS = 0.005
MOST = 2**63 - 1


def bind_listener(settings: Settings) -> socket | None:
    """A socket to listen at, None for a worker without a health port. Raises `InvalidRequest` if the address cannot be had."""
    is_worker = settings.role == "worker"
    port, name = (settings.health_port, "health_port") if is_worker else (settings.port, "port")
    if port is None:
        return None
    family = AF_INET6 if ":" in settings.host else AF_INET
    listener = socket(family)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    listener.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # connections inherit it
    try:
        listener.bind((settings.host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        is_host = isinstance(error, gaierror) or error.errno == EADDRNOTAVAIL
        way = "--host, an address of this machine" if is_host else f"--{name.replace('_', '-')} (0 picks a free one)"
        message = f"cannot listen at {settings.host} port {port}: {reason}; choose another with {way}"
        raise InvalidRequest(message, param="host" if is_host else name) from None
    return listener


class ConnectionLoads:
    """How many connections each of the processes has that accept from one socket, in memory that all of them share."""

    def __init__(self, file: int, place: int) -> None:
        self._shared, self._place = memoryview(mmap(file, 0)).cast("q"), place

    def tell(self, count: int) -> None:
        self._shared[self._place] = count

    def is_ahead(self, count: int) -> bool:
        """Whether another process has fewer."""
        return count > min(self._shared)


class SharedListener:
    """Accepts from a socket that other processes accept from as well: one connection at a time, and those that have fewer first.
    The accept loops of asyncio and uvloop would take all that are there."""

    def __init__(
        self, listener: socket, make_protocol: Callable[[], asyncio.Protocol], loads: ConnectionLoads, connections: Sized
    ) -> None:
        self._listener, self._make_protocol = listener, make_protocol
        self._loads, self._connections = loads, connections
        self._beginning: set[asyncio.Task[object]] = set()
        self._resuming: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._take_turn)

    def close(self) -> None:
        """Accepts no more here; the others go on."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._loads.tell(MOST)

    @property
    def is_beginning(self) -> bool:
        """Whether a connection was accepted that is not among the others yet."""
        return bool(self._beginning)

    def tell_load(self) -> int:
        """Tells the other processes how many connections there are here."""
        count = len(self._connections) + len(self._beginning)
        if self._listener.fileno() >= 0:
            self._loads.tell(count)
        return count

    def _take_turn(self) -> None:
        if self._loads.is_ahead(self.tell_load()):
            self._pause(AHEAD_SECONDS)  # unless it is still there then, another has taken it
        else:
            self._accept()

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._resuming = loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self.open()
        self._accept()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client has left
        except OSError as error:
            log.error("no connection can be accepted: %s", error)
            self._pause(PAUSE_SECONDS)
            return
        connection.setblocking(False)
        task: asyncio.Task[object] = loop.create_task(loop.connect_accepted_socket(self._make_protocol, connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        self.tell_load()
