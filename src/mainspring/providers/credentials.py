"""Credentials that expire: fetched once for all who wait, kept until shortly before their end, fetched anew when refused.

They come from the vendor's token service, or from the machine itself: a metadata service at an address that only this machine
reaches. That address is the vendor's, or named by the vendor's own environment variable, and never by a settings file.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
from anyio import Lock, fail_after
from msgspec import Struct

from mainspring.core.errors import BadOutput, InvalidRequest, Misconfigured, ProviderError, Refused, Unauthorized, Unavailable
from mainspring.core.items import Json
from mainspring.providers.http_client import Http
from mainspring.providers.json_text import encode_body

T = TypeVar("T")

_SECRET_CHARS = 12
FETCH_SECONDS = 20.0
MARGIN_SECONDS = 300.0
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Expiring(Struct, Generic[T], frozen=True):
    """A credential, and when it ends in seconds since 1970; None if it does not."""

    value: T
    until: float | None = None


class CredentialCache(Generic[T]):
    """Keeps what `fetch` returns until shortly before its end. However many wait, it is fetched once at a time."""

    def __init__(self, fetch: Callable[[], Awaitable[Expiring[T]]], clock: Callable[[], float] = time.time) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock = Lock()
        self._renewal = 0.0
        self.kept: Expiring[T] | None = None

    async def get(self) -> T:
        """Raises a `ProviderError` if there is none, and the last one has ended."""
        if self.kept is None or self._clock() >= self._renewal:
            async with self._lock:
                if self.kept is None or self._clock() >= self._renewal:
                    await self._renew()
        assert self.kept is not None
        return self.kept.value

    def forget(self, value: T) -> None:
        """Fetches another next time, unless that has happened already."""
        if self.kept is not None and self.kept.value == value:
            self.kept = None

    async def _renew(self) -> None:
        now = self._clock()
        try:
            fresh = await self._fetch()
        except ProviderError:
            if self.kept is None or self.kept.until is None or now >= self.kept.until:
                raise
            # What is still good serves meanwhile.
            self._renewal = min(now + MARGIN_SECONDS / 10, self.kept.until)
            return
        left = float("inf") if fresh.until is None else max(0.0, fresh.until - now)
        self._renewal = now + left - min(MARGIN_SECONDS, left / 5)
        self.kept = fresh


class BearerSigner:
    """Sends a token that expires. A 401 fetches another."""

    def __init__(self, fetch: Callable[[], Awaitable[Expiring[str]]], headers: Mapping[str, str] | None = None) -> None:
        self._tokens, self._headers = CredentialCache(fetch), headers or {}

    @property
    def secrets(self) -> Sequence[str]:
        return () if self._tokens.kept is None else (self._tokens.kept.value,)

    async def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {await self._tokens.get()}", **self._headers}

    def renew(self, signed: Mapping[str, str], status: int, headers: Mapping[str, str]) -> bool:
        if status != 401:
            return False
        self._tokens.forget(signed["Authorization"].removeprefix("Bearer "))
        return True


class BearerToken(Struct, gc=False):
    """A token as OAuth 2 writes it. Azure writes its numbers as text in places."""

    access_token: str
    expires_in: int | str | None = None

    def build(self, now: float) -> Expiring[str]:
        return Expiring(self.access_token, None if self.expires_in is None else now + float(self.expires_in))


async def fetch_credential(
    url: str,
    *,
    hint: str,
    form: Mapping[str, str] | None = None,
    json: Json | None = None,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    method: str | None = None,
) -> bytes:
    """What the token service answers. `hint` says what to look at if it refuses. Nothing of its answer is in any message but
    what it says of an error. Raises a `ProviderError`."""
    parts = urlsplit(url)
    body = urlencode(form).encode() if form is not None else None if json is None else encode_body(json)
    http = Http(
        f"{parts.scheme}://{parts.netloc}",
        headers={**(FORM if form else {}), **(headers or {})},
        timeout=FETCH_SECONDS,
        credential="credentials",
        # What is asked in the clear is near, and its answer is for no proxy to see.
        proxy="" if parts.scheme == "http" else None,
    )
    try:
        with fail_after(FETCH_SECONDS):
            asked = {**dict(parse_qsl(parts.query)), **(query or {})}
            with closing(await http.send(quote(parts.path.lstrip("/"), safe="/%-._~:"), body, asked, method=method)) as reply:
                return await reply.body(1 << 20)
    except TimeoutError as error:
        raise Unavailable(f"no credentials: {http.url} did not answer within {FETCH_SECONDS:g} s; {hint}") from error
    except (Refused, Unauthorized, Misconfigured) as error:
        raise Unauthorized(f"no credentials: {_mask(error.message, form or {})}; {hint}") from error
    finally:
        await http.close()


def _mask(message: str, form: Mapping[str, str]) -> str:
    """The message without what was sent: some services repeat it."""
    for value in form.values():
        message = message.replace(value, "***") if len(value) >= _SECRET_CHARS else message
    return message


async def fetch_bearer(url: str, *, hint: str, **asked: Mapping[str, str] | None) -> Expiring[str]:
    """A token of a service that writes it as OAuth 2 does."""
    now = time.time()
    return decode_credential(await fetch_credential(url, hint=hint, **asked), _bearer, url).build(now)  # type: ignore[arg-type]


def decode_credential(data: bytes, decoder: "msgspec.json.Decoder[T]", url: str) -> T:
    """Raises `BadOutput`, which says nothing of the data: there may be secrets in it."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"{url.partition('?')[0]} answered with no credentials; is it a token service?") from error


def read_secret_file(path: str, variable: str) -> str:
    """The text of a file that the environment names. Raises `Unauthorized`."""
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise Unauthorized(f"no credentials: `{path}`, named by {variable}, cannot be read ({error})") from error


def check_metadata_address(url: str, variable: str) -> str:
    """The address of a metadata service, which must be on this machine or its link: what it gives away is worth too much for any
    other to be asked in the clear. Raises `InvalidRequest`."""
    parts = urlsplit(url)
    try:
        address = ip_address("127.0.0.1" if parts.hostname == "localhost" else parts.hostname or "")
        is_near = address.is_loopback or address.is_link_local or str(address) in _NEAR
    except ValueError:
        is_near = False
    if parts.scheme == "https" or (parts.scheme == "http" and is_near):
        return url
    raise InvalidRequest(f"{variable} must be an address of this machine or its link, or begin with https://", param="providers")


_NEAR = frozenset({"fd00:ec2::23", "fd00:ec2::254", "fd20:ce::254"})
_bearer = msgspec.json.Decoder(BearerToken)
