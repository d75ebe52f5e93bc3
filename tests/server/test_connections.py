"""Heads, slow clients and many connections are bounded, before any key is checked; honest clients notice nothing."""

import gzip
import json
import os
import signal
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from sys import executable
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.kit.processes import run
from tests.kit.waiting import GROWING, PATIENCE, until
from tests.server.process import Script, Served, serving
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

MB = 1024 * 1024
HELLO: Script = [{"when": "", "say": "Hello there."}]
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(served: Served) -> socket.socket:
    address = urlsplit(served.url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)


def read_all(line: socket.socket) -> bytes:
    """What comes until the server hangs up, be it politely or not."""
    seen = b""
    try:
        while more := line.recv(65_536):
            seen += more
    except ConnectionResetError:
        pass
    return seen


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    """The next answer on a connection that stays open."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        more = line.recv(1)
        assert more, f"the server hung up after {seen!r}"
        seen += more
    head = seen.lower()
    size, body = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]), b""
    while len(body) < size:
        body += line.recv(size - len(body))
    return int(seen.split()[1]), body


def post(body: bytes) -> bytes:
    return b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def connect_socket(served: Served) -> ClientConnection:
    headers = {"authorization": "Bearer secret"}
    return connect_websocket(served.url.replace("http", "ws") + "/responses", additional_headers=headers, max_size=None)


def create_key(folder: Path, tenant: str) -> bytes:
    command = [executable, "-m", "mainspring", "keys", "create", "--database", "served.db", "--tenant", tenant]
    made = run(command, cwd=folder)
    assert made.returncode == 0, made.stderr
    return next(word for word in made.stdout.split() if word.startswith("ms_")).encode()


def count_files(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


def resident_bytes(served: Served) -> int:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that wants a key, with the limits that it has unless told otherwise."""
    with serving(tmp_path_factory.mktemp("limits"), HELLO, env={"MAINSPRING_API_KEY": "secret"}) as served:
        yield served


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that waits for nobody."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "mainspring.toml").write_text("[http]\nhead_seconds = 0.5\nbody_seconds = 0.5\nkeep_alive_seconds = 1\n")
    with serving(folder, HELLO) as served:
        yield served


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n", b"x-more: 0123456789\r\n" * 3000),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-more: ", b"x" * 65_536),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-", b"x" * 65_536),
        (b"GET /", b"x" * 65_536),
        (b"", b"\r\n" * 32_768),
        (b"G", b"G" * 65_536),
    ],
    ids=["lines", "value", "name", "url", "blank", "method"],
)
def test_a_head_without_end_is_cut_off(served: Served, start: bytes, more: bytes) -> None:
    before, sent = resident_bytes(served), 0
    with closing(connect(served)) as line:
        try:
            line.sendall(start)
            while sent < 64 * MB:
                line.sendall(more)
                sent += len(more)
        except (BrokenPipeError, ConnectionResetError):
            pass
        told = read_all(line)
    assert sent < 64 * MB
    assert not told or told.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert resident_bytes(served) - before < 32 * MB


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (b"".join([b"x-%d: y\r\n" % number for number in range(300)]), "too_many_headers"),
        (b"x-large: " + b"x" * 70_000 + b"\r\n", "head_too_large"),
        (b"cookie: " + b"x" * 40_000 + b"\r\nx-other: " + b"x" * 40_000 + b"\r\n", "head_too_large"),
    ],
)
def test_too_large_a_head_is_refused_in_words(served: Served, headers: bytes, code: str) -> None:
    with closing(connect(served)) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
        status, body = read_answer(line)
        assert (status, json.loads(body)["error"]["code"]) == (431, code)
        assert read_all(line) == b""


def test_what_is_no_http_is_told_so_in_json(served: Served) -> None:
    with closing(connect(served)) as line:
        line.sendall(b"NONSENSE\r\n\r\n")
        status, body = read_answer(line)
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


@pytest.mark.parametrize("start", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: local"])
def test_half_a_head_is_not_waited_for(strict: Served, start: bytes) -> None:
    with closing(connect(strict)) as line:
        line.sendall(start)
        status, body = read_answer(line)
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert read_all(line) == b""


def test_a_slow_body_and_half_a_second_request_are_not_waited_for(strict: Served) -> None:
    with closing(connect(strict)) as line:
        line.sendall(HEALTH + b"GET /")
        assert read_answer(line)[0] == 200
        assert read_all(line) == b""  # as an idle connection ends
    with closing(connect(strict)) as line:
        line.sendall(post(b" " * 100_000)[:-50_000])
        line.sendall(b" ")
        told = read_all(line)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["param"] == "body"


def test_a_connection_that_is_kept_ends_when_the_server_begins_to_stop(tmp_path: Path) -> None:
    """A proxy sends the next request elsewhere; here it would begin a run that is soon broken off."""
    turns: Script = [{"when": "", "say": "Never.", "pause": 600}]
    with serving(tmp_path, turns, env={"MAINSPRING_DRAIN_SECONDS": str(2 * PATIENCE)}) as served:
        with closing(connect(served)) as line:
            line.sendall(post(b'{"input": "hello", "background": true}'))
            assert read_answer(line)[0] == 200
            served.process.send_signal(signal.SIGTERM)
            assert read_all(line) == b""
        assert served.process.poll() is None, "the run may still end"


def test_an_open_stream_and_a_waiting_client_are_not_slow(tmp_path: Path) -> None:
    """Who waits for an answer sends nothing, for much longer than a head may take."""
    (tmp_path / "mainspring.toml").write_text("[http]\nhead_seconds = 0.2\nbody_seconds = 0.2\n")
    with serving(tmp_path, [{"when": "", "say": "Hello there.", "pause": 0.2}]) as served, closing(connect(served)) as line:
        line.sendall(post(b'{"input": "hello"}'))
        assert read_answer(line)[0] == 200


def test_large_bodies_keep_alive_and_pipelines_are_as_ever(served: Served) -> None:
    """A large body behind a small head, and requests behind it in the same packet."""
    large = post(b'{"input": "%s"}' % (b"x" * 5 * MB)).replace(b"\r\n", b"\r\nauthorization: Bearer secret\r\n", 1)
    with closing(connect(served)) as line:
        for _ in range(2):
            line.sendall(HEALTH + large + HEALTH + HEALTH)
            assert [read_answer(line)[0] for _ in range(4)] == [200] * 4
        line.sendall(large)
        assert read_answer(line)[0] == 200
        chunk = b"80000\r\n" + b" " * 0x80000 + b"\r\n"
        chunked = large.partition(b"\r\n\r\n")[0].replace(b"content-length", b"transfer-encoding: chunked\r\nx-was")
        line.sendall(chunked + b"\r\n\r\n" + chunk * 8 + b'12\r\n{"input": "hello"}\r\n0\r\n\r\n' + HEALTH)
        assert [read_answer(line)[0] for _ in range(2)] == [200, 200]


def test_many_small_requests_in_one_packet_are_no_large_head(served: Served) -> None:
    with closing(connect(served)) as line:
        line.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nx-more: %b\r\n\r\n" % (b"x" * 400)) * 250)
        assert [read_answer(line)[0] for _ in range(250)] == [200] * 250


def test_one_address_cannot_take_all_connections(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nconnections_per_address = 4\n")
    with serving(tmp_path, HELLO) as served, ExitStack() as stack:
        lines = [stack.enter_context(closing(connect(served))) for _ in range(4)]
        for line in lines:
            line.sendall(HEALTH)
            assert read_answer(line)[0] == 200
        with closing(connect(served)) as line:
            status, body = read_answer(line)
            assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_connections")
        lines[0].close()
        answered, deadline = 429, time.monotonic() + PATIENCE
        while answered != 200:  # until the server has noticed
            assert time.monotonic() < deadline
            with closing(connect(served)) as line:
                line.sendall(HEALTH)
                answered, _ = read_answer(line)


def test_a_server_for_one_connection_has_one(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nconnections = 1\n")
    with serving(tmp_path, HELLO) as served, closing(connect(served)) as line:
        line.sendall(HEALTH)
        assert read_answer(line)[0] == 200


def test_one_key_cannot_take_all_requests(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nrequests_per_key = 1\n")
    key = create_key(tmp_path, "one").decode()
    with serving(tmp_path, [{"when": "", "say": "Hello.", "pause": 3600}]) as served:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        address = urlsplit(served.url).netloc
        with closing(HTTPConnection(address, timeout=PATIENCE)) as first, closing(HTTPConnection(address)) as second:
            first.request("POST", "/v1/responses", b'{"input": "hello", "stream": true}', headers)
            assert first.getresponse().status == 200
            second.request("GET", "/v1/models", headers=headers)
            refused = second.getresponse()
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert json.loads(refused.read())["error"]["code"] == "too_many_requests"
            second.request("GET", "/healthz")
            assert second.getresponse().status == 200


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"0\r\n", b"x-more: 0123456789\r\n" * 3000),
        (b"0\r\nx-more: ", b"x" * 65_536),
        (b"2\r\n{}\r\n2;x=", b"x" * 65_536),
    ],
    ids=["trailers", "trailer", "extension"],
)
def test_what_is_around_a_body_is_cut_off(served: Served, start: bytes, more: bytes) -> None:
    before, sent = resident_bytes(served), 0
    with closing(connect(served)) as line:
        try:
            line.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + start)
            while sent < 64 * MB:
                line.sendall(more)
                sent += len(more)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 64 * MB
    assert resident_bytes(served) - before < 32 * MB


def test_small_chunks_are_a_body_and_a_key_behind_it_is_none(served: Served) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    key, text = b"authorization: Bearer secret\r\n", b'{"input": "' + b"x" * 100_000 + b'"}'
    body = b"".join([b"1\r\n%c\r\n" % byte for byte in text]) + b"0\r\n"
    for before, behind, status in ((key, b"", 200), (key, b"x-more: 1\r\n", 200), (b"", key, 401)):
        with closing(connect(served)) as line:
            line.sendall(head + before + b"\r\n" + body + behind + b"\r\n")
            assert read_answer(line)[0] == status


def test_requests_without_end_on_one_connection_are_cut_off(served: Served) -> None:
    before, sent, flood = resident_bytes(served), 0, b"GET /healthz HTTP/1.1\r\n\r\n" * 10_000
    with closing(connect(served)) as line:
        try:
            while sent < 64 * MB:
                line.sendall(flood)
                sent += len(flood)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 64 * MB
    assert resident_bytes(served) - before < 32 * MB


@pytest.mark.parametrize("start", [b"POST /v1/responses HTTP/1.1\r\ncontent-length: 0", b"DELETE /v1/responses HTTP/1.1"])
def test_a_socket_that_does_not_begin_with_get_is_refused(served: Served, start: bytes) -> None:
    """A stranger would hold its connection for ever."""
    with closing(connect(served)) as line:
        line.sendall(start + b"\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        told = read_all(line)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in told


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"content-length: 32000000\r\n\r\n", id="announced"),
        pytest.param(b"transfer-encoding: chunked\r\n\r\n2400\r\n" + b" " * 0x2400 + b"\r\n", id="in chunks"),
    ],
)
def test_a_stranger_has_no_more_kept_than_a_key_takes(served: Served, sent: bytes) -> None:
    """To sign in is to show a key: until that has come whole, nobody knows whose the bytes are."""
    with closing(connect(served)) as line:
        line.sendall(b"POST /v1/session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + sent)
        assert line.recv(65_536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"content-length: 5\r\n\r\nhello", id="a body"),
        pytest.param(b"transfer-encoding: chunked\r\n\r\n", id="a body in chunks"),
        pytest.param(b"x: y\r\n" * 130 + b"\r\n", id="many headers"),
        pytest.param(b"x: " + b"y" * 9_000 + b"\r\n\r\n", id="a long header"),
    ],
)
def test_a_socket_that_cannot_be_read_is_refused(served: Served, more: bytes) -> None:
    """A stranger would hold its connection for ever."""
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: %b\r\n"
    with closing(connect(served)) as line:
        line.sendall(b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + upgrade % b64encode(b"x" * 16) + more)
        told = read_all(line)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in told


def test_no_socket_begins_while_an_answer_is_due(served: Served) -> None:
    """It would take the connection over, and the answer would be written whether or not it is read."""
    key, body = b"host: localhost\r\nauthorization: Bearer secret\r\n", b'{"input": "hi", "stream": true}'
    ask = b"POST /v1/responses HTTP/1.1\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        key,
        len(body),
        body,
    )
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: %b\r\n\r\n"
    begin = b"GET /v1/responses HTTP/1.1\r\n" + key + upgrade % b64encode(b"x" * 16)
    with closing(connect(served)) as line:
        line.sendall(ask + begin)
        assert b"101 Switching" not in read_all(line)
    with closing(connect(served)) as line:
        line.sendall(ask)
        told = b""
        while not told.endswith(b"\r\n0\r\n\r\n"):
            more = line.recv(65_536)
            assert more, f"the server hung up after {told!r}"
            told += more
        assert b"Hello there." in told
        line.sendall(begin)
        assert line.recv(65_536).startswith(b"HTTP/1.1 101 Switching")


def test_many_requests_in_a_row_are_answered_in_order(served: Served) -> None:
    """More than may wait, in pieces that tear them apart, and each so large that what is read at once may wait."""
    count, padding = 400, b"x" * 1200
    heads = [b"\r\nx-more: %b\r\nx-request-id: number-%d\r\n\r\n" % (padding, number) for number in range(count)]
    sent = b"".join([HEALTH.replace(b"\r\n\r\n", head) for head in heads])
    with closing(connect(served)) as line:

        def write() -> None:
            for start in range(0, len(sent), 700):
                line.sendall(sent[start : start + 700])

        writer = Thread(target=write)
        writer.start()
        told = b""
        while told.count(b'"status":"ok"') < count:
            more = line.recv(65_536)
            assert more, "the server hung up"
            told += more
        writer.join(PATIENCE)
    assert [int(part.split(b"\r\n")[0]) for part in told.split(b"x-request-id: number-")[1:]] == list(range(count))


@pytest.mark.parametrize("frame", [b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\x81\x81\0\0\0\0x", b"\x00\x80\0\0\0\0"])
def test_frames_without_end_are_cut_off(served: Served, frame: bytes) -> None:
    """Pings, pongs, texts and fragments: a second of them took ten of everybody's."""
    before, sent = resident_bytes(served), 0
    with connect_socket(served) as line:
        try:
            line.socket.sendall(b"\x01\x81\0\0\0\0x" if frame[0] == 0 else b"")
            while sent < 64 * MB:
                line.socket.sendall(frame * 10_000)
                sent += 10_000 * len(frame)
        except OSError:
            pass
    assert sent < 64 * MB
    assert resident_bytes(served) - before < 32 * MB


def test_large_frames_in_small_pieces_are_taken(served: Served) -> None:
    with connect_socket(served) as line:
        line.send(['{"type": "response.create", "store": false, "input": "', *["x" * 2000] * 2000, '"}'])
        while (event := json.loads(line.recv(timeout=PATIENCE)))["type"] != "response.completed":
            assert event["type"] != "error", event


def test_frames_that_wait_are_bounded_by_their_size(tmp_path: Path) -> None:
    codes: list[str] = []
    for pause in GROWING:
        codes = send_large_frames(tmp_path, pause)
        if "too_many_requests" in codes:
            break
    assert "too_many_requests" in codes


def send_large_frames(folder: Path, pause: float) -> list[str]:
    """The codes of the errors that come of large frames behind an answer with pauses."""
    large = json.dumps({"type": "response.create", "input": "x" * 9 * MB})
    turns: Script = [{"when": "wait", "say": "Hm.", "pause": pause}, *HELLO]
    with serving(folder, turns, env={"MAINSPRING_API_KEY": "secret"}) as served, connect_socket(served) as line:
        line.send(json.dumps({"type": "response.create", "input": "wait"}))
        for _ in range(8):
            line.send(large)
        ends: list[dict[str, Any]] = []
        while len(ends) < 9:
            event = json.loads(line.recv(timeout=PATIENCE))
            ends += [event] if event["type"] in ("response.completed", "error") else []
    return [event["error"]["code"] for event in ends if event["type"] == "error"]


async def test_a_client_that_does_not_read_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nunread_seconds = 0.5\n")
    with serving(tmp_path, [{"when": "", "say": "x" * 8 * MB}]) as served, closing(socket.socket()) as line:
        files_before = count_files(served)
        address = urlsplit(served.url)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((address.hostname, address.port))
        line.sendall(post(b'{"input": "hello", "stream": true}'))
        assert line.recv(1)
        assert count_files(served) > files_before
        await until(lambda: count_files(served) <= files_before)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations", "/v1/chat"])
def test_a_compressed_body_is_refused_and_not_unpacked(served: Served, path: str, coding: str) -> None:
    bomb = gzip.compress(b'{"input": "' + b"x" * 50 * MB + b'"}')
    before = resident_bytes(served)

    headers = {"authorization": "Bearer secret", "content-type": "application/json", "content-encoding": coding}
    with closing(HTTPConnection(urlsplit(served.url).netloc, timeout=PATIENCE)) as line:
        line.request("POST", path, bomb, headers)
        answer = line.getresponse()
        error = json.loads(answer.read())["error"]
    assert (answer.status, error["code"], error["param"]) == (415, "unsupported_media_type", "content-encoding")
    assert resident_bytes(served) - before < 20 * MB


async def test_bodies_of_one_key_leave_room_for_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nbody_bytes = 20_000_000\n")
    keys = [create_key(tmp_path, tenant) for tenant in ("one", "other")]
    one, other = [b"\r\nauthorization: Bearer %b\r\n\r\n" % key for key in keys]
    large = post(json.dumps({"input": "x" * 7 * MB, "store": False}).encode())
    with serving(tmp_path, HELLO) as served, closing(connect(served)) as held:
        before = resident_bytes(served)
        held.sendall(large.replace(b"\r\n\r\n", one)[:-1])
        await until(lambda: resident_bytes(served) - before > 6 * MB)
        for key, status in ((one, 429), (other, 200), (other, 200)):
            with closing(connect(served)) as line:
                line.sendall(large.replace(b"\r\n\r\n", key))
                assert read_answer(line)[0] == status
        held.sendall(b"}")
        assert read_answer(held)[0] == 200
        with closing(connect(served)) as line:
            line.sendall(large.replace(b"\r\n\r\n", one))
            assert read_answer(line)[0] == 200
