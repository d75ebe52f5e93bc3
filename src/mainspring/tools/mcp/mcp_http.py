"""The HTTP client for MCP servers: connects only to checked addresses, and limits the size of answers."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import anyio
import httpcore2
import httpx2

from mainspring.core.errors import ToolUnavailable
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.exchange import MOST_BYTES

SECONDS = 30.0


def make_guarded_client(guard: AddressGuard, headers: Mapping[str, str], told: Callable[[int], None]) -> httpx2.AsyncClient:
    """A client without proxies or cookies of the environment. `told` hears the status of each answer that is no success."""

    async def note(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            told(response.status_code)

    return httpx2.AsyncClient(
        transport=_GuardedTransport(guard),
        # What is compressed has no size that could be limited while it is read.
        headers={**headers, "Accept-Encoding": "identity"},
        # How long an answer may take is for the caller of each tool to say.
        timeout=httpx2.Timeout(SECONDS, read=None),
        event_hooks={"response": [note]},
        trust_env=False,
    )


class _GuardedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, guard: AddressGuard) -> None:
        if "_pool" not in httpx2.AsyncHTTPTransport.handle_async_request.__code__.co_names:
            # It would connect in a way of its own, past the guard.
            raise ToolUnavailable(f"httpx2 {httpx2.__version__} cannot be guarded; install the version that is pinned")
        # Not the parent's pool: that one connects to names.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=None,
            keepalive_expiry=60.0,
            network_backend=_GuardedBackend(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the answer is compressed, though that was not asked for", request=request)
        # The events of a stream are limited one by one, by whoever reads them.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Limited(response.stream)
        return response


class _GuardedBackend(httpcore2.AnyIOBackend):
    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the parent's signature)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with anyio.fail_after(timeout):
                addresses = await self._guard.resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(f"host {host} cannot be resolved: {error.strerror or error}") from error
        *others, last = addresses
        for address in others:
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await super().connect_tcp(last, port, timeout, local_address, socket_options)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MOST_BYTES:
                # This kind fails the one request it answers; any other would end the session.
                raise httpx2.StreamError(f"the answer is larger than {MOST_BYTES >> 20} MiB; ask for less")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
