"""Requests to model backends: one pool of connections each, replies read as they arrive, every failure a `ProviderError`.

`Http` sends a request and returns an `HttpReply` once the backend has agreed to answer. A reply that is closed before its end
closes its connection; one that was read to its end leaves the connection to the next request.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from typing import TypeVar

import anyio
import msgspec
from multidict import CIMultiDict
from yarl import URL

from mainspring.core.errors import BadOutput, InvalidRequest, Misconfigured, ProviderError, Unavailable
from mainspring.core.json_values import count_values
from mainspring.core.redact import redact_text
from mainspring.core.text import shorten_line
from mainspring.net.client import CONNECT_SECONDS, HttpClient, HttpEndpoint, encode_headers, make_endpoint, make_tls, parse_proxy
from mainspring.net.connection import Answer, ConnectTimeout, HttpError, MalformedAnswer, Silence, TlsFailed, Unreachable
from mainspring.ports import HttpAnswer, RecordedRequest, RequestSigner, Tape
from mainspring.providers.http_failures import build_error, parse_complaint, parse_retry_after

T = TypeVar("T")

DRAIN_SECONDS = 0.5
LAST_SECONDS = 5.0
COMPLAINT_BYTES = 65_536
COMPLAINT_SECONDS = 5.0
EVENT_BYTES = 8 * 1024 * 1024
"""What a backend may send in one piece: an event of a stream, or a whole answer."""
MOST_VALUES = 262_144
MOST_ENDPOINTS = 64


class Http:
    """A backend's address and how to talk to it. `timeout` is how long it may stay silent, before and within an answer.

    The client is made at the first request, and again if one follows `close`; `proxy` and `ca_file` are its.
    `credential` is what to check when it is not accepted. Raises `InvalidRequest` for an address or a header that can never work.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
        tape: Tape | None = None,
        signer: RequestSigner | None = None,
        proxy: str | None = None,
        ca_file: str | None = None,
        credential: str = "API key",
    ) -> None:
        address = _address(base_url)
        self._tape = tape
        self._signer, self._credential = signer, credential if signer is None else "credentials"
        self._base = address.with_user(None)
        self._headers = _headers(address, api_key, headers or {})
        self._secrets = _secrets(address, api_key, headers or {})
        self._encoded = _encode(self._headers)
        self._encoded_for_json = self._encode_signed({}, b"")
        _check_route(proxy, ca_file)
        self._timeout, self._proxy, self._ca_file = timeout, proxy, ca_file
        self._client: HttpClient | None = None
        self._find_endpoint = lru_cache(MOST_ENDPOINTS)(self._build_endpoint)
        self.host = self._base.host or ""
        self.url = _show(self._base)

    async def send(
        self, path: str, body: bytes | None = None, query: Mapping[str, str] | None = None, *, method: str | None = None
    ) -> "HttpReply":
        """The reply to a POST of the body, or to a GET without one, its own body still unread. A path with `%` in it is taken as
        it is. Raises a `ProviderError` unless the status is one of success."""
        method = method or ("GET" if body is None else "POST")
        url, endpoint, shown = self._find_endpoint(path, tuple(query.items()) if query else ())
        if self._tape is None:
            received: HttpAnswer = await self._answer(method, url, endpoint, body)
        else:
            asked = RecordedRequest(method, path, None if body is None else self._remove_secrets(body.decode()).encode())
            received = await self._tape.answer(asked, lambda: self._answer(method, url, endpoint, body), self._list_secrets())
        reply = HttpReply(received, shown, self._timeout)
        if received.status // 100 == 2:
            return reply
        try:
            raise await self._refusal(reply, received)
        finally:
            reply.close()

    async def fetch(
        self,
        path: str,
        decoder: "msgspec.json.Decoder[T]",
        what: str,
        *,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
    ) -> T:
        """The whole answer, decoded; `what` is what it should be. Raises a `ProviderError`, `BadOutput` for anything else."""
        with closing(await self.send(path, body, query)) as reply:
            data = await reply.body()
        try:
            check_values(data, reply.url)
            return decoder.decode(data)
        except (ValueError, RecursionError) as error:
            raise BadOutput(f"{reply.url} answered with no {what} ({error}): `{self.quote(data)}`; check the base URL") from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def redact(self, text: str) -> str:
        """The text without what is secret in it: what this backend is sent, and what looks like a key or a password."""
        return redact_text(self._remove_secrets(text))

    def _list_secrets(self) -> list[str]:
        return self._secrets if self._signer is None else [*self._secrets, *self._signer.secrets]

    def _remove_secrets(self, text: str) -> str:
        for secret in self._list_secrets():
            text = text.replace(secret, "***")
        return text

    def quote(self, data: bytes) -> str:
        """The beginning of the data, redacted, for an error message."""
        return shorten_line(self.redact(data[:400].decode(errors="replace")), 200)

    async def _answer(self, method: str, url: str, endpoint: HttpEndpoint, body: bytes | None) -> HttpAnswer:
        """The head of the answer. A request whose credentials have expired is signed anew, once."""
        headers = self._encoded if body is None else self._encoded_for_json
        if self._signer is None:
            return await self._exchange(method, endpoint, headers, body)
        signed = await self._signer.sign(method, url, body or b"")
        received = await self._exchange(method, endpoint, self._encode_signed(signed, body), body)
        if self._signer.renew(signed, received.status, received.headers):
            received.close()
            signed = await self._signer.sign(method, url, body or b"")
            received = await self._exchange(method, endpoint, self._encode_signed(signed, body), body)
        return received

    def _encode_signed(self, signed: Mapping[str, str], body: bytes | None) -> bytes:
        headers = CIMultiDict({"Content-Type": "application/json"} if body is not None else {})
        headers.update(self._headers)
        headers.update(signed)
        return _encode(headers)

    async def _exchange(self, method: str, endpoint: HttpEndpoint, headers: bytes, body: bytes | None) -> HttpAnswer:
        if self._client is None:
            self._client = HttpClient(seconds=self._timeout, proxy=self._proxy, ca_file=self._ca_file)
        try:
            return await self._client.request(method, endpoint, headers, body)
        except HttpError as error:
            raise self._explain(error, f"{self._base.origin()}{endpoint.path.partition('?')[0]}") from error

    def _build_endpoint(self, path: str, query: tuple[tuple[str, str], ...]) -> tuple[str, HttpEndpoint, str]:
        """The URL, as it is needed for requests, and as it is shown."""
        url = self._base.joinpath(path, encoded="%" in path).with_query(self._base.query).update_query(query)
        return str(url), make_endpoint(url), _show(url)

    def _explain(self, error: HttpError, url: str) -> ProviderError:
        why = shorten_line(str(error), 200)
        match error:
            case TlsFailed():
                return Misconfigured(f"{self.url} does not speak TLS as it should ({why}); check its base URL and certificate")
            case ConnectTimeout():
                return Unavailable(f"no server answers at {self.url} within {CONNECT_SECONDS:g} s; is it running and reachable?")
            case Unreachable():
                return Unavailable(f"no server answers at {self.url} ({why}); is it running?")
            case Silence():
                return Unavailable(
                    f"{url} sent nothing for {self._timeout:g} s; is the model loaded? raise `timeout` if it is slow"
                )
            case MalformedAnswer():
                return Unavailable(f"{url} answered what is no HTTP ({why}); check the base URL")
            case _:
                return Unavailable(f"{url} closed the connection without an answer ({why}); look at the server's log")

    async def _refusal(self, reply: "HttpReply", response: HttpAnswer) -> ProviderError:
        if 300 <= response.status < 400:
            target = self.redact(response.headers.get("Location", "nowhere").partition("?")[0])
            return Misconfigured(f"{reply.url} redirects to {shorten_line(target)}; set the base URL to match")
        said, wait = parse_complaint(await reply.beginning(), self.redact), parse_retry_after(response.headers)
        what = f"{reply.url} answered HTTP {response.status}"
        return build_error(response.status, said, what, said.wait if wait is None else wait, self._credential)


class HttpReply:
    """An answer as it arrives. Whoever asked must `close` it."""

    __slots__ = ("_received", "_timeout", "_until", "mime", "server", "url")

    def __init__(self, received: HttpAnswer, url: str, timeout: float) -> None:
        self._received = received
        self._timeout = timeout
        self._until: float | None = None
        self.url = url
        self.mime = received.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.server = received.headers.get("Server", "")

    async def read(self) -> bytes:
        """What has arrived since the last read, waiting for it if need be; empty at the end."""
        try:
            return await self._received.read()
        except HttpError as error:
            raise self._explain(error) from error

    async def push(self, take: Callable[[bytes], bool], most: int) -> None:
        """Calls `take` with what arrives in the moment it does, as `Answer.push` does. Answers of a tape are only read."""
        if isinstance(self._received, Answer):
            try:
                await self._received.push(take, most)
            except HttpError as error:
                raise self._explain(error) from error

    def _explain(self, error: HttpError) -> Unavailable:
        if isinstance(error, Silence):
            return Unavailable(f"{self.url} fell silent for {self._timeout:g} s within its answer; try again")
        why = shorten_line(str(error), 200)
        return Unavailable(f"the connection to {self.url} broke within its answer ({why}); try again")

    def more(self, *, is_complete: bool) -> Awaitable[bytes]:
        """What `read` returns, until the answer is complete. What follows it must arrive within `LAST_SECONDS` in all, and a
        connection that breaks there counts as its end."""
        return self._read_rest() if is_complete else self.read()

    async def _read_rest(self) -> bytes:
        if self._until is None:
            self._until = anyio.current_time() + LAST_SECONDS
        with anyio.CancelScope(deadline=self._until), suppress(Unavailable):
            return await self.read()
        return b""

    async def body(self, limit: int = EVENT_BYTES) -> bytes:
        """All of it. Raises `BadOutput` beyond `limit` bytes."""
        data = bytearray()
        while piece := await self.read():
            data += piece
            if len(data) > limit:
                raise BadOutput(f"{self.url} sent more than {limit} bytes where an answer belongs; is this a model backend?")
        return bytes(data)

    async def beginning(self) -> bytes:
        """The beginning of the body, as much as an error message needs and arrives in time."""
        data = bytearray()
        with anyio.move_on_after(COMPLAINT_SECONDS), suppress(Unavailable):
            while len(data) < COMPLAINT_BYTES and (piece := await self.read()):
                data += piece
        return bytes(data[:COMPLAINT_BYTES])

    async def drain(self) -> None:
        """Waits briefly for the end of the body, so that the connection can be reused."""
        if isinstance(self._received, Answer) and self._received.is_whole:
            return
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while await self.read():
                    pass

    def close(self) -> None:
        self._received.close()


class WholeAnswer:
    """An answer in JSON that is here already."""

    status = 200

    def __init__(self, body: bytes) -> None:
        self.headers: Mapping[str, str] = {"Content-Type": "application/json"}
        self._body = body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        self._body = b""


def check_values(data: bytes, url: str) -> None:
    """Raises `BadOutput` for JSON that would take long to decode."""
    if any(values > MOST_VALUES for values in count_values(data, MOST_VALUES)):
        error = BadOutput(f"{url} sent JSON of more than {MOST_VALUES} values in one piece; no answer has so many")
        error.retryable = False
        raise error


def _address(base_url: str) -> URL:
    shown = re.sub(r"//.*@", "//", base_url)
    try:
        url = URL(base_url.strip().rstrip("/"))
    except ValueError as error:
        raise InvalidRequest(f"base URL `{shown}` cannot be read: {error}", param="base_url") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(f"base URL `{shown}` must begin with http:// or https:// and name a host", param="base_url")
    return url


def _headers(address: URL, api_key: str | None, extra: Mapping[str, str]) -> CIMultiDict[str]:
    # Compression would make a server hold tokens back until a block is full.
    headers = CIMultiDict(
        {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity", "User-Agent": "Mainspring"}
    )
    if api_key and api_key.strip():
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    elif address.user is not None:
        headers["Authorization"] = "Basic " + b64encode(f"{address.user}:{address.password or ''}".encode()).decode()
    headers.update(extra)
    return headers


def _check_route(proxy: str | None, ca_file: str | None) -> None:
    try:
        if proxy:
            parse_proxy(proxy)
        if ca_file is not None:
            make_tls(ca_file)
    except Unreachable as error:
        raise InvalidRequest(str(error), param="proxy") from None
    except OSError as error:
        raise InvalidRequest(f"`{ca_file}` is no file of certificates ({error.strerror or error})", param="ca_file") from None


def _encode(headers: Mapping[str, str]) -> bytes:
    try:
        return encode_headers(headers.items())
    except ValueError as error:
        raise InvalidRequest(str(error), param="headers") from None


def _secrets(address: URL, api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    """What must not be in a message: keys, and the last word of private headers. Short ones would match ordinary words."""
    private = [value for name, value in headers.items() if _PRIVATE.search(name)]
    words = [value.split()[-1:] for value in (api_key or "", address.password or "", *private)]
    kept = [word for found in words for word in found if len(word) >= 8]
    # In JSON some characters are spelled otherwise.
    return list(dict.fromkeys([*kept, *[msgspec.json.encode(word).decode()[1:-1] for word in kept]]))


def _show(url: URL) -> str:
    """The address without its query, which may hold a key."""
    return str(url.with_query(None))


_PRIVATE = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)
