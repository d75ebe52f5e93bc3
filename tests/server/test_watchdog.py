"""While a server is attacked, its other tenants notice nothing: no request of theirs fails or waits for ever, and memory stays.

How long others wait depends on what else the machine does, so that it is printed (`pytest -s`) and not judged. What does not
depend on it is how much of the processor an attack uses before the loop goes on to the next request: less than 250 ms.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from sys import executable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import anyio
import pytest
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE, until
from tests.server.process import Script, Served, serving
from tests.server.pulse import Pulse, install_pulse
from tests.server.test_large_bodies import HOSTILE, nested

pytestmark = pytest.mark.slow

MB = 1024 * 1024
MOST_HELD = 0.25
CHUNKED = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


ASKS: Final = (("GET", "/healthz", None), ("POST", "/v1/responses", b'{"input": "hello"}'))


class Neighbour:
    """A tenant who asks all the time, and keeps note of how it went."""

    def __init__(self, served: Served, key: str, asks: Sequence[tuple[str, str, bytes | None]] = ASKS) -> None:
        self._address, self._key, self._asks = urlsplit(served.url).netloc, key, asks
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest, self.count, self.failures = 0.0, 0, list[str]()

    def __enter__(self) -> "Neighbour":
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE)

    def wait_for(self, count: int) -> None:
        """Waits until so many requests have been answered, or one has failed."""
        end = time.monotonic() + PATIENCE
        while self.count < count and not self.failures:
            assert time.monotonic() < end, f"{self.count} of {count} requests are answered"
            time.sleep(0.01)

    def _ask(self) -> None:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        with closing(HTTPConnection(self._address, timeout=PATIENCE)) as line:
            while not self._is_over.is_set():
                for method, path, body in self._asks:
                    began = time.monotonic()
                    try:
                        line.request(method, path, body, headers)
                        answer = line.getresponse()
                        told = answer.read()
                    except (OSError, HTTPException) as error:
                        self.failures.append(f"{method} {path}: {error!r}")
                        return
                    self.longest = max(self.longest, time.monotonic() - began)
                    self.count += 1
                    if answer.status != 200:
                        self.failures.append(f"{method} {path}: {answer.status} {told[:200]!r}")


class Attacker:
    """A tenant with a key, and a stranger without."""

    def __init__(self, served: Served, key: str) -> None:
        address = urlsplit(served.url)
        self._address = address.netloc
        self._place = (address.hostname, address.port)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def post(self, path: str, body: bytes) -> int:
        return self.ask("POST", path, body)[0]

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
        with closing(HTTPConnection(self._address, timeout=PATIENCE)) as line:
            line.request(method, path, body, self._headers | {"content-type": kind})
            answer = line.getresponse()
            return answer.status, answer.read()

    def upload(self, data: bytes) -> str:
        head = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
        parts = [head % (b"purpose", b"") + b"user_data", head % (b"file", b'; filename="odd.txt"') + data]
        body = b"\r\n".join([*parts, b"--b--\r\n"])
        status, told = self.ask("POST", "/v1/files", body, "multipart/form-data; boundary=b")
        assert status == 200, told
        return str(json.loads(told)["id"])

    def order(self, text: str) -> dict[str, object]:
        """The response to this input."""
        status, told = self.ask("POST", "/v1/responses", json.dumps({"input": text}).encode())
        assert status == 200, told
        return cast(dict[str, object], json.loads(told))

    def flood(self, start: bytes, more: bytes, times: int) -> None:
        with closing(socket.create_connection(self._place, timeout=PATIENCE)) as line, suppress(OSError):
            line.sendall(start)
            for _ in range(times):
                line.sendall(more)

    def linger(self, count: int) -> None:
        """Opens connections and sends half a head on each."""
        with ExitStack() as stack:
            for _ in range(count):
                line = stack.enter_context(closing(socket.create_connection(self._place, timeout=PATIENCE)))
                line.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
            time.sleep(1)

    def flood_socket(self, frame: bytes, times: int) -> None:
        """Frames on a WebSocket, without reading what comes."""
        head = "".join([f"{name}: {value}\r\n" for name, value in {**self._headers, **UPGRADE}.items()])
        self.flood(f"GET /v1/responses HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode(), frame * 10_000, times)

    def refer(self, count: int) -> None:
        """Short references to a long item."""
        item = {"id": "msg_long", "role": "user", "content": "x" * MB}
        assert self.post("/v1/responses", json.dumps({"input": [item]}).encode()) == 200
        references = [{"type": "item_reference", "id": "msg_long"}] * count
        assert self.post("/v1/responses", json.dumps({"input": references}).encode()) == 400

    def repeat(self, chars: int, count: int) -> None:
        """The same large body again and again."""
        body = json.dumps({"input": "x y " * (chars // 4)}).encode()
        assert {self.post("/v1/responses", body) for _ in range(count)} == {200}

    def read_often(self, readers: int) -> None:
        """Many streams of one long run, read to their beginning and no further."""
        with closing(HTTPConnection(self._address, timeout=PATIENCE)) as line:
            line.request("POST", "/v1/responses", b'{"input": "talk"}', self._headers)
            run_id = json.loads(line.getresponse().read())["id"]
        head = "".join([f"{name}: {value}\r\n" for name, value in self._headers.items()])
        with ExitStack() as stack:
            lines = [
                stack.enter_context(closing(socket.create_connection(self._place, timeout=PATIENCE))) for _ in range(readers)
            ]
            for reader in lines:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.sendall(f"GET /v1/responses/{run_id}?stream=true HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode())
            assert {reader.recv(12) for reader in lines} == {b"HTTP/1.1 200"}

    def ask_endless(self, count: int) -> None:
        """Answers of a backend that never ends, until they are cut off."""
        body = json.dumps({"input": "Go."}).encode()
        told: list[int] = []
        threads = [threading.Thread(target=lambda: told.append(self.post("/v1/responses", body))) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told == [200] * count

    def converse(self) -> None:
        """A long conversation, with much in every turn."""
        for _ in range(10):
            assert self.post("/v1/responses", json.dumps({"input": "x, " * 300_000}).encode()) == 200


def frame(data: bytes) -> bytes:
    """A whole text message, masked with zeros."""
    return b"\x81" + bytes([0x80 | len(data)]) + bytes(4) + data


SCHEMAS: dict[str, object] = {
    "properties": {"properties": {f"p{number}": {"type": "string", "pattern": "^a*$"} for number in range(8000)}},
    "deep": {"properties": {"a": {"anyOf": [{"type": "object", "properties": {"b": {"type": "string"}}}] * 5000}}},
    "references": {
        "$defs": {f"d{number}": {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(40)} | {"d40": {}},
        "$ref": "#/$defs/d0",
    },
}


def large_schema(kind: str) -> bytes:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", **cast(dict[str, object], SCHEMAS[kind])}}
    return json.dumps({"input": "hello", "tools": [tool]}).encode()


@contextmanager
def endless_backend() -> Iterator[str]:
    """A backend whose answers have no end."""
    event = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "tick tock " * 40}}]}).encode() + b"\n\n"

    class Endless(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65_536)
                self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                while True:
                    self.request.sendall(event * 100)

    with ThreadingTCPServer(("127.0.0.1", 0), Endless) as backend:
        backend.daemon_threads = True
        threading.Thread(target=backend.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{backend.server_address[1]}/v1"
        backend.shutdown()


ATTACKS: dict[str, Callable[[Attacker], object]] = {
    "headers without end": lambda by: by.flood(b"GET / HTTP/1.1\r\n", b"x-more: 0123456789\r\n" * 3000, 500),
    "a value without end": lambda by: by.flood(b"GET / HTTP/1.1\r\nx: ", b"x" * 65_536, 500),
    "a path without end": lambda by: by.flood(b"GET /", b"x" * 65_536, 500),
    "trailers without end": lambda by: by.flood(CHUNKED + b"0\r\n", b"x-more: 0123456789\r\n" * 3000, 500),
    "a chunk's extension without end": lambda by: by.flood(CHUNKED + b"1;x=", b"x" * 65_536, 500),
    "requests without end": lambda by: by.flood(b"", b"GET / HTTP/1.1\r\n\r\n" * 3000, 500),
    "pings without end": lambda by: by.flood_socket(b"\x89\x80\0\0\0\0", 500),
    "fragments without end": lambda by: by.flood_socket(b"\x01\x80\0\0\0\0", 500),
    "references to one long item": lambda by: by.refer(1000),
    "orders without end on a WebSocket": lambda by: by.flood_socket(frame(b'{"type": "response.create", "input": "hello"}'), 2),
    "large bodies again and again": lambda by: by.repeat(5 * MB, 40),
    "many readers of a long run": lambda by: by.read_often(15),
    "schemas as large as they may be": lambda by: [by.post("/v1/responses", large_schema(kind)) for kind in SCHEMAS],
    "half a head on many lines": lambda by: by.linger(300),
    "large texts": lambda by: by.converse(),
    "deep values": lambda by: [by.post("/v1/responses", b'{"input": ' + b"[" * depth + b"}") for depth in (100, 10_000, MB)],
    "values in all places": lambda by: [
        by.post("/v1/responses", b'{"input": "x", "%s": %s}' % (field, nested(400_000)))
        for field in (b"tools", b"metadata", b"text", b"reasoning", b"tool_choice", b"include", b"prompt", b"odd")
    ],
}


@contextmanager
def start_server(folder: Path, script: Script, *options: str) -> Iterator["Attacked"]:
    keys, (pulse, env) = create_keys(folder), install_pulse(folder)
    with serving(folder, script, *options, env=env, chunk=2000) as served:
        yield Attacked(served, keys[0], Attacker(served, keys[1]), pulse)


class Attacked(NamedTuple):
    """A server with two tenants: the owner of the key, who asks all the time, and the attacker."""

    served: Served
    key: str
    attacker: Attacker
    pulse: Pulse

    @contextmanager
    def expect_calm(self, asks: Sequence[tuple[str, str, bytes | None]] = ASKS) -> Iterator[None]:
        """Nobody else notices what is done in this block."""
        before = resident_bytes(self.served)
        with Neighbour(self.served, self.key, asks) as neighbour:
            neighbour.wait_for(10)
            neighbour.longest, began = 0.0, time.monotonic()
            yield
            neighbour.wait_for(neighbour.count + 4)
        held, grown = self.pulse.find_longest(began), resident_bytes(self.served) - before
        print(f"waited {neighbour.longest * 1000:.0f} ms, held {held * 1000:.0f} ms, {grown / MB:.0f} MB more")
        assert neighbour.failures == []
        assert held < MOST_HELD
        assert grown < before + 64 * MB


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    script: Script = [{"when": "talk", "say": "word " * MB}, {"when": "", "say": "Hello there."}]
    with start_server(tmp_path_factory.mktemp("attacked"), script) as attacked:
        yield attacked


def create_keys(folder: Path) -> list[str]:
    keys = []
    for tenant in ("neighbour", "attacker"):
        command = [executable, "-m", "mainspring", "keys", "create", "--database", "served.db", "--tenant", tenant]
        made = run(command, cwd=folder)
        assert made.returncode == 0, made.stderr
        keys.append(next(word for word in made.stdout.split() if word.startswith("ms_")))
    return keys


def resident_bytes(served: Served) -> int:
    return int(Path(f"/proc/{served.process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def prepare(attack: str) -> Callable[[Attacker], object]:
    """The attack, with what takes long to make ready: this process is the neighbour, too."""
    if attack in ATTACKS:
        return ATTACKS[attack]
    path, make = HOSTILE[attack]
    body = make()
    return lambda by: by.post(path, body)


@pytest.mark.parametrize("attack", [*ATTACKS, *HOSTILE])
def test_an_attack_is_nobody_elses_trouble(attacked: Attacked, attack: str) -> None:
    perform = prepare(attack)
    with attacked.expect_calm():
        perform(attacked.attacker)


@pytest.mark.parametrize("path", ["/v1/hold?seconds=0.3", "/v1/hold-thread?seconds=0.3"])
def test_a_request_that_holds_the_others_up_is_noticed(attacked: Attacked, path: str) -> None:
    began = time.monotonic()
    assert attacked.attacker.ask("GET", path)[0] == 200
    assert attacked.attacker.ask("GET", "/healthz")[0] == 200
    # The beat that comes late may come behind the answers.
    anyio.run(until, lambda: attacked.pulse.find_longest(began) > MOST_HELD)


def test_answers_without_end_are_nobody_elses_trouble(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[limits]\nturn_bytes = 8_000_000\n")
    asks = (("GET", "/healthz", None), ("GET", "/v1/responses", None))
    with (
        endless_backend() as url,
        start_server(tmp_path, [], "--model", "clock", "--base-url", url) as attacked,
        attacked.expect_calm(asks),
    ):
        attacked.attacker.ask_endless(4)
