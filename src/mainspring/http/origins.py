"""Where a request is from: pages of other people's are kept from speaking for whoever looks at them."""

from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from mainspring.http.faults import Fault

REMEMBERED: Final = 1024
SAFE_METHODS: Final = ("GET", "HEAD")

_LOCAL = "use http://127.0.0.1 or localhost, or make a key with `mainspring keys create --database FILE`"


def is_loopback(host: str) -> bool:
    """Whether a server that listens at this address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_local(connection: HTTPConnection) -> None:
    """Raises `Fault` 403 for what a web page of somebody else's may have sent: a browser tells the name it was given for us, and,
    for a socket or a request with effects, where the page is from."""
    host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
    if not _is_ours(f"//{host}"):
        raise Fault(403, "foreign_host", f"without API keys this server is not called `{host[:80]}`; {_LOCAL}")
    if origin is not None and _is_sent_unasked(connection) and not _is_ours(origin):
        raise Fault(403, "foreign_origin", f"without API keys no page of `{origin[:80]}` may connect; {_LOCAL}")


def require_same_origin(connection: HTTPConnection) -> None:
    """Raises `Fault` 403 for a request with effects, or a socket, that no page of this server has sent. What a browser says of
    that, a page cannot change."""
    if connection.scope["type"] == "http" and connection.scope["method"] in SAFE_METHODS:
        return
    origin, host = connection.headers.get("origin", ""), connection.headers.get("host", "")
    if connection.headers.get("sec-fetch-site") == "same-origin":
        return  # behind a proxy we may be called otherwise than there
    if origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        message = f"a session counts only for pages of this server, not of `{origin[:80] or 'nowhere'}`; send an API key instead"
        raise Fault(403, "foreign_origin", message)


def _is_sent_unasked(connection: HTTPConnection) -> bool:
    """Whether a browser sends this for any page. Before JSON, and other methods, it asks whether the page may (CORS)."""
    if connection.scope["type"] == "websocket":
        return True
    kind = connection.headers.get("content-type", "").lower()
    return connection.scope["method"] == "POST" and not kind.startswith("application/json")


@lru_cache(REMEMBERED)
def _is_ours(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False
