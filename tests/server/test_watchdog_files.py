"""While somebody has odd files read and indexed, nobody else notices."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.waiting import PATIENCE
from tests.server.test_watchdog import MB, Attacked, start_server

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

    def upload(self, data: bytes) -> str:
        head = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
        parts = [head % (b"purpose", b"") + b"user_data", head % (b"file", b'; filename="odd.txt"') + data]
        status, told = self._attacker.ask(
            "POST", "/v1/files", b"\r\n".join([*parts, b"--b--\r\n"]), "multipart/form-data; boundary=b"
        )
        assert status == 200, told
        return str(json.loads(told)["id"])

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
    ids = {name: client.upload(data) for name, data in FILES.items()}
    with attacked.expect_calm():
        ended = {name: client.index(store, id) for name, id in ids.items()}
    assert ended == {"spaces": "failed", "lines": "failed", "a word behind blanks": "completed", "letters": "completed"}
