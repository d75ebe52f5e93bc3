"""The proxy alone, with clients that are no browser: what it passes on, and what it does not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from mainspring.tools.addresses import AddressGuard
from mainspring.tools.browser.proxy import Proxy


class Origin:
    """A server that keeps what it is sent and answers with what it is told to."""

    def __init__(self) -> None:
        self.heard = b""
        self.answer = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += await reader.readuntil(b"\r\n\r\n")
        if length := self.heard.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]:
            self.heard += await reader.readexactly(int(length))
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def proxied(most_bytes: int = 1 << 20) -> AsyncIterator[tuple[Proxy, Origin]]:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    origin = Origin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    origin.port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as door:
        async with Proxy(door, AddressGuard(["good.test"], lookup=lookup), None, most_bytes=most_bytes) as proxy:
            yield proxy, origin
    server.close()


async def said(proxy: Proxy, sent: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(sent.encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_request_is_passed_on_as_its_server_wants_it() -> None:
    async with proxied() as (proxy, origin):
        head = f"POST http://good.test:{origin.port}?q=1 HTTP/1.1\r\nHost: evil.test\r\nProxy-Connection: keep-alive\r\nX: y\r\n"
        answer = await said(proxy, f"{head}Content-Length: 3\r\n\r\nabcGET http://good.test/second HTTP/1.1\r\n\r\n")
    assert origin.heard.decode().splitlines() == [
        "POST /?q=1 HTTP/1.1", f"Host: good.test:{origin.port}", "X: y", "Content-Length: 3", "Connection: close", "", "abc",
    ]  # fmt: skip
    assert answer == "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def test_a_tunnel_passes_bytes_both_ways() -> None:
    async with proxied() as (proxy, origin):
        answer = await said(proxy, f"CONNECT good.test:{origin.port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert answer == "HTTP/1.1 200 OK\r\n\r\n" + origin.answer.decode()


@pytest.mark.parametrize(
    "first",
    [
        "GET http://bad.test:{port}/ HTTP/1.1",
        "CONNECT bad.test:{port} HTTP/1.1",
        "CONNECT 127.0.0.1:{port} HTTP/1.1",
        "CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1",
        "CONNECT 0x7f000001:{port} HTTP/1.1",
        "GET http://good.test@127.0.0.1:{port}/ HTTP/1.1",
        "GET https://good.test:{port}/ HTTP/1.1",
        "GET file:///etc/passwd HTTP/1.1",
        "GET / HTTP/1.1",
        "CONNECT good.test:{port}/x HTTP/1.1",
        "nonsense",
    ],
)
async def test_what_is_not_allowed_is_refused_and_reaches_nobody(first: str) -> None:
    async with proxied() as (proxy, origin):
        answer = await said(proxy, f"{first.format(port=origin.port)}\r\nHost: good.test\r\n\r\n")
    assert answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400"))
    assert origin.heard == b""


async def test_a_refusal_is_kept_to_be_told() -> None:
    async with proxied() as (proxy, origin):
        await said(proxy, f"CONNECT bad.test:{origin.port} HTTP/1.1\r\n\r\n")
        assert "host `bad.test` is not public" in proxy.refused[f"https://bad.test:{origin.port}"]


async def test_a_body_of_unknown_length_and_an_answer_that_is_none_are_not_passed_on() -> None:
    async with proxied() as (proxy, origin):
        url = f"http://good.test:{origin.port}/"
        chunked = await said(proxy, f"POST {url} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert chunked.startswith("HTTP/1.1 502")
        assert origin.heard == b""
        origin.answer = b"SSH-2.0-nothing\r\n\r\n"
        assert (await said(proxy, f"GET {url} HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 502")


async def test_no_more_is_passed_on_than_one_call_may_load() -> None:
    async with proxied(most_bytes=300_000) as (proxy, origin):
        origin.answer = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000
        answer = await said(proxy, f"GET http://good.test:{origin.port}/ HTTP/1.1\r\n\r\n")
        assert 0 < len(answer) < 400_000
        assert "more than 300,000 bytes" in proxy.refused["the rest"]
