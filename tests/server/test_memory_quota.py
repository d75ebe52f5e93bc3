"""What requests and runs hold in memory is counted for each key, with the histories that they continue, and bounded."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from urllib.parse import urlsplit

import pytest
from tests.agents.world import written as write_agent
from tests.kit.waiting import PATIENCE, until
from tests.server.linter import Json
from tests.server.process import Script, Served, serving
from tests.server.test_connections import connect as connect_line
from tests.server.test_connections import create_key
from tests.server.test_workflows import DIGEST
from tests.workflows.world import written
from websockets.sync.client import ClientConnection, connect

from mainspring import Engine
from mainspring.core.memory_quota import MemoryQuota
from mainspring.providers.scripted import Scripted, fail, say, stall

KB = 1000
SCRIPT: Script = [
    {"when": "linger", "say": "At last.", "pause": 600},
    {"when": "talk", "say": "x" * 900 * KB},
    {"when": "", "say": "Hello."},
]
# Half of it is for one key.
BOUND = "[http]\nbody_bytes = 2_000_000\n"


class Client:
    """Whoever has a key."""

    def __init__(self, served: Served, key: bytes) -> None:
        self._served, self._headers = served, {"authorization": f"Bearer {key.decode()}"}

    def ask(self, path: str, body: object = None, method: str = "POST") -> tuple[int, Json]:
        with closing(HTTPConnection(urlsplit(self._served.url).netloc, timeout=60)) as line:
            sent = None if body is None else json.dumps(body).encode()
            line.request(method, f"/v1/{path}", sent, {**self._headers, "content-type": "application/json"})
            answer = line.getresponse()
            return answer.status, {**json.loads(answer.read()), "retry-after": answer.getheader("retry-after")}

    def tell(self, chars: int, **more: object) -> str:
        status, said = self.ask("responses", {"input": "x" * chars, **more})
        assert status == 200, said
        return str(said["id"])

    def build_chain(self, links: int, chars: int) -> str:
        last: str | None = None
        for _ in range(links):
            last = self.tell(chars, previous_response_id=last)
        assert last is not None
        return last

    def open_socket(self) -> ClientConnection:
        url = self._served.url.replace("http", "ws") + "/responses"
        return connect(url, additional_headers=self._headers, max_size=None)


@pytest.fixture
def keys(tmp_path: Path) -> list[bytes]:
    return [create_key(tmp_path, tenant) for tenant in ("one", "other")]


@pytest.fixture
def clients(tmp_path: Path, keys: list[bytes]) -> Iterator[list[Client]]:
    (tmp_path / "mainspring.toml").write_text(BOUND)
    with serving(tmp_path, SCRIPT) as served:
        yield [Client(served, key) for key in keys]


def converse(client: Client) -> Json:
    conversation = str(client.ask("conversations", {})[1]["id"])
    for _ in range(4):
        client.tell(300 * KB, conversation=conversation)
    return {"conversation": conversation}


def chain(client: Client) -> Json:
    return {"previous_response_id": client.build_chain(4, 300 * KB)}


@pytest.mark.parametrize("build", [chain, converse])
def test_a_history_that_never_fits_is_refused_at_every_door(
    tmp_path: Path, keys: list[bytes], build: Callable[[Client], Json]
) -> None:
    with serving(tmp_path, SCRIPT) as served:
        place = build(Client(served, keys[0]))
    (tmp_path / "mainspring.toml").write_text(BOUND)
    with serving(tmp_path, SCRIPT) as served:
        refuse_everywhere(Client(served, keys[0]), place)


def refuse_everywhere(client: Client, place: Json) -> None:
    order = {"input": "go on", **place}
    for more in ({}, {"background": True}, {"stream": True}):
        status, said = client.ask("responses", {**order, **more})
        assert (status, said["error"]["code"]) == (413, "history_too_large")
        assert said["error"]["param"] == next(iter(place))
        assert "compact" in said["error"]["message"]
    assert client.ask("responses/input_tokens", order)[0] == 413
    with client.open_socket() as line:
        line.send(json.dumps({"type": "response.create", **order}))
        told = json.loads(line.recv())
        assert (told["type"], told["error"]["code"]) == ("error", "history_too_large")
    # What is too long to be continued can still be read and deleted.
    [(name, id)] = place.items()
    path = f"responses/{id}" if name == "previous_response_id" else f"conversations/{id}"
    assert client.ask(path, method="GET")[0] == 200
    assert client.ask(path, method="DELETE")[0] == 200


def test_runs_of_one_key_wait_for_each_other_and_leave_others_alone(clients: list[Client]) -> None:
    one, other = clients
    last = one.tell(400 * KB)
    order = {"input": "linger", "previous_response_id": last, "background": True}
    begun = [one.ask("responses", order) for _ in range(4)]
    assert [status for status, _ in begun] == [200, 200, 429, 429]
    assert begun[2][1]["error"] | {"message": ""} == {
        "message": "", "type": "too_many_requests", "param": "previous_response_id", "code": "memory_limit",
    }  # fmt: skip
    assert begun[2][1]["retry-after"] == "1"
    assert other.tell(400 * KB)
    assert one.ask(f"responses/{begun[0][1]['id']}/cancel")[0] == 200
    assert one.ask("responses", {**order, "input": "go on", "background": False})[0] == 200


def test_what_a_run_produces_counts_too(clients: list[Client]) -> None:
    client = clients[0]
    last = client.tell(400 * KB)
    status, said = client.ask("responses", {"input": "talk", "previous_response_id": last})
    assert (status, said["status"], said["error"]["reason"]) == (200, "failed", "memory_limit")
    assert client.ask("responses", {"input": "go on", "previous_response_id": last})[0] == 200


async def test_half_sent_messages_on_many_sockets_count_for_their_key(clients: list[Client]) -> None:
    one, other = clients
    with ExitStack() as stack:

        def begin(client: Client) -> ClientConnection:
            """Sends most of a frame that says to have 600 kB."""
            line = client.open_socket()
            stack.enter_context(line)
            head = b"\x81\xff" + (600 * KB).to_bytes(8) + b"\0\0\0\0"
            line.socket.sendall(head + b'{"type": "' + b"x" * 550 * KB)
            return line

        lines = [begin(one), begin(one)]
        await until(lambda: any(line.close_code is not None for line in lines))
        assert [(line.close_code, line.close_reason) for line in lines if line.close_code] == [(1013, "memory_limit")]
        assert other.tell(300 * KB)


def test_what_sockets_remember_counts_for_their_key(clients: list[Client]) -> None:
    """Each connection keeps its last responses, stored or not."""
    one, other = clients
    with ExitStack() as stack:
        for number in range(4):
            line = stack.enter_context(one.open_socket())
            line.send(json.dumps({"type": "response.create", "input": "x" * 300 * KB, "store": False}))
            told = [json.loads(line.recv())]
            while told[-1]["type"] not in ("response.completed", "error"):
                told.append(json.loads(line.recv()))
            if number < 2:
                assert told[-1]["type"] == "response.completed"
        assert one.ask("responses", {"input": "x" * 500 * KB})[0] == 429
        assert other.tell(300 * KB)


async def test_answers_that_are_not_read_count_for_their_key(tmp_path: Path, keys: list[bytes]) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nbody_bytes = 20_000_000\n")
    with serving(tmp_path, SCRIPT) as served:
        one, other = [Client(served, key) for key in keys]
        for _ in range(3):
            one.tell(10, instructions="x" * 9000 * KB)
        told = []
        with ExitStack() as stack:
            for _ in range(8):
                line = stack.enter_context(closing(connect_line(served)))
                line.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)  # else the system takes most of it
                line.sendall(b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % keys[0])
                told.append(line.recv(12))
            assert (told[0], told[-1]) == (b"HTTP/1.1 200", b"HTTP/1.1 429")
            assert other.tell(300 * KB)
        await until(lambda: one.ask("responses", method="GET")[0] == 200)


def test_runs_that_workflows_begin_count_for_their_key(tmp_path: Path, keys: list[bytes]) -> None:
    written(tmp_path / "flows", DIGEST)
    write_agent(tmp_path / "agents", "researcher", inputs={"topic": {"required": True}}, outputs={"notes": {}})
    (tmp_path / "mainspring.toml").write_text(f'workflows = ["flows"]\nagents = ["agents"]\n{BOUND}')
    script: Script = [{"when": "tides", "say": '{"notes": "the moon"}'}, *SCRIPT]
    with serving(tmp_path, script) as served:
        one, other = [Client(served, key) for key in keys]
        order = {"inputs": {"topic": "linger" + "x" * 300 * KB}, "background": True}
        begun = [one.ask("workflows/digest/runs", order)[1]["id"] for _ in range(5)]
        for told in wait_for_ends(one, begun, 2):
            assert (told["status"], told["steps"][0]["status"]) == ("failed", "failed")
            assert "bytes" in told["error"]
        assert one.ask("responses", {"input": "x" * 400 * KB})[0] == 429
        status, told = other.ask("workflows/digest/runs", {"inputs": {"topic": "tides"}})
        assert (status, told["status"]) == (200, "success")


def wait_for_ends(client: Client, ids: list[str], count: int) -> list[Json]:
    """Those of these workflow runs that have ended, once there are so many."""
    end = time.monotonic() + PATIENCE
    while True:
        told = [client.ask(f"workflows/digest/runs/{id}", method="GET")[1] for id in ids]
        ended = [each for each in told if each["status"] != "running"]
        if len(ended) >= count:
            return ended
        assert time.monotonic() < end
        time.sleep(0.02)


def test_messages_of_a_chat_count_for_their_key(tmp_path: Path, keys: list[bytes]) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nbody_bytes = 200_000\n")
    with serving(tmp_path, SCRIPT) as served, ExitStack() as stack:
        one, other = [Client(served, key) for key in keys]
        body = json.dumps({"content": "linger" + "x" * 30 * KB}).encode()
        told: Json = {}
        for _ in range(8):
            line = stack.enter_context(closing(connect_line(served)))
            head = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer %b\r\n"
            line.sendall(head % keys[0] + b"content-length: %d\r\n\r\n" % len(body) + body)
        end, status = time.monotonic() + PATIENCE, 200
        while status == 200:
            assert time.monotonic() < end
            status, told = one.ask("chat", {"content": "x" * 30 * KB})
        assert (status, told["retry-after"]) == (429, "1")
        assert told["error"]["code"] in ("memory_limit", "too_many_requests")  # by the run, or by the body that it needs
        assert other.ask("chat", {"content": "x" * 30 * KB})[0] == 200


def read_resident(served: Served) -> int:
    return int(Path(f"/proc/{served.process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def test_readers_of_a_long_run_that_has_ended_share_what_they_read(tmp_path: Path, keys: list[bytes]) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nbody_bytes = 400_000_000\n")
    size, readers = 10_000 * KB, 15
    with serving(tmp_path, [{"when": "talk", "say": "word " * (size // 5)}], chunk=2000) as served, ExitStack() as stack:
        run_id = Client(served, keys[0]).ask("responses", {"input": "talk"})[1]["id"]
        before = read_resident(served)
        lines = [stack.enter_context(closing(connect_line(served))) for _ in range(readers)]
        for line in lines:
            line.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
            head = (
                f"GET /v1/responses/{run_id}?stream=true HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {keys[0].decode()}"
            )
            line.sendall(f"{head}\r\n\r\n".encode())
        for line in lines:
            answer = b""
            while b"response.created" not in answer:
                answer += line.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
        assert read_resident(served) - before < readers * size


async def test_a_run_that_cannot_be_resumed_says_why(tmp_path: Path, keys: list[bytes]) -> None:
    with serving(tmp_path, SCRIPT) as served:
        client = Client(served, keys[0])
        last = client.build_chain(4, 300 * KB)
        lingering = client.ask("responses", {"input": "linger", "previous_response_id": last, "background": True})[1]["id"]
        served.kill()
    (tmp_path / "mainspring.toml").write_text(BOUND)
    with serving(tmp_path, SCRIPT) as served:
        client = Client(served, keys[0])
        said = client.ask(f"responses/{lingering}", method="GET")[1]
        assert (said["status"], said["error"]["reason"]) == ("failed", "history_too_large")


ENDS = {"completed": say("Hello."), "failed": fail("provider_unauthorized"), "cancelled": stall()}


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_counts_once_it_is_over(tmp_path: Path, end: str) -> None:
    """Runs that succeed, fail, are cancelled, are read again, previewed or waited for by nobody give back what they held."""
    quota = MemoryQuota(10_000_000)
    provider = Scripted(say("Hello."), *[ENDS[end]] * 5, say("Nobody hears me."))
    async with Engine(provider, database=tmp_path / "m.db", quota=quota) as engine:
        first = await engine.core.start(engine.core.order("Hi " * 1000))
        await first.wait()
        handles = [await engine.core.start(engine.core.order("again", previous=first.id)) for _ in range(5)]
        assert quota.held > 5 * 3000
        if end == "cancelled":
            await asyncio.gather(*[handle.cancel() for handle in handles])
        assert {(await handle.wait()).status for handle in handles} == {end}
        ids = [first.id, *[handle.id for handle in handles]]
        del first, handles
        await until(lambda: quota.held == 0)
        read = [await engine.core.attach(id) for id in ids]
        assert quota.held > 6 * 3000
        del read
        await until(lambda: quota.held == 0)
        await engine.core.preview(engine.core.order("more", previous=ids[0]))
        assert quota.held == 0
        await engine.core.start(engine.core.order("alone", previous=ids[0]))
        assert quota.held > 3000
        await until(lambda: quota.held == 0)
