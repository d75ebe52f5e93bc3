"""The HTTP client against real servers, on both event loops: what may go wrong on a wire, and what each of it is."""

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread

import anyio
import pytest
from tests.kit.waiting import PATIENCE, until
from tests.net.servers import OK, Server, answering, make_certificates, proxying, read_request, serve
from yarl import URL

from mainspring.core.errors import InvalidRequest
from mainspring.net import client as client_module
from mainspring.net.client import HttpClient, Resolve, encode_headers, make_endpoint
from mainspring.net.connection import (
    HEAD_BYTES,
    HIGH_BYTES,
    ConnectTimeout,
    Disconnected,
    HttpError,
    MalformedAnswer,
    Silence,
    TlsFailed,
    Unreachable,
)
from mainspring.tools.addresses import AddressGuard

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NOON_CHUNKS = CHUNKED + b"2\r\nno\r\n2;a=b\r\non\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@asynccontextmanager
async def opened(
    *, seconds: float = PATIENCE, resolve: Resolve | None = None, proxy: str | None = None, ca_file: Path | None = None
) -> AsyncIterator[HttpClient]:
    client = HttpClient(seconds=seconds, resolve=resolve, proxy=proxy, ca_file=str(ca_file) if ca_file else None)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: HttpClient, url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
    answer = await client.request(method or ("GET" if body is None else "POST"), make_endpoint(URL(url)), b"", body)
    data = bytearray()
    try:
        while piece := await answer.read():
            data += piece
    finally:
        answer.close()
    return answer.status, bytes(data)


async def resolve_here(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


# Bodies


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (OK, (200, b"noon")),
        (NOON_CHUNKS, (200, b"noon")),
        (b"HTTP/1.1 200 OK\r\n\r\nnoon", (200, b"noon")),
        (b"HTTP/1.0 200 OK\r\n\r\nnoon", (200, b"noon")),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nnoon", (200, b"noon")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", (302, b"")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (200, b"noon")),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + NOON_CHUNKS, (200, b"noon")),
    ],
)
async def test_a_body_ends_where_its_head_says_or_with_the_connection(reply: bytes, said: tuple[int, bytes]) -> None:
    async with answering(reply, close=True) as server, opened() as client:
        assert await ask(client, server.url) == said


@pytest.mark.parametrize("reply", [OK, NOON_CHUNKS, b"HTTP/1.1 103 Early\r\n\r\n" + OK])
async def test_however_an_answer_is_cut_into_packets_it_is_the_same(reply: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for byte in reply:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with serve(drip) as server, opened() as client:
        for _ in range(3):
            assert await ask(client, server.url) == (200, b"noon")
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", Disconnected),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Disconnected),
        (b"tick tock\r\n\r\n", MalformedAnswer),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: clock\r\nConnection: upgrade\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnoon", Disconnected),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nnoon", MalformedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nnoon", MalformedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nnoon", MalformedAnswer),
        (CHUNKED + b"zz\r\nnoon\r\n", MalformedAnswer),
        (CHUNKED + b"4\r\nnoon and more\r\n0\r\n\r\n", MalformedAnswer),
        (CHUNKED + b"ffffffffffffffffff\r\nnoon", MalformedAnswer),
        (CHUNKED + b"4\r\nnoon\r\n", Disconnected),
        (CHUNKED + b"9\r\nnoon", Disconnected),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnoon", MalformedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\nnoon", MalformedAnswer),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(reply: bytes, error: type[HttpError]) -> None:
    async with answering(reply, close=True) as server, opened() as client:
        with pytest.raises(error):
            await ask(client, server.url)


async def test_an_answer_that_breaks_off_is_told_up_to_there() -> None:
    async with answering(CHUNKED + b"4\r\nnoon\r\n", close=True) as server, opened() as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        assert await answer.read() == b"noon"
        for _ in range(2):
            with pytest.raises(Disconnected):
                await answer.read()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_a_compressed_body_is_unpacked(pack: object) -> None:
    said = bytes(range(256)) * 1000
    packed = gzip.compress(said) if pack is gzip.compress else zlib.compress(said)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answering(head + packed) as server, opened() as client:
        for _ in range(2):
            assert await ask(client, server.url) == (200, said)
        assert len(server.asked) == 1


async def test_what_a_small_body_unpacks_to_comes_in_small_pieces() -> None:
    packed = gzip.compress(bytes(50_000_000))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answering(head + packed) as server, opened() as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        sizes = []
        while piece := await answer.read():
            sizes.append(len(piece))
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= HIGH_BYTES


@pytest.mark.parametrize("end", [b"", b"\x00" * 4])
async def test_a_compressed_body_that_ends_too_early_is_an_error(end: bytes) -> None:
    packed = gzip.compress(b"noon" * 100)[:-10] + end
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answering(head + packed) as server, opened() as client:
        with pytest.raises(HttpError):
            await ask(client, server.url)


async def test_a_head_has_no_body_though_it_says_how_long_it_would_be() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", OK) as server, opened() as client:
        assert await ask(client, server.url, method="HEAD") == (200, b"")
        assert await ask(client, server.url) == (200, b"noon")


# Bounds


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: aaaaaaaaaa\r\n" * 10_000 + b"\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n" * 10_000,
        b"HTTP/1.1 200 " + b"a" * 200_000,
        CHUNKED + b"4;" + b"a" * 400_000,
        CHUNKED + b"0\r\nX: " + b"a" * 400_000,
    ],
    ids=["one header", "many headers", "interim answers", "a reason", "a chunk extension", "a trailer"],
)
async def test_what_is_no_body_is_bounded(endless: bytes) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(endless)
        await writer.drain()
        await reader.read()

    async with serve(send) as server, opened() as client:
        with pytest.raises(MalformedAnswer):
            await ask(client, server.url)


async def test_a_large_head_is_taken_up_to_the_limit() -> None:
    reply = OK.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * (HEAD_BYTES - 100) + b"\r\n\r\n")
    async with answering(reply) as server, opened() as client:
        assert await ask(client, server.url) == (200, b"noon")


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"8\r\nxxxxxxxx\r\n", b"1;" + b"e" * 60_000 + b"\r\nx\r\n"])
async def test_a_body_in_chunks_of_a_few_bytes_is_no_answer(piece: bytes) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + piece * (1_200_000 // len(piece)) + b"0\r\n\r\n")
        await reader.read()

    async with serve(send) as server, opened() as client:
        with pytest.raises(MalformedAnswer, match="a few bytes"):
            await ask(client, server.url)


async def test_a_long_body_in_the_chunks_of_a_stream_is_taken() -> None:
    event = b"6\r\ndata: \r\n40\r\n" + b"x" * 64 + b"\r\n2\r\n\n\n\r\n"
    async with answering(CHUNKED + event * 50_000 + b"0\r\n\r\n") as server, opened() as client:
        status, body = await ask(client, server.url)
    assert (status, len(body)) == (200, 50_000 * 72)


async def test_a_server_waits_for_a_slow_reader() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(CHUNKED)
        while sent < 64_000_000:
            writer.write(b"%x\r\n%b\r\n" % (65536, b"a" * 65536))
            await writer.drain()
            sent += 65536

    async with serve(flood) as server, opened() as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        seen, still = -1, 0
        while still < 50:
            await asyncio.sleep(0.002)
            seen, still = sent, still + 1 if seen == sent else 0
        assert sent < 32_000_000, "what nobody reads is not fetched"
        got = 0
        while got < 20_000_000:
            got += len(await answer.read())
        answer.close()
        await until(lambda: server.open == 0)


async def write_after(server: Server, *pieces: bytes) -> None:
    """Sends the pieces one by one, each a while after the last."""
    for piece in pieces:
        await asyncio.sleep(0.005)
        server.writers[0].write(b"%x\r\n%b\r\n" % (len(piece), piece))


@pytest.mark.parametrize("last", [b"stop", b"a" * 2000], ids=["refused", "too large"])
async def test_what_arrives_is_pushed_until_it_is_not_taken_and_the_rest_is_read(last: bytes) -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return data != b"stop"

    async with answering(CHUNKED) as server, opened() as client, anyio.create_task_group() as tasks:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        tasks.start_soon(write_after, server, b"no", b"on", last, b"rest")
        with anyio.fail_after(PATIENCE):
            await answer.push(take, 1000)
            assert b"".join(taken) == b"noon" + (last if last == b"stop" else b"")
            read = b""
            while not read.endswith(b"rest"):
                read += await answer.read()
            assert read == (b"rest" if last == b"stop" else last + b"rest")
            server.writers[0].write(b"0\r\n\r\n")
            await answer.push(take, 1000)
            assert await answer.read() == b""


@pytest.mark.parametrize("end", ["raises", "breaks", "silent", "cancelled"])
async def test_whoever_is_pushed_to_learns_how_it_ends(end: str) -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        if data == b"bad":
            raise ValueError("bad")
        return True

    async with answering(CHUNKED) as server, opened(seconds=0.2 if end == "silent" else PATIENCE) as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        pushing = asyncio.create_task(answer.push(take, 1000))
        await write_after(server, b"no", b"on")
        await until(lambda: b"".join(taken) == b"noon")
        if end == "raises":
            await write_after(server, b"bad", b"rest")
            with pytest.raises(ValueError, match="bad"):
                await pushing
            assert await answer.read() == b"rest"
        elif end == "cancelled":
            pushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pushing
            await write_after(server, b"rest")
            assert await answer.read() == b"rest"
        else:
            if end == "breaks":
                server.writers[0].transport.abort()
            await pushing
            with pytest.raises(Disconnected if end == "breaks" else Silence):
                await answer.read()
        assert b"rest" not in taken
        answer.close()


# Time and cancellation


async def test_silence_before_an_answer_and_within_one_is_an_error() -> None:
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        if b"/within" in head:
            writer.write(CHUNKED + b"4\r\nnoon\r\n")
        await reader.read()

    async with serve(stay_silent) as server, opened(seconds=0.1) as client:
        with pytest.raises(Silence):
            await ask(client, server.url)
        answer = await client.request("GET", make_endpoint(URL(server.url).joinpath("within")))
        assert await answer.read() == b"noon"
        with pytest.raises(Silence):
            await answer.read()
        await until(lambda: server.open == 0)


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", CHUNKED + b"4\r\nnoon\r\n4;"], ids=["head", "extension"])
async def test_a_server_that_drips_what_is_no_body_is_silent(begin: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(begin)
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serve(drip) as server, opened(seconds=0.2) as client:
        with pytest.raises(Silence):
            await ask(client, server.url)
        await until(lambda: server.open == 0)


async def test_a_reader_that_takes_its_time_has_not_been_kept_waiting() -> None:
    async with answering(CHUNKED + b"4\r\nnoon\r\n", OK) as server, opened(seconds=0.1) as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        await asyncio.sleep(0.4)
        assert await answer.read() == b"noon"
        server.writers[0].write(b"0\r\n\r\n")
        assert await answer.read() == b""


async def test_a_connection_that_is_not_made_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.2)

    async def never_resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(PATIENCE)
        return []

    async with opened(resolve=never_resolve) as client:
        with pytest.raises(ConnectTimeout):
            await ask(client, "http://clock.example/")

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serve(say_nothing) as server, opened() as client:
        with pytest.raises(ConnectTimeout):
            await ask(client, f"https://localhost:{server.port}/")
        await until(lambda: server.open == 0)


@pytest.mark.parametrize("phase", ["resolving", "handshake", "tunnel", "sending", "head", "body"])
async def test_a_request_can_be_cancelled_in_every_phase(phase: str) -> None:
    reached = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        if phase == "body":
            writer.write(CHUNKED + b"4\r\nnoon\r\n")
        elif phase == "sending":
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        reached.set()
        await asyncio.sleep(PATIENCE) if phase == "sending" else await reader.read()

    async def resolve(host: str, port: int) -> Sequence[str]:
        if phase == "resolving":
            reached.set()
            await asyncio.sleep(PATIENCE)
        return ["127.0.0.1"]

    async with serve(stall) as server:
        proxy = f"http://proxy.example:{server.port}" if phase == "tunnel" else ""
        scheme = "https" if phase in ("handshake", "tunnel") else "http"
        async with opened(resolve=resolve, proxy=proxy) as client:
            body = b"a" * 50_000_000 if phase == "sending" else None
            task = asyncio.create_task(ask(client, f"{scheme}://clock.example:{server.port}/", body))
            await reached.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if phase == "sending":
                for writer in server.writers:
                    writer.transport.abort()
            else:
                await until(lambda: server.open == 0)


async def test_closing_the_client_breaks_off_what_is_under_way() -> None:
    async with answering(CHUNKED + b"4\r\nnoon\r\n") as server, opened() as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)))
        assert await answer.read() == b"noon"
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(HttpError, match="closed"):
            await reading
        await until(lambda: server.open == 0)


async def test_what_is_asked_on_a_kept_connection_is_not_asked_again_when_the_client_is_closed() -> None:
    asked = asyncio.Event()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        asked.set()
        await reader.read()

    async with serve(answer_once) as server, opened() as client:
        await ask(client, server.url, b"{}")
        asking = asyncio.create_task(ask(client, server.url, b"{}"))
        await asked.wait()
        await client.close()
        with pytest.raises(HttpError, match="closed"):
            await asking
        assert len(server.asked) == 1


# Sending


async def test_a_large_body_arrives_whole_and_a_server_that_refuses_it_early_is_heard() -> None:
    got: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append((await read_request(reader))[1])
        writer.write(OK)
        await reader.read()

    body = bytes(range(256)) * 80_000
    async with serve(take) as server, opened() as client:
        assert await ask(client, server.url, body) == (200, b"noon")
    assert got == [body]

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch")
        await asyncio.sleep(PATIENCE)

    async with serve(refuse) as server, opened() as client:
        assert await ask(client, server.url, body * 3) == (413, b"much")
        assert await ask(client, server.url, body * 3) == (413, b"much")
        assert len(server.asked) == 2, "a request that was not sent whole leaves no connection behind"


@pytest.mark.parametrize("header", [("X-A", "b\r\nX: c"), ("X\r\nA", "b"), ("X A", "b"), ("", "b"), ("Content-Length", "5")])
def test_headers_that_would_say_something_else_are_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        encode_headers([header])


async def test_a_host_of_ones_own_is_sent_once() -> None:
    async with answering(OK) as server, opened() as client:
        answer = await client.request("GET", make_endpoint(URL(server.url)), encode_headers([("X", "y"), ("host", "other")]))
        answer.close()
    assert server.asked[0][0] == b"GET /clock HTTP/1.1\r\nhost: other\r\nX: y\r\n\r\n"


# Connections that are kept


async def test_connections_are_kept_and_shared_by_none() -> None:
    async with answering(NOON_CHUNKS) as server, opened() as client:
        for _ in range(3):
            await ask(client, server.url, b"{}")
        assert len(server.asked) == 1
        await asyncio.gather(*[ask(client, server.url, b"{}") for _ in range(5)])
        assert 1 < len(server.asked) <= 5
        kept = len(server.asked)
        await asyncio.gather(*[ask(client, server.url, b"{}") for _ in range(kept)])
        assert len(server.asked) == kept


@pytest.mark.parametrize("moment", ["at once", "later", "half", "at the request", "by reset"])
async def test_a_kept_connection_that_its_server_closes_is_replaced(moment: str) -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append((await read_request(reader))[1])
        writer.write(OK)
        await writer.drain()
        if moment == "later":
            await go.wait()
        elif moment == "half":
            writer.write_eof()
            await reader.read()
        elif moment != "at once":
            await read_request(reader)
            if moment == "by reset":
                writer.transport.abort()

    served: list[bytes] = []
    go = asyncio.Event()
    async with serve(answer_once) as server, opened() as client:
        for number in range(3):
            assert await ask(client, server.url, b"%d" % number) == (200, b"noon")
            go.set()
    assert served == [b"0", b"1", b"2"]


async def test_a_request_that_may_not_be_repeated_is_sent_once() -> None:
    served: list[bytes] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append((await read_request(reader))[1])
        writer.write(OK)
        served.append((await read_request(reader))[1])
        writer.transport.abort()

    async with serve(answer_once) as server, opened() as client:
        assert await ask(client, server.url, b"0") == (200, b"noon")
        with pytest.raises(Disconnected):
            await client.request("POST", make_endpoint(URL(server.url)), b"", b"1", is_repeatable=False)
    assert served == [b"0", b"1"]


@pytest.mark.parametrize("begin", [b"H", b"HTTP/1.1 103 Early\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_a_request_whose_answer_has_begun_is_not_sent_again(begin: bytes) -> None:
    served = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        served += 1
        writer.write(begin)

    async with serve(answer_once) as server, opened() as client:
        await ask(client, server.url, b"{}")
        with pytest.raises(Disconnected):
            await ask(client, server.url, b"{}")
    assert served == 1


async def test_silence_on_a_kept_connection_is_not_asked_again() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await reader.read()

    async with serve(answer_once) as server, opened(seconds=0.2) as client:
        await ask(client, server.url, b"{}")
        with pytest.raises(Silence):
            await ask(client, server.url, b"{}")
        assert len(server.asked) == 1


async def test_what_nobody_asked_for_answers_nothing() -> None:
    async with answering(OK + OK.replace(b"noon", b"dusk"), OK) as server, opened() as client:
        assert [await ask(client, server.url) for _ in range(2)] == [(200, b"noon")] * 2
        assert len(server.asked) == 2, "the connection with the second answer is gone"
        server.writers[-1].write(OK.replace(b"noon", b"dusk"))
        await until(lambda: server.open == 0)
        assert await ask(client, server.url) == (200, b"noon")


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "IDLE_SECONDS", 0.1)
    async with answering(OK) as server, opened() as client:
        await ask(client, server.url)
        await until(lambda: server.open == 0)
        await ask(client, server.url)
        assert len(server.asked) == 2


async def test_only_so_many_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_IDLE", 2)
    go = asyncio.Event()

    async def answer_together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            if server.open == 5:
                go.set()
            await go.wait()
            writer.write(OK)

    async with serve(answer_together) as server, opened() as client:
        await asyncio.gather(*[ask(client, server.url) for _ in range(5)])
        await until(lambda: server.open == 2)


# Addresses


async def test_no_server_is_told_with_the_systems_reason() -> None:
    async with answering(OK) as server:
        pass
    async with opened() as client:
        with pytest.raises(Unreachable, match="refused"):
            await ask(client, server.url)


async def test_of_several_addresses_the_one_that_answers_is_used() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["::1", "127.0.0.2", "127.0.0.1"]

    async with answering(OK) as server, opened(resolve=resolve) as client:
        assert await ask(client, f"http://clock.example:{server.port}/") == (200, b"noon")


async def test_an_address_that_does_not_answer_holds_the_next_up_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as full:
        # Nobody accepts: once its queue is full, an attempt to connect waits.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(OK)
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.2", port)

        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1", "127.0.0.2"]

        async with listening, opened(resolve=resolve) as client:
            assert await ask(client, f"http://clock.example:{port}/") == (200, b"noon")
            await client.close()
            await asyncio.sleep(0.05)  # the server sees it
        for each in waiting:
            each.close()


async def test_connections_lead_only_where_the_guard_has_looked() -> None:
    looked: list[str] = []

    async def look_up(host: str, port: int) -> Sequence[str]:
        looked.append(host)
        return ["127.0.0.1"]

    guard = AddressGuard(["clock.example"], lookup=look_up)
    async with answering(OK) as server, opened(resolve=guard.resolve, proxy="") as client:
        assert await ask(client, f"http://clock.example:{server.port}/") == (200, b"noon")
        for host in ("other.example", "127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0"):
            with pytest.raises(InvalidRequest):
                await ask(client, f"http://{host}:{server.port}/")
        assert len(server.asked) == 1
    assert looked == ["clock.example", "other.example"]


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def test_a_certificate_of_the_given_authority_is_trusted(authority: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, tls = authority
    async with answering(NOON_CHUNKS, tls=tls) as server, opened(ca_file=ca_file) as client:
        for _ in range(2):
            assert await ask(client, f"https://localhost:{server.port}/", b"a" * 1_000_000) == (200, b"noon")
        assert len(server.asked) == 1
        assert await ask(client, f"https://127.0.0.1:{server.port}/") == (200, b"noon")


async def test_the_store_that_the_environment_names_is_trusted(
    authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    client_module.make_tls.cache_clear()
    try:
        async with answering(OK, tls=authority[1]) as server, opened() as client:
            assert await ask(client, f"https://localhost:{server.port}/") == (200, b"noon")
    finally:
        client_module.make_tls.cache_clear()


async def test_another_certificate_name_or_protocol_is_not_trusted(authority: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, tls = authority
    async with answering(OK, tls=tls) as server, opened() as client:
        with pytest.raises(TlsFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(client, f"https://localhost:{server.port}/")
        async with opened(ca_file=ca_file, resolve=resolve_here) as trusting:
            with pytest.raises(TlsFailed, match="Hostname mismatch"):
                await ask(trusting, f"https://other.example:{server.port}/")
        assert server.asked == []

    async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with serve(speak_plainly) as server, opened(ca_file=ca_file) as client:
        with pytest.raises(TlsFailed):
            await ask(client, f"https://localhost:{server.port}/")


async def test_a_tls_server_that_breaks_off_is_told_from_one_that_ends(authority: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, tls = authority
    async with answering(CHUNKED + b"4\r\nnoon\r\n", close=True, tls=tls) as server, opened(ca_file=ca_file) as client:
        with pytest.raises(Disconnected):
            await ask(client, f"https://localhost:{server.port}/")
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nnoon", close=True, tls=tls) as server, opened(ca_file=ca_file) as client:
        assert await ask(client, f"https://localhost:{server.port}/") == (200, b"noon")


# Proxies


@asynccontextmanager
async def between(
    authority: tuple[Path, ssl.SSLContext], status: bytes = b"200 OK", *, tls_to_proxy: bool = False
) -> AsyncIterator[tuple[Server, Server]]:
    async with answering(OK, tls=authority[1]) as server, proxying(status, authority[1] if tls_to_proxy else None) as proxy:
        yield server, proxy


@pytest.mark.parametrize("tls_to_proxy", [False, True])
async def test_a_tls_server_is_reached_through_a_tunnel(authority: tuple[Path, ssl.SSLContext], tls_to_proxy: bool) -> None:
    async with between(authority, tls_to_proxy=tls_to_proxy) as (server, proxy):
        scheme = "https" if tls_to_proxy else "http"
        address = f"{scheme}://me:p%40ss@localhost:{proxy.port}"
        async with opened(proxy=address, ca_file=authority[0]) as client:
            for _ in range(2):
                assert await ask(client, f"https://clock.example:{server.port}/clock", b"{}") == (200, b"noon")
    to = b"clock.example:%d" % server.port
    sent = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n" % (to, to)
    assert proxy.asked == [[sent]], "the tunnel is kept, and shows nothing of what goes through it"
    assert [head.split(b"\r\n")[0] for head in server.asked[0]] == [b"POST /clock HTTP/1.1"] * 2
    assert b"Proxy-" not in server.asked[0][0]


async def test_a_plain_server_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with answering(OK) as server, proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"me:secret@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"me:secret@127.0.0.1:{proxy.port}")
        async with opened() as client:
            assert await ask(client, f"http://clock.example:{server.port}/clock?a=b") == (200, b"noon")
            assert await ask(client, server.url) == (200, b"noon"), "what is on this machine needs no proxy"
        assert len(proxy.asked) == 1
        target = b"GET http://clock.example:%d/clock?a=b HTTP/1.1\r\nProxy-Authorization: Basic " % server.port
        assert proxy.asked[0][0].startswith(target)


@pytest.mark.parametrize("how", ["no_proxy", "setting"])
async def test_a_host_that_needs_no_proxy_is_asked_directly(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with answering(OK) as server, proxying() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        if how == "no_proxy":
            for name in ("no_proxy", "NO_PROXY"):
                monkeypatch.setenv(name, "other.example, .clock.example")
        async with opened(resolve=resolve_here, proxy="" if how == "setting" else None) as client:
            assert await ask(client, f"http://big.clock.example:{server.port}/") == (200, b"noon")
        assert proxy.asked == []


@pytest.mark.parametrize("status", [b"407 Proxy Authentication Required", b"502 Bad Gateway"])
async def test_a_proxy_that_refuses_is_told_without_its_password(authority: tuple[Path, ssl.SSLContext], status: bytes) -> None:
    async with between(authority, status) as (server, proxy):
        async with opened(proxy=f"http://me:secret@127.0.0.1:{proxy.port}") as client:
            with pytest.raises(Unreachable, match=status.decode()) as caught:
                await ask(client, f"https://clock.example:{server.port}/")
        assert "secret" not in str(caught.value)
        await until(lambda: proxy.open == 0)


@pytest.mark.parametrize("address", ["socks5://127.0.0.1:1080", "http://", "http://me:secret@:80", "http://[::1"])
async def test_what_is_no_http_proxy_is_refused_without_its_password(address: str) -> None:
    async with opened(proxy=address) as client:
        with pytest.raises(Unreachable) as caught:
            await ask(client, "http://clock.example/")
    assert "secret" not in str(caught.value)


async def test_a_storm_of_cancelled_and_broken_requests_leaves_nothing_behind() -> None:
    async def answer_somehow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            place = server.asked.index([]) if [] in server.asked else 0
            head, _ = await read_request(reader)
            server.asked[place].append(head)
            match int(head.split(b" ")[1][1:]) % 5:
                case 0:
                    writer.transport.abort()
                    return
                case 1:
                    writer.write(CHUNKED + b"4\r\nno")
                    return
                case 2:
                    await asyncio.sleep(0.02)
                case _:
                    pass
            writer.write(NOON_CHUNKS)

    async def ask_once(number: int) -> str:
        try:
            with anyio.move_on_after(0.01 if number % 7 == 0 else PATIENCE) as scope:
                assert await ask(client, f"http://127.0.0.1:{server.port}/{number}") == (200, b"noon")
                return "whole"
        except HttpError:
            return "broken"
        return "cancelled" if scope.cancelled_caught else "?"

    async with serve(answer_somehow) as server, opened() as client:
        for start in range(0, 400, 50):
            told = await asyncio.gather(*[ask_once(number) for number in range(start, start + 50)])
            assert told.count("whole") >= 25
            assert "?" not in told
    await until(lambda: server.open == 0)


def accept_and_close(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


async def test_a_connection_that_is_closed_while_addresses_are_tried_is_told_at_once() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", "127.0.0.1"]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=accept_and_close, args=(listening,), daemon=True).start()
        async with opened(resolve=resolve) as client:
            for _ in range(20):
                with pytest.raises(Disconnected):
                    await ask(client, f"http://127.0.0.1:{listening.getsockname()[1]}/", b"{}")
        listening.shutdown(socket.SHUT_RDWR)
