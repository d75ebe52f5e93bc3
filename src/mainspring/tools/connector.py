"""aiohttp sessions that connect only to what an `AddressGuard` permits."""

import socket
from collections.abc import Sequence

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from mainspring.core.errors import InvalidRequest
from mainspring.tools.addresses import AddressGuard, is_public


def make_guarded_session(guard: AddressGuard, *, encoding: str = "identity", seconds: float) -> ClientSession:
    """A session without cookies and proxies, whose answers are not decompressed: that would have no limit of size."""
    return ClientSession(
        connector=make_guarded_connector(guard),
        headers={"User-Agent": "Mainspring", "Accept-Encoding": encoding},
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=seconds),
        auto_decompress=False,
    )


def make_guarded_connector(guard: AddressGuard) -> TCPConnector:
    """A connector whose connections raise `InvalidRequest` for hosts that are not public. Give the session no proxy."""
    resolver = _GuardedResolver(guard)

    def make_socket(
        info: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, Sequence[object]],
    ) -> socket.socket:
        family, kind, protocol, _, address = info
        resolver.check(str(address[0]))
        return socket.socket(family, kind, protocol)

    return TCPConnector(resolver=resolver, socket_factory=make_socket)


class _GuardedResolver(AbstractResolver):
    """Resolves names by the guard. An address in a URL passes by any resolver, so `check` sees every address once more."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._named: set[str] = set()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        found = await self._guard.resolve(host, port)
        if self._guard.is_allowed(host):
            self._named |= set(found)
        return [_build_result(host, address, port) for address in found]

    def check(self, address: str) -> None:
        if not (is_public(address) or self._guard.is_allowed(address) or address in self._named):
            raise InvalidRequest(f"address `{address}` is not public; the operator can allow it: --allow-host {address}")

    async def close(self) -> None:
        pass


def _build_result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)
