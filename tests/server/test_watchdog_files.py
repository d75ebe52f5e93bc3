"""While somebody has odd files read and indexed, nobody else notices."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import Served
from tests.server.test_watchdog import MB, Attacked, resident_bytes, start_server

pytestmark = pytest.mark.slow

FILES: dict[str, bytes] = {
    "spaces": b" " * 20 * MB,
    "lines": b"\n" * 20 * MB,
    "a word behind blanks": b"first" + b" \t" * 8 * MB + b"last",
    "letters": b"x" * 4 * MB,
}


class Client:
    """The attacker, with forms and JSON."""

    def __init__(self, attacked: Attacked) -> None:
        self._attacker = attacked.attacker

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        status, told = self._attacker.ask(method, path, None if body is None else json.dumps(body).encode())
        assert status == 200, told
        return dict(json.loads(told))

    def index(self, store: str, file: str) -> str:
        """Returns how it ended."""
        path = f"/v1/vector_stores/{store}/files"
        self.ask("POST", path, {"file_id": file})
        end = time.monotonic() + PATIENCE
        while (status := self.ask("GET", f"{path}/{file}")["status"]) == "in_progress":
            assert time.monotonic() < end
            time.sleep(0.1)
        return str(status)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with start_server(tmp_path_factory.mktemp("attacked"), [{"when": "", "say": "Hello there."}]) as attacked:
        yield attacked


def test_blank_and_endless_files_are_nobody_elses_trouble(attacked: Attacked) -> None:
    client = Client(attacked)
    store = str(client.ask("POST", "/v1/vector_stores", {"name": "odd"})["id"])
    ids = {name: attacked.attacker.upload(data) for name, data in FILES.items()}
    with attacked.expect_calm():
        ended = {name: client.index(store, id) for name, id in ids.items()}
    assert ended == {"spaces": "failed", "lines": "failed", "a word behind blanks": "completed", "letters": "completed"}


def test_a_large_file_in_an_input_is_held_a_few_times_at_most(attacked: Attacked) -> None:
    content = "data:application/pdf;base64," + b64encode(b"%PDF-" + bytes(22 * MB)).decode()
    part = {"type": "input_file", "filename": "large.pdf", "file_data": content}
    body = json.dumps({"input": [{"role": "user", "content": [part]}]}).encode()
    with attacked.expect_calm(), peak_of(attacked.served) as peak:
        status, told = attacked.attacker.ask("POST", "/v1/responses", body)
        assert status == 200
        grown = peak()
    assert grown < 5 * len(body)
    kept = Client(attacked).ask("GET", f"/v1/responses/{json.loads(told)['id']}/input_items")
    assert kept["data"][0]["content"][0]["file_data"] == content


@contextmanager
def peak_of(served: Served) -> Iterator[Callable[[], int]]:
    """Tells by how many bytes the memory of a server has grown in this block when it was largest."""
    process, before = Path(f"/proc/{served.process.pid}"), resident_bytes(served)
    (process / "clear_refs").write_text("5")
    yield lambda: int((process / "status").read_text().partition("VmHWM:")[2].split()[0]) * 1024 - before
