"""Servers that answer as they are told, byte for byte, with TLS or without, and a proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnoon"


class Server:
    """Where it listens, and what it was asked: the heads of requests, by connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[list[bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/clock"


@asynccontextmanager
async def serve(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Runs a handler for every connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.writers.append(writer)
        server.asked.append([])
        server.open += 1
        tasks.add(asyncio.current_task())
        try:
            # Who is cancelled here is cancelled by the end of the test. uvloop says by `RuntimeError` that nobody is there.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, RuntimeError):
                await handler(reader, writer)
        finally:
            server.open -= 1
            writer.close()

    server, tasks = Server(0), set[asyncio.Task[None] | None]()
    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        for writer in server.writers:
            with suppress(AttributeError):  # asyncio's own, of a TLS connection that is closed already
                writer.transport.abort()
        listening.close()
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running)
        await listening.wait_closed()


@asynccontextmanager
async def answering(*replies: bytes, close: bool = False, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Answers each request with the next reply, the last one again and again, and closes the connection after each if so told."""
    left = list(replies)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(server.asked) - 1
        while True:
            head, _ = await read_request(reader)
            server.asked[place].append(head)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()
            if close:
                return

    async with serve(handle, tls) as server:
        yield server


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return head, await reader.readexactly(int(length or 0))


@asynccontextmanager
async def proxying(status: bytes = b"200 OK", tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A proxy that tunnels by CONNECT and forwards other requests, all to this machine whatever they name."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        proxy.asked[-1].append(head)
        method, target = head.split(b" ")[:2]
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 %b\r\nVia: us\r\n\r\n" % status)
            if not status.startswith(b"2"):
                return
            port = int(target.rpartition(b":")[2])
        else:
            port = int(target.split(b"/")[2].rpartition(b":")[2])
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        if method != b"CONNECT":
            far_writer.write(head + body)
        try:
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        finally:
            far_writer.transport.abort()

    async with serve(handle, tls) as proxy:
        yield proxy


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def make_certificates(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A new authority's certificate, and a server that shows one of its for `localhost` and 127.0.0.1."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of a test")])
    ca = _sign(ca_name, ca_name, ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    names = [x509.DNSName("localhost"), x509.DNSName("clock.example"), x509.IPAddress(ip_address("127.0.0.1"))]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    own = _sign(name, ca_name, key, ca_key, x509.SubjectAlternativeName(names))
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(secret + own.public_bytes(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return folder / "ca.pem", context


def _sign(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(extension, critical=False)
        .add_extension(identity, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
