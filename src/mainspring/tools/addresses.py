"""Protection against SSRF: an untrusted URL may lead only to public addresses and to hosts that the operator allows.

A name is resolved once, all its addresses are checked, and the connection goes to a checked address, never to the name, so that
DNS rebinding has no effect. The guard sits where connections are made: redirects, odd spellings of an address and names that
resolve to private addresses all meet the same check.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Thread
from typing import Final
from urllib.parse import urlsplit

from anyio.lowlevel import RunVar

from mainspring.core.errors import InvalidRequest
from mainspring.tools.work_turns import Turns

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]

LONGEST_URL: Final = 16_384
"""How many characters a URL may have that others choose: a host of millions of letters takes seconds to be read."""
LONGEST_FOREIGN: Final = 2_048
"""How many one with other letters than ASCII may have: its host is normalized, which takes time by the square of its marks."""

MOST_LOOKUPS: Final = 64
"""How many names are looked up at a time, and how many of one domain."""
MOST_OF_DOMAIN: Final = 8

_turns: RunVar[Turns | None] = RunVar("lookups")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    # Protocol assignments with Teredo, documentation twice, 6to4: each may lead to an IPv4 address that is not shown.
    IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16")
)
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC_4 = tuple(
    # Protocol assignments, 6to4 relays, and the address at which one cloud serves its machines' secrets.
    IPv4Network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")
)


class AddressGuard:
    """Resolves hosts to addresses that may be connected to. `allowed_hosts` may have any address."""

    def __init__(self, allowed_hosts: Iterable[str] = (), *, lookup: Lookup | None = None) -> None:
        self._allowed = frozenset([_normalize_host(host) for host in allowed_hosts])
        self._lookup = lookup or _resolve_host

    def allow(self, host: str) -> "AddressGuard":
        """A copy of this guard that allows this host as well."""
        return AddressGuard([*self._allowed, host], lookup=self._lookup)

    def is_allowed(self, host: str) -> bool:
        """Whether the operator allows this host, whatever its address."""
        return _normalize_host(host) in self._allowed

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses of a host, in the resolver's order. Raises `InvalidRequest` unless all may be connected to.

        Raises `OSError` for a name that cannot be resolved.
        """
        found = (host,) if _parse_address(host) is not None else tuple(await self._lookup(host, port))
        if not found:
            raise OSError(f"the name `{host}` has no address")
        if not self.is_allowed(host) and not all(is_public(address) for address in found):
            # The message does not reveal the address of an internal name.
            raise InvalidRequest(f"host `{host}` is not public; the operator can allow it: --allow-host {host}")
        return found

    async def check(self, url: str) -> None:
        """Raises `InvalidRequest` for a URL that is not HTTP, or whose host may not be connected to or has no address."""
        host, port = parse_endpoint(url)
        try:
            await self.resolve(host, port)
        except OSError as error:
            raise InvalidRequest(f"host `{host}` cannot be resolved ({error.strerror or error}); check the URL") from error


def check_length(url: str) -> None:
    """Raises `InvalidRequest` for a URL that is too long to be read."""
    if len(url) > (most := LONGEST_URL if url.isascii() else LONGEST_FOREIGN):
        more = "" if url.isascii() else ", and longer ones are written with %"
        raise InvalidRequest(f"`{url:.200}...` has {len(url):,} characters; a URL like this has at most {most:,}{more}")


def parse_endpoint(url: str) -> tuple[str, int]:
    """Host and port of an HTTP URL; raises `InvalidRequest` for any other."""
    check_length(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"`{url}` is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"`{url}` is no HTTP URL; write http:// or https:// and a host")
    return host, port or (443 if parts.scheme == "https" else 80)


def is_public(text: str) -> bool:
    """Whether this is a global unicast address; false for what is no address."""
    address = _parse_address(text)
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        if inner is None:
            return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_PUBLIC_6)
        address = inner
    if address is None or any(address in network for network in _NOT_PUBLIC_4):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _normalize_host(host: str) -> str:
    return str(_parse_address(host) or host.lower().rstrip("."))


async def _resolve_host(host: str, port: int) -> Sequence[str]:
    """Looks a name up in a thread of its own. The name server may be one that never answers, so none of the threads are taken in
    which other work is done, and only so many for the names of one domain."""
    if (turns := _turns.get(None)) is None:
        turns = Turns(MOST_LOOKUPS, MOST_OF_DOMAIN)
        _turns.set(turns)
    domain = find_domain(host)
    await turns.enter(domain)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def end(addresses: Sequence[str], error: Exception | None) -> None:
        turns.leave(domain)  # also when nobody waits for the answer any more: until now there was a thread for it
        if found.cancelled():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look_up() -> None:
        addresses: list[str] = []
        error: Exception | None = None
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys([str(address[0]) for *_, address in answers]))
        except UnicodeError as wrong:  # a label that is empty or too long
            error = OSError(f"it is no name of a host: {wrong}")
        except Exception as wrong:  # whatever it is, it is for whoever waits
            error = wrong
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, addresses, error)

    try:
        Thread(target=look_up, name=f"look up {host[:80]}", daemon=True).start()
    except BaseException:
        turns.leave(domain)
        raise
    return await found


def find_domain(host: str) -> str:
    """The last two labels of a name, as far as it has two: whoever has a name server has one for all names below these."""
    return ".".join(host.lower().rstrip(".").rsplit(".", 2)[-2:])
