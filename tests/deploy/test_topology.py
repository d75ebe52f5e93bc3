"""compose.yaml as processes: its own commands with its own variables, on a real PostgreSQL and a real S3 server."""

import json
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from tests.deploy.shipped import DEPLOY, list_known_metrics, read_yaml
from tests.kit.postgres import Postgres
from tests.kit.processes import STDOUT, Process, run, start
from tests.kit.s3 import running_s3
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.slow

SERVICES: dict[str, Any] = read_yaml(DEPLOY / "compose.yaml")[0]["services"]
GIVEN = {"POSTGRES_PASSWORD": "secret", "MAINSPRING_API_KEY": "key1", "S3_SECRET_KEY": "test"}


class Topology:
    """What compose would start. Addresses of its network are replaced by those of this machine, and nothing else."""

    def __init__(self, folder: Path, database: str, objects: str) -> None:
        script = folder / "script.json"
        script.write_text(json.dumps({"turns": [{"say": "Done by a worker."}] * 20}))
        self._folder = folder
        self._replaced = {
            "MAINSPRING_DATABASE": database,
            "AWS_ENDPOINT_URL": objects,
            "AWS_ACCESS_KEY_ID": "test",
            "MAINSPRING_MODEL": f"scripted:{script}",
        }

    def environment(self, name: str, port: int) -> dict[str, str]:
        found = {}
        for variable, value in SERVICES[name]["environment"].items():
            text = re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: GIVEN.get(found[1], ""), str(value))
            if text:
                found[variable] = self._replaced.get(variable, text)
        return {**found, **self._replaced, "MAINSPRING_HOST": "127.0.0.1", "MAINSPRING_PORT": str(port), "PYTHONUNBUFFERED": "1"}

    def command(self, name: str, port: int) -> list[str]:
        here = {"/etc/mainspring/mainspring.toml": str(DEPLOY / "mainspring.toml"), "0.0.0.0": "127.0.0.1", "8080": str(port)}
        return [sys.executable, "-m", "mainspring", *[here.get(each, each) for each in SERVICES[name]["command"]]]

    def run(self, name: str) -> None:
        ended = run(self.command(name, 0), cwd=self._folder, env=self.environment(name, 0))
        assert ended.returncode == 0, ended.stderr

    @contextmanager
    def started(self, name: str) -> Iterator[str]:
        """The URL of a service once it is ready."""
        port = find_port()
        log = self._folder / f"{name}{port}.log"
        with log.open("wb") as out:
            process = start(
                self.command(name, port), cwd=self._folder, env=self.environment(name, port), stdout=out.fileno(), stderr=STDOUT
            )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(url, process, log)
            yield url
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def find_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port


def wait_until_ready(url: str, process: Process, log: Path) -> None:
    until = monotonic() + PATIENCE
    while monotonic() < until:
        assert process.poll() is None, log.read_text()
        with suppress(OSError):
            if ask(f"{url}/readyz", key=None)[0] == 200:
                return
        sleep(0.05)
    raise AssertionError(log.read_text())


def ask(url: str, body: object = None, key: str | None = "key1") -> tuple[int, str]:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_what_compose_starts_works_together(tmp_path: Path, postgres: Postgres) -> None:
    with running_s3() as objects, ExitStack() as stack:
        objects.send("PUT", "/mainspring")  # the bucket that compose makes
        topology = Topology(tmp_path, postgres.database(), objects.url)
        topology.run("upgrade")
        workers = [stack.enter_context(topology.started("worker")) for _ in range(SERVICES["worker"]["deploy"]["replicas"])]
        servers = [stack.enter_context(topology.started("server")) for _ in range(SERVICES["server"]["deploy"]["replicas"])]
        assert ask(f"{servers[0]}/v1/responses", {"input": "Go."}, key=None)[0] == 401
        status, told = ask(f"{servers[0]}/v1/responses", {"input": "Go.", "stream": True})
        assert status == 200
        assert "Done by a worker." in told
        assert told.rstrip().endswith("data: [DONE]")
        run_id = re.search(r'"id":"(resp_\w+)"', told)
        assert run_id is not None
        status, told = ask(f"{servers[1]}/v1/responses/{run_id[1]}")
        assert (status, json.loads(told)["status"]) == (200, "completed")
        counted = [ask(f"{url}/metrics")[1] for url in workers]
        assert sum([sum_runs(text) for text in counted]) == 1, "the run was not driven by a worker"
        for text in [*counted, ask(f"{servers[0]}/metrics")[1]]:
            assert list_known_metrics() <= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def sum_runs(text: str) -> float:
    return sum([float(line.split()[-1]) for line in text.splitlines() if line.startswith("mainspring_runs_total")])
