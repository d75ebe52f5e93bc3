"""An HTTP/1.1 client: connections by origin, kept for the next request, directly or through a proxy, with TLS.

Redirects are not followed, and there are no cookies. `proxy` is the URL of a proxy, `""` for none; without it the environment
decides (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`). What is on this machine or its link is asked directly. TLS trusts
what the system trusts (or `SSL_CERT_FILE`), and the certificates in `ca_file`; or else as `tls` says.
"""

import asyncio
import os
import re
import socket
import ssl
from base64 import b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address
from itertools import zip_longest
from typing import NamedTuple
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from yarl import URL

from mainspring.net.connection import Answer, Connection, ConnectTimeout, Disconnected, Origin, TlsFailed, Unreachable

CONNECT_SECONDS = 15.0
IDLE_SECONDS = 15.0
"""How long a connection is kept for the next request."""
NAME_SECONDS = 10.0
"""How long the addresses of a name are remembered."""
MOST_IDLE = 1000
"""How many connections to one origin are kept."""
STAGGER_SECONDS = 0.25
"""How long an address of several has to answer before the next is tried too (RFC 8305)."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class HttpEndpoint(NamedTuple):
    """An address as a request needs it."""

    origin: Origin
    host: str
    path: str


def make_endpoint(url: URL) -> HttpEndpoint:
    """Raises `ValueError` for a URL without a host, or one that is not quoted."""
    if url.scheme not in ("http", "https") or not url.raw_host or url.port is None or _UNQUOTED.search(url.raw_path_qs):
        raise ValueError(f"`{url}` is no web address")
    return HttpEndpoint(Origin(url.scheme == "https", url.raw_host, url.port), url.host_port_subcomponent or "", url.raw_path_qs)


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """The headers as they are sent. Raises `ValueError` for what cannot be sent, or says where the body ends, which is not for
    the caller to say."""
    lines = []
    for name, value in headers:
        if _CONTROL.search(name + value):
            raise ValueError(f"header `{_CONTROL.sub('?', name)}` contains a line break; write it on one line")
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"`{name}` is no name of a header; write one word")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"header `{name}` follows from the body; leave it out")
        lines.append(f"{name}: {value}\r\n")
    # One that says its own host is taken at its word: see `request`.
    return "".join(sorted(lines, key=lambda line: line[:5].lower() != "host:")).encode()


class HttpClient:
    """Sends requests. `seconds` is how long a server may stay silent. All hosts are resolved by `resolve`, addresses in URLs
    included, and connections lead nowhere else.

    To be used in one event loop, and closed there.
    """

    def __init__(
        self,
        *,
        seconds: float,
        resolve: Resolve | None = None,
        proxy: str | None = None,
        ca_file: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._seconds = seconds
        self._resolve = resolve or _resolve
        self._proxy, self._ca_file, self._tls = proxy, ca_file, tls
        self._addresses: dict[Origin, tuple[float, Sequence[str]]] = {}
        self._routes: dict[Origin, _Proxy | None] = {}
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._idle: defaultdict[Origin, list[tuple[float, Connection]]] = defaultdict(list)
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, endpoint: HttpEndpoint, headers: bytes = b"", body: bytes | None = None, *, is_repeatable: bool = True
    ) -> Answer:
        """The answer, its head here and its body still to be read. Raises an `HttpError`.

        If the server has just closed a kept connection, before any byte of an answer, a request that may be repeated is sent
        again on another.
        """
        proxy = self._find_proxy(endpoint.origin)
        path, more = endpoint.path, b""
        if proxy is not None and not endpoint.origin.is_tls:
            path, more = f"http://{endpoint.host}{path}", proxy.headers
        if headers[:5].lower() != b"host:":
            more += b"Host: %b\r\n" % endpoint.host.encode()
        if body is None and method in ("POST", "PUT", "PATCH"):
            body = b""
        if body is not None:
            more += b"Content-Length: %d\r\n" % len(body)
        head = b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), path.encode(), more, headers)
        while True:
            kept = self._take(endpoint.origin)
            connection = kept or await self._connect(endpoint, proxy)
            answer = Answer(method, self._seconds, self._loop)
            try:
                await answer.send(connection, head, body or b"")
                await answer.receive_head()
                return answer
            except Disconnected:
                if kept is None or connection.has_received or not is_repeatable:
                    raise
            except BaseException:
                answer.close()
                raise

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections. Answers that are not whole break off."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)

    def keep(self, connection: Connection) -> None:
        idle = self._idle[connection.origin]
        if len(idle) >= MOST_IDLE:
            connection.abort()
            return
        idle.append((self._loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(IDLE_SECONDS, self._sweep)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            kept = idle.pop()
            if self._is_fresh(kept):
                return kept[1]
        return None

    def _sweep(self) -> None:
        self._idle = defaultdict(list, {origin: left for origin, idle in self._idle.items() if (left := self._sift(idle))})
        self._sweeper = self._loop.call_later(IDLE_SECONDS / 2, self._sweep) if self._idle else None

    def _sift(self, idle: list[tuple[float, Connection]]) -> list[tuple[float, Connection]]:
        return [kept for kept in idle if self._is_fresh(kept)]

    def _is_fresh(self, kept: tuple[float, Connection]) -> bool:
        """Whether a connection may be used again; else it is closed."""
        since, connection = kept
        if connection.is_open and self._loop.time() < since + IDLE_SECONDS:
            return True
        connection.abort()
        return False

    def _find_proxy(self, origin: Origin) -> "_Proxy | None":
        try:
            return self._routes[origin]
        except KeyError:
            is_direct = self._proxy == "" or _is_near(origin.host)
            found = self._routes[origin] = None if is_direct else _choose_proxy(self._proxy, origin)
            return found

    async def _connect(self, endpoint: HttpEndpoint, proxy: "_Proxy | None") -> Connection:
        origin = endpoint.origin
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if proxy is not None and origin.is_tls:
                    connection = await self._tunnel(endpoint, proxy)
                else:
                    connection = await self._dial(origin if proxy is None else proxy.origin, origin)
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s") from error
        except ssl.SSLError as error:
            raise TlsFailed(str(error)) from error
        except OSError as error:
            # Event loops write their own words for what the system says.
            said = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise Unreachable(said or str(error) or type(error).__name__) from error
        except UnicodeError as error:  # a label that is empty or too long
            raise Unreachable(f"it is no name of a host: {error}") from error
        if connection.is_open:
            self._open.add(connection)
        return connection

    async def _dial(self, to: Origin, origin: Origin) -> Connection:
        """A connection to `to`, which carries requests for the origin."""
        tls, name = (self._tls or make_tls(self._ca_file), to.host) if to.is_tls else (None, None)
        until, addresses = self._addresses.pop(to, (0.0, ()))
        if until <= self._loop.time():
            addresses, until = await self._resolve(to.host, to.port), self._loop.time() + NAME_SECONDS

        async def attempt(address: str) -> Connection:
            return (
                await self._loop.create_connection(
                    lambda: Connection(self, origin), address, to.port, ssl=tls, server_hostname=name
                )
            )[1]

        connection = await _race([partial(attempt, address) for address in _alternate(addresses)])
        # Addresses that do not answer are looked up again.
        self._addresses[to] = until, addresses
        return connection

    async def _tunnel(self, endpoint: HttpEndpoint, proxy: "_Proxy") -> Connection:
        """Connects through the proxy. What the proxy sees of the request is its host."""
        outer, connection = await self._dial(proxy.origin, proxy.origin), Connection(self, endpoint.origin)
        answer = Answer("CONNECT", CONNECT_SECONDS, self._loop)
        try:
            _, host, port = endpoint.origin
            to = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
            await answer.send(outer, b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (to, to, proxy.headers), b"")
            await answer.receive_head()
            if answer.status // 100 != 2:
                raise Unreachable(f"the proxy {proxy.origin.host} answered HTTP {answer.status} {answer.reason}".rstrip())
            tls = self._tls or make_tls(self._ca_file)
            inner = await self._loop.start_tls(outer.transport, connection, tls, server_hostname=host)
            if inner is None:
                raise ConnectionResetError("the proxy closed the connection")
            connection.connection_made(inner)
        except BaseException:
            outer.abort()
            raise
        return connection


class _Proxy(NamedTuple):
    """A proxy, and the headers that it wants."""

    origin: Origin
    headers: bytes


def _choose_proxy(setting: str | None, origin: Origin) -> _Proxy | None:
    """The proxy that leads to the origin: the one that is set, else that of the environment."""
    address = setting
    if address is None:
        known = getproxies_environment()
        address = known.get("https" if origin.is_tls else "http") or known.get("all")
        if not address or proxy_bypass_environment(f"{origin.host}:{origin.port}", known):
            return None
    return parse_proxy(address)


@lru_cache(maxsize=16)
def parse_proxy(address: str) -> _Proxy:
    """Raises `Unreachable` for what is no HTTP proxy."""
    try:
        url = URL(address if "://" in address else f"http://{address}")
        origin = make_endpoint(url).origin
    except ValueError:
        # The address may hold a password.
        raise Unreachable("the proxy's address is no URL of an HTTP proxy; write http://HOST:PORT") from None
    if url.user is None:
        return _Proxy(origin, b"")
    account = b64encode(f"{url.user}:{url.password or ''}".encode())
    return _Proxy(origin, b"Proxy-Authorization: Basic %b\r\n" % account)


@lru_cache(maxsize=16)
def make_tls(ca_file: str | None = None) -> ssl.SSLContext:
    """Verifies certificates and names by the system's store and the file. Reading the store takes a while, so it is read once.

    Raises `OSError` for a file that holds no certificates.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_near(host: str) -> bool:
    """Whether this is an address of this machine or its link, which no proxy reaches."""
    try:
        address = ip_address(host)
        return address.is_loopback or address.is_link_local
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def _resolve(host: str, port: int) -> Sequence[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys([str(address[0]) for *_, address in found]))


def _alternate(addresses: Sequence[str]) -> list[str]:
    """The addresses with the families taking turns, that of the first one first."""
    of_6, of_4 = [each for each in addresses if ":" in each], [each for each in addresses if ":" not in each]
    pairs = zip_longest(of_6, of_4) if addresses and ":" in addresses[0] else zip_longest(of_4, of_6)
    return [each for pair in pairs for each in pair if each is not None]


async def _race(attempts: Sequence[Callable[[], Coroutine[None, None, Connection]]]) -> Connection:
    """The connection of the first attempt that succeeds. Each has a head start before the next (RFC 8305)."""
    if len(attempts) == 1:
        return await attempts[0]()
    left, running = list(attempts), set[asyncio.Task[Connection]]()
    failure: BaseException = OSError("the name has no address")
    try:
        while left or running:
            if left:
                running.add(asyncio.create_task(left.pop(0)()))
            await asyncio.wait(running, timeout=STAGGER_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                running.discard(task)
                if (error := task.exception()) is None:
                    return task.result()
                failure = error
        raise failure
    finally:
        for task in running:
            if not task.cancel() and task.exception() is None:
                task.result().abort()


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNQUOTED = re.compile(r"[^!-~]")
_CONTROL = re.compile(r"[\r\n\0]")
