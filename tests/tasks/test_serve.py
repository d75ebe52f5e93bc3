"""The server as a process: over both transports, for clients of both generations of the protocol, until it is killed."""

import asyncio
import json
import os
import resource
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from tests.clients.process import environment
from tests.kit import processes
from tests.kit.postgres import Postgres
from tests.kit.processes import DEVNULL, PIPE, Ended, start
from tests.kit.waiting import PATIENCE
from tests.tasks.conftest import SERVE, Json, by_http, by_stdio, calling, served

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.server.identity import issue_token, read_secret
from mainspring_tasks.server.serve_tasks import parse_address
from mainspring_tasks.server.sqlite_tasks import SqliteTasks

pytestmark = pytest.mark.slow

MODES = ["auto", "legacy"]


async def try_all(client: Client) -> None:
    """All five tools, as one would use them."""
    call = calling(client)
    assert len((await client.list_tools()).tools) == 5
    task = (await call("add_task", description="Buy milk 🥛"))["data"]
    assert (await call("list_tasks", status="pending"))["data"] == [task]
    changed = (await call("update_task", task_id=task["id"], description="Buy bread"))["data"]
    done = (await call("complete_task", task_id=task["id"]))["data"]
    assert done == {**changed, "status": "completed", "completed_at": done["completed_at"]}
    assert (await call("list_tasks"))["data"] == [done]
    assert (await call("delete_task", task_id=task["id"]))["success"]
    assert (await call("complete_task", task_id=task["id"]))["error_code"] == "NOT_FOUND"
    assert (await call("list_tasks"))["data"] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_strangers_client_uses_it_by_stdio(tmp_path: Path, mode: str) -> None:
    async with by_stdio(str(tmp_path / "tasks.db"), "alice", mode=mode) as client:
        await try_all(client)


@pytest.mark.parametrize("mode", MODES)
async def test_a_strangers_client_uses_it_by_http(tmp_path: Path, mode: str) -> None:
    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        async with by_http(server.url, mode=mode) as client:
            await try_all(client)


async def test_postgresql_is_named_by_its_url(tmp_path: Path, postgres: Postgres) -> None:
    async with by_stdio(postgres.database(), "alice") as client:
        await try_all(client)


async def test_the_environment_may_name_the_user_and_the_database(tmp_path: Path) -> None:
    env = environment(MAINSPRING_TASKS_USER="alice", XDG_DATA_HOME=str(tmp_path))
    async with Client(StdioServerParameters(command=SERVE[0], args=SERVE[1:], env=env)) as client:
        await calling(client)("add_task", description="x")
    store = SqliteTasks(tmp_path / "mainspring" / "tasks.db")
    await store.open()
    assert [kept.description for kept in await store.list("alice")] == ["x"]
    await store.close()


async def test_users_of_one_server_do_not_meet(tmp_path: Path) -> None:
    secret = read_secret(tmp_path / "tasks.key", make=True)
    with served(tmp_path, "--secret-file", "tasks.key", "--database", "tasks.db") as server:
        async with AsyncExitStack() as stack:
            names = ["alice", "bob"]
            clients = [
                await stack.enter_async_context(by_http(server.url, issue_token(secret, name), mode="auto")) for name in names
            ]
            people = dict(zip(names, map(calling, clients), strict=True))

            async def adds(name: str, number: int) -> Json:
                return (await people[name]("add_task", description=f"{name} {number}"))["data"]  # type: ignore[no-any-return]

            added = await asyncio.gather(*[adds(name, number) for number in range(20) for name in names])
            assert len({task["id"] for task in added}) == 40
            listed = await asyncio.gather(*[people[name]("list_tasks") for name in names])
            for name, answer in zip(names, listed, strict=True):
                assert sorted(task["description"] for task in answer["data"]) == sorted(f"{name} {n}" for n in range(20))
            foreign = await asyncio.gather(
                *[
                    people["bob" if task["description"].startswith("alice") else "alice"]("delete_task", task_id=task["id"])
                    for task in added
                ]
            )
            assert {answer["error_code"] for answer in foreign} == {"ACCESS_DENIED"}
            assert await asyncio.gather(*[people[name]("list_tasks") for name in names]) == listed


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_a_token_is_refused(tmp_path: Path, mode: str) -> None:
    with served(tmp_path, "--secret-file", "tasks.key", "--database", "tasks.db") as server:
        for given in (None, issue_token("t" * 40, "alice"), "alice"):
            with pytest.RaisesGroup(MCPError, allow_unwrapped=True, flatten_subgroups=True):
                async with by_http(server.url, given, mode=mode) as client:
                    await client.list_tools()
        async with httpx2.AsyncClient() as http:
            # Not even what comes without a body, or is for another path.
            for method, url in (("POST", server.url), ("GET", server.url), ("DELETE", server.url), ("GET", server.url + "x")):
                answer = await http.request(method, url, headers={"x-mainspring-user": "alice"})
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert "Authorization: Bearer TOKEN" in answer.json()["error"]["message"]


def message(name: str, arguments: str) -> bytes:
    about = '{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}'
    params = f'{{"_meta": {about}, "name": "{name}", "arguments": {arguments}}}'
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'.encode()


def headers(name: str, **more: str) -> dict[str, str]:
    kinds = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return {**kinds, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name, **more}


async def test_pages_of_others_do_not_get_in(tmp_path: Path) -> None:
    with served(tmp_path, "--user", "alice", "--database", "tasks.db", "--allow-host", "tasks.internal") as server:
        async with httpx2.AsyncClient() as http:

            async def status(**more: str) -> int:
                found = await http.post(server.url, content=message("list_tasks", "{}"), headers=headers("list_tasks", **more))
                return found.status_code

            own = f"http://127.0.0.1:{server.port}"
            assert await status() == await status(origin=own) == 200
            assert await status(host=f"localhost:{server.port}") == 200
            assert await status(host="tasks.internal") == await status(host="tasks.internal:443") == 200
            assert await status(host="tasks.internal", origin="https://tasks.internal") == 200
            for host in ("evil.example", "evil.example:80", f"127.0.0.1.evil.example:{server.port}", "tasks.internal.evil"):
                assert await status(host=host) == 421
            for origin in ("http://evil.example", "null", "http://127.0.0.1.evil.example", "https://tasks.internal.evil"):
                assert await status(origin=origin) == 403


async def test_text_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        async with httpx2.AsyncClient() as http:

            async def said(name: str, arguments: str) -> Any:
                answer = await http.post(server.url, content=message(name, arguments), headers=headers(name))
                return answer.json()["result"]["structuredContent"]

            for name, arguments, word in [
                ("add_task", r'{"description": "half \ud83e"}', "half of a surrogate pair"),
                ("add_task", r'{"description": "x\u0000"}', "NUL"),
                ("add_task", r'{"description": "x", "\udc00": 1}', r"`\udc00`"),
                ("delete_task", r'{"task_id": "\ud800"}', r"`\ud800`"),
                ("add_task", json.dumps({"description": "x" * 500_000}), "has 500000 characters"),
                ("add_task", json.dumps({f"argument{number}": 1 for number in range(5000)}), "`argument7`"),
            ]:
                answer = await said(name, arguments)
                assert answer["error_code"] == "VALIDATION_ERROR"
                assert word in answer["error"]
                assert len(answer["error"]) < 2000
            assert (await said("list_tasks", "{}"))["data"] == []
            big = await http.post(server.url, content=b" " * 1_100_000, headers=headers("list_tasks"))
            assert big.status_code == 413


async def test_what_was_answered_outlives_a_kill(tmp_path: Path) -> None:
    """Ten clients add without end; the server is killed between two of its answers."""
    answered: list[str] = []
    asked: set[str] = set()
    enough = asyncio.Event()

    async def adds(number: int) -> None:
        async with by_http(server.url) as client:
            while not enough.is_set():
                description = f"{number}: {len(asked)}"
                asked.add(description)
                answered.append((await calling(client)("add_task", description=description))["data"]["id"])
                if len(answered) >= 40:
                    enough.set()
                    server.kill()

    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        ends = await asyncio.gather(*[asyncio.wait_for(adds(number), PATIENCE) for number in range(10)], return_exceptions=True)
    assert len(ends) == 10
    store = SqliteTasks(tmp_path / "tasks.db")
    await store.open()
    kept = await store.list("alice")
    await store.close()
    assert len(answered) >= 40
    assert set(answered) <= {str(task.id) for task in kept}
    assert {task.description for task in kept} <= asked
    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        async with by_http(server.url) as client:
            assert len((await calling(client)("list_tasks"))["data"]) == len(kept)


async def test_a_client_of_the_stateless_protocol_outlives_a_restart(tmp_path: Path) -> None:
    secret = read_secret(tmp_path / "tasks.key", make=True)
    options = ("--secret-file", "tasks.key", "--database", "tasks.db")
    with served(tmp_path, *options) as server:
        async with by_http(server.url, issue_token(secret, "alice")) as client:
            task = (await calling(client)("add_task", description="x"))["data"]
            server.kill()
            with served(tmp_path, *options, "--http", f"127.0.0.1:{server.port}"):
                assert (await calling(client)("list_tasks"))["data"] == [task]


async def test_a_full_disk_is_an_error_that_passes(tmp_path: Path) -> None:
    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        async with by_http(server.url) as client:
            call = calling(client)
            await call("add_task", description="before")
            whole = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            # From now on no file may grow.
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, whole[1]))
            answer = await call("add_task", description="x" * 1000)
            assert answer["error_code"] == "DATABASE_ERROR"
            assert "look with list_tasks" in answer["error"]
            assert str(tmp_path) not in answer["error"]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, whole)
            assert (await call("add_task", description="after"))["success"]
            assert [task["description"] for task in (await call("list_tasks"))["data"]] == ["after", "before"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_on_the_network_stops_when_told(tmp_path: Path, number: int) -> None:
    with served(tmp_path, "--user", "alice", "--database", "tasks.db") as server:
        os.kill(server.process.pid, number)
        assert server.process.wait(PATIENCE) == 0
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("tasks.db")] == ["tasks.db"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_on_standard_input_ends_at_once(tmp_path: Path, number: int) -> None:
    command = [*SERVE, "--user", "alice", "--database", str(tmp_path / "tasks.db")]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    with start(command, env=environment(), stdin=PIPE, stderr=DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "mainspring-tasks"
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number


def run(*options: str, folder: Path, **env: str) -> Ended:
    return processes.run([*SERVE[:-1], *options], env=environment(**env), cwd=folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["serve"], "say whose tasks they are with --user NAME or MAINSPRING_TASKS_USER"),
        (["serve", "--user", ""], "1 to 255 printable characters"),
        (["serve", "--http", "127.0.0.1:0"], "or let tokens say so with --secret-file FILE"),
        (["serve", "--http", "0.0.0.0:0", "--user", "alice"], "0.0.0.0 can be reached by others, who would all be `alice`"),
        (["serve", "--http", "127.0.0.1:0", "--user", "alice", "--secret-file", "x"], "give one"),
        (["serve", "--secret-file", "x"], "tokens are for servers on the network"),
        (["serve", "--http", "8100", "--user", "alice"], "`8100` is not HOST:PORT"),
        (["serve", "--http", "203.0.113.1:1", "--secret-file", "key"], "cannot listen at 203.0.113.1 port 1"),
        (["serve", "--user", "alice", "--database", "redis://x"], "`redis:` is no database that Mainspring knows"),
        (["serve", "--user", "alice", "--database", "."], "is a folder"),
        (["token", "alice"], "--secret-file FILE"),
        (["token", "", "--secret-file", "secret"], "1 to 255 printable characters"),
        (["token", "alice", "--secret-file", "typo"], "there is no secret in typo"),
    ],
)
def test_a_server_that_would_not_be_safe_does_not_start(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    done = run(*options, folder=tmp_path)
    assert done.returncode in (1, 2)
    assert not (tmp_path / "typo").exists()
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_token_of_the_command_line_fits_the_secret(tmp_path: Path) -> None:
    secret = read_secret(tmp_path / "tasks.key", make=True)
    made = run("token", "alice", "--secret-file", "tasks.key", folder=tmp_path).stdout.strip()
    assert made == issue_token(secret, "alice")


@pytest.mark.parametrize("text", ["", "8100", ":8100", "host:", "host:x", "host:65536", "::1:80", "host:²"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not HOST:PORT"):
        parse_address(text)


def test_an_address_knows_who_can_reach_it() -> None:
    assert all(parse_address(text).is_local for text in ("127.0.0.1:1", "localhost:1", "[::1]:1"))
    assert not any(parse_address(text).is_local for text in ("0.0.0.0:1", "[::]:1", "me:1", "10.0.0.1:1"))
    assert parse_address("0.0.0.0:1").names == ("127.0.0.1", "localhost", "[::1]")
    assert parse_address("[fd00::1]:1", ["tasks"]).names == ("127.0.0.1", "localhost", "[::1]", "[fd00::1]", "tasks")
