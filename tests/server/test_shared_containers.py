"""Containers of several real servers on one database: any server has them, files go to S3 or a folder, and a crash loses none."""

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from tests.kit.databases import database_in
from tests.kit.processes import run
from tests.kit.s3 import S3, running_s3
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_database")]


def cell(word: str, code: str) -> Script:
    """The model runs this code when it reads the word."""
    return [
        {"when": word, "calls": [{"name": "code_interpreter", "arguments": {"code": code}}]},
        {"when": word, "say": f"Done: {word}."},
    ]


TURNS: Script = [
    *cell("compute", "x = 41; open('result.txt', 'w').write('computed'); None"),
    *cell("continue", "open('result.txt', 'a').write(' and continued'); open('seen.txt', 'w').write(str('x' in globals()))"),
    *cell("hang", "open('half.txt', 'w').write('half')\nimport time\nwhile True: time.sleep(0.01)"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running_s3() as s3:
        yield s3


@pytest.fixture(params=["folder", "s3"])
def files(request: pytest.FixtureRequest, server: S3, tmp_path: Path) -> dict[str, str]:
    """What a server is told of where its files are."""
    place = str(tmp_path / "files") if request.param == "folder" else f"s3://files/{tmp_path.name}"
    return {**server.environment, "MAINSPRING_FILES": place}


@asynccontextmanager
async def clients(*servers: Served) -> AsyncIterator[list[AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        made = [AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=PATIENCE) for served in servers]
        yield [await stack.enter_async_context(client) for client in made]


def two(folder: Path, stack: ExitStack, env: dict[str, str]) -> list[Served]:
    (folder / "b").mkdir()
    database = database_in(folder, "served.db")
    options = ("--builtin", "code_interpreter", "--builtin", "shell", "--database", database)
    return [stack.enter_context(serving(place, TURNS, *options, env=env, database=None)) for place in (folder, folder / "b")]


async def asked(client: AsyncOpenAI, word: str, container: str) -> Response:
    return await client.responses.create(
        model="m",
        input=word,
        tools=[{"type": "code_interpreter", "container": container}],
        include=["code_interpreter_call.outputs"],
    )


async def content(client: AsyncOpenAI, container: str) -> dict[str, bytes]:
    found = [file async for file in await client.containers.files.list(container)]
    return {
        file.path: (await client.containers.files.content.retrieve(file.id, container_id=container)).content for file in found
    }


async def test_a_container_made_on_one_server_is_listed_and_used_on_another(tmp_path: Path, files: dict[str, str]) -> None:
    with ExitStack() as stack:
        servers = two(tmp_path, stack, files)
        async with clients(*servers) as (first, second):
            container = await first.containers.create(name="shared")
            assert [found.id async for found in await second.containers.list()] == [container.id]
            assert (await second.containers.retrieve(container.id)).name == "shared"
            sent = await second.containers.files.create(container.id, file=("data.csv", b"1,2"))
            assert (await asked(first, "compute", container.id)).output_text == "Done: compute."
            assert await content(second, container.id) == {"data.csv": b"1,2", "result.txt": b"computed"}
            assert (await asked(second, "continue", container.id)).output_text == "Done: continue."
            written = {"result.txt": b"computed and continued", "seen.txt": b"False"}
            assert await content(first, container.id) == {"data.csv": b"1,2", **written}
            await first.containers.files.delete(sent.id, container_id=container.id)
            assert await content(second, container.id) == written
            await second.containers.delete(container.id)
            with pytest.raises(openai.NotFoundError):
                await first.containers.retrieve(container.id)
            with pytest.raises(openai.NotFoundError):
                await asked(first, "compute", container.id)


async def test_a_container_goes_on_elsewhere_when_its_server_is_killed(tmp_path: Path, files: dict[str, str]) -> None:
    with ExitStack() as stack:
        servers = two(tmp_path, stack, files)
        async with clients(*servers) as (first, second), anyio.create_task_group() as group:
            container = await first.containers.create(name="shared")
            assert (await asked(first, "compute", container.id)).output_text == "Done: compute."

            async def hang() -> None:
                with pytest.raises(openai.APIConnectionError):
                    await asked(first, "hang", container.id)

            group.start_soon(hang)
            with anyio.fail_after(PATIENCE):
                while "half.txt" not in await content(first, container.id):  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            assert "half.txt" not in await content(second, container.id), "the call still goes on"
            servers[0].kill()
            assert (await asked(second, "continue", container.id)).output_text == "Done: continue."
            assert await content(second, container.id) == {"result.txt": b"computed and continued", "seen.txt": b"False"}


async def test_containers_outlive_a_restart(tmp_path: Path, files: dict[str, str]) -> None:
    options = ("--builtin", "code_interpreter")
    with serving(tmp_path, TURNS, *options, env=files) as served:
        async with clients(served) as [client]:
            container = await client.containers.create(name="kept")
            await asked(client, "compute", container.id)
        assert served.stop() == 0
    with serving(tmp_path, TURNS, *options, env=files) as served:
        async with clients(served) as [client]:
            assert [found.name async for found in await client.containers.list()] == ["kept"]
            answer = await asked(client, "continue", container.id)
            assert "the variables of earlier calls are gone, the files are still there" in str(answer.output)
            assert (await content(client, container.id))["result.txt"] == b"computed and continued"


async def test_a_frozen_server_that_wakes_up_changes_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    with ExitStack() as stack:
        servers = two(tmp_path, stack, files)
        async with clients(*servers) as (first, second):
            container = await first.containers.create(name="shared")
            await asked(first, "compute", container.id)
            servers[0].process.send_signal(signal.SIGSTOP)
            try:
                # No call was under way, so nobody has to wait for the other server.
                assert (await asked(second, "continue", container.id)).output_text == "Done: continue."
            finally:
                servers[0].process.send_signal(signal.SIGCONT)
            assert (await content(first, container.id))["result.txt"] == b"computed and continued"
            assert (await asked(first, "continue", container.id)).output_text == "Done: continue."
            assert (await content(second, container.id))["result.txt"] == b"computed and continued and continued"


async def test_while_the_storage_refuses_everything_no_file_is_lost(tmp_path: Path, server: S3) -> None:
    with ExitStack() as stack:
        env = {**server.environment, "MAINSPRING_FILES": f"s3://files/{tmp_path.name}"}
        async with clients(*two(tmp_path, stack, env)) as (first, second):
            container = await first.containers.create(name="shared")
            with server.strict():
                assert (await asked(first, "compute", container.id)).output_text == "Done: compute."
                assert await content(first, container.id) == {"result.txt": b"computed"}
                with pytest.raises(openai.APIStatusError) as raised:
                    await first.containers.files.create(container.id, file=("data.csv", b"1,2"))
                assert (raised.value.status_code, raised.value.code) == (503, "files_unavailable")
                assert "give the credentials of this process the right" in raised.value.message
            with anyio.fail_after(PATIENCE):
                while "result.txt" not in await content(second, container.id):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert (await asked(second, "continue", container.id)).output_text == "Done: continue."
            assert (await content(first, container.id))["result.txt"] == b"computed and continued"


async def test_the_processes_of_one_server_share_containers_without_being_told_where(tmp_path: Path) -> None:
    options = ("--builtin", "code_interpreter", "--workers", "2")
    files = {"MAINSPRING_FILES": str(tmp_path / "files")} if database_in(tmp_path).startswith("postgres") else {}
    with serving(tmp_path, TURNS, *options, env=files) as served:
        # A connection each, so that it is chance which process has it.
        async with clients(*[served] * 8) as many:
            container = await many[0].containers.create(name="shared")
            for client in many:
                assert (await client.containers.retrieve(container.id)).name == "shared"
            await asked(many[1], "compute", container.id)
            for client in many[2:]:
                assert (await asked(client, "continue", container.id)).output_text == "Done: continue."
            assert (await content(many[0], container.id))["result.txt"] == b"computed" + b" and continued" * 6


def refused(folder: Path, env: dict[str, str]) -> str:
    """What a server says that does not start."""
    (folder / "script.json").write_text('{"turns": [{"say": "Never."}]}')
    command = [sys.executable, "-m", "mainspring", "serve", "--port", "0", "--model", "scripted:script.json"]
    command += ["--builtin", "shell"]
    command += ["--database", database_in(folder, "served.db")]
    done = run(command, cwd=folder, env=env)
    assert done.returncode not in (0, -signal.SIGKILL), done.stderr
    return done.stderr


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_storage_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, server: S3) -> None:
    env = {**os.environ, **server.environment}
    told = refused(tmp_path, {**env, "MAINSPRING_FILES": "s3://nowhere/x"})
    assert re.search(r"^.*s3://nowhere/x: there is no such bucket; create it.*\n\Z", told), told
    told = refused(tmp_path, {**env, "MAINSPRING_FILES": "s3://files/x", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert re.search(r"^.*s3://files/x: .*; check the endpoint.*\n\Z", told), told
    with server.strict():
        told = refused(tmp_path, {**env, "MAINSPRING_FILES": "s3://files/x"})
    assert re.search(r"^.*s3://files/x: access is denied; give the credentials.*\n\Z", told), told
    told = refused(tmp_path, {**env, "MAINSPRING_FILES": "ftp://files/x"})
    assert "`ftp://` is no storage" in told
