"""The log of requests, and web pages of other origins: a real server, with and without them."""

import json
from collections.abc import Iterator
from pathlib import Path
from sys import executable

import httpx2
import pytest
from tests.kit.processes import run
from tests.kit.waiting import until
from tests.server.process import Script, Served, serving
from tests.server.test_connections import create_key

from mainspring.core.items import Json

TURNS: Script = [{"say": "Hello."}] * 9
PAGE = "https://app.example.com"


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "mainspring.toml").write_text('[http]\nrequest_log = "requests.jsonl"\n')
    with serving(tmp_path, TURNS) as served:
        yield served


def read_lines(folder: Path, name: str = "requests.jsonl") -> list[Json]:
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_every_request_is_one_line_without_content(logged: Served, tmp_path: Path) -> None:
    key = create_key(tmp_path, "acme").decode()
    with httpx2.Client(base_url=logged.url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        answer = client.post("/responses", json={"input": "my secret word", "stream": True}, headers={"x-request-id": "mine-1"})
        assert "response.completed" in answer.text
        assert client.get("/responses/resp_none?include=x").status_code == 404
        assert httpx2.get(f"{logged.url}/models").status_code == 401
        narrow = client.post("/keys", json={"scopes": ["models"]}).json()["key"]
        assert httpx2.get(f"{logged.url}/runs", headers={"authorization": f"Bearer {narrow}"}).status_code == 403
    await until(lambda: len(read_lines(tmp_path)) == 5)
    streamed, missing, refused, _, forbidden = read_lines(tmp_path)
    assert {**streamed, "at": "", "ms": 0} == {
        "at": "", "request_id": "mine-1", "method": "POST", "path": "/v1/responses", "status": 200, "ms": 0,
        "key": key.split("_")[1], "tenant": "acme",
    }  # fmt: skip
    assert (missing["status"], missing["path"], missing["tenant"]) == (404, "/v1/responses/resp_none", "acme")
    assert (refused["status"], "key" in refused, refused["request_id"][:4]) == (401, False, "req_")
    assert (forbidden["status"], forbidden["key"]) == (403, narrow.split("_")[1])
    written = (tmp_path / "requests.jsonl").read_text()
    assert "secret word" not in written
    assert key.split("_")[2] not in written
    assert (tmp_path / "requests.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_log_that_is_moved_away_is_begun_anew(logged: Served, tmp_path: Path) -> None:
    assert httpx2.get(f"{logged.url}/models").status_code == 200
    await until(lambda: len(read_lines(tmp_path)) == 1)
    (tmp_path / "requests.jsonl").rename(tmp_path / "old.jsonl")
    assert httpx2.get(f"{logged.url}/models").status_code == 200
    await until(lambda: len(read_lines(tmp_path)) == 1)
    assert len(read_lines(tmp_path, "old.jsonl")) == 1


async def test_pages_of_the_named_origins_may_use_the_api(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text(f'[http]\ncors_origins = ["{PAGE}"]\n')
    # What the client of OpenAI asks for in a browser.
    headers = "authorization, content-type, idempotency-key, x-stainless-lang, x-stainless-retry-count"
    asking = {"access-control-request-method": "POST", "access-control-request-headers": headers}
    with serving(tmp_path, TURNS, "--api-key", "secret") as served:
        allowed = httpx2.options(f"{served.url}/responses", headers={"origin": PAGE, **asking})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
        assert allowed.headers["access-control-allow-headers"] == headers
        assert httpx2.options(f"{served.url}/responses", headers={"origin": "https://evil.example", **asking}).status_code == 400
        key = {"authorization": "Bearer secret"}
        answer = httpx2.post(f"{served.url}/responses", json={"input": "hi"}, headers={"origin": PAGE, **key}, timeout=60)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        without = httpx2.post(f"{served.url}/responses", json={"input": "hi"}, headers={"origin": PAGE})
        assert without.status_code == 401


async def test_a_server_for_pages_of_every_origin_needs_a_key(tmp_path: Path) -> None:
    for origin, status in (("*", 401), (PAGE, 200)):
        (tmp_path / "mainspring.toml").write_text(f'[http]\ncors_origins = ["{origin}"]\n')
        with serving(tmp_path, TURNS) as served:
            answer = httpx2.post(f"{served.url}/responses", json={"input": "hi"}, headers={"origin": PAGE}, timeout=60)
            assert answer.status_code == status


async def test_without_the_setting_no_page_is_told_that_it_may(tmp_path: Path) -> None:
    with serving(tmp_path, TURNS, "--api-key", "secret") as served:
        key = {"authorization": "Bearer secret", "origin": PAGE}
        assert "access-control-allow-origin" not in httpx2.get(f"{served.url}/models", headers=key).headers
    assert not (tmp_path / "requests.jsonl").exists()


def test_a_switch_in_place_of_the_name_of_a_log_is_answered_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[http]\nrequest_log = true\n")
    told = run([executable, "-m", "mainspring", "config", "show"], cwd=tmp_path).stderr
    assert told.endswith("2: `request_log`: it must be text, not `true`; write the name of a file, or `-` for standard error\n")


def test_a_log_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('[http]\nrequest_log = "no/such/folder.jsonl"\n')
    with (
        pytest.raises(AssertionError, match=r"the log of requests `no/such/folder.jsonl` cannot be written"),
        serving(tmp_path, TURNS),
    ):
        pass
