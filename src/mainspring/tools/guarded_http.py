"""The HTTP client for addresses that others choose."""

from mainspring.net.client import HttpClient
from mainspring.tools.addresses import AddressGuard


def make_guarded_http(guard: AddressGuard, seconds: float) -> HttpClient:
    """A client that connects, without a proxy, only to what the guard permits; else it raises `InvalidRequest`."""
    return HttpClient(seconds=seconds, resolve=guard.resolve, proxy="")
