"""A server on PostgreSQL: the same answers, nothing in local files, and it outlives a restart of its database."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, serving

from mainspring.storage.location import Location

pytestmark = pytest.mark.slow

SLOW: Script = [{"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.1}]


def with_password(postgres: Postgres, location: Location) -> str:
    """The URL with a password, which a server that trusts its machine does not ask for."""
    return f"postgresql://postgres:hunter2@/{urlsplit(location.given).path.strip('/')}?host={postgres.socket.parent}"


async def test_what_one_server_has_stored_another_finds_and_no_password_is_seen(
    postgres: Postgres, emptied: Location, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    url = with_password(postgres, emptied)
    with serving(tmp_path, SLOW, env={"MAINSPRING_DATABASE": url}, database=None) as served:
        body = {"model": "m", "input": "count", "metadata": {"a": "b"}}
        async with http.post(f"{served.url}/responses", json=body) as answer:
            made = await answer.json()
        with serving(tmp_path, SLOW, "--database", url) as other:
            async with http.get(f"{other.url}/responses/{made['id']}") as answer:
                assert await answer.json() == made
            for process in (served.process, other.process):
                assert "hunter2" not in await anyio.Path(f"/proc/{process.pid}/cmdline").read_text()
            assert other.stop() == 0
        served.process.terminate()
        assert served.process.stdout is not None
        said = served.process.stdout.read()
    assert "database  postgresql://postgres:***@/" in served.warnings + said
    assert "hunter2" not in served.warnings + said
    assert [path.name async for path in anyio.Path(tmp_path).iterdir()] == ["script.json"]


async def test_a_stream_outlives_a_restart_of_the_database(
    postgres: Postgres, emptied: Location, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with serving(tmp_path, SLOW, "--database", emptied.given) as served:
        answer = await http.post(f"{served.url}/responses", json={"model": "m", "input": "count", "stream": True})
        read = b""
        while b"output_text.delta" not in read:
            read += await answer.content.readany()
        await anyio.to_thread.run_sync(postgres.stop)
        async with http.get(served.url.replace("/v1", "/readyz")) as ready:
            assert ready.status == 503
            assert (await ready.json())["error"]["code"] == "not_ready"
        await anyio.to_thread.run_sync(postgres.start)
        with anyio.fail_after(2 * PATIENCE):
            read += await answer.content.read()
        assert read.endswith(b"data: [DONE]\n\n")
        frames = [json.loads(frame.partition(b"data: ")[2]) for frame in read.split(b"\n\n")[:-2]]
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        assert frames[-1]["type"] == "response.completed"
        async with http.get(served.url.replace("/v1", "/readyz")) as ready:
            assert ready.status == 200


async def test_a_run_of_a_server_that_was_killed_is_taken_up_by_another(
    emptied: Location, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with serving(tmp_path, SLOW, "--database", emptied.given) as served:
        order = {"model": "m", "input": "count", "background": True}
        async with http.post(f"{served.url}/responses", json=order) as answer:
            made = await answer.json()
        served.kill()
    with serving(tmp_path, SLOW, "--database", emptied.given) as other:
        with anyio.fail_after(2 * PATIENCE):
            async with http.get(f"{other.url}/responses/{made['id']}?stream=true") as stream:
                read = await stream.read()
        assert b"response.completed" in read
