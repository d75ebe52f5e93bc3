"""How a server is started: its keys on the command line, and what it says once it listens."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from sys import executable

import aiohttp
import anyio
import pytest
from tests.kit.processes import Ended, run
from tests.kit.s3 import S3, running_s3
from tests.providers.backend import ASKED, DONE, chunk, sse
from tests.providers.backend import serving as backend_serving
from tests.sandbox.kube.cluster import open_cluster
from tests.server.process import Served, serving

from mainspring.http.auth import Keys
from mainspring.storage.sqlite_runs import SqliteStore

HELLO: list[dict[str, object]] = [{"when": "Hello", "say": "Hello there."}]


def announced(served: Served) -> dict[str, str]:
    """What follows the first line, by its heading."""
    assert served.process.stdout is not None
    lines = [served.process.stdout.readline().strip() for _ in range(5)]
    return {head.strip(): rest.strip() for head, _, rest in [line.partition("  ") for line in lines]}


def tried(told: dict[str, str], key: str) -> str:
    """What comes of the command that the server proposes, with the key that one has."""
    command = shlex.split(told["try"].replace("KEY", key))
    return subprocess.run([*command, "-sS"], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_what_a_server_says_of_keys_is_true_and_what_it_proposes_works(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        told = announced(served)
        assert told["API keys"].startswith("none needed")
        assert "Hello there." in tried(told, "")
    async with SqliteStore(tmp_path / "served.db") as store:
        key = await Keys(store).create()
    with serving(tmp_path, HELLO) as served:
        told = announced(served)
        assert told["API keys"].startswith("needed")
        assert 'api_key="KEY"' in told["or"]
        assert "Hello there." in tried(told, key)
        assert "invalid_api_key" in tried(told, "wrong")


def test_a_configured_key_is_needed_and_not_told(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO, "--api-key", "s3cret") as served:
        told = announced(served)
    assert told["API keys"].startswith("needed")
    assert "s3cret" not in str(told)


async def test_the_backends_key_goes_to_the_backend_and_clients_send_theirs(tmp_path: Path) -> None:
    async with backend_serving() as backend:
        backend.replies(sse(chunk({"content": "Noon."}), chunk(finish="stop")) + DONE, expect=ASKED)
        options = ("--base-url", backend.url, "--model", "clockwork", "--backend-key", "for-the-backend", "--api-key", "for-us")
        with serving(tmp_path, HELLO, *options) as served:
            answers = [await _asked(served, key) for key in ("for-us", "for-the-backend")]
        backend.check()
        assert answers == [200, 401]
        assert [request.headers["Authorization"] for request in backend.received] == ["Bearer for-the-backend"]


async def _asked(served: Served, key: str) -> int:
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session,
        session.post(f"{served.url}/responses", json={"input": "What time is it?"}) as answer,
    ):
        return answer.status


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker", "--workers", "2"), ("serve", "--check")], ids=" ".join)
def test_a_bucket_that_is_not_there_is_told_at_the_start(bucket: S3, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "mainspring.toml").write_text('files = "s3://other/x"\n')
    ended = start_in(tmp_path, command, bucket.environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch("mainspring: files cannot be kept in s3://other/x: there is no such bucket; create it.*\n", ended.stderr)


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("serve", "--check")], ids=" ".join)
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('builtins = ["shel"]', "there is no built-in tool `shel`; known: shell,"),
        ('tools = ["nowhere"]', "there is no module `nowhere`;"),
    ],
)
def test_what_a_server_refuses_to_start_with_its_check_refuses_too(
    tmp_path: Path, command: tuple[str, ...], settings: str, told: str
) -> None:
    (tmp_path / "mainspring.toml").write_text(f"{settings}\n")
    ended = start_in(tmp_path, command, {})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"mainspring: the settings are not right: mainspring.toml:1: {told}" in ended.stderr


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3]:
    with running_s3() as s3:
        yield s3


def start_in(folder: Path, command: tuple[str, ...], environment: dict[str, str]) -> Ended:
    script = folder / "script.json"
    script.write_text('{"turns": [{"say": "Hello."}]}')
    options = ("--database", str(folder / "served.db"), "--model", f"scripted:{script}")
    return run([executable, "-m", "mainspring", *command, *options], cwd=folder, env={**os.environ, **environment})


async def test_rights_that_a_cluster_does_not_give_are_told_at_the_start(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as world:
        world.cluster.forbidden = {("create", "pods")}
        settings = f'sandbox = "kubernetes"\nbuiltins = ["code_interpreter"]\n[kubernetes]\nkubeconfig = "{world.kubeconfig}"\n'
        (tmp_path / "mainspring.toml").write_text(settings)
        ended = await anyio.to_thread.run_sync(start_in, tmp_path, ("serve", "--port", "0"), {})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch("mainspring: RBAC lets us not `create` `pods` in namespace .*\n", ended.stderr)
