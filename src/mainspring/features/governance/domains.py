"""May this run speak to that machine?

The host of a URL must be spelled so that every program reads it alike, must fit the operator's lists, and every address it has
must be a public one. The address check is asked for here, so that a call is refused before it begins, and is the connection's to
make again: a tool that follows a redirect asks `flaw` about each new URL, and connects to the address that was checked.

Of a command, a URL that is written out in it is judged by its host alone: whom a program speaks to is for the sandbox.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from anyio import fail_after

from mainspring.core.errors import InvalidRequest
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_texts
from mainspring.tools.shell_reader import ShellLine, read_line

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")

LOOKUP_SECONDS: Final = 8.0


class Domains:
    """Denies calls with a URL whose host is denied, is not among the allowed ones, or is not public.

    `example.com` in a list stands for itself and all below it; an empty `allowed` is every host that is not denied. `check`
    resolves the host of a URL and raises `InvalidRequest` unless each of its addresses may be connected to.
    """

    name = "domains"
    # Looking up a host has its own time limit, and most calls have none: a task for each would cost more than the verdict.
    never_waits = True

    def __init__(
        self,
        check: Callable[[str], Awaitable[None]],
        allowed: Iterable[str] = (),
        denied: Iterable[str] = (),
        *,
        seconds: float = LOOKUP_SECONDS,
    ) -> None:
        self._check, self._seconds = check, seconds
        self._allowed = tuple([_normal(domain) for domain in allowed])
        self._denied = tuple([_normal(domain) for domain in denied])

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = find_served_tool(call, run)
        if tool is None or {"url", "command"}.isdisjoint(tool.purposes.values()):
            return Allow()
        try:
            arguments = parsed_arguments(call.item.arguments)
            texts, commands = read_texts(tool, arguments, "url"), read_texts(tool, arguments, "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        flaws = [await self.flaw(url) for url in texts]
        flaws += [await self._mention_flaw(url) for text in commands for url in urls_in(await read_line(text))]
        why = next((why for why in flaws if why is not None), None)
        return Allow() if why is None else Deny(f"The rule `domains` denies this call: {why}.")

    async def flaw(self, url: str) -> str | None:
        """Why this URL may not be fetched, in words for the model; None if it may."""
        try:
            host = host_of(url)
        except ValueError as error:
            return f"`{url[:200]}` {error}"
        if (why := self._listing_flaw(host)) is not None:
            return why
        try:
            with fail_after(self._seconds):
                await self._check(url)
        except InvalidRequest as error:
            return error.message
        except TimeoutError:
            return f"`{host}` could not be looked up in {self._seconds:g} s"
        return None

    async def _mention_flaw(self, url: str) -> str | None:
        """Why a URL may not stand in a command. Only an address is checked as one: a name is not looked up to be mentioned."""
        try:
            host = host_of(url)
        except ValueError as error:
            return f"`{url[:200]}` {error}"
        return await self.flaw(url) if _is_address(host) else self._listing_flaw(host)

    def _listing_flaw(self, host: str) -> str | None:
        if (domain := _fitting(host, self._denied)) is not None:
            return f"`{domain}` is denied"
        if self._allowed and _fitting(host, self._allowed) is None:
            return f"`{host}` is not among the allowed domains: {', '.join(self._allowed)}"
        return None


def urls_in(line: ShellLine) -> list[str]:
    """The HTTP URLs that are written out in a line."""
    return [word for word in line.mentions if "://" in word and word.lower().startswith(("http://", "https://"))]


@lru_cache(maxsize=512)
def host_of(url: str) -> str:
    """The host of an HTTP URL, in small letters. Raises `ValueError` that says what is wrong with the URL's spelling."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(
            "has signs that programs read in different ways; write it in plain ASCII, without blanks and backslashes"
        )
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        raise ValueError("is no URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("is no HTTP URL; write http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ValueError("holds a user name, which hides the host; leave it out")
    if parts.netloc.startswith("["):
        return host
    if _HOST.fullmatch(host) is None or len(host) > 253 or any(len(label) > 63 for label in host.split(".")):
        raise ValueError("has a host that is no name; write it out in letters, digits, dots and hyphens")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not _is_address(host):
        raise ValueError("spells an address in an unusual way; write four decimal numbers")
    return host


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _fitting(host: str, domains: tuple[str, ...]) -> str | None:
    return next((domain for domain in domains if host == domain or host.endswith(f".{domain}")), None)


def check_domain(domain: str) -> None:
    """Raises `InvalidRequest` for what cannot stand in a list of domains."""
    _normal(domain)


def _normal(domain: str) -> str:
    """A domain as hosts are compared with it. Raises `InvalidRequest` for one that no host could fit."""
    plain = domain.lower().strip().strip(".")
    try:
        host = host_of(f"http://{f'[{plain}]' if ':' in plain else plain}/")
    except ValueError:
        host = ""
    if not host or host != plain:
        raise InvalidRequest(f"`{domain}` is no domain; write it like `example.com`, without scheme, path or wildcard")
    return host
