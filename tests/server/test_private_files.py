"""What a real server leaves on the disk: for its owner alone, without what was deleted. And what it says when it cannot write."""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.kit.processes import STDOUT, Process, run, start
from tests.kit.waiting import PATIENCE, until

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.server.identity import read_secret

pytestmark = pytest.mark.slow

# In a process of its own: whoever closes a file gives up the locks that their process has on it.
READER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM runs").fetchone()
print("reading", flush=True)
time.sleep(600)
"""

OPEN = "import os, runpy, sys; os.umask(0o022); sys.argv[0] = 'mainspring'; runpy.run_module('mainspring', run_name='__main__')"
WORD = "zanzibarrr"


@contextmanager
def serving(folder: Path, database: Path, *, pause: float = 0) -> Iterator[tuple[str, Process]]:
    """`mainspring serve` under the umask that most people have, which lets everybody read."""
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": [{"say": f"About {WORD}, yes.", "pause": pause}], "repeat": True}))
    command = [sys.executable, "-c", OPEN, "serve", "--port", "0", "--model", f"scripted:{script}", "--database", str(database)]
    with start(command, stderr=STDOUT, cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert " listens at " in first, first + process.stdout.read()
        try:
            yield first.rpartition(" ")[2].strip(), process
        finally:
            if process.poll() is None:
                process.kill()


def ask(url: str, body: object = None, method: str = "GET") -> tuple[int, dict[str, object]]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"}, method="POST" if data else method)
    try:
        with urlopen(request, timeout=PATIENCE) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


def look(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}


def test_every_file_that_a_server_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    with serving(tmp_path, data / "m.db") as (url, _):
        assert ask(f"{url}/responses", {"input": "hi"})[0] == 200
        assert ask(f"{url}/chat", {"content": "hi"})[0] == 200
        found = look(data)
        assert {"m.db", "m.db-wal", "m.db-shm", "decisions.db-wal", "tasks.db-wal"} <= set(found)
        assert set(found.values()) == {0o600}, found
        assert [folder.stat().st_mode & 0o777 for folder in (data, data.parent)] == [0o700, 0o700]


def test_files_of_before_are_taken_from_everybody_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data / "m.db") as (url, process):
        assert ask(f"{url}/responses", {"input": "hi"})[0] == 200
        process.kill()  # so that the log stays behind
        process.wait(30)
    for file in data.iterdir():
        file.chmod(0o644)
    assert len(look(data)) == 3
    with serving(tmp_path, data / "m.db") as (url, _):
        assert len((ask(f"{url}/responses")[1])["data"]) == 1  # type: ignore[arg-type]
        assert set(look(data).values()) == {0o600}


def test_what_was_deleted_is_in_no_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data / "m.db") as (url, _):
        _, conversation = ask(f"{url}/conversations", {"items": [{"role": "user", "content": f"first {WORD}"}]})
        made = [
            ask(f"{url}/responses", {"input": f"second {WORD}", "conversation": conversation["id"]})[1]["id"] for _ in range(3)
        ]
        assert holding(data)
        for id in made:
            assert ask(f"{url}/responses/{id}", method="DELETE")[0] == 200
        assert ask(f"{url}/conversations/{conversation['id']}", method="DELETE")[0] == 200
        assert holding(data) == []


async def test_what_is_deleted_while_somebody_reads_is_gone_when_they_are(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data / "m.db") as (url, _):
        _, made = ask(f"{url}/responses", {"input": WORD})
        with start([sys.executable, "-c", READER, str(data / "m.db")]) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            assert ask(f"{url}/responses/{made['id']}", method="DELETE")[0] == 200
            assert "m.db-wal" in holding(data)
            assert ask(f"{url}/conversations", {"metadata": {"a": "b"}})[0] == 200, "others can write meanwhile"
            assert "m.db-wal" in holding(data)
            reader.kill()
        await until(lambda: holding(data) == [])


def holding(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if WORD.encode() in path.read_bytes()]


def test_a_server_that_cannot_write_is_not_ready(tmp_path: Path) -> None:
    """A limit on the size of files is to SQLite what a full disk is."""
    data = tmp_path / "data"
    with serving(tmp_path, data / "m.db") as (url, process):
        root = url.removesuffix("/v1")
        assert ask(f"{root}/readyz")[0] == 200
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, unlimited[1]))
        code, told = ask(f"{root}/readyz")
        assert (code, told["error"]["code"]) == (503, "not_ready"), told  # type: ignore[index]
        assert ask(f"{root}/healthz")[0] == 200
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert ask(f"{root}/readyz")[0] == 200


def test_a_run_that_was_told_to_have_failed_is_listed_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, data / "m.db", pause=2.0) as (url, process):
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        _, made = ask(f"{url}/responses", {"input": "hi", "background": True})
        id = made["id"]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, unlimited[1]))
        assert until_ended(f"{url}/responses/{id}")["status"] == "failed"
        assert statuses(url) == {id: "failed"}
        assert statuses(url, "?status=in_progress") == {}
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with serving(tmp_path, data / "m.db") as (url, _):
        assert statuses(url) == {id: "failed"}
        assert statuses(url, "?status=failed") == {id: "failed"}


def test_a_run_that_failed_unsaved_can_be_deleted(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "m.db", pause=1.0) as (url, process):
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        _, made = ask(f"{url}/responses", {"input": "hi", "background": True})
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, unlimited[1]))
        assert until_ended(f"{url}/responses/{made['id']}")["status"] == "failed"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert ask(f"{url}/responses/{made['id']}", method="DELETE")[0] == 200
        assert ask(f"{url}/responses/{made['id']}")[0] == 404
        assert statuses(url) == {}


def statuses(url: str, query: str = "") -> dict[str, str]:
    listed = ask(f"{url}/responses{query}")[1]["data"]
    return {each["id"]: each["status"] for each in listed}  # type: ignore[attr-defined]


def until_ended(url: str) -> dict[str, object]:
    deadline = time.monotonic() + PATIENCE
    while (found := ask(url)[1])["status"] in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_a_server_whose_log_of_writes_is_damaged_says_so_and_does_not_start(tmp_path: Path) -> None:
    database = tmp_path / "m.db"
    with serving(tmp_path, database) as (url, process):
        assert ask(f"{url}/responses", {"input": "hi"})[0] == 200
        process.kill()
        process.wait(PATIENCE)
    log = tmp_path / "m.db-wal"
    written = bytearray(log.read_bytes())
    written[32 + 24 + 7] ^= 0xFF  # in the first page of the first frame
    log.write_bytes(written)
    again = run([sys.executable, "-m", "mainspring", "serve", "--port", "0", "--database", str(database)], cwd=tmp_path)
    assert (again.returncode != 0, "m.db-wal is damaged" in again.stderr) == (True, True), again.stderr
    assert log.read_bytes() == written, "whoever can repair it finds it as it was"


def test_a_secret_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tasks.key"
    read_secret(file, make=True)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o602)
    with pytest.raises(InvalidRequest, match="chmod 600") as refused:
        read_secret(file)
    assert refused.value.param == "secret_file"
