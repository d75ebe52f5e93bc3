"""Settings of the table `[http]`."""

import os
from typing import Annotated, Final

from msgspec import Meta, Struct

from mainspring.http.key_limits import NO_LIMITS, KeyLimits

LEAST_BODY_BYTES: Final = 256 * 1024 * 1024


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on connections and heads, which hold before a key is checked, and what surrounds every request."""

    head_bytes: Annotated[int, Meta(ge=1024)] = 65_536
    """The most bytes of a request's line and headers."""
    head_fields: Annotated[int, Meta(ge=16)] = 256
    """The most headers of a request."""
    head_seconds: Annotated[float, Meta(gt=0)] = 20.0
    """How long a client may take to send the head of a request."""
    body_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """How long a client may take to send a body, and one second more for each 1,000 bytes that have come."""
    unread_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """How long a client may leave what it is sent unread."""
    keep_alive_seconds: Annotated[int, Meta(ge=1)] = 130
    """How long a connection waits for another request: longer than proxies keep it, so that none sends one while it closes."""
    body_bytes: Annotated[int, Meta(ge=1024)] | None = None
    """The most bytes that requests and runs under way hold: bodies, the histories that they continue, and what models and tools
    have said in them. An eighth of the memory if not given. One key may have half."""
    connections: Annotated[int, Meta(ge=1)] | None = None
    """The most connections at a time; as many as the process may open files, less 256, if not given."""
    connections_per_address: Annotated[int, Meta(ge=1)] | None = None
    """The most connections of one address; half of `connections` if not given. A proxy in front is one address."""
    request_log: Annotated[str | None, Meta(description="the name of a file, or `-` for standard error")] = None
    """A file that gets a line of JSON for every request: when, request id, method, path, status, milliseconds, id of the API key
    and tenant, and no content. `-` is standard error. A file that is moved away is begun anew."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the API in a browser, such as `https://app.example.com`; `*` is all of them, and
    has every request need an API key."""
    key_limits: KeyLimits = NO_LIMITS
    """Limits of every API key of the database that has none of its own; `mainspring keys create` gives a key its own."""
    requests_per_key: Annotated[int, Meta(ge=1)] | None = None
    """The most requests at a time with one key at all processes together, open streams among them. If not given, a key may have
    half of the `connections` of each process."""


def find_most_bytes(settings: HttpSettings) -> int:
    """`body_bytes`, or what it is on this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return settings.body_bytes or max(memory // 8, LEAST_BODY_BYTES)
