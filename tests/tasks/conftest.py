"""What the tests of the task server share: both databases, users in memory, and the server as a process."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema_rs
import msgspec
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from tests.clients.process import environment
from tests.kit.processes import Process, start
from tests.kit.waiting import PATIENCE

from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.identity import fix_user
from mainspring_tasks.server.mcp_server import build_task_server
from mainspring_tasks.server.task_definitions import CALLABLE
from mainspring_tasks.server.task_store import choose_task_store

Json = dict[str, Any]
Call = Callable[..., Awaitable[Json]]
"""Calls a tool, by name and arguments, and returns the reply."""

ANSWERS = {name: jsonschema_rs.validator_for(tool.answer) for name, tool in CALLABLE.items()}
SERVE = [sys.executable, "-m", "mainspring", "tasks", "serve"]
NOBODY = "6a1f6f0e-2a0c-4d56-8a4e-0d2f3c1b9e77"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of an empty database, as `--database` takes it."""
    if request.param == "sqlite":
        return str(tmp_path / "tasks.db")
    return str(request.getfixturevalue("postgres").database())


@pytest.fixture
async def store(database: str) -> AsyncIterator[TaskStore]:
    store = choose_task_store(database)
    await store.open()
    yield store
    await store.close()


def reply(name: str, result: CallToolResult) -> Json:
    """What a tool answered; the same in all the ways that it is told, and as its schema says."""
    [text] = result.content
    assert isinstance(text, TextContent)
    found: Json = msgspec.json.decode(text.text)
    assert found == result.structured_content
    assert result.is_error is (not found["success"])
    ANSWERS[name].validate(found)
    assert found["success"] is (found["error"] is None) is (found["error_code"] is None)
    return found


def calling(client: Client) -> Call:
    async def call(name: str, **arguments: object) -> Json:
        return reply(name, await client.call_tool(name, arguments, PATIENCE))

    return call


@asynccontextmanager
async def users(store: TaskStore, *names: str) -> AsyncIterator[list[Call]]:
    """Each with a connection of their own."""
    async with AsyncExitStack() as stack:
        yield [calling(await stack.enter_async_context(Client(build_task_server(store, fix_user(name))))) for name in names]


@asynccontextmanager
async def by_stdio(database: str, user: str, **more: Any) -> AsyncIterator[Client]:
    """The SDK's own client, and a server that it has started."""
    command = [*SERVE, "--database", database, "--user", user]
    process = StdioServerParameters(command=command[0], args=command[1:], env=environment())
    async with Client(process, **more) as client:
        yield client


@asynccontextmanager
async def by_http(url: str, token: str | None = None, **more: Any) -> AsyncIterator[Client]:
    """The SDK's own client, with a token of its user."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(url, http_client=http), **more) as client,
    ):
        yield client


class Served:
    """A server on the network, as its operator starts it."""

    def __init__(self, process: Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    log = folder / "serve.log"
    command = [*SERVE, "--http", "127.0.0.1:0", *options]
    with log.open("wb") as complaints:
        process = start(command, env=environment(), stderr=complaints.fileno(), cwd=folder)
    with process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert "listens at " in said, said + log.read_text()
            yield Served(process, said.rpartition(" ")[2].strip(), log)
        finally:
            process.terminate()
            process.wait(PATIENCE)
