"""A real S3 server on loopback, from a wheel: moto's. It ends with the test."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer
from tests.kit.waiting import PATIENCE


class S3:
    """A server with one bucket, `files`. `environment` is what its clients need."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = Request(f"{self.url}{path}", body, {"content-type": "text/plain"}, method=method)
        with urlopen(request, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def keys(self) -> list[str]:
        """The keys of all objects."""
        return re.findall("<Key>(.*?)</Key>", self.send("GET", "/files?list-type=2").decode())

    @contextmanager
    def strict(self) -> Iterator[None]:
        """While it asks who somebody is, and what they may do: nobody may do anything."""
        self.send("POST", "/moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self.send("POST", "/moto-api/reset-auth", b"Infinity")


@contextmanager
def running_s3() -> Iterator[S3]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        s3 = S3(f"http://{host}:{port}")
        s3.send("POST", "/moto-api/reset")
        s3.send("PUT", "/files")
        yield s3
    finally:
        server.stop()
